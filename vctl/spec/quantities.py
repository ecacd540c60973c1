"""Reads amounts, sizes and durations of users into exact integers, and formats amounts for output.

Nothing is rounded, except a size with a unit, which is rounded up to whole bytes, and a fractional duration,
which becomes a float.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vctl.core.resources import (
    CPU,
    DEFAULT_UNITS,
    GPU,
    MEMORY,
    OBJECT_STORE_MEMORY,
    SCALE,
    Amounts,
    is_unit_request,
)
from vctl.spec.fields import as_mapping, child, refuse, show
from vctl.spec.params import LONGEST_S

if TYPE_CHECKING:
    from decimal import Decimal

LARGEST = 2**53
"""The largest amount: beyond it a JSON reader would silently change the number."""

KNOWN = (CPU, GPU, MEMORY, OBJECT_STORE_MEMORY)
SIZES = frozenset({MEMORY, OBJECT_STORE_MEMORY})
"""Resources counted in bytes."""

MAX_NAMES = 256
MAX_NODES = 10_000
"""The most fixed nodes and whole nodes of one spec together."""
MAX_NUMBERED = 1 << 16
"""The most CPUs, or devices of a kind, of one node: each has a number, so a typo could exhaust the memory."""

# names of the known resources in other tools
_ALIASES = {
    "numcpus": CPU,
    "numgpus": GPU,
    "vcpu": CPU,
    "core": CPU,
    "mem": MEMORY,
    "ram": MEMORY,
    "objectstore": OBJECT_STORE_MEMORY,
}
# patterns stay strings until their first use: every command imports this
_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?\Z"
_SIZE = r"(?i)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?:([kmgtpe])(i?b)?|b)?\Z"
_CLOCK = r"(?:([0-9]{1,6})-)?([0-9]{1,8}):([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]{1,6})?)\Z"
_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|[smhdw])"
_SECONDS = {
    "ms": "0.001",
    "s": "1",
    "m": "60",
    "h": "3600",
    "d": "86400",
    "w": "604800",
}


def parse_amount(value: object, path: str) -> int:
    """Read a non-negative amount as 1/10000: ``0.25`` is 2500. At most four decimals, at most 2^53."""
    number = _decimal(value, path)
    if not number.is_finite():
        raise refuse(
            path, f"{show(value)} is not an amount", "write a number; leave the name out for no limit"
        )
    if number.is_signed() and number:
        raise refuse(path, f"{show(value)} is negative", "write 0 or more")
    if number and number.adjusted() > 15:
        raise _too_large(value, path)
    scaled = _scaled(number)
    if scaled is None:
        raise refuse(
            path, f"{show(value)} has more than four decimals", "round it to 4 decimals, such as 0.3333"
        )
    if scaled > LARGEST * SCALE:
        raise _too_large(value, path)
    if scaled % SCALE and _scaled(_exact(repr(scaled / SCALE))) != scaled:
        # it could be stored, but its JSON number would be another number
        raise refuse(
            path, f"{show(value)} has more digits than a JSON number holds", "round it to a whole number"
        )
    return scaled


def _decimal(value: object, path: str) -> Decimal:
    """The exact number that the user wrote; a float counts as its shortest decimal form."""
    from decimal import Decimal

    if isinstance(value, Decimal):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise refuse(path, f"{show(value)} is not a number", "write a number such as 2 or 0.5")
    if isinstance(value, int):
        if value.bit_length() > 128:
            raise _too_large(value, path)
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    text = value.strip()
    # Decimal alone would also read "1_000", "nan" and digits of other scripts
    if not re.match(_NUMBER, text):
        raise refuse(path, f"{show(value)} is not a number", "write a number such as 2 or 0.5")
    return Decimal(text)


def _exact(text: str) -> Decimal:
    """The exact number in a text. ``decimal`` is imported here: commands without numbers start faster."""
    from decimal import Decimal

    return Decimal(text)


def _scaled(number: Decimal) -> int | None:
    """``number * 10**4`` as an int; None if it is not whole. A decimal context would round it."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    significant = text.rstrip("0")
    shift = exponent + len(text) - len(significant) + 4
    if not significant:
        return 0
    return int(significant) * 10**shift if shift >= 0 else None


