"""Recall: what clusters have borrowed and do not use goes home in the moment in which waiting work starts with it.

The problem. A cluster that has borrowed keeps what it does not use for a while, so that its next job finds it
there. That must cost nobody anything: as soon as other work would start with it, the idle part has to be there
for that work, at whatever level it waits.

The idea. Idle loans are a supply of last resort. A search first tries what a cluster has and what is free above
it, and only then this: ``recall`` lets everything that is borrowed and idle go home in the ledger, innermost
cluster first, so that a cluster passes on what it had borrowed for its child. The same search runs again. If it
succeeds, ``put_back`` reverts all returns that the place does not need; the rest become the first steps of the
start's growth, and are written with it in one transaction. If it fails, all are reverted, and the verdict that
the search gives is true also for a machine without any idle loan.

Invariants. A return is a matter of amounts (``leasing.idle_parts``): no cluster gives anything that its
minimum needs, or that it uses. What is nominated or reserved for others is charged in the ledger while a round
runs, so it is not idle. A return that is not needed does not happen, so a loan moves only with a start.

Example. Two nodes of 8 CPUs, clusters ``a`` and ``b`` without a minimum. A job of ``a`` on both nodes has ended:
``a`` has 16 CPUs, borrowed and idle. A job of ``b`` needs 8: nothing is free above, so both loans go home, ``b``
grows by 8 on the first node, and the loan on the second one is put back: ``a`` still has 8.

The costs are proportional to the number of leases with an idle part, and are paid only for a shape that fits
nowhere else. Not done: a return is not split, so a cluster may return more of one loan than the start takes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence

from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import difference
from vctl.core.values import replace
from vctl.scheduler.elasticity import (
    Grow,
    apply_growth,
    flexible_parts,
    is_used,
    lendable,
    revert_growth,
    within_limits,
)
from vctl.scheduler.leasing import idle_parts, newest_first, restored, return_of

Returned = tuple[Grow, ...]
"""The steps of one return: the borrower's virtual node gets smaller, then that of a lending sibling larger."""


def idle_loans(ledger: Ledger, top_id: str) -> dict[str, int]:
    """At most what ``recall`` can bring home: the free amounts of the borrowers below a cluster."""
    found: dict[str, int] = {}
    for borrower_id in {lease.borrower_id for lease in ledger.leases.values()}:
        if is_below(ledger, borrower_id, top_id):
            for part in flexible_parts(ledger, borrower_id):
                for name, amount in ledger.capacities[part.vnode_id].free.items():
                    if amount > 0:
                        found[name] = found.get(name, 0) + amount
    return found


def borrowers_below(ledger: Ledger, top_id: str, among: Container[str]) -> list[str]:
    """The clusters below a cluster that have borrowed, of those in ``among``."""
    borrowers = {lease.borrower_id for lease in ledger.leases.values() if lease.borrower_id in among}
    return sorted(one for one in borrowers if is_below(ledger, one, top_id))


def is_loose(ledger: Ledger) -> bool:
    """Whether anything is borrowed and idle, or may be lent."""
    borrowers = {lease.borrower_id for lease in ledger.leases.values()}
    return any(one in ledger.clusters and _has_idle(ledger, one) for one in borrowers) or any(
        lendable(ledger, ledger.clusters[one]) for one in ledger.lenders
    )


def recall(ledger: Ledger, top_id: str, keep: Collection[str] = ()) -> list[Returned]:
    """Let what is borrowed and idle below a cluster go home in the ledger; returns the steps of each return.

    ``keep``: clusters that keep what they have borrowed. What was borrowed from them comes home to them.
    """
    returns: list[Returned] = []
    for leases in _by_borrower(ledger, top_id, keep):
        numbers = [lease.lease_id for lease in leases]
        for number in numbers:
            beside = [ledger.leases[one] for one in numbers if one in ledger.leases]
            for vnode, part in list(idle_parts(ledger, ledger.leases[number], beside)):
                lease = ledger.leases[number]
                done = return_of(ledger, lease, part, vnode)
                after = replace(vnode, allocation=difference(vnode.allocation, part))
                step = Grow(vnode, after, returns=lease, is_removal=done.after is None)
                returns.append(_carried_out(ledger, lease, step))
    return returns


