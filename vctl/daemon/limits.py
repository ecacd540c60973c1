"""Time limits of running jobs: the warning signal before the end, and the end. Limits may change while a job runs.

They are counted from the start of the process on the clock of this boot, which nobody can set.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable

from vctl.core import jobs as jb
from vctl.core.jobs import Run, RunningJob
from vctl.daemon.following import FollowedState
from vctl.engine.changes import RunWarned
from vctl.runtime.protocol import StartRecord
from vctl.store import rows
from vctl.store.store import Store

Stop = Callable[[Run, str, float], None]
Warn = Callable[[str, int], object]
"""Sends a signal to the main process of a run."""


_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def uptime_ns() -> int:
    """Since the machine started, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class TimeLimits:
    """When the processes of jobs are to be warned and ended; what is due is looked up again in the tables."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.uptime_ns = uptime_ns
        self._due: list[tuple[int, str]] = []
        self._began: dict[str, int] = {}
        """run -> when its process started, in ns since the machine did."""

    def clear(self) -> None:
        """Forget everything, before a reload."""
        self._due.clear()
        self._began.clear()

    def note(self, state: FollowedState, run: Run, start: StartRecord) -> None:
        """A process of a job was seen to run."""
        if run.task_id is None and run.run_id not in self._began:
            self._began[run.run_id] = start.pid_started * _TICK_NS
            self._plan(run.run_id, state.running.jobs.get(run.job_id))

    def forget(self, run_id: str) -> None:
        """A process is over."""
        self._began.pop(run_id, None)

    def left_s(self) -> float | None:
        """How long until something is due."""
        return (self._due[0][0] - self.uptime_ns()) / 1e9 if self._due else None

    def turn(self, state: FollowedState, stop: Stop, warn: Warn) -> None:
        """Warn and end whatever is due; take over limits that were changed."""
        for job_id in sorted(state.edited):
            for run_id in state.runs_of_job.get(job_id, ()):
                self._plan(run_id, state.running.jobs.get(job_id))
        state.edited.clear()
        now = self.uptime_ns()
        while self._due and self._due[0][0] <= now:
            _, run_id = heapq.heappop(self._due)
            known = state.runs.get(run_id)
            if known is not None and run_id in self._began and known.stop_reason is None:
                self._enforce(state, known, stop, warn, now)

    def _plan(self, run_id: str, job: RunningJob | None) -> None:
        if job is None or job.ends_at_ns is None or run_id not in self._began:
            return
        end = self._end(run_id, job.started_at_ns, job.ends_at_ns)
        heapq.heappush(self._due, (end, run_id))
        if (signal := rows.loads(job.rules).get("signal")) is not None:
            warned_at = end - int(signal["before_s"] * 1e9)
            heapq.heappush(self._due, (max(self._began[run_id], warned_at), run_id))

    def _end(self, run_id: str, started_at_ns: int, ends_at_ns: int) -> int:
        """When the time of a process is over, on the clock of this boot."""
        return self._began[run_id] + ends_at_ns - started_at_ns

    def _enforce(self, state: FollowedState, run: Run, stop: Stop, warn: Warn, now: int) -> None:
        job = state.running.jobs.get(run.job_id)
        if job is None or job.ends_at_ns is None:
            return  # the limit was taken away
        end = self._end(run.run_id, job.started_at_ns, job.ends_at_ns)
        signal = rows.loads(job.rules).get("signal")
        if end <= now:
            stop(run, jb.TIME_LIMIT, job.grace_s)
        elif signal is not None and end - int(signal["before_s"] * 1e9) <= now and run.warned_for != end:
            # first the signal: killed in between, it is sent again, never not
            warn(run.run_id, signal["number"])
            with self.store.transaction():
                state.emit(self.store, RunWarned(
                    run.run_id, end, job.job_id, job.submission_id, job.cluster_id, signal["name"],
                    round((end - now) / 1e9, 3),
                ))  # fmt: skip
