"""The simulated world behind the runtime protocol: a launcher, supervisors, record files and processes.

``Machine`` outlives schedulers. ``Client`` is one scheduler's ``Runtime``: what it was told by its supervisors, and
what the record files say where it has no line to one. Each step of a run (fork, ``T``, spawn, ``S``, end, ``E``, the
message about each) is an event of its own, so anything can be killed between any two of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from vctl.runtime.protocol import ExitRecord, LaunchRequest, RunState, Seen, StartRecord
from vctl.store.ahead import withdraw

ANSWER_S = 2.0
"""After that time a client asks again for what nobody has taken."""
TAKEN, STARTED, ENDED = 1, 2, 3
"""How far the record of a run has come: lines T, S and E."""


class Violation(AssertionError):
    """The code under test broke a rule."""


class Timeline(Protocol):
    """What a machine needs of the simulation."""

    dice: random.Random
    elapsed_s: float
    latency: float
    """How slow this machine is: 1 for a fast one."""
    home: Path

    def after(self, seconds: float, what: str, do: Callable[[], object]) -> None: ...
    def now(self) -> int: ...
    def note(self, what: str) -> None: ...
    def wake(self) -> None: ...
    def boundary(self, client: Client, where: str) -> None: ...
    def disk_is_full(self) -> bool: ...
    def taken(self, run_id: str) -> None: ...
    def left(self, run_id: str) -> None: ...


@dataclass
class Process:
    """The main process of a run."""

    run_id: str
    pid: int
    alive: bool = True
    stubborn: bool = False
    """It ignores every signal but SIGKILL."""


@dataclass
class Entry:
    """What a record file says of a run."""

    supervisor: Supervisor
    stage: int = TAKEN
    start: StartRecord | None = None
    exit: ExitRecord | None = None
    stopped: bool = False


@dataclass
class File:
    """The record file of a number; ``holder`` has it locked."""

    number: int
    boot: str
    entries: dict[str, Entry] = field(default_factory=dict)
    holder: Supervisor | None = None


@dataclass
class Supervisor:
    """A process that carries out the runs of one number, one after the other."""

    file: File
    client: Client | None
    alive: bool = True
    run: str | None = None
    next: list[tuple[LaunchRequest, str]] = field(default_factory=list)
    """Requests of runs that follow another one, with that."""


class Machine:
    """Everything that goes on outside of schedulers and commands."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.boots = 1
        self.files: dict[int, File] = {}
        self.processes: dict[str, Process] = {}
        self.starts: dict[str, int] = {}
        self.stops: dict[str, tuple[float, int]] = {}
        """run -> when it is killed, on the monotonic clock, and the signal."""
        self.truth: dict[str, int] = {}
        """run -> the exit code that its record gives."""
        self.launcher = 1
        self.lasts_s = [0.001, 0.1, 1.0, 3.0, 8.0, 20.0, 60.0]
        self.numbers = 0
        self.pids = 1000

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    @property
    def dice(self) -> random.Random:
        return self.timeline.dice

    def soon(self, what: str, do: Callable[[], object], most_s: float = 0.02) -> None:
        """Something that takes its time: mostly next to none, now and then long."""
        late = self.dice.random()
        self.timeline.after(self.timeline.latency * most_s * (late if late < 0.95 else late * 40), what, do)

    def running(self) -> list[str]:
        return sorted(run_id for run_id, process in self.processes.items() if process.alive)

    def entry(self, run_id: str) -> tuple[File, Entry] | None:
        for file in self.files.values():
            if run_id in file.entries:
                return file, file.entries[run_id]
        return None

    # ---- a run, line by line ----

    def fork(self, client: Client, number: int, request: LaunchRequest) -> None:
        """Ask the launcher for a supervisor of a number; it gets the request with its birth."""
        generation = self.launcher
        self.soon(f"fork {number}", lambda: self._forked(generation, client, number, request))

    def _forked(self, generation: int, client: Client, number: int, request: LaunchRequest) -> None:
        file = self.files.get(number)
        if generation != self.launcher or file is None or file.holder is not None:
            self.soon(f"gone {number}", lambda: client.gone(number, None))
            return
        supervisor = file.holder = Supervisor(file, client if client.open else None)
        client.born(number, supervisor)
        self.soon(f"take {request.run_id}", lambda: self.take(supervisor, request))

    def take(self, supervisor: Supervisor, request: LaunchRequest) -> None:
        run_id, file = request.run_id, supervisor.file
        if not supervisor.alive:
            return
        if run_id in file.entries:
            if supervisor.client is None and supervisor.run is None:
                self.leave(supervisor)
            return
        if self.timeline.disk_is_full():  # no space can be allocated for the end
            self.timeline.after(0.5, f"take {run_id} again", lambda: self.take(supervisor, request))
            return
        file.entries[run_id] = Entry(supervisor)
        supervisor.run = run_id
        self.timeline.taken(run_id)
        self.tell(supervisor, run_id, TAKEN)
        self.soon(f"spawn {run_id}", lambda: self._spawn(supervisor, request))

    def _spawn(self, supervisor: Supervisor, request: LaunchRequest) -> None:
        run_id = request.run_id
        entry = supervisor.file.entries.get(run_id)
        if not supervisor.alive or entry is None:
            return
        if run_id in self.stops:
            entry.stopped = True
            self._write_end(supervisor, run_id, 143, 15)
            return
        self.starts[run_id] = self.starts.get(run_id, 0) + 1
        if self.starts[run_id] > 1:
            raise Violation(f"{run_id} was started {self.starts[run_id]} times")
        self.pids += 1
        process = self.processes[run_id] = Process(run_id, self.pids, stubborn=self.dice.random() < 0.1)
        self.soon(f"S {run_id}", lambda: self._write_start(supervisor, process))
        lasts = self.dice.choice(self.lasts_s)
        code = self.dice.choice([0, 0, 0, 0, 1, 3])
        self.timeline.after(lasts, f"end {run_id}", lambda: self.end(run_id, code))

    def _write_start(self, supervisor: Supervisor, process: Process) -> None:
        entry = supervisor.file.entries.get(process.run_id)
        if supervisor.alive and entry is not None and entry.stage == TAKEN:
            pids = process.pid, process.pid, supervisor.file.number % 100_000, 1
            entry.start = StartRecord(*pids, self.boot, self.timeline.now())
            entry.stage = STARTED
            self.tell(supervisor, process.run_id, STARTED)

    def end(self, run_id: str, code: int, *, signo: int | None = None) -> None:
        """The main process exits; its supervisor collects it."""
        process = self.processes.get(run_id)
        if process is None or not process.alive:
            return
        if code == 0:
            self.timeline.left(run_id)
        process.alive = False
        found = self.entry(run_id)
        if found is not None and found[1].supervisor.alive:
            supervisor = found[1].supervisor
            self.soon(f"E {run_id}", lambda: self._write_end(supervisor, run_id, code, signo))

    def _write_end(self, supervisor: Supervisor, run_id: str, code: int, signo: int | None) -> None:
        entry = supervisor.file.entries.get(run_id)
        if not supervisor.alive or entry is None or entry.stage == ENDED:
            return
        if entry.start is None and run_id in self.processes:
            self._write_start(supervisor, self.processes[run_id])
        now = self.timeline.now()
        entry.exit = ExitRecord(code, signo, None, "", entry.stopped, now, 0, 0, 0)
        entry.stage = ENDED
        if not entry.stopped:
            self.truth[run_id] = code
        self.stops.pop(run_id, None)
        supervisor.run = None
        self.tell(supervisor, run_id, ENDED)
        if supervisor.next:
            self.soon(f"follow {run_id}", lambda: self._follow(supervisor, "" if entry.stopped else run_id))
        elif supervisor.client is None:
            self.leave(supervisor)

    def _follow(self, supervisor: Supervisor, last: str) -> None:
        """A supervisor goes on with the run that follows the last one, if its offer stands, and declines others."""
        while supervisor.alive and supervisor.next and supervisor.run is None:
            request, follows = supervisor.next.pop(0)
            run_id, client = request.run_id, supervisor.client
            if follows == last and withdraw(self.timeline.home, run_id):
                self.take(supervisor, request)
                return
            if client is not None:
                number = supervisor.file.number
                self.soon(f"declined {run_id}", partial(client.declined, number, run_id))
        if supervisor.client is None and supervisor.run is None:
            self.leave(supervisor)

    def leave(self, supervisor: Supervisor) -> None:
        """A supervisor ends in good order, and lets go of its file."""
        supervisor.alive = False
        if supervisor.file.holder is supervisor:
            supervisor.file.holder = None

    def tell(self, supervisor: Supervisor, run_id: str, stage: int) -> None:
        """Say on the line what was written; without a line, whoever watches the file may notice it."""
        client = supervisor.client
        if client is not None:
            self.soon(f"told {run_id} {stage}", lambda: client.heard(supervisor, run_id, stage))
        elif self.dice.random() < 0.7:
            self.soon(f"seen {run_id} {stage}", self.timeline.wake)

    def heed(self, run_id: str) -> None:
        """A supervisor reads the request to stop its run."""
        found, request = self.entry(run_id), self.stops.get(run_id)
        if found is None or request is None or not found[1].supervisor.alive or found[1].stage == ENDED:
            return
        process = self.processes.get(run_id)
        if process is None or not process.alive:
            return
        found[1].stopped = True
        until, signo = request
        if not process.stubborn:
            self.timeline.after(
                self.dice.random() * 0.5, f"obey {run_id}", lambda: self.end(run_id, 128 + signo, signo=signo)
            )
        left = max(0.0, until - self.timeline.elapsed_s)
        self.timeline.after(left, f"kill {run_id}", lambda: self._kill(found[1].supervisor, run_id))

    def _kill(self, supervisor: Supervisor, run_id: str) -> None:
        if supervisor.alive:
            self.end(run_id, 137, signo=9)

    # ---- what goes wrong ----

    def kill_launcher(self) -> None:
        """Supervisors that were not forked yet are not."""
        self.launcher += 1

    def kill_supervisor(self, supervisor: Supervisor) -> None:
        """Its process goes on for now; how it ends nobody records."""
        self.leave(supervisor)
        if (client := supervisor.client) is not None:
            self.soon(
                f"gone {supervisor.file.number}", lambda: client.gone(supervisor.file.number, supervisor)
            )

    def supervisors(self) -> list[Supervisor]:
        return [file.holder for file in self.files.values() if file.holder is not None]

    def power_cut(self) -> None:
        """The machine starts anew: no process is left, and lines that were not on the disk are gone."""
        for process in self.processes.values():
            process.alive = False
        for file in self.files.values():
            if file.holder is not None:
                self.leave(file.holder)
            for run_id, entry in list(file.entries.items()):
                if self.dice.random() < 0.3:  # records are not synced
                    self.truth.pop(run_id, None)
                    if entry.stage == ENDED and self.dice.random() < 0.5:
                        entry.stage, entry.exit = STARTED if entry.start else TAKEN, None
                    else:
                        del file.entries[run_id]
        self.stops.clear()
        self.boots += 1
        self.launcher += 1


