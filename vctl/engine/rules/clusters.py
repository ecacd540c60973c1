"""When is a cluster that is going gone? One rule: the scheduler asks it of its state, commands ask it of the tables.

A cluster goes when nothing is in it, and either it was deleted (it is REMOVING) or it belongs to a job that is
over and nobody detached it. In it are the clusters below it, the jobs that wait or run there, processes, and
tasks that are not over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from vctl.core.clusters import JOB, LOGICAL, REMOVING, SUB, Cluster
from vctl.core.values import value
from vctl.engine.changes import ClusterRemoved

if TYPE_CHECKING:
    from vctl.core.leases import Lease
    from vctl.engine.state import SchedulerState


class Occupancy(Protocol):
    """The clusters and what is in them, in the tables or in a scheduler's state, after all changes emitted before."""

    def cluster(self, cluster_id: str) -> Cluster | None:
        """One cluster other than the primary; None if there is none of this id."""

    def removing(self) -> Iterable[str]:
        """The clusters in the state REMOVING."""

    def children(self, cluster_id: str) -> Collection[str]:
        """The clusters directly below a cluster."""

    def is_running(self, job_id: int) -> bool:
        """Whether a job runs."""

    def is_used(self, cluster: Cluster) -> bool:
        """Whether jobs wait or run in a cluster itself, or a process or an unfinished task is in it."""

    def leases_of(self, cluster_id: str) -> Iterable[Lease]:
        """The leases of which a cluster is the borrower or the lender."""


def is_empty(there: Occupancy, cluster: Cluster, going: Collection[str] = ()) -> bool:
    """Whether nothing is in a cluster but clusters that are ``going``."""
    children = there.children(cluster.cluster_id)
    if children and any(child_id not in going for child_id in children):
        return False
    if cluster.kind == JOB and there.is_running(int(cluster.job or 0)):
        return False
    return not there.is_used(cluster)


def removed(there: Occupancy) -> Iterator[ClusterRemoved]:
    """Remove the deleted clusters that are empty, children first, and the clusters above that existed only for them."""
    for cluster_id in sorted(there.removing(), key=lambda name: (-_depth(there, name), name)):
        cluster = there.cluster(cluster_id)
        if cluster is not None and _goes(there, cluster):
            yield from upward(there, cluster)


def upward(there: Occupancy, cluster: Cluster) -> Iterator[ClusterRemoved]:
    """Remove an empty cluster that is to go, and the clusters above it that existed only for it."""
    yield removal(there, cluster.cluster_id)
    above = there.cluster(cluster.parent_id or "")
    if above is not None and _goes(there, above):
        yield from upward(there, above)


def orphaned(there: Occupancy, cluster_id: str) -> list[str]:
    """Those of the cluster of a job that is over and of the clusters below it that go; children first."""
    going: list[str] = []
    cluster_ids = [cluster_id]
    for above_id in cluster_ids:  # parents first
        cluster_ids += sorted(there.children(above_id))
    for inner_id in reversed(cluster_ids):
        cluster = there.cluster(inner_id)
        if cluster is not None and _goes(there, cluster, going):
            going.append(inner_id)
    return going


def removal(there: Occupancy, cluster_id: str, *, silent: bool = False) -> ClusterRemoved:
    """The change that removes an empty cluster: its leases end, and its loans go over to its parent."""
    cluster = there.cluster(cluster_id)
    parent_id = None if cluster is None else cluster.parent_id
    return ClusterRemoved.of(cluster_id, parent_id, there.leases_of(cluster_id), silent=silent)


def _goes(there: Occupancy, cluster: Cluster, going: Collection[str] = ()) -> bool:
    return _is_due(there, cluster) and is_empty(there, cluster, going)


def _is_due(there: Occupancy, cluster: Cluster) -> bool:
    """Whether a cluster was deleted, or its job is over and it does not outlive that."""
    if cluster.state == REMOVING:
        return True
    if cluster.kind == LOGICAL or there.is_running(int(cluster.job or 0)):
        return False
    if cluster.kind != SUB or not cluster.detached:
        return True
    above = there.cluster(cluster.parent_id or "")
    while above is not None and above.state != REMOVING:
        above = there.cluster(above.parent_id or "")
    return above is not None


def _depth(there: Occupancy, cluster_id: str) -> int:
    cluster = there.cluster(cluster_id)
    return 0 if cluster is None else 1 + _depth(there, cluster.parent_id or "")


@value(frozen=True, slots=True)
class InState:
    """What is in the clusters of a scheduler's state."""

    state: SchedulerState
    over: int | None = None
    """A job that has just ended, and is in the state until the change that says so."""

    def cluster(self, cluster_id: str) -> Cluster | None:
        """One cluster other than the primary."""
        cluster = self.state.ledger.clusters.get(cluster_id)
        return None if cluster is None or cluster.parent_id is None else cluster

    def removing(self) -> Iterable[str]:
        """The clusters in the state REMOVING."""
        return self.state.ledger.removing

    def children(self, cluster_id: str) -> Collection[str]:
        """The clusters directly below a cluster."""
        return self.state.ledger.subclusters.get(cluster_id, ())

    def is_running(self, job_id: int) -> bool:
        """Whether a job runs."""
        return job_id in self.state.running.jobs and job_id != self.over

    def is_used(self, cluster: Cluster) -> bool:
        """Whether jobs wait or run in a cluster itself, or a process or an unfinished task is in it."""
        state, cluster_id = self.state, cluster.cluster_id
        homes, members = state.ledger.homes, state.ledger.members.get(cluster_id)
        if members and not homes.keys().isdisjoint(members):
            return True
        if cluster.job is not None:  # it takes no jobs, and no tasks of other jobs
            return any(task.cluster_id == cluster_id for task in state.tasks.of_job(int(cluster.job)))
        queue = state.queues.get(cluster_id)
        return (
            (queue is not None and bool(queue.jobs))
            or bool(state.running.count(cluster_id))
            or any(job.parent_id == cluster_id for job in state.gated.values())
            or any(task.cluster_id == cluster_id for task in state.tasks.unfinished.values())
        )

    def leases_of(self, cluster_id: str) -> Iterable[Lease]:
        """The leases of which a cluster is the borrower or the lender."""
        if not (leases := self.state.ledger.leases):
            return ()
        return [one for one in leases.values() if cluster_id in (one.borrower_id, one.lender_id)]
