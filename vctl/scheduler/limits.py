"""How many may run: the one place that compares what runs with the limits of queues, users and clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import CAP_REACHED, USER_LIMIT, PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.limits import CLUSTER, RUNNING_JOBS, USER, Limit, LimitTable
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import Amounts, add
from vctl.core.values import replace
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
    """What running jobs have of that which limits are of: by user, and by cluster with all below it.

    A job inside of the cluster of another one counts as a job. It holds nothing beside what that one holds.
    """

    def __init__(
        self, limits: LimitTable, running: Iterable[tuple[str, str, int, Amounts]], chain: Chain
    ) -> None:
        self.limits = limits
        self._chain = chain
        self._jobs: Counter[tuple[str, str]] = Counter()
        self._held: dict[tuple[str, str], Amounts] = {}
        for parent_id, user, count, amounts in running:
            self.add(parent_id, user, amounts, count)

    def add(self, parent_id: str, user: str, amounts: Amounts, count: int = 1) -> None:
        """Add jobs of a user in a cluster, with what they hold together."""
        if not self.limits:
            return
        for who in ((USER, user), *((CLUSTER, cluster_id) for cluster_id in self._chain(parent_id))):
            self._jobs[who] += count
            if not _is_inside_a_job(parent_id):
                self._held[who] = add(self._held.get(who, {}), amounts)

    def of(self, limit: Limit, user: str) -> int:
        """How much of a limit is used; of one that each user has, by this user."""
        who = (USER, user) if limit.subject == USER else (CLUSTER, limit.name)
        if limit.resource == RUNNING_JOBS:
            return self._jobs[who]
        return self._held.get(who, {}).get(limit.resource, 0)

    def refusals(self, parent_id: str, user: str, requested: Amounts) -> Iterator[Refusal]:
        """The limits by which a user may not have one more job with these amounts in a cluster."""
        for limit in self._that_hold(parent_id, user):
            if limit.resource == RUNNING_JOBS:
                asked = 1
            else:
                asked = 0 if _is_inside_a_job(parent_id) else requested.get(limit.resource, 0)
            if asked and (total := self.of(limit, user) + asked) > limit.amount:
                rule = USER_LIMIT if limit.subject == USER else CAP_REACHED
                of = {limit.resource: asked}
                yield Refusal(rule, limit.resource, total, limit.amount, of, limit=limit)

    def is_exceeded(self, parent_id: str, user: str) -> bool:
        """Whether the running jobs exceed a limit, which may be lower now than at their start."""
        return any(self.of(limit, user) > limit.amount for limit in self._that_hold(parent_id, user))

    def refusal(self, parent_id: str, user: str, requested: Amounts) -> Refusal | None:
        """The first of them; None: no limit keeps such a job back."""
        return next(self.refusals(parent_id, user, requested), None)

    def _that_hold(self, parent_id: str, user: str) -> Iterator[Limit]:
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


def use_of(ledger: Ledger, running: Running) -> LimitUse:
    """What the running jobs have of that which the limits in force are of."""

    def chain(cluster_id: str) -> Sequence[str]:
        return [*(one.cluster_id for one in ledger.upward(cluster_id)), PRIMARY]

    return LimitUse(ledger.limits, running.by_user(ledger) if ledger.limits else (), chain)


def least_of(job: PendingJob) -> Amounts:
    """What a job will hold at least. What it will hold in all shows its place, where it asks for whole nodes."""
    return least_held(job.spec, job.entry, shares_parent=job.shares_parent)


def least_held(spec: ClusterSpec, entry: Amounts, *, shares_parent: bool) -> Amounts:
    """Like ``least_of``, for a request."""
    if shares_parent:
        return entry
    needed = UpperBound(spec).needed
    return {name: max(needed.get(name, 0), entry.get(name, 0)) for name in {*needed, *entry}}


def _is_inside_a_job(cluster_id: str) -> bool:
    return "##" in cluster_id
