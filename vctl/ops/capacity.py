"""The resources of clusters, summed: total, reserved, used and free amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.clusters import LOGICAL, PRIMARY
from vctl.core.nodes import ALIVE, LOST
from vctl.core.resources import Amounts, add
from vctl.core.values import field, value
from vctl.ops import forms
from vctl.store import clusters, leases, nodes
from vctl.store.free import EqualSlots, alike
from vctl.store.rows import loads
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import ClusterUse, NodeForm


@value(slots=True)
class Capacity:
    """The total, reserved and used resources of one cluster; of these what is borrowed, lent and idle.

    ``borrowed``: what it has from others on lease. ``lent``: what others have from it. ``idle``: what logical clusters
    hold and no job uses, at any depth: of a logical cluster all that is not used, of others what those below hold.
    """

    total: Sums = field(default_factory=dict)
    reserved: Sums = field(default_factory=dict)
    used: Sums = field(default_factory=dict)
    borrowed: Sums = field(default_factory=dict)
    lent: Sums = field(default_factory=dict)
    idle: Sums = field(default_factory=dict)

    def form(self) -> ClusterUse:
        """The documented JSON form; each of the maps has every resource that one of them has."""
        none = dict.fromkeys((*self.total, *self.reserved, *self.used, *self.borrowed, *self.lent), 0)
        return {
            "total": forms.amounts({**none, **self.total}),
            "reserved": forms.amounts({**none, **self.reserved}),
            "used": forms.amounts({**none, **self.used}),
            "borrowed": forms.amounts({**none, **self.borrowed}),
            "lent": forms.amounts({**none, **self.lent}),
            "idle": forms.amounts({**none, **self.idle}),
        }


def capacities(store: Store) -> dict[str, Capacity]:
    """The sums of every cluster, in one pass over the clusters; the cost does not depend on the queues."""
    totals, of_runs = clusters.totals(store), clusters.held_by_runs(store)
    rows = clusters.parents_first(clusters.all_rows(store))
    sums = {
        cluster_id: Capacity(totals.get(cluster_id, {}))
        for cluster_id in (PRIMARY, *(row["cluster_id"] for row in rows))
    }
    nobody = Capacity()
    for row in reversed(rows):  # children first
        capacity, parent = sums[row["cluster_id"]], sums.get(row["parent_id"], nobody)
        if row["kind"] == LOGICAL:
            _add(capacity.used, of_runs.get(row["cluster_id"], {}))
            capacity.idle = {n: max(a - capacity.used.get(n, 0), 0) for n, a in capacity.total.items()}
            if row["parent_id"] == PRIMARY:
                _add(sums[PRIMARY].idle, capacity.idle)
        else:
            capacity.used = dict(capacity.total)
        _add(parent.reserved, capacity.total)
        _add(parent.used, capacity.used)
    for lease in leases.all_rows(store):
        amounts = loads(lease["amounts"])
        _add(sums.get(lease["borrower_id"], nobody).borrowed, amounts)
        _add(sums.get(lease["lender_id"], nobody).lent, amounts)
    return sums


def _add(sums: Sums, amounts: Amounts, times: int = 1) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount * times


Sums = dict[str, int]


@value(slots=True)
class ClusterSlot:
    """One virtual node of a cluster, or one node of the primary, for commands that read.

    ``free``: the total minus the resources that clusters and runs hold there. A resource that the node does
    not have any more stays in ``total``, with 0, while something holds it.
    """

    row: Row
    state: str
    total: Amounts
    free: Amounts
    fenced: Amounts = field(default_factory=dict)
    """What nobody holds and nobody gets."""

    def form(self) -> NodeForm:
        """A physical node in its documented JSON form."""
        row = self.row
        return {
            "node_id": row["node_id"],
            "hostname": row["hostname"],
            "template_id": row["template_id"],
            "source": row["source"],
            "state": row["state"],
            "reason": row["reason"],
            "author": row["author"],
            "state_since": forms.timestamp(row["state_since"]),
            "resources": forms.amounts(self.total),
            "used": forms.amounts(self.used),
            "available": forms.amounts(self.available),
            "labels": loads(row["labels"]),
            "last_heartbeat": forms.timestamp(row["last_heartbeat"]),
            "heartbeat_timeout_s": row["heartbeat_timeout_s"],
            "created_at": forms.timestamp(row["created_at"]),
        }

    @property
    def available(self) -> Sums:
        """What new work may take: nothing on a node that takes no work, or of an overdrawn resource."""
        return _available(self.state, self.free)

    @property
    def used(self) -> Sums:
        """The resources that clusters and runs hold in it."""
        idle = add(self.free, self.fenced) if self.fenced else self.free
        return {name: amount - idle.get(name, 0) for name, amount in self.total.items()}


def _available(state: str, free: Amounts) -> Sums:
    return {name: max(amount, 0) if state == ALIVE else 0 for name, amount in free.items()}


def _total(slots: EqualSlots) -> Amounts:
    has, free = slots.capacity.total.amounts, slots.capacity.free
    beyond = [name for name, amount in free.items() if amount and name not in has]
    return {**has, **dict.fromkeys(beyond, 0)} if beyond else has


def _fenced(slots: EqualSlots) -> Amounts:
    return {name: sum(shares.values()) for name, shares in slots.capacity.fenced.items()}


def slots_of(store: Store, cluster_id: str, *, owned: bool = False) -> dict[str, ClusterSlot]:
    """The virtual nodes of a cluster by id; whole nodes that a logical child owns only if ``owned``."""
    of: dict[str, tuple[str, Amounts, Amounts, Amounts]] = {}
    for group in alike(store, cluster_id):
        if owned or not group.owned:
            of.update(
                dict.fromkeys(
                    [slot_id for _, slot_id in group.slots],
                    (group.state, _total(group), group.capacity.free, _fenced(group)),
                )
            )
    key, rows = (
        ("node_id", nodes.all_rows(store))
        if cluster_id == PRIMARY
        else ("vnode_id", clusters.vnode_rows(store, cluster_id))
    )
    return {row[key]: ClusterSlot(row, *of[row[key]]) for row in rows if row[key] in of}


def totals_of(store: Store, cluster_id: str) -> tuple[Sums, Sums]:
    """Sums over the virtual nodes of a cluster: (total without lost nodes, free on ALIVE nodes)."""
    total: Sums = {}
    free: Sums = {}
    for group in alike(store, cluster_id):
        if group.owned or group.state in LOST:
            continue
        _add(total, _total(group), len(group.slots))
        _add(free, _available(group.state, group.capacity.free), len(group.slots))
    return total, free
