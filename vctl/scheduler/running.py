"""The running jobs by parent cluster, with the counts for limits, shares and preemption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vctl.core.jobs import RunningJob
from vctl.core.ledger import Ledger
from vctl.core.limits import by_day
from vctl.core.resources import GPU, Allocation, Amounts, add, total

MOST_DAYS = 40
"""The days of which GPU time is remembered: a period has at most 31."""
Held = tuple[object, tuple[tuple[str, Allocation], ...], dict[str, int]]
"""(State for which the rest is valid, (virtual node, allocation) pairs of a job, their sum)."""


class Running:
    """Running jobs, their allocations, and counts by cluster, user and priority."""

    def __init__(self, jobs: Iterable[RunningJob] = ()) -> None:
        self.jobs: dict[int, RunningJob] = {}
        self.of_parent: dict[str, dict[int, RunningJob]] = {}
        self.leaving: set[int] = set()
        """Jobs that are being ended, for any reason."""
        self.tasks: dict[int, set[str]] = {}
        """Job -> the runs of its tasks."""
        self._of_user: dict[tuple[str, str], int] = {}
        self._of_priority: dict[str, dict[int, int]] = {}
        self._versions: dict[str, int] = {}
        self.changes = 0
        """The number of changes of running jobs."""
        self.spent: dict[tuple[str, str], dict[int, int]] = {}
        """Cluster, user -> the GPU time of the jobs that are over, by day; kept where periods have limits."""
        self.leavings = 0
        """The number of times that a job began to leave, or had left."""
        self._ends: dict[tuple[str, int], int] = {}
        self._ledger: Ledger | None = None
        self._held: dict[int, Held] = {}
        """Job -> its allocations in ``_ledger``."""
        self._sums: dict[str, tuple[object, dict[str, Amounts]]] = {}
        """Cluster -> (state for which the rest is valid, user -> what the jobs of that user hold)."""
        for job in jobs:
            self.put(job)

    def put(self, job: RunningJob) -> None:
        """Add a running job, or take over its new row."""
        if self.jobs.get(job.job_id) == job:
            return
        self._take_out(job.job_id)
        self.jobs[job.job_id] = job
        self.of_parent.setdefault(job.parent_id, {})[job.job_id] = job
        key = (job.parent_id, job.user)
        self._of_user[key] = self._of_user.get(key, 0) + 1
        levels = self._of_priority.setdefault(job.parent_id, {})
        levels[job.priority] = levels.get(job.priority, 0) + 1
        self._note_change(job.parent_id)

    def drop(self, job_id: int) -> None:
        """Remove a job that is over or waits again."""
        job = self.jobs.get(job_id)
        if job is not None:
            key = (job.parent_id, job.priority)
            self._ends[key] = self._ends.get(key, 0) + 1
        self.take_back(job_id)

    def end(self, job_id: int, at_ns: int) -> None:
        """Remove a job that ended or waits again, and note its GPU time."""
        job = self.jobs.get(job_id)
        if job is not None and (gpus := job.held.get(GPU)):
            spent = self.spent.setdefault((job.parent_id, job.user), {})
            for day, amount in by_day(gpus, job.started_at_ns, at_ns):
                spent[day] = spent.get(day, 0) + amount
            for day in sorted(spent)[:-MOST_DAYS]:
                del spent[day]
        self.drop(job_id)

    def take_back(self, job_id: int) -> None:
        """Remove a job that was only tried."""
        if job_id in self.leaving:
            self.leaving.discard(job_id)
            self.leavings += 1
        self._take_out(job_id)

    def _take_out(self, job_id: int) -> None:
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        self._held.pop(job_id, None)
        del self.of_parent[job.parent_id][job_id]
        self._of_user[job.parent_id, job.user] -= 1
        levels = self._of_priority[job.parent_id]
        levels[job.priority] -= 1
        if not levels[job.priority]:
            del levels[job.priority]
        self._note_change(job.parent_id)

    def leave(self, job_id: int, *, leaves: bool = True) -> None:
        """Note that a job is being ended, or (``leaves`` False) that it is spared after all."""
        job = self.jobs.get(job_id)
        if job is not None and leaves != (job_id in self.leaving):
            self.leaving ^= {job_id}
            self.leavings += 1
            self._note_change(job.parent_id)

    def put_task(self, job_id: int, run_id: str) -> None:
        """Note that a task of a job runs."""
        self.tasks.setdefault(job_id, set()).add(run_id)

    def drop_task(self, job_id: int, run_id: str) -> None:
        """Note that a task of a job is over."""
        runs = self.tasks.get(job_id, set())
        runs.discard(run_id)
        if not runs:
            self.tasks.pop(job_id, None)

    def count(self, parent_id: str) -> int:
        """The number of running jobs of a cluster."""
        return len(self.of_parent.get(parent_id, ()))

    def count_of(self, parent_id: str, user: str) -> int:
        """The number of running jobs of a user in a cluster."""
        return self._of_user.get((parent_id, user), 0)

    def any_below(self, parent_id: str, priority: int) -> bool:
        """Whether a running job of a cluster has a lower priority."""
        return any(level < priority for level in self._of_priority.get(parent_id, ()))

    def ends_from(self, parent_id: str, priority: int) -> int:
        """The number of jobs of a cluster with at least this priority that have ended so far."""
        return sum(
            count for (where, level), count in self._ends.items() if where == parent_id and level >= priority
        )

    def amounts_of(self, ledger: Ledger, job: RunningJob) -> dict[str, int]:
        """The sum of a job's allocations; computed again only if its cluster has changed."""
        return self._known_of(ledger, job)[2]

    def held_in(self, ledger: Ledger, parent_id: str) -> Mapping[str, Amounts]:
        """What the running jobs of a cluster hold, by user; added up again only if one of them has changed."""
        state = (id(ledger), self._versions.get(parent_id, 0), ledger.inside.get(parent_id, 0))
        known = self._sums.get(parent_id)
        if known is None or known[0] != state:
            found: dict[str, Amounts] = {}
            for job in self.of_parent.get(parent_id, {}).values():
                found[job.user] = add(found.get(job.user, {}), self.amounts_of(ledger, job))
            known = self._sums[parent_id] = (state, found)
        return known[1]

    def by_user(self, ledger: Ledger) -> Iterator[tuple[str, str, int, Amounts]]:
        """Cluster, user, the number of running jobs of that user there, and what they hold."""
        for (parent_id, user), count in self._of_user.items():
            if count:
                yield parent_id, user, count, self.held_in(ledger, parent_id)[user]

    def held_by(self, ledger: Ledger, job: RunningJob) -> tuple[tuple[str, Allocation], ...]:
        """The allocations of a job: (virtual node of the parent, allocation)."""
        return self._known_of(ledger, job)[1]

    def _known_of(self, ledger: Ledger, job: RunningJob) -> Held:
        if self._ledger is not ledger:
            self._ledger = ledger  # another ledger has other versions
            self._held.clear()
        state = (job.run_id, job.cluster_id, ledger.versions.get(job.cluster_id))
        known = self._held.get(job.job_id)
        if job.cluster_id == job.parent_id or known is None or known[0] != state:
            held = tuple(allocations_of(ledger, job))
            known = (state, held, total(allocation.amounts for _, allocation in held))
            if job.job_id in self.jobs:
                self._held[job.job_id] = known
        return known

    def version(self, parent_id: str) -> int:
        """The number of changes of the running jobs of a cluster."""
        return self._versions.get(parent_id, 0)

    def _note_change(self, parent_id: str) -> None:
        self._versions[parent_id] = self._versions.get(parent_id, 0) + 1
        self.changes += 1


def allocations_of(ledger: Ledger, job: RunningJob) -> Iterator[tuple[str, Allocation]]:
    """The allocations of a job: (virtual node of the parent, allocation)."""
    if job.cluster_id != job.parent_id:
        for vnode_id in ledger.members.get(job.cluster_id, ()):
            vnode = ledger.vnodes[vnode_id]
            if vnode.parent_id is not None:
                yield vnode.parent_id, vnode.allocation
    elif (charge := ledger.charges.get(job.run_id)) is not None:
        yield charge


def returned_by(ledger: Ledger, running: Running, job: RunningJob) -> list[tuple[str, Allocation]]:
    """What a job returns at its end: its allocations and, in a cluster that it shares, those of its tasks."""
    parts = list(allocations_of(ledger, job))
    if job.cluster_id == job.parent_id:
        tasks = sorted(running.tasks.get(job.job_id, ()))
        parts += [ledger.charges[run_id] for run_id in tasks if run_id in ledger.charges]
    return parts
