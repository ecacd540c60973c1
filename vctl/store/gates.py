"""``vctl/core/gates.py`` as SQL over the columns of a waiting job: in triggers, views, indexes and queries.

``row`` is what stands before a column: ``j.``, ``new.`` or nothing.
"""

from __future__ import annotations

from vctl.core.gates import ARRAY_LIMIT, BACKOFF, BEGIN_TIME, DEPENDENCY, HELD, INSUFFICIENT, NEVER, PREEMPTED


def opens(row: str = "") -> str:
    """SQL for ``gates.opens_at``."""
    return f"iif({row}held OR {row}waits_for, {NEVER}, coalesce({row}begin_at, 0))"


def in_queue(row: str = "") -> str:
    """SQL for ``gates.is_in_queue``."""
    return f"NOT ({row}held OR {row}waits_for OR {row}closed OR {row}members > 1)"


def gate(now: str, row: str = "") -> str:
    """SQL for ``gates.gate_of``."""
    return (
        f"CASE WHEN {row}held THEN '{HELD}' WHEN {row}waits_for THEN '{DEPENDENCY}'"
        f" WHEN {row}state_reason = '{PREEMPTED}' AND NOT {row}closed THEN '{PREEMPTED}'"
        f" WHEN {opens(row)} > {now} AND {row}state_reason = '{INSUFFICIENT}' THEN '{INSUFFICIENT}'"
        f" WHEN {opens(row)} > {now} THEN iif({row}attempt, '{BACKOFF}', '{BEGIN_TIME}')"
        f" WHEN {row}closed THEN '{ARRAY_LIMIT}' END"
    )


def counted(row: str) -> str:
    """Where ``job_counts`` counts a job: the waiting ones by priority, by when they may start, and in blocks."""
    waits = f"{row}status = 'PENDING'"
    return (
        f"{row}parent_cluster_id, {row}status, iif({waits}, {row}priority, 0), iif({waits}, {opens(row)}, 0),"
        f" iif({waits}, {row}job_id >> 10, 0)"
    )
