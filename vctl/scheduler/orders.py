"""Orders of a queue: each a function from a job to a key, which does not change while a job waits.

To add an order: one function, one entry in ``ORDERS``, one row in the table of
``tests/scheduler/test_orders.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from vctl.core.jobs import PendingJob
from vctl.core.queue_policy import FAIR, FIFO, LONGEST, PRIORITY, SHORTEST, QueuePolicy

OrderKey = tuple[int, int]
"""Smaller comes first; the last part is the job's number, so equals keep their arrival order."""

STEP = 1 << 64
"""One step of priority, where time limits in nanoseconds decide between equals: more than any time limit."""
ENDLESS = STEP - 1
"""A job without a time limit counts as longer than any other."""
OVERTAKEN = 24
"""How many jobs behind a job that needs idle loans of other clusters may go first, of those that need none.

More of them let fewer loans move; fewer of them keep the order of one queue, in which large jobs start earlier.
"""
Turn = tuple[int, int, bool]


def fifo(job: PendingJob, _policy: QueuePolicy) -> OrderKey:
    """By arrival."""
    return (0, job.job_id)


def by_priority(job: PendingJob, policy: QueuePolicy) -> OrderKey:
    """Higher priority first, equals by arrival.

    With ageing, priority + waited / ageing decides. All jobs age at the same rate, so the difference of two
    jobs never changes, and ``submitted - priority * ageing`` is a constant key.
    """
    if policy.ageing_ns is None:
        return (-job.priority, job.job_id)
    return (job.submitted_at_ns - job.priority * policy.ageing_ns, job.job_id)


def longest(job: PendingJob, _policy: QueuePolicy) -> OrderKey:
    """Higher priority first, equals by time limit, the longest first: long jobs are not left for the end.

    The rule of the longest processing time (Graham, 1969), for batches whose last job should end early.
    """
    return (-job.priority * STEP - _limit(job), job.job_id)


def shortest(job: PendingJob, _policy: QueuePolicy) -> OrderKey:
    """Higher priority first, equals by time limit, the shortest first: the mean wait is small."""
    return (-job.priority * STEP + _limit(job), job.job_id)


def _limit(job: PendingJob) -> int:
    return ENDLESS if job.time_limit_ns is None else min(job.time_limit_ns, ENDLESS)


ORDERS: dict[str, Callable[[PendingJob, QueuePolicy], OrderKey]] = {
    FIFO: fifo,
    PRIORITY: by_priority,
    FAIR: by_priority,  # among the jobs of one user; ``fairness`` decides which user is next
    LONGEST: longest,
    SHORTEST: shortest,
}


def order_key(job: PendingJob, policy: QueuePolicy) -> OrderKey:
    """The key of a job in the order of its queue."""
    return ORDERS[policy.order](job, policy)


def turn_of(priority: int, job_id: int, *, is_held: bool) -> Turn:
    """The turn of the first job of a queue among those of all queues: the least one is next.

    ``is_held``: it needs idle loans of other clusters, and lets ``OVERTAKEN`` jobs go first, so that few loans move.
    """
    return (-priority, job_id + OVERTAKEN * is_held, is_held)
