"""What a look at the state says, as types: why something waits, status, plans, proofs. Plain dicts, too."""

from __future__ import annotations

from typing import NotRequired, Required, TypedDict

from vctl.spec.documents import Amounts, ClusterUse, Scheduler

# ---- why a job or a task waits ----


class Holder(TypedDict, total=False):
    """Who holds resources on a node: a job, or else a cluster."""

    submission_id: str
    cluster_id: str
    resources: Required[Amounts]


class NodeObstacle(TypedDict):
    """What is needed and free on a node; ``vnode_id`` where a task waits for a virtual node."""

    node_id: str
    vnode_id: NotRequired[str]
    verdict: str
    need: Amounts
    have: Amounts
    holders: list[Holder]
    note: str | None


class Ahead(TypedDict, total=False):
    """One that is ahead in the queue: a job, or a task, of which only the resources are named."""

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
    """A change that was tried and starts what waits."""

    kind: str
    change: str
    command: str | None
    proven: bool


class Found(TypedDict):
    """What a look around found: who is ahead, each node, who would end, and what would help."""

    ahead: list[Ahead]
    nodes: list[NodeObstacle]
    preempts: list[Preempted]
    changes: list[Remedy]
    nearest: list[Remedy]
    waits_for_itself: str | None
    searched: bool
    cut: str | None


class WhyJob(Found):
    """Why a job waits."""

    job_id: int
    submission_id: str
    status: str
    state_reason: str | None
    message: str | None
    queue_position: int | None


class WhyTask(Found):
    """Why a task waits."""

    task_id: str
    job_id: int
    status: str
    state_reason: str | None
    message: str | None
    queue_position: int | None


Why = WhyJob | WhyTask


class Piece(TypedDict):
    """A virtual node that a job would get, or its place in a cluster that jobs share."""

    rank: int
    kind: str
    node_id: str
    parent_vnode_id: str | None
    resources: Amounts
    runs_entrypoint: bool


class Loan(TypedDict):
    """What a cluster would borrow."""

    borrower_id: str
    lender_id: str | None
    node_id: str
    resources: Amounts


class DryRun(TypedDict):
    """What a submit would lead to."""

    verdict: str
    state_reason: str | None
    message: str | None
    parent_cluster_id: str
    queue_position: int | None
    ahead: list[Ahead]
    node_ids: list[str]
    pieces: list[Piece]
    borrowed: list[Loan]
    nodes: list[NodeObstacle]
    preempts: list[Preempted]


# ---- status ----


class ClusterLine(ClusterUse):
    """A cluster in the tree of ``vctl status``."""

    cluster_id: str
    parent_id: str | None
    kind: str
    state: str
    depth: int
    jobs: dict[str, int]


class JobLine(TypedDict):
    """A job in a line of ``vctl status``."""

    submission_id: str
    name: str | None
    user: str
    parent_cluster_id: str


class RunningLine(JobLine):
    """One that runs."""

    cluster_id: str
    node_ids: list[str]
    resources: Amounts
    started_at: str
    run_s: float
    time_limit_s: float | None
    time_left_s: float | None
    entrypoint: str


class WaitingLine(JobLine):
    """One that waits."""

    priority: int
    state_reason: str | None
    message: str | None
    queue_position: int | None


class FailedLine(JobLine):
    """One that failed."""

    state_reason: str | None
    message: str | None
    exit_code: int | None
    ended_at: str


class QueueLines(TypedDict):
    """How many jobs wait and run, and the first of those that wait."""

    pending: int
    running: int
    head: list[WaitingLine]


class Status(TypedDict):
    """What runs, what waits and what is free."""

    cluster_id: str
    nodes: dict[str, int]
    resources: dict[str, dict[str, float]]
    clusters: list[ClusterLine]
    running_jobs: list[RunningLine]
    queue: QueueLines
    recent_failures: list[FailedLine]
    scheduler: Scheduler


# ---- trees in files, care of the state ----


class TreeChange(TypedDict):
    """A cluster that is not as a file wants it."""

    action: str
    cluster_id: str
    parent_id: str
    path: str | None
    before: dict[str, object] | None
    after: dict[str, object] | None
    blockers: list[str]


class TreeDiff(TypedDict):
    """What differs between the clusters and a file, or was changed to match it."""

    revision: str
    changes: list[TreeChange]
    unchanged: list[str]
    summary: dict[str, int]


class ReplayStep(TypedDict):
    """A step of a replay and what it did."""

    step: int
    title: str
    actions: list[str]


class Replayed(TypedDict):
    """What a replay did, or would do."""

    steps: list[ReplayStep]
    changes: int


class Diagnosis(TypedDict):
    """Whether the state is sound; ``checked`` counts the rows that a proof looked at."""

    ok: bool
    findings: list[str]
    notes: list[str]
    repaired: list[str]
    checked: NotRequired[dict[str, int]]
