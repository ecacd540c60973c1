"""Runs assigned ahead: assigns them, sends their launch requests, and takes them back if they come late."""

from __future__ import annotations

from vctl.daemon.carrying import Carrier
from vctl.daemon.durations import RunDurations
from vctl.daemon.following import FollowedState
from vctl.daemon.launching import request_of
from vctl.engine.changes import RunAssignedAhead
from vctl.engine.rules.ahead import assign
from vctl.engine.rules.starts import Supply
from vctl.errors import VctlError
from vctl.runtime.protocol import RunState, Runtime
from vctl.store import ahead
from vctl.store.store import Store

LONGEST_S = 0.5
"""The longest time that a run stays assigned ahead: after that, the run before it is not a short one."""


class NextRuns:
    """The part of the runs assigned ahead that the state does not have: their times and unsent requests."""

    def __init__(self, store: Store, carrier: Carrier, durations: RunDurations) -> None:
        self.store, self.carrier, self.durations, self.clock = store, carrier, durations, durations.clock
        self._since: dict[str, float] = {}
        """Run -> when it was assigned ahead."""
        self._unsent: list[str] = []

    def begin(self, state: FollowedState) -> None:
        """Start with a loaded state: take back runs that no supervisor has taken, or that follow no run."""
        self._since, self._unsent = {}, []
        rows = ahead.rows(self.store)
        ahead.tidy(self.store.home, [row["run_id"] for row in rows])
        if not rows:
            return
        with self.store.transaction():
            state.follow(self.store)
            state.take_back(self.store, list(state.ahead.runs))
            for row in rows:
                if row["run_id"] not in state.ahead.runs:
                    ahead.withdrawn(self.store, row["run_id"])
                    state.drop_ahead(self.store, row["run_id"], row["job_id"])
        self._since = dict.fromkeys(state.ahead.runs, self.clock.uptime_s())

    def assign(self, state: FollowedState, supply: Supply) -> None:
        """Assign runs to follow those that have started; inside a transaction, after all other changes."""
        for change in assign(state, supply, self.store.clock(), self.durations.depth):
            if isinstance(change, RunAssignedAhead):
                try:
                    ahead.offer(self.store.home, change.run_id)
                except OSError:
                    break  # without an offer no run can follow
                self._since[change.run_id] = self.clock.uptime_s()
                self._unsent.append(change.run_id)
            state.emit(self.store, change)
        state.changed.started.clear()

    def send(self, state: FollowedState, runtime: Runtime) -> None:
        """Send the launch requests of the runs that were assigned; called after the commit."""
        unsent, self._unsent = self._unsent, []
        if failed := [run_id for run_id in unsent if not self._send(state, runtime, run_id)]:
            self._take_back(state, failed, for_certain=True)  # no supervisor has their requests

    def _send(self, state: FollowedState, runtime: Runtime, run_id: str) -> bool:
        after = state.ahead.runs.get(run_id)
        if after is None:
            return True  # taken back already
        try:
            request = request_of(
                self.store, state, self.carrier.commands, after.run, log_max_bytes=self.carrier.log_max_bytes,
                cgroups=self.carrier.cgroups, ahead=after,
            )  # fmt: skip
            given = request is not None and runtime.launch_next(request, after.follows)
        except (OSError, VctlError, ValueError, TypeError, KeyError, AttributeError):
            return False  # the error is reported when the job starts in the ordinary way
        if given:
            self.carrier.launched(run_id)
        return given

    def turn(self, state: FollowedState, runtime: Runtime) -> None:
        """Take back runs whose predecessor takes long, end runs without a place: their jobs wait again."""
        for run_id in list(state.displaced):
            seen = runtime.observe(run_id).state
            if seen in (RunState.STARTING, RunState.RUNNING):
                runtime.stop(run_id, grace_s=0.0)
            elif seen is not RunState.NEVER_STARTED or runtime.was_declined(run_id):
                state.displaced.pop(run_id, None)
                runtime.let_next_go(run_id)
        if not self._since:
            return
        self._since = {run_id: at for run_id, at in self._since.items() if run_id in state.ahead.runs}
        late = self.clock.uptime_s() - LONGEST_S
        if due := [run_id for run_id, at in self._since.items() if at <= late]:
            self._take_back(state, due)
            for run_id in due:  # one that is being started is not looked at again
                self._since.pop(run_id, None)

    def due_s(self) -> float:
        """Seconds until the next call of ``turn`` is due."""
        if not self._since:
            return LONGEST_S * 10
        return max(0.0, min(self._since.values()) + LONGEST_S - self.clock.uptime_s())

    def declined(self, state: FollowedState, runtime: Runtime, run_id: str) -> bool:
        """Handle a run assigned ahead that its supervisor has declined. True if it must be launched again."""
        if run_id in state.runs:
            return True
        if run_id in state.ahead.runs:
            self._take_back(state, [run_id], for_certain=True)
        runtime.let_next_go(run_id)
        self.carrier.done.pop(run_id, None)
        return False

    def _take_back(self, state: FollowedState, run_ids: list[str], *, for_certain: bool = False) -> None:
        with self.store.transaction():
            state.follow(self.store)
            state.take_back(self.store, run_ids)
            for run_id in run_ids if for_certain else ():
                if (after := state.ahead.runs.get(run_id)) is not None:
                    state.drop_ahead(self.store, run_id, after.start.job.job_id)
