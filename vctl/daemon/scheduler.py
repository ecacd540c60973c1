"""One scheduler at work: its life, and a turn (``vctl/daemon/turn.py``) whenever something has changed or is due."""

from __future__ import annotations

import contextlib
import os

from vctl.daemon import identity
from vctl.daemon.ahead import NextRuns
from vctl.daemon.carrying import FORGET_S, Carrier
from vctl.daemon.checkpoint import Checkpoint
from vctl.daemon.clock import Clock
from vctl.daemon.confining import AUTO
from vctl.daemon.devices import DevicePolicy
from vctl.daemon.durations import RunDurations
from vctl.daemon.following import FollowedState, Unreadable
from vctl.daemon.observing import SAFETY_S, Observer
from vctl.daemon.provider import Provider
from vctl.daemon.trouble import Trouble, say
from vctl.daemon.turn import Turn
from vctl.engine.lifecycle import IllegalTransition
from vctl.engine.rules.bookings import due_after
from vctl.engine.rules.gates import begins_after
from vctl.engine.rules.preemption import nearest as nearest_end
from vctl.engine.settings import LeaseTerms
from vctl.engine.stimuli import Now
from vctl.errors import DiskTrouble, Unreachable
from vctl.ops.forms import timestamp
from vctl.ops.nodes import ensure_local
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import Runtime
from vctl.runtime.watch import MODIFY, Watch
from vctl.spec.provider_spec import ProviderSpec
from vctl.store import feed, repair, upkeep
from vctl.store.store import Store

