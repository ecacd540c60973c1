"""Keeps what jobs held that their rows will not tell any more: of attempts before the last, and of deleted jobs."""

from __future__ import annotations

import _sqlite3 as sqlite3

from vctl.core.limits import DAY_US
from vctl.core.spans import Spans

LOST = "LOST"
OUTCOME = (
    f"CASE WHEN status IN ('RUNNING', 'FAILED') OR state_reason = 'Preempted' THEN '{LOST}' ELSE status END"
)
"""SQL: what an attempt came to that is over. LOST: it failed, was preempted or was tried again."""
_ATTEMPT = (
    "INSERT OR REPLACE INTO attempts (job_id, attempt, user, cluster_id, outcome, resources, started_at, ended_at)"
    f" SELECT job_id, attempt, user, parent_cluster_id, {OUTCOME}, resources, started_at,"
    " max(started_at, coalesce(ended_at, ?2)) FROM jobs WHERE job_id = ?1 AND started_at IS NOT NULL"
)
_USE = f"""
INSERT INTO past_use (day, user, cluster_id, outcome, resources, held_us)
WITH RECURSIVE gone AS (
    SELECT user, parent_cluster_id AS cluster_id, {OUTCOME} AS outcome, resources, started_at / 1000 AS began,
        max(started_at, ended_at) / 1000 AS ended
    FROM jobs WHERE job_id BETWEEN ?1 AND ?2 AND started_at IS NOT NULL AND ended_at IS NOT NULL
    UNION ALL SELECT user, cluster_id, outcome, resources, started_at / 1000, ended_at / 1000
    FROM attempts WHERE job_id BETWEEN ?1 AND ?2),
days AS (
    SELECT *, began / {DAY_US} AS day FROM gone
    UNION ALL SELECT user, cluster_id, outcome, resources, began, ended, day + 1
    FROM days WHERE (day + 1) * {DAY_US} < ended)
SELECT day, user, cluster_id, outcome, coalesce(resources, '{{}}'),
    sum(min(ended, (day + 1) * {DAY_US}) - max(began, day * {DAY_US}))
FROM days WHERE true GROUP BY 1, 2, 3, 4, 5
ON CONFLICT DO UPDATE SET held_us = held_us + excluded.held_us
"""


def keep_attempt(db: sqlite3.Connection, job_id: int, ended_at: int = 0) -> None:
    """Keep the last attempt of a job that is to be tried again, or to run again. ``ended_at``: if it just ended."""
    db.execute(_ATTEMPT, (job_id, ended_at))


def keep_use(db: sqlite3.Connection, spans: Spans) -> None:
    """Keep what jobs held that are about to be deleted: a sum for each day, user, cluster, outcome and request."""
    for first, last in spans:
        db.execute(_USE, (first, last))
    db.executemany("DELETE FROM attempts WHERE job_id BETWEEN ? AND ?", spans)
