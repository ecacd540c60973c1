"""Failover replay: rebuild the tree from the tables, in the documented order, mending what a crash left behind.

Every step is repeatable: a second replay of the same tables changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from vctl.core import jobs as jb
from vctl.core.clusters import JOB, LOGICAL, PRIMARY, SUB, Cluster, VNode
from vctl.core.jobs import PendingJob, Preemption, Run
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node, NodeRequest
from vctl.core.resources import EMPTY
from vctl.core.tasks import Task
from vctl.engine.changes import JobEnded, NominationDropped, RunEnded, RunStripped
from vctl.errors import Conflict
from vctl.ops import rights
from vctl.ops.nodes import ensure_local
from vctl.ops.repair_divisible import repair_divisible
from vctl.scheduler.nominations import Nomination
from vctl.store import (
    clusters,
    jobs,
    leases,
    nodes,
    preemptions,
    provider,
    queues,
    repair,
    rows,
    runs,
    settings,
    tasks,
    upkeep,
    usage,
)
from vctl.store.locks import SchedulerLock
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec import reports

Value = TypeVar(
    "Value", Node, Cluster, VNode, Run, PendingJob, Task, Lease, Nomination, NodeRequest, Preemption, Row
)

TITLES = (
    "primary cluster from the node table",
    "logical clusters, parents first",
    "repair of divisible clusters",
    "job clusters and sub-clusters",
    "leases",
    "jobs, tasks and processes",
)


@dataclass(slots=True)
class Replayed:
    """What a replay rebuilt and did. ``runs`` are the processes to look for."""

    ledger: Ledger = field(default_factory=Ledger)
    runs: dict[str, Run] = field(default_factory=dict)
    steps: list[list[str]] = field(default_factory=lambda: [[] for _ in TITLES])

    @property
    def changes(self) -> int:
        """How many things were mended."""
        return sum(len(actions) for actions in self.steps)

    def form(self) -> reports.Replayed:
        """The documented JSON form."""
        steps: list[reports.ReplayStep] = [
            {"step": number, "title": title, "actions": actions}
            for number, (title, actions) in enumerate(zip(TITLES, self.steps, strict=True), 1)
        ]
        return {"steps": steps, "changes": self.changes}


class _DryRun(Exception):
    """Rolls back what a dry run has done."""


def replay(store: Store, *, dry_run: bool = False) -> reports.Replayed:
    """``vctl replay``: run the six steps and tell what they did, or with ``dry_run`` what they would do."""
    if dry_run:
        return _dry(store).form()
    rights.check_service(store, "the state as a whole")
    lock = SchedulerLock(store.home)
    if not lock.acquire("replay"):
        raise Conflict(
            "a scheduler is running, and it replayed the tables when it started",
            fix="stop it first, or look with `vctl replay --dry-run`",
        )
    try:
        ensure_local(store, wanted=False)
        return rebuild(store).form()
    finally:
        lock.release()


def _dry(store: Store) -> Replayed:
    done = Replayed()
    try:
        with store.transaction():
            _steps(store, done)
            raise _DryRun
    except _DryRun:
        return done


def rebuild(store: Store, *, check_queue: bool = True) -> Replayed:
    """The six steps in one transaction. Whoever reads all waiting jobs next need not have them checked here."""
    done = Replayed()
    with store.transaction():
        _steps(store, done, check_queue=check_queue)
    return done


def _steps(store: Store, done: Replayed, *, check_queue: bool = True) -> None:
    reader = _Reader(store)
    vnodes: dict[str, list[Row]] = {}
    for row in clusters.all_vnode_rows(store):
        vnodes.setdefault(row["cluster_id"], []).append(row)
    tree = clusters.parents_first(clusters.all_rows(store))

    _primary(store, done, reader)
    _clusters(store, done, reader, 1, [row for row in tree if row["kind"] == LOGICAL], vnodes)
    _repair(store, done, tree, vnodes)
    _clusters(store, done, reader, 3, [row for row in tree if row["kind"] in (JOB, SUB)], vnodes)
    _processes(store, done, reader)
    if check_queue:
        _queue(store, done, reader)
    _others(store, done, reader)
    known = {row["cluster_id"] for row in tree}
    for cluster_id in sorted(set(vnodes) - known):
        for row in vnodes[cluster_id]:
            repair.set_aside(store, "vnodes", row, f"its cluster {cluster_id} does not exist")
            done.steps[3].append(f"set aside virtual node {row['vnode_id']}: its cluster does not exist")


class _Reader:
    """Turns rows into values; sets aside those that cannot be read."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def read(self, table: str, row: Row, make: Callable[[Row], Value], actions: list[str]) -> Value | None:
        """The value of a row, or None after the row was set aside."""
        try:
            return make(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            repair.set_aside(self.store, table, row, f"{type(error).__name__}: {error}")
            actions.append(f"set aside unreadable row {row[0]} of {table}: {error}")
            return None


def _primary(store: Store, done: Replayed, reader: _Reader) -> None:
    done.ledger.set_primary_queue(settings.queue_of(store, PRIMARY))
    for row in nodes.all_rows(store):
        node = reader.read("nodes", row, rows.node, done.steps[0])
        if node is not None:
            done.ledger.put_node(node)


def _clusters(
    store: Store, done: Replayed, reader: _Reader, step: int, found: list[Row], vnodes: dict[str, list[Row]]
) -> None:
    actions = done.steps[step]
    gone: set[str] = set()
    for row in found:
        cluster = reader.read("clusters", row, rows.cluster, actions)
        if cluster is None:
            for vnode_row in vnodes.get(row["cluster_id"], []):
                repair.set_aside(store, "vnodes", vnode_row, "its cluster cannot be read")
            continue
        if cluster.cluster_id in gone:
            continue
        if cluster.kind == JOB and not _is_needed(store, cluster):
            for below in reversed(clusters.subtree(store, cluster.cluster_id)):
                store.emit(clusters.removal(store, below))
                gone.add(below)
            store.emit(clusters.removal(store, cluster.cluster_id))
            actions.append(f"removed {cluster.cluster_id}: its job is over")
            continue
        if cluster.parent_id not in done.ledger.clusters:
            _aside(
                store,
                row,
                vnodes.get(cluster.cluster_id, []),
                f"its parent {cluster.parent_id} does not exist",
            )
            actions.append(f"set aside {cluster.cluster_id}: its parent {cluster.parent_id} does not exist")
            continue
        done.ledger.put_cluster(cluster)
        for vnode_row in vnodes.get(cluster.cluster_id, []):
            vnode = reader.read("vnodes", vnode_row, rows.vnode, actions)
            if vnode is None:
                continue
            if _lies_inside(done.ledger, cluster, vnode):
                done.ledger.assign(vnode)
            else:
                repair.set_aside(store, "vnodes", vnode_row, "is not inside its parent")
                actions.append(f"set aside virtual node {vnode.vnode_id}: it is not inside its parent")


def _lies_inside(ledger: Ledger, cluster: Cluster, vnode: VNode) -> bool:
    """Whether a virtual node is a free part of one of its parent cluster on the same physical node."""
    above = ledger.vnodes.get(vnode.parent_id or "")
    if above is None or above.cluster_id != cluster.parent_id or above.node_id != vnode.node_id:
        return False
    return ledger.can_assign(vnode) or ledger.nodes[vnode.node_id].shrunk


def _repair(store: Store, done: Replayed, tree: list[Row], vnodes: dict[str, list[Row]]) -> None:
    running = [row for row in tree if row["kind"] == JOB and _is_running(store, row["job_id"])]
    done.steps[2] += repair_divisible(store, done.ledger, running, vnodes)
    if done.steps[2]:
        vnodes.update((row["cluster_id"], clusters.vnode_rows(store, row["cluster_id"])) for row in running)


def _is_needed(store: Store, cluster: Cluster) -> bool:
    """Whether the job of a cluster runs, or something detached lives in the cluster or below it."""
    if _is_running(store, cluster.job):
        return True
    return upkeep.has_detached(store, [cluster.cluster_id, *clusters.subtree(store, cluster.cluster_id)])


def _is_running(store: Store, job_id: str | int | None) -> bool:
    row = jobs.get(store, int(job_id or 0))
    return row is not None and row["status"] == jb.RUNNING


def _aside(store: Store, row: Row, vnodes: list[Row], problem: str) -> None:
    for vnode in vnodes:
        repair.set_aside(store, "vnodes", vnode, problem)
    repair.set_aside(store, "clusters", row, problem)


def _processes(store: Store, done: Replayed, reader: _Reader) -> None:
    actions = done.steps[5]
    for row in runs.live_rows(store):
        run = reader.read("runs", row, rows.run, actions)
        if run is None:
            continue
        job = jobs.get(store, run.job_id)
        detached = run.task_id is not None and tasks.is_detached(store, run.task_id)
        if job is None or (job["status"] != jb.RUNNING and not detached):
            store.emit(RunEnded(store.clock(), run.run_id, None, "its job was over"))
            actions.append(f"ended run {run.run_id}: its job is over")
            continue
        done.runs[run.run_id] = run
        capacity = done.ledger.capacities.get(run.vnode_id)
        if capacity is not None and (
            capacity.fits_exactly(run.allocation) or _has_shrunk(done.ledger, run.node_id)
        ):
            done.ledger.charge(run.run_id, run.vnode_id, run.allocation)
        elif any(run.allocation.amounts.values()):
            store.emit(RunStripped(run.run_id))
            done.runs[run.run_id] = replace(run, allocation=EMPTY)
            actions.append(
                f"run {run.run_id} holds more than its virtual node has; kept without its reservation"
            )
    with_runs = {run.job_id for run in done.runs.values()}
    for job in jobs.running_rows(store):
        if job["job_id"] not in with_runs:
            end_lost(store, done.ledger, job)
            actions.append(f"ended job {job['submission_id']}: it has no process")


def _has_shrunk(ledger: Ledger, node_id: str) -> bool:
    return node_id in ledger.nodes and ledger.nodes[node_id].shrunk


def _queue(store: Store, done: Replayed, reader: _Reader) -> None:
    """Waiting jobs are read by the scheduler later; here only what it could not read goes aside."""
    for row in queues.pending_rows(store):
        reader.read("jobs", row, rows.pending, done.steps[5])


def _others(store: Store, done: Replayed, reader: _Reader) -> None:
    """The same for waiting tasks, leases and what else a scheduler reads."""
    for row in tasks.unfinished(store):
        reader.read("tasks", row, rows.task, done.steps[5])
    for row in leases.all_rows(store):
        reader.read("leases", row, rows.lease, done.steps[4])
    for row in preemptions.all_rows(store):
        reader.read("preemptions", row, preemptions.preemption, done.steps[5])
    for row in preemptions.nomination_rows(store):
        if reader.read("nominations", row, preemptions.nomination, done.steps[5]) is None:
            store.emit(NominationDropped(row["job_id"]))
    for row in usage.rows(store):
        reader.read("usage", row, usage.check, done.steps[5])
    for row in provider.rows(store):
        reader.read("provider_requests", row, provider.request, done.steps[5])


def end_lost(store: Store, ledger: Ledger, job: Row) -> None:
    """A running job of which no process is known: over, how is not known."""
    cluster_id = job["cluster_id"]
    if (
        cluster_id in ledger.clusters
        and ledger.clusters[cluster_id].kind == JOB
        and not ledger.subclusters.get(cluster_id)
    ):
        store.emit(clusters.removal(store, cluster_id, silent=True))
        ledger.remove_cluster(cluster_id)
    store.emit(JobEnded(
        store.clock(), job["job_id"], job["submission_id"], job["array_id"], cluster_id, "end", jb.FAILED,
        jb.PROCESS_LOST, "its process is not known any more", None,
    ))  # fmt: skip
