"""The index of virtual nodes by class."""

from __future__ import annotations

from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING, Node
from vctl.core.resources import CPU, SCALE, whole_node

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
    twin = ledger.copy()
    for one in (twin, ledger):
        assert [group.ids for group in one.index(PRIMARY).classes.values()] == [["a", "c"]]
