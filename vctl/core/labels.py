"""Labels and the six forms of a label selector. Kubernetes rules for keys and values (63 characters)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vctl.core.values import value

VNODE_ID, VCLUSTER_ID, NODE_ID = "ray.io/vnode_id", "ray.io/vcluster_id", "ray.io/node-id"
"""System labels that every virtual node carries: itself, its cluster, its physical node."""
SYSTEM = frozenset({VNODE_ID, VCLUSTER_ID, NODE_ID})
"""Users cannot set them, and select them by ids, which are no label values: ``kPrimaryClusterID##job/0``."""
OWN = frozenset({VNODE_ID, NODE_ID})
"""The system labels in which otherwise equal virtual nodes of a cluster differ."""

Labels = Mapping[str, str]

# patterns are compiled at their first use, because every command imports this module
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z"
_PREFIX = r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z"


def key_problem(key: str) -> str | None:
    """Why a label key is not acceptable, or None."""
    prefix, slash, name = key.rpartition("/")
    if slash and not re.match(_PREFIX, prefix):
        return f"the prefix {prefix!r} of a label key must be a lower-case DNS name of at most 253 characters"
    if not re.match(_NAME, name):
        return f"{name!r} is not a label name: 1 to 63 of A-Z a-z 0-9 . _ -, starting and ending with a letter or digit"
    return None


def value_problem(value: str) -> str | None:
    """Why a label value is not acceptable, or None. The empty value is allowed."""
    if value and not re.match(_NAME, value):
        return (
            f"{value!r} is not a label value: at most 63 of A-Z a-z 0-9 . _ -, starting and ending with a letter"
            " or digit"
        )
    return None


def common(labels: Labels) -> tuple[tuple[str, str], ...]:
    """The labels without those of ``OWN``, as a sorted key: the same for all equal virtual nodes."""
    return tuple(sorted(item for item in labels.items() if item[0] not in OWN))


@value(frozen=True, slots=True)
class Condition:
    """One key of a selector: ``operator`` is ``in``, ``!in``, ``exists`` or ``!exists``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether labels satisfy this condition. ``!in`` also holds for a missing key, as in Ray."""
        match self.operator:
            case "in":
                return labels.get(self.key) in self.values
            case "!in":
                return labels.get(self.key) not in self.values
            case "exists":
                return self.key in labels
            case "!exists":
                return self.key not in labels
        raise AssertionError(self.operator)

    def __str__(self) -> str:
        if self.operator in ("exists", "!exists"):
            return f"{self.operator}()"
        mark = "!" if self.operator == "!in" else ""
        if len(self.values) == 1:
            return f"{mark}{self.values[0]}"
        return f"{mark}in({','.join(self.values)})"


Selector = tuple[Condition, ...]
"""Conditions that must all hold, sorted by key; empty matches everything."""


def matches(selector: Selector, labels: Labels) -> bool:
    """Whether labels satisfy every condition."""
    return all(condition.matches(labels) for condition in selector)
