"""Failover replay: builds the tree from the tables, in the documented order, and finds their repairs.

It writes nothing. A replay of repaired tables finds no changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vctl.core import jobs as jb
from vctl.core.clusters import JOB, LOGICAL, PRIMARY, Cluster, VNode
from vctl.core.jobs import Run, RunningJob
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, Node
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import EMPTY
from vctl.core.values import field, replace, value
from vctl.engine.changes import (
    Change,
    ClusterRemoved,
    ClusterRepaired,
    JobEnded,
    RowSetAside,
    RunEnded,
    RunStripped,
    VNodesChanged,
)
from vctl.engine.rules import clusters as rule
from vctl.scheduler.membership import is_undivided, join, of_whole_nodes

TITLES = (
    "primary cluster from the node table",
    "logical clusters, parents first",
    "repair of divisible clusters",
    "job clusters and sub-clusters",
    "leases",
    "jobs, tasks and processes",
)


@value(frozen=True, slots=True)
class TableRows:
    """The readable rows of the tables, as values."""

    nodes: Sequence[Node]
    queue: QueuePolicy
    """The queue policy of the primary cluster."""
    clusters: Sequence[Cluster]
    """All clusters but the primary, parents first."""
    vnodes: dict[str, list[VNode]]
    """Cluster id -> its virtual nodes."""
    runs: Sequence[Run]
    running: Mapping[int, RunningJob]
    leases: Sequence[Lease]
    outliving: Collection[str]
    """Tasks that go on when their job ends."""
    inhabited: Collection[str]
    """The clusters with a task that is not over."""


@value(slots=True)
class Replayed:
    """The result of a replay: the tree, the live runs, and the changes, which ``steps`` explain."""

    ledger: Ledger = field(default_factory=Ledger)
    runs: dict[str, Run] = field(default_factory=dict)
    steps: list[list[str]] = field(default_factory=lambda: [[] for _ in TITLES])
    changes: list[Change] = field(default_factory=list)

    def repair(self, step: int, action: str, *changes: Change) -> None:
        """Add a repair to a step: what it does, and its changes."""
        self.steps[step].append(action)
        self.changes += changes


def replay(tables: TableRows, done: Replayed, now: int) -> None:
    """Replay the tables into ``done``, which already says which rows were set aside when they were read."""
    done.ledger.set_primary_queue(tables.queue)
    for node in tables.nodes:
        done.ledger.put_node(replace(node, fences=()))
    tree = _Tree(tables, done, now)
    tree.put(1, [cluster for cluster in tables.clusters if cluster.kind == LOGICAL])
    of_jobs = (cluster for cluster in tables.clusters if cluster.kind == JOB)
    running = [cluster for cluster in of_jobs if int(cluster.job or 0) in tables.running]
    _repair_divisible(running, tables, done)
    tree.put(3, [cluster for cluster in tables.clusters if cluster.kind != LOGICAL])
    for cluster_id in sorted(tables.vnodes):
        tree.set_aside(3, cluster_id, f"its cluster {cluster_id} does not exist")
    _processes(tables, done, tree, now)
    for lease in tree.leases.values():
        done.ledger.put_lease(lease)
    for node in tables.nodes:
        if node.fences:  # not before: what holds a fenced device held it when the fence began
            done.ledger.put_node(node)


class _Tree:
    """Puts clusters into the ledger, and takes their virtual nodes out of ``tables.vnodes``.

    It answers what is in clusters, for ``rules/clusters.py``: which go with a job that is over.
    """

    def __init__(self, tables: TableRows, done: Replayed, now: int) -> None:
        self.tables, self.done, self.now = tables, done, now
        self.leases = {lease.lease_id: lease for lease in tables.leases}
        self.over: int | None = None
        """A running job that this replay ends."""
        self._there = {cluster.cluster_id: cluster for cluster in tables.clusters}
        self._children: dict[str | None, list[str]] = {}
        for cluster in tables.clusters:
            self._children.setdefault(cluster.parent_id, []).append(cluster.cluster_id)

    def put(self, step: int, clusters: Sequence[Cluster]) -> None:
        """Put clusters into the ledger; remove unneeded clusters of jobs, set aside clusters without a parent."""
        for cluster in clusters:
            cluster_id = cluster.cluster_id
            if cluster_id not in self._there:
                continue
            if cluster.kind != LOGICAL and (going := self.orphaned(cluster))[-1:] == [cluster_id]:
                removed = [self.removal(child_id) for child_id in going]
                self.done.repair(step, f"removed {cluster_id}: its job is over", *removed)
            elif cluster.parent_id not in self.done.ledger.clusters:
                problem = f"its parent {cluster.parent_id} does not exist"
                self.set_aside(step, cluster_id, problem)
                aside = RowSetAside(self.now, "clusters", (cluster_id,), problem)
                self.done.repair(step, f"set aside {cluster_id}: {problem}", aside)
            else:
                self._put(step, cluster)

    def _put(self, step: int, cluster: Cluster) -> None:
        ledger = self.done.ledger
        ledger.put_cluster(cluster)
        odd = []
        with ledger.bookings_in_force(()):  # what is in use is in use
            for vnode in self.tables.vnodes.pop(cluster.cluster_id, ()):
                above = ledger.vnodes.get(vnode.parent_id or "")
                if (
                    above is not None
                    and (above.cluster_id, above.node_id) == (cluster.parent_id, vnode.node_id)
                    and (ledger.can_assign(vnode) or ledger.nodes[vnode.node_id].shrunk)
                ):
                    ledger.assign(vnode)
                else:
                    odd.append(vnode)
        if odd:
            self.tables.vnodes[cluster.cluster_id] = odd
            self.set_aside(step, cluster.cluster_id, "it is not inside its parent")

    def set_aside(self, step: int, cluster_id: str, problem: str) -> None:
        """Set aside the virtual nodes of a cluster that are not in the ledger."""
        for vnode in self.tables.vnodes.pop(cluster_id, ()):
            aside = RowSetAside(self.now, "vnodes", (vnode.vnode_id,), problem)
            self.done.repair(step, f"set aside virtual node {vnode.vnode_id}: {problem}", aside)

    def orphaned(self, cluster: Cluster) -> list[str]:
        """Those of a cluster and the clusters below it that go, as their job is over; children first."""
        return [] if self.is_running(int(cluster.job or 0)) else rule.orphaned(self, cluster.cluster_id)

    def removal(self, cluster_id: str, *, silent: bool = False) -> ClusterRemoved:
        """The change that removes an empty cluster. Later removals take its leases into account."""
        change = rule.removal(self, cluster_id, silent=silent)
        for lease_id in change.returned:
            del self.leases[lease_id]
        for lease_id in set(change.lent) & self.leases.keys():
            self.leases[lease_id] = replace(self.leases[lease_id], lender_id=change.lender_id or "")
        self.tables.vnodes.pop(cluster_id, None)
        del self._there[cluster_id]
        return change

    def cluster(self, cluster_id: str) -> Cluster | None:
        return self._there.get(cluster_id)

    def removing(self) -> Collection[str]:
        """Nothing: the scheduler removes what was deleted."""
        return ()

    def children(self, cluster_id: str) -> list[str]:
        return [child_id for child_id in self._children.get(cluster_id, ()) if child_id in self._there]

    def is_running(self, job_id: int) -> bool:
        return job_id in self.tables.running and job_id != self.over

    def is_used(self, cluster: Cluster) -> bool:
        """Whether a task is in a cluster; processes of jobs that are over do not count."""
        return cluster.cluster_id in self.tables.inhabited

    def leases_of(self, cluster_id: str) -> list[Lease]:
        return [lease for lease in self.leases.values() if cluster_id in (lease.borrower_id, lease.lender_id)]


Added = Counter[tuple[str, str]]
"""(cluster id, template) -> how many nodes were added."""


def _repair_divisible(job_clusters: Iterable[Cluster], tables: TableRows, done: Replayed) -> None:
    """Add nodes of job clusters to the clusters above that lack them; drop as many dead ones by template.

    A writer that was interrupted, or that stored both clusters in two steps, may leave a job cluster with a
    replacement node while the cluster above still has the dead node. The job cluster is right: work runs there.
    Virtual nodes of job clusters are put into the right virtual nodes of their parents.
    """
    ledger, added, used = done.ledger, Added(), set[str]()
    for cluster in job_clusters:
        parent_id, members = cluster.parent_id, tables.vnodes.get(cluster.cluster_id, [])
        for number, held in enumerate(members):
            above = ledger.vnodes.get(held.parent_id or "")
            is_inside = above is not None and (above.cluster_id, above.node_id) == (parent_id, held.node_id)
            if parent_id in ledger.clusters and not is_inside:
                above = _slot(done, parent_id, held.node_id, cluster.cluster_id, added)
                if above is not None:
                    moved = members[number] = replace(held, parent_id=above.vnode_id)
                    action = f"put {held.vnode_id} into {above.vnode_id} on {above.node_id}"
                    done.repair(2, action, VNodesChanged(placed=(moved,)))
            used.add(members[number].parent_id or "")
    for cluster_id, template in sorted(added, key=lambda key: (-len(ledger.upward(key[0])), key)):
        dead = [
            vnode
            for vnode in ledger.slots(cluster_id)
            if vnode.whole
            and vnode.vnode_id not in used
            and ledger.nodes[vnode.node_id].template_id == template
            and ledger.nodes[vnode.node_id].state == DEAD
            and is_undivided(ledger, vnode)
        ]
        for vnode in dead[: added[cluster_id, template]]:
            ledger.release(vnode.vnode_id)
            action = f"dropped dead node {vnode.node_id} from {cluster_id}"
            done.repair(2, action, VNodesChanged((vnode.vnode_id,)))
    done.changes += [ClusterRepaired(cluster_id) for cluster_id in sorted({name for name, _ in added})]


def _slot(done: Replayed, cluster_id: str, node_id: str, for_id: str, added: Added) -> VNode | None:
    """A cluster's whole virtual node on a node; a missing one is added if the cluster above can give it."""
    ledger = done.ledger
    if cluster_id == PRIMARY:
        return ledger.vnodes.get(node_id)
    for vnode_id in ledger.members[cluster_id]:
        if ledger.vnodes[vnode_id].whole and ledger.vnodes[vnode_id].node_id == node_id:
            return ledger.vnodes[vnode_id]
    cluster = ledger.clusters[cluster_id]
    if cluster.kind != LOGICAL or not of_whole_nodes(cluster.spec) or cluster.parent_id is None:
        return None
    above = _slot(done, cluster.parent_id, node_id, cluster_id, added)
    if above is None or not is_undivided(ledger, above):
        return None
    (vnode,) = join(ledger, cluster_id, (above,))
    added[cluster_id, ledger.nodes[node_id].template_id] += 1
    done.repair(
        2, f"added node {node_id} to {cluster_id}: {for_id} has it already", VNodesChanged(placed=(vnode,))
    )
    return vnode


