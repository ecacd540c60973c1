"""The ledger under any sequence of changes: the conservation rules, recomputed by code that shares nothing with it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contents import plain
from tests.specification import spec
from vctl.core.clusters import FIXED, FLEXIBLE, LOGICAL, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.jobs import Run, RunningJob
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DEAD, DRAINING, Node
from vctl.core.resources import CPU, GPU, MEMORY, SCALE, Allocation, FreeCapacity, whole_node
from vctl.engine.changes import ClusterAdded, JobStarted, LeaseGranted, VNodesChanged
from vctl.ops.prove import prove
from vctl.scheduler.elasticity import above_its_minimum
from vctl.store import clusters, nodes
from vctl.store.database import Tables, apply_migrations
from vctl.store.store import Store

pytestmark = spec("5.conservation")

MACHINE = {CPU: 6 * SCALE, GPU: 2 * SCALE, MEMORY: 16 * SCALE}
DEEPEST = 5
TABLES = ("nodes", "clusters", "vnodes", "leases", "jobs", "runs", "events")

amounts = st.fixed_dictionaries(
    {},
    optional={
        CPU: st.sampled_from([SCALE // 2, SCALE, 2 * SCALE, 3 * SCALE]),
        GPU: st.sampled_from([SCALE // 4, SCALE // 2, SCALE, 2 * SCALE]),
        MEMORY: st.sampled_from([SCALE, 5 * SCALE]),
    },
)


class FakeStore(Store):
    """The real tables in memory; nobody is told of a commit."""

    def _announce(self, entry: int = -1) -> None:
        return


def empty_store(home: Path) -> Store:
    db = sqlite3.connect(":memory:", isolation_level=None, factory=Tables)
    db.row_factory = sqlite3.Row
    apply_migrations(db)
    return FakeStore(home, db)


def write(store: Store, ledger: Ledger) -> None:
    """A ledger as rows, replacing what was there."""
    with store.transaction():
        for table in TABLES:
            store.db.execute(f"DELETE FROM {table}")
        for node in ledger.nodes.values():
            nodes.insert(store, node)
        for cluster in ledger.clusters.values():
            if cluster.cluster_id != PRIMARY:
                store.emit(ClusterAdded(1, cluster))
        for vnode in ledger.vnodes.values():
            if vnode.parent_id is not None:
                store.emit(VNodesChanged(placed=(vnode,)))
        for number, cluster in enumerate(ledger.clusters.values(), 1):
            over = above_its_minimum(ledger, cluster) if cluster.kind == LOGICAL else {}
            if over:  # what a cluster has above its minimum is borrowed
                store.emit(LeaseGranted(Lease(number, cluster.cluster_id, cluster.parent_id or "", over, 1)))
        for run_id, (vnode_id, allocation) in ledger.charges.items():
            vnode = ledger.vnodes[vnode_id]
            job_id = int(run_id)
            columns = {
                "job_id": job_id, "submission_id": f"j{run_id}", "parent_cluster_id": vnode.cluster_id,
                "shares_parent": 1, "priority": 0, "status": "PENDING", "user": "", "metadata": "{}",
                "command_id": plain(store.db), "grace_s": 3, "submitted_at": 1,
            }  # fmt: skip
            marks = ", ".join("?" * len(columns))
            store.db.execute(
                f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values())
            )
            run = Run(run_id, job_id, 1, 0, vnode.cluster_id, vnode_id, vnode.node_id, allocation)
            job = RunningJob(job_id, PRIMARY, vnode.cluster_id, run_id, "", None, f"j{run_id}", attempt=1)
            store.emit(JobStarted(1, job, (vnode.node_id,), (run,)))


class Tree(RuleBasedStateMachine):
    """Assign, release, resize, charge, discharge, nodes that change state, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.home = TemporaryDirectory()
        self.store = empty_store(Path(self.home.name))
        self.ledger = Ledger()
        self.made = 0
        for name in ("a", "b", "c"):
            self.ledger.put_node(Node(name, "6c", whole_node(MACHINE)))
        self.ledger.index(PRIMARY)

    def teardown(self) -> None:
        self.store.close()
        self.home.cleanup()

    def number(self) -> int:
        self.made += 1
        return self.made

    def depth(self, cluster_id: str) -> int:
        parent = self.ledger.clusters[cluster_id].parent_id
        return 0 if parent is None else 1 + self.depth(parent)

    def pick(self, data: st.DataObject, things: list[str]) -> str:
        return data.draw(st.sampled_from(sorted(things)))

    @rule(data=st.data())
    def make_cluster(self, data: st.DataObject) -> None:
        parent = self.pick(data, [c for c in self.ledger.clusters if self.depth(c) < DEEPEST])
        cluster_id = f"c{self.number()}"
        self.ledger.put_cluster(Cluster(cluster_id, parent, LOGICAL, ClusterSpec()))
        self.ledger.index(cluster_id)

    @precondition(lambda self: len(self.ledger.clusters) > 1)
    @rule(data=st.data(), request=amounts, flexible=st.booleans())
    def assign(self, data: st.DataObject, request: dict[str, int], flexible: bool) -> None:
        cluster = self.ledger.clusters[self.pick(data, [c for c in self.ledger.clusters if c != PRIMARY])]
        assert cluster.parent_id is not None
        above = list(self.ledger.members[cluster.parent_id])
        if not above:
            return
        parent = self.ledger.vnodes[self.pick(data, above)]
        own = [self.ledger.vnodes[v] for v in self.ledger.members[cluster.cluster_id]]
        if flexible and any(v.kind == FLEXIBLE and v.node_id == parent.node_id for v in own):
            return
        capacity = self.ledger.capacities[parent.vnode_id].copy()
        if not capacity.fits(request):
            # what does not fit cannot be assigned, whichever instances it names
            bare = VNode("x", cluster.cluster_id, parent.node_id, parent.vnode_id, FIXED, Allocation(request))
            assert not self.ledger.can_assign(bare) or GPU in request
            return
        vnode = VNode(
            f"{cluster.cluster_id}/{self.number()}", cluster.cluster_id, parent.node_id, parent.vnode_id,
            FLEXIBLE if flexible else FIXED, capacity.take(request),
        )  # fmt: skip
        assert self.ledger.can_assign(vnode)
        self.ledger.assign(vnode)

    def leaves(self) -> list[str]:
        return [
            v
            for v, vnode in self.ledger.vnodes.items()
            if vnode.parent_id and not self.ledger.children[v] and v not in self.ledger.homes
        ]

    @precondition(lambda self: self.leaves())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        vnode = self.ledger.vnodes[self.pick(data, self.leaves())]
        assert vnode.parent_id is not None
        before = dict(self.ledger.capacities[vnode.parent_id].free)
        self.ledger.release(vnode.vnode_id)
        after = self.ledger.capacities[vnode.parent_id].free
        for name, amount in vnode.allocation.amounts.items():
            assert after[name] - before[name] == amount

    @precondition(lambda self: any(v.kind == FLEXIBLE for v in self.ledger.vnodes.values()))
    @rule(data=st.data(), request=amounts)
    def resize(self, data: st.DataObject, request: dict[str, int]) -> None:
        """Grow or shrink to what is used there plus the request, if the parent has it."""
        found = [v for v, vnode in self.ledger.vnodes.items() if vnode.kind == FLEXIBLE]
        vnode = self.ledger.vnodes[self.pick(data, found)]
        assert vnode.parent_id is not None
        inside = FreeCapacity(vnode.allocation)
        mine = self.ledger.capacities[vnode.vnode_id]
        used = {n: a - mine.free.get(n, 0) for n, a in vnode.allocation.amounts.items()}
        shares = {
            n: {i: s - mine.instances[n].get(i, 0) for i, s in held.items()}
            for n, held in vnode.allocation.instances.items()
        }
        cores = inside.cores - mine.cores
        capacity = self.ledger.capacities[vnode.parent_id].copy()
        capacity.give_back(vnode.allocation)
        kept = Allocation(
            {n: a for n, a in used.items() if a},
            {n: {i: s for i, s in held.items() if s} for n, held in shares.items() if any(held.values())},
            tuple(sorted(cores)),
        )
        capacity.take_exactly(kept)
        if not capacity.fits(request):
            return
        more = capacity.take(request)
        joined: dict[str, dict[int, int]] = {n: dict(held) for n, held in kept.instances.items()}
        for name, held in more.instances.items():
            for index, share in held.items():
                joined.setdefault(name, {})[index] = joined.get(name, {}).get(index, 0) + share
        amounts_ = dict(kept.amounts)
        for name, amount in more.amounts.items():
            amounts_[name] = amounts_.get(name, 0) + amount
        allocation = Allocation(amounts_, joined, tuple(sorted({*kept.cores, *more.cores})))
        self.ledger.resize(
            VNode(vnode.vnode_id, vnode.cluster_id, vnode.node_id, vnode.parent_id, FLEXIBLE, allocation)
        )

    @precondition(lambda self: any(v.parent_id for v in self.ledger.vnodes.values()))
    @rule(data=st.data(), request=amounts)
    def charge(self, data: st.DataObject, request: dict[str, int]) -> None:
        vnode_id = self.pick(data, [v for v, vnode in self.ledger.vnodes.items() if vnode.parent_id])
        capacity = self.ledger.capacities[vnode_id].copy()
        if capacity.fits(request):
            self.ledger.charge(str(self.number()), vnode_id, capacity.take(request))

    @precondition(lambda self: self.ledger.charges)
    @rule(data=st.data())
    def discharge(self, data: st.DataObject) -> None:
        self.ledger.discharge(self.pick(data, list(self.ledger.charges)))

    @rule(data=st.data(), state=st.sampled_from([ALIVE, DRAINING, DEAD]))
    def change_node(self, data: st.DataObject, state: str) -> None:
        node = self.ledger.nodes[self.pick(data, list(self.ledger.nodes))]
        self.ledger.put_node(Node(node.node_id, node.template_id, node.total, state=state))

    @precondition(lambda self: len(self.ledger.clusters) > 1)
    @rule(data=st.data())
    def remove_cluster(self, data: st.DataObject) -> None:
        empty = [
            c
            for c in self.ledger.clusters
            if c != PRIMARY
            and not self.ledger.subclusters.get(c)
            and all(v in self.leaves() for v in self.ledger.members[c])
        ]
        if empty:
            self.ledger.remove_cluster(self.pick(data, empty))

    @invariant()
    def what_is_there_is_free_or_held(self) -> None:
        for vnode_id, capacity in self.ledger.capacities.items():
            inside = [self.ledger.vnodes[child].allocation for child in self.ledger.children[vnode_id]]
            inside += [held for where, held in self.ledger.charges.values() if where == vnode_id]
            for name, total in capacity.total.amounts.items():
                assert total == capacity.free[name] + sum(h.amounts.get(name, 0) for h in inside)
            for name, whole in capacity.total.instances.items():
                for index, total in whole.items():
                    held = sum(h.instances.get(name, {}).get(index, 0) for h in inside)
                    assert total == capacity.instances[name].get(index, 0) + held
            booked = [core for h in inside for core in h.cores]
            assert len(booked) == len(set(booked))
            assert capacity.cores == set(capacity.total.cores) - set(booked)

    @invariant()
    def the_tables_and_the_proof_from_them_agree(self) -> None:
        write(self.store, self.ledger)
        assert prove(self.store) == []
        duplicate = clusters.load_ledger(self.store)
        assert duplicate.members.keys() == self.ledger.members.keys()
        for vnode_id, capacity in self.ledger.capacities.items():
            other = duplicate.capacities[vnode_id]
            assert {**dict.fromkeys(capacity.free, 0), **other.free} == capacity.free
            assert (other.instances, other.cores) == (capacity.instances, capacity.cores)
        for cluster_id in self.ledger.members:
            kept, new = self.ledger.index(cluster_id), duplicate.index(cluster_id)
            # kinds are numbered as they are met, so only the rest of a key is the same after a load
            left, right = (sorted((k[1:], g.ids) for k, g in one.classes.items()) for one in (kept, new))
            assert left == right
            assert kept.crowded == new.crowded


