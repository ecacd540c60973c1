"""The registry of the functions that write changes, one for each type of change, and their shared INSERT."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeVar

from vctl.engine.changes import Change

MOST_ROWS = 64
"""The most rows of one INSERT. The number of rows is a power of two, so that few statements are prepared."""

Writer = Callable[[sqlite3.Connection, Any], None]
WRITERS: dict[type[Change], Writer] = {}
"""Type of change -> the function that writes it; the function gets the connection and a list of changes."""
W = TypeVar("W", bound=Callable[..., None])


def writes(*kinds: type[Change]) -> Callable[[W], W]:
    """Declare the function that writes changes of these types. A type has one function; a second is a ValueError."""
    if twice := WRITERS.keys() & set(kinds):
        raise ValueError(f"declared twice: {', '.join(sorted(kind.__name__ for kind in twice))}")

    def declare(writer: W) -> W:
        WRITERS.update(dict.fromkeys(kinds, writer))
        return writer

    return declare


def insert(db: sqlite3.Connection, into: str, rows: Sequence[Sequence[object]]) -> None:
    """Add rows; ``into`` reads ``table (column, column)``."""
    at = 0
    while rest := len(rows) - at:
        count = min(MOST_ROWS, 1 << rest.bit_length() - 1)
        db.execute(_insert(into, count), tuple(chain.from_iterable(rows[at : at + count])))
        at += count


@cache
def _insert(into: str, count: int) -> str:
    marks = ", ".join("?" * (into.count(",") + 1))
    return f"INSERT INTO {into} VALUES {', '.join([f'({marks})'] * count)}"
