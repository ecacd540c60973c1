"""Time limits of running jobs: the warning signal before the end, and the end. Limits may change while a job runs."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.daemon.mirror import Mirror
from vctl.store import jobs, rows, runs
from vctl.store.store import Row, Store

Stop = Callable[[Run, str, float], None]
Warn = Callable[[str, int], object]
"""Sends a signal to the main process of a run."""


class TimeLimits:
    """When the processes of jobs are to be warned and ended; what is due is looked up again in the tables."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._due: list[tuple[int, str]] = []
        self._noted: set[str] = set()

    def clear(self) -> None:
        """Forget everything, before a reload."""
        self._due.clear()
        self._noted.clear()

    def note(self, run: Run, started_at: int) -> None:
        """A process of a job was seen to run since ``started_at``."""
        if run.task_id is None and run.run_id not in self._noted:
            self._noted.add(run.run_id)
            self._plan(run.run_id, jobs.get(self.store, run.job_id), started_at)

    def forget(self, run_id: str) -> None:
        """A process is over."""
        self._noted.discard(run_id)

    def nearest_ns(self) -> int | None:
        """When something is due."""
        return self._due[0][0] if self._due else None

    def turn(self, mirror: Mirror, stop: Stop, warn: Warn) -> None:
        """Warn and end whatever is due; take over limits that were changed."""
        for job_id in sorted(mirror.edited):
            for run_id in mirror.runs_of_job.get(job_id, ()):
                run = mirror.runs[run_id]
                if run_id in self._noted and run.started_at is not None:
                    self._plan(run_id, jobs.get(self.store, job_id), run.started_at)
        mirror.edited.clear()
        now = self.store.clock()
        while self._due and self._due[0][0] <= now:
            _, run_id = heapq.heappop(self._due)
            known = mirror.runs.get(run_id)
            if known is not None and known.started_at is not None and known.stop_reason is None:
                self._enforce(known, known.started_at, stop, warn, now)

    def _plan(self, run_id: str, job: Row | None, started_at: int) -> None:
        if job is None or job["time_limit_s"] is None:
            return
        end = started_at + int(job["time_limit_s"] * 1e9)
        heapq.heappush(self._due, (end, run_id))
        if (signal := rows.loads(job["rules"]).get("signal")) is not None:
            heapq.heappush(self._due, (max(started_at, end - int(signal["before_s"] * 1e9)), run_id))

    def _enforce(self, run: Run, started_at: int, stop: Stop, warn: Warn, now: int) -> None:
        job = jobs.get(self.store, run.job_id)
        if job is None or job["time_limit_s"] is None:
            return  # the limit was taken away
        end = started_at + int(job["time_limit_s"] * 1e9)
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
