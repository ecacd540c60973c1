"""Keeps the nodes of the tables in step with those of the Ray cluster: they join, and they die (sections 3 and 12).

A node has the id that Ray gave it, so one that comes back is another node. All is written as commands write it, through
a store of its own: the scheduler follows it like any change of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vctl.core import labels as lb
from vctl.core.nodes import LOST, RAY, Node
from vctl.core.resources import SCALE, whole_node
from vctl.daemon.trouble import say
from vctl.errors import BadSpec, Conflict
from vctl.ops.nodes import template_of
from vctl.store import nodes as table
from vctl.store import observed
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.runtime.on_ray.runtime import RayRuntime
    from vctl.runtime.on_ray.wire import RayNode
    from vctl.runtime.protocol import Runtime

AUTHOR = "ray"
_TYPE = "ray.io/node-group"


def check(store: Store, *, on_ray: bool) -> None:
    """Refuse a state directory whose nodes are not those of the runtime, and remember which it has. Raises Conflict."""
    alive = [row for row in table.all_rows(store) if row["state"] not in LOST]
    others = [row["node_id"] for row in alive if (row["source"] == RAY) != on_ray]
    if others and on_ray:
        raise Conflict(
            f"{store.home} has nodes that are not of a Ray cluster: {', '.join(others[:3])}",
            fix="remove them with `vctl node remove`, or use a state directory for Ray alone (--home)",
        )
    if others:
        raise Conflict(
            f"{store.home} has nodes of a Ray cluster, such as {others[0]}",
            fix="start `vctl daemon --ray ADDRESS`, or give them up with `vctl node kill`",
        )
    if bool(store.recall(RAY)) != on_ray:
        with store.transaction():
            observed.remember(store, RAY, on_ray)


def of(runtime: Runtime, home: Path, config: Config) -> RayNodes | None:
    """What keeps the nodes in step, where the runtime is that of a Ray cluster. Raises BadSpec."""
    if not config.get("ray"):
        return None
    if config.get("provider"):
        raise BadSpec(
            "provider: a node provider makes no nodes of a Ray cluster",
            fix="leave it out; Ray's autoscaler adds nodes by itself",
        )
    from vctl.runtime.on_ray.runtime import RayRuntime

    assert isinstance(runtime, RayRuntime)
    runtime.say = say
    return RayNodes(home, runtime, config.get("unit_resources"))


class RayNodes:
    """The nodes of one Ray cluster in the tables of one state directory."""

    def __init__(self, home: Path, runtime: RayRuntime, units: frozenset[str]) -> None:
        self.home, self.runtime, self.units = home, runtime, units

    def connect(self) -> None:
        """Wait for Ray, and take over its nodes. Raises Unreachable."""
        self.runtime.connect()
        self.look_after()

    def look_after(self) -> None:
        """Write what has changed."""
        if not self.runtime.nodes_changed or self.runtime.nodes is None:
            return
        self.runtime.nodes_changed = False
        found = self.runtime.nodes
        with Store.open(self.home) as store, store.transaction():
            known = {row["node_id"]: row["state"] for row in table.all_rows(store) if row["source"] == RAY}
            for one in found.values():
                if one.node_id not in known and one.amounts and not one.death:
                    table.insert(store, node_of(one, self.units))
            for node_id, state in known.items():
                death = found[node_id].death if node_id in found else "Ray does not know it any more"
                if death and state not in LOST:
                    table.move(store, node_id, "die", reason=death, author=AUTHOR)


def node_of(one: RayNode, units: frozenset[str]) -> Node:
    """A node of Ray as a node of the tables. Its type is the one that Ray's autoscaler gave it, else its size."""
    whole = [name for name in units if one.amounts.get(name, 0) % SCALE == 0]
    labels = {
        key: text
        for key, text in one.labels.items()
        if key not in lb.OWN and lb.key_problem(key) is None and lb.value_problem(text) is None
    }
    template = labels.get(_TYPE) or template_of(one.amounts)
    return Node(one.node_id, template, whole_node(one.amounts, whole), one.address, labels, RAY)
