"""The jobs that run, by the cluster they were sent to: what limits, reservations and fair shares are counted from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vctl.core.jobs import RunningJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Holding


class Running:
    """Running jobs with the counts that limits ask for."""

    def __init__(self, jobs: Iterable[RunningJob] = ()) -> None:
        self.jobs: dict[int, RunningJob] = {}
        self.of_parent: dict[str, dict[int, RunningJob]] = {}
        self._of_user: dict[tuple[str, str], int] = {}
        for job in jobs:
            self.put(job)

    def put(self, job: RunningJob) -> None:
        """A job runs, or its time limit has changed."""
        self.drop(job.job_id)
        self.jobs[job.job_id] = job
        self.of_parent.setdefault(job.parent_id, {})[job.job_id] = job
        key = (job.parent_id, job.user)
        self._of_user[key] = self._of_user.get(key, 0) + 1

    def drop(self, job_id: int) -> None:
        """A job is over, or waits again."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        del self.of_parent[job.parent_id][job_id]
        self._of_user[job.parent_id, job.user] -= 1

    def count(self, parent_id: str) -> int:
        """How many jobs run that were sent to a cluster."""
        return len(self.of_parent.get(parent_id, ()))

    def count_of(self, parent_id: str, user: str) -> int:
        """How many of these are a user's."""
        return self._of_user.get((parent_id, user), 0)


def holdings_of(ledger: Ledger, job: RunningJob) -> Iterator[tuple[str, Holding]]:
    """What a job holds of its parent: (virtual node of the parent, holding)."""
    if job.cluster_id != job.parent_id:
        for vnode_id in ledger.members.get(job.cluster_id, ()):
            vnode = ledger.vnodes[vnode_id]
            if vnode.parent_id is not None:
                yield vnode.parent_id, vnode.holding
    elif (charge := ledger.charges.get(job.run_id)) is not None:
        yield charge
