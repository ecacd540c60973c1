"""Growing a cluster, and those above it, until some work fits: the placement's own search on what growth could bring.

First without loans; only when nothing else helps do siblings lend. What the root cannot give is demand.
"""

from __future__ import annotations

from dataclasses import replace

from vctl.core import resources as rs
from vctl.core.clusters import ClusterSpec, FixedNode, Group, VNode
from vctl.core.labels import Selector
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.core.wording import amount_text, number_text
from vctl.scheduler.elasticity import Grow, allowance, growing, lenders_to
from vctl.scheduler.growth_candidates import GrowthCandidates, growth_candidates
from vctl.scheduler.growth_plan import growth_for
from vctl.scheduler.growth_supply import UNLIMITED
from vctl.scheduler.placement import BUDGET, Placed, Unplaced, place_on
from vctl.scheduler.upper_bound import UpperBound
from vctl.scheduler.work import Work, finished

PLACED = 4
"""So many nodes that are looked at one by one cost a placement a step."""


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
    found = find_with_growth(ledger, parent_id, spec, entry, avoid=avoid, barred=barred, budget=budget)
    return found if isinstance(found, Unplaced) else growth_for(*found, entry)


def find_with_growth(
    ledger: Ledger,
    parent_id: str,
    spec: ClusterSpec,
    entry: Amounts,
    *,
    avoid: frozenset[str] = frozenset(),
    barred: frozenset[str] = frozenset(),
    budget: int = BUDGET,
) -> tuple[GrowthCandidates, Placed] | Unplaced:
    """The same without growing: the candidates, and the place among them."""
    return finished(find_in_steps(ledger, parent_id, spec, entry, avoid=avoid, barred=barred, budget=budget))


def find_in_steps(
    ledger: Ledger,
    parent_id: str,
    spec: ClusterSpec,
    entry: Amounts,
    *,
    avoid: frozenset[str] = frozenset(),
    barred: frozenset[str] = frozenset(),
    budget: int = BUDGET,
) -> Work[tuple[GrowthCandidates, Placed] | Unplaced]:
    """The same as work that can be put off, as long as nobody else changes the ledger meanwhile."""
    found = Unplaced("", 0, 0, f"{parent_id} cannot grow")
    for lending in (False, True):
        if lending and not _has_lenders(ledger, parent_id):
            break
        if (short := shortage(ledger, parent_id, spec, lending=lending)) is not None:
            found = short
            continue
        candidates = yield from growth_candidates(
            ledger, parent_id, _asked(spec, entry), lending=lending, avoid=avoid, barred=barred
        )
        if candidates is None:
            break
        yield len(candidates.on_node) // PLACED + sum(len(group.nodes) for group in spec.groups)
        answer = place_on(candidates, spec, entry, budget=budget)
        if isinstance(answer, Placed):
            return candidates, answer
        found = replace(answer, exhausted=True) if found.exhausted else answer
    return found


def is_short(ledger: Ledger, cluster_id: str, spec: ClusterSpec, count: UpperBound) -> bool:
    """Whether there is certainly too little for a gang, in its cluster and wherever that can grow from."""
    if ledger.clusters[cluster_id].spec.flexible:
        return shortage(ledger, cluster_id, spec, lending=True) is not None
    return not count.is_met(count.within(ledger.index(cluster_id).classes.values()))


def surely_grows(ledger: Ledger, cluster_id: str, count: UpperBound, entry: Amounts) -> bool:
    """Whether growth certainly makes room, seen without a search: equal pieces, no limit, one level, no loan."""
    chain = growing(ledger, cluster_id)
    if len(chain) != 1 or not count.is_exact(entry) or allowance(ledger, ledger.clusters[cluster_id]):
        return False
    index = ledger.index(ledger.clusters[cluster_id].parent_id or "")
    return not index.crowded and count.is_met(count.within(index.classes.values()))


def grow_for_gang(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts
) -> tuple[list[Grow], Placed] | None:
    """The same without a reason; None also for what fits without growth."""
    found = place_with_growth(ledger, parent_id, spec, entry)
    return found if isinstance(found, tuple) and found[0] else None


def make_capacity(
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
    found = make_capacity(ledger, cluster_id, request, selector, avoid)
    return None if found is None else found[0]


def shortage(ledger: Ledger, cluster_id: str, spec: ClusterSpec, *, lending: bool) -> Unplaced | None:
    """What there is too little of in all the clusters together, wherever it is: cheap enough to ask often."""
    chain = growing(ledger, cluster_id)
    if not chain:
        return None
    above = [ledger.clusters[one].parent_id or "" for one in chain]
    for one in chain if lending else ():
        above += [lender for lender, _ in lenders_to(ledger, ledger.clusters[one])]
    fixed = [node.resources for group in spec.groups for node in group.nodes]
    wanted = rs.total([*fixed, spec.flexible_min])
    limit = allowance(ledger, ledger.clusters[cluster_id])
    for name, amount in sorted(wanted.items()):
        if not amount:
            continue
        own, own_most = _free(ledger, cluster_id, name)
        others = [_free(ledger, one, name) for one in above]
        most = own + min(sum(free for free, _ in others), limit.get(name, UNLIMITED))
        if most < amount:
            text = f"needs {amount_text(name, amount)} in total, {number_text(name, most)} can be had with growth"
            return Unplaced(name, amount, most, text)
        largest = max((resources.get(name, 0) for resources in fixed), default=0)
        most = own_most + min(sum(free for _, free in others), limit.get(name, UNLIMITED))
        if most < largest:
            text = f"needs {amount_text(name, largest)} on one node, {number_text(name, most)} can be had with growth"
            return Unplaced(name, largest, most, text)
    return None


def _free(ledger: Ledger, cluster_id: str, name: str) -> tuple[int, int]:
    """What is free in a cluster, in total and at most on one of its virtual nodes."""
    total = most = 0
    for group in ledger.index(cluster_id).classes.values():
        if (free := group.capacity.free.get(name, 0)) > 0:
            total, most = total + free * len(group.ids), max(most, free)
    return total, most


def _asked(spec: ClusterSpec, entry: Amounts) -> frozenset[str] | None:
    """The resources that a gang asks for; None: also places with none of them will do for some of it."""
    parts = [node.resources for group in spec.groups for node in group.nodes]
    if not all(any(part.values()) for part in parts) or any(spec.replica_sets.values()):
        return None
    names = {name for part in [*parts, spec.flexible_min, entry] for name, amount in part.items() if amount}
    return frozenset(names) or None


def _has_lenders(ledger: Ledger, cluster_id: str) -> bool:
    return any(
        next(lenders_to(ledger, ledger.clusters[one]), None) is not None
        for one in growing(ledger, cluster_id)
    )
