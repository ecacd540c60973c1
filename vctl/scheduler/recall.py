"""Growth, loans and what others do not use: how a start gets resources that its own cluster does not have.

The problem. Clusters form a tree. Each has a minimum that is its own, may grow above it up to its maximum (and
by no more than its borrow limit), and siblings may lend what they do not need of their minimum, up to their
lending limit. A cluster that has borrowed keeps what it does not use for a while, so that its next job finds it
there; and a minimum is kept for its cluster also while that has nothing to run. Neither may cost anybody
anything: as soon as other work would start with it, the idle part has to be there for that work, at whatever
level of the tree it waits. But nothing may go to and fro, no cluster may lose what its minimum guarantees, and
no limit may be passed.

The idea. Work that waits never waits for a timer: what it lacks moves with its start, and only what it lacks.
The search for a place stops at the first success of

1. what the cluster has (``placement``);
2. what is free above it: its ancestors' free capacity, within each one's maximum and borrow limit
   (``gang_growth``, ``find_growth`` with ``lends=False``);
3. what others have borrowed and do not use: ``recall`` lets it go home to its lenders in the ledger, level by
   level: first all of it below the cluster's parent, then below the parent's parent, as far up as clusters can
   grow (where the cluster itself cannot, once: below it). Inside a level the innermost borrower is first, so
   that a cluster passes on what it had borrowed for its child. The clusters that grow themselves keep their
   loans, unless a limit binds them;
4. minimums that are not used: of siblings, by the search itself, which keeps their lending limits; then, again
   level by level, of clusters further away or deeper in other branches: ``lend`` lets these lend out of all
   clusters around them.

The ordinary search runs again after each level, with what has moved so far. If it succeeds, ``put_back`` reverts
all moves that the place does not need; the rest become the first steps of the start's growth, and are written
with it in one transaction. If all searches fail, ``undo`` reverts everything; the verdict was then found with
all idle loans at home. So there is one predicate (``elasticity.growth_fits``), which the commit asks again, and
no rule of loans beside the search.

What is written. A cluster has at most one *flexible virtual node*, its part that can change, in each virtual
node of its parent; each step makes or resizes one (``Grow``), and a move is one idle part with its steps on all
levels. Above the minimum of the cluster that grew, the gain is a *lease*: an account of amounts between a
borrower and a lender, which is the parent, or the cluster that lends (``leasing``; docs/decisions/0026). It
names no nodes, so a start through k levels changes at most 2k rows where each level borrows from one lender: k
that come home and k that are granted. What comes back and how: an idle part of an account goes home with the
start that needs it (here), by time when nobody wanted it or its ``lease_duration`` is over
(``engine/rules/leases``), or because its lender *calls* it. A lender calls when its own waiting work lacks it;
only then something ends: the borrower's newest tasks and jobs, with their grace, until that amount can be
returned.

What a lender keeps. A lender withholds amounts, not everything: what its own waiting work needs, if that work
starts once a loan that others use has come back (``lending.keepers``). Else a loan that was called back would
be lent again at once. It lends the rest.

Ahead of an end. Where at most four runs are live, the place of a run may go over to a job of a sibling. The
search for that start is tried in the ledger as it will be after the end (``handover``, docs/decisions/0028); no
loan moves before the end is recorded, and then the end, the moves and the start are one transaction.

Invariants.

- The leases of a logical cluster are ``max(held - minimum, 0)`` for each resource, at every moment; ``vctl
  doctor --prove`` checks it.
- No cluster gives what it uses, or what its minimum needs, except that a lender gives of an unused minimum as
  much as its lending limit allows. What is idle is a matter of amounts (``leasing.idle_parts``): if the borrowed
  part is in use and the minimum lies idle elsewhere, it gives the latter.
- What is nominated (``preemption``) or reserved for others counts as used in the ledger while a round runs, so
  it is not idle.
- A move that the start does not need is put back, so nothing goes to and fro while work waits.
- After each round no waiting work would start if everything borrowed and idle were home, except for what a
  limit, the order of the queues, a reservation or a lender's own work forbids (``tests/flat.py`` checks this
  against a machine without clusters).

Examples (``tests/scheduler/test_theory.py``). *Recall*: two nodes of 8 CPUs, clusters ``a`` and ``b`` without a
minimum. A job of ``a`` on both nodes has ended: ``a`` has 16 CPUs, borrowed and idle. A job of ``b`` needs 8:
nothing is free above, so everything goes home, ``b`` grows by 8 on the first node, and the part on the second
one is put back: ``a`` still has 8. *Lending*: one node of 8 CPUs; all are the minimum of ``a``, which may lend 6
of them. A job of ``b`` that needs 4 starts: ``a`` lends 4 and holds 4. One that needs 7 waits: the limit is 6.
If ``a`` withholds 5 for a job of its own, it lends 3, but not 4.

What it costs. ``recall`` and ``lend`` cost the number of leases and lenders with an idle part, and a search
after each: two for each level above, and two more. They are paid only for work that fits nowhere else, and only
if the idle amounts suffice in total; its verdict stands for all jobs that ask for the same (a *shape*). Where
nothing is borrowed and nobody lends, a round pays nothing.

Not done. A move is kept or put back whole, so a cluster may return more of one loan than the start takes. A
cluster that has something idle in several places, and may give only a part of it, chooses without regard to the
work: a gang on several nodes may wait for another choice. Searches for victims do not count idle loans of others
as free, so a loan and a victim that would be enough together are not found. Commands (``vc update``) move no
idle loans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, LOGICAL, Cluster, VNode
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, Amounts, difference, least_of
from vctl.core.values import replace
from vctl.scheduler.elasticity import (
    Grow,
    above_its_minimum,
    apply_growth,
    flexible_in,
    flexible_parts,
    held,
    is_below,
    is_used,
    lendable,
    revert_growth,
    within_limits,
)
from vctl.scheduler.leasing import (
    borrowed_in,
    free_of,
    idle_parts,
    newest_first,
    restored,
    return_of,
)

Move = tuple[Grow, ...]
"""The steps of one return (the borrower's virtual node gets smaller, then those of a lending sibling larger), or
of one loan (the lender's virtual node gets smaller, then those of the clusters around it)."""


# ---- whether there is any ----


def has_loosened(ledger: Ledger, top_id: str, grown: Collection[str]) -> bool:
    """Whether something came free in a cluster or below it, and clusters below it have borrowed, or lend.

    What they have idle and what came free may be enough together, though neither is alone.
    """
    if not any(one == top_id or is_below(ledger, one, top_id) for one in grown):
        return False
    return any(is_below(ledger, one, top_id) for one in (*ledger.borrowers, *ledger.lenders))


def is_loose(ledger: Ledger) -> bool:
    """Whether anything is borrowed and idle, or may be lent."""
    return any(one in ledger.clusters and _has_idle(ledger, one) for one in ledger.borrowers) or any(
        lendable(ledger, ledger.clusters[one]) for one in ledger.lenders
    )


def _has_idle(ledger: Ledger, cluster_id: str) -> bool:
    return any(
        ledger.vnodes[one].kind == FLEXIBLE and ledger.capacities[one].has_free()
        for one in ledger.with_free(cluster_id)
    )


def _is_stuck(ledger: Ledger, vnode: VNode) -> bool:
    """Whether nothing moves on a node: it takes no work, or it has less than is held there, so that what comes free
    only makes up for what is missing."""
    node = ledger.nodes[vnode.node_id]
    return not node.schedulable or node.shrunk or ledger.capacities[vnode.node_id].is_overdrawn()


# ---- what is borrowed goes home ----


def recall(ledger: Ledger, top_id: str, keep: Collection[str] = ()) -> list[Move]:
    """Let what is borrowed and idle below a cluster go home in the ledger.

    ``keep``: clusters that keep what they have borrowed. What was borrowed from them comes home to them.
    """
    return [move for leases in _by_borrower(ledger, top_id, keep) for move in _returned(ledger, leases)]


def _returned(ledger: Ledger, leases: Sequence[Lease]) -> Iterator[Move]:
    """Let the idle parts of the leases of one borrower go home in the ledger."""
    for lease in leases:
        for vnode, part in list(idle_parts(ledger, lease, keep=partial(_is_stuck, ledger))):
            yield _carried_out(ledger, lease, return_of(ledger, lease, part, vnode), part)


def _carried_out(ledger: Ledger, lease: Lease, step: Grow, part: Allocation) -> Move:
    """Apply the return of a part to the ledger. A lender that is not the parent gets it back."""
    steps = [step]
    apply_growth(ledger, step)
    for more in restored(ledger, lease, step.after.parent_id or "", part):
        steps.append(Grow(ledger.vnodes.get(more.vnode_id), more))
        apply_growth(ledger, steps[-1])
    return tuple(steps)


def _by_borrower(ledger: Ledger, top_id: str, keep: Collection[str]) -> Iterator[list[Lease]]:
    """The leases of each cluster with an idle part, innermost cluster first, each cluster's newest first."""
    borrowers = [one for one in ledger.borrowers if one not in keep]
    for borrower_id in _innermost_first(ledger, borrowers, top_id):
        if _has_idle(ledger, borrower_id):
            yield newest_first(ledger.borrowed(borrower_id))


def _innermost_first(ledger: Ledger, cluster_ids: Collection[str], top_id: str) -> list[str]:
    """Those of the clusters that lie below a cluster."""
    below = (one for one in cluster_ids if is_below(ledger, one, top_id))
    return sorted(below, key=lambda one: (-len(ledger.upward(one)), one))


# ---- what is guaranteed and idle is lent ----


def lend(ledger: Ledger, top_id: str, chain: Collection[str]) -> list[Move]:
    """Let clusters below a cluster lend what they do not use of their minimum, in the ledger.

    ``chain``: the clusters that grow; they lend nothing, but clusters inside them may lend to them. A loan goes
    through all clusters around the lender, each within its own lending limit. A cluster around it that has borrowed
    lends nothing: what it gets from the lender, it uses in place of as much of what it has borrowed, which goes home.
    """
    moves: list[Move] = []
    ends = {top_id, *chain}
    for lender_id in _innermost_first(ledger, ledger.lenders, top_id):
        if lender_id in ends or not lendable(ledger, ledger.clusters[lender_id]):
            continue
        around: list[Cluster] = []
        for one in ledger.upward(lender_id):
            if around and (most := _replaceable(ledger, one, around[-1].cluster_id)):
                moves += _let_parts_out(ledger, around, most)
                moves += _returned(ledger, newest_first(ledger.borrowed(one.cluster_id)))
            around.append(one)
            if one.parent_id in ends:
                break
        moves += _let_parts_out(ledger, around)
    return moves


def _let_parts_out(
    ledger: Ledger, around: Sequence[Cluster], inside: Amounts | None = None
) -> Iterator[Move]:
    """Let idle parts of the first of these clusters go out of all of them. ``inside``: at most this, and only so far
    as the cluster around them has borrowed it."""
    lender_id, left = around[0].cluster_id, inside
    for vnode in reversed(flexible_parts(ledger, lender_id)):
        if _is_stuck(ledger, vnode) or _is_in_fixed(ledger, vnode, len(around)):
            continue
        most = ledger.capacities[vnode.vnode_id].free
        for lends in (*(lendable(ledger, one) for one in around), *(() if left is None else (left,))):
            most = least_of(most, lends)
        if not most:
            continue
        least = rs.subtract(held(ledger, lender_id), most)
        part = free_of(ledger, vnode, most, {n: max(a, 0) for n, a in least.items()})
        if part.amounts:
            left = None if left is None else rs.subtract(left, part.amounts)
            yield _let_out(ledger, around, vnode, part, is_inside=inside is not None)


def _is_in_fixed(ledger: Ledger, vnode: VNode, levels: int) -> bool:
    """Whether one around a virtual node is fixed, of so many levels: what a spec reserves on one node stays whole."""
    for _ in range(levels - 1):
        vnode = ledger.vnodes[vnode.parent_id or ""]
        if vnode.kind != FLEXIBLE:
            return True
    return False


def _let_out(
    ledger: Ledger, around: Sequence[Cluster], vnode: VNode, part: Allocation, *, is_inside: bool
) -> Move:
    """Let a part go out of a lender's virtual node, and of those of the clusters around it."""
    steps: list[Grow] = []
    for cluster in around:
        after = replace(vnode, allocation=difference(vnode.allocation, part))
        is_last = cluster is around[-1]
        lends = around[0].cluster_id if is_last else None
        steps.append(Grow(vnode, after, lends=lends, lends_inside=is_inside and is_last))
        apply_growth(ledger, steps[-1])
        vnode = ledger.vnodes[vnode.parent_id or ""]
    return tuple(steps)


def _replaceable(ledger: Ledger, cluster: Cluster, child_id: str) -> dict[str, int]:
    """What a cluster has borrowed and others in it use than a child, so that the child can give it in its place."""
    over = above_its_minimum(ledger, cluster)
    if not over or cluster.kind != LOGICAL:
        return {}
    others = rs.total(one.amounts for one in borrowed_in(ledger, cluster.cluster_id, child_id))
    return least_of(over, others)


# ---- how much there is ----


def idle_in_all(ledger: Ledger, top_id: str, chain: Collection[str]) -> dict[str, int]:
    """What ``recall`` and ``lend`` could move for clusters that grow (``chain``), wherever it is."""
    known = ledger.derived.get(key := ("idle", top_id))
    if not isinstance(known, tuple) or known[0] != ledger.edition:
        idle: dict[str, Amounts] = {}
        for one in {*ledger.borrowers, *ledger.lenders}:
            if is_below(ledger, one, top_id) and _has_idle(ledger, one):
                cluster = ledger.clusters[one]
                gives = rs.add(above_its_minimum(ledger, cluster), lendable(ledger, cluster))
                idle[one] = least_of(ledger.available(one), gives)
        known = ledger.derived[key] = (ledger.edition, idle)
    return rs.total(amounts for one, amounts in known[1].items() if one not in chain)


# ---- only what is needed moves ----


def undo(ledger: Ledger, moves: Sequence[Move]) -> None:
    """Revert all moves, after nothing was found that needs them."""
    for steps in reversed(moves):
        for step in reversed(steps):
            revert_growth(ledger, step)


def put_back(ledger: Ledger, moves: Sequence[Move], steps: Sequence[Grow] = ()) -> list[Grow]:
    """Revert the moves whose part nobody has taken meanwhile, the last first; returns the steps of the rest.

    ``steps``: the growth that followed. A cluster that lends by it, or by a loan that stays, takes nothing back of
    that resource: else it would lend and borrow the same. A virtual node that changes by what stays is left alone,
    also if it looks as before.
    """
    kept: list[Move] = []
    lent = {name for step in steps for name in _lent(step)}
    changed = {step.after.vnode_id for step in steps}  # later steps begin with these as they are now
    for move in reversed(moves):
        returns = move[0].returns is not None
        back = {(step.after.cluster_id, name) for step in move for name in step.gained}
        there = {step.after.vnode_id for step in move}
        if (returns and back & lent) or there & changed or not _is_reverted(ledger, move):
            kept.append(move)
            lent |= {name for step in move for name in _lent(step)}
            changed |= there
    return [step for move in reversed(kept) for step in move]


def _lent(step: Grow) -> list[tuple[str, str]]:
    """(Cluster, resource) that a step lends."""
    if step.returns is not None:
        return []
    return [(step.after.cluster_id, name) for name, amount in step.gained.items() if amount < 0]


def _is_reverted(ledger: Ledger, steps: Move) -> bool:
    """Revert the steps of a move, the last first; False, and the ledger stays as it is, if one is needed."""
    done: list[Grow] = []
    for step in reversed(steps):
        if not _is_free(ledger, step):
            for one in reversed(done):
                apply_growth(ledger, one)
            return False
        revert_growth(ledger, step)
        done.append(step)
    return True


def _is_free(ledger: Ledger, step: Grow) -> bool:
    """Whether a step can be reverted: its virtual node is as it left it, and what moved by it is still free."""
    there = ledger.vnodes.get(step.after.vnode_id)
    if there != (None if step.is_removal else step.after):
        return False
    cluster = ledger.clusters[step.after.cluster_id]
    if step.before is None:
        return ledger.capacities[step.after.vnode_id].is_untouched() and not is_used(
            ledger, step.after.vnode_id
        )
    if any(
        amount > 0 for amount in step.gained.values()
    ):  # a lender that got something back, and would lend it again
        more = difference(step.after.allocation, step.before.allocation)
        capacity = ledger.capacities[step.after.vnode_id]
        return capacity.fits_exactly(more) and rs.within(more.amounts, lendable(ledger, cluster))
    less = difference(step.before.allocation, step.after.allocation)
    slot_id = step.before.parent_id or ""
    if (slot := ledger.capacities.get(slot_id)) is None:
        return False
    if step.is_removal and flexible_in(ledger, cluster.cluster_id, slot_id) is not None:
        return False  # it got another one there meanwhile, and has at most one in each
    return slot.fits_exactly(less) and within_limits(ledger, cluster, less.amounts)
