"""May a waiting job start at all? What keeps it from starting, whatever is free; in SQL: ``vctl/store/gates.py``."""

from __future__ import annotations

NEVER = (1 << 63) - 1
"""After all times that a row can have."""
HELD, DEPENDENCY, BEGIN_TIME = "Held", "Dependency", "BeginTime"
BACKOFF, ARRAY_LIMIT = "Backoff", "ArrayLimit"
PREEMPTED, INSUFFICIENT = "Preempted", "InsufficientResources"


def opens_at(held: object, waits_for: object, begin_at: int | None) -> int:
    """From when a job may start, as far as it is known: never while it is held or waits for other jobs.

    A member that the limit of its array keeps back counts as one that may start: what ends in the queue lets it in.
    """
    return NEVER if held or waits_for else begin_at or 0


def is_in_queue(held: object, waits_for: object, closed: object, members: int = 1) -> bool:
    """Whether a waiting job is in its queue. One whose begin time is to come is: a place may be reserved for it.

    A row that stands for several members of an array is not: members get rows of their own before they start.
    """
    return not (held or waits_for or closed or members > 1)


def gate_of(
    held: object,
    waits_for: object,
    begin_at: int | None,
    closed: object,
    attempt: int,
    reason: str | None,
    now: int,
) -> str | None:
    """Why a waiting job may not start yet; None if it may.

    ``PREEMPTED`` is no gate: it is shown until the job runs again. ``INSUFFICIENT`` is one where the scheduler has
    resources for a job that others, outside of it, hold. ``reason`` is the column ``state_reason``.
    """
    if held:
        return HELD
    if waits_for:
        return DEPENDENCY
    if reason == PREEMPTED and not closed:
        return PREEMPTED
    if opens_at(held, waits_for, begin_at) > now:
        if reason == INSUFFICIENT:
            return INSUFFICIENT
        return BACKOFF if attempt else BEGIN_TIME
    return ARRAY_LIMIT if closed else None