@dataclass
class Seat:
    """A number as one client knows it."""

    supervisor: Supervisor | None = None
    run: str = ""
    request: LaunchRequest | None = None
    since: float = 0.0
    tries: int = 0
    due: float | None = None
    ahead: list[str] = field(default_factory=list)
    """Runs that follow."""


class Client:
    """The runtime of one scheduler."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.timeline = machine.timeline
        self.boot = machine.boot
        self.open = True
        self.seats: dict[int, Seat] = {}
        self.idle: list[int] = []
        self.news: set[str] = set()
        self.stages: dict[str, int] = {}
        """What supervisors have said of runs."""
        self.refused: set[str] = set()
        self.forgotten: set[str] = set()
        self.stopping: dict[str, float] = {}
        self.refused_ahead: set[str] = set()

    # ---- what the scheduler calls ----

    def prepare(self) -> None:
        self.timeline.boundary(self, "prepare")

    def fileno(self) -> int:
        return -1

    def assign(self) -> int:
        if self.idle:
            return self.idle.pop()
        machine = self.machine
        machine.numbers += 1
        machine.files[machine.numbers] = File(machine.numbers, machine.boot)
        self.seats[machine.numbers] = Seat()
        return machine.numbers

    def launch(self, request: LaunchRequest) -> None:
        self.refused_ahead.discard(request.run_id)
        self.timeline.boundary(self, f"launch {request.run_id}")
        file = self.machine.files.get(request.supervisor)
        if file is None or file.boot != self.machine.boot:
            self.refused.add(request.run_id)
            self._news(request.run_id)
            return
        seat = self.seats.setdefault(request.supervisor, Seat())
        if request.run_id in file.entries or (seat.run == request.run_id and seat.request is not None):
            return
        seat.run, seat.request, seat.since, seat.due = request.run_id, request, self.timeline.elapsed_s, None
        seat.tries = 0
        self._give(request.supervisor, seat)
        self.timeline.boundary(self, f"launched {request.run_id}")

    def launch_next(self, request: LaunchRequest, follows: str) -> bool:
        self.timeline.boundary(self, f"launch {request.run_id} after {follows}")
        seat = self.seats.get(request.supervisor)
        if seat is None or not seat.run or seat.supervisor is None or not seat.supervisor.alive:
            return False
        seat.ahead.append(request.run_id)
        seat.supervisor.next.append((request, follows))
        return True

    def was_declined(self, run_id: str) -> bool:
        return run_id in self.refused_ahead and self.observe(run_id).state is RunState.NEVER_STARTED

    def let_next_go(self, run_id: str) -> None:
        self.refused_ahead.discard(run_id)

    def declined(self, number: int, run_id: str) -> None:
        """A supervisor has said that it does not take a run ahead, or it is gone."""
        if not self.open:
            return
        self.refused_ahead.add(run_id)
        if (seat := self.seats.get(number)) is not None:
            if run_id in seat.ahead:
                seat.ahead.remove(run_id)
            elif seat.run == run_id and seat.request is None:
                seat.run = seat.ahead.pop(0) if seat.ahead else ""
        self._news(run_id)

    def _give(self, number: int, seat: Seat) -> None:
        request, supervisor = seat.request, seat.supervisor
        assert request is not None
        if supervisor is None:
            self.machine.fork(self, number, request)
        elif supervisor.alive:
            self.machine.soon(f"take {request.run_id}", lambda: self.machine.take(supervisor, request))

    def changes(self) -> set[str]:
        self.timeline.boundary(self, "changes")
        now = self.timeline.elapsed_s
        for number, seat in list(self.seats.items()):
            if seat.request is None:
                continue
            file = self.machine.files.get(number)  # another scheduler may have removed it
            if file is not None and seat.run in file.entries:
                if now - seat.since > ANSWER_S or seat.due is not None:
                    seat.request, seat.due = None, None
                    self.news.add(seat.run)
            elif (seat.due is not None and seat.due <= now) or now - seat.since > ANSWER_S:
                seat.since, seat.due = now, None
                self._give(number, seat)
        for run_id, asked in list(self.stopping.items()):
            if now - asked > ANSWER_S:
                self.stopping[run_id] = now
                self.machine.soon(f"heed {run_id}", lambda run_id=run_id: self.machine.heed(run_id))
        news, self.news = self.news, set()
        return news

    def due_s(self) -> float:
        waits = bool(self.stopping) or any(seat.request is not None for seat in self.seats.values())
        return 0.25 if waits else 5.0

    def observe(self, run_id: str) -> Seen:
        """By its line where there is one, else by its file."""
        gone = Seen(RunState.LOST, problem="its records are gone")
        found = None if run_id in self.forgotten else self.machine.entry(run_id)
        if found is None:
            return gone if run_id in self.refused else Seen(RunState.NEVER_STARTED)
        file, entry = found
        seat, supervisor = self.seats.get(file.number), entry.supervisor
        on_line = seat is not None and seat.supervisor is supervisor
        stage = min(entry.stage, self.stages.get(run_id, 0)) if on_line else entry.stage
        start = entry.start if stage >= STARTED else None
        if stage == 0:
            return Seen(RunState.NEVER_STARTED)
        if stage == ENDED:
            return Seen(RunState.EXITED, start, entry.exit)
        if on_line or (supervisor.alive and file.holder is supervisor):
            return Seen(RunState.STARTING if start is None else RunState.RUNNING, start)
        return Seen(RunState.LOST, start)

    def stop(self, run_id: str, *, grace_s: float, signo: int = 15) -> None:
        self.timeline.boundary(self, f"stop {run_id}")
        if self.observe(run_id).state is RunState.EXITED:
            return
        until = self.timeline.elapsed_s + grace_s
        before = self.machine.stops.get(run_id, (until, signo))
        self.machine.stops[run_id] = min(before[0], until), signo
        self.stopping.setdefault(run_id, self.timeline.elapsed_s)
        self.machine.soon(f"heed {run_id}", lambda: self.machine.heed(run_id))

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        self.timeline.boundary(self, f"signal {run_id}")
        process = self.machine.processes.get(run_id)
        return process is not None and process.alive

    def adopt(self, run_id: str) -> bool:
        return True

    def known_runs(self) -> list[str]:
        found = set()
        for file in self.machine.files.values():
            runs = [run_id for run_id in file.entries if run_id not in self.forgotten]
            found |= {run_id for run_id in runs if file.entries[run_id].exit is None}
            if file.holder is not None and runs:
                found.add(runs[-1])
        return sorted(found)

    def clear_lost(self, run_id: str) -> tuple[int, ...]:
        self.timeline.boundary(self, f"clear {run_id}")
        process = self.machine.processes.get(run_id)
        if process is None or not process.alive or self.observe(run_id).state is not RunState.LOST:
            return ()
        if self.machine.dice.random() < 0.2:  # it hangs in the kernel
            return (process.pid,)
        process.alive = False
        return ()

    def forget(self, run_id: str) -> None:
        self.timeline.boundary(self, f"forget {run_id}")
        state = self.observe(run_id).state
        if state in (RunState.STARTING, RunState.RUNNING):
            raise Violation(f"run {run_id} is forgotten and {state}")
        found = self.machine.entry(run_id)
        self.forgotten.add(run_id)
        self.refused.discard(run_id)
        if self.stopping.pop(run_id, None) is not None:
            self.machine.stops.pop(run_id, None)
        if found is not None and (seat := self.seats.get(found[0].number)) is not None and seat.run == run_id:
            self._leave(found[0].number)

    def drop_ended(self) -> None:
        for file in self.machine.files.values():
            self.forgotten |= {run_id for run_id, entry in file.entries.items() if entry.exit is not None}

    def settle(self, live: Mapping[str, int | None]) -> None:
        if None in live.values():
            raise Violation("a run has no number")
        numbers = set(live.values())
        for number, seat in self.seats.items():
            if not seat.run and number not in numbers and number not in self.idle:
                self.idle.append(number)
        for number, file in list(self.machine.files.items()):
            ended = {one for one, entry in file.entries.items() if one not in live and entry.exit}
            left = set(file.entries) - self.forgotten - ended
            self.forgotten |= ended
            if number in numbers or number in self.seats or left or file.holder is not None:
                continue
            self.timeline.boundary(self, f"remove {number}")
            self.machine.files.pop(number, None)

    def restore(self) -> None:
        return

    def close(self) -> None:
        """The lines end: who is idle ends too, who is busy carries on."""
        self.open = False
        for supervisor in self.machine.supervisors():
            if supervisor.client is self:
                supervisor.client = None
                if supervisor.run is None:
                    self.machine.leave(supervisor)

    # ---- what it hears ----

    def _news(self, run_id: str) -> None:
        self.news.add(run_id)
        self.timeline.wake()

    def born(self, number: int, supervisor: Supervisor) -> None:
        if self.open and (seat := self.seats.get(number)) is not None:
            seat.supervisor = supervisor

    def heard(self, supervisor: Supervisor, run_id: str, stage: int) -> None:
        seat = self.seats.get(supervisor.file.number)
        if not self.open or seat is None or seat.supervisor is not supervisor:
            return
        self.stages[run_id] = max(stage, self.stages.get(run_id, 0))
        if run_id == seat.run:
            seat.request, seat.due = None, None
            if stage == ENDED:
                seat.run = seat.ahead.pop(0) if seat.ahead else ""
                if not seat.run:
                    self.idle.append(supervisor.file.number)
        self._news(run_id)

    def gone(self, number: int, supervisor: Supervisor | None) -> None:
        """The line to a supervisor has ended, or it was never forked."""
        seat = self.seats.get(number)
        if not self.open or seat is None or seat.supervisor is not supervisor:
            return
        seat.supervisor = None
        for run_id in list(seat.ahead):
            self.declined(number, run_id)
        if not seat.run:
            self._leave(number)
            return
        file = self.machine.files.get(number)
        if file is None:
            self.refused.add(seat.run)
            seat.request = None
        elif seat.run in file.entries:
            seat.request = None
        elif seat.request is not None:
            seat.tries += 1
            seat.due = self.timeline.elapsed_s + (
                0 if seat.tries < 2 else min(30.0, 0.02 * 2.0 ** min(seat.tries, 20))
            )
        self._news(seat.run)
        if seat.request is None:
            self._leave(number)

    def _leave(self, number: int) -> None:
        seat = self.seats.pop(number, None)
        if number in self.idle:
            self.idle.remove(number)
        if seat is not None and seat.supervisor is not None:
            seat.supervisor.client = None
            if seat.supervisor.alive and seat.supervisor.run is None:
                self.machine.leave(seat.supervisor)
