"""How a cluster's queue is served: order, discipline, weight among its siblings, limits. Values with defaults."""

from __future__ import annotations

from dataclasses import dataclass

FIFO, PRIORITY, FAIR = "fifo", "priority", "fair"
QUEUE_ORDERS = (FIFO, PRIORITY, FAIR)
STRICT, BEST_EFFORT, BACKFILL = "strict", "best-effort", "backfill"
QUEUE_DISCIPLINES = (STRICT, BEST_EFFORT, BACKFILL)

SECOND = 10**9
MOST_WEIGHT = 1_000_000
MOST_HEADS = 100


@dataclass(frozen=True, slots=True)
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
    """A head that has waited so long has room kept for it."""
    backfill_depth: int = 1
    """How many heads get a reserved start."""
    max_running_jobs: int | None = None
    max_running_per_user: int | None = None


DEFAULT = QueuePolicy()
