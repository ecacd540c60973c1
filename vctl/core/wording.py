"""Amounts, lists and counts in plain English, in the same words on every screen."""

from __future__ import annotations

from collections.abc import Sequence

from vctl.core.nodes import LEFT, Fence
from vctl.core.resources import MEMORY, OBJECT_STORE_MEMORY, SCALE, Amounts

_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def number_text(name: str, amount: int) -> str:
    """An amount without the name of its resource: ``0.5``, ``8GiB``."""
    if name in (MEMORY, OBJECT_STORE_MEMORY):
        for unit, size in _SIZES:
            if amount >= size * SCALE:
                return f"{_number(amount * 100 // size // 100)}{unit}"
    return _number(amount)


def amount_text(name: str, amount: int) -> str:
    """An amount as a user writes it, such as ``0.5 GPU`` or ``8GiB memory``."""
    return f"{number_text(name, amount)} {name}"


def in_units(amounts: Amounts) -> dict[str, float]:
    """A resource map as numbers in whole units; names with the amount 0 stay."""
    return {name: amount / SCALE for name, amount in sorted(amounts.items())}


def amounts_text(amounts: Amounts) -> str:
    """Several amounts in one phrase."""
    texts = [amount_text(name, amount) for name, amount in sorted(amounts.items()) if amount]
    return " and ".join(texts) or "nothing"


def _number(amount: int) -> str:
    sign, amount = ("-" if amount < 0 else ""), abs(amount)
    whole, fraction = divmod(amount, SCALE)
    return sign + (f"{whole}.{fraction:04d}".rstrip("0") if fraction else str(whole))


def counted(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def listed(names: Sequence[str], limit: int) -> str:
    """The first ``most`` names and the number of the others: ``a, b and 3 more``."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def timestamp(ns: int) -> str:
    """Nanoseconds since the epoch as ISO 8601 UTC of fixed width, with microseconds."""
    seconds, us = divmod(ns // 1000, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    year, month, day = date_of(days)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z"


def date_of(days: int) -> tuple[int, int, int]:
    """The date so many days after 1970-01-01, without ``datetime``, which takes each command a millisecond.

    Years begin in March, and eras of 400 years in a March: the day that not every year has is the last of its year.
    """
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    year += 400 * era + (month >= 10)
    return year, month + 3 if month < 10 else month - 9, day - (153 * month + 2) // 5 + 1


STOPPED_WITH_BOOKING = "it is stopped with its cluster if it still runs at"
"""What a submit says about a job that may run longer than its cluster is booked."""


def opens_at(cluster_id: str, begin_ns: int) -> str:
    """Why the jobs of a booked cluster wait."""
    return f"{cluster_text(cluster_id)} is booked from {timestamp(begin_ns)} on"


def fence_text(node_id: str, fence: Fence) -> str:
    """Why a device takes no new job: ``GPU 1 of box takes no new job: pid 977 of bob …``."""
    more = len(fence.pids) - 1
    who = (
        f"pid {fence.pids[0]}"
        + (f" of {fence.owner}" if fence.owner else "")
        + (f" and {more} more" if more else "")
    )
    size = f" with {_rounded(fence.memory)} there" if fence.memory else ""
    why = (
        f"{who}{size}, left behind by {fence.of or 'a job'}, does not end"
        if fence.why == LEFT
        else f"{who}{size} uses it, and nobody booked it"
    )
    return (
        f"{fence.name} {fence.number} of {node_id} takes no new job: {why} (since {timestamp(fence.since)})"
    )


def _rounded(size: int) -> str:
    """A measured size in words: ``642MiB``, ``61.0GiB``."""
    unit, one = next(((unit, one) for unit, one in _SIZES if size >= one), ("B", 1))
    return f"{size / one:.1f}{unit}" if one > 1 << 20 else f"{size // one}{unit}"


def cluster_text(cluster_id: str) -> str:
    """A cluster id as people write it: the primary by its alias, also in front of ``##``."""
    return cluster_id.replace("kPrimaryClusterID", "primary")