def _carried_out(ledger: Ledger, lease: Lease, step: Grow) -> Returned:
    """Apply a return to the ledger. A sibling that had lent the part gets it back."""
    assert step.before is not None
    apply_growth(ledger, step)
    more = restored(ledger, lease, step.before, step.after)
    if more is None:
        return (step,)
    again = Grow(ledger.vnodes.get(more.vnode_id), more)
    apply_growth(ledger, again)
    return step, again


def undo(ledger: Ledger, returns: Sequence[Returned]) -> None:
    """Revert all returns, after nothing was found that needs them."""
    for steps in reversed(returns):
        for step in reversed(steps):
            revert_growth(ledger, step)


def put_back(ledger: Ledger, returns: Sequence[Returned]) -> list[Grow]:
    """Revert the returns whose part nobody has taken meanwhile, the last first; returns the steps of the rest."""
    kept = [steps for steps in reversed(returns) if not _is_reverted(ledger, steps)]
    return [step for steps in reversed(kept) for step in steps]


def _is_reverted(ledger: Ledger, steps: Returned) -> bool:
    """Revert a return if its part is still free; False, and the ledger stays as it is, if it is not."""
    step, *again = steps
    if again and not _is_unchanged(ledger, again[0]):
        return False
    for one in again:
        revert_growth(ledger, one)
    assert step.before is not None
    part = difference(step.before.allocation, step.after.allocation)
    capacity, cluster = (
        ledger.capacities.get(step.before.parent_id or ""),
        ledger.clusters[step.before.cluster_id],
    )
    if (
        capacity is not None
        and ledger.vnodes.get(step.after.vnode_id) == (None if step.is_removal else step.after)
        and capacity.fits_exactly(part)
        and within_limits(ledger, cluster, part.amounts)
    ):
        revert_growth(ledger, step)
        return True
    for one in again:
        apply_growth(ledger, one)
    return False


def _is_unchanged(ledger: Ledger, step: Grow) -> bool:
    """Whether a lender has what it got back by a step, does not use it, and could lend it again."""
    vnode_id = step.after.vnode_id
    if ledger.vnodes.get(vnode_id) != step.after:
        return False
    if step.before is None:
        return not is_used(ledger, vnode_id)
    lender, gain = (
        ledger.clusters[step.after.cluster_id],
        difference(step.after.allocation, step.before.allocation),
    )
    most = lendable(ledger, lender)
    return ledger.capacities[vnode_id].fits_exactly(gain) and all(
        amount <= most.get(name, 0) for name, amount in gain.amounts.items()
    )


def _by_borrower(ledger: Ledger, top_id: str, keep: Collection[str]) -> Iterator[list[Lease]]:
    """The leases of each cluster with an idle part, innermost cluster first, each cluster's newest first."""
    of: dict[str, list[Lease]] = {}
    for lease in ledger.leases.values():
        if lease.borrower_id not in keep:
            of.setdefault(lease.borrower_id, []).append(lease)
    below = [borrower_id for borrower_id in of if is_below(ledger, borrower_id, top_id)]
    for borrower_id in sorted(below, key=lambda one: (-len(ledger.upward(one)), one)):
        if _has_idle(ledger, borrower_id):
            yield newest_first(of[borrower_id])


def is_below(ledger: Ledger, cluster_id: str, top_id: str) -> bool:
    """Whether a cluster exists and lies below another one."""
    above = ledger.clusters[cluster_id].parent_id if cluster_id in ledger.clusters else None
    while above is not None and above != top_id:
        above = ledger.clusters[above].parent_id
    return above is not None


def _has_idle(ledger: Ledger, cluster_id: str) -> bool:
    parts = (part.vnode_id for part in flexible_parts(ledger, cluster_id))
    return any(amount > 0 for one in parts for amount in ledger.capacities[one].free.values())
