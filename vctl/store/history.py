"""What ran in this state directory: jobs that are over, with their requests and true run times."""

from __future__ import annotations

from vctl.store.store import Row, Store


def ended_rows(store: Store, since_ns: int | None, until_ns: int | None) -> list[Row]:
    """Jobs that were submitted in a span and have run to an end, by arrival; of one that was retried the last try."""
    return store.rows(
        "SELECT * FROM jobs WHERE started_at IS NOT NULL AND ended_at IS NOT NULL"
        " AND submitted_at >= ? AND submitted_at < ? ORDER BY submitted_at, job_id",
        since_ns if since_ns is not None else 0, until_ns if until_ns is not None else 1 << 62,
    )  # fmt: skip


def never_ran(store: Store, since_ns: int | None, until_ns: int | None) -> dict[str, int]:
    """How many others were submitted in a span, by state."""
    found = store.rows(
        "SELECT status, count(*) AS n FROM jobs WHERE (started_at IS NULL OR ended_at IS NULL)"
        " AND submitted_at >= ? AND submitted_at < ? GROUP BY status ORDER BY status",
        since_ns if since_ns is not None else 0, until_ns if until_ns is not None else 1 << 62,
    )  # fmt: skip
    return {row["status"]: row["n"] for row in found}
