"""Compares the process of a run with its row, measures how long runs take, and keeps unwritten starts."""

from __future__ import annotations

from collections.abc import Collection

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.daemon.clock import Clock
from vctl.engine.changes import StartedProcess
from vctl.engine.changes.runs import with_process
from vctl.engine.stimuli import ProcessOver, ProcessSeen
from vctl.runtime import processes
from vctl.runtime.protocol import RunState, Runtime, StartRecord

STARTS_NS = 50_000_000
"""How long an observed start may stay unwritten: the records have it, too, and often it can join a commit."""
SHORT_S, PAUSES_S = 0.1, (0.001, 0.004)
"""The time of a short run, from launch to end; the least and most time that an end waits for other ends."""
GATHER_S = 0.01
"""The most time that an end waits for other ends while runs are assigned ahead: no slot is idle meanwhile."""
MAX_AHEAD, AHEAD_S, LED_S = 32, 0.1, 0.25
"""The most runs that follow a running one, and their seconds of work; none follows a run above ``LED_S``.

Where many runs share few cores, each takes long, and yet many end. So one follows even if that is more work.
"""
NO_RECORDS = (
    "it has no records here (the state was restored or copied, or the records were removed),"
    " so it is not started again"
)


def observe_run(runtime: Runtime, run: Run) -> StartedProcess | ProcessOver | RunState:
    """The process of a run if it runs, or its end; else only its state."""
    seen = runtime.observe(run.run_id)
    match seen.state:
        case RunState.NEVER_STARTED if run.state != jb.ASSIGNED:
            return _lost(runtime, run, NO_RECORDS)
        case RunState.RUNNING if seen.start is not None:
            return process_of(seen.start)
        case RunState.EXITED if not _lives(run):
            return ProcessOver(run, seen.exit, process=None if seen.start is None else process_of(seen.start))
        case RunState.LOST:
            return _lost(runtime, run, seen.problem or "its supervisor was killed or the machine restarted")
    return seen.state


def took_s(end: ProcessOver) -> float | None:
    """How many seconds the process of a run took; None if unknown."""
    if end.exit is None or end.process is None:
        return None
    return max(0, end.exit.ended_at - end.process.started_at) / 1e9


def process_of(start: StartRecord) -> StartedProcess:
    """The data with which a started process can be found again."""
    return StartedProcess(start.pid, start.pid_started, start.boot_id, start.started_at)


def _lost(runtime: Runtime, run: Run, problem: str) -> ProcessOver | RunState:
    """A run whose end is unknown: it is over when none of its processes is left."""
    return RunState.LOST if runtime.clear_lost(run.run_id) else ProcessOver(run, None, problem)


def _lives(run: Run) -> bool:
    """Whether the main process in the tables lives: then the end in a record is not its end."""
    if run.pid is None or run.pid_start is None or run.boot_id is None:
        return False
    return processes.alive(run.pid, run.pid_start, run.boot_id)


class RunDurations:
    """How long runs take. The ends of short runs come close together, so one commit can record several."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._launched: dict[str, float] = {}
        self._typical_s = float("inf")

    def launched(self, run_id: str) -> None:
        """Note that a run is launched now."""
        self._launched[run_id] = self.clock.uptime_s()

    def over(self, run_id: str, took_s: float | None = None) -> None:
        """Note that a run has ended; ``took_s``: how long its process took, if known."""
        if (began := self._launched.pop(run_id, None)) is not None and took_s is None:
            took_s = self.clock.uptime_s() - began
        if took_s is not None:
            self._typical_s = min(self._typical_s, took_s + SHORT_S)
            self._typical_s += (took_s - self._typical_s) / 8

    @property
    def depth(self) -> int:
        """How many runs may be assigned ahead to follow one: none where runs are not short."""
        if self._typical_s > LED_S:
            return 0
        return min(MAX_AHEAD, max(1, int(AHEAD_S / max(self._typical_s, AHEAD_S / MAX_AHEAD))))

    def changes(self, runtime: Runtime, ahead: float = 0, slots: int = 1) -> set[str]:
        """The runs that have changed, including those that change within a short pause.

        ``slots``: the number of running runs. ``ahead``: how many runs are assigned ahead for each of them.
        The ends in the news have used up some; three quarters of the rest run while this turn records ends.
        """
        news = runtime.changes()
        pause_s = 0.0
        if news and ahead and self._typical_s <= LED_S:
            rest = max(0.0, ahead - len(news) / slots)
            pause_s = min(max(self._typical_s * max(rest / 4, min(rest, 1) / 2), PAUSES_S[0]), GATHER_S)
        elif news and self._typical_s <= SHORT_S and self._others_are_due(news):
            pause_s = min(max(self._typical_s / 8, PAUSES_S[0]), PAUSES_S[1])
        if pause_s:
            self.clock.sleep(pause_s)
            news |= runtime.changes()
        return news

    def _others_are_due(self, news: Collection[str]) -> bool:
        since = self.clock.uptime_s() - 2 * self._typical_s
        return any(began > since and run_id not in news for run_id, began in self._launched.items())


class Starts:
    """Processes that were observed to run and are not written yet."""

    def __init__(self) -> None:
        self.seen: dict[str, StartedProcess] = {}
        self._due = 0

    def note(self, run: Run, process: StartedProcess, uptime: int) -> None:
        """Note a process that was observed to run."""
        if run.pid is None:
            if not self.seen:
                self._due = uptime + STARTS_NS
            self.seen[run.run_id] = process

    def known(self, run: Run) -> Run:
        """A run, with its process if that was observed."""
        process = self.seen.get(run.run_id)
        return run if process is None else with_process(run, process)

    def take(self) -> list[ProcessSeen]:
        """The starts that are to be written now."""
        seen, self.seen = self.seen, {}
        return [ProcessSeen(run_id, process) for run_id, process in seen.items()]

    @property
    def due(self) -> list[int]:
        """When the starts are to be written, in ns since the machine started."""
        return [self._due] if self.seen else []

    def are_due(self, uptime: int) -> bool:
        """Whether the starts are to be written now."""
        return bool(self.seen) and self._due <= uptime
