"""The documented JSON forms as types, for those who check theirs. The values are plain dicts, as everywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, Required, TypedDict

Amounts = dict[str, float]


class JobForm(TypedDict):
    """A job."""

    job_id: int
    submission_id: str
    name: str | None
    status: str
    state_reason: str | None
    message: str | None
    exit_code: int | None
    cluster_id: str
    parent_cluster_id: str
    priority: int
    queue_position: int | None
    entrypoint: str
    attempt: int
    user: str
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    resources: Amounts
    node_ids: list[str]
    wait_s: float | None
    run_s: float | None
    time_limit_s: float | None
    log_path: str | None
    metadata: dict[str, str]
    array_id: str | None
    array_index: int | None


class ArrayCounts(TypedDict):
    """How far an array is."""

    indices: str
    count: int
    at_once: int | None
    states: dict[str, int]
    done: int


class ArrayForm(JobForm):
    """An array as one object: the fields of a job for all of them together."""

    array: ArrayCounts


class Pruned(TypedDict):
    """What a prune deleted, or would delete."""

    jobs: list[str]
    events: int
    files: list[str]
    dry_run: bool


class TaskForm(TypedDict):
    """A task."""

    task_id: str
    name: str | None
    state: str
    job_id: int
    owner_id: str
    cluster_id: str
    vnode_id: str | None
    node_id: str | None
    resources: Amounts
    exit_code: int | None
    attempt: int
    inputs: list[str]
    outputs: list[str]
    created_at: str
    started_at: str | None
    ended_at: str | None
    state_reason: str | None
    message: str | None
    strategy: str
    detached: bool


class ObjectForm(TypedDict):
    """What a task left on nodes for others of its job; ``size`` in bytes."""

    object_id: str
    name: str
    job_id: int
    submission_id: str
    cluster_id: str
    task_id: str | None
    node_id: str
    node_ids: list[str]
    size: int
    created_at: str
    attempt: int
    path: str


class ClusterForm(TypedDict):
    """A virtual cluster."""

    cluster_id: str
    parent_id: str | None
    kind: str
    divisible: bool
    revision: int
    spec: dict[str, Any]
    replica_sets: dict[str, int]
    node_instances: dict[str, dict[str, str]]
    total_resources: Amounts
    available_resources: Amounts
    max_resources: Amounts | None
    children: list[str]
    jobs: list[str]
    state: str
    message: str | None
    borrow_limit: Amounts | None
    lending_limit: Amounts
    queue: Mapping[str, Any]


class ClusterAmounts(TypedDict):
    """The resources of a virtual cluster."""

    total_resources: Amounts
    available_resources: Amounts
    max_resources: Amounts | None


class ClusterLimits(TypedDict):
    """The limits of a virtual cluster, and why it is stopped."""

    message: str | None
    borrow_limit: Amounts | None
    lending_limit: Amounts


class RemovedCluster(ClusterForm):
    """A virtual cluster that was removed, or that is removed when nothing uses it any more."""

    blockers: list[str]


class ClusterUse(TypedDict):
    """The resources of a cluster: all of them, those that clusters below it hold, and those that jobs use."""

    total: Amounts
    reserved: Amounts
    used: Amounts


class ClusterTree(ClusterForm):
    """A virtual cluster with everything below it."""

    total: Amounts
    reserved: Amounts
    used: Amounts
    job_counts: dict[str, int]
    tree: list[ClusterTree]


class NodeForm(TypedDict):
    """A physical node."""

    node_id: str
    hostname: str
    template_id: str
    source: str
    state: str
    reason: str | None
    author: str | None
    state_since: str
    resources: Amounts
    available: Amounts | None
    labels: dict[str, str]
    last_heartbeat: str | None
    heartbeat_timeout_s: float | None
    created_at: str


class NodeOfCluster(TypedDict):
    """A virtual node as ``ray.nodes()`` shows it."""

    NodeID: str
    Alive: bool
    NodeName: str
    NodeType: str
    Resources: Amounts
    Available: Amounts
    Labels: dict[str, str]
    ParentNodeID: str | None
    Kind: str
    State: str


class VNodeForm(TypedDict):
    """A virtual node with what it holds."""

    vnode_id: str
    cluster_id: str
    node_id: str
    parent_id: str | None
    kind: str
    whole: bool
    rank: int
    resources: Amounts
    load: Amounts
    instances: dict[str, dict[str, int]]
    cores: list[int]
    labels: dict[str, str]


class LeaseForm(TypedDict):
    """What a cluster borrowed."""

    lease_id: int
    borrower_id: str
    lender_id: str
    vnode_id: str
    node_id: str
    resources: Amounts
    since: str
    expires_at: str | None
    job_id: int | None


class DemandForm(TypedDict):
    """Requests of one shape that wait."""

    cluster_id: str
    kind: str
    resources: Amounts
    count: int
    reason: str
    by: list[str]


class EventForm(TypedDict):
    """One line of history."""

    seq: int
    at: str
    kind: str
    object: str
    object_id: str
    cluster_id: str | None
    job_id: int | None
    data: dict[str, Any]


class Summary(TypedDict):
    """How many objects of one kind there are, by one of their fields."""

    kind: str
    by: str
    counts: dict[str, int]
    total: int


class Scheduler(TypedDict):
    """Whether a scheduler is running, its last heartbeat, and the cost of its last round."""

    running: bool
    starting: bool
    last_beat: str | None
    last_round_ms: float | None
    rounds: int
    pid: int | None
    kind: str | None


class CurrentCluster(TypedDict):
    """A cluster as a process in it sees it."""

    cluster_id: str
    spec: dict[str, Any]
    total_resources: Amounts
    max_resources: Amounts | None
    available_resources: Amounts
    used_object_store_memory: float
    nodes: list[str]
    children: list[str]
    parent: str | None
    state: str


class CurrentNode(TypedDict):
    """A virtual node as a process on it sees it."""

    node_id: str
    physical_node_id: str
    labels: dict[str, str]
    used: Amounts
    available: Amounts
    total: Amounts
    parent: str | None


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
