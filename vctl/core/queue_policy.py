"""How a cluster's queue is served: order, discipline, weight, limits, preemption. Values with defaults."""

from __future__ import annotations

from vctl.core.values import value

FIFO, PRIORITY, FAIR = "fifo", "priority", "fair"
LONGEST, SHORTEST, MAKESPAN = "longest", "shortest", "makespan"
QUEUE_ORDERS = (FIFO, PRIORITY, FAIR, LONGEST, SHORTEST, MAKESPAN)
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
    """Its part among its siblings, where the parent's order is ``fair``."""
    ageing_ns: int | None = None
    """Waiting so long counts as one step of priority; None: waiting does not count."""
    half_life_ns: int | None = None
    """``fair``: after so long past usage counts half; None: only what is held now counts."""
    starvation_after_ns: int = 600 * SECOND
    """A head that has waited so long has resources kept for it."""
    backfill_depth: int = 1
    """How many heads get a reserved start."""
    max_running_jobs: int | None = None
    max_running_per_user: int | None = None
    preemption: str = OFF
    """Whether a job may end running ones of lower priority, and what becomes of these."""
    min_runtime_ns: int = 0
    """So long an attempt runs before it may be preempted."""
    preemption_grace_ns: int = 30 * SECOND
    """What a job gets between being told and being ended."""

    @property
    def preempts(self) -> bool:
        """Whether preemption is on."""
        return self.preemption != OFF


DEFAULT = QueuePolicy()
