"""The question of ``vctl simulate``: the workload, the machine and the policies. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vctl.core.clusters import JOB, PRIMARY, SUB
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, SCALE, Amounts
from vctl.core.values import fields, replace, value
from vctl.core.wording import cluster_text, counted
from vctl.errors import BadSpec, param
from vctl.ops import scope
from vctl.ops import simulate as playing
from vctl.scheduler.recall import recall
from vctl.simulate.workload import Arrival, Workload, in_order
from vctl.spec.fields import refuse, show
from vctl.spec.ids import JOB_MARK
from vctl.store import clusters, job_views, limits, rows, settings
from vctl.store.database import database_path
from vctl.store.store import Store

MIN_LOAD, MAX_LOAD, MAX_SEED = 1e-4, 100, 2**63 - 1


def _number(given: float) -> str:
    return f"{given:g}" if abs(given) < 1e15 else show(given)  # "g" fails for a whole number of 400 digits


@value(frozen=True, slots=True)
class Model:
    """A workload of the Lublin-Feitelson model."""

    jobs: int = 1000
    seed: int = 1
    load: float = 0.9

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= playing.MOST_MODEL_JOBS:
            raise refuse(
                param("jobs"),
                f"{show(self.jobs)} is not a number of jobs",
                f"write 1 to {playing.MOST_MODEL_JOBS}",
            )
        if not MIN_LOAD <= self.load <= MAX_LOAD:
            raise refuse(
                param("load"),
                f"{_number(self.load)} is not a load",
                "write a part of the capacity, such as 0.9",
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise refuse(
                param("seed"), f"{show(self.seed)} is out of range", f"write a number from 0 to {MAX_SEED}"
            )


@value(frozen=True, slots=True)
class SimulationRequest:
    """A question: a trace, a model, or else the history between two times (epoch, s), and the settings of the runs."""

    trace: Workload | None = None
    model: Model | None = None
    since: float | None = None
    until: float | None = None
    cluster: str | None = None
    policies: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    template: str | None = None
    node_resources: Amounts | None = None
    limit_factor: float | None = None

    def __post_init__(self) -> None:
        if self.limit_factor is not None and not 0 < self.limit_factor <= 1e6:
            raise refuse(
                param("limit_factor"),
                f"{_number(self.limit_factor)} is not a factor",
                "write 2 for twice the run time",
            )


def within(seconds: float) -> Callable[[], None]:
    """Refuses the simulation when it is called after this time."""
    give_up = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > give_up:
            raise BadSpec(
                f"the simulation takes more than {seconds:g} s, and other requests wait for it",
                fix="ask for fewer jobs, policies or nodes; or run `vctl simulate --trace` on a machine of your own",
            )

    return check


def processors_of(each: Amounts | None) -> int | None:
    """The number of processors of a node with these resources; None without resources."""
    return None if each is None else max(1, each.get(CPU, 0) // SCALE)


def made(request: SimulationRequest) -> Workload:
    """The simulated jobs of a trace or a model."""
    work = request.trace
    if work is None:
        model = request.model or Model()
        nodes = playing.sensible(request.nodes[0]) if request.nodes else 256
        work = playing.model(model.jobs, nodes=nodes, seed=model.seed, load=model.load)
    return playing.chosen(work, request.cluster, request.limit_factor)


def at(
    home: Path,
    request: SimulationRequest,
    progress: playing.Progress | None = None,
    check: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Simulate the workload under the present settings and under each policy; with the differences to the first run.

    ``home``: the state directory, which need not exist for a trace or a model. ``check`` is called all the time.
    """
    if request.trace is not None or request.model is not None:
        return made_up(request, queue_now(home), progress, check)
    work, base = load(home, request)
    work = playing.chosen(work, request.cluster, request.limit_factor)
    return playing.simulate(
        playing.Question(
            work, playing.state_machine(base, request.template), _variants(request), request.cluster
        ),
        progress,
        check,
    )


def made_up(
    request: SimulationRequest,
    settings: Mapping[str, object],
    progress: playing.Progress | None = None,
    check: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Simulate a trace or a model on a machine of equal nodes; ``settings`` are the present queue settings."""
    work = made(request)
    machine = playing.trace_machine(work, request.node_resources, settings)
    return playing.simulate(
        playing.Question(work, machine, _variants(request), request.cluster), progress, check
    )


def _variants(request: SimulationRequest) -> list[playing.Variant]:
    """The current settings, then every policy, on each number of nodes."""
    recorded_work = request.trace is None and request.model is None
    machines: list[int | None] = [*([None] if recorded_work or not request.nodes else []), *request.nodes]
    many = len(machines) > 1
    policies = [playing.parse_policy(variant) for variant in request.policies]
    return [
        replace(
            variant,
            nodes=size,
            name=f"{variant.name} on {counted(size, 'node')}" if many and size is not None else variant.name,
        )
        for size in machines
        for variant in (playing.Variant(playing.CURRENT), *policies)
    ]


def load(home: Path, request: SimulationRequest) -> tuple[Workload, Ledger]:
    """The jobs of a state directory, and its cluster."""
    with Store.open(home, create=False) as store, store.snapshot():
        if request.cluster is not None and JOB_MARK in request.cluster:
            name = cluster_text(scope.existing(store, request.cluster))
            raise refuse(
                param("cluster"),
                f"{name} is the cluster of one job, and what runs in it is simulated as a whole",
                f"write {param('cluster')}=primary for the jobs of the primary, or name a logical cluster",
            )
        since_ns, until_ns = (
            None if moment is None else int(moment * 1e9) for moment in (request.since, request.until)
        )
        return workload(store, since_ns, until_ns), machine(store)


def queue_now(home: Path) -> dict[str, object]:
    """The queue settings of the primary of a state directory; empty where there is no state."""
    if not database_path(home).exists():
        return {}
    with Store.open(home, create=False) as store:
        queue = settings.queue_of(store, PRIMARY)
    return {field.name: getattr(queue, field.name) for field in fields(queue)}


def workload(store: Store, since_ns: int | None, until_ns: int | None) -> Workload:
    """The recorded jobs with their requests and their real run times."""
    arrivals: list[Arrival] = []
    inside = 0
    for row in job_views.ended_rows(store, since_ns, until_ns):
        job = rows.pending(row)
        if "##" in job.parent_id:
            inside += 1
            continue
        arrivals.append(Arrival(replace(job, held=False), max(1, row["ended_at"] - row["started_at"])))
    notes = [
        f"1 job is {status} and has not run to an end"
        if count == 1
        else f"{count} jobs are {status} and have not run to an end"
        for status, count in job_views.never_ran(store, since_ns, until_ns).items()
    ]
    if inside:
        notes.append(
            f"{counted(inside, 'job')} ran inside the clusters of others, which are simulated as a whole"
        )
    return Workload("the recorded history", in_order(arrivals), tuple(notes))


def machine(store: Store) -> Ledger:
    """The present nodes and logical clusters, without running jobs and without leases."""
    ledger = clusters.load_ledger(store)
    ledger.limits = limits.load(store)
    for run_id in list(ledger.charges):
        ledger.discharge(run_id)
    own = [cluster.cluster_id for cluster in ledger.clusters.values() if cluster.kind in (JOB, SUB)]
    for cluster_id in sorted(own, key=lambda cluster: cluster.count("##"), reverse=True):
        ledger.remove_cluster(cluster_id)
    recall(ledger, PRIMARY)
    ledger.grown.clear()
    return ledger
