"""Tasks: commands started inside a job, each with its own request. States, strategies, values."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.labels import Selector
from vctl.core.resources import Amounts
from vctl.core.values import field, value

PENDING_ARGS, PENDING_NODE, RUNNING = "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "RUNNING"
FINISHED, FAILED = "FINISHED", "FAILED"
FINAL = frozenset({FINISHED, FAILED})

CANCELLED, OWNER_ENDED = "Cancelled", "OwnerEnded"
INPUT_FAILED, OUTPUT_MISSING = "InputFailed", "OutputMissing"
AWAITING_INPUTS = "AwaitingInputs"
"""Why a task is PENDING_ARGS_AVAIL."""
HYBRID, SPREAD, RANDOM, NODE = "HYBRID", "SPREAD", "RANDOM", "NODE"
STRATEGIES = (HYBRID, SPREAD, RANDOM, NODE)
SOFT, SPILL = "soft", "spill"
"""What may follow the node that a strategy names: another one if it cannot hold the task, or if it is full."""


def named_by(strategy: str) -> tuple[str | None, str]:
    """The node that a strategy names, and ``soft``, ``spill`` or nothing. None: it names no node.

    No id of a node has a colon.
    """
    kind, _, name = strategy.partition(":")
    node_id, _, otherwise = name.partition(":")
    return (node_id, otherwise) if kind == NODE else (None, "")


@value(frozen=True, slots=True)
class PendingTask:
    """A task that waits for a place.

    ``origin_vnode_id``: the virtual node on which it was submitted, the local one for HYBRID.
    ``inputs_at``: physical node -> bytes of its inputs there. ``bound_vnode_id``: the virtual node that a
    RANDOM task has drawn and waits for; the task counts as load there.
    """

    task_id: str
    number: int
    job_id: int
    cluster_id: str
    request: Amounts
    selector: Selector = ()
    strategy: str = HYBRID
    origin_vnode_id: str | None = None
    attempt: int = 0
    inputs_at: Mapping[str, int] = field(default_factory=dict)
    bound_vnode_id: str | None = None


@value(frozen=True, slots=True)
class Task:
    """A task that is not over, with the fields on which its placement, its retries and its end depend.

    ``vnode_id`` is the virtual node on which it runs or, while it waits, the one that it has drawn.
    ``outlives``: it goes on when its job ends, because it was detached, or started by such a task.
    """

    task_id: str
    number: int
    job_id: int
    cluster_id: str
    owner_id: str
    request: Amounts
    grace_s: float
    selector: Selector = ()
    strategy: str = HYBRID
    origin_vnode_id: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    max_retries: int = 0
    detached: bool = False
    outlives: bool = False
    name: str | None = None
    state: str = PENDING_NODE
    attempt: int = 0
    vnode_id: str | None = None
    node_id: str | None = None
    stop_requested_at: int | None = None
    awaits: str = ""
    """The message that names its missing inputs."""

    def pending(self, inputs_at: Mapping[str, int] | None = None) -> PendingTask:
        """The task as the search for a place sees it."""
        return PendingTask(
            self.task_id, self.number, self.job_id, self.cluster_id, self.request, self.selector, self.strategy,
            self.origin_vnode_id, self.attempt, inputs_at or {}, self.vnode_id,
        )  # fmt: skip


@value(frozen=True, slots=True)
class StoredObject:
    """An object of a job: the task that made it (None: the entrypoint), and node id -> bytes of each copy."""

    maker: str | None
    at: Mapping[str, int]
    clusters: Mapping[str, str] = field(default_factory=dict)
    """Node id -> the cluster to which the copy there belongs."""


@value(frozen=True, slots=True)
class Maker:
    """The maker of an object: a task, or (None) the entrypoint. ``state``: that of a task that is over."""

    task_id: str | None
    state: str | None = None
    reason: str | None = None
    node_id: str | None = None
