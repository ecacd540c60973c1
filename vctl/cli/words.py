"""JSON values as text for people: amounts, times, states."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl.cli.table import Cell
from vctl.core.clusters import PRIMARY, PRIMARY_ALIAS
from vctl.spec.quantities import SIZES, format_duration, format_size

if TYPE_CHECKING:
    from datetime import datetime

STATE_COLOURS = {
    "RUNNING": "green", "ALIVE": "green", "ACTIVE": "green", "FINISHED": "green",
    "PENDING_ARGS_AVAIL": "yellow", "PENDING_NODE_ASSIGNMENT": "yellow",
    "PENDING": "yellow", "DRAINING": "yellow", "REMOVING": "yellow", "DRAINED": "yellow",
    "BOOKED": "yellow", "FAILED": "red", "DEAD": "red", "RELEASING": "dim", "STOPPED": "dim", "SUCCEEDED": "dim",
}  # fmt: skip
_PRIMARY = rf"\b{PRIMARY}\b"
_MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def state(word: str | None) -> Cell:
    """A state in its colour; the word is always there, never colour alone."""
    return Cell(word or "", STATE_COLOURS.get(word or "", ""))


def amount(name: str, value: float | None) -> str:
    """One amount without its name: ``8``, ``0.5``, ``16GiB``."""
    if value is None:
        return "∞"
    return format_size(int(value)) if name in SIZES else f"{value:.4f}".rstrip("0").rstrip(".")


def rounded(size: int) -> str:
    """A measured size, short: ``642M``, ``79.6G``."""
    for unit, letter in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M")):
        if size >= unit:
            number = size / unit
            return (
                f"{number:.0f}{letter}" if number >= 100 or number == int(number) else f"{number:.1f}{letter}"
            )
    return "0" if not size else f"{size >> 10}K"


def amounts(resources: Mapping[str, float] | None) -> str:
    """Amounts with their names, those of 0 left out: ``CPU 8, memory 16GiB``."""
    return ", ".join(f"{name} {amount(name, value)}" for name, value in (resources or {}).items() if value)


def replicas(counts: Mapping[str, int] | None) -> str:
    """Numbers of whole nodes by template: ``4c8g:2 8c16g:1``."""
    return " ".join(f"{template}:{count}" for template, count in (counts or {}).items())


def named(text: str) -> str:
    """A text as screens show it: with the alias of the primary (``primary##train``), and times in the local zone."""
    if PRIMARY in text:
        text = re.sub(_PRIMARY, PRIMARY_ALIAS, text)
    return re.sub(_MOMENT, lambda match: moment(match[0]), text) if "Z" in text else text


def no_scheduler(seen: str = "") -> str:
    """The sentence that no scheduler runs, and how to start one."""
    return f"No scheduler is running{seen}. Start one with `vctl daemon`."


def _at(stamp: str | None) -> "datetime":
    """The time of a timestamp; without one, now."""
    from datetime import UTC, datetime  # a millisecond, in a table that shows no time

    return datetime.fromisoformat(stamp) if stamp else datetime.now(UTC)


def moment(stamp: str | None) -> str:
    """A timestamp in the local time zone: ``2026-11-21 14:03:05``."""
    return f"{_at(stamp).astimezone():%Y-%m-%d %H:%M:%S}" if stamp else ""


def soon(stamp: str | None) -> str:
    """A time to come in the local zone, as short as it can be: ``14:05``, with the date on another day."""
    if not stamp:
        return ""
    at, now = _at(stamp).astimezone(), _at(None).astimezone()
    if at <= now:
        return "now"
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def few(names: Sequence[str]) -> str:
    """At most three names, and the number of the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Seconds from one timestamp to another (None: now); None when it has not begun."""
    if not start:
        return None
    return max(0.0, (_at(end) - _at(start)).total_seconds())


def lasted(start: str | None, end: str | None = None) -> str:
    """``1h30m`` from one timestamp to another, or to now."""
    seconds = seconds_between(start, end)
    return "" if seconds is None else format_duration(int(seconds))


def until(end: str | None) -> str:
    """``in 5m`` until a timestamp, ``now`` when it has passed; nothing when there is none."""
    if not end:
        return ""
    seconds = (_at(end) - _at(None)).total_seconds()
    return f"in {format_duration(int(seconds))}" if seconds >= 1 else "now"


def value(name: str, given: Any) -> str:
    """Any JSON value on one line, without the marks of JSON."""
    if given is None:
        return "-"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, (int, float)) and name.endswith("_s"):
        return format_duration(int(given) if given >= 1 else round(given, 3))
    if isinstance(given, (int, float)) and (name in SIZES or name.endswith("_memory")):
        return amount("memory", given)
    if isinstance(given, Mapping):
        return _fields(name, given) or "-"
    if isinstance(given, list):
        parts = [value(name, inner) for inner in given]
        return (
            ", ".join(
                f"({part})" if isinstance(inner, Mapping) else part
                for inner, part in zip(given, parts, strict=True)
            )
            or "-"
        )
    return str(given)


def _fields(name: str, given: Mapping[str, Any]) -> str:
    """The fields of an object in a row, those of objects inside it in parentheses."""
    numbers = all(isinstance(inner, (int, float)) and not isinstance(inner, bool) for inner in given.values())
    if "resources" in name.lower() or name.lower() in ("available", "used", "total", "labels"):
        return amounts(given) if numbers else ", ".join(f"{k}={v}" for k, v in given.items())
    if name == "queue":
        settings = {key: value(key, setting) for key, setting in given.items() if setting is not None}
        return ", ".join(f"{key.removesuffix('_s')} {words}" for key, words in settings.items())
    return ", ".join(
        f"{key} ({words})" if isinstance(inner, (Mapping, list)) and inner else f"{key} {words}"
        for key, inner in given.items()
        for words in [value(key, inner)]
    )
