"""One scheduling round: reads a ledger and queues, returns a plan, and leaves the ledger as it was.

Tasks of running jobs come first, then the queues take turns. All queues share the nominations, the shared
reservations and the preemption of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from vctl.core import jobs as jb
from vctl.core.clusters import PRIMARY
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import SECOND, STRICT
from vctl.core.wording import cluster_text
from vctl.scheduler.elasticity import level_above, suppliers
from vctl.scheduler.fairness import Shares, Usage, is_fair
from vctl.scheduler.nominations import Nominations
from vctl.scheduler.plan import Plan, Start, Trial, Wait, revert
from vctl.scheduler.preemption import Preemptor
from vctl.scheduler.queue_scan import QueueScan
from vctl.scheduler.queueing import Memo, Queue
from vctl.scheduler.recall import has_loosened, is_loose
from vctl.scheduler.running import Running
from vctl.scheduler.scarcity import note_demand
from vctl.scheduler.scheduling_class import Verdict
from vctl.scheduler.shared_reservations import SharedReservations
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.task_rounds import TaskRound

MOST_STARTS = 256
"""The most starts in one round. They are committed together; the limit makes a burst visible in steps."""


class Freed(NamedTuple):
    """Whether what came free may help the jobs of a queue."""

    near: bool = False
    """In their cluster, or where it can grow from."""
    with_loans: bool = False
    """Together with what is idle elsewhere."""


RECHECK_NS = 5 * SECOND
"""How long a round holds where the passing of time alone may change whose turn it is."""


def decide(
    ledger: Ledger,
    queues: Mapping[str, Queue],
    tasks: Mapping[str, TaskQueue] | None = None,
    *,
    now_ns: int,
    running: Running | None = None,
    usage: Usage | None = None,
    preempts: bool = True,
    search_steps: int | None = None,
    keeps: bool = False,
) -> Plan:
    """Plan one round over all queues: tasks of running jobs first, then jobs, each queue by its own policy.

    A shape that does not fit is judged once; all its jobs share the verdict. ``running``: the running jobs;
    ``usage``: the past usage for fair shares. ``preempts`` False: plan no preemption, whatever the settings
    say. ``search_steps``: the budget of the search for victims. ``keeps``: leave the resources of the starts
    taken in the ledger (``Plan.trial``), if the round started no task and no start needs growth or shares its
    parent's cluster. The round clears ``ledger.grown`` and ``ledger.joined``.
    """
    running = Running() if running is None else running
    trial = Trial(ledger)
    waits: list[Wait] = []
    round_ = TaskRound(ledger, MOST_STARTS)
    grown = dict(ledger.grown)
    holds = Nominations(ledger, [one for queue in queues.values() for one in queue.nominations.values()])
    preemptor = Preemptor(ledger, running, holds, now_ns, active=preempts, steps=search_steps)
    note_demand(ledger.demand, queues.values(), (tasks or {}).values())
    try:
        if tasks:
            joined = {cluster_id: set(ids) for cluster_id, ids in ledger.joined.items()}
            round_.decide(tasks, set(grown), joined)
        is_nominated, scopes = any(one.nominations for one in queues.values()), _scopes(queues.values())
        visited = [one for one in _visited(ledger, queues, running, grown, scopes, now_ns, all_=is_nominated)
                   if _admits(ledger, one, waits)]  # fmt: skip
        shares = _shares(ledger, queues, running, usage, now_ns)
        shared = SharedReservations(ledger, visited, running, now_ns, grown)
        may_loosen = cache(partial(is_loose, ledger))
        turns = [
            QueueScan(
                ledger,
                queue,
                running,
                shares,
                preemptor,
                shared,
                now_ns=now_ns,
                stale=queue.parent_id in grown,
                may_loosen=may_loosen,
            )
            for queue in visited
        ]
        for start in _in_turn(turns):
            trial.starts[start.job.job_id] = start
            if len(trial.starts) >= MOST_STARTS:
                break
        for turn in turns:
            turn.finish()
            waits += turn.waits
        shared.finish(queues.values())
        scopes |= _scopes(queues.values())
    finally:
        holds.close()
        starts = tuple(trial.starts.values())
        for start in starts:
            running.take_back(start.job.job_id)
        if not keeps or round_.starts or any(start.growth or start.cluster is None for start in starts):
            trial.take_back()
        for task in reversed(round_.starts):
            revert(ledger, task)
        ledger.grown.clear()  # the reverts gave back only what the round took
        ledger.joined.clear()
    if not (is_nominated or preemptor.found):
        started = {start.job.parent_id for start in starts}
        scanned = (turn.queue for turn in turns if turn.is_over and turn.queue.parent_id not in started)
        _settle(ledger, scanned, running, scopes, now_ns)
    if usage is not None:
        usage.note_waiting(queues.values(), ledger, {start.job.job_id for start in starts})
    cleared = tuple((queue.parent_id, shape) for queue in queues.values() for shape in sorted(queue.emptied))
    return Plan(
        starts, tuple(waits), cleared, tuple(round_.starts), tuple(round_.waits),
        preempts=tuple(preemptor.found), lapsed=tuple(preemptor.lapsed),
        unsearched=preemptor.unsearched or shared.frees,
        tasks_deferred=round_.deferred, trial=trial if trial.starts else None,
    )  # fmt: skip


def _shares(
    ledger: Ledger, queues: Mapping[str, Queue], running: Running, usage: Usage | None, now_ns: int
) -> Shares | None:
    """The shares, where jobs wait or run whose order is fair; None: who was there once changes nobody's order."""
    parents = {*queues, *(parent_id for parent_id, jobs in running.of_parent.items() if jobs)}
    fair = [one for one in parents if is_fair(ledger, one)]
    if not fair:
        return None
    if usage is not None:
        usage.advance(ledger, now_ns)  # past use counts also while nobody waits
    shares = Shares(ledger, running, usage)
    is_busy = any((one in queues and queues[one].jobs) or running.of_parent.get(one) for one in fair)
    return shares if is_busy else None


