"""The scan of one queue in one round: takes its jobs in order, one at a time, and starts or passes each.

If an equal job has a verdict, the job is passed without a search. The discipline of the queue, reservations
and preemption decide which jobs behind a passed job may start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import BACKFILL, FAIR, STRICT
from vctl.scheduler import limits
from vctl.scheduler.disciplines import DISCIPLINES, ReservationTable
from vctl.scheduler.explain import words
from vctl.scheduler.explain.refusal import Refusal
from vctl.scheduler.fairness import Shares, is_fair
from vctl.scheduler.gang_growth import place_loosely, place_with_growth, surely_grows
from vctl.scheduler.heads import Candidates, Heads, Rest
from vctl.scheduler.orders import OrderKey, Turn, order_key, turn_of
from vctl.scheduler.placement import Placed, Unplaced, place_again
from vctl.scheduler.placement_reasons import plain_reason
from vctl.scheduler.placement_result import seated
from vctl.scheduler.plan import Start, Wait, revert, start_of, take
from vctl.scheduler.preemption import Preemptor
from vctl.scheduler.queueing import Memo, Queue
from vctl.scheduler.reach import reach_of
from vctl.scheduler.reservations import Reservation, Shared, kept_off_text
from vctl.scheduler.running import Running
from vctl.scheduler.scheduling_class import SchedulingClass, SubQueue, Verdict
from vctl.scheduler.shared_reservations import SharedReservations
from vctl.scheduler.work import COUNT, GROWTH, HEADS, PASS, SEARCH, START, VNODE, Budget, search_steps

_NOTHING: AbstractContextManager[None] = nullcontext()
Before = tuple[Memo, int | None]
"""The memo of the last scan of a queue, and when that ends to hold (``Queue.until_ns``)."""


class QueueScan:
    """The scan of a queue within a round. ``shares`` is None where no order is fair."""

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        running: Running,
        shares: Shares | None,
        preemptor: Preemptor,
        shared: SharedReservations,
        use: limits.LimitUse,
        *,
        now_ns: int,
        may_loosen: Callable[[], bool],
        budget: Budget,
        rest: Rest | None = None,
        before: Before | None = None,
    ) -> None:
        self.ledger, self.queue, self.running = ledger, queue, running
        self.shares, self.preemptor, self.shared, self.use = shares, preemptor, shared, use
        self.now_ns, self.policy = now_ns, queue.policy
        self.waits: list[Wait] = []
        self._said: set[str] = set()
        self._may_loosen = may_loosen
        """Whether anything is borrowed and idle, or may be lent."""
        self._goes_first = shares is not None and is_fair(ledger, queue.parent_id)
        self._held: int | None = None
        """The head that found no place in what its cluster has or what is free: idle loans are its next try."""
        self._settled_at = -1
        """The edition of the ledger at which the heads were dropped whose verdict stands."""
        self.budget = budget
        self.judged = 0
        """The number of classes that got a verdict."""
        self._before = before
        """What is known if nothing that came free helps a job here: then there is nothing to scan."""
        self.is_skipped = False
        self._users: set[str] = set()
        self.kept_off: set[Reservation] = set()
        self._heads = Heads()
        self._is_open = False
        if rest is not None:  # the first heads were passed before the cut, and nothing has happened since
            self._table.heads, self._is_open = self._table.most_heads, True
            self._heads, self._said, self._table.seen, self.kept_off = rest
        elif shares is not None and self.policy.order == FAIR:
            self._open()

    @cached_property
    def _table(self) -> ReservationTable:
        return ReservationTable(self.ledger, self.queue, self.running, self.budget, now_ns=self.now_ns)

    def _open(self) -> None:
        """Line up the heads, unless no job may fit for which there was too little before.

        Most queues do not come to their turn in a round that is cut.
        """
        self._is_open = True
        if self._before is not None and self._goes_on(self._before):
            return
        if self.shares is None or self.policy.order != FAIR:
            self._heads = Heads(behind=self.queue.heads)
            return
        heads, share_of = self.queue.heads, self._share_of
        self._heads = Heads((share_of(one.user), key, one, None) for key, one in heads)
        self.budget.spend(len(heads) // HEADS)
        self._users = {one.user for _, one in heads}

    def _goes_on(self, before: Before) -> bool:
        """Whether the first head still has to wait, so that the scan goes on where that may fit which did not before.

        If there is no such job, the scan is over, and what is known from the last one holds.
        """
        heads, shapes = self.queue.heads, self.queue.shapes
        first = self.queue.jobs[heads[0][0][1]]
        if not (first.may_start(self.now_ns) and self.queue.has_verdict(self.ledger, shapes[first.shape])):
            return False
        if self.policy.discipline != STRICT and len(heads) > 1:
            self._heads = Heads(behind=heads, at=1)
            self._settled_at = self.ledger.edition
            self._pass_over(())
        self.queue.until_ns = before[1]
        if self.is_over:
            self.queue.memo, self.is_skipped = before[0], True
            if self.policy.discipline != STRICT:
                self.queue.doubts.known_at = self.queue.doubts.frees
        else:
            self._table.heads = self._table.most_heads
        return True

    @property
    def rest(self) -> Rest | None:
        """Where the scan was cut, if it needs no second look at what it has come to."""
        is_cut = self._is_open and not self.is_over and self._table.heads >= self._table.most_heads
        if not is_cut or not self._passes_unseen or self._goes_first or self.policy.discipline == STRICT:
            return None
        return Rest(self._heads, self._said, self._table.seen, self.kept_off)

    @property
    def _first(self) -> OrderKey:
        """The first head."""
        return self._heads.first if self._is_open else self.queue.first

    @property
    def _passes_unseen(self) -> bool:
        """Whether jobs whose verdict is known and reported need no look, once the first heads were passed."""
        return not (self.preemptor.holds.nominations or self.policy.preempts)

    @property
    def is_over(self) -> bool:
        """Whether every job was started or passed."""
        return self._is_open and self._heads.is_empty

    def rank(self) -> tuple[tuple[float, ...], Turn]:
        """The rank of the queue: the queue with the least rank has the next turn.

        Where no order is fair, the highest priority is first, then the oldest job, as in one queue (``turn_of``).
        """
        job = self.queue.jobs[self._first[1]]
        turn = turn_of(job.priority, job.job_id, is_held=self._held == job.job_id)
        if self.shares is None:
            return (), turn
        share = self._heads.lined_up[0][0] if self._heads.lined_up else 0.0
        return (*self.shares.turn_of(self.queue.parent_id), share), turn

    def finish(self) -> None:
        """Keep the reservations for the next round."""
        is_over = self.is_over
        self.queue.kept = self._table.promises(is_over=is_over)
        if is_over:
            self.queue.doubts.known_at = self.queue.doubts.frees
            self.queue.is_stale = False
            self.queue.improved.clear()

    def step(self) -> Start | None:
        """Try the next job; its start is applied to the ledger."""
        self.budget.spend(PASS)
        if not self._is_open:
            self._open()
            return None  # another queue may be first
        if (head := self._next_head()) is None:
            return None
        job, sub_queue, rest = head
        shape = self.queue.shapes[sub_queue.shape]
        if self._is_kept_back(job, sub_queue):
            return None
        reach = self.preemptor.holds.reach(job)
        known = shape.verdict if self.queue.has_verdict(self.ledger, shape) else None
        own = self._table.of(job)
        due = own if own is not None and own.is_due(self.now_ns) else None
        if known is not None and reach <= known.nominations and due is None:
            self._pass_blocked(job, sub_queue, rest, known)
            return None
        binding = self._table.binding(job)
        outer = self.shared.binding(job)
        mine = own or self.shared.of(job)
        kept_off = [*binding, *(shared.reservation for shared in outer)]
        if kept_off and mine is None and self.queue.keeps_back(self.ledger, sub_queue, kept_off):
            self._pass_reserved(job, sub_queue, rest, kept_off, outer)
            return None
        is_held, self._held = self._held == job.job_id, None
        with self.preemptor.holds.lifted(reach) if reach else _NOTHING:
            start, found = None, None
            if not is_held:
                start, found = self._try_due(job, shape, binding, outer, mine)
                start = start or self._start_reserved(job, due, outer)
            if start is None and (is_held or self._may_loosen()):
                if not (is_held or self._goes_first):
                    self._held = job.job_id
                    self._heads.push(
                        (self._share_of(sub_queue.user), order_key(job, self.policy), sub_queue, rest)
                    )
                    return None
                start, found = self._try_due(job, shape, binding, outer, mine, loose=True)
            if start is not None and not self._admits(start, sub_queue):
                return None
        if start is not None:
            self._push(sub_queue, rest)
        elif found is None:
            sub_queue.blocked_by, sub_queue.blocked_at = tuple(kept_off), self.queue.doubts.now
            self.preemptor.lapse(job)
            self._pass_reserved(job, sub_queue, rest, kept_off, outer)
        else:
            verdict = self._verdict(job, found, reach)
            shape.judge(verdict)
            self.judged += 1
            self._pass_blocked(job, sub_queue, rest, verdict)
        return start

    @property
    def _reserved(self) -> set[int]:
        """The jobs of the queue that have a reservation: they are tried even if all jobs like them are passed."""
        return self._table.reserved.keys() | self.shared.holders(self.queue)

    def _start_reserved(self, job: PendingJob, due: Reservation | None, outer: list[Shared]) -> Start | None:
        """Start a job in the place whose reserved start has come, or that a preemption has freed for it."""
        bookings = [shared for shared in outer if shared.reservation.is_booking]
        with self.shared.hidden(bookings) if bookings else _NOTHING:
            if due is not None and (there := seated(self.ledger, due.placed, job.entry)):
                return self._take(start_of(self.ledger, job, there))
            if (nominated := self.preemptor.holds.placement(job)) is not None:
                growth, placed = nominated
                return self._take(start_of(self.ledger, job, placed, growth))
        return None

    def _next_head(self) -> tuple[PendingJob, SubQueue, Candidates] | None:
        """Take out the first head; None: it needs no look any more, or its key was out of date."""
        if self._settled_at not in (-1, self.ledger.edition):
            first = self._first
            self._pass_settled()
            if self.is_over or self._first != first:
                return None
        before, key, sub_queue, rest = self._heads.pop()
        if before < (share := self._share_of(sub_queue.user)):
            self._heads.push((share, key, sub_queue, rest))  # jobs of its user started meanwhile
            return None
        job = self.queue.jobs[key[1]]
        if rest is None:
            rest = Candidates(self.queue.jobs, self.policy, sub_queue, self.now_ns)
            if next(rest, None) is not job:
                self._leave(sub_queue)
                self._push(sub_queue, Candidates(self.queue.jobs, self.policy, sub_queue, self.now_ns))
                return None
        return job, sub_queue, rest

    def _pass_blocked(self, job: PendingJob, sub_queue: SubQueue, rest: Candidates, verdict: Verdict) -> None:
        """Pass a job that does not fit into the free capacity; try preemption, then a shared reservation."""
        preempts = verdict.reason == jb.INSUFFICIENT and self.preemptor.consider(
            self.queue, sub_queue, job, lambda: self._table.binding(job)
        )
        self._pass(job, sub_queue, rest, verdict.reason, verdict.message, more=preempts)
        self._is_known(self.queue.shapes[sub_queue.shape])
        if verdict.reason == jb.INSUFFICIENT and not preempts:
            self.shared.consider(self.queue, self._table, job)

    def _pass_reserved(
        self,
        job: PendingJob,
        sub_queue: SubQueue,
        rest: Candidates,
        kept_off: list[Reservation],
        outer: list[Shared],
    ) -> None:
        """Pass a job for which reservations leave too little free. ``outer``: the shared ones."""
        if outer:
            rest.shorter_than(job, self._reserved)  # a longer job meets the same reservations
        self._pass(job, sub_queue, rest, jb.HEAD_OF_LINE, kept_off_text(kept_off), more=bool(outer))
        self.kept_off.update(one for one in kept_off if not one.is_booking)  # those stay as they are
        self.shared.consider(self.queue, self._table, job)

    def _pass(
        self,
        job: PendingJob,
        sub_queue: SubQueue,
        rest: Candidates,
        reason: str,
        message: str,
        *,
        more: bool = False,
    ) -> None:
        """Report why a job waits, and go on with the jobs behind it as the discipline allows."""
        self._say(sub_queue, reason, message)
        if reason == jb.INFEASIBLE:
            return
        table = self._table
        if job.job_id in self.preemptor.holds.nominations and self.policy.discipline != STRICT:
            table.heads += 1  # its nomination serves as its reservation
            table.promise(job, None)
        else:
            DISCIPLINES[self.policy.discipline](table, job)
        if table.heads >= table.most_heads and self._settled_at != self.ledger.edition:
            self._pass_settled()
        if self.policy.discipline == BACKFILL and table.heads >= self.policy.backfill_depth and not more:
            if reason == jb.HEAD_OF_LINE:
                rest.shorter_than(job, self._reserved)  # a longer job meets the same reservations, maybe more
            else:
                rest.only(job, self._reserved)
            more = True
        if more or self.policy.discipline == BACKFILL:
            self._push(sub_queue, rest)  # the next job of the sub-queue may be a head, too

    def _pass_settled(self) -> None:
        """Drop heads whose verdict is known and reported, once further heads get no reservation."""
        if not (self._passes_unseen and self.shared.is_settled_for(self.queue, self._users)):
            return
        self._settled_at = self.ledger.edition
        reserved = {self.queue.jobs[job_id].shape for job_id in self._reserved}
        if self._heads.has_behind:
            self._pass_over(reserved)
        self.budget.spend(len(self._heads.lined_up) // HEADS)
        known = cache(lambda name: name not in reserved and self._is_known(self.queue.shapes[name]))
        self._heads.retain(lambda head: head[3] is not None or not known(head[2].shape))

    def _pass_over(self, reserved: Collection[str]) -> None:
        """Pass over the heads that are not lined up and need no look, up to the first one that needs one."""
        shapes, doubts = self.queue.shapes, self.queue.doubts

        def needs_look(name: str) -> bool:
            shape = shapes[name]
            if name in reserved or (name in doubts.unreported and not self._is_known(shape)):
                return True
            if shape.is_doubted:
                return reach_of(self.ledger, self.queue.parent_id).may_hold(shape.count)
            return shape.stood_at != doubts.frees and not self.queue.has_verdict(self.ledger, shape)

        names = {*self.queue.to_look_at(self.ledger), *reserved}
        self.budget.spend(self._heads.pass_over(shapes, names, needs_look) // HEADS)

    def _is_known(self, shape: SchedulingClass) -> bool:
        """Whether the verdict of a class stands and was reported for all of its sub-queues."""
        if (verdict := shape.verdict) is None or not self.queue.has_verdict(self.ledger, shape):
            return False
        if not shape.is_reported:
            reported, key = self.queue.reported, self.queue.wait_key
            if all(reported.get(key(one)) == verdict[:2] for one in shape.sub_queues.values()):
                shape.note_reported(is_reported=True)
        return shape.is_reported

    def _leave(self, sub_queue: SubQueue) -> None:
        """Note that jobs are passed although nobody has asked whether their verdict stands."""
        self.queue.shapes[sub_queue.shape].note_reported(is_reported=False)

    def _keep_back(self, sub_queue: SubQueue, reason: str, message: str, *, winners: bool) -> bool:
        """Keep back all jobs of the queue in this round. ``winners`` False: nominated jobs may still start.

        Returns True.
        """
        self._say(sub_queue, reason, message)
        self._leave(sub_queue)
        for head in self._heads.line_up_all():
            self._leave(head[2])
            if not head[2].winner or winners:
                if head[3] or any(Candidates(self.queue.jobs, self.policy, head[2], self.now_ns)):
                    self._say(head[2], reason, message)
        self._heads.retain(lambda head: bool(head[2].winner) and not winners)
        return True

    def _is_kept_back(self, job: PendingJob, sub_queue: SubQueue) -> bool:
        """Whether a blocked head or a limit keeps the job back, and so its whole sub-queue."""
        head = self._table.stopped_by
        if head is not None and job.job_id not in self.preemptor.holds.nominations:
            text = f"job {head.submission_id} is ahead of it and must start first"
            return self._keep_back(sub_queue, jb.HEAD_OF_LINE, text, winners=False)
        refusal = limits.refusal(self.policy, self.running, self.use, job)
        return refusal is not None and self._is_limited(job, sub_queue, refusal)

    def _is_limited(self, job: PendingJob, sub_queue: SubQueue, refusal: Refusal) -> bool:
        """Pass the jobs that a limit keeps back: those of the sub-queue, or of the whole queue. Returns True."""
        self.queue.note_again(refusal.until_ns)
        self._leave(sub_queue)
        text = words.verdict_on_limit(refusal, self.queue.parent_id, job.user)
        if refusal.rule == jb.CAP_REACHED and refusal.subject in limits.OF_ALL_JOBS:
            return self._keep_back(sub_queue, jb.CAP_REACHED, text, winners=True)
        self._say(sub_queue, refusal.rule, text)
        return True

    def _try(
        self,
        job: PendingJob,
        shape: SchedulingClass,
        binding: list[Reservation],
        outer: list[Shared],
        *,
        loose: bool = False,
    ) -> tuple[Start | None, Unplaced | None]:
        """Start a job in capacity that is not reserved; the start is applied to the ledger.

        ``loose``: idle loans of other clusters go home for it, and siblings lend.

        Returns (start, None), or (None, the reason why the job does not fit even without reservations), or
        (None, None): only reservations keep it from starting. ``outer``: shared reservations. They are hidden
        only if the whole free capacity could be enough.
        """
        if not outer:
            found = self._start(job, shape, binding, why=True, loose=loose)
        elif not loose and self._is_short(shape):
            found = None
        else:
            with self.shared.hidden(outer):
                found = self._start(job, shape, binding, why=False, loose=loose)
        if isinstance(found, Start):
            return found, None
        return None, self._lack(job, shape, loose=loose) if outer or binding else found

    def _try_due(
        self,
        job: PendingJob,
        shape: SchedulingClass,
        binding: list[Reservation],
        outer: list[Shared],
        mine: Reservation | None,
        *,
        loose: bool = False,
    ) -> tuple[Start | None, Unplaced | None]:
        """Like ``_try``. A job whose own reserved start has come then ignores the reservations behind its own.

        It starts later than reserved, for whatever reason, so it may end after the start of those behind. If it
        left them alone, and their jobs left its reservation alone, both would wait for ever.
        """
        start, found = self._try(job, shape, binding, outer, loose=loose)
        if start is None and found is None and mine is not None and mine.is_due(self.now_ns):
            ahead = [one for one in binding if one.precedes(mine)]
            above = [shared for shared in outer if shared.precedes(mine)]
            if len(ahead) + len(above) < len(binding) + len(outer):
                return self._try(job, shape, ahead, above, loose=loose)
        return start, found

    def _start(
        self,
        job: PendingJob,
        shape: SchedulingClass,
        binding: list[Reservation],
        *,
        why: bool,
        loose: bool,
    ) -> Start | Unplaced | None:
        """Place a job; its parent grows if it has too little free capacity.

        ``why``: return the reason if there is no place. None: no reason was searched.
        """
        can_grow = self.ledger.clusters[job.parent_id].spec.flexible
        if not binding:
            found = None if can_grow and not self._has_capacity(shape) else self._place(job)
            if isinstance(found, Placed):
                return self._take(start_of(self.ledger, job, found))
            grown = self._grow(job, loose=loose) or found
            if not isinstance(grown, Unplaced) or not why:
                return grown
            if (
                loose or self._may_loosen()
            ):  # the reason is what it lacks with all idle loans: not searched twice
                return grown if found is None else grown.doubted_with(found)
            found = found or self._place(job)  # the reason is that of the cluster without growth
            return found.doubted_with(grown) if isinstance(found, Unplaced) else None
        if not (can_grow or loose) and not self._has_capacity(shape):
            return None
        view = self._table.view(binding)
        self.budget.spend(SEARCH)
        if view.has_capacity(shape.count) and (placed := view.place(job)) is not None:
            return self._take(start_of(self.ledger, job, placed))
        if not (can_grow or loose):
            return None
        with view.taken():
            grown = self._grow(job, loose=loose)
        return grown if isinstance(grown, Start) else None

    def _lack(self, job: PendingJob, shape: SchedulingClass, *, loose: bool) -> Unplaced | None:
        """Why a job would not fit if nothing were reserved; None: it would."""
        ledger, parent_id = self.ledger, self.queue.parent_id
        if self._has_capacity(shape) and shape.count.is_exact(job.entry):
            return None
        can_grow = ledger.clusters[parent_id].spec.flexible
        if can_grow and surely_grows(ledger, parent_id, shape.count, job.entry):
            return None
        found = self._place(job)
        if isinstance(found, Placed):
            return None
        start = self._grow(job, loose=loose)
        if isinstance(start, Start):
            revert(ledger, start)
            return None
        return found if start is None else found.doubted_with(start)

    def _is_short(self, shape: SchedulingClass) -> bool:
        """Whether a class certainly has no place now: in its cluster, or with what it can grow by."""
        if self.ledger.clusters[self.queue.parent_id].spec.flexible:
            return not reach_of(self.ledger, self.queue.parent_id).may_hold(shape.count)
        return not self._has_capacity(shape)

    def _has_capacity(self, shape: SchedulingClass) -> bool:
        index = self.ledger.index(self.queue.parent_id)
        return shape.count.is_met(shape.count.inside(index))

    def _place(self, job: PendingJob) -> Placed | Unplaced:
        shape = self.queue.shapes[job.shape]
        if shape.count.is_exact(job.entry):
            self.budget.spend(COUNT)
            if reason := plain_reason(self.ledger.index(job.parent_id), shape.count):
                return reason
            self.budget.spend(search_steps(job))
        else:
            self._spend(job)
        return place_again(self.ledger, job.parent_id, job.spec, job.entry, shape.places)

    def _grow(self, job: PendingJob, *, loose: bool) -> Start | Unplaced | None:
        """Start a job after growth, or (``loose``) the return of idle loans. None: neither is possible."""
        ledger, parent_id = self.ledger, job.parent_id
        if loose or ledger.clusters[parent_id].spec.flexible:
            self._spend(job)
        if ledger.clusters[parent_id].spec.flexible:
            grown = place_with_growth(ledger, parent_id, job.spec, job.entry, loose=loose)
        elif not loose or (more := place_loosely(ledger, parent_id, job.spec, job.entry)) is None:
            return None
        else:
            grown = more
        if isinstance(grown, Unplaced):
            return grown
        steps, placed = grown
        return self._take(start_of(self.ledger, job, placed, steps))

    def _spend(self, job: PendingJob) -> None:
        shape = self.queue.shapes[job.shape]
        self.budget.spend(COUNT if self._is_short(shape) else search_steps(job))

    def _take(self, start: Start) -> Start:
        self._table.drop_views()
        take(self.ledger, start)
        return start

    def _admits(self, start: Start, sub_queue: SubQueue) -> bool:
        """Whether a start exceeds no limit with all that it holds; then it counts. Else it is taken back."""
        refusal = (
            self.use.refusal(start.job.parent_id, start.job.user, start.held) if self.use.limits else None
        )
        if refusal is not None:
            revert(self.ledger, start)
            return not self._is_limited(start.job, sub_queue, refusal)
        self._count(start)
        return True

    def _count(self, start: Start) -> None:
        """Note a start in the counts, shares and reservations of this round."""
        job = start.job
        self.budget.spend(START + len(start.vnodes) * VNODE + len(start.growth) * GROWTH)
        self.preemptor.count(job)
        self.shared.note_start(job)
        self.running.put(RunningJob.begun(job, start.cluster_id, start.run_id, self.now_ns))
        self._table.note_start(start)
        if self.shares is not None:
            self.shares.add(job.parent_id, job.user, start.held)
        if self.use.limits:
            self.use.add(job.parent_id, job.user, start.held)

    def _verdict(self, job: PendingJob, found: Unplaced, nominations: frozenset[int]) -> Verdict:
        depends = nominations or self.ledger.clusters[job.parent_id].spec.flexible
        stamp = None if depends else self.ledger.index(job.parent_id).stamp
        never = self.queue.feasibility.why_never(self.ledger, job)
        reason = (jb.INSUFFICIENT, found.message) if never is None else (jb.INFEASIBLE, never)
        return Verdict(*reason, stamp, found.exhausted, nominations)

    def _say(self, sub_queue: SubQueue, reason: str, message: str) -> None:
        """Report why a sub-queue waits, if that has changed. The first job of the wait key decides."""
        key = self.queue.wait_key(sub_queue)
        if key in self._said:
            return
        self._said.add(key)
        if self.queue.reported.get(key) != (reason, message):
            self.queue.reported[key] = (reason, message)
            self.queue.shapes[sub_queue.shape].note_reported(is_reported=False)
            self.waits.append(Wait(self.queue.parent_id, key, reason, message))

    def _share_of(self, user: str) -> float:
        if self.shares is None or self.policy.order != FAIR:
            return 0.0
        return self.shares.of_user(self.queue.parent_id, user)

    def _push(self, sub_queue: SubQueue, rest: Candidates) -> None:
        if (job := next(rest, None)) is not None:
            self._heads.push((self._share_of(sub_queue.user), order_key(job, self.policy), sub_queue, rest))
