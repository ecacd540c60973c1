"""The tokens of the users of a shared service: whose each is, a digest of it, and its end."""

from __future__ import annotations

from collections.abc import Collection

from vctl.store.rows import dumps
from vctl.store.store import Row, Store


def add(store: Store, digest: str, uid: int, user: str, name: str, ends_at: int) -> int:
    """Add a token, inside a transaction; returns its number. Those that have ended are forgotten."""
    now = store.clock()
    store.db.execute("DELETE FROM tokens WHERE ends_at <= ?", (now,))
    cursor = store.db.execute(
        "INSERT INTO tokens (digest, uid, user, name, created_at, ends_at) VALUES (?, ?, ?, ?, ?, ?)",
        (digest, uid, user, name, now, ends_at),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def get(store: Store, token_id: int) -> Row | None:
    """One token."""
    return store.row("SELECT * FROM tokens WHERE token_id = ?", token_id)


def listed(store: Store, uid: int | None = None) -> list[Row]:
    """The tokens of one user, or of all, oldest first."""
    if uid is None:
        return store.rows("SELECT * FROM tokens ORDER BY token_id")
    return store.rows("SELECT * FROM tokens WHERE uid = ? ORDER BY token_id", uid)


def remove(store: Store, numbers: Collection[int]) -> None:
    """Forget tokens, inside a transaction."""
    store.db.execute(
        "DELETE FROM tokens WHERE token_id IN (SELECT value FROM json_each(?))", (dumps(list(numbers)),)
    )