def _too_large(value: object, path: str) -> Exception:
    return refuse(
        path, f"{show(value)} is above 2^53", "write a smaller number; leave the name out for no limit"
    )


def parse_size(value: object, path: str) -> int:
    """Read whole bytes: ``8GiB`` and ``8G`` are binary (as in Slurm, docker, systemd), ``8GB`` is decimal."""
    if not isinstance(value, str):
        amount = parse_amount(value, path)
        if amount % SCALE:
            raise refuse(
                path, f"{show(value)} is not a whole number of bytes", f'write a unit, such as "{value}GiB"'
            )
        return amount // SCALE
    match = re.match(_SIZE, value.strip())
    if not match or len(value) > 40:
        raise refuse(
            path, f"{show(value)} is not a size", "write bytes or a size such as 8GiB, 8GB or 512MiB"
        )
    prefix, suffix = (match[2] or "").lower(), (match[3] or "").lower()
    power = " kmgtpe".index(prefix or " ")
    factor = (1000 if suffix == "b" else 1024) ** power
    size = _exact(match[1]) * factor
    if size > LARGEST:
        raise _too_large(value, path)
    whole = int(size)
    if size != whole and not prefix:
        raise refuse(path, f"{show(value)} is not a whole number of bytes", "write a unit, such as 1.5GiB")
    # 0.1GiB is a valid size; it is rounded up to whole bytes
    return whole if size == whole else whole + 1


def parse_memory(value: object, path: str) -> int:
    """Read a size as a resource amount: bytes in 1/10000, like every other amount."""
    return parse_size(value, path) * SCALE


def parse_duration(value: object, path: str, *, positive: bool = False) -> float:
    """Read a duration: ``90``, ``90s``, ``1h30m``, ``HH:MM:SS``, ``1-12:00:00``; whole seconds are an int."""
    seconds = _duration(value, path)
    if not seconds.is_finite() or (seconds.is_signed() and seconds):
        raise refuse(path, f"{show(value)} is not a duration", "write 0 or more, such as 90s")
    if seconds > LONGEST_S:
        raise refuse(path, f"{show(value)} is longer than a hundred years", "write a shorter one, such as 8h")
    if positive and not seconds:
        raise refuse(path, "the duration is 0", "write at least 1s")
    return int(seconds) if seconds == seconds.to_integral_value() else float(seconds)


def _duration(value: object, path: str) -> Decimal:
    if not isinstance(value, str):
        return _decimal(value, path)
    text = value.strip().lower()
    if len(text) <= 40:
        if re.match(_NUMBER, text):
            return _exact(text)
        if clock := re.match(_CLOCK, text):
            days, hours, minutes, seconds = (_exact(part or "0") for part in clock.groups())
            if minutes < 60 and seconds < 60:
                return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        parts = re.findall(_PART, text)
        units = [unit for _, unit in parts]
        if parts and re.sub(_PART, "", text) == "" and len(set(units)) == len(units):
            return sum((_exact(number) * _exact(_SECONDS[unit]) for number, unit in parts), _exact("0"))
    raise refuse(path, f"{show(value)} is not a duration", "write 90s, 1h30m, 01:30:00 or 1-12:00:00")


def parse_resources(
    value: object, path: str, units: Iterable[str] = DEFAULT_UNITS, *, totals: bool = False
) -> dict[str, int]:
    """Read a resource map. ``totals``: these are the resources of a node, which has whole devices."""
    document = as_mapping(value, path, "resources", '{"CPU": 1}')
    if len(document) > MAX_NAMES:
        raise refuse(path, f"{len(document)} resources, at most {MAX_NAMES} are accepted", "ask for fewer")
    unit_names = frozenset(units)
    amounts: dict[str, int] = {}
    for name, given in document.items():
        amount_path = child(path, name)
        check_resource_name(name, amount_path, unit_names)
        if given is None:
            raise refuse(amount_path, "null is no amount", "write a number, or leave the name out")
        amounts[name] = (
            parse_memory(given, amount_path) if name in SIZES else _number_only(given, amount_path)
        )
        if name in unit_names:
            check_unit_amount(name, amounts[name], amount_path, totals=totals)
        if totals and name in {CPU, *unit_names} and amounts[name] > MAX_NUMBERED * SCALE:
            raise refuse(amount_path, f"a node has at most {MAX_NUMBERED} {name}", "write a smaller number")
    return amounts


