"""Provisioning: the nodes that the node provider should add so that waiting jobs and tasks start.

It adds few nodes, of templates that waste little; a placement on a trial proves each addition. What is borrowed
and idle comes first (``recall``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node, Template
from vctl.core.resources import DEFAULT_UNITS, whole_node
from vctl.core.tasks import PendingTask
from vctl.scheduler.gang_growth import one_piece, place_or_grow, place_with_growth
from vctl.scheduler.plan import Start, TaskStart, revert, start_of, take
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.tasking import pinned_to, settled

MOST_NODES = 64
"""The most nodes of one round; the next round requests more."""
MOST_OF_GANG = 1000
"""The most nodes for one gang that needs more than ``MOST_NODES`` at once."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The nodes to request by template."""

    nodes: Mapping[str, int]
    spare: Mapping[str, int] = field(default_factory=dict)
    """Template -> the number of requested nodes that have not come yet and are not needed any more."""


def wanted_nodes(
    ledger: Ledger,
    queues: Mapping[str, Queue],
    tasks: Mapping[str, TaskQueue],
    templates: Iterable[Template],
    present: Mapping[str, int],
    units: frozenset[str] = DEFAULT_UNITS,
    *,
    coming: Mapping[str, int] | None = None,
    running: Running | None = None,
    now_ns: int = 0,
) -> Wanted:
    """The nodes of each template to add now. ``present``: existing, ``coming``: requested nodes by template.

    For each waiting job and task, in order, a trial gets the fewest nodes that let it start, of the templates
    that waste least. The ledger is left as it was.
    """
    kinds = list(templates)
    running = Running() if running is None else running

    grown, joined, ledger.grown, ledger.joined = ledger.grown, ledger.joined, {}, {}
    trial = _Trial(ledger, kinds, dict(present), units)
    try:
        trial.expect(coming or {})
        trial.satisfy_all(queues, tasks, running, now_ns)
    finally:
        trial.undo()
        ledger.grown, ledger.joined = grown, joined
    return Wanted(trial.added, trial.spare)


