"""Growth of clusters: one step of growth on a ledger (``Grow``), and the limits of gaining and lending.

``gang_growth`` finds which steps some work needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile

from vctl.core import labels as lb
from vctl.core.clusters import FLEXIBLE, LOGICAL, PRIMARY, Cluster, VNode
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, add, beyond, difference, merged, subtract, total, within
from vctl.core.values import replace, value


@value(frozen=True, slots=True)
class Grow:
    """One step of growth: a flexible virtual node is made (``before`` None) or resized in place.

    What it gains comes from the parent, and first from what earlier steps have let out there (``lends``).
    """

    before: VNode | None
    after: VNode
    returns: Lease | None = None
    """The lease of which the step returns an idle part: the virtual node of its borrower gets smaller."""
    lends: str | None = None
    """The lender of a loan that goes out of the cluster of this step: this cluster, or one below it. The virtual node
    gets smaller by the loan."""
    lends_inside: bool = False
    """Whether that loan goes no further than the cluster around, which returns as much of what it has borrowed: the
    lender takes the place of that cluster in what others there have borrowed."""
    is_removal: bool = False
    """Whether the virtual node goes, because all of it is returned and nothing lies in it."""

    @property
    def gained(self) -> dict[str, int]:
        """The amounts after the step less the amounts before; negative for a lender."""
        old = {} if self.before is None else self.before.allocation.amounts
        return {n: a for n, a in subtract(self.after.allocation.amounts, old).items() if a}

    def lease_after(self, leases: Mapping[int, Lease], sign: int = 1) -> Lease | None:
        """The lease of which the step returns a part, once it is applied (``sign`` -1: reverted)."""
        if self.returns is None:
            return None
        lease = leases.get(self.returns.lease_id, replace(self.returns, amounts={}))
        amounts = add(lease.amounts, {name: sign * amount for name, amount in self.gained.items()})  # a loss
        return replace(lease, amounts={name: amount for name, amount in amounts.items() if amount})


def apply_growth(ledger: Ledger, grow: Grow) -> None:
    """Apply a step to a ledger. The gain is for one job, so no node counts as joined for others."""
    if (lease := grow.lease_after(ledger.leases)) is not None:
        ledger.put_lease(lease)
    if grow.is_removal:
        ledger.release(grow.after.vnode_id)
    elif grow.before is None:
        ledger.assign(grow.after, for_start=True)
    else:
        ledger.resize(grow.after, for_start=True)


def revert_growth(ledger: Ledger, grow: Grow) -> None:
    """Undo ``apply_growth``."""
    if (lease := grow.lease_after(ledger.leases, -1)) is not None:
        ledger.put_lease(lease)
    if grow.before is None:
        ledger.release(grow.after.vnode_id)
    elif grow.is_removal:
        ledger.assign(grow.before, for_start=True)
    else:
        ledger.resize(grow.before, for_start=True)


def growth_fits(ledger: Ledger, grow: Grow) -> bool:
    """Whether a step can still be applied within the present limits."""
    capacity = ledger.capacities.get(grow.after.parent_id or "")
    cluster = ledger.clusters.get(grow.after.cluster_id)
    if capacity is None or cluster is None or not ledger.nodes[grow.after.node_id].schedulable:
        return False
    if grow.before is not None and ledger.vnodes.get(grow.after.vnode_id) != grow.before:
        return False
    if grow.before is not None and within(grow.after.allocation.amounts, grow.before.allocation.amounts):
        lent = difference(grow.before.allocation, grow.after.allocation)  # a step that returns or lends
        if grow.is_removal and is_used(ledger, grow.after.vnode_id):
            return False
        lease = grow.lease_after(ledger.leases)
        if lease is not None and any(amount < 0 for amount in lease.amounts.values()):
            return False
        limit = above_its_minimum(ledger, cluster) if grow.returns is not None else lendable(ledger, cluster)
        return within(lent.amounts, limit) and ledger.capacities[grow.after.vnode_id].fits_exactly(lent)
    # a lender gets its minimum back also while it admits no jobs
    is_back = within(add(held(ledger, cluster.cluster_id), grow.gained), cluster.spec.flexible_min)
    if not (is_back or can_grow(cluster)) or not within_limits(ledger, cluster, grow.gained):
        return False
    if grow.before is None:
        there = flexible_in(ledger, cluster.cluster_id, grow.after.parent_id or "")
        return (
            there is None
            and grow.after.vnode_id not in ledger.vnodes
            and capacity.fits_exactly(grow.after.allocation)
        )
    return capacity.fits_exactly(difference(grow.after.allocation, grow.before.allocation))


# ---- limits ----


def can_grow(cluster: Cluster) -> bool:
    """Whether a cluster has a flexible part that may become larger."""
    return cluster.cluster_id != PRIMARY and cluster.spec.flexible and cluster.starts_jobs


def growing(ledger: Ledger, cluster_id: str) -> list[str]:
    """A cluster and those above it, lowest first, up to the first that cannot grow."""
    return [cluster.cluster_id for cluster in takewhile(can_grow, ledger.upward(cluster_id))]


def allowance(ledger: Ledger, cluster: Cluster) -> dict[str, int]:
    """How much more a cluster may have by its maximum and its borrow limit; a missing name is not limited."""
    return cluster.left_to_grow(held(ledger, cluster.cluster_id)) if cluster.is_limited else {}


def within_limits(ledger: Ledger, cluster: Cluster, more: Mapping[str, int]) -> bool:
    """Whether a cluster may have these amounts more."""
    allowed = allowance(ledger, cluster)
    return all(amount <= allowed[name] for name, amount in more.items() if name in allowed)


def lendable(ledger: Ledger, lender: Cluster) -> dict[str, int]:
    """How much of its minimum a cluster may still lend: nothing of a resource of which it has more,
    and nothing that it withholds for its own work."""
    if lender.kind != LOGICAL or not any(lender.lending_limit.values()):
        return {}
    has, lends = held(ledger, lender.cluster_id), {}
    for name, limit in lender.lending_limit.items():
        lent = lender.spec.flexible_min.get(name, 0) - has.get(name, 0)
        if 0 <= lent < limit:
            lends[name] = limit - lent
    if withheld := ledger.withheld.get(lender.cluster_id):
        free = ledger.available(lender.cluster_id)
        lends = {n: min(amount, free.get(n, 0) - withheld.get(n, 0)) for n, amount in lends.items()}
    return {name: amount for name, amount in lends.items() if amount > 0}


def lenders_to(ledger: Ledger, cluster: Cluster) -> Iterator[tuple[str, dict[str, int]]]:
    """Siblings that may lend to a cluster, by id, and how much."""
    for sibling in sorted(ledger.lenders.intersection(ledger.subclusters.get(cluster.parent_id or "", ()))):
        if sibling != cluster.cluster_id and (lends := lendable(ledger, ledger.clusters[sibling])):
            yield sibling, lends


def suppliers(ledger: Ledger, cluster_id: str) -> set[str]:
    """A cluster and the clusters whose free capacity it may get."""
    return {cluster_id, *suppliers_outside(ledger, cluster_id)}


def suppliers_outside(ledger: Ledger, cluster_id: str) -> set[str]:
    """The clusters whose free capacity a cluster may get by growth: those above it, and all below these that lend.

    The same for all siblings that can grow.
    """
    cluster_ids = {ledger.clusters[above_id].parent_id or PRIMARY for above_id in growing(ledger, cluster_id)}
    if ledger.lenders:
        top_id = level_above(ledger, cluster_id)
        cluster_ids |= {lender_id for lender_id in ledger.lenders if is_below(ledger, lender_id, top_id)}
    return cluster_ids


def level_above(ledger: Ledger, cluster_id: str) -> str:
    """The cluster above all those that grow with a cluster: it gives what they gain."""
    chain = growing(ledger, cluster_id)
    return (ledger.clusters[chain[-1]].parent_id or PRIMARY) if chain else cluster_id


def sharing(ledger: Ledger, cluster_id: str) -> set[str]:
    """The clusters whose work may use what the work of a cluster needs, with that cluster.

    Those that can grow share what the cluster above has. A cluster that cannot grow has its own, which nobody above it
    or beside it uses.
    """
    while (
        (cluster := ledger.clusters.get(cluster_id)) is not None
        and cluster.spec.flexible
        and cluster.parent_id
    ):
        cluster_id = cluster.parent_id
    for inside_id in (cluster_ids := [cluster_id]):  # grows on the way
        cluster_ids += [
            below for below in ledger.subclusters.get(inside_id, ()) if ledger.clusters[below].spec.flexible
        ]
    return set(cluster_ids)


def is_below(ledger: Ledger, cluster_id: str, top_id: str) -> bool:
    """Whether a cluster exists and lies below another one."""
    above = ledger.clusters[cluster_id].parent_id if cluster_id in ledger.clusters else None
    while above is not None and above != top_id:
        above = ledger.clusters[above].parent_id
    return above is not None


def above_its_minimum(ledger: Ledger, cluster: Cluster) -> dict[str, int]:
    """What a cluster has above its minimum: it has borrowed that."""
    return beyond(held(ledger, cluster.cluster_id), cluster.spec.flexible_min)


def held(ledger: Ledger, cluster_id: str) -> dict[str, int]:
    """The amounts of the flexible virtual nodes of a cluster, plus the growth promised to nominated jobs."""
    parts = [part.allocation.amounts for part in flexible_parts(ledger, cluster_id)]
    return total([*parts, ledger.promised.get(cluster_id, {})])


def flexible_parts(ledger: Ledger, cluster_id: str) -> list[VNode]:
    """The flexible virtual nodes of a cluster, by id."""
    return [vnode for vnode in ledger.slots(cluster_id) if vnode.kind == FLEXIBLE]


def flexible_in(ledger: Ledger, cluster_id: str, slot_id: str) -> VNode | None:
    """The flexible virtual node of a cluster in a virtual node of its parent; None: it has none."""
    for child_id in ledger.children[slot_id]:
        vnode = ledger.vnodes[child_id]
        if vnode.cluster_id == cluster_id and vnode.kind == FLEXIBLE:
            return vnode
    return None


def enlarged(ledger: Ledger, cluster_id: str, slot_id: str, gain: Allocation) -> VNode:
    """A cluster's flexible virtual node in a slot of its parent after a gain; a new one if it has none."""
    own, slot = flexible_in(ledger, cluster_id, slot_id), ledger.vnodes[slot_id]
    if own is not None:
        return replace(own, allocation=merged(own.allocation, gain))
    rank = next_rank(ledger, cluster_id)
    vnode_id = f"{cluster_id}/{rank}"
    labels = {**slot.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
    return VNode(vnode_id, cluster_id, slot.node_id, slot_id, FLEXIBLE, gain, labels, rank=rank)


def is_used(ledger: Ledger, vnode_id: str) -> bool:
    """Whether a virtual node has children or processes, which may hold nothing."""
    return bool(ledger.children[vnode_id]) or ledger.homes.get(vnode_id, 0) > 0


def next_rank(ledger: Ledger, cluster_id: str) -> int:
    """The rank of the next virtual node that a cluster gets."""
    return max((ledger.vnodes[v].rank for v in ledger.members[cluster_id]), default=-1) + 1
