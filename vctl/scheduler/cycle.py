"""One scheduling round: reads a ledger and queues, returns a plan, and leaves the ledger as it was.

The problem. Thousands of jobs of hundreds of shapes wait in many queues, and one of them ends. To search a place for
each shape costs a second or more; nearly all of them have been refused before, and nothing that concerns them has
changed. And whatever a round costs, the scheduler has to hear of ends and submits meanwhile.

The idea. Work in proportion to what changed, at three levels.

- A *shape*, all that a job asks for, keeps a verdict if it did not fit (``Verdict``), which all jobs of the queue
  with that shape share. It stands until something comes free that may help it: in a cluster that cannot grow, if a
  part of the gang fits into what came free; else if the gang is within a bound on all that the cluster could have
  (``reach``). This is asked when the turn comes to the shape, so its verdict stands without a search if others have
  taken by then what came free.
- A *queue* keeps a memo (``Memo``) of its last scan: what the scan depends on (running jobs, virtual nodes, machines),
  and when time alone may change it. It is not scanned while the memo holds and nothing that came free may help. What
  came free puts all its verdicts in doubt with one number (``Doubts``); they are looked at when the turn comes to the
  queue, and only those that may fit into what is left by then.
- A *round* ends at a budget of steps; the scheduler gives it 2,500, about 50 ms. One that ends so is *cut*. What it
  did not reach is scanned in the next one, which goes on at once; what was judged is passed there, mostly without a
  look. After an end, a round that has found a start is cut earlier (``Budget.enough``): the first start does not wait
  until it is known what else fits into the rest.

The steps of a round (``decide``): tasks of running jobs; which queues to scan; the queues take turns, a job at a
time, by the rank of their *heads*, the first jobs of each shape (the highest priority, then the oldest job; or what
the shares of an order ``fair`` say); reservations and reasons are handed over to the next round. All that was tried
is undone (``Round.take_back``); a caller may keep the starts taken, to commit them (``Plan.trial``).

Invariants.

- A verdict that stands is a proof: no place is overlooked. What is no proof (a search that ended at its budget, one
  that could have used a nomination) is tried again when anything comes free.
- A memo is noted only where nobody else decides about the jobs of the queue: not where shares decide about the turn,
  it preempts, or anything is reserved that may bind it. After a cut it is noted there, too, until anything at all
  changes.
- A cut loses nothing. The order of the turns comes from the state, so what fits starts first. Each round starts or
  judges something, or the next one gets twice the budget. Carried over is also that a job overruled a reservation, so
  that the others are to be confirmed (``Queue.is_disturbed``), and for whom an earlier start was searched already
  (``improved``). Where clusters share nothing and nobody is ahead of a job with a reservation by the orders ``fair``
  or ``longest``, the same jobs start as without a cut. Elsewhere others may, but nothing is left that would start
  (``tests/properties/test_cut.py``).

Example (``tests/scheduler/test_theory.py``). 20 elastic clusters have a queue of 10 shapes each, of 6 to 7.9 CPUs;
all nodes are in use. Nothing is known at first: 200 searches, 8 rounds if each has 250 steps. A round after that
looks at no job. One node of 8 CPUs comes free. It may help every shape, so all 20 queues get a turn. The oldest job
is searched a place and takes 7.5 CPUs. The 0.5 that are left help none of the shapes behind it, nor any of another
queue: one search, and 22 steps of scans, 3 in the first queue and one to pass over each of the others.

What it costs. Per round: a look at each queue (does its memo hold?); for each queue that something came free for, a
comparison with what its shapes need at least (``needs``), when its turn comes and others have taken their part; for
each queue that is scanned, its first heads and the shapes that may fit; for each of these, a comparison with the
amounts of the nodes that have anything free, and then counting (``plain_reason``) or a search.

Not done. Where anything is reserved, preempted or shared fairly, each round scans all queues that this may bind; the
shapes with known verdicts are passed, not skipped. Tasks are not cut, nor is a single search for a very large gang,
however long it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from vctl.core import jobs as jb
from vctl.core.clusters import BOOKED, PRIMARY
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import BACKFILL, BEST_EFFORT, SECOND, STRICT
from vctl.core.wording import cluster_text, opens_at
from vctl.scheduler.bookings import booked
from vctl.scheduler.elasticity import can_grow, level_above, suppliers_outside
from vctl.scheduler.fairness import Shares, Usage, is_fair
from vctl.scheduler.heads import Rest
from vctl.scheduler.limits import use_of
from vctl.scheduler.nominations import Nominations
from vctl.scheduler.plan import Plan, Start, Trial, Wait, revert
from vctl.scheduler.preemption import Preemptor
from vctl.scheduler.queue_scan import Before, QueueScan
from vctl.scheduler.queueing import Memo, Queue
from vctl.scheduler.recall import has_loosened, is_loose
from vctl.scheduler.running import Running
from vctl.scheduler.scarcity import note_demand
from vctl.scheduler.scheduling_class import Verdict
from vctl.scheduler.shared_reservations import SharedReservations
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.task_rounds import TaskRound
from vctl.scheduler.work import Budget

MOST_STARTS = 256
"""The most starts in one round. They are committed together; the limit makes a burst visible in steps."""
NEVER = -1
"""No edition of the ledger."""
RECHECK_NS = 5 * SECOND
"""How long a round holds where the passing of time alone may change whose turn it is."""


class Freed(NamedTuple):
    """Whether what came free may help the jobs of a queue."""

    near: bool = False
    """In their cluster, or where it can grow from."""
    with_loans: bool = False
    """Together with what is idle elsewhere."""


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
    budget: Budget | None = None,
    keeps: bool = False,
) -> Plan:
    """Plan one round over all queues: tasks of running jobs first, then jobs, each queue by its own policy.

    ``running``: the running jobs; ``usage``: the past usage for fair shares. ``preempts`` False: plan no preemption,
    whatever the settings say. ``search_steps``: the budget of the search for victims. ``budget``: that of the round,
    or of several; where it ends, the next round goes on (``Plan.unsearched``). ``keeps``: leave the resources
    of the starts taken in the ledger (``Plan.trial``), if the round started no task and no start needs growth or
    shares its parent's cluster. The round clears ``ledger.grown`` and ``ledger.joined``.
    """
    running = Running() if running is None else running
    if not _somebody_waits(queues.values(), tasks or {}):
        return _rest(ledger, queues, running, usage, now_ns)
    round_ = Round(
        ledger,
        queues,
        running,
        usage,
        budget or Budget(),
        now_ns,
        preempts=preempts,
        search_steps=search_steps,
    )
    try:
        round_.start_tasks(tasks or {})
        round_.visit()
        round_.take_turns()
        round_.hand_over()
    finally:
        round_.take_back(keeps=keeps)
    round_.note()
    return round_.plan()


def _somebody_waits(queues: Collection[Queue], tasks: Mapping[str, TaskQueue]) -> bool:
    return any(queue.jobs or queue.nominations for queue in queues) or any(
        queue.tasks for queue in tasks.values()
    )


def _rest(
    ledger: Ledger, queues: Mapping[str, Queue], running: Running, usage: Usage | None, now_ns: int
) -> Plan:
    """The round while nobody waits: only what the next one needs to know is noted."""
    note_demand(ledger.demand, queues.values(), ())
    _shares(ledger, queues, running, usage, now_ns)
    for queue in queues.values():
        queue.memo = None
        _reconsider(ledger, queue, ledger.grown, Freed())
    ledger.grown.clear()
    ledger.joined.clear()
    if usage is not None:
        usage.note_waiting(queues.values(), ledger, ())
    return Plan(cleared=_cleared(queues.values()))


def _cleared(queues: Iterable[Queue]) -> tuple[tuple[str, str], ...]:
    return tuple((queue.parent_id, shape) for queue in queues for shape in sorted(queue.emptied))


class Round:
    """One round: its steps in the order in which ``decide`` takes them, and what they have found."""

    def __init__(
        self,
        ledger: Ledger,
        queues: Mapping[str, Queue],
        running: Running,
        usage: Usage | None,
        budget: Budget,
        now_ns: int,
        *,
        preempts: bool,
        search_steps: int | None,
    ) -> None:
        self.ledger, self.queues, self.running, self.usage = ledger, queues, running, usage
        self.budget, self.now_ns = budget, now_ns
        self.grown = dict(ledger.grown)
        """What came free since the last round."""
        self.use = use_of(ledger, running, now_ns)
        self.tasks = TaskRound(ledger, MOST_STARTS, running, self.use)
        self.trial = Trial(ledger)
        self.waits: list[Wait] = []
        self.scans: list[QueueScan] = []
        self.is_cut = False
        """Whether the budget ended the round before every queue was scanned."""
        self.freed: list[QueueScan] = []
        """Where a job was kept off by a reservation that is gone or starts later by now: a next round follows."""
        self.is_nominated = any(queue.nominations for queue in queues.values())
        self.scopes = _scopes(queues.values())
        if ledger.booked is not None:
            self.scopes |= {shared.scope for shared in booked(ledger)}
        nominations = [one for queue in queues.values() for one in queue.nominations.values()]
        self.holds = Nominations(ledger, nominations)
        self.preemptor = Preemptor(ledger, running, self.holds, now_ns, active=preempts, steps=search_steps)
        self.shared: SharedReservations | None = None

    def take_back(self, *, keeps: bool) -> None:
        """Give back all that the round took in the ledger, which does not count as newly free."""
        self.holds.close()
        starts = self.trial.starts.values()
        for start in starts:
            self.running.take_back(start.job.job_id)
        self.starts = tuple(starts)
        if not keeps or self.tasks.starts or any(one.growth or one.cluster is None for one in starts):
            self.trial.take_back()
        for task in reversed(self.tasks.starts):
            revert(self.ledger, task)
        self.ledger.put_in_force(None)
        self.ledger.grown.clear()  # the reverts gave back only what the round took
        self.ledger.joined.clear()

    def start_tasks(self, tasks: Mapping[str, TaskQueue]) -> None:
        """Start tasks of running jobs. From here on the ledger knows what all waiting work asks of nodes."""
        note_demand(self.ledger.demand, self.queues.values(), tasks.values(), self.budget)
        if tasks:
            joined = {cluster_id: set(ids) for cluster_id, ids in self.ledger.joined.items()}
            self.tasks.decide(tasks, set(self.grown), joined)

    def visit(self) -> None:
        """Choose the queues in which something may have changed, and begin to scan them."""
        ledger, running, now_ns = self.ledger, self.running, self.now_ns
        ledger.put_in_force(())  # tasks leave all bookings alone, and jobs those which they could delay
        may_loosen = _once(partial(is_loose, ledger))
        changed = [
            (queue, before)
            for queue, before in self._changed(may_loosen)
            if _admits(ledger, queue, self.waits)
        ]
        shares = _shares(ledger, self.queues, running, self.usage, now_ns)
        visited = [queue for queue, _ in changed]
        self.shared = SharedReservations(ledger, visited, running, now_ns, self.grown, self.budget)
        self.scans = [
            QueueScan(
                ledger, queue, running, shares, self.preemptor, self.shared, self.use,
                now_ns=now_ns, may_loosen=may_loosen, budget=self.budget,
                rest=None if queue.memo is None else queue.memo.rest, before=before,
            )
            for queue, before in changed
        ]  # fmt: skip
        for queue in visited:
            queue.memo = None

    def _changed(self, may_loosen: Callable[[], bool]) -> Iterator[tuple[Queue, Before | None]]:
        """The queues without those that are known to be as they were, prepared for their scans.

        Each with what is known of it if nothing of what came free helps a job there.
        """
        ledger, grown = self.ledger, self.grown
        outside: dict[str, Freed] = {}
        for parent_id in sorted(self.queues):
            queue = self.queues[parent_id]
            freed = self._freed(parent_id, outside, may_loosen)
            is_settled = not self.is_nominated and _is_settled(
                ledger, queue, self.running, self.scopes, self.now_ns
            )
            if is_settled and queue.memo is not None and not any(freed):
                if queue.memo.rest is not None:
                    yield queue, None
                continue
            memo, until_ns = queue.memo, queue.until_ns
            _reconsider(ledger, queue, grown, freed)
            is_known = is_settled and memo is not None and memo.rest is None
            before = (memo, until_ns) if memo is not None and is_known else None
            queue.memo = None
            yield queue, None if _may_reserve(queue, until_ns) else before

    def _freed(self, parent_id: str, outside: dict[str, Freed], may_loosen: Callable[[], bool]) -> Freed:
        """What came free since the last round that may help the jobs of a cluster.

        ``outside``: what did outside of siblings that can grow, by the cluster above them.
        """
        ledger, grown, parent = self.ledger, self.grown, self.ledger.clusters.get(parent_id)
        if parent is None or not grown:
            return Freed()
        above_id = (parent.parent_id or PRIMARY) if can_grow(parent) else f"below {parent_id}"
        if (freed := outside.get(above_id)) is None:
            near = not suppliers_outside(ledger, parent_id).isdisjoint(grown)
            freed = Freed(near, has_loosened(ledger, level_above(ledger, parent_id), grown))
            outside[above_id] = freed
        near = freed.near or parent_id in grown
        return Freed(near, freed.with_loans or (near and may_loosen()))

    def take_turns(self) -> None:
        """Let the queues take turns, job by job, until nothing is left, or the round has enough."""
        for start in _in_turn(self.scans, self._has_enough):
            self.trial.starts[start.job.job_id] = start
            if len(self.trial.starts) >= MOST_STARTS:
                break
        self.is_cut = self._has_enough() and any(not scan.is_over for scan in self.scans)

    def _has_enough(self) -> bool:
        """Whether the round ends here, whatever it has not come to."""
        return self.budget.is_spent or (bool(self.trial.starts) and self.budget.is_enough)

    def hand_over(self) -> None:
        """Leave to the next round what it needs to know: reservations, and the reasons why jobs wait."""
        self.scans = [scan for scan in self.scans if not scan.is_skipped]
        for scan in self.scans:
            scan.finish()
            self.waits += scan.waits
        if self.shared is not None:
            self.shared.finish(self.queues.values(), is_over=not self.is_cut)
        if any(scan.kept_off for scan in self.scans):
            still = {one for queue in self.queues.values() for one in queue.reservations}
            due = {one.job_id for one in still if one.is_due(self.now_ns)}  # these move with the time
            self.freed = [
                scan
                for scan in self.scans
                if any(one not in still and one.job_id not in due for one in scan.kept_off)
            ]

    def note(self) -> None:
        """Note which queues have been scanned to the end, and who waits."""
        if not (self.is_nominated or self.preemptor.preempts):
            started = {start.job.parent_id for start in self.starts}
            known = [
                scan
                for scan in self.scans
                if scan.queue.parent_id not in started
                and scan not in self.freed
                and (scan.is_over or (self.is_cut and scan.rest is not None))
            ]
            if known:
                scopes = self.scopes | _scopes(self.queues.values())  # bookings are in the former
                for scan in known:
                    queue, rest = scan.queue, scan.rest
                    edition = _holds_for(self.ledger, queue, scopes, rest)
                    if edition is None or (
                        self.is_cut and edition != NEVER
                    ):  # the next round goes on at once
                        due_ns = min(_due_at(self.ledger, queue, self.now_ns), default=None)
                        queue.memo = Memo(_stamp(self.ledger, queue, self.running), due_ns, rest, edition)
        if self.usage is not None:
            started_jobs = {start.job.job_id for start in self.starts}
            self.usage.note_waiting(self.queues.values(), self.ledger, started_jobs)

    def plan(self) -> Plan:
        """What the round proposes."""
        queues, preemptor, tasks = self.queues.values(), self.preemptor, self.tasks
        return Plan(
            self.starts, tuple(self.waits), _cleared(queues), tuple(tasks.starts), tuple(tasks.waits),
            preempts=tuple(preemptor.preempts), lapsed=tuple(preemptor.lapsed),
            unsearched=self.is_cut or preemptor.unsearched or bool(self.freed),
            stalled=self.is_cut and not self.starts and not any(scan.judged for scan in self.scans),
            tasks_deferred=tasks.deferred, trial=self.trial if self.trial.starts else None,
        )  # fmt: skip


def _once(question: Callable[[], bool]) -> Callable[[], bool]:
    """A question that is answered once, when it is first asked; ``functools.cache`` takes longer to make one."""
    answers: list[bool] = []

    def answer() -> bool:
        if not answers:
            answers.append(question())
        return answers[0]

    return answer


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
    if plan.tasks_deferred or plan.unsearched:
        return True
    proposed = plan.proposed
    return bool(proposed) and (proposed >= MOST_STARTS or started < proposed or plan.has_loans)


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
    return {shared.scope for queue in queues if queue.shared for shared in queue.shared.values()}


def _is_settled(ledger: Ledger, queue: Queue, running: Running, scopes: Collection[str], now_ns: int) -> bool:
    """Whether a scan would find what the last one has found, which was noted then."""
    memo, parent = queue.memo, ledger.clusters.get(queue.parent_id)
    if memo is None or parent is None or parent.queue != queue.policy:
        return False
    if memo.stamp != _stamp(ledger, queue, running) or (memo.due_ns is not None and now_ns >= memo.due_ns):
        return False
    return memo.edition == _holds_for(ledger, queue, scopes, memo.rest)


def _holds_for(ledger: Ledger, queue: Queue, scopes: Collection[str], rest: Rest | None) -> int | None:
    """The edition of the ledger for which a scan of a queue holds; None: for any, nobody else decides about its jobs.

    Others do where shares decide about the order and where the queue preempts: it never holds there. Where anything is
    reserved, a reserved start depends on jobs of other clusters, too: it holds for the present edition, if the queue
    reserved it itself or the scan is to go on (``rest``).
    """
    is_bound = _binds(ledger, queue, scopes)
    if queue.policy.preempts or is_fair(ledger, queue.parent_id) or (is_bound and rest is None):
        return NEVER
    return ledger.edition if queue.kept or is_bound else None


def _binds(ledger: Ledger, queue: Queue, scopes: Collection[str]) -> bool:
    """Whether shared reservations below these clusters bind the jobs of a queue."""
    chain = (PRIMARY, *(one.cluster_id for one in ledger.upward(queue.parent_id)))
    return bool(scopes) and any(one in scopes for one in chain)


def _stamp(ledger: Ledger, queue: Queue, running: Running) -> object:
    """What a scan depends on beside its jobs, what comes free and the time: running jobs, nodes, machines, limits."""
    parent_id = queue.parent_id
    versions = [ledger.versions.get(one.cluster_id, 0) for one in ledger.upward(parent_id)]
    limited = (ledger.limits, running.changes, ledger.edition) if ledger.limits else None
    return running.version(parent_id), ledger.versions.get(PRIMARY, 0), versions, ledger.templates, limited


def _may_reserve(queue: Queue, until_ns: int | None) -> bool:
    """Whether the first heads of a queue may get a reservation that they could not get before.

    So it is with the discipline backfill, and where the first head starves. ``until_ns``: when the next one will.
    """
    discipline = queue.policy.discipline
    return discipline == BACKFILL or (discipline == BEST_EFFORT and until_ns is None)


def _reconsider(ledger: Ledger, queue: Queue, grown: Mapping[str, set[str]], freed: Freed) -> None:
    """Prepare a queue for the round: its policy, its capacity, and the verdicts that no longer hold.

    A verdict is forgotten if capacity that came free since the last round may help its shape: in the parent,
    or, if the parent can grow, in a cluster from which it can grow, or in one whose idle loans can come home.
    """
    queue.again_ns = queue.until_ns = None  # also for an empty queue
    if queue.parent_id in grown:
        queue.is_stale = True
        queue.improved.clear()
    parent = ledger.clusters.get(queue.parent_id)
    if parent is not None:
        queue.arrange(parent.queue, is_limited=ledger.limits.of_users)
        queue.judge_capacity(ledger)
    if parent is None or not parent.spec.flexible:
        queue.reconsider(ledger, grown.get(queue.parent_id, ()))
    if freed.with_loans or (freed.near and parent is not None and parent.spec.flexible):
        queue.regard(ledger)


def _admits(ledger: Ledger, queue: Queue, waits: list[Wait]) -> bool:
    """Whether jobs of a queue may start at all. If its cluster admits none, add their waits."""
    parent = ledger.clusters.get(queue.parent_id)
    if parent is None:
        return False
    if parent.starts_jobs:
        return bool(queue.shapes)
    booking = parent.booking if parent.state == BOOKED else None
    if booking is not None:
        reported = (jb.BEGIN_TIME, opens_at(queue.parent_id, booking.begin_ns))
    else:
        reported = (jb.CLUSTER_STOPPED, f"{cluster_text(queue.parent_id)} admits no jobs")
    for shape in queue.shapes.values():
        shape.judge(Verdict(*reported))
        for sub_queue in shape.sub_queues.values():
            if queue.reported.get(key := queue.wait_key(sub_queue)) != reported:
                queue.reported[key] = reported
                waits.append(Wait(queue.parent_id, key, *reported))
    return False


def _in_turn(scans: list[QueueScan], has_enough: Callable[[], bool]) -> Iterator[Start]:
    """Let the queues take turns: the queue of least rank next; among equals the first by parent id."""
    left = [scan for scan in scans if not scan.is_over]
    if len(left) == 1:
        yield from _alone(left[0], has_enough)
        return
    order = [(scan.rank(), scan.queue.parent_id, scan) for scan in left]
    heapify(order)
    while order and not has_enough():
        rank, name, scan = order[0]
        if scan.is_over:
            heappop(order)
        elif (now := scan.rank()) != rank:
            heapreplace(order, (now, name, scan))
        elif (start := scan.step()) is not None:
            yield start


def _alone(scan: QueueScan, has_enough: Callable[[], bool]) -> Iterator[Start]:
    """All turns of the only queue."""
    while not (scan.is_over or has_enough()):
        if (start := scan.step()) is not None:
            yield start
