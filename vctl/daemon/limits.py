"""Time limits of running jobs: the warning signal before the end, and the end. Limits may change while a job runs.

They are counted from the start of the process on the clock of this boot, which nobody can set.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.daemon.following import FollowedState
from vctl.runtime.protocol import StartRecord
from vctl.store import jobs, rows, runs
from vctl.store.store import Row, Store

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

    def note(self, run: Run, start: StartRecord) -> None:
        """A process of a job was seen to run."""
        if run.task_id is None and run.run_id not in self._began:
            self._began[run.run_id] = start.pid_started * _TICK_NS
            self._plan(run.run_id, jobs.get(self.store, run.job_id))

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
                self._plan(run_id, jobs.get(self.store, job_id))
        state.edited.clear()
        now = self.uptime_ns()
        while self._due and self._due[0][0] <= now:
            _, run_id = heapq.heappop(self._due)
            known = state.runs.get(run_id)
            if known is not None and run_id in self._began and known.stop_reason is None:
                self._enforce(known, self._began[run_id], stop, warn, now)

    def _plan(self, run_id: str, job: Row | None) -> None:
        if job is None or job["time_limit_s"] is None or run_id not in self._began:
            return
        began = self._began[run_id]
        end = began + int(job["time_limit_s"] * 1e9)
        heapq.heappush(self._due, (end, run_id))
        if (signal := rows.loads(job["rules"]).get("signal")) is not None:
            heapq.heappush(self._due, (max(began, end - int(signal["before_s"] * 1e9)), run_id))

    def _enforce(self, run: Run, began: int, stop: Stop, warn: Warn, now: int) -> None:
        job = jobs.get(self.store, run.job_id)
        if job is None or job["time_limit_s"] is None:
            return  # the limit was taken away
        end = began + int(job["time_limit_s"] * 1e9)
        signal = rows.loads(job["rules"]).get("signal")
        if end <= now:
            stop(run, jb.TIME_LIMIT, job["grace_s"])
        elif signal is not None and end - int(signal["before_s"] * 1e9) <= now:
            if runs.warned_for(self.store, run.run_id) == end:
                return
            warn(
                run.run_id, signal["number"]
            )  # first the signal: killed in between, it is sent again, never not
            with self.store.transaction():
                runs.mark_warned(self.store, run.run_id, end)
                self.store.event(
                    "job.warned", "job", job["submission_id"], cluster_id=job["cluster_id"], job_id=job["job_id"],
                    data={"signal": signal["name"], "left_s": round((end - now) / 1e9, 3)},
                )  # fmt: skip