def _processes(tables: TableRows, done: Replayed, tree: _Tree, now: int) -> None:
    """Charge runs of running jobs and of tasks that outlive theirs; end the rest and jobs without runs."""
    ledger = done.ledger
    for run in tables.runs:
        run_id = run.run_id
        if run.job_id not in tables.running and run.task_id not in tables.outliving:
            done.repair(
                5, f"ended run {run_id}: its job is over", RunEnded(now, run_id, None, "its job was over")
            )
            continue
        done.runs[run_id] = run
        capacity, node = ledger.capacities.get(run.vnode_id), ledger.nodes.get(run.node_id)
        if capacity is not None and (
            capacity.fits_exactly(run.allocation) or (node is not None and node.shrunk)
        ):
            ledger.charge(run_id, run.vnode_id, run.allocation)
        elif any(run.allocation.amounts.values()):
            done.runs[run_id] = replace(run, allocation=EMPTY)
            problem = "holds more than its virtual node has; kept without its reservation"
            done.repair(5, f"run {run_id} {problem}", RunStripped(run_id))
    with_runs = {run.job_id for run in done.runs.values()}
    for job_id in tables.running.keys() - with_runs:
        job = tables.running[job_id]
        done.repair(5, f"ended job {job.submission_id}: it has no process", *_lost(job, ledger, tree, now))


def _lost(job: RunningJob, ledger: Ledger, tree: _Tree, now: int) -> Iterator[Change]:
    """The end of a running job without a run: FAILED ``ProcessLost``, because its outcome is unknown."""
    removed, cluster = None, ledger.clusters.get(job.cluster_id)
    tree.over = job.job_id
    for cluster_id in tree.orphaned(cluster) if cluster is not None and cluster.kind == JOB else ():
        if cluster_id in ledger.clusters:
            removal = tree.removal(cluster_id, silent=cluster_id == job.cluster_id)
            ledger.remove_cluster(cluster_id)
            if cluster_id == job.cluster_id:
                removed = removal
            else:
                yield removal
    yield JobEnded(
        now, job.job_id, job.submission_id, job.array_id, job.cluster_id, "end", jb.FAILED, jb.PROCESS_LOST,
        "its process is not known any more", None, removed,
    )  # fmt: skip
