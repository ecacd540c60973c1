"""Jobs and the runs (processes) that carry them: states, reasons and transition tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from vctl.core.clusters import ClusterSpec
from vctl.core.resources import Amounts, Holding

PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"
FINAL = frozenset({SUCCEEDED, FAILED, STOPPED})

TRANSITIONS = {
    PENDING: {"start": RUNNING, "stop": STOPPED, "reject": FAILED},
    RUNNING: {"succeed": SUCCEEDED, "fail": FAILED, "stop": STOPPED, "requeue": PENDING},
    SUCCEEDED: {},
    FAILED: {},
    STOPPED: {},
}
"""state -> event -> next state, as in Ray's job API."""

# reason tokens of a pending job
PENDING_EVALUATION = "PendingEvaluation"
INSUFFICIENT = "InsufficientResources"
HEAD_OF_LINE = "HeadOfLine"
CAP_REACHED = "CapReached"
HELD = "Held"
BEGIN_TIME = "BeginTime"
CLUSTER_STOPPED = "ClusterStopped"
# reason tokens of a job that ended, or that is waiting again after a setback
INFEASIBLE = "Infeasible"
STOPPED_BY_USER = "StoppedByUser"
TIME_LIMIT = "TimeLimit"
PREEMPTED = "Preempted"
LAUNCH_FAILED = "LaunchFailed"
NODE_FAILED = "NodeFailed"
PROCESS_LOST = "ProcessLost"
OUT_OF_MEMORY = "OutOfMemory"
NON_ZERO_EXIT = "NonZeroExit"

EXIT_STOPPED, EXIT_TIME_LIMIT, EXIT_NEVER_RAN = 143, 124, 3

# states of a run
ASSIGNED, LAUNCHED, ENDED = "ASSIGNED", "RUNNING", "ENDED"


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job in the queue, as far as deciding needs it. ``entry`` is what the entrypoint asks for itself."""

    job_id: int
    submission_id: str
    parent_id: str
    shape: str
    spec: ClusterSpec
    entry: Amounts
    priority: int = 0
    held: bool = False
    begin_at_ns: int | None = None
    shares_parent: bool = False
    """True in an indivisible cluster: the job runs in the parent itself and gets no cluster of its own."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process of one attempt of a job: where it is and what it holds there."""

    run_id: str
    job_id: int
    attempt: int
    rank: int
    cluster_id: str
    vnode_id: str
    node_id: str
    holding: Holding
    state: str = ASSIGNED
    pid: int | None = None
    pid_start: int | None = None
    boot_id: str | None = None
    task_id: str | None = None
    started_at: int | None = None
    stop_reason: str | None = None
    deadline_ns: int | None = field(default=None, compare=False)
