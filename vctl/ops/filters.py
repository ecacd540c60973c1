"""``--filter key=value`` and ``key!=value``, as in Ray's state API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vctl.errors import BadSpec

Filter = tuple[str, bool, str]
"""(key, equal, value)"""


def parse_filters(given: Iterable[str], keys: Sequence[str]) -> list[Filter]:
    """Read filters; an unknown key is refused with the nearest one."""
    found: list[Filter] = []
    for text in given:
        key, mark, value = text.partition("=")
        equal = not key.endswith("!")
        key = key.removesuffix("!").strip()
        if not mark or not key:
            raise BadSpec(f"--filter: {text!r} is not a filter", fix="write key=value or key!=value")
        if key not in keys:
            from vctl.spec.fields import did_you_mean

            raise BadSpec(f"--filter: unknown key {key!r}", fix=did_you_mean(key, keys))
        found.append((key, equal, value.strip()))
    return found


def choose(items: list[dict[str, Any]], filters: Sequence[str]) -> list[dict[str, Any]]:
    """The items that pass; any field they have is a key."""
    if not filters:
        return items
    from vctl.ops.forms import matches

    unknown = [
        text.partition("=")[0].rstrip("!") for text in filters
    ]  # nothing to compare with: any key will do
    wanted = parse_filters(filters, list(items[0]) if items else unknown)
    return [item for item in items if matches(item, wanted)]
