"""Growth within an allowance: on a trial ledger a cluster grows where something displaced needs it.

Unlike growth for a job it needs no limits of its own: a cluster gets back no more than it had.
"""

from __future__ import annotations

from collections.abc import Iterator

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE
from vctl.core.resources import SCALE, Allocation, Amounts, FreeCapacity
from vctl.core.values import replace, value
from vctl.scheduler.elasticity import flexible_in, next_rank
from vctl.scheduler.placement_result import Piece, vnodes_of


@value(slots=True)
class AllowedGrowth:
    """The growth of clusters in a trial ledger. ``before``: the ledger of which it is a copy."""

    before: Ledger
    now: Ledger
    allowance: dict[str, dict[str, int]]
    """Cluster -> the most that its flexible virtual nodes may still gain."""
    budget: int
    """The number of slots that may still be tried."""

    def is_alive(self, vnode_id: str) -> bool:
        """Whether the node of a virtual node takes work."""
        return self.now.nodes[self.now.vnodes[vnode_id].node_id].state == ALIVE

    def grown(self, cluster_id: str, slot_id: str, more: Amounts) -> Iterator[str]:
        """The flexible virtual node of a cluster in a slot, with more; the slot is enlarged for it if it can be."""
        if not rs.within(more, self.allowance.get(cluster_id, {})):
            return
        for _ in self._enlarged(slot_id, more):
            self.budget -= 1
            before = flexible_in(self.now, cluster_id, slot_id)
            gain = self.now.capacities[slot_id].copy().take({n: a for n, a in more.items() if a})
            vnode_id = self.gain(cluster_id, slot_id, gain)
            yield vnode_id
            self.take_back(cluster_id, vnode_id, before, gain)

    def _enlarged(self, slot_id: str, request: Amounts) -> Iterator[None]:
        lack = lacking(self.now.capacities[slot_id], request)
        if not lack:
            yield
            return
        slot = self.now.vnodes[slot_id]
        if slot.kind == FLEXIBLE and self.is_alive(slot_id):
            for _ in self.grown(slot.cluster_id, slot.parent_id or "", lack):
                if self.now.capacities[slot_id].fits(request):
                    yield

    def gain(self, cluster_id: str, slot_id: str, gain: Allocation) -> str:
        """Give a cluster more in a slot of its parent; a new virtual node has an id that none had before."""
        own = flexible_in(self.now, cluster_id, slot_id)
        if own is not None:
            self.now.resize(replace(own, allocation=rs.merged(own.allocation, gain)))
        else:
            rank = max(next_rank(self.before, cluster_id), next_rank(self.now, cluster_id))
            node_id = self.now.vnodes[slot_id].node_id
            piece = Piece(FLEXIBLE, rank, -1, slot_id, node_id, gain, {}, whole=False)
            (own,) = vnodes_of(self.now, cluster_id, [piece])
            self.now.assign(own)
        allowance = self.allowance[cluster_id]
        self.allowance[cluster_id] = {n: a - gain.amounts.get(n, 0) for n, a in allowance.items()}
        return own.vnode_id

    def take_back(self, cluster_id: str, vnode_id: str, before: VNode | None, gain: Allocation) -> None:
        """Undo ``gain``. ``before``: the virtual node before it, if there was one."""
        if before is None:
            self.now.release(vnode_id)
        else:
            self.now.resize(before)
        self.allowance[cluster_id] = rs.add(self.allowance[cluster_id], gain.amounts)


def lacking(capacity: FreeCapacity, request: Amounts) -> dict[str, int]:
    """What a virtual node has to gain to hold a request; of a unit resource whole instances, or a new share."""
    lack: dict[str, int] = {}
    for name, amount in request.items():
        if name in capacity.instances and amount >= SCALE:
            lack[name] = amount - capacity.whole_units(name) * SCALE
        elif name in capacity.instances and amount:
            lack[name] = 0 if capacity.pick(name, amount) else amount
        else:
            lack[name] = amount - max(capacity.free.get(name, 0), 0)
    return {name: amount for name, amount in lack.items() if amount > 0}
