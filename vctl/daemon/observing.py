"""The observer of a scheduler: it looks at processes, nodes, the node provider, and the ends that jobs wait for."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.core.values import replace
from vctl.daemon.ahead import NextRuns
from vctl.daemon.devices import DeviceObserver, DevicePolicy
from vctl.daemon.durations import RunDurations
from vctl.daemon.following import FollowedState
from vctl.daemon.measuring import Measuring
from vctl.daemon.objects import attempt_of
from vctl.daemon.provider import Provider
from vctl.daemon.trouble import say
from vctl.engine.changes import StartedProcess
from vctl.engine.changes.runs import with_process
from vctl.engine.stimuli import NodeSilent, Now, ProcessOver, ProcessSeen, RunNotLaunched, Stimulus, Sweep
from vctl.ops.dependencies import over
from vctl.runtime import objects as files
from vctl.runtime import processes
from vctl.runtime.protocol import RunState, Runtime
from vctl.store import upkeep
from vctl.store.dependencies import any_waits
from vctl.store.store import Store

SAFETY_S = 5.0
"""The time between two looks at every process, which find ends without a wake-up (a killed supervisor)."""
STARTS_NS = 50_000_000
"""How long an observed start may stay unwritten: the records have it, too, and often it can join a commit."""
NO_RECORDS = (
    "it has no records here (the state was restored or copied, or the records were removed),"
    " so it is not started again"
)


def observe_run(runtime: Runtime, run: Run) -> StartedProcess | ProcessOver | RunState:
    """The process of a run if it runs, or its end; else only its state."""
    seen = runtime.observe(run.run_id)
    start, process = seen.start, None
    if start is not None:
        process = StartedProcess(start.pid, start.pid_started, start.boot_id, start.started_at)
    match seen.state:
        case RunState.NEVER_STARTED if run.state != jb.ASSIGNED:
            return _lost(runtime, run, NO_RECORDS)
        case RunState.RUNNING if process is not None:
            return process
        case RunState.EXITED if not _lives(run):
            return ProcessOver(run, seen.exit, process=process)
        case RunState.REFUSED:
            return ProcessOver(run, None, seen.problem, jb.INSUFFICIENT)
        case RunState.LOST:
            return _lost(runtime, run, seen.problem or "its supervisor was killed or the machine restarted")
    return seen.state


def _lost(runtime: Runtime, run: Run, problem: str) -> ProcessOver | RunState:
    """A run whose end is unknown: it is over when none of its processes is left."""
    return RunState.LOST if runtime.clear_lost(run.run_id) else ProcessOver(run, None, problem)


def _lives(run: Run) -> bool:
    """Whether the main process in the tables lives: then the end in a record is not its end."""
    if run.pid is None or run.pid_start is None or run.boot_id is None:
        return False
    return processes.alive(run.pid, run.pid_start, run.boot_id)


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


class Observer:
    """Makes the stimuli of a turn. ``interval_s``: the time between two looks at everything but processes."""

    def __init__(
        self, store: Store, runtime: Runtime, provider: Provider, next_runs: NextRuns, durations: RunDurations, *,
        interval_s: float, devices: DevicePolicy | None = None,
    ) -> None:  # fmt: skip
        self.store, self.runtime, self.provider, self.interval_s = store, runtime, provider, interval_s
        self.next_runs, self.durations = next_runs, durations
        self.starts, self.measuring = Starts(), Measuring(store.wake)
        self.devices = DeviceObserver(store, devices or DevicePolicy())
        self._results: set[str] = set()
        """Runs whose outputs were measured at the last look."""
        self._early: set[str] = set()
        """Runs assigned ahead that ended before their predecessor's end is known: they are observed again."""
        self.processes_at, self.all_at = 0, 0
        """When the observer looks at every process again, and at everything else."""
        self._silent_at: int | None = None
        """When the next heartbeat lease ends, unless it is renewed."""

    def begin(self, now: Now) -> None:
        """Start with a state that was just loaded: the next look is at every process."""
        self.starts.seen.clear()  # they are seen again
        self.devices.begin()
        self.processes_at, self._silent_at = 0, now.wall

    def due(self, now: Now) -> list[int]:
        """The times at which the observer must look again, in ns since the machine started."""
        silent = [] if self._silent_at is None else [now.uptime + self._silent_at - now.wall]
        return [self.processes_at, self.all_at, *self.starts.due, *self.devices.due(), *silent]

    def observe(self, state: FollowedState, now: Now, *, has_work: bool = False) -> list[Stimulus]:
        """The stimuli from outside of the tables. ``has_work``: jobs are about to come, beside those that wait."""
        self._results = self.measuring.ready()
        slots = max(1, len(state.runs))
        names = (
            self.durations.changes(self.runtime, len(state.ahead.runs) / slots, slots)
            | self._results
            | self._early
        )
        if is_sweep := self.processes_at <= now.uptime:
            self.processes_at, names = now.uptime + int(SAFETY_S * 1e9), {*state.runs, *state.ahead.runs}
        stimuli: list[Stimulus] = [
            *self._processes(state, names, now, relaunch=is_sweep),
            *self.provider.results(state, now),
        ]
        if self.starts.are_due(now.uptime):
            stimuli += self.starts.take()
        if self.all_at <= now.uptime:
            self.all_at = now.uptime + int(self.interval_s * 1e9)
            stimuli.append(Sweep())
        return [*stimuli, *self.devices.observe(state, stimuli, now, has_work=has_work)]

    def has_news(self) -> bool:
        """Whether a result has come since the last look."""
        return not self.measuring.ready() <= self._results

    def tables(self, state: FollowedState, now: Now) -> list[Stimulus]:
        """The stimuli that the tables give and the state does not have."""
        return [*self._silent(state, now), *self.awaited(state)]

    def awaited(self, state: FollowedState) -> list[Stimulus]:
        """Stimuli for jobs that have ended, and for the arrays of such jobs, if other jobs wait for them."""
        ended = state.changed.ended
        names = any_waits(self.store, sorted(ended)) if ended and state.gated else []
        ended.intersection_update(names)
        return [over(self.store, name) for name in names]

    def _silent(self, state: FollowedState, now: Now) -> list[NodeSilent]:
        """Nodes whose heartbeat lease is over."""
        if not state.changed.nodes and (self._silent_at is None or self._silent_at > now.wall):
            return []
        leases = [NodeSilent(*row) for row in upkeep.heartbeats(self.store)]
        self._silent_at = min((lease.ends_at for lease in leases), default=None)
        return [lease for lease in leases if lease.ends_at <= now.wall]

    # ---- processes ----

    def _processes(
        self, state: FollowedState, run_ids: Iterable[str], now: Now, *, relaunch: bool
    ) -> list[Stimulus]:
        """Look at the processes of runs. ``relaunch``: also report runs that have not started."""
        stimuli: list[Stimulus] = []
        self._early.clear()
        for run_id in sorted(run_ids):
            ahead = state.ahead.runs.get(run_id)
            run = state.runs.get(run_id) if ahead is None else ahead.run
            again = self.runtime.was_declined(run_id) and self.next_runs.declined(state, self.runtime, run_id)
            if run is None:
                continue
            run = self.starts.known(run)
            try:
                observed = observe_run(self.runtime, run)
            except (ValueError, LookupError, TypeError) as error:  # a fault of one run: the others go on
                say(f"run {run_id} cannot be looked at: {type(error).__name__}: {error}")
                continue
            if isinstance(observed, ProcessOver):
                if (end := self._measured(state, observed)) is not None:
                    stimuli.append(end)
                    if ahead is not None:
                        self._early.add(run_id)
            elif isinstance(observed, StartedProcess):
                self.starts.note(run, observed, now.uptime)
            elif observed is RunState.NEVER_STARTED and (again or (relaunch and ahead is None)):
                stimuli.append(RunNotLaunched(run_id))
        return stimuli

    def _measured(self, state: FollowedState, end: ProcessOver) -> ProcessOver | None:
        """The end of a run with the outputs of its task; None while these are being measured."""
        task = state.tasks.unfinished.get(end.run.task_id or "")
        if end.exit is None or end.exit.exit_code != 0 or task is None or not task.outputs:
            return end
        attempt = attempt_of(self.store, state, end.run.job_id) or 0
        folder = files.folder_path(self.store.job_files, end.run.job_id, attempt, end.run.node_id)
        outputs = self.measuring.result(end.run.run_id, folder, list(task.outputs))
        return None if outputs is None else replace(end, outputs=outputs)
