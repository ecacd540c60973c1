"""What the node provider should add: the fewest nodes of its templates that let what waits start. Tried for real."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.resources import DEFAULT_UNITS, Amounts, whole_node
from vctl.core.tasks import PendingTask
from vctl.scheduler.elasticity import Grow, grow, revert_growth
from vctl.scheduler.gang_growth import grow_for_gang
from vctl.scheduler.placement import Placed, place
from vctl.scheduler.plan import Start, revert, start_of, take
from vctl.scheduler.queueing import Queue
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.tasking import may_grow

MOST_NODES = 64
"""Most nodes that one round asks for; the next round asks for more."""


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of node that the provider can make: at most ``most`` at a time."""

    name: str
    resources: Amounts
    most: int
    labels: Mapping[str, str] = field(default_factory=dict)


UP, DOWN = "up", "down"


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What a node provider was asked for: the same ``request_id``, however often it is asked, is the same machines.

    ``nodes``: for ``up`` the ids that the machines get unless the provider names others, for ``down`` those that go.
    """

    request_id: str
    kind: str
    action: str
    template: str
    amounts: Amounts
    labels: Mapping[str, str]
    nodes: tuple[str, ...]
    created_at: int
    attempts: int = 0
    message: str | None = None


def wanted_nodes(
    ledger: Ledger,
    queues: Mapping[str, Queue],
    tasks: Mapping[str, TaskQueue],
    templates: Iterable[Template],
    present: Mapping[str, int],
    units: frozenset[str] = DEFAULT_UNITS,
) -> dict[str, int]:
    """How many nodes of each template to add now. ``present`` counts those that exist or are being made.

    For each job and task that waits, in order, the smallest template that lets it start is added to a trial.
    The ledger is as before afterwards.
    """
    trial = _Trial(
        ledger, sorted(templates, key=lambda t: (sum(t.resources.values()), t.name)), dict(present), units
    )
    grown = {cluster_id: set(ids) for cluster_id, ids in ledger.grown.items()}
    joined = {cluster_id: set(ids) for cluster_id, ids in ledger.joined.items()}
    try:
        for queue in tasks.values():
            for task in queue.tasks.values():
                if may_grow(task) and task.bound_vnode_id is None:
                    trial.satisfy_task(task)
        for queue_ in queues.values():
            for shape in queue_.shapes.values():
                if shape.blocked is not None:
                    for _, job_id in shape.order:
                        if not trial.satisfy_job(queue_, job_id):
                            break
    finally:
        trial.undo()
        ledger.grown, ledger.joined = grown, joined
    return trial.added


class _Trial:
    """A ledger with nodes that do not exist yet, and everything that must be undone."""

    def __init__(
        self, ledger: Ledger, templates: list[Template], present: dict[str, int], units: frozenset[str]
    ) -> None:
        self.ledger = ledger
        self.templates = templates
        self.present = present
        self.units = units
        self.added: dict[str, int] = {}
        self._nodes: list[str] = []
        self._undo: list[Grow | Start | str] = []

    def satisfy_task(self, task: PendingTask) -> bool:
        """Give a task a place, adding one node when that helps."""
        if self._place_task(task):
            return True
        for template in self._available():
            self._add(template)
            if self._place_task(task):
                return True
            self._remove_last(template)
        return False

    def satisfy_job(self, queue: Queue, job_id: int) -> bool:
        """Give a job its gang, adding as many nodes of one template as that takes."""
        if self._place_job(queue, job_id):
            return True
        for template in self._available():
            added = 0
            while len(self._nodes) < MOST_NODES and template in self._available():
                self._add(template)
                added += 1
                if self._place_job(queue, job_id):
                    return True
            for _ in range(added):
                self._remove_last(template)
        return False

    def _available(self) -> list[Template]:
        if len(self._nodes) >= MOST_NODES:
            return []
        return [t for t in self.templates if self.present.get(t.name, 0) < t.most]

    def _add(self, template: Template) -> None:
        node_id = f"~{len(self._nodes)}"  # sorts after every real id, so that nodes that exist come first
        total = whole_node(template.resources, self.units)
        self.ledger.put_node(Node(node_id, template.name, total, node_id, template.labels))
        self._nodes.append(node_id)
        self.added[template.name] = self.added.get(template.name, 0) + 1
        self.present[template.name] = self.present.get(template.name, 0) + 1

    def _remove_last(self, template: Template) -> None:
        self.ledger.remove_node(self._nodes.pop())
        self.present[template.name] -= 1
        self.added[template.name] -= 1
        if not self.added[template.name]:
            del self.added[template.name]

    def _place_task(self, task: PendingTask) -> bool:
        steps = grow(self.ledger, task.cluster_id, task.request, task.selector)
        if steps is None:
            return False
        self._undo += steps
        run_id = f"wanted:{task.task_id}"
        vnode_id = steps[-1].after.vnode_id
        self.ledger.charge(run_id, vnode_id, self.ledger.rooms[vnode_id].copy().take(task.request))
        self._undo.append(run_id)
        return True

    def _place_job(self, queue: Queue, job_id: int) -> bool:
        job = queue.jobs[job_id]
        found = place(self.ledger, job.parent_id, job.spec, job.entry)
        steps: list[Grow] = []
        if not isinstance(found, Placed):
            grown = None
            if self.ledger.clusters[job.parent_id].spec.flexible:
                grown = grow_for_gang(self.ledger, job.parent_id, job.spec, job.entry)
            if grown is None:
                return False
            steps, found = grown
        start = start_of(self.ledger, job, found, steps)
        take(self.ledger, start, start.run_id)
        self._undo.append(start)
        return True

    def undo(self) -> None:
        """Take everything back, newest first."""
        for done in reversed(self._undo):
            if isinstance(done, str):
                self.ledger.discharge(done)
            elif isinstance(done, Start):
                revert(self.ledger, done)
            else:
                revert_growth(self.ledger, done)
        for node_id in reversed(self._nodes):
            self.ledger.remove_node(node_id)
