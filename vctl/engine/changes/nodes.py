"""Changes of nodes, and of the requests to a node provider for more or fewer of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.nodes import Fence, Node, NodeRequest
from vctl.core.values import replace
from vctl.engine.changes.change import Change, PublicEvent, change

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class NodeAdded(Change):
    """A node was added."""

    at: int
    node: Node
    heartbeat_timeout_s: float | None = None
    devices: str = "{}"
    """The devices of the machine, as JSON."""

    def public_event(self) -> PublicEvent:
        data = {"template": self.node.template_id, "source": self.node.source}
        return PublicEvent("node.added", "node", self.node.node_id, None, None, data)

    def apply(self, state: SchedulerState) -> None:
        state.put_node(self.node)


@change
class NodeMoved(Change):
    """A node is in a new state; ``author`` and ``reason`` say who moved it and why."""

    at: int
    node_id: str
    move: str
    state: str
    reason: str | None = None
    author: str | None = None

    def public_event(self) -> PublicEvent:
        data = {"reason": self.reason, "author": self.author}
        return PublicEvent(f"node.{self.state.lower()}", "node", self.node_id, None, None, data)

    def apply(self, state: SchedulerState) -> None:
        if (node := state.ledger.nodes.get(self.node_id)) is not None:
            state.put_node(replace(node, state=self.state, reason=self.reason, author=self.author))


@change
class NodeChanged(Change):
    """A node has other totals, labels or another template. ``settled``: what it holds fits in again."""

    node: Node
    settled: bool = False

    def public_event(self) -> PublicEvent:
        return PublicEvent("node.settled" if self.settled else "node.updated", "node", self.node.node_id)

    def apply(self, state: SchedulerState) -> None:
        if self.node.node_id in state.ledger.nodes:
            state.put_node(self.node)


@change
class DeviceFenced(Change):
    """A fence around an instance of a node began, changed, or ended (``fence`` is None). ``node`` has them all."""

    at: int
    node: Node
    name: str
    number: int
    fence: Fence | None = None

    def public_event(self) -> PublicEvent:
        data: dict[str, object] = {"node": self.node.node_id, "resource": self.name, "instance": self.number}
        if (fence := self.fence) is not None:
            data |= {"why": fence.why, "pids": list(fence.pids), "user": fence.owner, "memory": fence.memory}
            data |= {"left_by": fence.of} if fence.of else {}
        kind = "device.released" if fence is None else "device.fenced"
        return PublicEvent(kind, "device", f"{self.node.node_id}/{self.number}", None, None, data)

    def apply(self, state: SchedulerState) -> None:
        if (node := state.ledger.nodes.get(self.node.node_id)) is not None:
            state.put_node(replace(node, fences=self.node.fences))


@change
class NodeRemoved(Change):
    """A node on which nothing lies was removed."""

    node_id: str

    def public_event(self) -> PublicEvent:
        return PublicEvent("node.removed", "node", self.node_id)

    def apply(self, state: SchedulerState) -> None:
        state.changed.nodes.add(self.node_id)
        if self.node_id in state.ledger.nodes:
            state.ledger.remove_node(self.node_id)
            for ids in (state.dead_nodes, state.draining_nodes, state.shrunk_nodes):
                ids.discard(self.node_id)


@change
class MachinesAsked(Change):
    """A node provider is to make machines, or to end some."""

    request: NodeRequest

    def public_event(self) -> PublicEvent:
        return _request_event(f"provider.{self.request.action}", self.request)

    def apply(self, state: SchedulerState) -> None:
        state.node_requests[self.request.request_id] = self.request


@change
class MachinesFailed(Change):
    """One more attempt failed: ``request`` has the number of attempts and the message of this one."""

    request: NodeRequest

    def public_event(self) -> PublicEvent:
        request = self.request
        return _request_event("provider.failed", request, attempt=request.attempts, message=request.message)

    def apply(self, state: SchedulerState) -> None:
        state.node_requests[self.request.request_id] = self.request


@change
class MachinesDone(Change):
    """A request was done, with these nodes, or was given up."""

    request: NodeRequest
    nodes: tuple[str, ...] = ()

    def public_event(self) -> PublicEvent:
        return _request_event("provider.done", self.request, nodes=list(self.nodes))

    def apply(self, state: SchedulerState) -> None:
        state.node_requests.pop(self.request.request_id, None)


def _request_event(kind: str, request: NodeRequest, **more: object) -> PublicEvent:
    data = {"action": request.action, "template": request.template, "nodes": list(request.nodes), **more}
    return PublicEvent(kind, "provider", request.request_id, None, None, data)
