"""When a waiting job is expected to start: a simulation that begins with the present state, and what it rests on.

The problem. A position in the queue does not say when a job starts. Only the scheduler knows who is next, and what
its rules of order, reservations, growth and preemption make of it.

The idea. ``Player`` plays the present state forward: jobs end by their time limits, gates open at their times, and
``decide`` starts what it would start then. The first moment at which a job starts is its expected start; the event of
that moment (an end, a begin time) is what it rests on.

What it takes for granted. Jobs run until their time limits, and then count as successful for those that wait for them.
A job that is being ended has gone at the last moment that it is given. A preempted one goes at once. Nothing is
submitted, changed, or breaks. So where time limits are longer than the jobs run, the forecast is the latest start.

Loans that nobody uses, or that are called home, go home as they do in a daemon (``Backlog.terms``), counted from now.

What it leaves out: tasks of running jobs that wait, machines that a provider could make, jobs that are stopped after a
grace because they use a loan that is called home.
The sentences say so where there are such tasks or such a provider.

The cost. Steps are counted as in a round, and moments and starts beside them. Whatever is not known when the budget is
used up stays unknown, and says so; so does what waits behind jobs that were not read (``Backlog.unread``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heappush

from vctl.core import jobs as jb
from vctl.core.clusters import BOOKED, PRIMARY
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.limits import USER
from vctl.core.nodes import ALIVE, Node
from vctl.core.queue_policy import STRICT
from vctl.core.values import field, replace, value
from vctl.core.wording import cluster_text, listed, opens_at, timestamp
from vctl.engine.rules.leases import expired
from vctl.engine.rules.revocation import revoked
from vctl.engine.settings import LeaseTerms, TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import Now
from vctl.scheduler.explain.trial import (
    RunningHolder,
    Situation,
    believe,
    hand_over,
    running_of,
    settle,
    stop,
)
from vctl.scheduler.explain.words import limit_reached
from vctl.scheduler.fairness import Usage
from vctl.scheduler.gang_growth import place_or_grow
from vctl.scheduler.lending import kept_back, withhold
from vctl.scheduler.limits import LimitUse, least_of
from vctl.scheduler.orders import order_key
from vctl.scheduler.placement import Unplaced
from vctl.scheduler.plan import Plan, Start, Trial, nodes_of
from vctl.scheduler.queueing import Queue
from vctl.scheduler.reservations import FOR_EVER
from vctl.scheduler.work import Budget
from vctl.simulate.play import Played, Player
from vctl.simulate.workload import Arrival

STEPS = 4_000
"""The budget of a forecast; a step takes about 20 µs."""
OF_A_MOMENT, OF_A_START = 10, 10
"""The steps that a moment and a start cost beside those of the rounds."""
NAMED = 2
"""The most jobs or nodes that a sentence names."""
PASSES = "if no job ahead of it fits by then"
BESIDE = "if no job of another queue fits by then"
BEHIND = "if no job behind it goes first"
NOW = "nothing blocks it: the scheduler starts it in its next round"
TOO_MANY = "unknown: too many jobs before it"


@value(frozen=True, slots=True)
class Expected:
    """The expected start of a waiting job, None where it is unknown, and a sentence about what it rests on."""

    start_ns: int | None
    basis: str


UNREAD = Expected(None, TOO_MANY)
"""What is known about a job that was not read."""


@value(frozen=True, slots=True)
class Backlog:
    """The present state. The pending jobs of its situation are all that wait, in their queues or at gates."""

    situation: Situation
    begun: Mapping[int, PendingJob] = field(default_factory=dict)
    """The running jobs as they would wait again."""
    awaits: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Job -> the open conditions (condition, id of a job or array) for which it waits."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Id of an awaited job or array -> how many of its jobs are not over."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """When jobs that are being ended have gone at the latest."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Cluster -> the number of its waiting jobs, behind all others, that were not read."""
    terms: LeaseTerms | None = None
    """When loans that nobody uses go home; None: they stay where they are."""


