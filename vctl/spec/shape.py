"""A key of the resources that a request needs: equal requests have equal keys and share one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from vctl.core.clusters import ClusterSpec, FixedNode
from vctl.core.resources import Amounts, shape_of

LONGEST = 256
"""Longer keys are replaced by their digest."""


def shape_key(spec: ClusterSpec, entry: Amounts) -> str:
    """A canonical string of gang, limits and entrypoint request; readable when short.

    The key does not depend on amounts of 0, the order of names and the labels of the new nodes, because
    these do not change the placement. It depends on the order of groups and nodes, because ranks follow it.
    """
    parts = []
    if spec.flexible:
        parts.append(f"min{_amounts(spec.flexible_min)}")
    if spec.flexible_max:
        # a maximum of 0 is a limit, unlike a minimum of 0
        parts.append(f"max{_pairs(sorted(spec.flexible_max.items()))}")
    parts += [f"{group.policy}[{','.join(_runs(map(_node, group.nodes)))}]" for group in spec.groups]
    if counts := sorted((template, count) for template, count in spec.replica_sets.items() if count):
        parts.append(f"whole{_pairs(counts)}")
    parts.append(f"entry{_amounts(entry)}")
    key = ";".join(parts)
    if len(key) <= LONGEST:
        return key
    from hashlib import sha256

    return f"sha256:{sha256(key.encode()).hexdigest()}"


def _runs(nodes: Iterable[str]) -> Iterable[str]:
    """Run-length encoding, so that many equal nodes make a short key."""
    for node, same in groupby(nodes):
        yield f"{sum(1 for _ in same)}*{node}"


def _node(node: FixedNode) -> str:
    selector = ",".join(f"{condition.key}={condition}" for condition in node.selector)
    return f"{_amounts(node.resources)}<{selector}>" if selector else _amounts(node.resources)


def _amounts(amounts: Amounts) -> str:
    return _pairs(shape_of(amounts))


def _pairs(pairs: Iterable[tuple[str, int]]) -> str:
    # names may contain any printable character: with repr, different maps have different texts
    return "{" + ",".join(f"{name!r}:{count}" for name, count in pairs) + "}"
