"""How many jobs of a queue may run at a time: the one place that compares numbers of jobs with its limits."""

from __future__ import annotations

from collections.abc import Iterator

from vctl.core.jobs import CAP_REACHED, USER_LIMIT
from vctl.core.queue_policy import QueuePolicy
from vctl.core.values import replace
from vctl.scheduler.explain.refusal import Refusal

OF_ALL, OF_USER = "max_running_jobs", "max_running_per_user"
"""The limits of a policy: of all jobs of the queue, and of those of each user."""


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
