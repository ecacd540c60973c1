"""The observations that a scheduler gives to the rules: of processes, nodes, tables, and its own effects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from vctl.core import jobs as jb
from vctl.core.jobs import Preemption, Run
from vctl.core.nodes import Fence, NodeRequest
from vctl.core.values import Exit, field, value
from vctl.engine.changes import StartedProcess

if TYPE_CHECKING:
    from vctl.scheduler.provisioning import MachinesNeeded

Outputs = Mapping[str, int] | str
"""The bytes of each output of a task, or a message why one of them is not usable."""


class Now(NamedTuple):
    """One moment in nanoseconds: since the epoch, and since the machine started."""

    wall: int
    uptime: int


@value(frozen=True, slots=True)
class ProcessSeen:
    """The process of a run was seen to run."""

    run_id: str
    process: StartedProcess


@value(frozen=True, slots=True)
class ProcessOver:
    """A run is over. ``exit`` is None if its process was lost, so that nobody knows how it ended."""

    run: Run
    exit: Exit | None
    lost_message: str = ""
    lost_reason: str = jb.PROCESS_LOST
    process: StartedProcess | None = None
    outputs: Outputs = field(default_factory=dict)
    """The outputs that a task left."""


@value(frozen=True, slots=True)
class RunNotLaunched:
    """An assigned run has not started: its launch is due again."""

    run_id: str


@value(frozen=True, slots=True)
class JobWarned:
    """The process of a job got the signal that warns of its end at ``ends_ns`` (ns since the boot)."""

    run_id: str
    ends_ns: int


@value(frozen=True, slots=True)
class JobNotified:
    """A job got notice that it ends for another. ``delivered``: one of its processes got the signal."""

    preemption: Preemption
    delivered: bool


@value(frozen=True, slots=True)
class LeaseNotified:
    """A job got notice that a lender reclaims a lease that it uses."""

    lease_id: int
    job_id: int


@value(frozen=True, slots=True)
class NodeSilent:
    """A node sent no heartbeat for ``timeout_s``, so its heartbeat lease ended at ``ends_at``."""

    node_id: str
    timeout_s: float
    ends_at: int


@value(frozen=True, slots=True)
class DevicesObserved:
    """The devices of a node were looked at: these get no new work, all others do."""

    node_id: str
    fences: tuple[Fence, ...]


@value(frozen=True, slots=True)
class AwaitedOver:
    """A job, or a member of an array, has ended, and other jobs wait for it.

    ``good``, ``bad`` and ``left``: how many jobs succeeded, failed, and are not over. ``waiting``: the jobs
    that wait for it, as (job, condition).
    """

    name: str
    good: int
    bad: int
    left: int
    waiting: tuple[tuple[int, str], ...]


@value(frozen=True, slots=True)
class MachineDemand:
    """More waiting work could start on more machines of some templates, and on idle leases."""

    needed: MachinesNeeded


@value(frozen=True, slots=True)
class MachinesReady:
    """A request to the node provider was carried out: these machines exist now, or are gone."""

    request: NodeRequest
    node_ids: tuple[str, ...]


@value(frozen=True, slots=True)
class MachinesRefused:
    """An attempt to carry out a request to the node provider failed."""

    request: NodeRequest
    message: str


@value(frozen=True, slots=True)
class Sweep:
    """It is time for the rules that look at all objects."""


Stimulus = (
    ProcessSeen
    | ProcessOver
    | RunNotLaunched
    | JobWarned
    | JobNotified
    | LeaseNotified
    | NodeSilent
    | DevicesObserved
    | AwaitedOver
    | MachineDemand
    | MachinesReady
    | MachinesRefused
    | Sweep
)
