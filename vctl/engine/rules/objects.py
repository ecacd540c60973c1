"""Tasks that use objects: they become ready, wait while other tasks make the objects, or fail."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import Run
from vctl.core.nodes import DEAD
from vctl.core.tasks import Maker, Task
from vctl.core.values import value
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
    from vctl.engine.stimuli import Outputs

EXIT_OUTPUT_MISSING = 1


class JobObjects(Protocol):
    """The objects of a job, in the tables or in a scheduler's state, after all changes emitted before."""

    @property
    def job_id(self) -> int:
        """The number of the job."""

    def users(self, names: Collection[str]) -> Iterable[Task]:
        """Tasks that have not started and use one of these objects, oldest first."""

    def there(self, names: Collection[str]) -> Collection[str]:
        """The names among these whose objects exist."""

    def makers(self, names: Collection[str]) -> Mapping[str, Maker]:
        """Name -> the maker of the object, where it is known."""

    def takes_tasks(self) -> bool:
        """Whether the job runs: some task may still make an object that nobody has promised."""


@value(frozen=True, slots=True)
class KnownObjects:
    """The objects of a job in the state of a scheduler."""

    state: SchedulerState
    job_id: int

    def users(self, names: Collection[str]) -> Collection[Task]:
        """Tasks that have not started and use one of these objects, oldest first."""
        return self.state.tasks.users(self.job_id, names)

    def there(self, names: Collection[str]) -> Collection[str]:
        """The names among these whose objects exist."""
        return self.state.tasks.objects.get(self.job_id, {}).keys() & set(names)

    def makers(self, names: Collection[str]) -> Mapping[str, Maker]:
        """Name -> the maker of the object, where it is known."""
        known = self.state.tasks.makers.get(self.job_id, {})
        return {name: known[name] for name in names if name in known}

    def takes_tasks(self) -> bool:
        """Whether the job runs."""
        return self.job_id in self.state.running.jobs


@value(frozen=True, slots=True)
class InputsVerdict:
    """``awaits`` names a task's missing inputs, ``broken`` says why it never can run; both empty: ready."""

    awaits: str = ""
    broken: str = ""


def judge(objects: JobObjects, names: Collection[str]) -> InputsVerdict:
    """Whether the objects of these names exist, may still be made, or cannot be made any more."""
    there = objects.there(names)
    missing = [name for name in names if name not in there]
    makers = objects.makers(missing) if missing else {}
    awaits: list[str] = []
    for name in missing:
        maker = makers.get(name)
        if maker is None:
            if not objects.takes_tasks():
                return InputsVerdict(broken=f"no task produces input {name}, and the job has ended")
            awaits.append(f"{name}, which no task produces yet")
        elif maker.task_id is None or maker.state is not None:
            return InputsVerdict(broken=_why_broken(name, maker))
        else:
            awaits.append(f"{name} from {maker.task_id}")
    return InputsVerdict(awaits=f"waits for {' and '.join(awaits)}" if awaits else "")


def _why_broken(name: str, maker: Maker) -> str:
    if maker.task_id is None:
        return f"input {name} was put by the entrypoint and is lost: the node it lay on is gone"
    if maker.state == tk.FINISHED:
        return f"input {name} of {maker.task_id} is lost: {maker.node_id}, where it lay, is gone"
    return f"input {name} cannot be produced: {maker.task_id} FAILED ({maker.reason})"


def settle(objects: JobObjects, names: Iterable[str], now: int) -> Iterator[Change]:
    """Move the tasks that use objects of these names, after something happened to the objects.

    A task whose inputs all exist waits for a place. A task with an input that cannot be made is FAILED
    ``InputFailed``, and so are the tasks that wait for its outputs.
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
    state: SchedulerState, run: Run, outcome: Outcome, outputs: Outputs, now: int
) -> Generator[Change, None, Outcome]:
    """Record the outputs of a task that succeeded. Returns its outcome: FAILED if an output is missing."""
    if isinstance(outputs, str):
        message = f"exited with code 0 without its output in $VCTL_OBJECT_DIR: {outputs}"
        return outcome._replace(
            status=jb.FAILED,
            reason=tk.OUTPUT_MISSING,
            exit_code=EXIT_OUTPUT_MISSING,
            message=message,
        )
    node = state.ledger.nodes.get(run.node_id)
    if node is not None and node.state != DEAD:
        for name, size in outputs.items():
            yield ObjectCreated(now, run.job_id, name, run.node_id, run.cluster_id, size, run.task_id)
    return outcome


def give_up(state: SchedulerState, job_id: int, now: int) -> Iterator[Change]:
    """Fail the tasks that wait for objects that nobody makes, because their job takes no more tasks."""
    waiting = (task for task in state.tasks.of_job(job_id) if task.state == tk.PENDING_ARGS)
    yield from settled(state, job_id, sorted({name for task in waiting for name in task.inputs}), now)


def lost(state: SchedulerState, now: int) -> Iterator[Change]:
    """Record the loss of the object copies on nodes that are dead or were removed."""
    alive = state.ledger.nodes.keys() - state.dead_nodes if state.tasks.objects else ()
    there = sorted(
        (job_id, name, node_id)
        for job_id, objects in state.tasks.objects.items()
        for name, stored in objects.items()
        for node_id in stored.at.keys() - alive
    )
    names: dict[int, list[str]] = {}
    for job_id, name, node_id in there:
        stored = state.tasks.objects[job_id][name]
        is_last = len(stored.at) == 1
        yield ObjectLost(job_id, name, node_id, stored.clusters.get(node_id), silent=not is_last)
        if is_last:
            names.setdefault(job_id, []).append(name)
    for job_id, lost_names in names.items():
        yield from settled(state, job_id, lost_names, now)


def abandoned(state: SchedulerState, now: int) -> Iterator[Change]:
    """Finish the end of jobs during which a scheduler died: fail their waiting tasks, drop their objects."""
    for job_id in sorted(set(state.tasks.awaiting().values()) - state.running.jobs.keys()):
        yield from give_up(state, job_id, now)
    for job_id in sorted(state.tasks.with_objects - state.running.jobs.keys()):
        if not state.tasks.of_job(job_id):
            yield from drop(state, job_id)


def drop(state: SchedulerState, job_id: int) -> Iterator[Change]:
    """Drop the objects of a job that is over or is queued again."""
    if job_id in state.tasks.with_objects:
        there = state.tasks.objects.get(job_id, {})
        yield ObjectsDropped(job_id, sum(len(stored.at) for stored in there.values()))


def what_follows(objects: JobObjects, task: Task, now: int) -> Change | None:
    """The change that the inputs of a task that has not started demand; None if it needs no change."""
    key = task.task_id, task.job_id, task.cluster_id
    verdict = judge(objects, task.inputs)
    if verdict.broken:
        return TaskEnded(now, *key, "cancel", tk.INPUT_FAILED, verdict.broken)
    waits = task.state == tk.PENDING_ARGS
    if verdict.awaits:
        return None if waits and task.awaits == verdict.awaits else TaskAwaits(*key, verdict.awaits)
    return TaskReady(*key) if waits else None
