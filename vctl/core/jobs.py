"""Jobs and the runs (processes) that carry them: states, reasons, values."""

from __future__ import annotations

from vctl.core.clusters import ClusterSpec
from vctl.core.resources import EMPTY, Allocation, Amounts
from vctl.core.values import field, value

PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"
FINAL = frozenset({SUCCEEDED, FAILED, STOPPED})

# reason tokens of a pending job
PENDING_EVALUATION = "PendingEvaluation"
INSUFFICIENT = "InsufficientResources"
HEAD_OF_LINE = "HeadOfLine"
CAP_REACHED = "CapReached"
USER_LIMIT = "UserLimit"
HELD = "Held"
BEGIN_TIME = "BeginTime"
CLUSTER_STOPPED = "ClusterStopped"
DEPENDENCY = "Dependency"
ARRAY_LIMIT = "ArrayLimit"
BACKOFF = "Backoff"
WAITING_FOR_PREEMPTION = "WaitingForPreemption"
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
DEPENDENCY_FAILED = "DependencyFailed"

EXIT_STOPPED, EXIT_TIME_LIMIT, EXIT_NEVER_RAN = 143, 124, 3

# states of a run
ASSIGNED, RUNNING, ENDED = "ASSIGNED", "RUNNING", "ENDED"


def cluster_of(parent_id: str, submission_id: str, shares_parent: bool) -> str:
    """The cluster in which a job is to run: its own, or its parent's."""
    return parent_id if shares_parent else f"{parent_id}##{submission_id}"


@value(frozen=True, slots=True)
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
    per_node: bool = False
    """True when the command is started in every virtual node, not only in the first."""
    user: str = ""
    submitted_at_ns: int = 0
    time_limit_ns: int | None = None
    waits_for: int = 0
    """How many conditions on other jobs are open."""
    closed: bool = False
    """Whether its array is at its running limit."""
    array_id: str | None = None
    attempt: int = 0
    """How often it has run already."""
    preemptions: int = 0
    """How many of these attempts were ended for others."""
    rules: str = "{}"
    """What is to be done when it ends, as JSON: retries, the warning signal."""
    grace_s: float = 0.0
    place: int = field(default=0, compare=False)
    """Its place in the plan of a queue whose order is ``makespan``."""

    @property
    def cluster_id(self) -> str:
        """The cluster in which it is to run: its own, or its parent's."""
        return cluster_of(self.parent_id, self.submission_id, self.shares_parent)

    @property
    def array_index(self) -> int | None:
        """Its index in its array."""
        return None if self.array_id is None else int(self.submission_id.rpartition("_")[2])

    @property
    def is_gated(self) -> bool:
        """Whether something other than its turn and its time keeps it out of the queue."""
        return bool(self.held or self.waits_for or self.closed)

    def may_start(self, now_ns: int) -> bool:
        """Whether neither a hold nor a begin time keeps it back."""
        return not self.held and (self.begin_at_ns is None or self.begin_at_ns <= now_ns)

    def waited_ns(self, now_ns: int) -> int:
        """How long it has waited since it could have started."""
        return now_ns - max(self.submitted_at_ns, self.begin_at_ns or 0)


@value(frozen=True, slots=True)
class RunningJob:
    """A job that runs: what deciding about others needs of it, and what its end depends on.

    ``cluster_id`` is its own cluster or, when it shares the parent, the parent's; ``run_id`` is its first process.
    """

    job_id: int
    parent_id: str
    cluster_id: str
    run_id: str
    user: str
    ends_at_ns: int | None
    """When its time limit ends it; None: never."""
    submission_id: str = ""
    priority: int = 0
    started_at_ns: int = 0
    attempt: int = 0
    preemptions: int = 0
    array_id: str | None = None
    array_index: int | None = None
    per_node: bool = False
    master_port: int | None = None
    """Where the members of a gang meet in this attempt."""
    rules: str = "{}"
    grace_s: float = 0.0
    message: str | None = None
    """The words of who stopped it."""
    stop_requested_at: int | None = None
    stop_reason: str | None = None
    stop_grace_s: float | None = None
    outcome: tuple[str, str | None, int | None, str | None] | None = None
    """How its entrypoint ended, while what it started is still being ended: status, reason, exit code, message."""
    held: Amounts = field(default_factory=dict)
    """What it got at its start, all together."""

    @property
    def grace_now_s(self) -> float:
        """What its processes get between the signal and the kill."""
        return self.grace_s if self.stop_grace_s is None else self.stop_grace_s

    @classmethod
    def begun(
        cls, job: PendingJob, cluster_id: str, run_id: str, now_ns: int, master_port: int | None = None,
        held: Amounts = EMPTY.amounts,
    ) -> RunningJob:  # fmt: skip
        """A job that starts now, in this cluster, with this process."""
        ends_at_ns = None if job.time_limit_ns is None else now_ns + job.time_limit_ns
        return cls(
            job.job_id, job.parent_id, cluster_id, run_id, job.user, ends_at_ns, job.submission_id, job.priority,
            now_ns, job.attempt + 1, job.preemptions, job.array_id, job.array_index,
            job.per_node, master_port, job.rules, job.grace_s, held=held,
        )  # fmt: skip


@value(frozen=True, slots=True)
class Preemption:
    """A running job that ends for a waiting one. ``warns``: it gets a signal first and is ended at ``ends_ns``."""

    victim_id: int
    victim: str
    attempt: int
    winner_id: int
    winner: str
    rule: str
    warns: bool
    ends_ns: int
    told: bool = False
    ending: bool = False
    """Whether its processes were told to end."""


@value(frozen=True, slots=True)
class Run:
    """One process of one attempt of a job: where it is and what it holds there."""

    run_id: str
    job_id: int
    attempt: int
    rank: int
    cluster_id: str
    vnode_id: str
    node_id: str
    allocation: Allocation
    state: str = ASSIGNED
    pid: int | None = None
    pid_start: int | None = None
    boot_id: str | None = None
    task_id: str | None = None
    started_at: int | None = None
    stop_reason: str | None = None
    supervisor: int | None = None
    """Number of who carries it out; None: assigned by a version that had no numbers."""
    warned_for: int | None = None
    """The end, by the clock of the boot, for which it got its warning signal."""
