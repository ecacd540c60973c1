"""Changes of nodes."""

from __future__ import annotations

from vctl.core.nodes import Node
from vctl.engine.changes.change import PublicEvent, change


@change
class NodeAdded:
    """There is another node."""

    at: int
    node: Node
    heartbeat_timeout_s: float | None = None
    devices: str = "{}"
    """What the machine has, as JSON."""

    def public_event(self) -> PublicEvent:
        data = {"template": self.node.template_id, "source": self.node.source}
        return PublicEvent("node.added", "node", self.node.node_id, None, None, data)


@change
class NodeMoved:
    """A node is in another state: its author, the reason, and the time."""

    at: int
    node_id: str
    move: str
    state: str
    reason: str | None = None
    author: str | None = None

    def public_event(self) -> PublicEvent:
        data = {"reason": self.reason, "author": self.author}
        return PublicEvent(f"node.{self.state.lower()}", "node", self.node_id, None, None, data)


@change
class NodeChanged:
    """A node has other totals, labels or another template. ``settled``: what lies on it fits into them again."""

    node: Node
    settled: bool = False

    def public_event(self) -> PublicEvent:
        return PublicEvent("node.settled" if self.settled else "node.updated", "node", self.node.node_id)


@change
class NodeRemoved:
    """A node on which nothing lies is forgotten."""

    node_id: str

    def public_event(self) -> PublicEvent:
        return PublicEvent("node.removed", "node", self.node_id)
