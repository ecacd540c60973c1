"""Changes of objects: made, lost, gone with their job. Copies come with the start of the task that uses them."""

from __future__ import annotations

from vctl.engine.changes.change import PublicEvent, change


@change
class ObjectCreated:
    """An object is there, of so many bytes: made by a task, or (None) put there by the entrypoint."""

    at: int
    job_id: int
    name: str
    node_id: str
    cluster_id: str
    size: int
    task_id: str | None = None

    def public_event(self) -> PublicEvent:
        data = {"node": self.node_id, "size": self.size, "task": self.task_id}
        return PublicEvent("object.created", "object", self.name, self.cluster_id, self.job_id, data)


@change
class ObjectLost:
    """The copy of an object on a node is gone, or (None) all copies. ``silent``: another copy is left."""

    job_id: int
    name: str
    node_id: str | None = None
    cluster_id: str | None = None
    silent: bool = False

    def public_event(self) -> PublicEvent:
        """The public event, unless it is silent."""
        data = {} if self.node_id is None else {"node": self.node_id}
        kind = "" if self.silent else "object.lost"
        return PublicEvent(kind, "object", self.name, self.cluster_id, self.job_id, data)


@change
class ObjectsDropped:
    """The objects of a job, so many copies, go with it, and who was to make or use them is forgotten."""

    job_id: int
    count: int

    def public_event(self) -> PublicEvent:
        """The public event, if there were any."""
        kind = "objects.dropped" if self.count else ""
        return PublicEvent(kind, "objects", str(self.job_id), None, self.job_id, {"count": self.count})
