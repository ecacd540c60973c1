"""Growing clusters and giving back: flexible virtual nodes change in place, level by level, all in one plan.

A cluster whose work needs more than it has enlarges a flexible virtual node where its parent has room, makes a new
one where it has none, and else asks its parent to grow first, up to the root. What the root cannot give is demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, LOGICAL, PRIMARY, Cluster, VNode
from vctl.core.labels import Selector
from vctl.core.ledger import Ledger
from vctl.core.resources import SCALE, Amounts, difference, merged, total, within

MOST_DEPTH = 64
_Loan = tuple[str | None, Mapping[str, int]]
"""Which sibling lends, and how much."""
NO_LOAN: _Loan = (None, {})


@dataclass(frozen=True, slots=True)
class Grow:
    """One virtual node made (``before`` None) or resized in place.

    ``lender_id`` is the sibling that lends ``lent`` of what is gained here; its own virtual node has become smaller
    by that in the step before. All else, and with None everything, comes from the parent.
    """

    before: VNode | None
    after: VNode
    lender_id: str | None = None
    lent: Mapping[str, int] = field(default_factory=dict)

    @property
    def gained(self) -> dict[str, int]:
        """What the virtual node has more than before."""
        old = {} if self.before is None else self.before.holding.amounts
        return {n: a for n, a in rs.subtract(self.after.holding.amounts, old).items() if a}


def apply_growth(ledger: Ledger, grow: Grow) -> None:
    """Take it in a ledger. What it adds is for whom it was made: nobody else is told that a node joined."""
    known = grow.after.node_id in ledger.joined.get(grow.after.cluster_id, ())
    if grow.before is None:
        ledger.carve(grow.after)
    else:
        ledger.resize(grow.after)
    if not known and grow.after.cluster_id in ledger.joined:
        ledger.joined[grow.after.cluster_id].discard(grow.after.node_id)


def revert_growth(ledger: Ledger, grow: Grow) -> None:
    """Undo ``apply_growth``."""
    if grow.before is None:
        ledger.release(grow.after.vnode_id)
    else:
        ledger.resize(grow.before)


def growth_fits(ledger: Ledger, grow: Grow) -> bool:
    """Whether a planned growth can still be taken."""
    room = ledger.rooms.get(grow.after.parent_id or "")
    if room is None or not ledger.nodes[grow.after.node_id].schedulable:
        return False
    if grow.before is None:
        return grow.after.vnode_id not in ledger.vnodes and room.fits_exactly(grow.after.holding)
    if ledger.vnodes.get(grow.after.vnode_id) != grow.before:
        return False
    if within(
        grow.after.holding.amounts, grow.before.holding.amounts
    ):  # a sibling lends: only what it leaves free
        return ledger.rooms[grow.after.vnode_id].fits_exactly(
            difference(grow.before.holding, grow.after.holding)
        )
    return room.fits_exactly(difference(grow.after.holding, grow.before.holding))


def grow(
    ledger: Ledger,
    cluster_id: str,
    request: Amounts,
    selector: Selector = (),
    avoid: frozenset[str] = frozenset(),
) -> list[Grow] | None:
    """Make room for a request in one virtual node of a cluster; applied to the ledger, top level first.

    ``avoid`` are physical nodes that will not do (a gang that must spread). None (and an untouched ledger) when
    limits or the lack of room anywhere above forbid it.
    """
    done: list[Grow] = []
    if _grow(ledger, cluster_id, _Wish(dict(request), selector, avoid), done, only=None, depth=0) is not None:
        return done
    for step in reversed(done):
        revert_growth(ledger, step)
    return None


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is to fit into one virtual node, and which nodes will do."""

    request: dict[str, int]
    selector: Selector = ()
    avoid: frozenset[str] = frozenset()

    def suits(self, vnode: VNode) -> bool:
        return vnode.node_id not in self.avoid and lb.matches(self.selector, vnode.labels)


def _grow(
    ledger: Ledger, cluster_id: str, wish: _Wish, done: list[Grow], *, only: str | None, depth: int
) -> str | None:
    """The virtual node that has room for the request afterwards. ``only`` restricts to one that exists.

    On failure what was tried on the way is undone.
    """
    mark = len(done)
    found = _grow_here(ledger, cluster_id, wish, done, only=only, depth=depth)
    if found is None:
        for step in reversed(done[mark:]):
            revert_growth(ledger, step)
        del done[mark:]
    return found


