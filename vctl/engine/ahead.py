"""Runs assigned ahead: a waiting job takes the place of a running one at its end, without a new placement.

The supervisor of the running job already has the launch request of the next one, so no process waits for a
commit. The waiting job has left its queue. The transaction that records the end of the run before it makes it
RUNNING.
"""

from __future__ import annotations

from collections.abc import Iterator

from vctl.core import labels as lb
from vctl.core.clusters import JOB, Cluster
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.values import replace, value
from vctl.scheduler.plan import Start


@value(frozen=True, slots=True)
class RunAhead:
    """A run assigned ahead and its start, in exactly the place of the run that it follows."""

    run: Run
    start: Start
    follows: str
    nodes: tuple[str, ...]
    moves: bool = False
    """Whether the place goes over to another cluster: the parents of its virtual nodes are not known yet."""

    def begun(self, now: int) -> RunningJob:
        """The job, running since ``now``."""
        run = self.run
        return RunningJob.begun(self.start.job, run.cluster_id, run.run_id, now, held=self.start.held)


class RunsAhead:
    """All runs that are assigned ahead. They may form a chain: each takes the place of the one before it."""

    def __init__(self) -> None:
        self.runs: dict[str, RunAhead] = {}
        self.follower: dict[str, str] = {}
        """Run -> the run that follows it."""

    def put(self, ahead: RunAhead) -> None:
        """Add a run that is assigned ahead."""
        self.runs[ahead.run.run_id] = ahead
        self.follower[ahead.follows] = ahead.run.run_id

    def drop(self, run_id: str) -> RunAhead | None:
        """Remove a run that has started, or that never will; returns it, or None if it is not known."""
        ahead = self.runs.pop(run_id, None)
        if ahead is not None:
            self.follower.pop(ahead.follows, None)
        return ahead

    def chain(self, run_id: str) -> Iterator[RunAhead]:
        """The runs that follow a run, in order."""
        while (follower := self.follower.get(run_id)) is not None:
            yield self.runs[follower]
            run_id = follower


def run_after(
    ledger: Ledger, before: Run | RunAhead, job: PendingJob, run_id: str, supervisor: int, revision: int
) -> RunAhead:
    """The run of a waiting job in the place of ``before``, whose job has the same request."""
    if isinstance(before, RunAhead):
        run, vnodes, nodes, cluster = before.run, before.start.vnodes, before.nodes, before.start.cluster
        moves = False
    else:
        run, cluster = before, None
        moves = not job.shares_parent and ledger.clusters[before.cluster_id].parent_id != job.parent_id
        vnodes, nodes = (), (before.node_id,)
        if not job.shares_parent:
            cluster = ledger.clusters[before.cluster_id]
            vnodes = tuple(ledger.ranked(before.cluster_id))
            nodes = tuple(sorted({vnode.node_id for vnode in vnodes}))
    vnode_id, cluster_id = run.vnode_id, job.cluster_id
    if cluster is not None:
        own = {vnode.vnode_id: f"{cluster_id}/{vnode.rank}" for vnode in vnodes}
        vnode_id = own[vnode_id]
        vnodes = tuple(
            replace(
                vnode, vnode_id=own[vnode.vnode_id], cluster_id=cluster_id,
                labels={**vnode.labels, lb.VNODE_ID: own[vnode.vnode_id], lb.VCLUSTER_ID: cluster_id},
            )
            for vnode in vnodes
        )  # fmt: skip
        cluster = Cluster(
            cluster_id, job.parent_id, JOB, job.spec, divisible=True, job=str(job.job_id), revision=revision
        )
    start = Start(job, cluster, vnodes, vnode_id, run.node_id, run.allocation)
    run = Run(
        run_id, job.job_id, job.attempt + 1, 0, cluster_id, vnode_id, run.node_id, run.allocation,
        supervisor=supervisor,
    )  # fmt: skip
    follows = before.run.run_id if isinstance(before, RunAhead) else before.run_id
    return RunAhead(run, start, follows, nodes, moves)
