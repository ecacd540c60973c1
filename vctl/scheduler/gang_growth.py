"""Growing a cluster, and those above it, until some work fits: the placement's own search on what growth could bring.

First without loans; only when nothing else helps do siblings lend. What the root cannot give is demand.
"""

from __future__ import annotations

from dataclasses import replace

from vctl.core import resources as rs
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.labels import Selector
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.core.wording import amount_text, number_text
from vctl.scheduler.elasticity import Grow, allowance, growing, lenders_to
from vctl.scheduler.growth_candidates import GrowthCandidates, growth_candidates
from vctl.scheduler.growth_plan import growth_for
from vctl.scheduler.growth_supply import UNLIMITED
from vctl.scheduler.placement import BUDGET, Placed, Unplaced, place, place_on
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
    """Let a cluster grow until a gang fits into it; applied to the ledger. A reason leaves the ledger as it was."""
    found = finished(find_growth(ledger, parent_id, spec, entry, avoid=avoid, barred=barred, budget=budget))
    return found if isinstance(found, Unplaced) else growth_for(*found, entry)


def place_or_grow(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts
) -> tuple[list[Grow], Placed] | Unplaced:
    """A place in what the cluster has; else the cluster grows for it, which is applied to the ledger."""
    found = place(ledger, parent_id, spec, entry)
    if isinstance(found, Placed):
        return [], found
    grown = place_with_growth(ledger, parent_id, spec, entry)
    if isinstance(grown, Unplaced):
        return replace(grown, exhausted=found.exhausted or grown.exhausted)
    return grown


def find_growth(
    ledger: Ledger,
    parent_id: str,
    spec: ClusterSpec,
    entry: Amounts,
    *,
    avoid: frozenset[str] = frozenset(),
    barred: frozenset[str] = frozenset(),
    budget: int = BUDGET,
) -> Work[tuple[GrowthCandidates, Placed] | Unplaced]:
    """The candidates and the place among them, as work that can be put off as long as nobody changes the ledger.

    ``avoid`` are physical nodes, ``barred`` virtual nodes of the parent, or above it, that will not do.
    """
    found = Unplaced("", 0, 0, f"{parent_id} cannot grow")
    for lending in (False, True):
        chain = growing(ledger, parent_id)
        if lending and not any(any(lenders_to(ledger, ledger.clusters[one])) for one in chain):
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
    return not count.is_met(count.inside(ledger.index(cluster_id)))


def surely_grows(ledger: Ledger, cluster_id: str, count: UpperBound, entry: Amounts) -> bool:
    """Whether growth certainly helps, seen without a search: equal pieces, no limit, one level, no loan."""
    chain = growing(ledger, cluster_id)
    if len(chain) != 1 or not count.is_exact(entry) or allowance(ledger, ledger.clusters[cluster_id]):
        return False
    index = ledger.index(ledger.clusters[cluster_id].parent_id or "")
    return not index.crowded and count.is_met(count.inside(index))


def one_piece(request: Amounts, selector: Selector = ()) -> ClusterSpec:
    """The spec of a request that has to fit into one virtual node."""
    asked = {name: amount for name, amount in request.items() if amount}
    return ClusterSpec(groups=(Group((FixedNode(asked, selector=selector),)),), flexible=False)


def grow(
    ledger: Ledger,
    cluster_id: str,
    request: Amounts,
    selector: Selector = (),
    avoid: frozenset[str] = frozenset(),
) -> list[Grow] | None:
    """Let a cluster grow until a request fits into one virtual node of it; applied to the ledger, top level first.

    None (and an untouched ledger) when limits or the lack of free capacity anywhere above forbid it.
    """
    found = place_with_growth(ledger, cluster_id, one_piece(request, selector), {}, avoid=avoid)
    return found[0] if isinstance(found, tuple) else None


def shortage(ledger: Ledger, cluster_id: str, spec: ClusterSpec, *, lending: bool) -> Unplaced | None:
    """What there is too little of in all the clusters together, wherever it is: cheap enough to ask often."""
    chain = growing(ledger, cluster_id)
    if not chain:
        return None
    above = [ledger.clusters[one].parent_id or "" for one in chain]
    for one in chain if lending else ():
        above += [lender for lender, _ in lenders_to(ledger, ledger.clusters[one])]
    fixed = [node.resources for node in spec.fixed]
    wanted = rs.total([*fixed, spec.flexible_min])
    limit = allowance(ledger, ledger.clusters[cluster_id])
    for name, amount in sorted(wanted.items()):
        if not amount:
            continue
        own, own_most = _free(ledger, cluster_id, name)
        others = [_free(ledger, one, name) for one in above]
        gain = min(sum(free for free, _ in others), limit.get(name, UNLIMITED))
        largest = max((resources.get(name, 0) for resources in fixed), default=0)
        for need, have, where in (
            (amount, own + gain, "in total"),
            (largest, own_most + gain, "on one node"),
        ):
            if have < need:
                most = f"{number_text(name, have)} can be had with growth"
                return Unplaced(name, need, have, f"needs {amount_text(name, need)} {where}, {most}")
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
    if not all(any(node.resources.values()) for node in spec.fixed) or any(spec.replica_sets.values()):
        return None
    return spec.names(entry) or None
