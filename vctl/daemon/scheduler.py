"""One scheduler at work: observe, follow, decide, commit, launch; repeated whenever something changed.

Intent is committed before it is carried out, and carried out again until it is seen to have happened, so dying
between any two steps is harmless: the next scheduler continues from the tables.
"""

from __future__ import annotations

import contextlib
import os
import time

from vctl.core.jobs import Run
from vctl.daemon import commit, endings, gangs, identity
from vctl.daemon.endings import Ended
from vctl.daemon.following import FollowedState, Unreadable
from vctl.daemon.gates import Dependencies, open_gates
from vctl.daemon.launching import Commands, request_of
from vctl.daemon.lease_expiry import LeaseExpiry, LeaseTerms
from vctl.daemon.lease_revocation import LeaseRevocation
from vctl.daemon.limits import TimeLimits
from vctl.daemon.looking import STARTS_S, Pace, Starts, look
from vctl.daemon.maintenance import Maintenance
from vctl.daemon.objects import Objects, Unprepared
from vctl.daemon.preempting import Preempting
from vctl.daemon.provider import Provider
from vctl.daemon.remains import Remains
from vctl.daemon.stopping import carry_out
from vctl.daemon.trouble import Trouble, say
from vctl.daemon.usage_checkpoint import UsageCheckpoint
from vctl.engine.changes import RunAssigned, RunStopping
from vctl.engine.lifecycle import IllegalTransition
from vctl.engine.rules.gates import begins_after
from vctl.errors import DiskTrouble, VctlError
from vctl.ops.forms import timestamp
from vctl.ops.nodes import ensure_local
from vctl.runtime.protocol import RunState, Runtime, StartRecord, runtime_of
from vctl.runtime.watch import MODIFY, Watch
from vctl.scheduler.cycle import decide
from vctl.scheduler.plan import Plan
from vctl.spec.provider_spec import ProviderSpec
from vctl.store import repair, upkeep
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
    ) -> None:
        self.store = store
        self.maintenance = Maintenance(store, interval_s=maintenance_interval_s)
        self.returns = LeaseExpiry(store, terms or LeaseTerms())
        self.lease_revocation = LeaseRevocation(store, grace_s=self.returns.terms.reclaim_grace_s)
        self.provider = Provider(store, provider or ProviderSpec(), self.returns)
        self.limits = TimeLimits(store)
        self.memory = UsageCheckpoint(store)
        self.commands = Commands(store)
        self.remains = Remains(store)
        self.preempting = Preempting(store)
        self.objects = Objects(store, interval_s=maintenance_interval_s)
        self.dependencies = Dependencies(store)
        self.log_max_bytes = log_max_bytes
        self.kind = kind
        self.local_node = local_node
        self.runtime: Runtime = runtime_of(store.home)
        self.watch = Watch()
        self.rounds = 0
        self.last_round_ms = 0.0
        self.state: FollowedState | None = None
        self._postponed: dict[str, Run] = {}
        """Runs that could not be launched for a reason that passes."""
        self.trouble = Trouble(say)
        self.starts, self.pace = Starts(), Pace()
        self._last_sweep = 0.0
        self._more = False
        """Whether the last round left something to the next one."""
        self._settled: tuple[int, int, bool] | None = None
        """When all was started that could be, of this turn."""

    # ---- life ----

    def start(self) -> None:
        """Begin to rule: replay the tables, look for every process, take up what was left undone."""
        self.runtime.prepare()
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
        """Write what is only remembered, and end the reign."""
        if self.state is not None:
            self.memory.write(self.state)
            self._record(self.state, [])
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
        self.state.assign = self.runtime.assign
        self.state.ledger.may_gain_nodes = bool(self.provider.spec.templates)
        self._postponed.clear()  # they are launched by the sweep
        self.starts.seen.clear()  # they are seen again
        self.limits.clear()
        self.dependencies.clear()
        # first, so that it is known why they ended
        self.maintenance.end_lost_work(self.state, self._stop_run)
        self._sweep(self.state, relaunch=True)

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
            if not self._postponed:
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
        names = self.pace.changes(self.runtime) | self.objects.measuring.ready()
        self._launch_postponed(state)
        self._observe(state, names)
        if time.monotonic() - self._last_sweep > SAFETY_S:
            self._sweep(state)
            news = True
        if news and state.looks == looks:  # else a transaction has followed what somebody wrote
            state.follow(self.store)
        self.maintenance.turn(state, self._stop_run)
        self.objects.turn(state)
        state.ledger.may_gain_nodes = bool(self.provider.spec.templates)
        carry_out(state, self._stop_run)
        self.dependencies.turn(state)
        self.limits.turn(state, self._stop_run, self.runtime.signal_run)
        open_gates(self.store, state)
        self.preempting.review(state)
        self.returns.turn(state)
        until = time.monotonic() + ROUNDS_S
        self._more = self._settled != self._now(state) and self._round(state)
        self._settled = None
        while self._more and time.monotonic() < until:
            self._observe(state, self.pace.changes(self.runtime))
            self._more = self._round(state)
        self.preempting.turn(state, self._stop_run, self.runtime.signal_run)
        self.lease_revocation.turn(state, self._stop_run, self._tell)
        self.provider.turn(state)
        self.memory.turn(state)
        self.remains.remove(self.runtime, FORGET_S)
        self.heartbeat()

    def _now(self, state: FollowedState) -> tuple[int, int, bool]:
        """What differs after every change that a decision could depend on."""
        return state.seen, self.store.last_entry, bool(state.ledger.grown or state.ledger.joined)

    def _round(self, state: FollowedState) -> bool:
        """Decide, commit, launch; True when there may be more to start at once."""
        plan, started = self._decide(state)
        for run in started:
            self._launch(state, run)
        return commit.leaves_more(plan, started)

    def _decide(self, state: FollowedState) -> tuple[Plan, list[Run]]:
        """What to start, and what of it was committed."""
        began = time.perf_counter()
        plan = decide(
            state.ledger, state.queues, state.tasks.queues,
            now_ns=self.store.clock(), running=state.running, usage=state.usage, keeps=True,
        )  # fmt: skip
        if plan.is_empty:
            return plan, []
        started = commit.commit(self.store, state, plan)
        self.last_round_ms = (time.perf_counter() - began) * 1e3
        self.rounds += 1
        return plan, started

    def _launch(self, state: FollowedState, run: Run) -> None:
        try:
            assigned = run if run.supervisor is not None else self._adopted(state, run)
            if assigned is None:
                return  # the version before has started it
            request = request_of(self.store, state, self.commands, assigned, log_max_bytes=self.log_max_bytes)
            if request is not None:
                self.pace.launched(run.run_id)
                self.runtime.launch(request)
        except Unprepared as error:
            self._record(state, [Ended(run, None, error.problem, error.reason)])
            self._let_go(state, run)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._record(state, [Ended(run, None, f"its command cannot be read: {error}")])
            self._let_go(state, run)
        except (OSError, VctlError) as error:
            if not self.trouble.passes(error):
                raise
            self._postponed[run.run_id] = run

    def _adopted(self, state: FollowedState, run: Run) -> Run | None:
        """A run that the version before has assigned to nobody, with its number; None when it was started then."""
        if not self.runtime.adopt(run.run_id):
            return None
        with self.store.transaction():
            state.follow(self.store)
            state.emit(self.store, RunAssigned(run.run_id, self.runtime.assign()))
        return state.runs.get(run.run_id)

    def _launch_postponed(self, state: FollowedState) -> None:
        postponed, self._postponed = self._postponed, {}
        for run_id in postponed:
            if (run := state.runs.get(run_id)) is not None:
                self._launch(state, run)

    # ---- looking at processes ----

    def _observe(self, state: FollowedState, run_ids: set[str], *, relaunch: bool = False) -> None:
        ended: list[Ended] = []
        for run_id in sorted(run_ids):
            run = state.runs.get(run_id)
            if run is None:
                continue
            run = self.starts.known(run)
            try:
                found = look(self.runtime, run)
            except (ValueError, LookupError, TypeError) as error:  # of one run: the others go on
                say(f"run {run_id} cannot be looked at: {type(error).__name__}: {error}")
                continue
            if isinstance(found, Ended):
                if found.start is not None:
                    self.starts.note(run, found.start)
                if (end := self.objects.measured(state, found)) is not None:
                    ended.append(end)
            elif isinstance(found, StartRecord):
                self.starts.note(run, found)
                self.limits.note(state, run, found)
            elif found is RunState.NEVER_STARTED and relaunch:
                self._launch(state, run)
        if ended:
            self._follow_up(state, ended)
        elif self.starts.are_due:
            self._record(state, [])

    def _follow_up(self, state: FollowedState, ended: list[Ended]) -> None:
        """Record what has ended and start what has room now, in one commit: most of a short job's time is commits."""
        with self.store.together():
            self._record(state, ended)
            self.dependencies.turn(state)
            plan, started = self._decide(state)
        self._settled = None if commit.leaves_more(plan, started) else self._now(state)
        for end in ended:
            self._let_go(state, end.run)
        for run in started:
            self._launch(state, run)

    def _record(self, state: FollowedState, ended: list[Ended]) -> None:
        """Write the starts that were seen, and what has ended."""
        if self.starts.seen or ended:
            endings.observed(self.store, state, self.starts.seen, ended)
            self.starts.seen.clear()

    def _let_go(self, state: FollowedState, run: Run) -> None:
        """A process is over."""
        self.limits.forget(run.run_id)
        self.pace.over(run.run_id)
        self.remains.over.append(run.run_id)
        self.objects.let_go(state, run)
        if run.job_id not in state.runs_of_job:
            gangs.forget(self.store.home, run)

    def _sweep(self, state: FollowedState, *, relaunch: bool = False) -> None:
        """Look at every process: after a start, a lost wake-up, and now and then."""
        self._last_sweep = time.monotonic()
        self._observe(state, set(state.runs), relaunch=relaunch)
        self.objects.tidy()
        if relaunch:
            self.remains.end_unknown(self.runtime, state)
        self.runtime.settle({run_id: run.supervisor for run_id, run in state.runs.items()})

    # ---- ending work ----

    def _stop_run(self, run: Run, reason: str, grace_s: float) -> None:
        state = self.state
        assert state is not None
        if run.stop_reason is None:
            with self.store.transaction():
                state.emit(self.store, RunStopping(run.run_id, reason))
        self.runtime.stop(run.run_id, grace_s=grace_s)

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
            if self.state.run_stops or self.state.stops or self.state.ended:
                return 0.0  # found out at the end of the turn
            if self._more:
                return 0.0
            if (at := self.preempting.nearest_ns(self.state)) is not None:
                due.append(at)
            due += begins_after(self.state, now)
        nearest = min(((at - now) / 1e9 for at in due), default=SAFETY_S)
        clocks = (self.maintenance, self.returns, self.lease_revocation, self.provider)
        if self.remains.over or self._postponed:
            nearest = min(nearest, LEISURE_S)
        if (left_s := self.limits.left_s()) is not None:
            nearest = min(nearest, left_s)
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
