"""Writes the changes of the limits of users and clusters to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.store.write.table import writes


@writes(ch.LimitSet)
def _limits_set(db: sqlite3.Connection, given: Sequence[ch.LimitSet]) -> None:
    db.executemany(
        "REPLACE INTO limits (subject, name, resource, period, amount, author, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*one.limit.key, one.limit.amount, one.limit.author, one.limit.at) for one in given],
    )


@writes(ch.LimitCleared)
def _limits_cleared(db: sqlite3.Connection, cleared: Sequence[ch.LimitCleared]) -> None:
    db.executemany(
        "DELETE FROM limits WHERE (subject, name, resource, period) = (?, ?, ?, ?)",
        [one.limit.key for one in cleared],
    )
