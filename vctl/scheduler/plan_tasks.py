"""What a round proposes for tasks: which start and where, how their clusters grow for them, and why others wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation
from vctl.core.tasks import PendingTask
from vctl.core.values import value
from vctl.scheduler.elasticity import Grow, apply_growth, growth_fits, revert_growth


@value(frozen=True, slots=True)
class TaskStart:
    """One task with its place, and how its cluster (and those above) grow for it, top level first."""

    task: PendingTask
    growth: tuple[Grow, ...]
    vnode_id: str
    node_id: str
    allocation: Allocation

    @property
    def run_id(self) -> str:
        """A name for the trial charge; the commit replaces it."""
        return f"trial:{self.task.task_id}"


@value(frozen=True, slots=True)
class TaskWait:
    """Why a task does not start. ``vnode_id``: it waits for this one, as load of it, and for no other."""

    task_id: str
    message: str
    vnode_id: str | None = None
    infeasible: bool = False
    """No virtual node could ever hold it."""


def task_still_fits(ledger: Ledger, start: TaskStart) -> bool:
    """Whether growth and place can still be had; leaves the ledger as it was."""
    with growing(ledger, start.growth) as grown:
        capacity = ledger.capacities.get(start.vnode_id) if grown else None
        return capacity is not None and capacity.fits_exactly(start.allocation)


@contextmanager
def growing(ledger: Ledger, growth: Iterable[Grow]) -> Iterator[bool]:
    """A ledger with growth taken for a while, and whether all of it could be taken."""
    done: list[Grow] = []
    try:
        for step in growth:
            if not growth_fits(ledger, step):
                break
            apply_growth(ledger, step)
            done.append(step)
        else:
            yield True
            return
        yield False
    finally:
        for step in reversed(done):
            revert_growth(ledger, step)


def apply_task(ledger: Ledger, start: TaskStart, run_id: str) -> None:
    """Take growth and place in a ledger."""
    for step in start.growth:
        apply_growth(ledger, step)
    ledger.charge(run_id, start.vnode_id, start.allocation)


def revert_task(ledger: Ledger, start: TaskStart) -> None:
    """Undo a trial."""
    ledger.discharge(start.run_id)
    for step in reversed(start.growth):
        revert_growth(ledger, step)
