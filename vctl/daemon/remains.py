"""Removes what runs leave behind: files of ended runs, a few at a time, and processes without a row."""

from __future__ import annotations

from collections import deque

from vctl.daemon.clock import Clock
from vctl.daemon.following import FollowedState
from vctl.daemon.trouble import say
from vctl.runtime.protocol import RunState, Runtime
from vctl.store import repair
from vctl.store.store import Store


class Remains:
    """Runs that are recorded as ended; their files are removed later, as removal is slow beside commits."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.over: deque[str] = deque()

    def remove(self, runtime: Runtime, limit_s: float) -> None:
        """Remove files of ended runs for at most ``limit_s``; the next start removes those left by a crash."""
        until = self.clock.uptime_s() + limit_s
        while self.over and self.clock.uptime_s() < until:
            runtime.forget(self.over.popleft())

    def end_unknown(self, runtime: Runtime, state: FollowedState) -> None:
        """End processes without a row, as after a restore; not those whose row was set aside."""
        for run_id in runtime.known_runs():
            if run_id not in (*state.runs, *state.ahead.runs) and not repair.is_set_aside(
                self.store, "runs", run_id
            ):
                self._end(runtime, run_id)

    def _end(self, runtime: Runtime, run_id: str) -> None:
        state = runtime.observe(run_id).state
        if state in (RunState.STARTING, RunState.RUNNING):
            say(f"stopping run {run_id}, which belongs to no job")
            runtime.stop(run_id, grace_s=3.0)
        elif state is not RunState.LOST or not runtime.clear_lost(run_id):
            runtime.forget(run_id)