def leaves_more(plan: Plan, started: int) -> bool:
    """Whether more work may be able to start at once, after ``started`` starts of a plan."""
    return (
        plan.proposed >= MOST_STARTS
        or started < plan.proposed
        or plan.tasks_deferred
        or plan.unsearched
        or plan.has_loans
    )


def holds_until(ledger: Ledger, queues: Mapping[str, Queue], now_ns: int) -> int | None:
    """The time at which the next round may find something else although nothing has happened; None: there is none.

    It comes with a begin time, a reserved start, a job that starves, one that has run long enough to be ended, and
    a search for victims that is tried again. Where a reservation is overdue, or shares decide whose turn it is and
    others wait for that, the time is ``RECHECK_NS`` from now on.
    """
    return min((at for queue in queues.values() for at in _due_at(ledger, queue, now_ns)), default=None)


def _due_at(ledger: Ledger, queue: Queue, now_ns: int) -> Iterator[int]:
    """The times at which a queue is to be scanned again, although nothing has happened."""
    if queue.until_ns is not None:
        yield queue.until_ns
    yield from (at for job in queue.delayed() if (at := job.begin_at_ns) is not None and at > now_ns)
    yield from queue.reserved_after(now_ns)
    has_turns = queue.kept or queue.shared or (queue.policy.discipline == STRICT and queue.jobs)
    if has_turns and (queue.is_overdue(now_ns) or is_fair(ledger, queue.parent_id)):
        yield now_ns + RECHECK_NS


def _scopes(queues: Iterable[Queue]) -> set[str]:
    """The clusters below which shared reservations bind jobs."""
    return {shared.scope for queue in queues for shared in queue.shared.values()}


def _settle(
    ledger: Ledger, scanned: Iterable[Queue], running: Running, scopes: Collection[str], now_ns: int
) -> None:
    """Note that scans have found everything there was in their queues, if nobody else decides about the jobs.

    Others do where shares decide about the order, where the queue preempts, and where anything is reserved: a
    reserved start depends on jobs of other clusters, too.
    """
    for queue in scanned:
        has_turns = queue.policy.preempts or queue.kept or is_fair(ledger, queue.parent_id)
        if not (has_turns or _binds(ledger, queue, scopes)):
            due_ns = min(_due_at(ledger, queue, now_ns), default=None)
            queue.memo = Memo(_stamp(ledger, queue, running), due_ns)


def _binds(ledger: Ledger, queue: Queue, scopes: Collection[str]) -> bool:
    """Whether shared reservations below these clusters bind the jobs of a queue."""
    chain = (PRIMARY, *(one.cluster_id for one in ledger.upward(queue.parent_id)))
    return bool(scopes) and any(one in scopes for one in chain)


