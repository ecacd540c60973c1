"""Jobs and their runs (processes): states, reasons, values."""

from __future__ import annotations

from vctl.core import gates
from vctl.core.clusters import ClusterSpec
from vctl.core.resources import EMPTY, Allocation, Amounts
from vctl.core.values import field, replace, value

PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"
NOT_SUCCEEDED = (FAILED, STOPPED)
FINAL = frozenset({SUCCEEDED, FAILED, STOPPED})
STATES = (PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED)

# reason tokens of a pending job
ARRAY_LIMIT = gates.ARRAY_LIMIT
BACKOFF = gates.BACKOFF
BEGIN_TIME = gates.BEGIN_TIME
DEPENDENCY = gates.DEPENDENCY
HELD = gates.HELD
PREEMPTED = gates.PREEMPTED
PENDING_EVALUATION = "PendingEvaluation"
INSUFFICIENT = gates.INSUFFICIENT
HEAD_OF_LINE = "HeadOfLine"
CAP_REACHED = "CapReached"
USER_LIMIT = "UserLimit"
CLUSTER_STOPPED = "ClusterStopped"
WAITING_FOR_PREEMPTION = "WaitingForPreemption"
# reason tokens of a job that ended, or that is waiting again after a setback
INFEASIBLE = "Infeasible"
STOPPED_BY_USER = "StoppedByUser"
TIME_LIMIT = "TimeLimit"
BOOKING_ENDED = "BookingEnded"
START_DELAYED = "StartDelayed"
LAUNCH_FAILED = "LaunchFailed"
NODE_FAILED = "NodeFailed"
PROCESS_LOST = "ProcessLost"
OUT_OF_MEMORY = "OutOfMemory"
NON_ZERO_EXIT = "NonZeroExit"
DEPENDENCY_FAILED = "DependencyFailed"

EXIT_STOPPED, EXIT_TIME_LIMIT, EXIT_NEVER_RAN = 143, 124, 3

# states of a run
ASSIGNED, RUNNING = "ASSIGNED", "RUNNING"


def cluster_of(parent_id: str, submission_id: str, shares_parent: bool) -> str:
    """The id of the cluster in which a job runs: its own, or its parent if it shares that."""
    return parent_id if shares_parent else f"{parent_id}##{submission_id}"


def member_of(name: str) -> tuple[str, int | None]:
    """The id of the array and the index, if a job of this id can be a member of an array; else "" and None."""
    array_id, _, digits = name.rpartition("_")
    is_number = digits.isascii() and digits.isdigit() and len(digits) < 10 and digits == str(int(digits))
    return (array_id, int(digits)) if array_id and is_number else ("", None)


@value(frozen=True, slots=True)
class PendingJob:
    """A waiting job, with the fields that decisions need. ``entry`` is the request of its entrypoint."""

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
    """The number of its conditions on other jobs that are still open."""
    closed: bool = False
    """Whether it waits for a place among the members of its array that may run at once."""
    array_id: str | None = None
    attempt: int = 0
    """The number of attempts that it has made."""
    preemptions: int = 0
    """How many of these attempts are no failures that ``--max-retries`` counts: preempted ones, and those before a
    rerun."""
    rules: str = "{}"
    """The rules for its end, as JSON: retries, the warning signal."""
    grace_s: float = 0.0
    members: int = 1
    """For how many members of its array it stands, itself and those behind it, which are all like it."""
    step: int = 1
    """The difference between the indices of neighbours among them."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster in which it is to run: its own, or its parent if it shares that."""
        return cluster_of(self.parent_id, self.submission_id, self.shares_parent)

    @property
    def array_index(self) -> int | None:
        """Its index in its array; None for a job outside of arrays."""
        return None if self.array_id is None else int(self.submission_id.rpartition("_")[2])

    @property
    def is_gated(self) -> bool:
        """Whether it is kept out of the queue: by a hold, by a condition on other jobs, or by its array."""
        return not gates.is_in_queue(self.held, self.waits_for, self.closed, self.members)

    def member(self, number: int, members: int = 1) -> PendingJob:
        """The member of this number, which is the job itself or one for which it stands, with those behind it."""
        index = int(self.submission_id.rpartition("_")[2]) + (number - self.job_id) * self.step
        return replace(
            self, job_id=number, submission_id=f"{self.array_id}_{index}", members=members,
            step=self.step if members > 1 else 1,
        )  # fmt: skip

    def may_start(self, now_ns: int) -> bool:
        """Whether no gate but the limit of its array prevents its start."""
        return gates.opens_at(self.held, self.waits_for, self.begin_at_ns) <= now_ns

    def waited_ns(self, now_ns: int) -> int:
        """How long it has waited since its submission, or since its begin time if that is later."""
        return now_ns - max(self.submitted_at_ns, self.begin_at_ns or 0)


@value(frozen=True, slots=True)
class RunningJob:
    """A running job, with the fields that decisions about other jobs and about its end need.

    ``cluster_id`` is its own cluster, or its parent if it shares that. ``run_id`` is its main process; of a
    gang, a member that is not over.
    """

    job_id: int
    parent_id: str
    cluster_id: str
    run_id: str
    user: str
    ends_at_ns: int | None
    """The time at which its time limit ends it; None: it has no limit."""
    submission_id: str = ""
    priority: int = 0
    started_at_ns: int = 0
    attempt: int = 0
    preemptions: int = 0
    array_id: str | None = None
    array_index: int | None = None
    per_node: bool = False
    master_port: int | None = None
    """The port at which the members of a gang meet in this attempt."""
    rules: str = "{}"
    grace_s: float = 0.0
    message: str | None = None
    """The message of the request to stop it."""
    stop_requested_at: int | None = None
    stop_reason: str | None = None
    stop_grace_s: float | None = None
    outcome: tuple[str, str | None, int | None, str | None] | None = None
    """How its entrypoint ended (status, reason, exit code, message), while its other processes still end."""
    held: Amounts = field(default_factory=dict)
    """The total that it got at its start."""

    @property
    def grace_now_s(self) -> float:
        """The seconds between SIGTERM and SIGKILL for its processes."""
        return self.grace_s if self.stop_grace_s is None else self.stop_grace_s

    @classmethod
    def begun(
        cls, job: PendingJob, cluster_id: str, run_id: str, now_ns: int, master_port: int | None = None,
        held: Amounts = EMPTY.amounts,
    ) -> RunningJob:  # fmt: skip
        """The running job that a waiting job becomes at ``now_ns``, in this cluster and with this run."""
        ends_at_ns = None if job.time_limit_ns is None else now_ns + job.time_limit_ns
        return cls(
            job.job_id, job.parent_id, cluster_id, run_id, job.user, ends_at_ns, job.submission_id, job.priority,
            now_ns, job.attempt + 1, job.preemptions, job.array_id, job.array_index,
            job.per_node, master_port, job.rules, job.grace_s, held=held,
        )  # fmt: skip


@value(frozen=True, slots=True)
class Preemption:
    """A running job (the victim) that ends for a waiting one (the winner).

    ``warns``: the victim gets its warning signal first and is stopped at ``ends_ns``. Otherwise it is stopped
    at once and killed at ``ends_ns``.
    """

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
    """Whether the processes of the victim are being stopped."""


@value(frozen=True, slots=True)
class Run:
    """One process of one attempt of a job or a task: where it is, and what it holds there."""

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
    supervisor: int = 0
    """The number of the supervisor that carries it out, from 1."""
    warned_for: int | None = None
    """The end (ns since the boot) for which it got its warning signal."""
