"""The queue of tasks that wait for a place in one cluster. Equal tasks share a sub-queue and a verdict.

Unequal tasks take turns: each start is the turn of a class, and the class that had its last turn before all
others is next. So a long row of equal tasks holds back no task of another class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from heapq import heapify, heappop, heappush
from itertools import islice

from vctl.core import resources as rs
from vctl.core.demand import Request
from vctl.core.resources import Amounts
from vctl.core.tasks import PendingTask, Task
from vctl.core.values import field, value

SchedulingClass = object
MOST_REPORTED = 64
"""The number of tasks of a sub-queue for which every new text of the verdict is reported; for the tasks
behind them only a change between feasible and infeasible is.
"""


@value(frozen=True, slots=True)
class TaskVerdict:
    """Why the tasks of one shape do not start. ``infeasible``: no virtual node of the cluster suffices."""

    message: str
    infeasible: bool = False


Turns = dict[object, int]
MOST_TURNS = 1_000
"""The number of classes whose turns are remembered in one cluster; others count as if they had had none."""


def shape_of(task: PendingTask) -> SchedulingClass:
    """The scheduling class of a task: equal tasks fit the same places."""
    return *kind_of(task), task.bound_vnode_id


def kind_of(task: Task | PendingTask) -> tuple[object, ...]:
    """The class of a task that takes turns with others, wherever its tasks wait: its request and its strategy."""
    return rs.shape_of(task.request), task.selector, task.strategy


def note_turn(turns: Turns, kind: object) -> None:
    """Note that a class had its turn, the last of all so far."""
    last = next(reversed(turns.values()), 0)
    turns.pop(kind, None)
    turns[kind] = last + 1
    if len(turns) > MOST_TURNS:
        del turns[next(iter(turns))]


def in_turn(tasks: Iterable[PendingTask], turns: Turns) -> Iterator[PendingTask]:
    """Tasks of one cluster in the order in which they would start if all of them had room."""
    turns, kinds = dict(turns), dict[object, deque[PendingTask]]()
    for task in sorted(tasks, key=lambda task: task.number):
        kinds.setdefault(kind_of(task), deque()).append(task)
    order = [(turns.get(kind, 0), many[0].number, kind) for kind, many in kinds.items()]
    heapify(order)
    while order:
        kind = heappop(order)[2]
        yield kinds[kind].popleft()
        note_turn(turns, kind)
        if kinds[kind]:
            heappush(order, (turns[kind], kinds[kind][0].number, kind))


@value(slots=True)
class TaskQueue:
    """Tasks of one cluster that wait for a place, oldest first."""

    cluster_id: str
    tasks: dict[str, PendingTask] = field(default_factory=dict)
    sub_queues: dict[SchedulingClass, dict[str, PendingTask]] = field(default_factory=dict)
    """Shape -> its tasks, oldest first."""
    blocked: dict[SchedulingClass, TaskVerdict] = field(default_factory=dict)
    """Shape -> its verdict, until capacity that may help comes free."""
    before: dict[SchedulingClass, TaskVerdict] = field(default_factory=dict)
    """Shape -> the verdict that was reported last for its tasks."""
    load: dict[str, dict[str, int]] = field(default_factory=dict)
    """vnode id -> the sum of the requests of the tasks that are bound to it."""
    bound: dict[str, dict[str, PendingTask]] = field(default_factory=dict)
    """vnode id -> the tasks that are bound to it, oldest first."""
    unreported: dict[SchedulingClass, dict[str, None]] = field(default_factory=dict)
    """Shape -> tasks for which the present verdict must still be reported."""
    last_spread: tuple[int, str] | None = None
    """Rank and id of the virtual node of the last SPREAD task."""
    turns: Turns = field(default_factory=dict)
    """Class of tasks -> the number of its last turn in the cluster; the class with the lowest is next."""

    def put(self, task: PendingTask) -> None:
        """Add a task at the position of its number."""
        shape = shape_of(task)
        self.tasks[task.task_id] = task
        _insert(self.sub_queues.setdefault(shape, {}), task)
        self.unreported.setdefault(shape, {})[task.task_id] = None
        if task.bound_vnode_id is not None:
            _insert(self.bound.setdefault(task.bound_vnode_id, {}), task)
            self.load[task.bound_vnode_id] = rs.add(self.load.get(task.bound_vnode_id, {}), task.request)

    def drop(self, task_id: str) -> None:
        """Remove a task, if it is in the queue."""
        task = self.tasks.pop(task_id, None)
        if task is None:
            return
        shape = shape_of(task)
        del self.sub_queues[shape][task_id]
        self._drop_unreported(shape, task_id)
        if not self.sub_queues[shape]:
            del self.sub_queues[shape]
            self.blocked.pop(shape, None)
            self.before.pop(shape, None)
        if (vnode_id := task.bound_vnode_id) is not None:
            del self.bound[vnode_id][task_id]
            self.load[vnode_id] = rs.subtract(self.load[vnode_id], task.request)
            if not self.bound[vnode_id]:
                del self.bound[vnode_id], self.load[vnode_id]

    def note_reported(self, task_id: str, verdict: TaskVerdict) -> None:
        """Note that this verdict was reported before for a queued task."""
        shape = shape_of(self.tasks[task_id])
        self._drop_unreported(shape, task_id)
        self.blocked.setdefault(shape, verdict)
        self.before.setdefault(shape, verdict)

    def replace(self, task: PendingTask) -> None:
        """Take over a new row of a task with the same shape."""
        self.tasks[task.task_id] = self.sub_queues[shape_of(task)][task.task_id] = task
        if task.bound_vnode_id is not None:
            self.bound[task.bound_vnode_id][task.task_id] = task

    def forget_verdicts(self) -> None:
        """Forget the verdicts, so that all tasks are judged again."""
        self.blocked.clear()

    def block(self, shape: SchedulingClass, verdict: TaskVerdict) -> None:
        """Set the verdict of a sub-queue, and note for which of its tasks it must be reported."""
        self.blocked[shape] = verdict
        before, self.before[shape] = self.before.get(shape), verdict
        if before != verdict:
            to_all = before is None or before.infeasible != verdict.infeasible
            news = islice(self.sub_queues[shape], None if to_all else MOST_REPORTED)
            self.unreported.setdefault(shape, {}).update(dict.fromkeys(news))

    def to_report(self, besides: Set[str] = frozenset()) -> list[tuple[PendingTask, TaskVerdict]]:
        """The tasks whose verdict must be reported, each with its verdict, without those in ``besides``."""
        waits: list[tuple[PendingTask, TaskVerdict]] = []
        for shape in [shape for shape in self.unreported if shape in self.blocked]:
            unreported = self.unreported.pop(shape)
            waits += [(self.tasks[id_], self.blocked[shape]) for id_ in unreported if id_ not in besides]
            if rest := {task_id: None for task_id in unreported if task_id in besides}:
                self.unreported[shape] = rest
        return waits

    def _drop_unreported(self, shape: SchedulingClass, task_id: str) -> None:
        if unreported := self.unreported.get(shape):
            unreported.pop(task_id, None)
            if not unreported:
                del self.unreported[shape]

    def requests(self) -> Iterator[Request]:
        """What its tasks ask of nodes, for each shape."""
        for sub_queue in self.sub_queues.values():
            task = next(iter(sub_queue.values()))
            yield Request(task.selector, rs.shape_of(task.request))

    def load_before(self, vnode_id: str, number: int, started: set[str]) -> Amounts:
        """The sum of requests bound to a virtual node by tasks before ``number``, less those ``started``."""
        load: Amounts = {}
        for task in self.bound.get(vnode_id, {}).values():
            if task.number >= number:
                break
            if task.task_id not in started:
                load = rs.add(load, task.request)
        return load


def queues_of(tasks: Iterable[PendingTask], turns: Mapping[str, Turns]) -> dict[str, TaskQueue]:
    """The queues of waiting tasks, by cluster. ``turns``: cluster -> the turns of its classes so far."""
    queues: dict[str, TaskQueue] = {}
    for task in tasks:
        if (cluster_id := task.cluster_id) not in queues:
            queues[cluster_id] = TaskQueue(cluster_id, turns=dict(turns.get(cluster_id, {})))
        queues[cluster_id].put(task)
    return queues


def _insert(sub_queue: dict[str, PendingTask], task: PendingTask) -> None:
    """Insert a task in the order of numbers; its place is almost always the last."""
    last = next(reversed(sub_queue.values()), None)
    sub_queue[task.task_id] = task
    if last is not None and last.number > task.number:
        ordered = sorted(sub_queue.items(), key=lambda item: item[1].number)
        sub_queue.clear()
        sub_queue.update(ordered)
