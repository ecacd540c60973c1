"""Changes of what a node provider was asked for."""

from __future__ import annotations

from vctl.core.nodes import NodeRequest
from vctl.engine.changes.change import PublicEvent, change


@change
class MachinesAsked:
    """A node provider is to make machines, or to end some."""

    request: NodeRequest

    def public_event(self) -> PublicEvent:
        return _of(f"provider.{self.request.action}", self.request)


@change
class MachinesFailed:
    """One more attempt that did not succeed: ``request`` has their number and the message of this one."""

    request: NodeRequest

    def public_event(self) -> PublicEvent:
        request = self.request
        return _of("provider.failed", request, attempt=request.attempts, message=request.message)


@change
class MachinesDone:
    """A request is done, or given up: with these nodes."""

    request: NodeRequest
    nodes: tuple[str, ...] = ()

    def public_event(self) -> PublicEvent:
        return _of("provider.done", self.request, nodes=list(self.nodes))


def _of(kind: str, request: NodeRequest, **more: object) -> PublicEvent:
    data = {"action": request.action, "template": request.template, "nodes": list(request.nodes), **more}
    return PublicEvent(kind, "provider", request.request_id, None, None, data)
