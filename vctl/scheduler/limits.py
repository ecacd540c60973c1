"""How many may run: the one place that compares what runs with the limits of queues, users and clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import CAP_REACHED, USER_LIMIT, PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.limits import (
    CLUSTER,
    DAY_US,
    HOUR_US,
    RUNNING_JOBS,
    USER,
    Limit,
    LimitTable,
    Spent,
    by_day,
    days_of,
)  # fmt: skip
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import GPU, Amounts, add, total
from vctl.core.values import replace
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.explain.refusal import Refusal
from vctl.scheduler.running import Running
from vctl.scheduler.upper_bound import UpperBound

OF_ALL, OF_USER = "max_running_jobs", "max_running_per_user"
"""The limits of a policy: of all jobs of the queue, and of those of each user."""
OF_ALL_JOBS = (OF_ALL, RUNNING_JOBS)
"""The limits of numbers of jobs, which hold for all jobs of a queue alike where they are of its cluster."""


def limits_of(policy: QueuePolicy) -> Iterator[tuple[str, int]]:
    """The limits that a policy has."""
    if policy.max_running_jobs is not None:
        yield OF_ALL, policy.max_running_jobs
    if policy.max_running_per_user is not None:
        yield OF_USER, policy.max_running_per_user


def has_limit(policy: QueuePolicy) -> bool:
    """Whether a policy limits how many jobs run at a time."""
    return next(limits_of(policy), None) is not None


def raised(policy: QueuePolicy, limit: str, number: int) -> QueuePolicy:
    """A policy with another number for a limit."""
    if limit == OF_ALL:
        return replace(policy, max_running_jobs=number)
    return replace(policy, max_running_per_user=number)


def reached(policy: QueuePolicy, running: int, of_user: int) -> Refusal | None:
    """The limit by which no further job may start while so many of the queue, and of its user there, run; else None."""
    for limit, most in limits_of(policy):
        rule, count = (CAP_REACHED, running) if limit == OF_ALL else (USER_LIMIT, of_user)
        if count >= most:
            return Refusal(rule, limit, count + 1, most)
    return None


# ---- limits of users and clusters (``vctl limit``) ----

Chain = Callable[[str], Sequence[str]]
"""A cluster -> it and all clusters above it, nearest first."""


class LimitUse:
    """What running jobs have of that which limits are of: by user, and by cluster with all below it."""

    def __init__(
        self,
        limits: LimitTable,
        running: Iterable[tuple[str, str, int, Amounts]],
        chain: Chain,
        spent: Iterable[tuple[tuple[str, str], Iterable[tuple[int, int]]]] = (),
        now_ns: int = 0,
    ) -> None:
        """``spent``: GPU time by day, of clusters and users."""
        self.limits = limits
        self._chain = chain
        self._days = {period: days_of(period, now_ns) for period in limits.periods}
        self._spent: Counter[tuple[str, tuple[str, str]]] = Counter()
        for (parent_id, user), days in spent:
            for day, amount in days:
                for period in [period for period, within in self._days.items() if day in within]:
                    for who in self._who(parent_id, user):
                        self._spent[period, who] += amount
        self._jobs: Counter[tuple[str, str]] = Counter()
        self._held: dict[tuple[str, str], Amounts] = {}
        for parent_id, user, count, amounts in running:
            self.add(parent_id, user, amounts, count)

    def add(self, parent_id: str, user: str, amounts: Amounts, count: int = 1) -> None:
        """Add jobs of a user in a cluster, with what they hold together."""
        if not self.limits:
            return
        for who in self._who(parent_id, user):
            self._jobs[who] += count
            self._held[who] = add(self._held.get(who, {}), amounts)

    def _who(self, parent_id: str, user: str) -> Iterator[tuple[str, str]]:
        yield USER, user
        for cluster_id in self._chain(parent_id):
            yield CLUSTER, cluster_id

    def of(self, limit: Limit, user: str) -> int:
        """How much of a limit is used, in the unit of ``Limit.room``; of one that each user has, by this user."""
        who = (USER, user) if limit.subject == USER else (CLUSTER, limit.name)
        if limit.resource == RUNNING_JOBS:
            return self._jobs[who]
        if limit.period:
            return self._spent[limit.period, who]
        return self._held.get(who, {}).get(limit.resource, 0)

    def refusals(self, parent_id: str, user: str, requested: Amounts, jobs: int = 1) -> Iterator[Refusal]:
        """The limits by which a user may not have one more job with these amounts in a cluster; or (``jobs`` 0) these
        amounts more for a job that runs.
        """
        for limit in self.that_hold(parent_id, user):
            if limit.period:
                if jobs and requested.get(GPU) and (spent := self.of(limit, user)) >= limit.room:
                    hours, until_ns = -(-spent // HOUR_US), self._days[limit.period].stop * DAY_US * 1000
                    yield _refusal(limit, hours, 0, until_ns)
                continue
            asked = jobs if limit.resource == RUNNING_JOBS else requested.get(limit.resource, 0)
            if asked > 0 and (most := self.of(limit, user) + asked) > limit.amount:
                yield _refusal(limit, most, asked)

    def is_exceeded(self, parent_id: str, user: str) -> bool:
        """Whether running jobs exceed a limit, which may be lower now than at their start; of a period: may do so."""
        return any(
            limit.period or self.of(limit, user) > limit.room for limit in self.that_hold(parent_id, user)
        )

    def refusal(self, parent_id: str, user: str, requested: Amounts) -> Refusal | None:
        """The first of them; None: no limit keeps such a job back."""
        return next(self.refusals(parent_id, user, requested), None)

    def grow(self, job: RunningJob, growth: Sequence[Grow]) -> Refusal | None:
        """Note what the cluster of a job gains; or, if that exceeds a limit, return it and note nothing."""
        if not self.limits:
            return None
        more = total(step.gained for step in growth if step.after.cluster_id == job.cluster_id)
        refusal = next(self.refusals(job.parent_id, job.user, more, 0), None)
        if refusal is None:
            self.add(job.parent_id, job.user, more, 0)
        return refusal

    def that_hold(self, parent_id: str, user: str) -> Iterator[Limit]:
        """The limits that hold for the jobs of a user in a cluster."""
        if not self.limits:
            return
        yield from self.limits.of_user(user)
        for cluster_id in self._chain(parent_id):
            yield from self.limits.of_cluster(cluster_id)


def refusal(
    policy: QueuePolicy, running: Running, use: LimitUse, job: PendingJob, held: Amounts | None = None
) -> Refusal | None:
    """The limit of its queue, its user or a cluster that keeps a job back; None: it may start.

    ``held``: what it will hold, where that is known.
    """
    where = job.parent_id
    found = reached(policy, running.count(where), running.count_of(where, job.user))
    if found is not None or not use.limits:
        return found
    return use.refusal(where, job.user, least_of(job) if held is None else held)


def may_follow(policy: QueuePolicy, running: Running, use: LimitUse, job: RunningJob) -> bool:
    """Whether a job like a running one may start in its place: a limit that is lower by now lets none come."""
    where = job.parent_id
    if reached(policy, running.count(where) - 1, running.count_of(where, job.user) - 1) is not None:
        return False
    return not use.is_exceeded(where, job.user)


def use_of(ledger: Ledger, running: Running, now_ns: int) -> LimitUse:
    """What the running jobs have of that which the limits in force are of."""

    def chain(cluster_id: str) -> Sequence[str]:
        return [*(one.cluster_id for one in ledger.upward(cluster_id)), PRIMARY]

    if not ledger.limits:
        return LimitUse(ledger.limits, (), chain)
    spent = gpu_time(running.spent, running.jobs.values(), now_ns) if ledger.limits.periods else ()
    return LimitUse(ledger.limits, running.by_user(ledger), chain, spent, now_ns)


def gpu_time(
    over: Mapping[tuple[str, str], Spent], running: Iterable[RunningJob], now_ns: int
) -> Iterator[tuple[tuple[str, str], Iterable[tuple[int, int]]]]:
    """The GPU time by day of jobs that are over, and of those that run, up to now; by cluster and user."""
    for whose, days in over.items():
        yield whose, days.items()
    for job in running:
        if gpus := job.held.get(GPU):
            yield (job.parent_id, job.user), by_day(gpus, job.started_at_ns, now_ns)


def _refusal(limit: Limit, requested: int, asked: int, until_ns: int | None = None) -> Refusal:
    rule = USER_LIMIT if limit.subject == USER else CAP_REACHED
    of = {limit.resource: asked}
    return Refusal(rule, limit.resource, requested, limit.amount, of, limit=limit, until_ns=until_ns)


def least_of(job: PendingJob) -> Amounts:
    """What a job will hold at least. What it will hold in all shows its place, where it asks for whole nodes."""
    return least_held(job.spec, job.entry, shares_parent=job.shares_parent)


def least_held(spec: ClusterSpec, entry: Amounts, *, shares_parent: bool) -> Amounts:
    """Like ``least_of``, for a request."""
    if shares_parent:
        return entry
    needed = UpperBound(spec).needed
    return {name: max(needed.get(name, 0), entry.get(name, 0)) for name in {*needed, *entry}}
