"""Keeps the nodes of the tables in step with a Ray cluster, whose nodes join and die (sections 3 and 12).

A node has the id that Ray gave it, so a machine that comes back is another node. This module writes through a
store of its own, as a command does, and the scheduler follows these changes like those of commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vctl.core import labels as lb
from vctl.core.nodes import LOST, MADE_BY, RAY, Node
from vctl.core.resources import MEMORY, SCALE, Amounts, whole_node
from vctl.daemon.trouble import say
from vctl.errors import BadSpec, Conflict, DiskTrouble, Unreachable, VctlError
from vctl.ops.nodes import template_of
from vctl.spec.provider_spec import NONE, parse_provider
from vctl.store import nodes as table
from vctl.store import observed
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.core.nodes import Template
    from vctl.ray.on_ray.runtime import RayRuntime
    from vctl.ray.on_ray.wire import RayNode
    from vctl.runtime.protocol import Runtime

AUTHOR = "ray"
_TYPE = "ray.io/node-group"


def check(store: Store, *, on_ray: bool) -> None:
    """Refuse a state directory with nodes of another runtime, and record its runtime. Raises Conflict."""
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
    """The ``RayNodes`` of a runtime on a Ray cluster; None for another runtime. Raises BadSpec."""
    provider = parse_provider(config.get("provider"), units=config.get("unit_resources"))
    if not config.get("ray"):
        if provider.kind == RAY:
            raise BadSpec(
                "provider.kind: ray goes with a Ray cluster", fix="start `vctl daemon --ray ADDRESS`"
            )
        return None
    if provider.kind not in (NONE, RAY):
        raise BadSpec(
            f"provider.kind: a {provider.kind} provider makes no nodes of a Ray cluster",
            fix="use the kind ray, whose nodes Ray's autoscaler makes",
        )
    from vctl.ray.on_ray.runtime import RayRuntime

    assert isinstance(runtime, RayRuntime)
    runtime.say = say
    return RayNodes(home, runtime, config.get("unit_resources"), provider.templates)


class RayNodes:
    """The nodes of one Ray cluster in the tables of one state directory."""

    def __init__(
        self, home: Path, runtime: RayRuntime, units: frozenset[str], templates: Sequence[Template] = ()
    ) -> None:
        self.home, self.runtime, self.units, self.templates = home, runtime, units, templates

    def connect(self) -> None:
        """Wait for Ray, and take over its nodes. Raises Unreachable."""
        try:
            self.runtime.connect()
        except (
            VctlError
        ):  # a directory that never had a node of Ray forgets Ray: this machine may join by itself
            with Store.open(self.home) as store, store.transaction():
                if not any(row["source"] == RAY for row in table.all_rows(store)):
                    observed.remember(store, RAY, None)
            raise
        if self.runtime.nodes is not None:
            self._write(self.runtime.nodes)

    def maintain(self) -> None:
        """Write the nodes that have changed; later if the tables cannot be written now."""
        if self.runtime.nodes_changed and self.runtime.nodes is not None:
            try:
                self._write(self.runtime.nodes)
            except (DiskTrouble, Unreachable) as error:
                say(f"the nodes of Ray are written later: {error.problem}")

    def _write(self, nodes: Mapping[str, RayNode]) -> None:
        with Store.open(self.home) as store, store.transaction():
            known = {row["node_id"]: row["state"] for row in table.all_rows(store) if row["source"] == RAY}
            for node in nodes.values():
                if node.node_id not in known and node.amounts and not node.death:
                    table.insert(store, node_of(node, self.units, self.templates))
            for node_id, state in known.items():
                death = nodes[node_id].death if node_id in nodes else "Ray does not know it any more"
                if death and state not in LOST:
                    table.move(store, node_id, "die", reason=death, author=AUTHOR)
        self.runtime.nodes_changed = False


def node_of(node: RayNode, units: frozenset[str], templates: Sequence[Template] = ()) -> Node:
    """A node of Ray as a node of the tables.

    Its template is the node group that Ray's autoscaler gave it, else a template of the same size, else its
    size.
    """
    whole = [name for name in units if node.amounts.get(name, 0) % SCALE == 0]
    labels = {
        key: text
        for key, text in node.labels.items()
        if key not in lb.OWN and lb.key_problem(key) is None and lb.value_problem(text) is None
    }
    equal = (template.name for template in templates if _size(template.resources) == _size(node.amounts))
    name = labels.get(_TYPE) or next(equal, template_of(node.amounts))
    if any(template.name == name for template in templates):
        labels[MADE_BY] = RAY
    return Node(node.node_id, name, whole_node(node.amounts, whole), node.address, labels, RAY)


def _size(amounts: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name != MEMORY}
