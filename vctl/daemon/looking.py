"""Looks at the process of a run and compares it with its row; how long runs take; starts that are not written yet."""

from __future__ import annotations

from collections.abc import Collection

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.daemon.clock import Clock
from vctl.engine.changes import Process
from vctl.engine.changes.runs import with_process
from vctl.engine.stimuli import ProcessOver, ProcessSeen
from vctl.runtime import processes
from vctl.runtime.protocol import RunState, Runtime, StartRecord

STARTS_NS = 50_000_000
"""How long a start that was seen may stay unwritten: the files tell it too, and soon there is a commit to join."""
SHORT_S, PAUSES_S = 0.1, (0.001, 0.004)
"""A short run, from its launch to its end; how long an end waits for those of other short runs."""
GATHER_S = 0.01
"""How long an end waits at most for others while runs are assigned ahead: no slot waits for it."""
MOST_AHEAD, AHEAD_S, LED_S = 32, 0.1, 0.25
"""So many runs follow a running one at most, and of how many seconds of work; behind a longer run there is none.

Where many run at once on few cores each takes long, and yet many end: so one follows also where that is more work.
"""
NO_RECORDS = (
    "it has no records here (the state was restored or copied, or the records were removed),"
    " so it is not started again"
)


def look(runtime: Runtime, run: Run) -> Process | ProcessOver | RunState:
    """How a process runs, or how it ended; else only in which state it is."""
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
    """How long the process of a run took, where that is known."""
    if end.exit is None or end.process is None:
        return None
    return max(0, end.exit.ended_at - end.process.started_at) / 1e9


def process_of(start: StartRecord) -> Process:
    """How to find a process again that was seen to start."""
    return Process(start.pid, start.pid_started, start.boot_id, start.started_at)


def _lost(runtime: Runtime, run: Run, problem: str) -> ProcessOver | RunState:
    """Nobody knows how a run ended. It is over when its processes are."""
    return RunState.LOST if runtime.clear_lost(run.run_id) else ProcessOver(run, None, problem)


def _lives(run: Run) -> bool:
    """Whether the main process lives that the tables know: an end that a file tells of is none then."""
    if run.pid is None or run.pid_start is None or run.boot_id is None:
        return False
    return processes.alive(run.pid, run.pid_start, run.boot_id)


class Pace:
    """How long runs take. Where they are short, their ends come close together, and one commit can record several."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._launched: dict[str, float] = {}
        self._typical_s = float("inf")

    def launched(self, run_id: str) -> None:
        """A run begins now."""
        self._launched[run_id] = self.clock.uptime_s()

    def over(self, run_id: str, took_s: float | None = None) -> None:
        """A run has ended; ``took_s``: how long its process took, where that is known."""
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
        return min(MOST_AHEAD, max(1, int(AHEAD_S / max(self._typical_s, AHEAD_S / MOST_AHEAD))))

    def changes(self, runtime: Runtime, ahead: float = 0, slots: int = 1) -> set[str]:
        """The runs that have changed, with those that follow at once.

        ``ahead``: how many were to follow each running one, of which there were so many as there are ``slots``. The
        ends that are heard have used some up; three quarters of the rest run while this turn records ends.
        """
        news = runtime.changes()
        pause_s = 0.0
        if news and ahead and self._typical_s <= LED_S:
            left = max(0.0, ahead - len(news) / slots)
            pause_s = min(max(self._typical_s * max(left / 4, min(left, 1) / 2), PAUSES_S[0]), GATHER_S)
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
    """Processes that were seen to run and are not written yet."""

    def __init__(self) -> None:
        self.seen: dict[str, Process] = {}
        self._due = 0

    def note(self, run: Run, process: Process, uptime: int) -> None:
        """A process was seen to run."""
        if run.pid is None:
            if not self.seen:
                self._due = uptime + STARTS_NS
            self.seen[run.run_id] = process

    def known(self, run: Run) -> Run:
        """A run with what was seen of its process."""
        process = self.seen.get(run.run_id)
        return run if process is None else with_process(run, process)

    def take(self) -> list[ProcessSeen]:
        """The starts that are to be written now."""
        seen, self.seen = self.seen, {}
        return [ProcessSeen(run_id, process) for run_id, process in seen.items()]

    @property
    def due(self) -> list[int]:
        """When they are to be written, in ns since the machine started."""
        return [self._due] if self.seen else []

    def are_due(self, uptime: int) -> bool:
        """Whether they are to be written now."""
        return bool(self.seen) and self._due <= uptime
