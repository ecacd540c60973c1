"""The whole loop of a scheduler: observe, search, decide under the write lock, commit, carry out.

The scheduler commits an intent before it carries it out, and repeats it until it observes the effect. So a
crash between any two steps is harmless: the next scheduler continues from the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from vctl.core.nodes import RAY, Template
from vctl.daemon.ahead import NextRuns
from vctl.daemon.carrying import Carrier
from vctl.daemon.commit import commit, supply_of
from vctl.daemon.following import FollowedState, Unreadable
from vctl.daemon.observing import Observer
from vctl.daemon.trouble import say
from vctl.engine.rules import machines
from vctl.engine.rules.revocation import keeping
from vctl.engine.settings import NO_PROVIDER
from vctl.engine.stimuli import MachineDemand, Now, ProcessOver, Stimulus
from vctl.engine.turn import follows, looked_at, rules
from vctl.errors import BadSpec, Conflict, NotFound
from vctl.ops import handing
from vctl.scheduler.cycle import RECHECK_NS, decide, holds_until, leaves_more
from vctl.scheduler.lending import withhold
from vctl.scheduler.plan import Plan
from vctl.scheduler.work import Budget
from vctl.store import notifications
from vctl.store.store import Store

Mark = tuple[int, int, bool, tuple[Template, ...]]
STEPS_NS = 100_000_000
"""How long a turn repeats its steps before it returns to its caller."""
PIECE = 2_500
"""The steps of a search before the scheduler looks at the world again: about 50 ms."""
SOON = 100
"""The steps of a search for each run that has ended, before what it has found starts, and the search goes on."""


class Turn:
    """The turns of a scheduler. After an exception the state must be loaded again: part may be unwritten."""

    def __init__(
        self, store: Store, observer: Observer, carrier: Carrier, next_runs: NextRuns, now: Callable[[], Now]
    ) -> None:
        self.store, self.observer, self.carrier = store, observer, carrier
        self.next_runs, self.now = next_runs, now
        self.memo = carrier.memo
        self.rounds, self.last_round_ms = 0, 0.0
        self.more = False
        """Whether there was more to do when the last turn ended."""
        self.handed: list[handing.Handed] = []
        """Jobs that commands have handed over, until they are written."""
        self._found: list[Stimulus] = []
        """The results of the effects of the last step."""
        self._searched: Mark | None = None
        """The mark of the state in which the last search found everything that can start."""
        self._until_ns: int | None = None
        """When that search ends to hold although the state is the same; None: never."""
        self._piece = PIECE
        """The steps of the next search."""
        self._notices: tuple[int, bool] = -1, False
        """The newest entry in the state when the tables were asked for notices that are due, and the answer."""
        self.refused: tuple[Mark | None, int] = None, 0
        """The mark of the state in which a whole plan was refused, and how often it was refused there."""

    def begin(self) -> None:
        """Start with a state that was just loaded."""
        self._found.clear()
        self._searched = None

    def note_starts(self, state: FollowedState) -> None:
        """Write the starts of processes that were observed and are not in the tables yet."""
        if self.observer.starts.seen:
            with self.store.transaction():
                state.follow(self.store)
                self._apply_rules(state, self.observer.starts.take(), self.now())

    def run(self, state: FollowedState) -> None:
        """Do everything there is to do now."""
        until = self.now().uptime + STEPS_NS
        self.more = True
        if self.refused[1] > 1:
            self._searched = None  # what was refused again is tried again in each turn
        while self.more and self.now().uptime < until:
            self.more = self._step(state)

    def notices(self, state: FollowedState) -> tuple[int, bool]:
        """The newest entry in the state, and whether a notice is to be sent."""
        if self._notices[0] != state.seen:
            self._notices = state.seen, notifications.is_due(self.store)
        return self._notices

    def _step(self, state: FollowedState) -> bool:
        """Observe, decide, carry out; True when there may be more to do at once."""
        now, is_written, was_judged = self.now(), True, self._is_judged(state)
        stimuli, self._found = (
            [*self._found, *self.observer.observe(state, now, has_work=bool(self.handed))],
            [],
        )
        tables = self.observer.tables(state, now)
        plan, started = Plan(), 0
        if self.handed:
            plan, started = self._decide_handed(state, stimuli, tables, now)
        elif self._follows(state, [*stimuli, *tables], now):
            plan, started = self._decide(state, stimuli, tables, now, None)
        elif not (plan := self._search(state)).is_empty:
            plan, started = self._decide(state, stimuli, tables, now, plan)
        elif (
            not plan.unsearched
            and self._is_judged(state)
            and self._follows(state, wanted := self._machines(state, now), now)
        ):
            plan, started = self._decide(state, wanted, tables, now, None)
        else:
            is_written = False
        self._found = self.carrier.carry_out(state, now, stimuli)
        self.next_runs.send(state, self.carrier.runtime)
        while self.handed:  # only now, because an answer lets other processes run
            self.handed.pop().answer()
        is_open = is_written and (was_judged or self._is_judged(state))
        return bool(self._found) or is_open or leaves_more(plan, started)

    @staticmethod
    def _is_judged(state: FollowedState) -> bool:
        """Whether rules depend on the jobs that a search left waiting: to call in leases, to lend, to add machines."""
        return bool(state.leases or state.ledger.withheld) or state.machine_terms.kind != NO_PROVIDER

    def _follows(self, state: FollowedState, stimuli: Sequence[Stimulus], now: Now) -> bool:
        """Whether anything is to be written; if not, there is no transaction."""
        found = follows(state, stimuli, now, supply_of(self.store, state), self.memo)
        if not found:
            looked_at(state)
            state.changed.ended.clear()
        return found

    def _decide(
        self,
        state: FollowedState,
        stimuli: Sequence[Stimulus],
        tables: Sequence[Stimulus],
        now: Now,
        plan: Plan | None,
    ) -> tuple[Plan, int]:
        """Make all changes in one transaction: those of the rules, and the starts of a plan.

        Without a plan, the search runs inside, so that an end and the start in its place cost one commit.
        ``tables``: the stimuli read from the tables before the transaction. They are read again if others
        wrote since.
        """
        began = self.now().uptime
        with self.store.transaction():  # checks the head
            is_foreign = state.follow(self.store)  # from here on nobody else changes anything
            if plan is None or is_foreign:
                state.end_trial()
                self._enter(state)
                now = self.now()  # not earlier than the changes that were written or handed over until here
                if is_foreign:
                    tables = self.observer.tables(state, now)
                self._apply_rules(state, [*stimuli, *self.observer.starts.take(), *tables], now)
                while ended := self.observer.awaited(state):  # what has ended now
                    self._apply_rules(state, ended, now)
            ends = sum(isinstance(one, ProcessOver) for one in stimuli)
            plan = plan or self._search(state, again=True, ends=ends)
            started = commit(self.store, state, plan, now)
            self._note_search(state, plan, started, now.wall)  # runs assigned ahead are another change
            if ends:
                self.next_runs.assign(state, supply_of(self.store, state))
            self.notices(state)  # here, as a transaction of its own costs more
        self.last_round_ms = (self.now().uptime - began) / 1e6
        if plan.proposed and not started and self._is_refused_again(state):
            self._searched, self._until_ns = self._mark(state), now.wall + RECHECK_NS
            return Plan(), 0
        return plan, started

    def _note_search(self, state: FollowedState, plan: Plan, started: int, now_ns: int) -> None:
        """Note whether a search was the last one in this state, and until when."""
        self._searched = None if leaves_more(plan, started) else self._mark(state)
        self._until_ns = holds_until(state.ledger, state.queues, now_ns)

    def _is_refused_again(self, state: FollowedState) -> bool:
        """Whether a whole plan was refused again although nothing has changed: search and commit disagree.

        That is a bug of vctl. It must not keep a CPU busy for ever, so the next search is in the next turn.
        """
        where, times = self.refused
        mark = self._mark(state)
        times = times + 1 if where == mark else 1
        self.refused = mark, times
        if times == 2:
            say(
                "what was to start is refused again with nothing changed: it is tried again later. Please report this"
            )
        return times > 1

    def _enter(self, state: FollowedState) -> None:
        """Write the jobs that were handed over, unless the command no longer waits or the job is refused."""
        for one in list(self.handed):
            try:
                if one.take():
                    handing.enter(
                        self.store, one.change, one.capacity, partial(state.emit_in_order, self.store),
                        lambda: state.take_back(self.store, list(state.ahead.runs)),
                    )  # fmt: skip
                    continue
            except (BadSpec, Conflict, NotFound):  # its command tries the same, and reports the error
                pass
            self.handed.remove(one)
            one.drop()

    def _decide_handed(
        self, state: FollowedState, stimuli: Sequence[Stimulus], tables: Sequence[Stimulus], now: Now
    ) -> tuple[Plan, int]:
        """Like ``_decide``, with jobs that were handed over. If one is bad, all return to their commands."""
        try:
            return self._decide(state, stimuli, tables, now, None)
        except (TypeError, ValueError, OverflowError) as error:
            self.drop_handed()
            raise Unreadable(f"{type(error).__name__}: {error}") from error

    def drop_handed(self) -> None:
        """Return the jobs that were handed over and not written to their commands."""
        while self.handed:
            self.handed.pop().drop()

    def _apply_rules(self, state: FollowedState, stimuli: Sequence[Stimulus], now: Now) -> None:
        state.changed.ended.clear()
        changes = rules(state, stimuli, now, supply_of(self.store, state), self.memo)
        state.emit_each(self.store, changes)
        looked_at(state)

    def _search(self, state: FollowedState, *, again: bool = False, ends: int = 0) -> Plan:
        """Search what can start, and why the rest waits. The plan is empty if that was found already.

        ``ends``: so many runs have just ended.
        """
        now_ns = self.store.clock()
        lends_again = withhold(state.ledger, keeping(state, now_ns))
        if not (again or lends_again) and self._is_searched(state, now_ns):
            return Plan()
        budget = Budget(self._piece, self._piece - ends * SOON if ends else None)
        plan = decide(
            state.ledger, state.queues, state.tasks.queues,
            now_ns=now_ns, running=state.running, usage=state.usage, budget=budget, keeps=True,
        )  # fmt: skip
        self._piece = 2 * self._piece if plan.stalled else PIECE
        state.trial = plan.trial
        if not again and plan.is_empty:  # else after the commit
            self._note_search(state, plan, plan.proposed, now_ns)
        self.rounds += not plan.is_empty
        return plan

    def _is_searched(self, state: FollowedState, now_ns: int) -> bool:
        """Whether a search would find nothing: the last one found everything, and nothing has happened since."""
        is_held = self._until_ns is None or now_ns < self._until_ns
        return is_held and self._mark(state) == self._searched and not any(
            queue.emptied for queue in state.queues.values()
        )  # fmt: skip

    def _mark(self, state: FollowedState) -> Mark:
        """A mark of the state: it differs after every change that a decision could depend on."""
        ledger = state.ledger
        return state.seen, self.store.last_entry, bool(ledger.grown or ledger.joined), ledger.templates

    def _machines(self, state: FollowedState, now: Now) -> list[Stimulus]:
        """The machines that would let more waiting work start; searched only when nothing else can start."""
        if state.machine_terms.kind == NO_PROVIDER:
            return []
        wanted = machines.demand(state, now.wall)
        is_other = wanted.nodes or (wanted.spare and state.machine_terms.kind == RAY)
        return [MachineDemand(wanted)] if is_other else []
