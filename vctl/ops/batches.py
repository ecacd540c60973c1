"""Submitting many jobs at once: all of them or none, in one transaction.

Reads are in proportion to what differs between the lines: targets, shapes, awaited jobs. A job may wait for jobs of
earlier lines only, so no jobs wait for each other in a circle. An error names the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vctl import ops
from vctl.core.clusters import PRIMARY
from vctl.core.indices import Indices
from vctl.core.jobs import PendingJob, member_of
from vctl.core.values import replace
from vctl.engine.changes import ArraySubmitted, JobSubmitted, Launch, SubmitDetails
from vctl.errors import BadSpec, Conflict, VctlError, param
from vctl.ops import arrays, nodes, submitting
from vctl.ops.cluster_views import NoUserCluster
from vctl.spec.fields import refuse
from vctl.store import jobs as table
from vctl.store import observed
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.ops.submitting import Prepared
    from vctl.spec.job_request import JobRequest
    from vctl.spec.options import ArrayRange, Dependency

MAX_JOBS = 1_000_000
"""The most jobs of a batch; each member of an array counts."""
Request = tuple["JobRequest", Mapping[str, str]]
"""A request, and the environment of its submitter."""


def queue(store: Store, requests: Sequence[Request]) -> list[str]:
    """Queue the jobs of all requests, durably, or none; returns their ids. An error names the line of a request."""
    count = sum(1 if request.array is None else len(request.array.indices) for request, _ in requests)
    if count > MAX_JOBS:
        raise BadSpec(
            f"{count} jobs are too many, with the members of arrays",
            fix=f"submit at most {MAX_JOBS} at once",
        )
    nodes.join(store)
    try:
        return _queue(store, requests)
    except NoUserCluster as missing:
        return ops.user_clusters.made(store, missing, lambda: _queue(store, requests))


def _queue(store: Store, requests: Sequence[Request]) -> list[str]:
    prepared: list[Prepared] = []
    jobs: list[tuple[PendingJob, SubmitDetails, Launch]] = []
    with store.snapshot():
        preparation = submitting.Preparation(store)
        for line, (request, around) in enumerate(requests, 1):
            with of_line(line):
                prepared.append(preparation.of(request, around))
                jobs.append(preparation.columns(request, prepared[-1], around))
    with store.transaction():
        batch = _Batch(store, [job.submission_id for job, _, _ in jobs])
        for line, ((request, _), job) in enumerate(zip(requests, jobs, strict=True), 1):
            with of_line(line):
                batch.add(line, request, *job)
        batch.emit()
        for parent_id, shape, judged_at in dict.fromkeys(
            (target.parent_id, target.shape, target.judged_at) for target in prepared
        ):
            if judged_at is not None:
                observed.set_feasible(store, parent_id, shape, judged_at)
    return batch.ids


@contextmanager
def of_line(number: int) -> Iterator[None]:
    """Errors inside name the line."""
    try:
        yield
    except VctlError as error:
        error.in_line(number)
        raise


class _Batch:
    """The changes that submit the jobs, inside the transaction. Reads nothing after the first ``emit``."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self.ids: list[str] = []
        """The ids of the jobs and arrays, by line."""
        self._store = store
        self._changes: list[JobSubmitted | ArraySubmitted] = []
        self._first = table.next_number(store)
        self._now = store.clock()
        self._lines: dict[str, int] = {}
        """The id of a job or array -> its line."""
        self._arrays: dict[str, Indices] = {}
        """The id of an array of this batch -> the indices of its members."""
        self._like_members: dict[str, dict[int, str]] = {}
        """For ids of single jobs like those of members: ``a`` -> 7 -> ``a_7``."""
        self._later: dict[str, int] = {}
        """The id of each job or array -> the first line that has it."""
        for line, name in enumerate(names, 1):
            self._later.setdefault(name, line)
        self._in_use = table.taken(store, self._later)
        self._open: set[str] = {PRIMARY}
        self._awaited: dict[Dependency, tuple[arrays.Pairs, list[str]]] = {}
        self._lost: list[str] = []
        self._chosen: dict[str, ArrayRange | None] = {}
        """The ids that their submitters chose."""

    def add(
        self, line: int, request: JobRequest, job: PendingJob, details: SubmitDetails, launch: Launch
    ) -> None:
        """Add the job of a request, or its array."""
        while not request.submission_id and self._has(job.submission_id):
            job = replace(job, submission_id=submitting.new_id())  # of 2**40, and a batch has many
        name = job.submission_id
        self._check_id(name, None if request.array is None else request.array.indices)
        if job.parent_id not in self._open:
            submitting.open_cluster(self._store, job.parent_id)
            self._open.add(job.parent_id)
        after = self._after(request, line)
        job = replace(submitting.timed(job, self._first, self._now), waits_for=len(after))
        change = submitting.submission(self._store, request, job, details, after, launch)
        self._changes.append(change)
        if request.array is not None:
            self._arrays[name] = request.array.indices
            self._first += len(request.array.indices)
        else:
            self._first += 1
            prefix, index = member_of(name)
            if index is not None:
                self._like_members.setdefault(prefix, {})[index] = name
        self._lines[name] = line
        self.ids.append(name)
        if request.submission_id:  # a log with this name is of a deleted job
            self._chosen[name] = request.array

    def emit(self) -> None:
        """Write all of them, and end those whose condition is impossible already."""
        for change in self._changes:
            self._store.emit(change)
        awaited = {name for change in self._changes for _, name in change.after}
        arrays.give_rows(self._store, (table.number_of(self._store, name) for name in awaited))
        submitting.forget_logs(self._store, self._chosen)
        if self._lost:
            ops.dependencies.settle(self._store, self._lost)

    def _check_id(self, name: str, indices: Indices | None) -> None:
        """Refuse the id of a job, or the ids of an array and its members, if a job has it."""
        if name in self._in_use:
            raise ops.matching.exists(name)
        if self._is_known(name):
            raise self._twice(name)
        for index, other in self._like_members.get(name, {}).items() if indices is not None else ():
            if indices is not None and index in indices:
                raise self._twice(other)

    def _twice(self, name: str) -> Conflict:
        line = self._lines.get(name) or self._lines[member_of(name)[0]]
        return Conflict(
            f"job {name} exists in line {line} already",
            fix=f"choose another {param('submission_id')}, or leave it out",
            details={"submission_id": name},
        )

    def _has(self, name: str) -> bool:
        """Whether an id that nobody chose is not free."""
        if name not in self._later:
            return bool(table.taken(self._store, [name]))
        return name in self._in_use or self._is_known(name)

    def _is_known(self, name: str) -> bool:
        """Whether a job, an array or a member of an array of an earlier line has this id."""
        if name in self._lines:
            return True
        prefix, index = member_of(name)
        return index is not None and index in self._arrays.get(prefix, ())

    def _after(self, request: JobRequest, line: int) -> arrays.Pairs:
        """The conditions of a job that are not met: all on earlier lines, as nothing of this batch has begun."""
        conditions: set[tuple[str, str]] = set()
        for dependency in request.after:
            if self._is_known(dependency.job):
                conditions.add((dependency.condition, dependency.job))
                continue
            names = (
                name for name in (dependency.job, member_of(dependency.job)[0]) if name not in self._in_use
            )
            if (
                later := next((self._later[name] for name in names if name in self._later), None)
            ) is not None:
                where = (
                    "it is the job itself"
                    if later == line
                    else f"line {later} submits {dependency.job} later"
                )
                raise refuse(
                    param("after"), where, "put the lines of awaited jobs before those that wait for them"
                )
            if (verdict := self._awaited.get(dependency)) is None:
                verdict = self._awaited[dependency] = ops.dependencies.unmet(
                    self._store, submitting.resolved(self._store, [dependency])
                )
                self._lost += verdict[1]
            conditions.update(verdict[0])
        return tuple(sorted(conditions))
