"""One scheduler at work: observe, follow, decide, commit, launch; repeated whenever something changed.

Intent is committed before it is carried out, and carried out again until it is seen to have happened, so dying
between any two steps is harmless: the next scheduler continues from the tables.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial

from vctl.core.jobs import Run
from vctl.daemon import commit, gangs, identity
from vctl.daemon.ahead import NextRuns
from vctl.daemon.carrying import Carrier
from vctl.daemon.following import FollowedState, Unreadable
from vctl.daemon.lease_expiry import LeaseExpiry, LeaseTerms
from vctl.daemon.lease_revocation import LeaseRevocation
from vctl.daemon.looking import STARTS_S, Pace, Starts, look, took_s, uptime_ns
from vctl.daemon.maintenance import Maintenance
from vctl.daemon.objects import Objects
from vctl.daemon.provider import Provider
from vctl.daemon.remains import Remains
from vctl.daemon.trouble import Trouble, say
from vctl.daemon.usage_checkpoint import UsageCheckpoint
from vctl.engine.changes import Process, RunStopping
from vctl.engine.lifecycle import IllegalTransition
from vctl.engine.rules.gates import begins_after
from vctl.engine.rules.preemption import nearest as nearest_end
from vctl.engine.stimuli import ProcessOver, Stimulus
from vctl.engine.turn import Now, follows, looked_at, rules
from vctl.errors import DiskTrouble
from vctl.ops.dependencies import settle
from vctl.ops.forms import timestamp
from vctl.ops.nodes import ensure_local
from vctl.runtime.protocol import RunState, Runtime, runtime_of
from vctl.runtime.watch import MODIFY, Watch
from vctl.scheduler.cycle import decide
from vctl.scheduler.plan import Plan
from vctl.spec.provider_spec import ProviderSpec
from vctl.store import database, dependencies, repair, upkeep
from vctl.store.store import Store

SAFETY_S = 5.0
"""Longest sleep: what no wake-up told (a supervisor that was killed) is found by then."""
FORGET_S = 0.01
"""How long a turn removes files of runs that are over."""
LEISURE_S = 0.05
ROUNDS_S = 0.5
"""How long rounds follow each other before stops, time limits and all else have their turn again."""
MOST_REPEATS = 10
"""How often a turn is begun again because of rows that nobody can go on with."""


class Scheduler:
    """The scheduler of a state directory; the caller holds the scheduler lock for its life."""

    def __init__(
        self,
        store: Store,
        *,
        kind: str,
        local_node: bool,
        maintenance_interval_s: float = 30.0,
        terms: LeaseTerms | None = None,
        provider: ProviderSpec | None = None,
        log_max_bytes: int = 0,
        runtime: Runtime | None = None,
    ) -> None:
        self.store = store
        self.maintenance = Maintenance(store, interval_s=maintenance_interval_s)
        self.returns = LeaseExpiry(store, terms or LeaseTerms())
        self.lease_revocation = LeaseRevocation(store, grace_s=self.returns.terms.reclaim_grace_s)
        self.provider = Provider(store, provider or ProviderSpec(), self.returns)
        self.memory = UsageCheckpoint(store)
        self.remains = Remains(store)
        self.objects = Objects(store, interval_s=maintenance_interval_s)
        self.kind = kind
        self.local_node = local_node
        self.runtime: Runtime = runtime or runtime_of(store.home)
        self.watch = Watch()
        self.rounds = 0
        self.last_round_ms = 0.0
        self.state: FollowedState | None = None
        self.trouble = Trouble(say)
        self.starts, self.pace = Starts(), Pace()
        self.carrier = Carrier(store, self.trouble, self.pace, log_max_bytes=log_max_bytes)
        self.next_runs = NextRuns(store, self.carrier, self.pace)
        self.uptime_ns = uptime_ns
        self._early: set[str] = set()
        """Runs that are over and follow others of which that is not known yet: they are looked at again."""
        self._last_sweep = 0.0
        self._more = False
        """Whether the last round left something to the next one."""
        self._settled: tuple[int, int, bool] | None = None
        """When all was started that could be, of this turn."""

    # ---- life ----

    def start(self) -> None:
        """Begin to rule: replay the tables, look for every process, take up what was left undone."""
        self.runtime.prepare()
        if lost := database.lost(self.store):
            say(
                f"changes {lost[0]} to {lost[1]} were confirmed and are not in the tables: the WAL was damaged"
            )
        self.store.begin_term(self.kind)
        if found := identity.settle(self.store, self.runtime):
            say(found)
        ensure_local(self.store, wanted=self.local_node)
        self.watch.add(self.store.watched(), MODIFY)
        self.provider.announce()
        self._reload()
        self.heartbeat()

    def close(self, *, orderly: bool = True) -> None:
        """Stop ruling; running jobs go on."""
        if orderly:
            with contextlib.suppress(DiskTrouble):
                self.resign()
        self.remains.remove(self.runtime, SAFETY_S)
        self.provider.close()
        self.watch.close()
        self.runtime.close()

    def resign(self) -> None:
        """Write what is only in memory, and end the term."""
        if self.state is not None:
            self.memory.write(self.state)
            if self.starts.seen:
                self._record(self.state)
        self.store.end_term()

    def is_needed(self) -> bool:
        """Whether anything runs, waits, or is kept for work that may come."""
        state = self.state
        if state is None or state.runs:
            return True
        return self.provider.is_needed(state) or upkeep.is_unfinished(self.store)

    def restore_files(self) -> None:
        """Make again what somebody removed from the state directory, and watch it."""
        self.runtime.restore()
        self.watch.add(self.store.watched(), MODIFY)
        self.store.reopen_files()

    def _reload(self) -> None:
        self.state = FollowedState.load(self.store)
        self.state.lease_s = self.returns.terms.duration_s
        self.state.lease_idle_s = self.returns.terms.idle_s
        self.state.assign = self.runtime.assign
        self.state.ledger.may_gain_nodes = bool(self.provider.spec.templates)
        self.state.reclaim_grace_s = self.returns.terms.reclaim_grace_s
        self.carrier.begin(self.state)
        self.starts.seen.clear()  # they are seen again
        self.next_runs.begin(self.state)
        # first, so that it is known why they ended
        self.maintenance.end_lost_work(self.state, self._stop_run)
        self._sweep(self.state, first=True)

    # ---- one turn ----

    def turn(self) -> None:
        """Do everything there is to do now."""
        if self.trouble.rest_s():
            return
        try:
            for left in reversed(range(MOST_REPEATS)):
                try:
                    self._turn()
                    break
                except (Unreadable, IllegalTransition) as error:
                    if not left:
                        raise
                    self._read_again(error)
        except BaseException as error:
            self.state = None  # a half-applied batch must not be built upon
            if not self.trouble.passes(error):
                raise
        else:
            if not self.carrier.postponed:
                self.trouble.is_over()

    def _read_again(self, error: Unreadable | IllegalTransition) -> None:
        """Drop the state. An object that cannot move as the rules want is set aside, and everything else goes on."""
        self.state = None
        say(f"the tables are read again: {error}")
        if isinstance(error, IllegalTransition):
            with self.store.transaction():
                repair.set_object_aside(self.store, error.lifecycle, error.key, error.problem)

    def _turn(self) -> None:
        if self.state is None:
            self._reload()
        state = self.state
        assert state is not None
        looks, news = state.looks, bool(self.watch.read()) and not self.store.wrote_last()
        names = self.pace.changes(self.runtime, len(state.ahead.runs)) | self.objects.measuring.ready()
        self.carrier.retry(state)
        self._observe(state, names)
        if time.monotonic() - self._last_sweep > SAFETY_S:
            self._sweep(state)
            news = True
        if news and state.looks == looks:  # else a transaction has followed what somebody wrote
            state.follow(self.store)
        self.next_runs.turn(state, self.runtime)
        self.maintenance.turn(state, self._stop_run)
        self.objects.turn(state)
        state.ledger.may_gain_nodes = bool(self.provider.spec.templates)
        self._settle_awaited(state)
        if follows(state, self._now()):
            self._record(state)
        looked_at(state)
        self.returns.turn(state)
        until = time.monotonic() + ROUNDS_S
        self._more = self._settled != self._mark(state) and self._round(state)
        self._settled = None
        while self._more and time.monotonic() < until:
            self._observe(state, self.pace.changes(self.runtime, len(state.ahead.runs)))
            self._more = self._round(state)
        self.lease_revocation.turn(state, self._stop_run, self._tell)
        self._carry_out(state)
        state.timers.tidy(state, self.uptime_ns())
        self.provider.turn(state)
        self.memory.turn(state)
        self.remains.remove(self.runtime, FORGET_S)
        self.heartbeat()

    def _mark(self, state: FollowedState) -> tuple[int, int, bool]:
        """What differs after every change that a decision could depend on."""
        return state.seen, self.store.last_entry, bool(state.ledger.grown or state.ledger.joined)

    def _round(self, state: FollowedState) -> bool:
        """Decide, commit, launch; True when there may be more to start at once."""
        plan, started = self._decide(state)
        self._carry_out(state)
        return commit.leaves_more(plan, started)

    def _decide(self, state: FollowedState) -> tuple[Plan, int]:
        """What to start, and how much of it was committed."""
        began = time.perf_counter()
        plan = decide(
            state.ledger, state.queues, state.tasks.queues,
            now_ns=self.store.clock(), running=state.running, usage=state.usage, keeps=True,
        )  # fmt: skip
        if plan.is_empty:
            return plan, 0
        started = commit.commit(self.store, state, plan)
        self.last_round_ms = (time.perf_counter() - began) * 1e3
        self.rounds += 1
        return plan, started

    # ---- looking at processes ----

    def _observe(self, state: FollowedState, run_ids: set[str], *, relaunch: bool = False) -> None:
        ended: list[ProcessOver] = []
        early, self._early = self._early, set()
        for run_id in sorted(run_ids | early):
            ahead = state.ahead.runs.get(run_id)
            run = state.runs.get(run_id) if ahead is None else ahead.run
            again = self.runtime.was_declined(run_id) and self.next_runs.declined(state, self.runtime, run_id)
            if run is None:
                continue
            run = self.starts.known(run)
            try:
                found = look(self.runtime, run)
            except (ValueError, LookupError, TypeError) as error:  # of one run: the others go on
                say(f"run {run_id} cannot be looked at: {type(error).__name__}: {error}")
                continue
            if isinstance(found, ProcessOver):
                if (end := self.objects.measured(state, found)) is not None:
                    ended.append(end)
            elif isinstance(found, Process):
                self.starts.note(run, found)
            elif found is RunState.NEVER_STARTED and (again or (relaunch and ahead is None)):
                self.carrier.again(state, run_id)
        if ended:
            self._follow_up(state, ended)
        elif self.starts.are_due:
            self._record(state)

    def _follow_up(self, state: FollowedState, ended: list[ProcessOver]) -> None:
        """Record what has ended and start what fits now, in one commit: most of a short job's time is commits."""
        with self.store.together():
            self._record(state, *ended)
            self._settle_awaited(state)
            plan, started = self._decide(state)
            self.next_runs.assign(state, commit.supply_of(self.store, state))
        self._settled = None if commit.leaves_more(plan, started) else self._mark(state)
        for end in ended:
            if end.run.run_id in state.ahead.runs:
                self._early.add(end.run.run_id)
            else:
                self._let_go(state, end.run, took_s(end))
        self._carry_out(state)
        self.next_runs.send(state, self.runtime)

    def _settle_awaited(self, state: FollowedState) -> None:
        """Let jobs into their queues that waited for others which have ended, or end them: one look at the tables."""
        ended, state.ended = sorted(state.ended), set()
        if ended and state.gated and (names := dependencies.any_waits(self.store, ended)):
            with self.store.transaction():
                state.follow(self.store)
                settle(self.store, names, partial(state.emit, self.store))

    def _record(self, state: FollowedState, *observed: Stimulus) -> None:
        """Write the starts that were seen, what else was observed, and what follows."""
        with self.store.transaction():
            state.follow(self.store)
            state.emit_each(self.store, rules(state, [*self.starts.take(), *observed], self._now()))
            looked_at(state)

    def _carry_out(self, state: FollowedState) -> None:
        """Do outside what is due now, and record what comes of it."""
        while found := self.carrier.carry_out(state, self.runtime, self.uptime_ns()):
            self._record(state, *found)
            for one in found:
                if isinstance(one, ProcessOver):
                    self._let_go(state, one.run)

    def _now(self) -> Now:
        return Now(self.store.clock(), self.uptime_ns())

    def _let_go(self, state: FollowedState, run: Run, lasted_s: float | None = None) -> None:
        """A process is over."""
        self.carrier.done.pop(run.run_id, None)
        self.pace.over(run.run_id, lasted_s)
        self.remains.over.append(run.run_id)
        self.objects.let_go(state, run)
        if run.job_id not in state.runs_of_job:
            gangs.forget(self.store.home, run)
        self.carrier.rays.forget(run)
        self.returns.call_back(self.carrier.rays.returned(state, run))

    def _sweep(self, state: FollowedState, *, first: bool = False) -> None:
        """Look at every process, after a start, a lost wake-up, and now and then; who has not started is launched."""
        self._last_sweep = time.monotonic()
        self._observe(state, {*state.runs, *state.ahead.runs}, relaunch=True)
        self.objects.tidy()
        self.store.check_term()  # what a newer scheduler has started is not known here
        if first:
            self.remains.end_unknown(self.runtime, state)
        ahead = {run_id: one.run.supervisor for run_id, one in state.ahead.runs.items()}
        self.runtime.settle({run_id: run.supervisor for run_id, run in state.runs.items()} | ahead)

    # ---- ending work ----

    def _stop_run(self, run: Run, reason: str, _: float) -> None:
        state = self.state
        assert state is not None
        if run.stop_reason is None:
            with self.store.transaction():
                state.emit(self.store, RunStopping(run.run_id, reason))
        state.affected[run.run_id] = None

    def _tell(self, run_id: str, signo: int) -> None:
        self.runtime.signal_run(run_id, signo, tree=True)

    # ---- waiting ----

    def sleep_s(self) -> float:
        """How long nothing will be due, at most ``SAFETY_S``."""
        if rest_s := self.trouble.rest_s():
            return rest_s
        now = self.store.clock()
        due = []
        if self.starts.seen:
            due.append(now + int(STARTS_S * 1e9))
        if self.state is not None:
            if self.state.affected or self.state.stops or self.state.ended:
                return 0.0  # found out at the end of the turn
            if self._more:
                return 0.0
            due += [*nearest_end(self.state), *begins_after(self.state, now)]
            if (at := self.state.timers.next_ns) is not None:
                due.append(now + at - self.uptime_ns())
        nearest = min(((at - now) / 1e9 for at in due), default=SAFETY_S)
        clocks = (self.next_runs, self.maintenance, self.returns, self.lease_revocation, self.provider)
        if self.remains.over or self.carrier.postponed:
            nearest = min(nearest, LEISURE_S)
        return max(0.0, min(SAFETY_S, nearest, self.runtime.due_s(), *(clock.due_s() for clock in clocks)))

    def heartbeat(self) -> None:
        """Leave a sign of life with the figures that ``vctl status`` shows."""
        self.store.write_heartbeat(
            {
                "pid": os.getpid(),
                "kind": self.kind,
                "epoch": self.store.epoch,
                "last_beat": timestamp(self.store.clock()),
                "last_beat_ns": self.store.clock(),
                "last_round_ms": round(self.last_round_ms, 3),
                "rounds": self.rounds,
            }
        )
