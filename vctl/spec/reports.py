"""The JSON forms of reports as types (plain dicts): why a job waits, status, plans of clusters, diagnoses."""

from __future__ import annotations

from typing import NotRequired, Required, TypedDict

from vctl.spec.documents import Amounts, ClusterUse, ExpectedForm, SchedulerForm

# ---- why a job or a task waits ----


class HolderForm(TypedDict, total=False):
    """A holder of resources on a node: a job or a cluster; where a task waits, a task or the job's own process."""

    submission_id: str
    task_id: str
    cluster_id: str
    resources: Required[Amounts]


class NodeObstacle(TypedDict):
    """The needed and the free resources of a node; ``vnode_id`` where a task waits for a virtual node."""

    node_id: str
    vnode_id: NotRequired[str]
    verdict: str
    need: Amounts
    have: Amounts
    holders: list[HolderForm]
    note: str | None


class Ahead(TypedDict, total=False):
    """A job or a task that is ahead in the queue; of a task only the resources are known."""

    submission_id: str
    task_id: str
    user: str
    priority: int
    resources: Required[Amounts]
    state_reason: str | None


class Preempted(TypedDict):
    """A running job that would end for another one."""

    submission_id: str
    priority: int
    lost_s: float
    lost_share_s: float


class Remedy(TypedDict):
    """A tested change that starts the waiting job or task."""

    kind: str
    change: str
    command: str | None
    proven: bool


class Obstacles(TypedDict):
    """The verdicts on nodes. Of many nodes only the first are listed, and the others counted by verdict."""

    nodes: list[NodeObstacle]
    nodes_left_out: dict[str, int]


class Causes(Obstacles):
    """The causes of a wait: jobs ahead, nodes, jobs that would be preempted, and helpful changes."""

    ahead: list[Ahead]
    preempts: list[Preempted]
    changes: list[Remedy]
    nearest: list[Remedy]
    waits_for_itself: str | None
    searched: bool
    cut: str | None


class WaitForm(Causes):
    """The state and the reason of a waiting job or task, and the causes of the wait."""

    job_id: int
    status: str
    state_reason: str | None
    message: str | None
    queue_position: int | None


class WhyJob(WaitForm, ExpectedForm):
    """Why a job waits."""

    submission_id: str


class WhyTask(WaitForm):
    """Why a task waits."""

    task_id: str


Why = WhyJob | WhyTask


class PieceForm(TypedDict):
    """A virtual node that a job would get, or its place in a cluster that jobs share."""

    rank: int
    kind: str
    node_id: str
    parent_vnode_id: str | None
    resources: Amounts
    runs_entrypoint: bool


class Loan(TypedDict):
    """Resources that a cluster would borrow."""

    borrower_id: str
    lender_id: str | None
    node_id: str
    resources: Amounts


class LaunchFailure(TypedDict):
    """How the start of a command fails, as files are now."""

    exit_code: int
    message: str


class DryRun(Obstacles):
    """The outcome of a submit.

    ``launch_failure``: how the command would fail at its start, also where the job would wait first; None if a look
    at the files finds no failure, and for a job on the nodes of a Ray cluster, whose files are elsewhere.
    """

    verdict: str
    launch_failure: LaunchFailure | None
    state_reason: str | None
    message: str | None
    parent_cluster_id: str
    queue_position: int | None
    ahead: list[Ahead]
    node_ids: list[str]
    pieces: list[PieceForm]
    borrowed: list[Loan]
    preempts: list[Preempted]


# ---- status ----


class Minimum(TypedDict):
    """What a cluster that is below its minimum has of it, and the nodes on which it lost the rest."""

    has: Amounts
    minimum: Amounts
    node_ids: list[str]
    message: str


class ClusterLine(ClusterUse):
    """A cluster in the tree of ``vctl status``. ``below_minimum``: null while it has its minimum."""

    cluster_id: str
    job_id: int | None
    parent_id: str | None
    kind: str
    state: str
    depth: int
    jobs: dict[str, int]
    below_minimum: Minimum | None


class JobLine(TypedDict):
    """A job in a line of ``vctl status``."""

    job_id: int
    submission_id: str
    name: str | None
    user: str
    parent_cluster_id: str


class RunningLine(JobLine):
    """A running job."""

    cluster_id: str
    node_ids: list[str]
    resources: Amounts
    started_at: str
    run_s: float
    time_limit_s: float | None
    time_left_s: float | None
    entrypoint: str


class WaitingLine(JobLine, ExpectedForm):
    """A waiting job, or the first of the waiting members of an array."""

    priority: int
    state_reason: str | None
    message: str | None
    queue_position: int | None
    members: int
    """The number of waiting jobs that the line stands for: 1, or the members of the array from this one on."""


class FailedLine(JobLine):
    """A failed job."""

    state_reason: str | None
    message: str | None
    exit_code: int | None
    ended_at: str


class QueueLines(TypedDict):
    """The numbers of waiting and running jobs, and the first waiting jobs."""

    pending: int
    running: int
    head: list[WaitingLine]


class GpuTrouble(TypedDict):
    """Why a device takes no new job, or who uses it without having booked it."""

    gpu_id: str
    message: str


class Status(TypedDict):
    """The running jobs, the waiting jobs and the free resources."""

    cluster_id: str
    nodes: dict[str, int]
    resources: dict[str, dict[str, float]]
    clusters: list[ClusterLine]
    running_jobs: list[RunningLine]
    queue: QueueLines
    recent_failures: list[FailedLine]
    devices: list[GpuTrouble]
    scheduler: SchedulerForm


# ---- trees in files, care of the state ----


class TreeChange(TypedDict):
    """A cluster that differs from a tree file."""

    action: str
    cluster_id: str
    parent_id: str
    path: str | None
    before: dict[str, object] | None
    after: dict[str, object] | None
    blockers: list[str]


class TreeDiff(TypedDict):
    """The differences between the clusters and a tree file, or the changes that removed them."""

    revision: str
    changes: list[TreeChange]
    unchanged: list[str]
    summary: dict[str, int]


class ReplayStep(TypedDict):
    """A step of a replay and its repairs."""

    step: int
    title: str
    actions: list[str]


class ReplayForm(TypedDict):
    """The repairs of a replay, or in a dry run the repairs that it would make."""

    steps: list[ReplayStep]
    changes: int


class Diagnosis(TypedDict):
    """Whether the state is sound; ``checked`` counts the checked rows of each table."""

    ok: bool
    findings: list[str]
    notes: list[str]
    repaired: list[str]
    checked: NotRequired[dict[str, int]]
