"""SQL about what keeps a pending job out of the queue: holds, begin times, dependencies, limits of arrays."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.store.store import Row, Store


def set_gate(
    store: Store, job_id: int, reason: str | None, message: str | None, begin_at: int | None
) -> None:
    """The present reason of a pending job, null when it only waits for its turn."""
    store.db.execute(
        "UPDATE jobs SET state_reason = ?, message = ?, begin_at = ? WHERE job_id = ? AND status = 'PENDING'",
        (reason, message, begin_at, job_id),
    )


def set_held(store: Store, job_id: int, *, held: bool) -> None:
    """Put a job on hold, or take it off."""
    store.db.execute("UPDATE jobs SET held = ? WHERE job_id = ?", (held, job_id))


def change(store: Store, job_id: int, values: Mapping[str, object]) -> None:
    """Give columns of a job new values; the names are those of the caller's own table."""
    assignments = ", ".join(f"{name} = ?" for name in values)
    store.db.execute(f"UPDATE jobs SET {assignments} WHERE job_id = ?", (*values.values(), job_id))


def awaited(store: Store, job_id: int, limit: int) -> list[Row]:
    """What a job waits for, the first few."""
    return store.rows(
        "SELECT condition, awaited FROM dependencies WHERE job_id = ? ORDER BY awaited, condition LIMIT ?",
        job_id, limit,
    )  # fmt: skip
