"""The part of a round that starts tasks: in their own cluster where they fit, else after it has grown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vctl.core.ledger import Ledger
from vctl.core.resources import Holding
from vctl.core.tasks import SPREAD, PendingTask
from vctl.scheduler.elasticity import Grow, apply_growth, grow, growth_fits, revert_growth
from vctl.scheduler.tasking import TaskQueue, ancestors, choose, may_grow, shape_of


@dataclass(frozen=True, slots=True)
class TaskStart:
    """One task with its place, and how its cluster (and those above) grow for it, top level first."""

    task: PendingTask
    growth: tuple[Grow, ...]
    vnode_id: str
    node_id: str
    holding: Holding

    @property
    def run_id(self) -> str:
        """A name for the trial charge; the commit replaces it."""
        return f"trial:{self.task.task_id}"


@dataclass(frozen=True, slots=True)
class TaskWait:
    """Why a task does not start."""

    task_id: str
    message: str


def decide_tasks(
    ledger: Ledger, queues: Mapping[str, TaskQueue], grown: set[str], most: int
) -> tuple[list[TaskStart], list[TaskWait]]:
    """Start what fits, oldest first. ``grown`` are clusters that got room: only they are looked at again.

    What is started is applied to the ledger; the caller reverts.
    """
    starts: list[TaskStart] = []
    waits: list[TaskWait] = []
    for cluster_id in sorted(queues):
        queue = queues[cluster_id]
        if cluster_id not in ledger.clusters:
            continue
        if grown.intersection(ancestors(ledger, cluster_id)):
            queue.blocked.clear()
            queue.told.clear()
        for task in list(queue.tasks.values()):
            if len(starts) >= most:
                break
            shape = shape_of(task)
            if shape not in queue.blocked:
                if start := _start(ledger, task, queue.turn):
                    queue.turn += task.strategy == SPREAD
                    starts.append(start)
                    continue
                queue.blocked[shape] = _message(ledger, task)
            if task.task_id not in queue.told:
                queue.told.add(task.task_id)
                waits.append(TaskWait(task.task_id, queue.blocked[shape]))
    return starts, waits


def _start(ledger: Ledger, task: PendingTask, turn: int) -> TaskStart | None:
    growth: list[Grow] = []
    vnode = choose(ledger, task, turn)
    if vnode is None and may_grow(task):
        growth = grow(ledger, task.cluster_id, task.request, task.selector) or []
        vnode = choose(ledger, task, turn) if growth else None
    if vnode is None:
        for step in reversed(growth):
            revert_growth(ledger, step)
        return None
    holding = ledger.rooms[vnode.vnode_id].copy().take({n: a for n, a in task.request.items() if a})
    start = TaskStart(task, tuple(growth), vnode.vnode_id, vnode.node_id, holding)
    ledger.charge(start.run_id, vnode.vnode_id, holding)
    return start


def _message(ledger: Ledger, task: PendingTask) -> str:
    from vctl.scheduler.placement_reasons import amounts_text

    free = ledger.available(task.cluster_id)
    have = {name: free.get(name, 0) for name in task.request}
    return (
        f"needs {amounts_text(task.request)} on one virtual node; free in {task.cluster_id}: {amounts_text(have)},"
        " and neither it nor a cluster above can grow now"
    )


def task_still_fits(ledger: Ledger, start: TaskStart) -> bool:
    """Whether growth and place can still be had; leaves the ledger as it was."""
    done: list[Grow] = []
    try:
        for step in start.growth:
            if not growth_fits(ledger, step):
                return False
            apply_growth(ledger, step)
            done.append(step)
        room = ledger.rooms.get(start.vnode_id)
        return room is not None and room.fits_exactly(start.holding)
    finally:
        for step in reversed(done):
            revert_growth(ledger, step)


def apply_task(ledger: Ledger, start: TaskStart, run_id: str) -> None:
    """Take growth and place in a ledger."""
    for step in start.growth:
        apply_growth(ledger, step)
    ledger.charge(run_id, start.vnode_id, start.holding)


def revert_task(ledger: Ledger, start: TaskStart) -> None:
    """Undo a trial."""
    ledger.discharge(start.run_id)
    for step in reversed(start.growth):
        revert_growth(ledger, step)
