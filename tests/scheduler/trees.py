"""Trees of elastic clusters in a few characters, and what became of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.scheduler import candidates as g
from vctl.core import labels as lb
from vctl.core.clusters import FIXED, FLEXIBLE, JOB, LOGICAL, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import SCALE, Allocation
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.scheduler.plan import TaskWait
from vctl.scheduler.task_queue import TaskQueue, TaskVerdict

SHORT = {"CPU": "c", "GPU": "g", "memory": "m"}
CLUSTER = re.compile(
    r"(?P<id>\S+) < (?P<parent>[^\s:]+)(?P<flexible> \[(?P<min>[^].]*(?:\.\d[^].]*)*)(?:\.\.(?P<max>[^]]*))?\])?"
    r"(?P<options>[^:]*)(?:: ?(?P<parts>.*))?\Z"
)


def tree(nodes: str, *clusters: str, labels: Mapping[str, str] | None = None) -> Ledger:
    """'team < org [1c..4c] borrow=2c lend=1c job stopped: n1~1c, n2=2c 1g'.

    Brackets: minimum and maximum (no brackets: not flexible); ``~`` a flexible virtual node, ``=`` a fixed one.
    """
    ledger = g.ledger(nodes, labels)
    for text in clusters:
        found = CLUSTER.match(text)
        assert found, text
        options = {word.partition("=")[0]: word.partition("=")[2] for word in found["options"].split()}
        most = found["max"]
        spec = ClusterSpec(
            flexible_min=g.amounts(found["min"] or ""),
            flexible_max=None if most is None else g.amounts(most),
            flexible=found["flexible"] is not None,
        )
        parent = PRIMARY if found["parent"] == "primary" else found["parent"]
        ledger.put_cluster(
            Cluster(
                found["id"], parent, JOB if "job" in options else LOGICAL, spec,
                state="STOPPED" if "stopped" in options else "ACTIVE",
                borrow_limit=g.amounts(options["borrow"]) if "borrow" in options else None,
                lending_limit=g.amounts(options.get("lend", "")),
            )
        )  # fmt: skip
        for rank, part in enumerate(one for one in (found["parts"] or "").split(",") if one.strip()):
            assign(ledger, found["id"], part.strip(), rank)
    return ledger


def assign(ledger: Ledger, cluster_id: str, text: str, rank: int) -> None:
    """'n1~1c': a virtual node in the first of the parent's on that node that has room."""
    node_id, sign, wanted = re.split(r"([~=])", text)
    want = g.amounts(wanted)
    above = next(
        v
        for v in ledger.slots(ledger.clusters[cluster_id].parent_id or "")
        if v.node_id == node_id and ledger.capacities[v.vnode_id].fits(want)
    )
    vnode_id = f"{cluster_id}/{rank}"
    allocation = ledger.capacities[above.vnode_id].copy().take(want)
    labels = {**above.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
    kind = FLEXIBLE if sign == "~" else FIXED
    ledger.assign(VNode(vnode_id, cluster_id, node_id, above.vnode_id, kind, allocation, labels, rank=rank))


def use(ledger: Ledger, text: str) -> None:
    """'team/0: 1c': a process; it is called after the virtual node and a number."""
    vnode_id, _, want = text.partition(": ")
    allocation = ledger.capacities[vnode_id].copy().take(g.amounts(want))
    ledger.charge(f"{vnode_id}#{len(ledger.charges)}", vnode_id, allocation)


def shown(amounts: Mapping[str, int]) -> str:
    """Amounts as they are written here: '2c 0.5g'."""
    ordered = sorted((SHORT.get(name, name), amount) for name, amount in amounts.items() if amount)
    return " ".join(f"{amount / SCALE:g}{name}" for name, amount in ordered)


def parts(ledger: Ledger, cluster_id: str) -> str:
    """What a cluster has: 'n1~2c, n2=1c 1g', by node."""
    found = sorted(ledger.slots(cluster_id), key=lambda v: (v.node_id, v.rank))
    return ", ".join(
        f"{v.node_id}{'~' if v.kind == FLEXIBLE else '='}{shown(v.allocation.amounts)}" for v in found
    )


def task(text: str, *, number: int = 1, origin: str | None = None, bound: str | None = None) -> PendingTask:
    """'job: 1c', 'job: 1c SPREAD', 'job: 1c NODE:n2:soft @zone=a', 'job: 1c <n1=10 n2=30' (bytes of inputs there)."""
    cluster_id, _, rest = text.partition(": ")
    rest, _, inputs = rest.partition("<")
    inputs_at = {node_id: int(size) for node_id, _, size in (one.partition("=") for one in inputs.split())}
    rest, _, condition = rest.partition("@")
    words = rest.split()
    strategy = words.pop() if words and words[-1][0].isupper() else "HYBRID"
    request = g.amounts(" ".join(words))
    return PendingTask(
        f"task-{number}", number, 1, cluster_id, request, g.selector(condition.strip()), strategy, origin,
        inputs_at=inputs_at, bound_vnode_id=bound,
    )  # fmt: skip


def tell(queue: TaskQueue, wait: TaskWait) -> None:
    """Let a task of a queue wait for the virtual node of which it was told, as the scheduler does."""
    task = queue.tasks.get(wait.task_id)
    if task is not None and task.bound_vnode_id != wait.vnode_id:
        queue.drop(wait.task_id)
        queue.put(replace(task, bound_vnode_id=wait.vnode_id))
        queue.note_reported(wait.task_id, TaskVerdict(wait.message))


def lease(ledger: Ledger, text: str, *, number: int = 1, lender: str | None = None, since: int = 1) -> Lease:
    """'team/0: 2c': what is borrowed by the cluster of a virtual node."""
    vnode_id, _, amounts = text.partition(": ")
    vnode = ledger.vnodes[vnode_id]
    parent = ledger.clusters[vnode.cluster_id].parent_id or ""
    return Lease(number, vnode.cluster_id, lender or parent, g.amounts(amounts), since)


def change_node(ledger: Ledger, node_id: str, **changes: object) -> None:
    """Another state or total of a node."""
    ledger.put_node(replace(ledger.nodes[node_id], **changes))  # type: ignore[arg-type]


def devices(allocation: Allocation) -> dict[int, int]:
    """GPU shares by index."""
    return dict(allocation.instances.get("GPU", {}))
