"""``--filter key=value`` and ``key!=value``, as in Ray's state API, and ``key>=value``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from vctl.errors import BadSpec

F = TypeVar("F", bound=Mapping[str, Any])
Filter = tuple[str, str, str]
"""(key, one of MARKS, value)"""
MARKS = ("=", "!=", ">=")


def parse_filters(given: Iterable[str], keys: Sequence[str]) -> list[Filter]:
    """Read filters; an unknown key is refused with the nearest one."""
    found: list[Filter] = []
    for text in given:
        key, mark, value = text.partition("=")
        if mark and key.endswith(("!", ">")):
            key, mark = key[:-1], key[-1] + mark
        key = key.strip()
        if not mark or not key:
            raise BadSpec(
                f"--filter: {text!r} is not a filter", fix="write key=value, key!=value or key>=value"
            )
        if key not in keys:
            from vctl.spec.fields import did_you_mean

            raise BadSpec(f"--filter: unknown key {key!r}", fix=did_you_mean(key, keys))
        found.append((key, mark, value.strip()))
    return found


KEYS = {
    "leases": "lease_id borrower_id lender_id vnode_id node_id resources since expires_at job_id",
    "demand": "cluster_id kind resources count reason by",
    "objects": "object_id name job_id submission_id cluster_id task_id node_id node_ids size created_at attempt path",
    "vnodes": "vnode_id cluster_id node_id parent_id kind whole rank resources load instances cores labels",
    "events": "seq at kind object object_id cluster_id job_id data",
}
"""Kind of list -> the fields of its items: a mistyped key is refused also where there is nothing to compare it with."""


def choose(items: Sequence[F], filters: Sequence[str], kind: str = "") -> list[F]:
    """The items that pass; any field they have is a key. ``kind`` tells the fields also of no items."""
    if not filters:
        return list(items)
    from vctl.ops.forms import matches

    keys = KEYS[kind].split() if kind else list(items[0]) if items else [_key(text) for text in filters]
    wanted = parse_filters(filters, keys)
    return [item for item in items if matches(item, wanted)]


def _key(text: str) -> str:
    return text.partition("=")[0].rstrip("!>")