class _Trial:
    """A ledger with nodes that do not exist yet, and the starts on it that must be reverted."""

    def __init__(
        self, ledger: Ledger, templates: list[Template], present: dict[str, int], units: frozenset[str]
    ) -> None:
        self.ledger = ledger
        self.templates = templates
        self.present = present
        self.units = units
        self.added: dict[str, int] = {}
        self.used: set[str] = set()
        """Physical nodes on which a job or task got a place."""
        self._expected: dict[str, str] = {}
        """Requested node -> its template."""
        self._largest: dict[str, int] = {}
        for template in templates:
            self._largest = rs.maximum(self._largest, template.resources)
        self._nodes: list[str] = []
        self._made = 0
        self._begun: list[Start | TaskStart] = []

    def expect(self, coming: Mapping[str, int]) -> None:
        """Add the nodes that were requested before."""
        for template in self.templates:
            for _ in range(coming.get(template.name, 0)):
                self._expected[self._put(template)] = template.name
                self.present[template.name] = self.present.get(template.name, 0) + 1

    @property
    def spare(self) -> Mapping[str, int]:
        """Template -> the number of requested nodes that are not used."""
        return Counter(name for node_id, name in self._expected.items() if node_id not in self.used)

    def satisfy_all(
        self, queues: Mapping[str, Queue], tasks: Mapping[str, TaskQueue], running: Running, now_ns: int
    ) -> None:
        """Place the tasks, then the jobs that wait for resources, in order.

        A shape is left at its first job without a place.
        """
        for task in [task for queue in tasks.values() for task in queue.tasks.values()]:
            if pinned_to(settled(self.ledger, task)) is None and task.bound_vnode_id is None:
                self.satisfy_task(task)
        for jobs in queues.values():
            left = jobs.policy.max_running_jobs
            if left is not None:
                left -= running.count(jobs.parent_id)
            for shape in list(jobs.shapes.values()):
                if shape.blocked is None or shape.blocked[0] not in (jb.INSUFFICIENT, jb.INFEASIBLE):
                    continue
                for _, job_id in shape.order:
                    job = jobs.jobs[job_id]
                    if not job.may_start(now_ns):
                        continue
                    if (left is not None and left <= 0) or not self.satisfy_job(job):
                        break
                    left = None if left is None else left - 1

    def satisfy_task(self, task: PendingTask) -> bool:
        """Give a task a place, with one more node if that helps."""
        if self._place_task(task):
            return True
        for template in self._by_waste(task.request):
            if self._count() < MOST_NODES and self._left(template):
                node_id = self._put(template)
                if self._place_task(task):
                    self._note(template, 1)
                    return True
                self._remove([node_id])
        return False

    def satisfy_job(self, job: PendingJob) -> bool:
        """Give a job its gang with as few more nodes as possible, of the least wasteful templates."""
        if self._place_job(job):
            return True
        if self._count() >= MOST_NODES or not self.templates:
            return False
        if self._add_for(job, MOST_NODES - self._count()):
            return True
        pieces = sum(len(group.nodes) for group in job.spec.groups) + sum(job.spec.replica_sets.values())
        is_large = pieces > MOST_NODES or any(job.spec.flexible_min.values())
        return is_large and self._count() == 0 and self._add_for(job, MOST_OF_GANG)

    def _add_for(self, job: PendingJob, most: int) -> bool:
        """Add all possible nodes, then remove as many as possible, the most wasteful template first."""
        added = {t.name: [self._put(t) for _ in range(min(self._left(t), most))] for t in self.templates}
        fits = self._fits(job)
        for template in reversed(self._by_waste(job.spec.names(job.entry))) if fits else ():
            self._shrink(job, template, added)
        if not fits or sum(map(len, added.values())) > most or not self._place_job(job):
            for node_ids in added.values():
                self._remove(node_ids)
            return False
        for template in self.templates:
            self._note(template, len(added[template.name]))
        return True

    def _shrink(self, job: PendingJob, template: Template, added: dict[str, list[str]]) -> None:
        """Keep the fewest nodes of a template with which the gang still fits, by bisection."""
        enough, nodes = len(added[template.name]), added[template.name]
        least = 0
        while least < enough:
            middle = (least + enough) // 2
            self._remove(nodes[middle:])
            if self._fits(job):
                enough = middle
            else:
                least = middle + 1
            nodes = nodes[:middle] + [self._put(template) for _ in range(enough - middle)]
        added[template.name] = nodes

    def _by_waste(self, asked: Collection[str]) -> list[Template]:
        """Templates, the least wasteful first.

        Templates without unit resources that the request does not name come first, then a small dominant
        share.
        """

        def waste(template: Template) -> tuple[bool, float, str]:
            amounts = {name: amount for name, amount in template.resources.items() if amount}
            idle = any(name in self.units and name not in asked for name in amounts)
            share = max((amount / self._largest[name] for name, amount in amounts.items()), default=0.0)
            return idle, share, template.name

        return sorted(self.templates, key=waste)

    def _left(self, template: Template) -> int:
        return max(0, template.most - self.present.get(template.name, 0))

    def _count(self) -> int:
        return sum(self.added.values())

    def _put(self, template: Template) -> str:
        node_id = f"~{self._made:06}"  # sorts after every real id, so that existing nodes come first
        self._made += 1
        total = whole_node(template.resources, self.units)
        self.ledger.put_node(Node(node_id, template.name, total, node_id, template.labels))
        self._nodes.append(node_id)
        return node_id

    def _remove(self, node_ids: list[str]) -> None:
        for node_id in node_ids:
            self.ledger.remove_node(node_id)
            self._nodes.remove(node_id)

    def _note(self, template: Template, count: int) -> None:
        if count:
            self.added[template.name] = self.added.get(template.name, 0) + count
            self.present[template.name] = self.present.get(template.name, 0) + count

    def _place_task(self, task: PendingTask) -> bool:
        spec = one_piece(task.request, task.selector)
        found = place_with_growth(self.ledger, task.cluster_id, spec, {})
        if not isinstance(found, tuple):
            return False
        steps, placed = found
        vnode = self.ledger.vnodes[placed.pieces[0].parent_vnode_id]
        allocation = self.ledger.capacities[vnode.vnode_id].choice(task.request)
        start = TaskStart(task, tuple(steps), vnode.vnode_id, vnode.node_id, allocation)
        take(self.ledger, start, start.run_id)
        self._begun.append(start)
        self.used.add(vnode.node_id)
        return True

    def _fits(self, job: PendingJob) -> bool:
        start = self._start(job)
        if start is not None:
            revert(self.ledger, start)
        return start is not None

    def _place_job(self, job: PendingJob) -> bool:
        start = self._start(job)
        if start is None:
            return False
        self._begun.append(start)
        self.used |= {start.node_id, *(vnode.node_id for vnode in start.vnodes)}
        return True

    def _start(self, job: PendingJob) -> Start | None:
        """Apply the start of a job to the ledger; None: it has no place."""
        found = place_or_grow(self.ledger, job.parent_id, job.spec, job.entry)
        if not isinstance(found, tuple):
            return None
        start = start_of(self.ledger, job, found[1], found[0])
        take(self.ledger, start, start.run_id)
        return start

    def undo(self) -> None:
        """Revert all starts and remove all nodes."""
        for start in reversed(self._begun):
            revert(self.ledger, start)
        for node_id in reversed(self._nodes):
            self.ledger.remove_node(node_id)
