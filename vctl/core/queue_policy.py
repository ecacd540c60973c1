"""The policy of a cluster's queue: order, discipline, weight, limits, preemption. Values with defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vctl.core.values import value

FIFO, PRIORITY, FAIR = "fifo", "priority", "fair"
LONGEST, SHORTEST = "longest", "shortest"
QUEUE_ORDERS = (FIFO, PRIORITY, FAIR, LONGEST, SHORTEST)
STRICT, BEST_EFFORT, BACKFILL = "strict", "best-effort", "backfill"
QUEUE_DISCIPLINES = (STRICT, BEST_EFFORT, BACKFILL)
OFF, REQUEUE, STOP = "off", "requeue", "stop"
PREEMPTIONS = (OFF, REQUEUE, STOP)

SECOND = 10**9
MOST_WEIGHT = 1_000_000
MOST_HEADS = 100


@value(frozen=True, slots=True)
class QueuePolicy:
    """The settings of one cluster's queue; all times in nanoseconds."""

    order: str = PRIORITY
    discipline: str = BEST_EFFORT
    weight: int = 1
    """The weight of the cluster among its siblings if the parent's order is ``fair``."""
    ageing_ns: int | None = None
    """The waiting time that counts as one step of priority; None: waiting does not count."""
    half_life_ns: int | None = None
    """For ``fair``: the time after which past usage counts half; None: only current usage counts."""
    starvation_after_ns: int = 600 * SECOND
    """The waiting time after which resources are reserved for the first job."""
    backfill_depth: int = 1
    """How many jobs at the head of the queue get a reserved start."""
    max_running_jobs: int | None = None
    max_running_per_user: int | None = None
    preemption: str = OFF
    """Whether a job may end running jobs of lower priority, and what becomes of these."""
    min_runtime_ns: int = 0
    """The time that an attempt runs before it may be preempted."""
    preemption_grace_ns: int = 30 * SECOND
    """The time between the notice to a job and its end."""

    @property
    def preempts(self) -> bool:
        """Whether preemption is on."""
        return self.preemption != OFF


DEFAULT = QueuePolicy()


def with_present_order(settings: Any) -> Any:
    """The settings of a state or a tree file, ``makespan`` read as ``longest``, which took its place."""
    if isinstance(settings, Mapping) and settings.get("order") == "makespan":
        return {**settings, "order": LONGEST}
    return settings
