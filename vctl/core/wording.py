"""Amounts, lists and counts in plain English, in the same words on every screen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from vctl.core.resources import MEMORY, OBJECT_STORE_MEMORY, SCALE, Amounts

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
    at = _EPOCH + timedelta(microseconds=ns // 1000)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def cluster_text(cluster_id: str) -> str:
    """A cluster id as people write it: the primary by its alias, also in front of ``##``."""
    return cluster_id.replace("kPrimaryClusterID", "primary")
