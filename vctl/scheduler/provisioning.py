"""Provisioning: the nodes that the node provider should add so that waiting jobs and tasks start.

First one job or task after the other gets the nodes that it needs. Then the choice is made again for all of
them together (``machine_choice``): the nodes that waste least, and of these the fewest. A placement on a trial
proves each choice. What is borrowed and idle comes first (``recall``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import merge

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node, Template
from vctl.core.resources import DEFAULT_UNITS, Amounts, whole_node
from vctl.core.tasks import PendingTask
from vctl.core.values import field, value
from vctl.scheduler.gang_growth import one_piece, place_or_grow, place_with_growth
from vctl.scheduler.limits import OF_ALL_JOBS, least_of, reached, use_of
from vctl.scheduler.machine_choice import Prices, pieces_on
from vctl.scheduler.placement import Unplaced
from vctl.scheduler.plan import Start, TaskStart, nodes_of, revert, start_of, take, unnoted
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.tasking import pinned_to, settled

MOST_NODES = 64
"""The most nodes of one round; the next round requests more."""
MOST_OF_GANG = 1000
"""The most nodes for one gang that needs more than ``MOST_NODES`` at once."""
MOST_PLACED = 1_000
"""The jobs and tasks that are placed to prove better choices; one choice is proved in any case."""


@value(frozen=True, slots=True)
class MachinesNeeded:
    """The nodes to request by template."""

    nodes: Mapping[str, int]
    spare: Mapping[str, int] = field(default_factory=dict)
    """Template -> the number of requested nodes that have not come yet and are not needed any more."""


def needed_machines(
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
) -> MachinesNeeded:
    """The nodes of each template to add now. ``present``: existing, ``coming``: requested nodes by template.

    A trial gets the nodes that let the waiting jobs and tasks start, in order: those that waste least, and of
    these the fewest. The ledger is left as it was.
    """
    running = Running() if running is None else running
    trial = _Trial(ledger, list(templates), dict(present), units)
    with unnoted(ledger):
        try:
            trial.expect(coming or {})
            trial.satisfy_all(queues, tasks, running, now_ns)
            while trial.choose_again() and trial.satisfy_all(queues, tasks, running, now_ns):
                pass  # fewer nodes may leave some for what was too much before
        finally:
            trial.undo()
    return MachinesNeeded(trial.added, trial.spare)


class _Trial:
    """A ledger with nodes that do not exist yet, and the starts on it that must be reverted."""

    def __init__(
        self, ledger: Ledger, templates: list[Template], present: dict[str, int], units: frozenset[str]
    ) -> None:
        self.ledger = ledger
        self.templates = templates
        self.present = present
        self.units = units
        self.prices = Prices(templates, units)
        self.added = Counter[str]()
        self._expected: dict[str, str] = {}
        """Requested node -> its template."""
        self._new: dict[str, Template] = {}
        """Node that is to be added -> its template."""
        self._nodes: list[str] = []
        self._made = 0
        self._begun: list[Start | TaskStart] = []
        self._first: int | None = None
        """The number of starts before the first that may use a node that is to be added."""
        self._placed = 0
        """How often a job or task was placed to prove better choices."""

    def expect(self, coming: Mapping[str, int]) -> None:
        """Add the nodes that were requested before."""
        for template in self.templates:
            for _ in range(coming.get(template.name, 0)):
                self._expected[self._put(template)] = template.name
                self.present[template.name] = self.present.get(template.name, 0) + 1

    @property
    def spare(self) -> Mapping[str, int]:
        """Template -> the number of requested nodes that are not used."""
        used = {node_id for start in self._begun for node_id in nodes_of(start)}
        return Counter(name for node_id, name in self._expected.items() if node_id not in used)

    def satisfy_all(
        self, queues: Mapping[str, Queue], tasks: Mapping[str, TaskQueue], running: Running, now_ns: int
    ) -> bool:
        """Place the tasks, then the jobs that wait for resources, in order; whether more have a place than before.

        They come in the order of their queue, as in a round. A shape is left at its first job without a place.
        """
        begun = len(self._begun)
        placed = {id(_waiting(start)) for start in self._begun}
        jobs_begun = [start.job for start in self._begun if isinstance(start, Start)]
        started = Counter(job.parent_id for job in jobs_begun)
        of_user = Counter((job.parent_id, job.user) for job in jobs_begun)
        use = use_of(self.ledger, running, now_ns)
        for job in jobs_begun:
            use.add(job.parent_id, job.user, least_of(job))
        for task in [task for queue in tasks.values() for task in queue.tasks.values()]:
            is_free = pinned_to(settled(self.ledger, task)) is None and task.bound_vnode_id is None
            if is_free and id(task) not in placed:
                self._satisfy(task)
        for jobs in queues.values():
            waiting = {
                name: shape
                for name, shape in jobs.shapes.items()
                if (verdict := jobs.blocked(self.ledger, shape)) is not None
                and verdict.reason in (jb.INSUFFICIENT, jb.INFEASIBLE)
            }
            for _, job_id in merge(*(shape.order for shape in waiting.values())):
                job = jobs.jobs[job_id]
                if job.shape not in waiting or not job.may_start(now_ns) or id(job) in placed:
                    continue
                where, user = jobs.parent_id, (jobs.parent_id, job.user)
                begun_there = running.count(where) + started[where]
                limit = reached(jobs.policy, begun_there, running.count_of(*user) + of_user[user])
                limit = limit or use.refusal(where, job.user, least_of(job))
                if limit is not None and limit.subject in OF_ALL_JOBS and limit.rule == jb.CAP_REACHED:
                    break
                if limit is None and self._satisfy(job):
                    started[where] += 1
                    of_user[user] += 1
                    use.add(where, job.user, least_of(job))
                elif limit is None:
                    del waiting[job.shape]
        return len(self._begun) > begun

    def _satisfy(self, work: PendingJob | PendingTask) -> bool:
        """Give a job or task a place: with one more node if that helps, else a job with as few as possible."""
        if self._place(work):
            return True
        request = work.request if isinstance(work, PendingTask) else _request_of(work)
        for template in self._by_waste(request):
            if len(self._new) < MOST_NODES and self._available(template):
                node_id = self._put(template)
                if self._place(work):
                    self._note({node_id: template})
                    return True
                self._remove([node_id])
        if isinstance(work, PendingTask) or len(self._new) >= MOST_NODES or not self.templates:
            return False
        if self._add_for(work, MOST_NODES - len(self._new)):
            return True
        pieces = len(work.spec.fixed) + sum(work.spec.replica_sets.values())
        is_large = pieces > MOST_NODES or any(work.spec.flexible_min.values())
        return is_large and len(self._new) == 0 and self._add_for(work, MOST_OF_GANG)

    def _add_for(self, job: PendingJob, limit: int) -> bool:
        """Add all possible nodes, then remove as many as possible, the most wasteful template first."""
        numbers = {t.name: min(self._available(t), limit) for t in self.templates}
        added = {t.name: [self._put(t) for _ in range(numbers[t.name])] for t in self.templates}
        fits = self._fits(job)
        for template in reversed(self._by_waste(_request_of(job))) if fits else ():
            self._shrink(job, template, added)
        if not fits or sum(map(len, added.values())) > limit or not self._place(job):
            for node_ids in added.values():
                self._remove(node_ids)
            return False
        self._note({node_id: template for template in self.templates for node_id in added[template.name]})
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

    # ---- the choice for all together ----

    def choose_again(self) -> bool:
        """Replace the nodes to add by nodes that cost less and hold the same jobs and tasks, if there are such."""
        if self._first is None:
            return False
        later, limit = self._begun[self._first :], max(MOST_NODES, len(self._new))
        available = {t.name: self._available(t) + self.added[t.name] for t in self.templates}
        pieces, apart = pieces_on(self._new, later, self.templates)
        choices = self.prices.choices(pieces, apart, available, limit, self.prices.cost(self.added))
        if not choices:
            return False
        waiting = [_waiting(start) for start in later]
        for counts in choices:
            if self._placed and self._placed + len(waiting) > MOST_PLACED:
                break
            self._rewind()
            self._note({self._put(t): t for t in self.templates for _ in range(counts.get(t.name, 0))})
            self._placed += len(waiting)
            if all(map(self._place, waiting)):
                return True
        self._rewind()
        for work in waiting:  # as before, so with the same nodes
            self._satisfy(work)
        return False

    def _rewind(self) -> None:
        """Revert all starts that may use a node that is to be added, and remove these nodes."""
        first = len(self._begun) if self._first is None else self._first
        for start in reversed(self._begun[first:]):
            revert(self.ledger, start)
        del self._begun[first:]
        self._remove(list(self._new))
        self._new, self.added, self._first = {}, Counter(), None

    # ---- nodes and places ----

    def _by_waste(self, request: Amounts) -> list[Template]:
        """Templates, the least wasteful for a request first."""
        return sorted(self.templates, key=lambda template: self.prices.waste(template, request))

    def _available(self, template: Template) -> int:
        return max(0, template.most - self.present.get(template.name, 0) - self.added[template.name])

    def _put(self, template: Template) -> str:
        # sorts after every real id, so that existing nodes come first; equal ones are in the order of their making
        node_id = f"~{self.templates.index(template):03}-{self._made:06}"
        self._made += 1
        total = whole_node(template.resources, self.units)
        self.ledger.put_node(Node(node_id, template.name, total, node_id, template.labels))
        self._nodes.append(node_id)
        return node_id

    def _remove(self, node_ids: list[str]) -> None:
        for node_id in node_ids:
            self.ledger.remove_node(node_id)
            self._nodes.remove(node_id)

    def _note(self, nodes: Mapping[str, Template]) -> None:
        """Count nodes as added. The last start uses them, or none does yet."""
        if self._first is None and nodes:
            uses = (i for i, start in enumerate(self._begun) if not nodes.keys().isdisjoint(nodes_of(start)))
            self._first = next(uses, len(self._begun))
        self._new |= nodes
        self.added.update(template.name for template in nodes.values())

    def _place(self, work: PendingJob | PendingTask) -> bool:
        if (start := self._start(work)) is not None:
            self._begun.append(start)
        return start is not None

    def _fits(self, job: PendingJob) -> bool:
        if (start := self._start(job)) is not None:
            revert(self.ledger, start)
        return start is not None

    def _start(self, work: PendingJob | PendingTask) -> Start | TaskStart | None:
        """Apply the start of a job or task to the ledger; None: it has no place."""
        start: Start | TaskStart
        if isinstance(work, PendingTask):
            spec = one_piece(work.request, work.selector)
            answer = place_with_growth(self.ledger, work.cluster_id, spec, {})
        else:
            answer = place_or_grow(self.ledger, work.parent_id, work.spec, work.entry)
        if isinstance(answer, Unplaced):
            return None
        steps, placed = answer
        if isinstance(work, PendingTask):
            vnode = self.ledger.vnodes[placed.pieces[0].parent_vnode_id]
            allocation = self.ledger.capacities[vnode.vnode_id].choice(work.request)
            start = TaskStart(work, tuple(steps), vnode.vnode_id, vnode.node_id, allocation)
        else:
            start = start_of(self.ledger, work, placed, steps)
        take(self.ledger, start)
        return start

    def undo(self) -> None:
        """Revert all starts and remove all nodes."""
        for start in reversed(self._begun):
            revert(self.ledger, start)
        for node_id in reversed(self._nodes):
            self.ledger.remove_node(node_id)


def _waiting(start: Start | TaskStart) -> PendingJob | PendingTask:
    return start.job if isinstance(start, Start) else start.task


def _request_of(job: PendingJob) -> Amounts:
    """What a job asks for, all pieces together."""
    pieces = rs.total([*(node.resources for node in job.spec.fixed), job.spec.flexible_min])
    return rs.maximum(pieces, job.entry)