def _number_only(value: object, path: str) -> int:
    if isinstance(value, str):
        # YAML takes 08 and 1e3 for text although they have no quotes
        number = _exact(value.strip() if re.match(_NUMBER, value.strip()) else "nan")
        is_short = number.is_finite() and abs(number.adjusted()) <= 15
        fix = f"write {number:f} without quotes" if is_short else "write a number such as 2 or 0.5"
        raise refuse(path, f"the amount must be a number, not the string {show(value)}", fix)
    return parse_amount(value, path)


def check_unit_amount(name: str, amount: int, path: str, *, totals: bool = False) -> None:
    """Refuse an amount of numbered instances that is neither whole nor below 1."""
    if totals and amount % SCALE:
        raise refuse(
            path, f"a node has whole {name} instances, not {format_amount(amount)}", "write a whole number"
        )
    if not is_unit_request(amount):
        raise refuse(
            path,
            f"one request for {name} of 1 or more must be whole, not {format_amount(amount)}: {name} comes as"
            " numbered devices, and a share of one device cannot be joined to another",
            f"write {amount // SCALE} or {amount // SCALE + 1}, or less than 1 for a share of one device",
        )


def check_resource_name(name: str, path: str, units: Iterable[str] = DEFAULT_UNITS) -> None:
    """Accept known and custom names; refuse a custom name that looks like a misspelt known name."""
    known = {*KNOWN, *units}
    if name in known:
        return
    if not name or len(name) > 128 or not name.isprintable() or " " in name:
        raise refuse(
            path, f"{show(name)} is not a resource name", "use 1 to 128 printable characters without spaces"
        )
    word = name.casefold().replace("_", "").replace("-", "")
    for spelling in {word, word.removesuffix("s")}:
        meant = _ALIASES.get(spelling) or {k.casefold().replace("_", ""): k for k in known}.get(spelling)
        if meant:
            raise refuse(path, f"unknown resource {name}", f"did you mean {meant}?")


def format_amount(amount: int) -> int | float:
    """An amount as a JSON number: 2, or 0.25."""
    whole, rest = divmod(amount, SCALE)
    return amount / SCALE if rest else whole


def resources_document(amounts: Amounts) -> dict[str, int | float]:
    """A resource map that ``parse_resources`` reads back unchanged."""
    return {name: format_amount(amounts[name]) for name in sorted(amounts)}


def exact_text(name: str, amount: int) -> str:
    """An amount as the command line reads it back unchanged."""
    if name in SIZES:
        size = amount // SCALE
        for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
            if size % factor == 0:
                return f"{size // factor}{unit}"
        return str(size)
    return f"{amount // SCALE}" if amount % SCALE == 0 else f"{amount / SCALE:.4f}".rstrip("0")


def format_size(size: int) -> str:
    """Bytes for people: ``8GiB``, ``1.5GiB``, ``100B``."""
    if abs(size) < 1024:
        return f"{size}B"
    power = min((abs(size).bit_length() - 1) // 10, 6)
    # 1023.97MiB would otherwise be shown as 1024MiB
    if power < 6 and round(abs(size) / 1024**power, 1) >= 1024:
        power += 1
    return f"{size / 1024**power:.1f}".removesuffix(".0") + " KMGTPE"[power] + "iB"


def format_duration(seconds: float) -> str:
    """Seconds for people, the two largest units: ``1d12h``, ``1h30m``, ``2m5s``, ``0.5s``."""
    if seconds < 60 and seconds != int(seconds):
        return f"{int(seconds * 10) / 10}s"
    remaining, parts = int(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, remaining = divmod(remaining, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