def forecast(backlog: Backlog, wanted: Collection[int], *, steps: int = STEPS) -> dict[int, Expected]:
    """The expected starts of the wanted jobs among those that were read. Changes the ledger of the situation."""
    known = [job.job_id for job in backlog.situation.pending if job.job_id in wanted]
    if not known:
        return {}
    future = _Future(backlog, known, steps)
    future.come()
    return {job_id: future.expected(job_id) for job_id in known}


@value(frozen=True, slots=True)
class _Ended:
    """An end at the present moment: what of, the nodes that it leaves, and a clause that tells it."""

    job: PendingJob
    node_ids: frozenset[str]
    clause: str


class _Spent(Exception):
    """The budget is used up, or what comes next depends on jobs that were not read."""


class _Future(Player):
    """The present state, played forward until all wanted jobs have started or nothing happens any more."""

    def __init__(self, backlog: Backlog, wanted: Iterable[int], steps: int) -> None:
        situation = backlog.situation
        super().__init__(situation.ledger)
        self.backlog = backlog
        self.wanted = set(wanted)
        self.found: dict[int, Expected] = {}
        self.now_ns = self.began_ns = situation.now_ns
        self.usage = situation.usage or Usage()
        self.running = running_of(situation)
        self.is_spent = False
        self.waiting = {job.job_id: job for job in situation.pending}
        self.budget = Budget(steps)
        self._ended: list[_Ended] = []
        self._reserved: set[int] = set()
        """The jobs for which something was reserved before the present round."""
        self._loans = SchedulerState(self.ledger, {}, 0)
        """The loans, for the rules of the engine by which they go home."""
        self._memo = TurnMemo()
        self._left = dict(backlog.left)
        self._open = {job_id: list(conditions) for job_id, conditions in backlog.awaits.items()}
        self._places: dict[str, int] = {}
        """Array with a running limit -> its free places."""
        self._missing: dict[tuple[str, str], str] = {}
        """(Cluster, shape) -> what keeps its jobs from having a place at the end, for which ``come`` has ended."""
        self._orders: dict[str, list[PendingJob]] = {}
        """Cluster -> the jobs that are left in its queue at the end."""
        for holder in situation.running:
            self._carry_on(holder)
        for job in situation.pending:
            self.jobs[job.job_id] = Played(Arrival(job, FOR_EVER))
            if not job.is_gated:
                self._enter(job)
        hand_over(situation, self.queues)
        for queue in self.queues.values():
            believe(self.ledger, queue)

    # ---- the present ----

    def _carry_on(self, holder: RunningHolder) -> None:
        row, job = holder.row, self.backlog.begun.get(holder.job_id)
        if row is None or job is None:
            return
        self._holders[holder.job_id] = holder
        self.jobs[holder.job_id] = Played(Arrival(job, FOR_EVER), row.started_at_ns)
        if holder.job_id in self.backlog.situation.leaving:
            self.running.leave(holder.job_id)
        ends_ns = self.backlog.ends.get(holder.job_id, row.ends_at_ns)
        if ends_ns is not None:
            heappush(self._ends, (max(ends_ns, self.now_ns), holder.job_id, 0))

    def _enter(self, job: PendingJob) -> None:
        if (queue := self.queues.get(job.parent_id)) is None:
            queue = self.queues[job.parent_id] = Queue(job.parent_id)
        queue.put(job)
        if job.begin_at_ns is not None and job.begin_at_ns > self.now_ns:
            heappush(self._begins, job.begin_at_ns)

    # ---- what comes ----

    def come(self) -> None:
        """Play until every wanted job has started, nothing happens any more, or the budget is used up."""
        try:
            self._give_back()
            while True:
                self.round()
                while self._give_back():  # what is idle now, after the starts
                    self.round()
                if not self.wanted.difference(self.found):
                    return
                self._look_behind()
                moment = self._next((), 0)
                if moment is None or moment >= FOR_EVER:
                    return
                self._spend(OF_A_MOMENT)
                self._ended = []
                self._go_to(moment)
        except _Spent:
            self.is_spent = True

    def _go_to(self, moment: int) -> None:
        super()._go_to(moment)
        self._give_back()

    def _next(self, ordered: Sequence[Arrival], coming: int) -> int | None:
        due = [at for at in self._memo.due if at > self.now_ns]
        return min([*due, *filter(None, [super()._next(ordered, coming)])], default=None)

    def _give_back(self) -> bool:
        """Call loans home that lenders need, and let those go that nobody uses for long enough; True: some did."""
        terms, state, gone = self.backlog.terms, self._loans, False
        if terms is None or not self.ledger.leases:
            return False
        self._spend(len(self.ledger.leases))
        state.lease_terms, state.queues, self._memo.due = terms, self.queues, []
        state.nominations = {n: one for queue in self.queues.values() for n, one in queue.nominations.items()}
        for called in revoked(state, self._memo, Now(self.now_ns, self.now_ns), self._lease_ids.__next__):
            called.apply(state)
        for change in expired(state, self._memo, Now(self.now_ns, self.now_ns)):
            change.apply(state)
            gone = True
        return gone

    def _spend(self, steps: int) -> None:
        self.budget.spend(steps)
        if self.budget.is_spent:
            raise _Spent

    def _look_behind(self) -> None:
        """Stop where it would be the turn of a job that was not read."""
        for name in self.backlog.unread:
            queue = self.queues.get(name)
            if queue is None or not queue.jobs:
                raise _Spent

    def _decide(self) -> Plan:
        """One round, before which lenders keep what their own work starts with."""
        if self.budget.is_spent:
            raise _Spent
        self._reserved = {one.job_id for queue in self.queues.values() for one in queue.reservations}
        nominations = [one for queue in self.queues.values() for one in queue.nominations.values()]
        withhold(self.ledger, kept_back(self.ledger, self.queues, {}, self.now_ns, nominations))
        return super()._decide()

    def _start(self, start: Start, trial: Trial | None) -> None:
        job_id, is_first = start.job.job_id, start.job.job_id not in self.found
        if job_id in self.wanted and is_first:
            self.found[job_id] = Expected(self.now_ns, self._basis(start) + self._if(start.job))
        super()._start(start, trial)
        self.budget.spend(OF_A_START)

    def end(self, job_id: int) -> None:
        """End a job, and open the gates that wait for it."""
        holder, job = self._holders[job_id], self.jobs[job_id].arrival.job
        self._ended.append(_Ended(job, frozenset(self._nodes_of(holder)), self._told(job)))
        super().end(job_id)
        for queue in self.queues.values():
            for nomination in [one for one in queue.nominations.values() if job_id in one.awaited]:
                awaited = nomination.awaited - {job_id}
                queue.set_nomination(nomination.job_id, replace(nomination, awaited=awaited))
        for name in (job.submission_id, job.array_id):
            if name is not None and self._left.get(name):
                self._left[name] -= 1
                if not self._left[name]:
                    self._meet(name)
        if job.array_id is not None:
            self._places[job.array_id] = self._places.get(job.array_id, 0) + 1
            self._admit(job.array_id)

    def _meet(self, name: str) -> None:
        """What a job waits for has ended well: that was its condition, or it can never be met."""
        for job_id, conditions in self._open.items():
            met = [one for one in conditions if one[1] == name and one[0] != "notok"]
            if not met:
                continue
            self._open[job_id] = [one for one in conditions if one not in met]
            if not self._open[job_id]:
                job = self.waiting[job_id] = replace(self.waiting[job_id], waits_for=0)
                if not job.is_gated:
                    self._enter(job)
                elif job.array_id is not None:
                    self._admit(job.array_id)

    def _admit(self, array_id: str) -> None:
        """Give the free places of an array to the first members that wait for one."""
        while self._places.get(array_id):
            ready = (
                job
                for job in self.waiting.values()
                if job.array_id == array_id and job.closed and not (job.held or job.waits_for)
            )
            first = min(ready, key=lambda job: job.job_id, default=None)
            if first is None:
                return
            self._places[array_id] -= 1
            job = self.waiting[first.job_id] = replace(first, closed=False)
            self._enter(job)

    # ---- what a start rests on ----

    def _nodes_of(self, holder: RunningHolder) -> Iterator[str]:
        ledger = self.ledger
        for vnode_id in ledger.members.get(holder.cluster_id, ()) if holder.cluster_id else ():
            yield ledger.vnodes[vnode_id].node_id
        for run_id in holder.run_ids:
            if run_id in ledger.charges and (vnode := ledger.vnodes.get(ledger.charges[run_id][0])):
                yield vnode.node_id

    def _told(self, job: PendingJob) -> str:
        """The clause about an end: ``train ends by its time limit``."""
        started_ns = self.jobs[job.job_id].start_ns
        if job.job_id in self.backlog.ends:
            return f"{job.submission_id}, which is being ended, has gone"
        if started_ns is not None and job.job_id in self.waiting:
            return (
                f"{job.submission_id}, expected to start at {timestamp(started_ns)}, ends by its time limit"
            )
        return f"{job.submission_id} ends by its time limit"

    def _basis(self, start: Start) -> str:
        """The event of this moment that lets a job start."""
        job = start.job
        if self.now_ns <= self.began_ns and not self._ended:
            return NOW
        awaited = {name for _, name in self.backlog.awaits.get(job.job_id, ())} | {job.array_id}
        node_ids = nodes_of(start)
        near = [one for one in self._ended if {one.job.submission_id, one.job.array_id} & (awaited - {None})]
        cluster = self.ledger.clusters.get(job.parent_id)
        booking = None if cluster is None else cluster.booking
        if booking is not None and booking.begin_ns == self.now_ns:
            return f"when the booking of {cluster_text(job.parent_id)} begins at {timestamp(self.now_ns)}"
        near = near or [one for one in self._ended if one.node_ids & node_ids]
        if self.closed and not near:
            return f"when the booking of {cluster_text(self.closed[0])} ends at {timestamp(self.now_ns)}"
        near = near or self._ended
        if near:
            first, others = near[0], len(near) - 1
            also = f", as {'does' if others == 1 else 'do'} {others} more" if others else ""
            return f"when {first.clause} at {timestamp(self.now_ns)}{also}"
        if job.begin_at_ns is not None and job.begin_at_ns == self.now_ns:
            return f"its begin time is {timestamp(self.now_ns)}"
        return f"the rules of its queue let it start at {timestamp(self.now_ns)}"

    def _if(self, job: PendingJob) -> str:
        """The end of a sentence: what else has to come true."""
        names = [name for condition, name in self.backlog.awaits.get(job.job_id, ()) if condition == "ok"]
        succeeds = "succeeds" if len(names) == 1 else "succeed"
        awaits = f", if {listed(names, NAMED)} {succeeds}" if names else ""
        passes = self._passing(job)
        return (f", {passes}" if passes else "") + awaits + self._behind(job) + self._left_out()

    def _left_out(self) -> str:
        """The end of a sentence: what is not played forward, and may come before."""
        tasks = ", if no waiting task goes first" if self.backlog.situation.tasks else ""
        is_made = self.ledger.templates and self.now_ns > self.began_ns
        return tasks + (", or before that on a machine that is made for it" if is_made else "")

    def _passing(self, job: PendingJob) -> str:
        """Who waits on while a job starts, and may start instead if something ends earlier."""
        if self.now_ns <= self.began_ns:
            return ""

        def left(name: str) -> Iterator[PendingJob]:
            jobs = self.queues[name].jobs.values()
            return (one for one in jobs if one.may_start(self.now_ns) and one.job_id != job.job_id)

        policy = self.queues[job.parent_id].policy
        key, is_strict = order_key(job, policy), policy.discipline == STRICT
        if not is_strict and any(order_key(one, policy) < key for one in left(job.parent_id)):
            return PASSES
        if any(any(left(name)) for name in self.queues if name != job.parent_id):
            return BESIDE
        # nothing was reserved for it: one behind it may pass
        is_passable = not is_strict and job.job_id not in self._reserved and any(left(job.parent_id))
        return BEHIND if is_passable else ""

    def _behind(self, job: PendingJob) -> str:
        """The end of a sentence: jobs behind it, which were not read, might take its place."""
        cluster = self.ledger.clusters.get(job.parent_id)
        more = sum(self.backlog.unread.values())
        if not more or (cluster is not None and cluster.queue.discipline == STRICT):
            return ""
        return f", if none of {more} jobs further behind goes first"

    # ---- what never starts ----

    def expected(self, job_id: int) -> Expected:
        """The start of a wanted job, or why none is known."""
        found = self.found.get(job_id)
        return found or Expected(None, f"unknown: {self._why_unknown(self.waiting[job_id], set())}")

    def _why_unknown(self, job: PendingJob, seen: set[int]) -> str:
        seen.add(job.job_id)
        if job.held:
            return "it is held" if len(seen) == 1 else f"{job.submission_id} is held"
        if job.waits_for:
            return self._why_awaited(job, seen)
        if self.is_spent:
            return "too many jobs before it"
        if job.closed:
            of_array = [one for one in self._holders.values() if self._array_of(one) == job.array_id]
            return _endless(sorted(one.submission_id for one in of_array)) or "its array has no free place"
        cluster = self.ledger.clusters.get(job.parent_id)
        if cluster is not None and cluster.state == BOOKED and cluster.booking is not None:
            return opens_at(job.parent_id, cluster.booking.begin_ns)
        if cluster is None or not cluster.starts_jobs:
            return f"{cluster_text(job.parent_id)} admits no jobs"
        return self._why_refused(job, seen)

    def _array_of(self, holder: RunningHolder) -> str | None:
        return self.jobs[holder.job_id].arrival.job.array_id

    def _why_awaited(self, job: PendingJob, seen: set[int]) -> str:
        for condition, name in self._open.get(job.job_id, ()):
            if condition == "notok":
                return f"it waits for {name} to fail"
            for one in self._holders.values():
                if name in (one.submission_id, self._array_of(one)):
                    return self._is_endless(one)
            for other in self.waiting.values():
                is_its = name in (other.submission_id, other.array_id)
                if is_its and self.jobs[other.job_id].end_ns is None and other.job_id not in seen:
                    return f"it waits for {name}: {self._why_unknown(other, seen)}"
            return f"it waits for {name}, whose end is not known"
        return "it waits for other jobs"

    def _is_endless(self, holder: RunningHolder) -> str:
        if self.is_spent:
            return "too many jobs before it"
        return _endless([holder.submission_id])

    def _why_refused(self, job: PendingJob, seen: set[int]) -> str:
        """What keeps a job of a queue from starting at the end of all that is known."""
        kind = (job.parent_id, job.shape)
        if kind not in self._missing:
            self._missing[kind] = self._why_without_place(job)
        return self._missing[kind] or self._why_passed(job, seen)

    def _why_without_place(self, job: PendingJob) -> str:
        """What keeps a job and its like from having a place at the end of all that is known; empty: they have one."""
        if _place_of(self.ledger, job) is not None:
            return ""
        if self.ledger.templates:
            return "a machine may be made for it"
        empty, node_ids = self._emptied
        place = _place_of(empty, job)
        if place is not None:
            there = [
                one.submission_id
                for one in self._holders.values()
                if not place.isdisjoint(node_ids[one.job_id])
            ]
            return _endless(there or [one.submission_id for one in self._holders.values()])
        shut = [node for _, node in sorted(empty.nodes.items()) if not node.schedulable]
        opened = empty.copy()
        for node in shut:
            opened.put_node(replace(node, state=ALIVE))
        settle(opened)
        if shut and _place_of(opened, job) is not None:
            return f"it needs nodes that are {_states(shut)} ({listed([one.node_id for one in shut], NAMED)})"
        return f"it needs more than {cluster_text(job.parent_id)} has"

    @cached_property
    def _emptied(self) -> tuple[Ledger, dict[int, set[str]]]:
        """The ledger of the end without what still runs then, and the nodes of each of these jobs."""
        empty, node_ids = self.ledger.copy(), dict[int, set[str]]()
        for holder in self._holders.values():
            node_ids[holder.job_id] = set(self._nodes_of(holder))
            stop(empty, holder)
        settle(empty)
        return empty, node_ids

    def _why_passed(self, job: PendingJob, seen: set[int]) -> str:
        """Why a job waits that has a place: for a job ahead of it, or for a limit of running jobs."""
        queue = self.queues.get(job.parent_id)
        reason, message = ("", "") if queue is None else self._why(queue, job)
        if queue is not None and reason in (jb.CAP_REACHED, jb.USER_LIMIT):
            asked = least_of(job)
            for limit in LimitUse(self.ledger.limits, (), self._chain).refusals(
                job.parent_id, job.user, asked
            ):
                return limit_reached(limit, job.parent_id, job.user)  # it exceeds the limit by itself
            runs = [
                one.submission_id
                for one in self._holders.values()
                if one.row is not None and self._counts_beside(job, one.row)
            ]
            return _endless(runs) or message
        if queue is not None:
            first = next((one for one in self._order(queue) if one.job_id not in seen), None)
            if first is not None and order_key(first, queue.policy) < order_key(job, queue.policy):
                return f"{first.submission_id} is ahead of it: {self._why_unknown(first, seen)}"
        return message or "the rules of its queue do not let it start"

    def _counts_beside(self, job: PendingJob, other: RunningJob) -> bool:
        """Whether another job counts, too, where a limit keeps a job back: in its queue, for its user or a cluster."""
        above = self._chain(other.parent_id)
        return other.parent_id == job.parent_id or any(
            other.user == job.user if limit.subject == USER else limit.name in above
            for limit in self.ledger.limits
        )

    def _chain(self, cluster_id: str) -> list[str]:
        return [*(one.cluster_id for one in self.ledger.upward(cluster_id)), PRIMARY]

    def _order(self, queue: Queue) -> list[PendingJob]:
        """The jobs that are left in a queue at the end, in its order."""
        if queue.parent_id not in self._orders:
            order = sorted(queue.jobs.values(), key=lambda one: order_key(one, queue.policy))
            self._orders[queue.parent_id] = order
        return self._orders[queue.parent_id]


def _endless(names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = " and ".join(names) if len(names) <= NAMED else listed(names, NAMED)
    return f"{shown} {'has' if len(names) == 1 else 'have'} no time limit"


def _states(nodes: Iterable[Node]) -> str:
    return " or ".join(sorted({node.state.lower() for node in nodes}))


def _place_of(ledger: Ledger, job: PendingJob) -> set[str] | None:
    """The nodes on which a job has a place in a ledger; None: it has none."""
    if job.parent_id != PRIMARY and job.parent_id not in ledger.clusters:
        return None
    trial = ledger.copy()
    trial.grown, trial.withheld = {}, {}
    found = place_or_grow(trial, job.parent_id, job.spec, job.entry)
    if isinstance(found, Unplaced):
        return None
    return {piece.node_id for piece in found[1].pieces}