def _stamp(ledger: Ledger, queue: Queue, running: Running) -> object:
    """What a scan depends on beside its jobs, what comes free and the time: running jobs, nodes, machines."""
    parent_id = queue.parent_id
    versions = [ledger.versions.get(one.cluster_id, 0) for one in ledger.upward(parent_id)]
    return running.version(parent_id), ledger.versions.get(PRIMARY, 0), versions, ledger.templates


def _is_settled(ledger: Ledger, queue: Queue, running: Running, scopes: Collection[str], now_ns: int) -> bool:
    """Whether a scan would find what the last one has found, which was noted then (``_settle``)."""
    memo, parent = queue.memo, ledger.clusters.get(queue.parent_id)
    if (
        memo is None
        or parent is None
        or parent.queue != queue.policy
        or memo.stamp != _stamp(ledger, queue, running)
    ):
        return False
    if is_fair(ledger, queue.parent_id) or _binds(ledger, queue, scopes):
        return False
    return memo.due_ns is None or now_ns < memo.due_ns


def _visited(
    ledger: Ledger,
    queues: Mapping[str, Queue],
    running: Running,
    grown: Mapping[str, set[str]],
    scopes: Collection[str],
    now_ns: int,
    *,
    all_: bool,
) -> Iterator[Queue]:
    """The queues that a round scans, prepared for it: without those that are known to be as they were."""
    may_loosen = cache(partial(is_loose, ledger))
    for parent_id in sorted(queues):
        queue = queues[parent_id]
        freed = _freed(ledger, parent_id, grown, may_loosen)
        is_settled = not all_ and _is_settled(ledger, queue, running, scopes, now_ns)
        if is_settled and not any(freed):
            continue
        memo, until_ns = queue.memo, queue.until_ns
        if _reconsider(ledger, queue, grown, freed) or not is_settled:
            queue.memo = None
            yield queue
        else:
            queue.memo, queue.until_ns = memo, until_ns


def _freed(
    ledger: Ledger, parent_id: str, grown: Mapping[str, set[str]], may_loosen: Callable[[], bool]
) -> Freed:
    """What came free since the last round that may help the jobs of a cluster."""
    parent = ledger.clusters.get(parent_id)
    if parent is None or not grown:
        return Freed()
    near = not suppliers(ledger, parent_id).isdisjoint(grown)
    return Freed(near, has_loosened(ledger, level_above(ledger, parent_id), grown) or (near and may_loosen()))


def _reconsider(ledger: Ledger, queue: Queue, grown: Mapping[str, set[str]], freed: Freed) -> bool:
    """Prepare a queue for the round: its policy, its capacity, and the verdicts that no longer hold.

    Returns whether a job may fit for which there was too little before.

    A verdict is forgotten if capacity that came free since the last round may help its shape: in the parent,
    or, if the parent can grow, in a cluster from which it can grow, or in one whose idle loans can come home.
    """
    queue.again_ns = queue.until_ns = None  # also for an empty queue
    parent = ledger.clusters.get(queue.parent_id)
    if parent is not None:
        queue.arrange(parent.queue)
        queue.judge_capacity(ledger)
    if parent is None or not parent.spec.flexible:
        queue.reconsider(ledger, grown.get(queue.parent_id, ()))
    if freed.with_loans or (freed.near and parent is not None and parent.spec.flexible):
        queue.regard(ledger)
    return any(shape.blocked is None for shape in queue.shapes.values())


def _admits(ledger: Ledger, queue: Queue, waits: list[Wait]) -> bool:
    """Whether jobs of a queue may start at all. If its cluster admits none, add their waits."""
    parent = ledger.clusters.get(queue.parent_id)
    if parent is None:
        return False
    if parent.starts_jobs:
        return bool(queue.shapes)
    told = (jb.CLUSTER_STOPPED, f"{cluster_text(queue.parent_id)} admits no jobs")
    for shape in queue.shapes.values():
        shape.judge(Verdict(*told))
        for sub_queue in shape.sub_queues.values():
            if queue.told.get(key := queue.wait_key(sub_queue)) != told:
                queue.told[key] = told
                waits.append(Wait(queue.parent_id, key, *told))
    return False


def _in_turn(turns: list[QueueScan]) -> Iterator[Start]:
    """Let the queues take turns: the queue of least rank next; among equals the first by parent id."""
    order = [(turn.rank(), turn.queue.parent_id, turn) for turn in turns if not turn.is_over]
    heapify(order)
    while order:
        rank, name, turn = order[0]
        if turn.is_over:
            heappop(order)
        elif (now := turn.rank()) != rank:
            heapreplace(order, (now, name, turn))
        elif (start := turn.step()) is not None:
            yield start
