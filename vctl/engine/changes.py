"""The changes of the state: frozen values with all that a rule may read afterwards, absolute, never a difference.

Each knows its public event. One without an event is in the journal for schedulers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from vctl.core.clusters import Cluster, VNode
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.nodes import Node
from vctl.core.resources import Amounts


class Told(NamedTuple):
    """What the journal says of a change beside the change: its public event, unless the kind is empty."""

    kind: str
    object_kind: str
    object_id: str
    cluster_id: str | None = None
    job_id: int | None = None
    data: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Process:
    """How to find the process of a run again."""

    pid: int
    pid_start: int
    boot_id: str
    started_at: int


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A job runs from now on: with its own cluster or in its parent's, and with all of its processes."""

    at: int
    job: RunningJob
    nodes: tuple[str, ...]
    held: Amounts
    runs: tuple[Run, ...]
    """The main process first; those of a gang by rank."""
    cluster: Cluster | None = None
    vnodes: tuple[VNode, ...] = ()

    def told(self) -> Told:
        """The public event."""
        job = self.job
        data = {"attempt": job.attempt, "nodes": list(self.nodes)}
        return Told("job.started", "job", job.submission_id, job.cluster_id, job.job_id, data)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A process is to be started: that of a task."""

    at: int
    run: Run

    def told(self) -> Told:
        """For schedulers alone: the event is its task's."""
        return Told("", "run", self.run.run_id)


@dataclass(frozen=True, slots=True)
class RunAssigned:
    """A run of a version that assigned none to a number is carried out by this one."""

    run_id: str
    supervisor: int

    def told(self) -> Told:
        """For schedulers alone."""
        return Told("", "run", self.run_id)


@dataclass(frozen=True, slots=True)
class RunSeen:
    """A process was seen to run."""

    run_id: str
    process: Process

    def told(self) -> Told:
        """For schedulers alone."""
        return Told("", "run", self.run_id)


@dataclass(frozen=True, slots=True)
class RunStopping:
    """A process is to be ended, for this reason; what was said first stays."""

    run_id: str
    reason: str

    def told(self) -> Told:
        """For schedulers alone."""
        return Told("", "run", self.run_id)


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A process is over, and everything that it started is gone. ``process`` where it was not seen before."""

    at: int
    run_id: str
    exit_code: int | None
    message: str | None
    process: Process | None = None

    def told(self) -> Told:
        """For schedulers alone: the event is its job's or its task's."""
        return Told("", "run", self.run_id)


@dataclass(frozen=True, slots=True)
class JobEnding:
    """The entrypoint of a job has ended like this, and what it started is still being ended."""

    job_id: int
    outcome: tuple[str, str | None, int | None, str | None]
    """Status, reason, exit code, message."""

    def told(self) -> Told:
        """For schedulers alone."""
        return Told("", "job", str(self.job_id), None, self.job_id)


@dataclass(frozen=True, slots=True)
class ClusterRemoved:
    """A cluster is gone with its virtual nodes and leases; what it lent is lent by its parent from now on."""

    cluster_id: str
    returned: tuple[int, ...] = ()
    """Leases that end with it."""
    lent: tuple[int, ...] = ()
    """Leases of which it was the lender."""
    lender_id: str | None = None
    """The lender of these now."""
    silent: bool = False
    """Whether the event of a job says it already."""

    def told(self) -> Told:
        """The public event, unless it is silent."""
        return Told("" if self.silent else "cluster.removed", "cluster", self.cluster_id, self.cluster_id)


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job is over. ``move``: ``end``, or ``stop`` or ``reject`` for one that waited."""

    at: int
    job_id: int
    submission_id: str
    array_id: str | None
    cluster_id: str | None
    """The cluster that its event names."""
    move: str
    status: str
    reason: str | None
    message: str | None
    exit_code: int | None
    removed: ClusterRemoved | None = None
    """Its own cluster, where nothing lives in it any more."""

    def told(self) -> Told:
        """The public event."""
        data: dict[str, object] = {"status": self.status, "exit_code": self.exit_code}
        if self.reason:
            data["reason"] = self.reason
        return Told("job.ended", "job", self.submission_id, self.cluster_id, self.job_id, data)


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """A job that ran waits again, for another attempt; its cluster is gone."""

    job: PendingJob
    reason: str | None
    message: str | None
    preemptions: int
    """How many of its attempts were ended for others."""
    data: Mapping[str, Any]

    def told(self) -> Told:
        """The public event."""
        job = self.job
        return Told("job.requeued", "job", job.submission_id, job.parent_id, job.job_id, self.data)


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A running job is to end. The first request keeps its time and reason, the last one its grace and words."""

    at: int
    job_id: int
    submission_id: str
    reason: str
    grace_s: float | None
    message: str | None
    silent: bool = False
    """Whether the event of its array says it already."""

    def told(self) -> Told:
        """The public event, unless it is silent."""
        kind = "" if self.silent else "job.stop_requested"
        return Told(kind, "job", self.submission_id, None, self.job_id, {"reason": self.reason})


@dataclass(frozen=True, slots=True)
class JobsStopped:
    """The members of an array are told to end, and those that waited are over."""

    at: int
    array_id: str
    first: int
    last: int
    spans: tuple[tuple[int, int], ...]
    """First and last numbers of those that waited."""
    awaited: tuple[str, ...]
    """The ids of members that other jobs wait for."""
    reason: str
    message: str

    def told(self) -> Told:
        """The public event."""
        data = {"first": self.first, "last": self.last, "reason": self.reason}
        return Told("array.stop_requested", "array", self.array_id, None, None, data)


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """There is another node."""

    at: int
    node: Node
    heartbeat_timeout_s: float | None = None
    devices: str = "{}"
    """What the machine has, as JSON."""

    def told(self) -> Told:
        """The public event."""
        data = {"template": self.node.template_id, "source": self.node.source}
        return Told("node.added", "node", self.node.node_id, None, None, data)


@dataclass(frozen=True, slots=True)
class NodeMoved:
    """A node is in another state: by whom, why and since when."""

    at: int
    node_id: str
    move: str
    state: str
    reason: str | None = None
    author: str | None = None

    def told(self) -> Told:
        """The public event."""
        data = {"reason": self.reason, "author": self.author}
        return Told(f"node.{self.state.lower()}", "node", self.node_id, None, None, data)


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node has other totals, labels or another template. ``settled``: what lies on it fits into them again."""

    node: Node
    settled: bool = False

    def told(self) -> Told:
        """The public event."""
        return Told("node.settled" if self.settled else "node.updated", "node", self.node.node_id)


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node on which nothing lies is forgotten."""

    node_id: str

    def told(self) -> Told:
        """The public event."""
        return Told("node.removed", "node", self.node_id)


Change = (
    JobStarted | RunStarted | RunAssigned | RunSeen | RunStopping | RunEnded | JobEnding | ClusterRemoved | JobEnded
    | JobRequeued | StopAsked | JobsStopped | NodeAdded | NodeMoved | NodeChanged | NodeRemoved
)  # fmt: skip
OF_CAPACITY = (NodeAdded, NodeMoved, NodeChanged, NodeRemoved, ClusterRemoved)
"""With these, what was judged of what could ever run is judged anew."""
CHANGES: Mapping[str, type[Change]] = {one.__name__: one for one in get_args(Change)}
