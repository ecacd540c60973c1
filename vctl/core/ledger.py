"""The ledger: the tree of virtual nodes with the free capacity of each. Decisions and commits work on it.

One rule at every level: total of a virtual node = free + its child virtual nodes + what processes of its own
cluster hold. ``Ledger`` keeps it by construction; plans and commits both ask ``FreeCapacity.fits``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vctl.core import clusters as cl
from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.demand import Demand
from vctl.core.leases import Lease
from vctl.core.limits import NO_LIMITS
from vctl.core.node_kinds import NodeKinds
from vctl.core.nodes import ALIVE, LOST, Node, Template, fenced
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import Allocation, Amounts, FreeCapacity
from vctl.core.slots import Filed, SlotIndex, primary_labels
from vctl.core.values import replace

if TYPE_CHECKING:
    from vctl.core.bookings import BookedPlaces, Returns


class Ledger:
    """Nodes, clusters and virtual nodes with their free capacity. Mutable, in memory, without any I/O."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.clusters: dict[str, Cluster] = {
            PRIMARY: Cluster(PRIMARY, None, cl.PRIMARY_KIND, ClusterSpec(flexible=False))
        }
        self.vnodes: dict[str, VNode] = {}
        self.capacities: dict[str, FreeCapacity] = {}
        self.members: dict[str, dict[str, None]] = {PRIMARY: {}}
        self.children: dict[str, dict[str, None]] = {}
        """vnode id -> ids of the virtual nodes that lie in it."""
        self.subclusters: dict[str, dict[str, None]] = {}
        self.charges: dict[str, tuple[str, Allocation]] = {}
        """run id -> (vnode id, what the process holds there)."""
        self.homes: dict[str, int] = {}
        """vnode id -> the number of processes there, including those without a request."""
        self.grown: dict[str, set[str]] = {}
        """cluster id -> virtual nodes in which something came free since this was last cleared."""
        self.joined: dict[str, set[str]] = {}
        """cluster id -> physical nodes that joined it, or on which it grew, since this was last cleared."""
        self.promised: dict[str, dict[str, int]] = {}
        """cluster id -> what it will gain (negative: lend) for nominated jobs; limits count it as held."""
        self.leases: dict[int, Lease] = {}
        """The leases of all clusters, by number; only ``put_lease`` changes them."""
        self._borrowed: dict[str, dict[int, Lease]] = {}
        """Borrower -> its leases, by number."""
        self.removing: set[str] = set()
        """The clusters in the state REMOVING: they are removed when they are empty."""
        self.lenders: set[str] = set()
        """The clusters with a lending limit."""
        self.withheld: Mapping[str, Amounts] = {}
        """Lender -> what it does not lend now, because its own work starts with it once a loan has come back."""
        self.templates: tuple[Template, ...] = ()
        """The machines that a node provider can make: work that fits no present node may run on these."""
        self.limits = NO_LIMITS
        """What users and clusters may have at a time."""
        self.versions: dict[str, int] = {}
        """cluster id -> the number of changes of its virtual nodes (not of what is free on them)."""
        self.inside: dict[str, int] = {}
        """cluster id -> the number of changes of the virtual nodes of the clusters of its jobs."""
        self._totals: dict[Allocation, Allocation] = {}
        self._indexes: dict[str, SlotIndex] = {}
        self._sums: dict[str, tuple[tuple[int, int], Amounts]] = {}
        self._indexes_made = 0
        self._with_free: dict[str, dict[str, None]] = {}
        self._to_look_at: dict[str, dict[str, None]] = {}
        """cluster id -> those of its virtual nodes that may have anything free, or no longer have."""
        self.edition = 0
        """The number of changes of what is free, who has borrowed, who lends, and of the limits of clusters."""
        self.derived: dict[tuple[str, object], object] = {}
        """What the scheduler has derived from the present state, each with the edition or stamps for which it holds."""
        self.demand = Demand()
        """What the clusters ask of nodes, and the work that waits (``scheduler.scarcity``)."""
        self.kinds = NodeKinds()
        self.booked: BookedPlaces | None = None
        """The places of bookings that have not begun; None: there is no such booking."""
        self.timed: dict[str, None] = {}
        """The clusters of bookings that are to open or to close."""

    def copy(self) -> Ledger:
        """An independent copy, for trials that are not reverted."""
        ledger = Ledger()
        ledger.nodes, ledger.clusters, ledger.vnodes = (
            dict(self.nodes),
            dict(self.clusters),
            dict(self.vnodes),
        )
        ledger.capacities = {vnode_id: capacity.copy() for vnode_id, capacity in self.capacities.items()}
        ledger.members = {cluster_id: dict(ids) for cluster_id, ids in self.members.items()}
        ledger.children = {vnode_id: dict(ids) for vnode_id, ids in self.children.items()}
        ledger.subclusters = {cluster_id: dict(ids) for cluster_id, ids in self.subclusters.items()}
        ledger.charges, ledger.homes = dict(self.charges), dict(self.homes)
        ledger.removing, ledger.lenders = set(self.removing), set(self.lenders)
        ledger.grown, ledger.joined = (
            {cluster_id: set(ids) for cluster_id, ids in was.items()} for was in (self.grown, self.joined)
        )
        ledger.promised = {cluster_id: dict(amounts) for cluster_id, amounts in self.promised.items()}
        ledger.leases = dict(self.leases)
        ledger._borrowed = {cluster_id: dict(leases) for cluster_id, leases in self._borrowed.items()}
        ledger.templates, ledger.withheld, ledger.limits = self.templates, self.withheld, self.limits
        ledger.versions, ledger.inside = dict(self.versions), dict(self.inside)
        ledger._indexes = {cluster_id: self.index(cluster_id).copy() for cluster_id in self._indexes}
        ledger.kinds = self.kinds.copy()  # not before the indexes, which number new kinds
        ledger.demand, ledger._indexes_made = self.demand.copy(), self._indexes_made
        ledger.timed = dict(self.timed)
        if self.booked is not None:
            ledger.booked = self.booked.copy(ledger.capacities)
        return ledger

    def part(self, cluster_ids: Iterable[str]) -> Ledger:
        """A copy with the capacities of these clusters alone, without charges, for trials of placement."""
        copy = Ledger()
        copy.nodes, copy.clusters, copy.vnodes = dict(self.nodes), dict(self.clusters), dict(self.vnodes)
        copy.subclusters, copy.templates, copy.withheld = self.subclusters, self.templates, self.withheld
        copy.limits = self.limits
        copy.lenders = set(self.lenders)
        copy.promised = {cluster_id: dict(amounts) for cluster_id, amounts in self.promised.items()}
        copy.members, copy.demand = {}, self.demand.copy()
        indexes = {cluster_id: self.index(cluster_id) for cluster_id in cluster_ids}
        copy.kinds = self.kinds.copy(indexes)  # not before the indexes, which number new kinds
        for cluster_id, index in indexes.items():
            copy.members[cluster_id] = dict(self.members.get(cluster_id, {}))
            for vnode_id in copy.members[cluster_id]:
                copy.capacities[vnode_id] = self.capacities[vnode_id].copy()
                copy.children[vnode_id] = dict(self.children[vnode_id])
            copy._indexes[cluster_id] = index.copy()
        return copy

    def set_capacity(self, vnode_id: str, capacity: FreeCapacity) -> None:
        """Replace the free capacity of a virtual node, for a trial."""
        if self.booked is not None:
            self.booked.kept.pop(vnode_id, None)
        self.capacities[vnode_id] = capacity
        self._refile([vnode_id])

    def promise(self, cluster_id: str, amounts: Amounts, sign: int = 1) -> None:
        """Count a promised gain of a cluster for a nominated job; ``sign`` -1: a loan, or a promise's end."""
        self.edition += 1
        mine = self.promised.setdefault(cluster_id, {})
        for name, amount in amounts.items():
            mine[name] = mine.get(name, 0) + sign * amount
        if not any(mine.values()):
            del self.promised[cluster_id]

    # ---- leases ----

    @property
    def borrowers(self) -> Collection[str]:
        """The clusters that have borrowed."""
        return self._borrowed.keys()

    def borrowed(self, cluster_id: str) -> Collection[Lease]:
        """What a cluster has borrowed."""
        return self._borrowed.get(cluster_id, {}).values()

    def put_lease(self, lease: Lease) -> None:
        """Add or replace a lease; one without amounts is over, and removed."""
        self.edition += 1
        mine = self._borrowed.setdefault(lease.borrower_id, {})
        if any(lease.amounts.values()):
            self.leases[lease.lease_id] = mine[lease.lease_id] = lease
        else:
            self.leases.pop(lease.lease_id, None)
            mine.pop(lease.lease_id, None)
        if not mine:
            del self._borrowed[lease.borrower_id]

    # ---- nodes ----

    def put_node(self, node: Node) -> None:
        """Add a node, or update its totals, labels or state."""
        total = self._totals.setdefault(node.total, node.total)  # equal nodes share their capacity's values
        node_id = node.node_id
        vnode = VNode(node_id, PRIMARY, node_id, None, cl.PHYSICAL, total, primary_labels(node), whole=True)
        before = self.nodes.get(node_id)
        if node.schedulable and (before is None or not before.schedulable or before.total != node.total):
            self.note_joined(PRIMARY, node.node_id)
        if before is not None:
            if before.total != node.total:
                if self.booked is not None:
                    self.booked.give_back(node_id)
                self.capacities[node.node_id].resize(total)
        else:
            self.capacities[node.node_id] = FreeCapacity(total)
            self.members[PRIMARY][node.node_id] = None
            self.children[node.node_id] = {}
        self.nodes[node.node_id] = node
        self.vnodes[node.node_id] = vnode
        self._note_change(PRIMARY)
        vnode_ids = [node.node_id]
        for vnode_id in vnode_ids:
            vnode_ids += self.children[vnode_id]
        if node.fences if before is None else node.fences != before.fences:
            for vnode_id in vnode_ids:
                self._fence(vnode_id)
        self._refile(vnode_ids)
        self.note_growth(vnode_ids)

    def _fence(self, vnode_id: str) -> None:
        """Fence the instances of a virtual node in which new jobs start: not inside the cluster of a job, which has
        them already."""
        vnode = self.vnodes[vnode_id]
        if self.clusters[vnode.cluster_id].kind in (cl.PRIMARY_KIND, cl.LOGICAL):
            self.capacities[vnode_id].fence(fenced(self.nodes[vnode.node_id].fences))

    def remove_node(self, node_id: str) -> None:
        """Remove a node on which no cluster has a virtual node."""
        assert not self.children[node_id], node_id
        self.edition += 1
        self._note_change(PRIMARY)
        for index in self._indexes.values():
            index.drop(node_id)
        if self.booked is not None:
            self.booked.kept.pop(node_id, None)
        del self.nodes[node_id], self.vnodes[node_id], self.capacities[node_id]
        del self.members[PRIMARY][node_id], self.children[node_id]
        self.kinds.forget(node_id)

    # ---- clusters and their virtual nodes ----

    def put_cluster(self, cluster: Cluster) -> None:
        """Add or replace a cluster."""
        self.edition += 1
        self.clusters[cluster.cluster_id] = cluster
        if cluster.booking is not None:
            self._note_booking(cluster)
        (self.removing.add if cluster.state == cl.REMOVING else self.removing.discard)(cluster.cluster_id)
        lends = any(cluster.lending_limit.values())
        (self.lenders.add if lends else self.lenders.discard)(cluster.cluster_id)
        self.members.setdefault(cluster.cluster_id, {})
        self.demand.ask(cluster.cluster_id, cluster.spec)
        if cluster.parent_id is not None:
            self.subclusters.setdefault(cluster.parent_id, {})[cluster.cluster_id] = None

    def remove_cluster(self, cluster_id: str) -> None:
        """Remove a cluster with its virtual nodes and what it borrowed; its children and processes must be gone."""
        assert not self.subclusters.get(cluster_id), cluster_id
        self.edition += 1
        self._refile([self._release(vnode_id) for vnode_id in list(self.members[cluster_id])])
        cluster = self.clusters.pop(cluster_id)
        for lease in list(self.borrowed(cluster_id)):
            self.put_lease(replace(lease, amounts={}))
        self.timed.pop(cluster_id, None)
        if self.booked is not None:
            self._keep_booked(self.booked.drop(cluster_id))
        self.removing.discard(cluster_id)
        self.lenders.discard(cluster_id)
        self.demand.put(cluster_id)
        del self.members[cluster_id]
        self.kinds.forget_cluster(cluster_id)
        for known in (self._indexes, self._sums, self._with_free, self._to_look_at):
            known.pop(cluster_id, None)
        self.subclusters.pop(cluster_id, None)
        self.inside.pop(cluster_id, None)
        if cluster.kind == cl.JOB:
            self.versions.pop(cluster_id, None)  # only another attempt of the job brings the id back
        if cluster.parent_id is not None:
            self.subclusters[cluster.parent_id].pop(cluster_id, None)

    def _note_booking(self, cluster: Cluster) -> None:
        if cluster.state == cl.REMOVING:
            self.timed.pop(cluster.cluster_id, None)
        else:
            self.timed[cluster.cluster_id] = None
        if self.booked is None:
            if cluster.state != cl.BOOKED:
                return
            from vctl.core.bookings import BookedPlaces  # here, because few ledgers have a booking

            self.booked = BookedPlaces(self.capacities)
        self._keep_booked(self.booked.put(cluster))

    def _keep_booked(self, vnode_ids: Collection[str]) -> None:
        """Keep the places of bookings on virtual nodes on which they have changed."""
        if vnode_ids:
            there = [vnode_id for vnode_id in sorted(vnode_ids) if vnode_id in self.vnodes]
            self._refile(there)
            self.note_growth(there)
        if self.booked is not None and not self.booked.clusters:
            self.booked = None

    def put_in_force(self, cluster_ids: Collection[str] | None, returned_on: Returns | None = None) -> None:
        """Keep the places of these bookings alone (None: of all), less what comes back in time. That is no growth."""
        if (booked := self.booked) is not None:
            booked.in_force, booked.returned_on = cluster_ids, returned_on
            self._refile([vnode_id for vnode_id in booked.on if vnode_id in self.vnodes])

    @contextmanager
    def bookings_in_force(
        self, cluster_ids: Collection[str], returned_on: Returns | None = None
    ) -> Iterator[None]:
        """Like ``put_in_force``, inside the block."""
        if (booked := self.booked) is None:
            yield
            return
        before = booked.in_force, booked.returned_on
        self.put_in_force(cluster_ids, returned_on)
        try:
            yield
        finally:
            self.put_in_force(*before)

    def set_primary_queue(self, policy: QueuePolicy) -> None:
        """Set the queue policy of the primary cluster."""
        self.clusters[PRIMARY] = replace(self.clusters[PRIMARY], queue=policy)

    def can_assign(self, vnode: VNode) -> bool:
        """Whether exactly the allocation of ``vnode`` is free in its parent virtual node."""
        capacity = self.capacities.get(vnode.parent_id or "")
        return capacity is not None and capacity.fits_exactly(vnode.allocation)

    def rearrange(
        self, removed: Sequence[str], placed: Sequence[VNode], /, *, for_start: bool = False
    ) -> None:
        """Release virtual nodes, and place or change others, all at once. Applied again, it does nothing.

        What lies inside goes before what is around it, and comes after it, in whatever order they are given.
        """
        gone, stay = {one: self.vnodes[one] for one in removed if one in self.vnodes}, list[VNode]()
        changed: dict[str, VNode] = {}
        for vnode_id, vnode in {vnode.vnode_id: vnode for vnode in placed}.items():  # the last step of each
            old = self.vnodes.get(vnode_id)
            if old == vnode and vnode_id not in gone:
                continue
            changed[vnode_id] = vnode
            if old is None or vnode_id in gone:
                continue
            if (old.parent_id, old.node_id) == (vnode.parent_id, vnode.node_id):
                stay.append(old)
            else:
                gone[vnode_id] = old  # the same id comes again elsewhere
        for old in reversed(self._outer_first(gone)):
            self.release(old.vnode_id)
        for old in stay:  # give back first: one may get what another gives back
            self.capacities[old.parent_id or ""].give_back(old.allocation)
        for vnode in self._outer_first(changed):
            if vnode.vnode_id in self.vnodes:
                self._resize(vnode, for_start=for_start)
            else:
                self.assign(vnode, for_start=for_start)

    def _outer_first(self, vnodes: Mapping[str, VNode]) -> list[VNode]:
        def depth(vnode: VNode) -> int:
            parent = vnodes.get(vnode.parent_id or "")
            return 0 if parent is None else 1 + depth(parent)

        return list(vnodes.values()) if len(vnodes) < 2 else sorted(vnodes.values(), key=depth)

    def assign(self, vnode: VNode, *, for_start: bool = False) -> None:
        """Place a virtual node in its parent's. ``for_start``: for one job, so no node counts as joined."""
        self.assign_all((vnode,), for_start=for_start)

    def assign_all(self, vnodes: Iterable[VNode], *, for_start: bool = False) -> None:
        """Place many virtual nodes in their parents' virtual nodes."""
        made, refiled = dict[str, list[VNode]](), list[str]()
        for vnode in vnodes:
            vnode_id, parent_id = vnode.vnode_id, vnode.parent_id or ""
            self._take(parent_id, vnode.node_id, vnode.allocation)
            self.vnodes[vnode_id], self.capacities[vnode_id] = vnode, FreeCapacity(vnode.allocation)
            self.children[vnode_id], self.children[parent_id][vnode_id] = {}, None
            if self.nodes[vnode.node_id].fences:
                self._fence(vnode_id)
            made.setdefault(vnode.cluster_id, []).append(vnode)
            refiled += (vnode_id, parent_id)
        for cluster_id, some in made.items():
            self.members[cluster_id].update(ids := dict.fromkeys([vnode.vnode_id for vnode in some]))
            self.grown.setdefault(cluster_id, set()).update(ids)
            if not for_start:
                self.joined.setdefault(cluster_id, set()).update([vnode.node_id for vnode in some])
            self._note_membership(next((vnode for vnode in some if vnode.whole), some[0]))
        self._refile(refiled)

    def resize(self, vnode: VNode, *, for_start: bool = False) -> None:
        """Change a (flexible) virtual node in place; its gain must be free in the parent's virtual node."""
        old, parent_id = self.vnodes[vnode.vnode_id], vnode.parent_id or ""
        assert parent_id == old.parent_id, (vnode, old)
        self.capacities[parent_id].give_back(old.allocation)
        self._resize(vnode, for_start=for_start)

    def _resize(self, vnode: VNode, *, for_start: bool) -> None:
        """Like ``resize``, after the old allocation was given back to the parent."""
        old, parent_id = self.vnodes[vnode.vnode_id], vnode.parent_id or ""
        self._take(parent_id, vnode.node_id, vnode.allocation)
        if self.booked is not None:
            self.booked.give_back(vnode.vnode_id)
        self.capacities[vnode.vnode_id].resize(vnode.allocation)
        self.vnodes[vnode.vnode_id] = vnode
        if self.nodes[vnode.node_id].fences:
            self._fence(vnode.vnode_id)  # it may have got a fenced instance, or lost one
        self._refile((parent_id, vnode.vnode_id))
        self.note_growth((parent_id, vnode.vnode_id))
        self._note_membership(vnode)
        if not for_start and not rs.within(vnode.allocation.amounts, old.allocation.amounts):
            self.note_joined(vnode.cluster_id, vnode.node_id)

    def release(self, vnode_id: str) -> None:
        """Give a virtual node back to its parent; nothing may lie in it any more."""
        self._refile([self._release(vnode_id)])

    def _release(self, vnode_id: str) -> str:
        """Like ``release``, without refiling the parent's virtual node; returns its id."""
        vnode = self.vnodes[vnode_id]
        assert vnode.parent_id is not None
        assert not self.children[vnode_id], vnode
        if self.booked is not None:
            self.booked.give_back(vnode_id)
        assert self.capacities[vnode_id].is_unheld(), (vnode, self.capacities[vnode_id].free)
        if index := self._indexes.get(vnode.cluster_id):
            index.drop(vnode_id)
        if (some := self._to_look_at.get(vnode.cluster_id)) is not None:
            some[vnode_id] = None
        self.capacities[vnode.parent_id].give_back(vnode.allocation)
        del self.vnodes[vnode_id], self.capacities[vnode_id], self.children[vnode_id]
        self.kinds.forget(vnode_id)
        del self.members[vnode.cluster_id][vnode_id], self.children[vnode.parent_id][vnode_id]
        self.note_growth((vnode.parent_id,))
        self._note_membership(vnode)
        return vnode.parent_id

    def note_joined(self, cluster_id: str, node_id: str) -> None:
        """Note that a physical node joined a cluster, or that the cluster got more of it."""
        self.joined.setdefault(cluster_id, set()).add(node_id)

    # ---- processes ----

    def charge(self, run_id: str, vnode_id: str, allocation: Allocation) -> None:
        """Charge what a process holds on a virtual node."""
        self._take(vnode_id, self.vnodes[vnode_id].node_id, allocation)
        self.charges[run_id] = (vnode_id, allocation)
        self.homes[vnode_id] = self.homes.get(vnode_id, 0) + 1
        self._refile([vnode_id])

    def discharge(self, run_id: str) -> None:
        """Give back what a process held; an unknown run held nothing."""
        if charge := self.charges.pop(run_id, None):
            vnode_id, allocation = charge
            self.capacities[vnode_id].give_back(allocation)
            self.homes[vnode_id] -= 1
            if not self.homes[vnode_id]:
                del self.homes[vnode_id]
            self._refile([vnode_id])
            self.note_growth((vnode_id,))

    # ---- views ----

    def index(self, cluster_id: str) -> SlotIndex:
        """The index of a cluster's schedulable virtual nodes as they are now; ask again after a change."""
        if (index := self._indexes.get(cluster_id)) is None:
            index = self._indexes[cluster_id] = SlotIndex(self._indexes_made)
            self._indexes_made += 1
            index.unfiled.update(self.members.get(cluster_id, {}))
        if index.unfiled:
            self.file(index, {vnode_id: self.capacities[vnode_id] for vnode_id in index.unfiled})
            index.unfiled.clear()
        return index

    def with_free(self, cluster_id: str) -> Collection[str]:
        """The virtual nodes of a cluster that have anything free, be it cores alone, on whatever nodes."""
        if (known := self._with_free.get(cluster_id)) is None:
            known = self._with_free[cluster_id] = {}
            self._to_look_at[cluster_id] = dict(self.members.get(cluster_id, {}))
        changed = self._to_look_at[cluster_id]
        for vnode_id in changed:
            capacity = self.capacities.get(vnode_id)
            if capacity is not None and (capacity.cores or capacity.has_free()):
                known[vnode_id] = None
            else:
                known.pop(vnode_id, None)
        changed.clear()
        return known

    def slots(self, cluster_id: str) -> Iterator[VNode]:
        """All virtual nodes of a cluster, by id."""
        return (self.vnodes[vnode_id] for vnode_id in sorted(self.members.get(cluster_id, ())))

    def ranked(self, cluster_id: str) -> list[VNode]:
        """All virtual nodes of a cluster by rank: the members of a gang in order, and the order of packing."""
        vnodes = map(self.vnodes.__getitem__, self.members.get(cluster_id, ()))
        return sorted(vnodes, key=lambda vnode: (vnode.rank, vnode.vnode_id))

    def upward(self, cluster_id: str) -> list[Cluster]:
        """A cluster and its ancestors, nearest first, without the primary."""
        cluster = self.clusters.get(cluster_id)
        return [cluster, *self.upward(cluster.parent_id)] if cluster and cluster.parent_id is not None else []

    def below(self, cluster_id: str) -> list[str]:
        """All clusters below one, parents first."""
        for below_id in (below := sorted(self.subclusters.get(cluster_id, ()))):  # grows on the way
            below += sorted(self.subclusters.get(below_id, ()))
        return below

    def total(self, cluster_id: str) -> Amounts:
        """The total of a cluster on nodes that are not lost, cached until virtual nodes or nodes change."""
        known, version = self._sums.get(cluster_id), self.capacity(cluster_id)
        if known is None or known[0] != version:
            vnodes = (self.vnodes[vnode_id] for vnode_id in self.members.get(cluster_id, ()))
            living = (v.allocation.amounts for v in vnodes if self.nodes[v.node_id].state not in LOST)
            known = self._sums[cluster_id] = (version, rs.total(living))
        return known[1]

    def available(self, cluster_id: str) -> dict[str, int]:
        """The free amounts of a cluster on schedulable nodes."""
        return rs.total(
            {name: max(amount, 0) * len(group.ids) for name, amount in group.capacity.free.items()}
            for group in self.index(cluster_id).classes.values()
        )

    def _note_membership(self, vnode: VNode) -> None:
        self._note_change(vnode.cluster_id)
        cluster = self.clusters.get(vnode.cluster_id)
        if vnode.whole and cluster and cluster.kind == cl.LOGICAL and cluster.parent_id is not None:
            self._note_change(cluster.parent_id)  # whole nodes leave the parent's index

    def capacity(self, cluster_id: str) -> tuple[int, int]:
        """A value that changes whenever the virtual nodes of a cluster change, or the state of any node."""
        return self.versions.get(cluster_id, 0), self.versions.get(PRIMARY, 0)

    def _note_change(self, cluster_id: str) -> None:
        self.versions[cluster_id] = self.versions.get(cluster_id, 0) + 1
        cluster = self.clusters.get(cluster_id)
        if cluster is not None and cluster.kind == cl.JOB and (parent_id := cluster.parent_id) is not None:
            self.inside[parent_id] = self.inside.get(parent_id, 0) + 1

    def _take(self, slot_id: str, node_id: str, allocation: Allocation) -> None:
        """Take an allocation from a virtual node. On a node that shrank, it may exceed what is free."""
        if self.booked is not None:
            self.booked.give_back(slot_id)
        capacity = self.capacities[slot_id]
        capacity.take_beyond(allocation) if self.nodes[node_id].shrunk else capacity.take_decided(allocation)

    def note_growth(self, vnode_ids: Iterable[str]) -> None:
        """Note that something came free on these virtual nodes, so that waiting work is judged anew."""
        for vnode_id in filter(self.vnodes.__contains__, vnode_ids):
            self.grown.setdefault(self.vnodes[vnode_id].cluster_id, set()).add(vnode_id)

    def _refile(self, vnode_ids: Iterable[str]) -> None:
        """Let the next use of the index file these virtual nodes anew; until then they may change often."""
        self.edition += 1
        looks, booked = self._to_look_at, self.booked
        for vnode_id in vnode_ids:
            if booked is not None and vnode_id in booked.on:
                booked.keep(vnode_id)
            cluster_id = self.vnodes[vnode_id].cluster_id
            if (index := self._indexes.get(cluster_id)) is not None:
                index.unfiled[vnode_id] = None
            if looks and (some := looks.get(cluster_id)) is not None:
                some[vnode_id] = None

    def _has_left_the_view(self, vnode_id: str) -> bool:
        """Whether a logical cluster has all of a virtual node: even work without a request is kept out."""
        for child in map(self.vnodes.__getitem__, self.children[vnode_id]):
            is_whole = child.whole and self.clusters[child.cluster_id].kind == cl.LOGICAL
            if is_whole or any(child.allocation.amounts.values()):
                return is_whole  # if one child holds a part, no other child holds all of it
        return False

    def file(
        self, index: SlotIndex, free: Mapping[str, FreeCapacity], states: Collection[str] = (ALIVE,)
    ) -> None:
        """File virtual nodes with these free capacities; drop those whose node is in none of ``states``."""
        index.file({vnode_id: self._filed(vnode_id, free[vnode_id], states) for vnode_id in free})

    def index_with(self, cluster_id: str, capacities: Mapping[str, FreeCapacity]) -> SlotIndex:
        """A copy of a cluster's index in which some virtual nodes have these free capacities."""
        index = self.index(cluster_id).copy()
        self.file(index, capacities)
        return index

    def _filed(self, vnode_id: str, capacity: FreeCapacity, states: Collection[str]) -> Filed | None:
        """The index entry of a virtual node; None if it takes no work."""
        vnode = self.vnodes[vnode_id]
        node = self.nodes[vnode.node_id]
        if node.state not in states or (
            not any(capacity.free.values()) and self._has_left_the_view(vnode_id)
        ):
            return None
        kind = self.kinds.of(vnode, node)
        return vnode.node_id, vnode.labels, kind.number, kind.template_id, capacity
