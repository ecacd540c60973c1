"""Growing a cluster, and those above it, until some work fits: the placement's own search on what growth could bring.

First without loans; only when nothing else helps do siblings lend. What the root cannot give is demand.
"""

from __future__ import annotations

from dataclasses import replace

from vctl.core.clusters import ClusterSpec, FixedNode, Group, VNode
from vctl.core.labels import Selector
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.scheduler.elasticity import Grow, growing, lenders_to
from vctl.scheduler.growth_ground import growth_ground
from vctl.scheduler.growth_plan import growth_for
from vctl.scheduler.placement import BUDGET, Placed, Unplaced, place_on


def place_with_growth(
    ledger: Ledger,
    parent_id: str,
    spec: ClusterSpec,
    entry: Amounts,
    *,
    avoid: frozenset[str] = frozenset(),
    barred: frozenset[str] = frozenset(),
    budget: int = BUDGET,
) -> tuple[list[Grow], Placed] | Unplaced:
    """Let a cluster grow until a gang fits into it; applied to the ledger.

    When there is a reason instead, the ledger is as it was. ``avoid`` are physical nodes, ``barred`` virtual nodes of
    the parent, or above it, that will not do.
    """
    found = Unplaced("", 0, 0, f"{parent_id} cannot grow")
    for lending in (False, True):
        if lending and not _has_lenders(ledger, parent_id):
            break
        ground = growth_ground(ledger, parent_id, lending=lending, avoid=avoid, barred=barred)
        if ground is None:
            break
        answer = place_on(ground, spec, entry, budget=budget)
        if isinstance(answer, Placed):
            return growth_for(ground, answer, entry)
        found = replace(answer, exhausted=True) if found.exhausted else answer
    return found


def grow_for_gang(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts
) -> tuple[list[Grow], Placed] | None:
    """The same without a reason; None also for what fits without growth."""
    found = place_with_growth(ledger, parent_id, spec, entry)
    return found if isinstance(found, tuple) and found[0] else None


def make_room(
    ledger: Ledger,
    cluster_id: str,
    request: Amounts,
    selector: Selector = (),
    avoid: frozenset[str] = frozenset(),
) -> tuple[list[Grow], VNode] | None:
    """Let a cluster grow until a request fits into one virtual node of it; applied to the ledger, top level first.

    ``avoid`` are physical nodes that will not do. None (and an untouched ledger) when limits or the lack of free
    capacity anywhere above forbid it.
    """
    asked = {name: amount for name, amount in request.items() if amount}
    spec = ClusterSpec(groups=(Group((FixedNode(asked, selector=selector),)),), flexible=False)
    found = place_with_growth(ledger, cluster_id, spec, {}, avoid=avoid)
    if not isinstance(found, tuple):
        return None
    steps, placed = found
    return steps, ledger.vnodes[placed.pieces[0].parent_vnode_id]


def grow(
    ledger: Ledger,
    cluster_id: str,
    request: Amounts,
    selector: Selector = (),
    avoid: frozenset[str] = frozenset(),
) -> list[Grow] | None:
    """The same, without the virtual node."""
    found = make_room(ledger, cluster_id, request, selector, avoid)
    return None if found is None else found[0]


def _has_lenders(ledger: Ledger, cluster_id: str) -> bool:
    return any(
        next(lenders_to(ledger, ledger.clusters[one]), None) is not None
        for one in growing(ledger, cluster_id)
    )