TestTree = Tree.TestCase
TestTree.settings = hypothesis.settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def test_virtual_nodes_change_places_with_each_other() -> None:
    """Spec 5: virtual nodes of one change get what others of it leave, in whatever order they are named."""
    ledger = Ledger()
    for name in ("m", "n"):
        ledger.put_node(Node(name, "t", whole_node({CPU: 2 * SCALE})))
    ledger.put_cluster(Cluster("c", PRIMARY, LOGICAL, ClusterSpec()))

    def part(name: str, node: str, *cores: int) -> VNode:
        return VNode(name, "c", node, node, FLEXIBLE, Allocation({CPU: len(cores) * SCALE}, {}, cores))

    before = [part("c/0", "m", 0), part("c/1", "m", 1), part("c/2", "n", 0)]
    after = [part("c/0", "m", 0, 1), part("c/1", "n", 0, 1)]
    ledger.rearrange((), before)
    ledger.rearrange(("c/2",), after)
    assert [ledger.vnodes[one.vnode_id] for one in after] == after
    assert not any(ledger.capacities[node].free.get(CPU) for node in ("m", "n"))
    ledger.rearrange(("c/0", "c/1"), before)
    ledger.rearrange((), [part("c/1", "m"), part("c/0", "m", 0, 1)])
    ledger.rearrange((), [part("c/1", "m", 1), part("c/0", "m", 0)])
    ledger.rearrange((), [part("c/1", "m", 0), part("c/0", "m", 1)])
    assert not ledger.capacities["m"].free.get(CPU)
    assert ledger.capacities["m"].cores == frozenset()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_what_lies_inside_what_changes_changes_with_it(is_reversed: bool) -> None:
    """Spec 5: an inner virtual node leaves before the one around it, and comes after it, in whatever order."""
    ledger = Ledger()
    for name in ("m", "n"):
        ledger.put_node(Node(name, "t", whole_node({CPU: 4 * SCALE})))
    ledger.put_cluster(Cluster("c", PRIMARY, LOGICAL, ClusterSpec()))
    ledger.put_cluster(Cluster("d", "c", LOGICAL, ClusterSpec()))

    def part(name: str, around: str, node: str, *cores: int) -> VNode:
        amounts = Allocation({CPU: len(cores) * SCALE}, {}, cores)
        return VNode(name, name[0], node, around, FLEXIBLE, amounts)

    def change(removed: tuple[str, ...], *placed: VNode) -> None:
        ledger.rearrange(removed[::-1], placed[::-1]) if is_reversed else ledger.rearrange(removed, placed)
        assert [ledger.vnodes[one.vnode_id] for one in placed] == list(placed)

    change((), part("c/0", "m", "m", 0, 1), part("d/0", "c/0", "m", 0))
    change((), part("c/0", "m", "m", 2, 3), part("d/0", "c/0", "m", 2))  # as many cores, but others
    change((), part("c/0", "m", "m", 2), part("d/0", "c/0", "m"))
    change((), part("c/0", "n", "n", 0, 1, 2), part("d/0", "c/0", "n", 0, 1))
    change(("c/0",), part("c/1", "m", "m", 0, 1), part("d/0", "c/1", "m", 1))
    change(("c/1", "d/0"))
    assert all(ledger.capacities[node].is_untouched() for node in ("m", "n"))
