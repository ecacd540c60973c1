"""Tasks that are not over, the queues of waiting tasks, and the objects that tasks use and leave."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.core.tasks import PENDING_ARGS, PENDING_NODE, RUNNING, Maker, StoredObject, Task
from vctl.core.values import replace
from vctl.scheduler.plan import TaskWait
from vctl.scheduler.task_queue import TaskQueue, TaskVerdict, Turns, kind_of, note_turn


class Tasks:
    """The part of the scheduler state that concerns tasks."""

    def __init__(self) -> None:
        self.unfinished: dict[str, Task] = {}
        self._of_job: dict[object, dict[str, None]] = {}
        self._of_owner: dict[object, dict[str, None]] = {}
        self._users: dict[object, dict[str, None]] = {}
        """(job, name of an object) -> the tasks that use it."""
        self.queues: dict[str, TaskQueue] = {}
        """cluster id -> its tasks that wait for a place."""
        self.last_spread: dict[str, tuple[int, str]] = {}
        """cluster id -> (rank, virtual node) of its last SPREAD task, while none of its tasks waits."""
        self.turns: dict[str, Turns] = {}
        """cluster id -> the turns of the classes of its tasks."""
        self.waiting_of: dict[int, int] = {}
        """job -> how many of its tasks wait, for inputs or for a place."""
        self.objects: dict[int, dict[str, StoredObject]] = {}
        """job -> name -> object."""
        self.makers: dict[int, dict[str, Maker]] = {}
        """job -> name -> the last maker that promised the object of that name."""
        self.with_objects: set[int] = set()
        """Jobs that have objects, or tasks with inputs or outputs."""

    def put(self, task: Task) -> None:
        """Add or replace a task."""
        before = self.unfinished.get(task.task_id)
        if before == task:
            return
        self.unfinished[task.task_id] = task
        if before is None:
            for index, key in self._indexes(task):
                index.setdefault(key, {})[task.task_id] = None
            if task.inputs or task.outputs:
                self.with_objects.add(task.job_id)
        else:
            self._leave(before)
        if task.state != RUNNING:
            self._count_waiting(task.job_id, 1)
        if task.state == PENDING_NODE:
            queue = self.queues.get(task.cluster_id)
            if queue is None:
                last_spread = self.last_spread.pop(task.cluster_id, None)
                turns = self.turns.setdefault(task.cluster_id, {})
                queue = TaskQueue(task.cluster_id, last_spread=last_spread, turns=turns)
                self.queues[task.cluster_id] = queue
            queue.put(task.pending(self._inputs_at(task)))
        elif task.state == RUNNING and (before is None or before.state != RUNNING):
            note_turn(self.turns.setdefault(task.cluster_id, {}), kind_of(task))

    def forget_cluster(self, cluster_id: str) -> None:
        """Forget where the tasks of a cluster that is gone had their last place and turn."""
        self.last_spread.pop(cluster_id, None)
        self.turns.pop(cluster_id, None)

    def drop(self, task_id: str) -> None:
        """Remove a task that is over."""
        task = self.unfinished.pop(task_id, None)
        if task is None:
            return
        self._leave(task)
        for index, key in self._indexes(task):
            del index[key][task_id]
            if not index[key]:
                del index[key]

    def _indexes(self, task: Task) -> list[tuple[dict[object, dict[str, None]], object]]:
        """The indexes that contain a task while it is not over, with its key in each."""
        users = [(self._users, (task.job_id, name)) for name in task.inputs]
        return [(self._of_job, task.job_id), (self._of_owner, task.owner_id), *users]

    def of_job(self, job_id: int) -> list[Task]:
        """The tasks of a job that are not over, oldest first."""
        if job_id not in self._of_job:
            return []
        return [self.unfinished[task_id] for task_id in self._of_job[job_id]]

    def of_owner(self, owner_id: str) -> list[Task]:
        """The unfinished tasks that an owner, a job (submission id) or a task, started and did not detach."""
        tasks = [self.unfinished[task_id] for task_id in self._of_owner.get(owner_id, ())]
        return [task for task in tasks if not task.detached]

    def _leave(self, task: Task) -> None:
        if task.state != RUNNING:
            self._count_waiting(task.job_id, -1)
        if task.state == PENDING_NODE:
            queue = self.queues[task.cluster_id]
            queue.drop(task.task_id)
            if not queue.tasks:
                if queue.last_spread is not None:
                    self.last_spread[task.cluster_id] = queue.last_spread
                del self.queues[task.cluster_id]

    def _count_waiting(self, job_id: int, more: int) -> None:
        count = self.waiting_of.get(job_id, 0) + more
        if count:
            self.waiting_of[job_id] = count
        else:
            del self.waiting_of[job_id]

    def is_queued(self, task_id: str) -> bool:
        """Whether a task waits for a place."""
        task = self.unfinished.get(task_id)
        return task is not None and task.state == PENDING_NODE

    def awaiting(self) -> dict[str, int]:
        """Tasks whose inputs are not all there, with their jobs."""
        return {task.task_id: task.job_id for task in self.unfinished.values() if task.state == PENDING_ARGS}

    def note_message(self, wait: TaskWait) -> None:
        """Record the message that a waiting task got, so that the message does not cause a new judgement."""
        queue = self.queues[self.unfinished[wait.task_id].cluster_id]
        queue.note_reported(wait.task_id, TaskVerdict(wait.message))

    # ---- objects ----

    def put_copy(
        self, job_id: int, name: str, node_id: str, size: int, maker: str | None, cluster_id: str
    ) -> None:
        """Record a copy of an object on a node."""
        self.with_objects.add(job_id)
        objects = self.objects.setdefault(job_id, {})
        stored = objects.get(name) or StoredObject(maker, {})
        there = {**stored.clusters, node_id: cluster_id}
        objects[name] = replace(stored, at={**stored.at, node_id: size}, clusters=there)
        self._moved(job_id, name)

    def lose_copy(self, job_id: int, name: str, node_id: str | None) -> None:
        """Forget the copy of an object on a node, or (None) all its copies."""
        objects = self.objects.get(job_id, {})
        if (stored := objects.pop(name, None)) is None:
            return
        if copies := {} if node_id is None else {n: size for n, size in stored.at.items() if n != node_id}:
            objects[name] = replace(stored, at=copies, clusters={n: stored.clusters[n] for n in copies})
        if not objects:
            del self.objects[job_id]
        self._moved(job_id, name)

    def promise(self, job_id: int, names: Iterable[str], maker: Maker) -> None:
        """Record the maker of these objects."""
        for name in names:
            self.makers.setdefault(job_id, {})[name] = maker

    def users(self, job_id: int, names: Iterable[str]) -> list[Task]:
        """Tasks that have not started and use one of these objects, oldest first."""
        task_ids = {task_id for name in names for task_id in self._users.get((job_id, name), ())}
        tasks = (self.unfinished[task_id] for task_id in task_ids)
        return sorted((task for task in tasks if task.state != RUNNING), key=lambda task: task.number)

    def drop_objects(self, job_id: int) -> None:
        """Forget the objects of a job and their makers."""
        self.objects.pop(job_id, None)
        self.makers.pop(job_id, None)
        self.with_objects.discard(job_id)

    def _inputs_at(self, task: Task) -> dict[str, int]:
        """Node id -> the bytes of a task's inputs there."""
        sizes: dict[str, int] = {}
        for name in task.inputs:
            stored = self.objects.get(task.job_id, {}).get(name)
            for node_id, size in () if stored is None else stored.at.items():
                sizes[node_id] = sizes.get(node_id, 0) + size
        return sizes

    def _moved(self, job_id: int, name: str) -> None:
        """Update the waiting tasks that use an object, because its copies determine their nearest node."""
        for task_id in self._users.get((job_id, name), ()):
            task = self.unfinished[task_id]
            if task.state == PENDING_NODE:
                self.queues[task.cluster_id].replace(task.pending(self._inputs_at(task)))
