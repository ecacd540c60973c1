"""The documented JSON forms as types. The values are plain dicts. OpenAPI shows some of these docstrings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

Amounts = dict[str, float]


class ExpectedForm(TypedDict):
    """When a waiting job is expected to start: null where that is unknown. ``expected_start_basis``: what it rests on.

    Both are null for a job that does not wait, and in lists that are asked for without a forecast.
    """

    expected_start: str | None
    expected_start_basis: str | None


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
    expected_start: str | None
    expected_start_basis: str | None
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


class ArrayFailures(TypedDict):
    """The members of an array that did not succeed for one reason: how many, and their indices."""

    status: str
    state_reason: str | None
    exit_code: int | None
    message: str | None
    count: int
    indices: str


class ArrayCounts(TypedDict):
    """The progress of an array; ``count`` is without deleted members."""

    indices: str
    count: int
    at_once: int | None
    states: dict[str, int]
    done: int
    failures: list[ArrayFailures]


class ArrayForm(JobForm):
    """An array as one object: the fields of a job for all of them together."""

    array: ArrayCounts


class SubmittedForm(TypedDict):
    """The jobs of a batch."""

    submission_ids: list[str]
    """The ids of the jobs and arrays, in the order in which they were sent."""


class StartedForm(TypedDict):
    """The tasks of a batch."""

    task_ids: list[str]
    """The ids of the tasks, in the order in which they were sent."""


class Pruned(TypedDict):
    """The objects that a prune deleted, or in a dry run would delete."""

    jobs: list[str]
    events: int
    files: list[str]
    clusters: list[str]
    """Clusters that were made for users, of which no job is left."""
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
    """An object: a file that a task left on nodes for other tasks of its job; ``size`` in bytes."""

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


class ClusterIdentity(TypedDict):
    """The identity of a virtual cluster, and its requested resources."""

    cluster_id: str
    parent_id: str | None
    kind: str
    divisible: bool
    revision: int
    spec: dict[str, Any]
    replica_sets: dict[str, int]
    node_instances: dict[str, dict[str, str]]


class ClusterContents(TypedDict):
    """The resources of a virtual cluster, and the clusters and jobs in it."""

    total_resources: Amounts
    available_resources: Amounts
    max_resources: Amounts | None
    children: list[str]
    jobs: list[str]


class ClusterAccess(TypedDict):
    """What a virtual cluster says itself about rights in a shared service; the clusters above it count, too."""

    submitters: list[str]
    admins: list[str]
    private_queue: bool | None


class ClusterSettings(ClusterAccess):
    """The settings of a virtual cluster, the message of who stopped it, and the time for which it is booked."""

    message: str | None
    begin_at: str | None
    end_at: str | None
    borrow_limit: Amounts | None
    lending_limit: Amounts
    private: list[str]
    user_template: Mapping[str, Any] | None
    of_user: str | None
    queue: Mapping[str, Any]


class ClusterForm(ClusterIdentity, ClusterContents, ClusterSettings):
    """A virtual cluster."""

    state: str


class NotDue(TypedDict):
    """A waiting job that may not start yet, and why: it is on hold, its time is to come, or it waits for other jobs.

    ``members``: above 1 it is an array with so many members that wait for that.
    """

    submission_id: str
    members: int
    state_reason: str
    message: str


class RemovedCluster(ClusterForm):
    """A virtual cluster that was deleted, or that is deleted when its users have ended.

    ``kept_by``: those of its users that may not start yet, in the order of their numbers.
    """

    blockers: list[str]
    kept_by: list[NotDue]


class ClusterUse(TypedDict):
    """The resources of a cluster: the total, the part of the clusters below it, and the part that jobs use.

    ``borrowed``: what it has from others on lease; ``lent``: what others have from it; ``idle``: what logical clusters
    hold of it and no job uses.
    """

    total: Amounts
    reserved: Amounts
    used: Amounts
    borrowed: Amounts
    lent: Amounts
    idle: Amounts


class ListedCluster(ClusterForm, ClusterUse):
    """A virtual cluster with the resources that the clusters below it hold and that jobs use."""


class ClusterTree(ListedCluster):
    """A virtual cluster with everything below it. ``job_id``: the number of the job whose cluster it is."""

    job_id: int | None
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
    used: Amounts
    available: Amounts
    labels: dict[str, str]
    last_heartbeat: str | None
    heartbeat_timeout_s: float | None
    created_at: str


class GpuHolder(TypedDict):
    """Who has booked a device, or a share of it: a job, or a logical cluster whose jobs do not use it now."""

    cluster_id: str
    job_id: int | None
    submission_id: str | None
    user: str | None
    share: float
    since: str | None


class GpuProcess(TypedDict):
    """A process on a device. ``kind``: job; left (of a run that is over); foreign (nobody booked it); ignored; unseen
    (of another PID namespace, on a device that is booked).

    ``memory``: its bytes there, null where the driver does not say. ``command``: null where it may not be shown.
    """

    pid: int
    kind: str
    job_id: int | None
    user: str | None
    memory: int | None
    started_at: str | None
    command: str | None


class GpuForm(TypedDict):
    """A device: who has booked it, and what is measured there. ``booked``: the share in use by jobs, of 1.

    ``state``: FREE, BOOKED, FOREIGN (processes that nobody booked), AVOIDED (for these it takes no new job) or FENCED
    (processes that a run left behind). ``idle_since``: it is booked, and nobody has used it since. ``measured``: nvml,
    recorded (figures of a file) or null, without figures.
    """

    gpu_id: str
    node_id: str
    index: int
    uuid: str | None
    model: str | None
    state: str
    booked: float
    cluster_id: str | None
    holders: list[GpuHolder]
    idle_since: str | None
    utilization: int | None
    memory_used: int | None
    memory_total: int | None
    divided: bool
    processes: list[GpuProcess]
    message: str | None
    commands: list[str]
    measured: str | None


class NodeOfCluster(TypedDict):
    """A virtual node as ``ray.nodes()`` shows it."""

    NodeID: str
    Alive: bool
    NodeName: str
    NodeType: str
    Resources: Amounts
    Used: Amounts
    Available: Amounts
    Labels: dict[str, str]
    ParentNodeID: str | None
    Kind: str
    State: str


class TokenForm(TypedDict):
    """A token of a user of a shared service, without its secret."""

    token_id: int
    name: str | None
    user: str
    created_at: str
    ends_at: str


class LoginForm(TokenForm):
    """A new token. ``token`` is shown this once; ``link`` carries it to the page of a server on this machine."""

    token: str
    link: str


class VNodeForm(TypedDict):
    """A virtual node with its resources and their load."""

    vnode_id: str
    cluster_id: str
    node_id: str
    parent_id: str | None
    kind: str
    whole: bool
    rank: int
    resources: Amounts
    load: Amounts
    instances: dict[str, Amounts]
    cores: list[int]
    labels: dict[str, str]


class LeaseForm(TypedDict):
    """A lease: resources that a cluster borrowed."""

    lease_id: int
    borrower_id: str
    lender_id: str
    resources: Amounts
    since: str
    expires_at: str | None
    job_id: int | None
    state: str


class LimitForm(TypedDict):
    """A limit of a user, of each user (``*``), or of a cluster with all below it.

    ``of``: ``running_jobs`` or a resource. ``used``: by what runs now; null for a limit that each user has.
    """

    limit_id: str
    user: str | None
    cluster_id: str | None
    of: str
    limit: float
    per: str | None
    used: float | None
    set_by: str
    set_at: str


class ReportForm(TypedDict):
    """What a user, a cluster or a job held in a time, from the start to the end of each attempt.

    ``lost_…``: by attempts that failed, were preempted, or were tried again. Waits are those of jobs that first
    started in the time, from their submission.
    """

    user: str | None
    cluster_id: str | None
    submission_id: str | None
    attempts: int
    cpu_hours: float
    gpu_hours: float
    memory_gib_hours: float
    lost_cpu_hours: float
    lost_gpu_hours: float
    lost_memory_gib_hours: float
    succeeded: int
    failed: int
    stopped: int
    running: int
    started: int
    wait_mean_s: float | None
    wait_median_s: float | None
    wait_longest_s: float | None


class DemandForm(TypedDict):
    """Equal requests that wait for resources."""

    cluster_id: str
    kind: str
    resources: Amounts
    count: int
    reason: str
    by: list[str]


class EventForm(TypedDict):
    """An event of the history."""

    seq: int
    at: str
    kind: str
    object: str
    object_id: str
    cluster_id: str | None
    job_id: int | None
    data: dict[str, Any]


class TimelineForm(TypedDict):
    """A job or a task that has started: when it ran, and where."""

    kind: str
    id: str
    state: str
    node_ids: list[str]
    job_id: int
    name: str | None
    cluster_id: str | None
    resources: Amounts
    started_at: str
    ended_at: str | None
    run_s: float | None


class Summary(TypedDict):
    """The number of objects of one kind for each value of a field."""

    kind: str
    by: str
    counts: dict[str, int]
    total: int


class SchedulerForm(TypedDict):
    """Whether a scheduler is running, its last heartbeat, and the cost of its last round.

    Of a shared service also its address, and the user as whom it knows the caller.
    """

    running: bool
    starting: bool
    last_beat: str | None
    last_round_ms: float | None
    rounds: int
    pid: int | None
    kind: str | None
    service: NotRequired[str]
    user: NotRequired[str]


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
