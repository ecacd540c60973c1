"""The times (since the boot) at which running processes reach their time limit, and are warned of it."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from vctl.core.jobs import Run, RunningJob
from vctl.scheduler.running import Running


class Processes(Protocol):
    """What timers read of the state: the live runs, the running jobs, and the unit of ``Run.pid_start``."""

    tick_ns: int
    runs: dict[str, Run]
    running: Running


class RunDue(NamedTuple):
    """A run has reached its time limit, or (with ``signal``) is to be warned of its end at ``ends_ns``."""

    run: Run
    job: RunningJob
    ends_ns: int
    signal: Any = None


def signal_of(job: RunningJob) -> Any:
    """The warning signal of a job: its number, its name, and ``before_s``; None if the job has none."""
    return None if job.rules == "{}" else json.loads(job.rules).get("signal")


class Timers:
    """A heap of the times at which to look at a run. An entry may be out of date: the state decides."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    @property
    def next_ns(self) -> int | None:
        """The first time at which something may be due, in ns since the machine started."""
        return self._heap[0][0] if self._heap else None

    def plan(self, state: Processes, run: Run, job: RunningJob) -> None:
        """Add the times of a run whose process was seen, or whose job has another limit."""
        if (ends_ns := _end_of(state, run, job)) is None or run.pid_start is None:
            return
        heapq.heappush(self._heap, (ends_ns, run.run_id))
        if (signal := signal_of(job)) is not None:
            warned_at = ends_ns - int(signal["before_s"] * 1e9)
            heapq.heappush(self._heap, (max(run.pid_start * state.tick_ns, warned_at), run.run_id))

    def due(self, state: Processes, uptime: int) -> Iterator[RunDue]:
        """The times that are due; the cost depends on their number, not on all times that are planned."""
        run_ids: set[str] = set()
        places = [0]
        while places:
            index = places.pop()
            if index < len(self._heap) and self._heap[index][0] <= uptime:
                run_ids.add(self._heap[index][1])
                places += (2 * index + 1, 2 * index + 2)
        for run_id in sorted(run_ids):
            if (due := _due(state, run_id, uptime)) is not None:
                yield due

    def tidy(self, state: Processes, uptime: int) -> None:
        """Remove past entries with which nothing is due any more."""
        while self._heap and self._heap[0][0] <= uptime and _due(state, self._heap[0][1], uptime) is None:
            heapq.heappop(self._heap)


def _end_of(state: Processes, run: Run, job: RunningJob) -> int | None:
    """When a run reaches its time limit; None if it has no limit or was not seen, or for a task."""
    if job.ends_at_ns is None or run.pid_start is None or run.task_id is not None:
        return None
    return run.pid_start * state.tick_ns + job.ends_at_ns - job.started_at_ns


def _due(state: Processes, run_id: str, uptime: int) -> RunDue | None:
    run = state.runs.get(run_id)
    job = None if run is None else state.running.jobs.get(run.job_id)
    if run is None or job is None or run.stop_reason is not None:
        return None
    if (ends_ns := _end_of(state, run, job)) is None or ends_ns <= uptime:
        return None if ends_ns is None else RunDue(run, job, ends_ns)
    signal = signal_of(job)
    is_near = signal is not None and ends_ns - int(signal["before_s"] * 1e9) <= uptime
    return RunDue(run, job, ends_ns, signal) if is_near and run.warned_for != ends_ns else None
