"""Filters of lists, ``key=value``, ``key!=value`` and ``key>=value``, as conditions in SQL.

``passes`` says what a filter means, for one value of a form. ``conditions`` is the same in SQL for the columns behind
the form, so that a list reads only what it shows. A comparison that SQL does not know asks ``passes`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vctl.core.values import value
from vctl.core.wording import timestamp
from vctl.store.store import Store

Filter = tuple[str, str, str]
"""(key, one of MARKS, value)"""
MARKS = ("=", "!=", ">=")
SEVERAL = ("status", "state")
"""Keys whose filters may name several values: ``status=FAILED,STOPPED``."""
Condition = tuple[str, list[object]]
"""SQL and its values."""
TEXT, NUMBER, MOMENT = "text", "number", "moment"
_KELVIN = "\u212a"
"""The only character beyond ASCII that would be ASCII in lower case; a text that has it is compared as it is."""
_NEVER = 1 << 63
"""A time after all times of a table."""


@value(frozen=True, slots=True)
class FilterColumn:
    """What a key compares: SQL of a text, of an integer, or of a time in nanoseconds that forms show as a text."""

    kind: str
    sql: str


def passes(key: str, have: object, mark: str, target: str) -> bool:
    """Whether a value of a form passes a filter; without regard to case. A value that is missing is the text ''."""
    text, target = "" if have is None else _lower(str(have)), _lower(target)
    if mark == ">=":
        return have is not None and _at_least(text, target)
    return (text in _words(key, target)) == (mark == "=")


def _lower(text: str) -> str:
    return text if _KELVIN in text else text.lower()


def _words(key: str, target: str) -> list[str]:
    return target.split(",") if key in SEVERAL else [target]


def _at_least(text: str, target: str) -> bool:
    try:
        return float(text) >= float(target)
    except ValueError:
        at, least = moment(text), moment(target)
        return text >= target if at is None or least is None else at >= least


def moment(text: str) -> int | None:
    """A timestamp as nanoseconds since the epoch; None for a text that is no timestamp with a time zone."""
    from datetime import datetime

    try:
        at = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return None if at.tzinfo is None else round(at.timestamp() * 1e6) * 1000


def conditions(store: Store, columns: Mapping[str, FilterColumn], filters: Sequence[Filter]) -> Condition:
    """The condition that all filters pass."""
    where: list[str] = ["1"]
    values: list[object] = []
    for key, mark, target in filters:
        column = columns[key]
        compared = _MAKERS[column.kind](key, column.sql, mark, _lower(target))
        if compared is None:
            store.db.create_function("vctl_passes", 4, passes, deterministic=True)
            compared = f"vctl_passes(?, {column.sql}, ?, ?)", [key, mark, target]
        where.append(compared[0])
        values += compared[1]
    return " AND ".join(where), values


def _text(key: str, sql: str, mark: str, target: str) -> Condition | None:
    words = _words(key, target)
    if mark == ">=" or not all(word.isascii() and "\0" not in word for word in words):
        return None
    marks = "= ?" if len(words) == 1 else f"IN ({', '.join('?' * len(words))})"
    same = f"({sql}) COLLATE NOCASE {marks}"
    return _equal(same, mark, missing="" in words), [*words]


def _number(_: str, sql: str, mark: str, target: str) -> Condition | None:
    if mark == ">=":
        try:
            least = float(target)
        except ValueError:
            return None
        return f"{sql} >= ?", [least]
    number = _integer(target)
    if number is None:
        # a constant 0 would keep SQLite from using the index that a query names
        return _equal(f"typeof({sql}) = ''" if target else f"{sql} IS NULL", mark, missing=False), []
    return _equal(f"{sql} = ?", mark, missing=False), [number]


def _integer(text: str) -> int | None:
    """The number that a table shows as this text."""
    try:
        number = int(text) if text.isascii() and len(text) < 20 else None
    except ValueError:
        return None
    return number if number is not None and str(number) == text and abs(number) < _NEVER else None


def _moment(_: str, sql: str, mark: str, target: str) -> Condition:
    """The texts of times are in the order of the times, so a comparison of texts is one with a time."""
    if mark == ">=":
        return f"{sql} >= ?", [_first(lambda text: _at_least(text, target))]
    span = _first(lambda text: text >= target), _first(lambda text: text > target)
    return _equal(f"{sql} >= ? AND {sql} < ?", mark, missing=not target), [*span]


def _first(is_late: Callable[[str], bool]) -> int | float:
    """The first time whose text is late."""
    low, high = 0, _NEVER
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_late(timestamp(middle).lower()) else (middle + 1, high)
    return low if low < _NEVER else float("inf")


def _equal(same: str, mark: str, *, missing: bool) -> str:
    """The condition that a column equals a value, or that it differs. ``missing``: a missing value equals it."""
    if mark == "=" and not missing:
        return f"({same})"  # an index of the column can be used
    return f"{'' if mark == '=' else 'NOT '}ifnull({same}, {int(missing)})"


_MAKERS: dict[str, Callable[[str, str, str, str], Condition | None]] = {
    TEXT: _text,
    NUMBER: _number,
    MOMENT: _moment,
}