def _grow_here(
    ledger: Ledger, cluster_id: str, wish: _Wish, done: list[Grow], *, only: str | None, depth: int
) -> str | None:
    cluster = ledger.clusters[cluster_id]
    if cluster_id == PRIMARY or not cluster.spec.flexible or not cluster.starts_jobs or depth > MOST_DEPTH:
        return None
    assert cluster.parent_id is not None
    own = [
        vnode
        for vnode in flexible_parts(ledger, cluster_id)
        if (only is None or vnode.vnode_id == only)
        and wish.suits(vnode)
        and ledger.nodes[vnode.node_id].schedulable
    ]
    request = wish.request
    missing = {vnode.vnode_id: _missing(ledger, vnode, request) for vnode in own}
    own = [vnode for vnode in own if _allowed(ledger, cluster, missing[vnode.vnode_id])]
    for vnode in own:  # first choice: enlarge where the parent has room
        if ledger.rooms[vnode.parent_id or ""].fits(missing[vnode.vnode_id]):
            return _enlarge(ledger, vnode, missing[vnode.vnode_id], done)
    fresh = only is None and _allowed(ledger, cluster, request)
    if fresh and (slot := _slot_for(ledger, cluster, wish)):
        return _make(ledger, cluster_id, slot, request, done)
    for vnode in own:  # the parent grows on the spot, if it can
        assert vnode.parent_id is not None
        need = missing[vnode.vnode_id]
        if _grow(ledger, cluster.parent_id, _Wish(need), done, only=vnode.parent_id, depth=depth + 1):
            return _enlarge(ledger, vnode, need, done)
    if fresh:
        above = _grow(ledger, cluster.parent_id, wish, done, only=None, depth=depth + 1)
        if above is not None:
            there = next(
                (v for v in flexible_parts(ledger, cluster_id) if v.node_id == ledger.vnodes[above].node_id),
                None,
            )
            if there is None:
                return _make(ledger, cluster_id, ledger.vnodes[above], request, done)
            need = _missing(ledger, there, request)
            if (
                there.parent_id == above
                and _allowed(ledger, cluster, need)
                and ledger.rooms[above].fits(need)
            ):
                return _enlarge(ledger, there, need, done)
    return lend(ledger, cluster, own, wish, done, fresh=only is None)


def flexible_parts(ledger: Ledger, cluster_id: str) -> list[VNode]:
    """The flexible virtual nodes of a cluster, by id."""
    return [vnode for vnode in ledger.slots(cluster_id) if vnode.kind == FLEXIBLE]


def _missing(ledger: Ledger, vnode: VNode, request: Mapping[str, int]) -> dict[str, int]:
    """What a virtual node needs more so that the request fits into its free part."""
    room = ledger.rooms[vnode.vnode_id]
    need: dict[str, int] = {}
    for name, amount in request.items():
        if not amount:
            continue
        if name in room.instances or name in ledger.rooms[vnode.parent_id or ""].instances:
            if name not in room.instances or room.pick(name, amount) is None:
                whole = room.whole_units(name) * SCALE if amount >= SCALE and name in room.instances else 0
                need[name] = amount - whole
        elif amount > room.free.get(name, 0):
            need[name] = amount - room.free.get(name, 0)
    return need


def lend(
    ledger: Ledger, cluster: Cluster, own: list[VNode], wish: _Wish, done: list[Grow], *, fresh: bool
) -> str | None:
    """Last resort: a logical sibling lends what it does not use of its minimum, up to its lending limit.

    ``fresh``: a new virtual node will do where the cluster has none to enlarge.
    """
    has = total(part.holding.amounts for part in flexible_parts(ledger, cluster.cluster_id))
    if any(has.get(name, 0) < cluster.spec.flexible_min.get(name, 0) for name in wish.request):
        return None  # it calls back what it lent itself
    for lender in _lenders(ledger, cluster):
        for theirs in flexible_parts(ledger, lender.cluster_id):
            mine = next((vnode for vnode in own if vnode.parent_id == theirs.parent_id), None)
            if mine is None and not fresh:
                continue
            if mine is None and any(
                v.node_id == theirs.node_id for v in flexible_parts(ledger, cluster.cluster_id)
            ):
                continue
            need = wish.request if mine is None else _missing(ledger, mine, wish.request)
            given = _lendable(ledger, lender, theirs, need)
            if given is None or not wish.suits(theirs) or not _allowed(ledger, cluster, need):
                continue
            _shrink(ledger, theirs, given, done)
            slot = ledger.vnodes[theirs.parent_id or ""]
            if not ledger.rooms[slot.vnode_id].fits(need):
                return None
            loan = (lender.cluster_id, given)
            if mine is None:
                return _make(ledger, cluster.cluster_id, slot, need, done, loan)
            return _enlarge(ledger, mine, need, done, loan)
    return None


