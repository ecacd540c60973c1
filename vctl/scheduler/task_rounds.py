"""The tasks of a round: starts tasks in their cluster where they fit, else after the cluster has grown.

A node that joined a cluster or one above it, or became larger there, first takes tasks for which no virtual
node was large enough. Then it takes at most one other task in its first round; the next round judges further
tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from heapq import heapify, heappop, heapreplace

from vctl.core import resources as rs
from vctl.core import tasks as tk
from vctl.core.clusters import PRIMARY, VNode
from vctl.core.ledger import Ledger
from vctl.core.tasks import PendingTask
from vctl.core.wording import amounts_text, cluster_text, counted
from vctl.scheduler.elasticity import Grow, level_above, revert_growth, suppliers
from vctl.scheduler.explain.refusal import Refusal
from vctl.scheduler.explain.words import verdict_on_limit
from vctl.scheduler.gang_growth import grow
from vctl.scheduler.limits import LimitUse, use_of
from vctl.scheduler.plan import TaskStart, TaskWait
from vctl.scheduler.recall import has_loosened, is_loose
from vctl.scheduler.running import Running
from vctl.scheduler.task_queue import SchedulingClass, TaskQueue, TaskVerdict, kind_of, note_turn, shape_of
from vctl.scheduler.tasking import (
    Circumstances,
    bound_to,
    choose,
    could_grow_for,
    draw,
    feasible,
    growing_for,
    is_available,
    pinned_to,
    rank_of,
    settled,
)

MOST_SAID = 4
"""The number of virtual nodes that are named with their free amounts."""
NOBODY: Mapping[str, Set[str]] = {}


class TaskRound:
    """One round over the tasks of all clusters. Its starts stay in the ledger; the caller reverts them."""

    def __init__(
        self, ledger: Ledger, limit: int, running: Running | None = None, use: LimitUse | None = None
    ) -> None:
        self.ledger = ledger
        self.running = running or Running()
        self.use = use or use_of(ledger, self.running, 0)
        self.limit = limit
        self.starts: list[TaskStart] = []
        self.waits: list[TaskWait] = []
        self.deferred = False
        """Whether tasks were put off that may start in the next round."""
        self.closed: set[str] = set()
        """Nodes that joined and take no further task in this round."""
        self.loose = False
        """Whether idle loans go home for a task. Only after all tasks were tried without, so that few loans move."""

    def decide(
        self, queues: Mapping[str, TaskQueue], grown: Set[str], joined: Mapping[str, Set[str]] = NOBODY
    ) -> None:
        """Start the tasks that fit: equal tasks oldest first, and unequal ones in turn.

        So the oldest task of each class has a place before a class gets a second one.
        ``grown``: clusters in which capacity came free; only tasks there and below are judged again.
        ``joined``: cluster -> physical nodes that joined it, or became larger there, since the last round.
        """
        self.loose = not is_loose(self.ledger)
        visits = [
            _Visit(self, queues[cluster_id], grown, joined)
            for cluster_id in sorted(queues)
            if cluster_id in self.ledger.clusters
        ]
        for visit in visits:
            if visit.joined:
                visit.serve(visit.too_large())
        for visit in visits:
            visit.serve(visit.open_sub_queues())
        self.loose = True
        for visit in visits:
            visit.serve(list(visit.tight))
        for visit in visits:
            self.waits += visit.waits()


class _Visit:
    """The queue of one cluster in one round."""

    def __init__(
        self, round_: TaskRound, queue: TaskQueue, grown: Set[str], joined: Mapping[str, Set[str]]
    ) -> None:
        self.round = round_
        self.ledger = round_.ledger
        self.queue = queue
        above = [*(up.cluster_id for up in self.ledger.upward(queue.cluster_id)), PRIMARY]
        self.joined = {node_id for cluster_id in above for node_id in joined.get(cluster_id, ())}
        if not suppliers(self.ledger, queue.cluster_id).isdisjoint(grown) or has_loosened(
            self.ledger, level_above(self.ledger, queue.cluster_id), grown
        ):
            queue.forget_verdicts()
        elif self.ledger.limits and self.ledger.clusters[queue.cluster_id].spec.flexible:
            queue.forget_verdicts()  # a limit may keep it from growing, and that may be over
        self.refusals: dict[SchedulingClass, Refusal] = {}
        """The sub-queues for whose first task the cluster would exceed a limit."""
        self.tight: dict[SchedulingClass, None] = {}
        """The sub-queues whose first task found no place without idle loans; each once, as they may be judged twice."""
        self.load: dict[str, dict[str, int]] = dict(queue.load)
        self.started: set[str] = set()
        self.last_spread = queue.last_spread
        self.turns = dict(queue.turns)
        self.drawn: list[TaskWait] = []

    def too_large(self) -> list[SchedulingClass]:
        """The sub-queues to judge for which no virtual node was large enough at the last verdict."""
        before = self.queue.before
        return [shape for shape in self.open_sub_queues() if shape in before and before[shape].infeasible]

    def open_sub_queues(self) -> list[SchedulingClass]:
        """The sub-queues to judge: those without a verdict."""
        return [shape for shape in self.queue.sub_queues if shape not in self.queue.blocked]

    def serve(self, shapes: list[SchedulingClass]) -> None:
        """Judge the tasks of some sub-queues until each is empty or blocked.

        The class that had its last turn before all others is next; of those without a turn, the oldest task.
        """
        order: list[tuple[int, int, int, SchedulingClass, PendingTask, Iterator[PendingTask]]] = []
        for position, shape in enumerate(shapes):
            tasks = iter(self.queue.sub_queues[shape].values())
            first = next((task for task in tasks if task.task_id not in self.started), None)
            if first is not None:
                order.append((self._turn_of(first), first.number, position, shape, first, tasks))
        heapify(order)
        while order and len(self.round.starts) < self.round.limit:
            turn, _, position, shape, task, tasks = order[0]
            following: PendingTask | None = task
            if turn == self._turn_of(task):
                following = next(tasks, None) if self._judge(shape, task) else None
            if following is None:
                heappop(order)
            else:
                key = self._turn_of(following), following.number, position
                heapreplace(order, (*key, shape, following, tasks))

    def _turn_of(self, task: PendingTask) -> int:
        return self.turns.get(kind_of(task), 0)

    def waits(self) -> list[TaskWait]:
        """The waits to report."""
        reported = [
            TaskWait(
                task.task_id,
                verdict.message,
                None if verdict.infeasible else task.bound_vnode_id,
                verdict.infeasible and not could_grow_for(self.ledger, task),
            )
            for task, verdict in self.queue.to_report(self.started)
        ]
        return self.drawn + reported

    def _judge(self, shape: SchedulingClass, task: PendingTask) -> bool:
        """Start a task or block its sub-queue. False: the tasks behind it need not be judged.

        A RANDOM task that finds no place draws a virtual node, and is bound to it from then on.
        """
        bound = bound_to(self.ledger, task) if task.strategy == tk.RANDOM else None
        if bound is not None:
            ahead = self.queue.load_before(bound.vnode_id, task.number, self.started)
            is_open = bound.node_id not in self.round.closed
            if is_open and is_available(self.ledger, bound, task.request, ahead):
                self._start(task, bound, [])
                return True
            return self._put_off(shape, task)
        target, growth = settled(self.ledger, task), list[Grow]()
        vnode = choose(self.ledger, target, self._now())
        if vnode is None:
            vnode, growth = self._grow_for(target, shape)
        if vnode is not None:
            self._start(task, vnode, growth)
            return True
        may_draw = task.strategy == tk.RANDOM and self.round.loose and not self._is_put_off()
        if may_draw and (candidates := feasible(self.ledger, task)):
            drawn = draw(task, candidates)
            self.load[drawn.vnode_id] = rs.add(self.load.get(drawn.vnode_id, {}), task.request)
            self.drawn.append(
                TaskWait(task.task_id, _bound_message(self.ledger, task, drawn), drawn.vnode_id)
            )
            note_turn(self.turns, kind_of(task))
            return True
        return self._put_off(shape, target)

    def _grow_for(self, task: PendingTask, shape: SchedulingClass) -> tuple[VNode | None, list[Grow]]:
        """Let the cluster grow so that a task fits; returns its virtual node and the steps.

        (None, []): growth does not help, and the ledger stays as it was.
        """
        target = growing_for(task, self.ledger.vnodes.get(pinned_to(task) or ""))
        if target is None:
            return None, []
        growth = grow(
            self.ledger, task.cluster_id, task.request, target.selector, frozenset(self._closed()),
            loose=self.round.loose,
        )  # fmt: skip
        vnode = choose(self.ledger, task, self._now()) if growth else None
        job = self.round.running.jobs.get(task.job_id)
        if vnode is not None and job is not None and (refusal := self.round.use.grow(job, growth or [])):
            self.refusals[shape], vnode = refusal, None
        if vnode is None:
            for step in reversed(growth or []):
                revert_growth(self.ledger, step)
            return None, []
        return vnode, growth or []

    def _start(self, task: PendingTask, vnode: VNode, growth: list[Grow]) -> None:
        request = {name: amount for name, amount in task.request.items() if amount}
        allocation = self.ledger.capacities[vnode.vnode_id].choice(request)
        start = TaskStart(task, tuple(growth), vnode.vnode_id, vnode.node_id, allocation)
        self.ledger.charge(start.run_id, vnode.vnode_id, allocation)
        self.round.starts.append(start)
        self.started.add(task.task_id)
        note_turn(self.turns, kind_of(task))
        if task.strategy == tk.SPREAD:
            self.last_spread = self.queue.last_spread = rank_of(vnode)
        if task.bound_vnode_id in self.load:
            self.load[task.bound_vnode_id] = rs.subtract(self.load[task.bound_vnode_id], task.request)
        before = self.queue.before.get(shape_of(task))
        if vnode.node_id in self.joined and not (before is not None and before.infeasible):
            self.round.closed.add(vnode.node_id)

    def _put_off(self, shape: SchedulingClass, task: PendingTask) -> bool:
        """Stop a sub-queue in this round; block it unless closed nodes were left out. Returns False.

        Before idle loans were tried, it is only stopped until they are.
        """
        if not self.round.loose:
            self.tight[shape] = None
        elif not self._is_put_off():
            self.queue.block(shape, self._verdict(shape, task))
        return False

    def _verdict(self, shape: SchedulingClass, task: PendingTask) -> TaskVerdict:
        refusal, job = self.refusals.get(shape), self.round.running.jobs.get(task.job_id)
        if refusal is None or job is None:
            return verdict_on(self.ledger, task)
        limit = verdict_on_limit(refusal, job.parent_id, job.user)
        return TaskVerdict(f"needs {amounts_text(task.request)} on one virtual node; {limit}")

    def _is_put_off(self) -> bool:
        """Whether closed nodes were left out, which take tasks in the next round; sets ``deferred`` then."""
        is_put_off = bool(self._closed())
        self.round.deferred |= is_put_off
        return is_put_off

    def _closed(self) -> set[str]:
        return self.round.closed & self.joined

    def _now(self) -> Circumstances:
        return Circumstances(self.load, self._closed(), self.last_spread)


def verdict_on(ledger: Ledger, task: PendingTask) -> TaskVerdict:
    """Why a task does not start. Commands that show it compute the free amounts anew."""
    vnode = bound_to(ledger, task)
    if vnode is not None:
        return TaskVerdict(_bound_message(ledger, task, vnode))
    possible = feasible(ledger, task)
    count = len(ledger.members.get(task.cluster_id, ()))
    where = f"{counted(count, 'virtual node')} of {cluster_text(task.cluster_id)}"
    need = f"needs {amounts_text(task.request)} on one virtual node"
    if not possible:
        return TaskVerdict(f"{need}; infeasible on the {where}{_named(task)}", infeasible=True)
    free = ", ".join(
        f"{cluster_text(vnode.vnode_id)} {_free(ledger, task, vnode)}" for vnode in possible[:MOST_SAID]
    )
    more = f" and {len(possible) - MOST_SAID} more" if len(possible) > MOST_SAID else ""
    state = f"feasible but not available on the {where}"
    if len(possible) < count:
        state = f"feasible but not available on {len(possible)} of the {where}, infeasible on the others"
    return TaskVerdict(f"{need}; {state}; free: {free}{more}")


def _named(task: PendingTask) -> str:
    named = pinned_to(task)
    return f", of which its strategy names {named}" if named is not None else ""


def _bound_message(ledger: Ledger, task: PendingTask, vnode: VNode) -> str:
    return (
        f"needs {amounts_text(task.request)}; feasible but not available on {cluster_text(vnode.vnode_id)},"
        f" which it drew and waits for; free there: {_free(ledger, task, vnode)}"
    )


def _free(ledger: Ledger, task: PendingTask, vnode: VNode) -> str:
    free = ledger.capacities[vnode.vnode_id].free
    return amounts_text({name: free.get(name, 0) for name in task.request})
