"""The value that a step of the scheduler returns for what it refuses. ``words`` puts it into words when it is shown."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.labels import Selector
from vctl.core.limits import Limit
from vctl.core.resources import EMPTY, Amounts
from vctl.core.values import field, value

NO_NODE, NO_MATCH, ALL_ON_ONE, ON_ONE = "no node", "no match", "all on one node", "on one node"
ENTRY_ON_ONE, ENTRY_IN_PIECE, ENTRY_ON_WHOLE = (
    "entry on one node",
    "entry in a piece",
    "entry on a whole node",
)
ENTRY_IN_MAXIMUM, MINIMUM, IN_TOTAL = "entry in the maximum", "flexible minimum", "in total"
WHOLE_NODES, DISTINCT, DISTINCT_ABLE = "whole nodes", "distinct nodes", "distinct nodes that hold a part"
PIECES, DISTINCT_PIECES = "pieces", "pieces on distinct nodes"
TOGETHER, WITHIN_BUDGET = "together", "within the budget"
NO_GROWTH, GROWTH_LIMITS, GROWN_IN_TOTAL, GROWN_ON_ONE = (
    "no growth", "growth limits", "in total with growth", "on one node with growth",
)  # fmt: skip


@value(frozen=True, slots=True)
class Refusal:
    """A rule that keeps work back: how much was requested of its subject, and how much there is.

    ``subject``: the resource, with numbers in 1/10000 of it; empty if labels, templates or a policy decide, and the
    numbers are nodes in 1/10000. Or a limit of a queue by the name of its setting, with jobs that run at a time, the
    refused one included; or what a limit of a user or a cluster is of, with what is used and the refused job asks for.
    The other fields are what the words of some rules name beside that.
    """

    rule: str
    subject: str
    requested: int
    have: int
    of: Amounts = field(default_factory=lambda: EMPTY.amounts)
    """What one piece asks for, or all of them together."""
    free: Amounts = field(default_factory=lambda: EMPTY.amounts)
    """What is free of that."""
    whole: Mapping[str, int] = field(default_factory=dict)
    """The whole nodes requested, by template."""
    count: int = 0
    """The pieces or nodes requested, or the steps of a search."""
    fit: int = 0
    """How many of them fit."""
    selector: Selector = ()
    detail: str = ""
    """The policy of a group, or a cluster."""
    limit: Limit | None = None
    """The limit of a user or a cluster that keeps it back."""
    until_ns: int | None = None
    """When a limit of a period begins anew."""