def _lenders(ledger: Ledger, cluster: Cluster) -> list[Cluster]:
    """Logical siblings that may lend, by id."""
    siblings = (ledger.clusters[one] for one in sorted(ledger.subclusters.get(cluster.parent_id or "", ())))
    return [
        one
        for one in siblings
        if one.kind == LOGICAL and one.cluster_id != cluster.cluster_id and any(one.lending_limit.values())
    ]


def _lendable(
    ledger: Ledger, lender: Cluster, vnode: VNode, need: Mapping[str, int]
) -> dict[str, int] | None:
    """What a virtual node of a lender has to give up beside what its parent has free, or None when it may not."""
    room, above = ledger.rooms[vnode.vnode_id], ledger.rooms[vnode.parent_id or ""]
    has = total(part.holding.amounts for part in flexible_parts(ledger, lender.cluster_id))
    given: dict[str, int] = {}
    for name, amount in need.items():
        short = amount - max(above.free.get(name, 0), 0)
        if short <= 0:
            continue
        lent = lender.spec.flexible_min.get(name, 0) - has.get(name, 0)
        if lent < 0:
            return None  # it borrows itself
        if name in room.instances:
            short = -(-short // SCALE) * SCALE  # whole instances change hands
            free = room.whole_units(name) * SCALE
        else:
            free = room.free.get(name, 0)
        if short > min(free, lender.lending_limit.get(name, 0) - lent):
            return None
        given[name] = short
    return given or None


def _shrink(ledger: Ledger, vnode: VNode, given: Mapping[str, int], done: list[Grow]) -> None:
    taken = ledger.rooms[vnode.vnode_id].copy().take(given)
    step = Grow(vnode, replace(vnode, holding=difference(vnode.holding, taken)))
    apply_growth(ledger, step)
    done.append(step)


def _allowed(ledger: Ledger, cluster: Cluster, more: Mapping[str, int]) -> bool:
    """Whether the cluster's maximum and its borrow limit leave it take that much more."""
    limits = [cluster.spec.flexible_max] if cluster.spec.flexible_max is not None else []
    if cluster.borrow_limit is not None:
        limits.append({n: cluster.spec.flexible_min.get(n, 0) + a for n, a in cluster.borrow_limit.items()})
    if not limits:
        return True
    has = rs.total(vnode.holding.amounts for vnode in flexible_parts(ledger, cluster.cluster_id))
    return all(
        has.get(name, 0) + amount <= limit[name]
        for limit in limits
        for name, amount in more.items()
        if name in limit
    )


def _slot_for(ledger: Ledger, cluster: Cluster, wish: _Wish) -> VNode | None:
    """A virtual node of the parent with room, on a node where the cluster has no flexible part yet."""
    taken = {vnode.node_id for vnode in flexible_parts(ledger, cluster.cluster_id)} | wish.avoid
    best: tuple[str, str] | None = None
    for group in ledger.index(cluster.parent_id or "").classes.values():
        if not lb.matches(wish.selector, group.labels) or not group.room.fits(wish.request):
            continue
        for vnode_id in group.ids:
            node_id = ledger.vnodes[vnode_id].node_id
            if node_id not in taken:
                best = min(best or (node_id, vnode_id), (node_id, vnode_id))
                break
    return ledger.vnodes[best[1]] if best else None


def _enlarge(
    ledger: Ledger, vnode: VNode, more: Mapping[str, int], done: list[Grow], loan: _Loan = NO_LOAN
) -> str:
    trial = ledger.rooms[vnode.parent_id or ""].copy()
    after = replace(vnode, holding=merged(vnode.holding, trial.take(more)))
    step = Grow(vnode, after, *loan)
    apply_growth(ledger, step)
    done.append(step)
    return vnode.vnode_id


def _make(
    ledger: Ledger,
    cluster_id: str,
    slot: VNode,
    request: Mapping[str, int],
    done: list[Grow],
    loan: _Loan = NO_LOAN,
) -> str:
    rank = max((ledger.vnodes[v].rank for v in ledger.members[cluster_id]), default=-1) + 1
    vnode_id = f"{cluster_id}/{rank}"
    holding = ledger.rooms[slot.vnode_id].copy().take({n: a for n, a in request.items() if a})
    labels = {**slot.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
    step = Grow(
        None,
        VNode(vnode_id, cluster_id, slot.node_id, slot.vnode_id, FLEXIBLE, holding, labels, rank=rank),
        *loan,
    )
    apply_growth(ledger, step)
    done.append(step)
    return vnode_id
