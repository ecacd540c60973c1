"""Tasks that use objects: they become ready, wait while other tasks make the objects, or fail with them."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import Run
from vctl.core.nodes import DEAD
from vctl.core.tasks import Maker, Task
from vctl.engine.changes import (
    Change,
    ObjectCreated,
    ObjectLost,
    ObjectsDropped,
    TaskAwaits,
    TaskEnded,
    TaskReady,
)

if TYPE_CHECKING:
    from vctl.engine.rules.outcomes import Outcome
    from vctl.engine.state import SchedulerState
    from vctl.engine.stimuli import Left

EXIT_OUTPUT_MISSING = 1


class JobObjects(Protocol):
    """The objects of a job, as the tables or a scheduler know them. What was emitted before is seen."""

    @property
    def job_id(self) -> int:
        """The number of the job."""

    def users(self, names: Collection[str]) -> Iterable[Task]:
        """Tasks that have not started and use one of these objects, oldest first."""

    def there(self, names: Collection[str]) -> Collection[str]:
        """Which of these objects there are."""

    def makers(self, names: Collection[str]) -> Mapping[str, Maker]:
        """Name -> the maker of the object, as far as it is known."""

    def takes_tasks(self) -> bool:
        """Whether the job runs: some task may still make an object that nobody has promised."""


@dataclass(frozen=True, slots=True)
class KnownObjects:
    """The objects of a job in the state of a scheduler."""

    state: SchedulerState
    job_id: int

    def users(self, names: Collection[str]) -> Collection[Task]:
        """Tasks that have not started and use one of these objects, oldest first."""
        return self.state.tasks.users(self.job_id, names)

    def there(self, names: Collection[str]) -> Collection[str]:
        """Which of these objects there are."""
        return self.state.tasks.objects.get(self.job_id, {}).keys() & set(names)

    def makers(self, names: Collection[str]) -> Mapping[str, Maker]:
        """Name -> the maker of the object."""
        known = self.state.tasks.makers.get(self.job_id, {})
        return {name: known[name] for name in names if name in known}

    def takes_tasks(self) -> bool:
        """Whether the job runs."""
        return self.job_id in self.state.running.jobs


@dataclass(frozen=True, slots=True)
class Verdict:
    """``awaits``: which inputs of a task are missing, ``broken`` why it can never run; both empty: all are there."""

    awaits: str = ""
    broken: str = ""


def judge(objects: JobObjects, names: Collection[str]) -> Verdict:
    """Whether the objects of these names are there, may still come, or cannot come any more."""
    there = objects.there(names)
    missing = [name for name in names if name not in there]
    makers = objects.makers(missing) if missing else {}
    awaits: list[str] = []
    for name in missing:
        maker = makers.get(name)
        if maker is None:
            if not objects.takes_tasks():
                return Verdict(broken=f"no task produces input {name}, and the job has ended")
            awaits.append(f"{name}, which no task produces yet")
        elif maker.task_id is None or maker.state is not None:
            return Verdict(broken=_why_broken(name, maker))
        else:
            awaits.append(f"{name} from {maker.task_id}")
    return Verdict(awaits=f"waits for {' and '.join(awaits)}" if awaits else "")


def _why_broken(name: str, maker: Maker) -> str:
    if maker.task_id is None:
        return f"input {name} was put by the entrypoint and is lost: the node it lay on is gone"
    if maker.state == tk.FINISHED:
        return f"input {name} of {maker.task_id} is lost: {maker.node_id}, where it lay, is gone"
    return f"input {name} cannot be produced: {maker.task_id} FAILED ({maker.reason})"


def settle(objects: JobObjects, names: Iterable[str], now: int) -> Iterator[Change]:
    """Something happened to the objects of these names: move the tasks that wait for them.

    One whose inputs are all there waits for a place; one whose input cannot come is FAILED ``InputFailed``, and with
    it what waits for its outputs.
    """
    pending = list(names)
    while pending:
        moved: list[str] = []
        for task in objects.users(pending):
            if (change := what_follows(objects, task, now)) is not None:
                yield change
                moved += task.outputs
        pending = moved


def settled(state: SchedulerState, job_id: int, names: Collection[str], now: int) -> Iterator[Change]:
    """Like ``settle``, for the objects in the state of a scheduler."""
    if names:
        yield from settle(KnownObjects(state, job_id), names, now)


def keep(
    state: SchedulerState, run: Run, outcome: Outcome, left: Left, now: int
) -> Generator[Change, None, Outcome]:
    """Record the outputs of a task that ended well. One that did not leave what it declared has not ended well."""
    if isinstance(left, str):
        message = f"exited with code 0 without its output in $VCTL_OBJECT_DIR: {left}"
        return outcome._replace(
            status=jb.FAILED,
            reason=tk.OUTPUT_MISSING,
            exit_code=EXIT_OUTPUT_MISSING,
            message=message,
        )
    node = state.ledger.nodes.get(run.node_id)
    if node is not None and node.state != DEAD:
        for name, size in left.items():
            yield ObjectCreated(now, run.job_id, name, run.node_id, run.cluster_id, size, run.task_id)
    return outcome


def give_up(state: SchedulerState, job_id: int, now: int) -> Iterator[Change]:
    """A job takes no more tasks: those that wait for what nobody makes fail."""
    waiting = (task for task in state.tasks.of_job(job_id) if task.state == tk.PENDING_ARGS)
    yield from settled(state, job_id, sorted({name for task in waiting for name in task.inputs}), now)


def lost(state: SchedulerState, now: int) -> Iterator[Change]:
    """Nodes are gone, and what lay on them."""
    alive = state.ledger.nodes.keys() - state.dead_nodes if state.tasks.objects else ()
    there = sorted(
        (job_id, name, node_id)
        for job_id, found in state.tasks.objects.items()
        for name, one in found.items()
        for node_id in one.at.keys() - alive
    )
    names: dict[int, list[str]] = {}
    for job_id, name, node_id in there:
        one = state.tasks.objects[job_id][name]
        is_last = len(one.at) == 1
        yield ObjectLost(job_id, name, node_id, one.clusters.get(node_id), silent=not is_last)
        if is_last:
            names.setdefault(job_id, []).append(name)
    for job_id, found in names.items():
        yield from settled(state, job_id, found, now)


def left_behind(state: SchedulerState, now: int) -> Iterator[Change]:
    """End tasks that wait for a job that is over, and drop its objects: a scheduler may have died before it did."""
    for job_id in sorted(set(state.tasks.awaiting().values()) - state.running.jobs.keys()):
        yield from give_up(state, job_id, now)
    for job_id in sorted(state.tasks.with_objects - state.running.jobs.keys()):
        if not state.tasks.of_job(job_id):
            yield from drop(state, job_id)


def drop(state: SchedulerState, job_id: int) -> Iterator[Change]:
    """The objects of a job go with it."""
    if job_id in state.tasks.with_objects:
        there = state.tasks.objects.get(job_id, {})
        yield ObjectsDropped(job_id, sum(len(one.at) for one in there.values()))


def what_follows(objects: JobObjects, task: Task, now: int) -> Change | None:
    """The change that lets a task that has not started be what its inputs say; None where it is that already."""
    key = task.task_id, task.job_id, task.cluster_id
    verdict = judge(objects, task.inputs)
    if verdict.broken:
        return TaskEnded(now, *key, "cancel", tk.INPUT_FAILED, verdict.broken)
    waits = task.state == tk.PENDING_ARGS
    if verdict.awaits:
        return None if waits and task.awaits == verdict.awaits else TaskAwaits(*key, verdict.awaits)
    return TaskReady(*key) if waits else None
