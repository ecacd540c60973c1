"""The index of virtual nodes by class."""

from __future__ import annotations

import random
from collections import Counter

from tests.scheduler import trees
from tests.specification import spec
from vctl.core.clusters import FLEXIBLE, PRIMARY
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING, Node
from vctl.core.resources import CPU, EMPTY, SCALE, merged, whole_node
from vctl.core.values import replace

pytestmark = spec("5.conservation")


def node(name: str, cpus: int, state: str = ALIVE) -> Node:
    """A node of some CPUs."""
    return Node(name, "t", whole_node({CPU: cpus * SCALE}), state=state)


def test_a_class_is_joined_while_its_last_node_leaves() -> None:
    """Changes gather until somebody looks: one of them may empty the class that another one joins."""
    ledger = Ledger()
    ledger.put_node(node("a", 2))
    ledger.put_node(node("b", 4))
    index = ledger.index(PRIMARY)
    ledger.put_node(node("b", 2))
    ledger.put_node(node("a", 2, DRAINING))
    assert ledger.index(PRIMARY) is index
    assert [one.ids for one in index.classes.values()] == [["b"]]
    assert index.class_of("a") is None


def test_who_looks_sees_all_changes() -> None:
    """An index that was asked for before is up to date when it is asked for again, and so is that of a copy."""
    ledger = Ledger()
    ledger.put_node(node("a", 2))
    ledger.index(PRIMARY)
    ledger.put_node(node("b", 2))
    ledger.put_node(node("c", 2))
    ledger.remove_node("b")
    duplicate = ledger.copy()
    for one in (duplicate, ledger):
        assert [group.ids for group in one.index(PRIMARY).classes.values()] == [["a", "c"]]


def test_what_has_anything_free_is_known_after_every_change() -> None:
    """Random charges, growths and returns: the virtual nodes with anything free are those that one finds by looking."""
    dice = random.Random(7)
    ledger = trees.tree("4c, 4c, 4c", "a < primary [0c]: n1~1c, n2~2c", "b < a [0c]: n1~1c")
    done: Counter[str] = Counter()
    for step in range(600):
        vnode = ledger.vnodes[dice.choice(sorted(ledger.vnodes))]
        capacity, amounts = ledger.capacities[vnode.vnode_id], {CPU: dice.choice([1, 2]) * SCALE}
        choice = dice.choice(["charge", "discharge", "grow", "shrink", "copy"])
        if choice == "charge" and capacity.fits(amounts):
            ledger.charge(f"run {step}", vnode.vnode_id, capacity.choice(amounts))
        elif choice == "discharge" and ledger.charges:
            ledger.discharge(dice.choice(sorted(ledger.charges)))
        elif (
            choice == "grow"
            and vnode.kind == FLEXIBLE
            and (above := ledger.capacities[vnode.parent_id or ""]).fits(amounts)
        ):
            ledger.resize(replace(vnode, allocation=merged(vnode.allocation, above.choice(amounts))))
        elif choice == "shrink" and vnode.cluster_id == "b" and capacity.is_untouched():
            ledger.release(vnode.vnode_id)
            ledger.assign(replace(vnode, allocation=EMPTY))
        elif choice == "copy":
            ledger = ledger.copy()
        else:
            continue
        done[choice] += 1
        for cluster_id in dice.sample(sorted(ledger.clusters), 2):
            found = {
                one.vnode_id
                for one in ledger.slots(cluster_id)
                if any(amount > 0 for amount in ledger.capacities[one.vnode_id].free.values())
            }
            assert set(ledger.with_free(cluster_id)) == found, step
    assert len(done) == 5