LEISURE_S = 0.05
MAX_REPEATS = 10
"""How often a turn is tried in a row if rows are unreadable or cannot move."""


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
        cgroups: str = AUTO,
        runtime: Runtime | None = None,
        clock: Clock | None = None,
        durations: RunDurations | None = None,
        devices: DevicePolicy | None = None,
    ) -> None:
        self.store, self.kind, self.local_node = store, kind, local_node
        self.lease_terms = terms or LeaseTerms()
        self.memory = Checkpoint(store)
        self.runtime: Runtime = runtime or LocalRuntime(store.home)
        self.provider = Provider(store, provider or ProviderSpec(), self.runtime)
        self.watch = Watch()
        self.state: FollowedState | None = None
        self._forgot_at = 0
        """The newest entry of the journal when old changes were forgotten."""
        self.has_news = False
        """Whether news came during the last turn, which will cause no further wake-up."""
        self.clock = clock or Clock()
        self.trouble = Trouble(self.clock)
        durations = durations or RunDurations(self.clock)
        self.carrier = Carrier(
            store, self.runtime, self.provider, self.trouble, durations,
            interval_s=maintenance_interval_s, log_max_bytes=log_max_bytes, cgroups=cgroups,
        )  # fmt: skip
        self.next_runs = NextRuns(store, self.carrier, durations)
        self.observer = Observer(
            store, self.runtime, self.provider, self.next_runs, durations,
            interval_s=maintenance_interval_s, devices=devices,
        )  # fmt: skip
        self.work = Turn(store, self.observer, self.carrier, self.next_runs, self.now)

    def now(self) -> Now:
        """The time now, by the only two clocks that decisions use."""
        return Now(self.store.clock(), self.clock.uptime_ns())

    # ---- life ----

    def start(self) -> None:
        """Begin a term: replay the tables, look for every process, continue work that was left undone."""
        self.runtime.prepare()
        if lost := self.store.lost():
            say(
                f"changes {lost[0]} to {lost[1]} were confirmed and are not in the tables: the WAL was damaged"
            )
        self.store.begin_term(self.kind)
        if problem := identity.settle(self.store, self.runtime):
            say(problem)
        ensure_local(self.store, register=self.local_node)
        self.watch.add(self.store.watched(), MODIFY)
        self.provider.announce()
        self._load()
        self.heartbeat()

    def close(self, *, orderly: bool = True) -> None:
        """End the scheduler; running jobs go on. ``orderly``: end its term, too."""
        if orderly:
            with contextlib.suppress(DiskTrouble, Unreachable):
                self.resign()
        self.carrier.remains.remove(self.runtime, SAFETY_S)
        self.provider.close()
        self.watch.close()
        self.runtime.close()

    def resign(self) -> None:
        """Write the state that is only in memory, and end the term."""
        if self.state is not None:
            self.memory.write(self.state)
            self.work.note_starts(self.state)
        self.store.end_term()

    def is_needed(self) -> bool:
        """Whether anything runs, waits, or is kept for work that may come."""
        state = self.state
        if state is None or state.runs:
            return True
        return self.provider.is_needed(state) or upkeep.is_unfinished(self.store)

    def restore_files(self) -> None:
        """Restore the files that somebody removed from the state directory, and watch them."""
        self.runtime.restore()
        self.watch.add(self.store.watched(), MODIFY)
        self.store.reopen_files()

    def _load(self) -> FollowedState:
        state = self.state = FollowedState.load(self.store)
        state.assign = self.runtime.assign
        self.observer.begin(self.now())
        self.next_runs.begin(state)
        self.carrier.begin(state)
        self.work.begin()
        return state

    # ---- one turn ----

    def turn(self) -> None:
        """Do everything there is to do now."""
        if self.trouble.rest_s():
            self.work.drop_handed()
            return
        try:
            for remaining in reversed(range(MAX_REPEATS)):
                try:
                    self._turn()
                    break
                except (Unreadable, IllegalTransition) as error:
                    if not remaining:
                        raise
                    self._read_again(error)
        except BaseException as error:
            self.state = None  # a half-applied batch must not be built upon
            if not self.trouble.passes(error):
                raise
        else:
            if not self.carrier.postponed:
                self.trouble.is_over()
        finally:
            self.work.drop_handed()

    def _read_again(self, error: Unreadable | IllegalTransition) -> None:
        """Drop the state. An object that cannot move as the rules want is set aside; all else goes on."""
        self.state = None
        say(f"the tables are read again: {error}")
        if isinstance(error, IllegalTransition):
            with self.store.transaction():
                repair.set_object_aside(self.store, error.lifecycle, error.key, error.problem)

    def _turn(self) -> None:
        state = self.state or self._load()
        state.lease_terms, state.machine_terms = self.lease_terms, self.provider.terms
        state.ledger.templates = self.provider.spec.templates
        self.carrier.retry(state)
        sweeps = self.observer.processes_at <= self.clock.uptime_ns()
        if self._others_wrote() or self.has_news or sweeps:
            state.follow(self.store)
        self.next_runs.turn(state, self.runtime)
        self.work.run(state)
        uptime = self.clock.uptime_ns()
        state.timers.tidy(state, uptime)
        if sweeps or state.seen - self._forgot_at > feed.MOST_FORGOTTEN // 4:
            self._forgot_at = state.seen
            feed.forget_changes(self.store)
        if sweeps or self.carrier.objects.have_lost_a_node(state):
            self.carrier.settle(state, uptime)
        self.carrier.remains.remove(self.runtime, FORGET_S)
        self.memory.turn(state, uptime)
        self.heartbeat()
        self.has_news = self._others_wrote() or self.observer.has_news()

    def _others_wrote(self) -> bool:
        """Whether another process has announced a change. The scheduler's own changes need no turn."""
        return bool(self.watch.read()) and not self.store.wrote_last()

    # ---- waiting ----

    def sleep_s(self) -> float:
        """Seconds until something is due, at most ``SAFETY_S``."""
        if rest_s := self.trouble.rest_s():
            return rest_s
        if (state := self.state) is None or self.work.more or self.has_news:
            return 0.0
        now = self.now()
        due = [*self.work.memo.due, *self.observer.due(now), *self.provider.due(now.uptime)]
        times = (*nearest_end(state), *begins_after(state, now.wall), *due_after(state, now.wall))
        due += [at - now.wall + now.uptime for at in times]
        if (at := state.timers.next_ns) is not None:
            due.append(at)
        nearest = min(
            SAFETY_S, self.runtime.due_s(), self.next_runs.due_s(), *((at - now.uptime) / 1e9 for at in due)
        )
        is_busy = self.carrier.remains.over or self.carrier.postponed
        return max(0.0, min(nearest, LEISURE_S) if is_busy else nearest)

    def heartbeat(self) -> None:
        """Write the heartbeat, with the figures that ``vctl status`` shows."""
        self.store.write_heartbeat(
            {
                "pid": os.getpid(),
                "kind": self.kind,
                "epoch": self.store.epoch,
                "last_beat": timestamp(self.store.clock()),
                "last_beat_ns": self.store.clock(),
                "last_round_ms": round(self.work.last_round_ms, 3),
                "rounds": self.work.rounds,
            }
        )
