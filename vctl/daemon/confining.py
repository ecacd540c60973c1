"""What the kernel is to enforce of a run by a control group (vctl/runtime/cgroups.py).

In personal mode only runs that requested memory get a group, and only with that limit: nothing else is enforced there
without one, and starts of other jobs cost what they cost. With the setting ``cgroups = all``, and for every run
of a shared service, each run gets a group with a limit of processes and a share of the CPU time, below one for each of
its logical clusters: what runs without a limit of its own cannot use more memory than its cluster has.
"""

from __future__ import annotations

from functools import reduce

from vctl.core.clusters import LOGICAL
from vctl.core.jobs import Run
from vctl.core.ledger import Ledger
from vctl.core.nodes import LOCAL, RAY
from vctl.core.resources import CPU, EMPTY, MEMORY, SCALE, Allocation, merged
from vctl.runtime.protocol import Confinement, Limits

AUTO, ALL, OFF = "auto", "all", "off"
"""Values of the setting ``cgroups``."""
NOTHING: Confinement = (0, 0, ())
"""A group without limits but that of memory."""
LEAST_PROCESSES, PROCESSES_PER_CPU = 1024, 256
CLUSTER_FACTOR = 4
"""How many times the processes of one run with its CPUs a cluster may have."""
LEAST_WEIGHT = 10
"""The share of the CPU time, in hundredths of a CPU, of a run or a cluster that has none."""


def confinement_of(
    ledger: Ledger, run: Run, sees: Allocation, parent_id: str, *, uid: int | None, cgroups: str
) -> Confinement | None:  # fmt: skip
    """What the kernel is to enforce of a run on this machine; None if nothing.

    ``parent_id``: the parent of its cluster, which may not exist yet. ``uid``: the user as whom it runs, None in
    personal mode.
    """
    node = ledger.nodes.get(run.node_id)
    source = "" if node is None else node.source
    if cgroups == OFF or source == RAY:
        return None
    if source != LOCAL:  # its amounts are numbers, but its processes are to be found
        return None if uid is None else NOTHING
    if uid is None and cgroups != ALL:
        return NOTHING if sees.amounts.get(MEMORY, 0) >= SCALE else None
    within = run.cluster_id if run.cluster_id in ledger.clusters else parent_id
    clusters: list[tuple[str, Limits]] = []
    for cluster in reversed(ledger.upward(within)):
        if cluster.kind == LOGICAL:
            vnodes = (vnode for vnode in ledger.slots(cluster.cluster_id) if vnode.node_id == run.node_id)
            memory, processes, weight = _limits(reduce(merged, (vnode.allocation for vnode in vnodes), EMPTY))
            limits = memory, CLUSTER_FACTOR * processes, weight
            clusters.append((_name(cluster.cluster_id), limits))
    _, processes, weight = _limits(sees)
    return processes, weight, tuple(clusters)


def _limits(held: Allocation) -> Limits:
    cpus = held.amounts.get(CPU, 0)
    processes = max(LEAST_PROCESSES, PROCESSES_PER_CPU * cpus // SCALE)
    return held.amounts.get(MEMORY, 0) // SCALE, processes, max(LEAST_WEIGHT, 100 * cpus // SCALE)


def _name(cluster_id: str) -> str:
    """A cluster's id as the name of a directory."""
    for sign in "%/\n":
        cluster_id = cluster_id.replace(sign, f"%{ord(sign):02X}")
    return cluster_id
