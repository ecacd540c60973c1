"""Orders of a queue: each a function from a job to a key. Keys do not change while a job waits.

To add an order: one function, one entry in ``ORDERS``, one row in the table of ``tests/scheduler/test_orders.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from vctl.core.jobs import PendingJob
from vctl.core.queue_policy import FAIR, FIFO, PRIORITY, QueuePolicy

OrderKey = tuple[int, int]
"""Smaller comes first; the last part is the job's number, so equals keep their arrival order."""


def fifo(job: PendingJob, _policy: QueuePolicy) -> OrderKey:
    """By arrival."""
    return (0, job.job_id)


def by_priority(job: PendingJob, policy: QueuePolicy) -> OrderKey:
    """Higher priority first, equals by arrival.

    With ageing, priority + waited / ageing decides. Everybody ages at the same rate, so the difference of two jobs
    never changes, and ``submitted - priority * ageing`` is a key that holds for good.
    """
    if policy.ageing_ns is None:
        return (-job.priority, job.job_id)
    return (job.submitted_at_ns - job.priority * policy.ageing_ns, job.job_id)


ORDERS: dict[str, Callable[[PendingJob, QueuePolicy], OrderKey]] = {
    FIFO: fifo,
    PRIORITY: by_priority,
    FAIR: by_priority,  # among the jobs of one user; whose turn it is, ``fairness`` tells
}


def order_key(job: PendingJob, policy: QueuePolicy) -> OrderKey:
    """Where a job stands in its queue."""
    return ORDERS[policy.order](job, policy)
