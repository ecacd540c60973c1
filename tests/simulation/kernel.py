"""A simulated kernel below the real ``LocalRuntime``: processes, locks of files, and a launcher that forks.

Lines are real sockets, record files, offers and stop requests real files; the runtime with its supervisors' numbers is
the real one, and so is what a supervisor writes, says and answers. Its steps are events of their own: anything can be
killed or suspended between any two of them.
"""

from __future__ import annotations

import errno
import os
import random
import select
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from vctl.privileged import run_request
from vctl.runtime import (
    findings,
    frames,
    lines,
    local,
    processes,
    records,
    supervision,
    supervisor,
    supervisors,
)
from vctl.runtime.protocol import LaunchRequest, RunState, RuntimeUnavailable
from vctl.store import ahead

FIRST_PID = 2_000_000
LOCK_PAUSES = 200
LINE, CHILD = "line", "child"
"""What a supervisor waits for."""


class Violation(AssertionError):
    """The code under test broke a rule."""


class Timeline(Protocol):
    """What a kernel needs of a simulation."""

    dice: random.Random
    elapsed_s: float
    latency: float
    """How slow this machine is: 1 for a fast one."""
    home: Path

    def after(self, seconds: float, what: str, do: Callable[[], object]) -> None: ...
    def now(self) -> int: ...
    def sleep(self, seconds: float) -> None: ...
    def wake(self) -> None: ...
    def runtime(self) -> local.LocalRuntime | None: ...
    def disk_is_full(self) -> bool: ...
    def can_fork(self) -> bool: ...
    def boundary(self, actor: Any, where: str) -> None: ...
    def taken(self, run_id: str) -> None: ...
    def killed(self, run_id: str) -> None: ...
    def left(self, run_id: str) -> None: ...


class Process:
    """A process as ``/proc`` shows it."""

    tag = 0

    def __init__(self, kernel: Kernel, parent: int, run_id: str = "") -> None:
        self.kernel, self.parent, self.run_id = kernel, parent, run_id
        kernel.pids += 1
        self.pid = self.group = self.session = kernel.pids
        self.started = int(kernel.timeline.elapsed_s * 100)
        self.state = "S"
        self.alive = True
        kernel.table[self.pid] = self

    def signal(self, signo: int) -> None:
        """What the kernel does with a signal."""
        if not self.alive:
            return
        if signo == signal.SIGKILL:
            self.die(128 + signo, signo)
        elif signo == signal.SIGSTOP:
            self.state = "T"
        elif signo == signal.SIGCONT and self.state == "T":
            self.state = "S"
            self.resumed()
        elif signo not in (0, signal.SIGCONT):
            self.handle(signo)

    def resumed(self) -> None: ...
    def handle(self, signo: int) -> None: ...

    def die(self, code: int, signo: int) -> None:
        self.alive = False
        del self.kernel.table[self.pid]


class Main(Process):
    """The main process of a run; a stubborn one ignores every signal but SIGKILL."""

    def __init__(self, kernel: Kernel, above: Number, run_id: str) -> None:
        super().__init__(kernel, above.above.pid, run_id)
        self.above = above
        self.tag = above.number
        self.stubborn = kernel.dice.random() < 0.1
        self.code = self.signo = 0

    def signal(self, signo: int) -> None:
        if signo in (signal.SIGKILL, signal.SIGTERM):
            self.kernel.timeline.killed(self.run_id)
        if signo == signal.SIGKILL and self.kernel.dice.random() < 0.1:  # the kernel is busy with it
            self.kernel.soon(f"kill {self.run_id}", lambda: self.alive and self.die(137, signo), 4.0)
        else:
            super().signal(signo)

    def handle(self, signo: int) -> None:
        if not self.stubborn:
            self.kernel.soon(f"obey {self.run_id}", lambda: self.end(128 + signo, signo), 0.2)

    def end(self, code: int, signo: int = 0) -> None:
        """It exits, unless it is gone already."""
        if self.alive:
            if code == 0:
                self.kernel.timeline.left(self.run_id)
            self.die(code, signo)

    def die(self, code: int, signo: int) -> None:
        super().die(code, signo)
        self.code, self.signo = code, signo
        self.above.woken(CHILD)


class Supervision(supervision.Supervision):
    """The real one, over a simulated process."""

    process: Main | None = None

    def below(self) -> list[int]:
        return [self.process.pid] if self.process is not None and self.process.alive else []


class Supervisor(Process):
    """A process with numbers, as the launcher forks it (``vctl/runtime/supervisor.py``)."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, 1)
        self.home = os.fsencode(kernel.timeline.home)
        self.signature = b"%d %d %b" % (self.pid, self.started, kernel.boot.encode())
        self.shared = run_request.Unpacked()
        self.as_account = supervision.AsItself()
        self.numbers: dict[int, Number] = {}
        self.unread: list[tuple[int, int]] = []
        """Numbers with lines that came while it was suspended."""

    def add(self, name: int, line: int) -> None:
        """``Supervisor.add``, as soon as it reads what the launcher has sent."""
        if self.state == "T":
            self.unread.append((name, line))
            return
        if (number := self.numbers.get(name)) is None:
            number = self.numbers[name] = Number(self, name)
        number.hang_up()
        number.received.clear()
        number.line = socket.socket(fileno=line)
        if number.is_new:
            number.is_new = False
            number.step()
        else:
            number.woken(LINE)

    def resumed(self) -> None:
        unread, self.unread = self.unread, []
        for name, line in unread:
            self.add(name, line)
        for number in list(self.numbers.values()):
            number.resumed()

    def handle(self, signo: int) -> None:
        if signo == supervisor.STOP_SIGNAL:
            for number in self.numbers.values():
                number.stop_is_asked = True
                number.woken(CHILD)

    def drop(self, number: Number) -> None:
        """A number is not needed any more; without numbers it ends."""
        number.let_go()
        del self.numbers[number.number]
        if not self.numbers and self.alive:
            self.die(0, 0)

    def die(self, code: int, signo: int) -> None:
        """Its locks and its lines are gone with it; the processes go on."""
        super().die(code, signo)
        for number in self.numbers.values():
            number.let_go()
            if number.name:
                self.kernel.orphaned.add(number.name)
            self.kernel.killed[number.number] += signo == signal.SIGKILL
        for name, line in self.unread:
            self.kernel.killed[name] += 1
            os.close(line)
        for one in self.kernel.table.values():
            if one.parent == self.pid:
                one.parent = 1


class Number(supervisor.SupervisorNumber):
    """One number of a supervisor; its steps are those of the real one, with time between them."""

    above: Supervisor  # type: ignore[assignment]

    def __init__(self, above: Supervisor, number: int) -> None:
        super().__init__(above, number)  # type: ignore[arg-type]
        self.kernel = above.kernel
        self.name = ""
        """Of the run that it carries out."""
        self.awaits = ""
        self.has_file = self.due_now = self.stop_is_asked = False
        self.is_new = True
        self.moves = self.lives()

    # ---- how it is moved ----

    def step(self) -> None:
        """One step on, unless it is suspended."""
        if not self.above.alive:
            return
        if self.above.state == "T":
            self.due_now = True
            return
        found = next(self.moves, None)
        if not self.above.alive:
            return
        if found is None:
            self.above.drop(self)
        elif isinstance(found, str):
            self.awaits = found
            if found == LINE and self.line is not None:
                self.kernel.poll.register(self.line, select.EPOLLIN)
                self.kernel.waiting[self.line.fileno()] = self
        else:
            self.kernel.timeline.after(found, f"number {self.number % 1000}", self.step)

    def woken(self, what: str) -> None:
        """What it waits for may be there."""
        if self.above.alive and self.awaits == what:
            self.awaits = ""
            self.kernel.soon(f"wakes {self.number % 1000}", self.step, 0.002)

    def resumed(self) -> None:
        if self.due_now:
            self.due_now = False
            self.kernel.soon(f"resumed {self.number % 1000}", self.step, 0.002)

    def hang_up(self) -> None:
        """``Supervisor._hang_up``."""
        if self.line is not None:
            if self.kernel.waiting.pop(self.line.fileno(), None) is not None:
                self.kernel.poll.unregister(self.line)
            self.line.close()
            self.line = None

    def let_go(self) -> None:
        """Neither its file nor its line is its any more."""
        self.hang_up()
        if self.has_file:
            self.has_file = False
            self.file.close()
        if self.kernel.locks.get(self.number) is self.above:
            del self.kernel.locks[self.number]

    # ---- what it does ----

    def lives(self) -> Iterator[float | str]:
        """``Number.live`` and ``Number.serve``."""
        kernel = self.kernel
        path = kernel.timeline.home / "records" / str(self.number)
        for _ in range(LOCK_PAUSES):
            if not path.exists():
                return
            if self.number not in kernel.locks:
                break
            yield 0.005
        else:
            kernel.killed[self.number] += 1
            return
        kernel.locks[self.number] = self.above
        self.file, self.has_file = lines.Writer(os.fsencode(path)), True
        last = b""
        while True:
            while (request := frames.cut(self.received)) is None:
                if self.line is None:
                    return
                before = len(self.received)
                if not self.hear():
                    self.hang_up()
                elif len(self.received) == before:
                    yield LINE
            run = Supervision(self, run_request.checked(request))
            yield self.pause()
            if run.follows:
                if run.follows != last or not self.accept(run.name):
                    self.decline(run.name)
                    yield self.pause()
                    continue
                kernel.accepted.add(os.fsdecode(run.name))
                yield self.pause()
            yield from self.while_full()
            if not run._take():
                continue
            self.name = os.fsdecode(run.name)
            kernel.timeline.taken(self.name)
            yield self.pause()
            yield from self.carries_out(run)
            yield self.pause()
            self.say()
            last, self.name = b"" if run.stopped else run.name, ""

    def carries_out(self, run: Supervision) -> Iterator[float | str]:
        """``Supervision.carry_out`` up to the record of the end, which is not said yet."""
        kernel, name = self.kernel, self.name
        run.read_stop()
        code, signo, started = 128 + signal.SIGTERM, int(signal.SIGTERM), b""
        if not run.stopped:
            self.write_log(os.fsdecode(run.plan[3]))
            main = run.process = kernel.spawn(self, name)
            run.main = main.pid
            yield self.pause()
            started = b"%d %d %d" % (main.pid, main.started, kernel.timeline.now())
            started = lines.line(lines.STARTED, run.name, started)
            if main.alive:
                yield from self.while_full()
                self.write(started)
                started = b""
            yield supervision._SHORT_S
            if main.alive:
                self.say()
            while main.alive:
                if self.stop_is_asked:
                    self.stop_is_asked = False
                    run.read_stop()
                    if run.deadline is not None:
                        left_s = max(0.0, run.deadline - kernel.timeline.elapsed_s)
                        kernel.timeline.after(left_s, f"kill {name}", lambda: self.kill(main))
                yield CHILD
            code, signo = main.code, main.signo
            yield self.pause()
        yield from self.while_full()
        rest = b"%d %d 0 %d %d 0 0 0 " % (code, signo, run.stopped, kernel.timeline.now())
        self.write(started + lines.line(lines.ENDED, run.name, rest))
        kernel.over.add(name)
        if not run.stopped:
            kernel.truth[name] = code

    def write_log(self, path: str) -> None:
        """As a process does that says something as soon as it runs."""
        if path != os.devnull:
            with open(path, "ab") as log:
                log.write(b"x\n")
            os.utime(path, ns=(self.kernel.timeline.now(),) * 2)

    def kill(self, main: Main) -> None:
        if self.above.alive and main.alive:
            main.signal(signal.SIGKILL)

    def pause(self) -> float:
        return self.kernel.pause_s(0.01)

    def while_full(self) -> Iterator[float]:
        while self.kernel.timeline.disk_is_full():
            yield supervision.RETRY_S


class Launcher:
    """A fork server of one scheduler."""

    def __init__(self, kernel: Kernel) -> None:
        if not kernel.timeline.can_fork():
            raise RuntimeUnavailable("the launcher dies as soon as it is started")
        self.kernel = kernel
        self.dead = False
        self.sent: dict[int, tuple[int, int]] = {}
        self.places: dict[int, Supervisor] = {}
        kernel.launchers.append(self)

    def is_dead(self) -> bool:
        return self.dead

    def hand(self, number: int, place: int, line: socket.socket) -> bool:
        if self.dead:
            return False
        fd = os.dup(line.fileno())
        self.sent[fd] = number, place
        self.kernel.soon(f"hand {number % 1000}", lambda: self._hand(fd))
        return True

    def _hand(self, fd: int) -> None:
        if (sent := self.sent.pop(fd, None)) is not None:
            number, place = sent
            if place not in self.places or not self.places[place].alive:
                self.places[place] = Supervisor(self.kernel)
            self.places[place].add(number, fd)

    def abandon(self) -> None:
        """It is killed: nobody gets the lines that it has not read."""
        self.dead = True
        for fd in self.sent:
            os.close(fd)
        self.sent.clear()

    def close(self) -> None:
        """What was sent it still reads."""
        self.dead = True


def _ended(text: bytes) -> set[bytes]:
    """The runs of which a record file tells the end."""
    return {line.split(b" ")[1] for line in text.split(b"\n") if line[:2] == b"E "}


class Kernel:
    """Everything that goes on outside of schedulers and commands; it outlives schedulers."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.boots = 1
        self.pids = FIRST_PID
        self.table: dict[int, Process] = {}
        self.locks: dict[int, Supervisor] = {}
        """Number of a record file -> who has it locked."""
        self.launchers: list[Launcher] = []
        self.processes: dict[str, Main] = {}
        self.starts: dict[str, int] = {}
        self.truth: dict[str, int] = {}
        """Run -> the exit code that its record gives."""
        self.over: set[str] = set()
        """Runs of which a record tells the end."""
        self.orphaned: set[str] = set()
        """Runs whose supervisor was killed before it had said all of them."""
        self.killed: Counter[int] = Counter()
        """Number -> how many processes that had it, or were to get it, were killed, or waited for its file in vain."""
        self.accepted: set[str] = set()
        """Runs assigned ahead whose offer a supervisor has taken."""
        self.synced: set[int] = set()
        """Files that outlive a power cut as they are."""
        self.cpus = set(range(timeline.dice.choice([1, 2, 4])))
        self.poll = select.epoll()
        self.waiting: dict[int, Number] = {}

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    @property
    def dice(self) -> random.Random:
        return self.timeline.dice

    def pause_s(self, most_s: float) -> float:
        """Mostly next to none, now and then long."""
        late = self.dice.random()
        return self.timeline.latency * most_s * (late if late < 0.95 else late * 40)

    def soon(self, what: str, do: Callable[[], object], most_s: float = 0.02) -> None:
        self.timeline.after(self.pause_s(most_s), what, do)

    def pump(self) -> None:
        """Wake whoever has something to read; after each event."""
        for fd, _ in self.poll.poll(0) if self.waiting else ():
            self.poll.unregister(fd)
            self.waiting.pop(fd).woken(LINE)
        runtime = self.timeline.runtime()
        if runtime is not None and runtime._findings.poll.poll(0):
            self.timeline.wake()

    def spawn(self, above: Number, run_id: str) -> Main:
        self.starts[run_id] = self.starts.get(run_id, 0) + 1
        if self.starts[run_id] > 1:
            raise Violation(f"{run_id} was started {self.starts[run_id]} times")
        main = self.processes[run_id] = Main(self, above, run_id)
        lasts = self.dice.choice(self.lasts_s)
        code = self.dice.choice([0, 0, 0, 0, 1, 3])
        self.timeline.after(lasts, f"end {run_id}", lambda: main.end(code))
        return main

    lasts_s = [0.001, 0.1, 1.0, 3.0, 8.0, 20.0, 60.0]

    def running(self) -> list[str]:
        return sorted(run_id for run_id, main in self.processes.items() if main.alive)

    def supervisors(self) -> list[Supervisor]:
        return [one for one in self.table.values() if isinstance(one, Supervisor)]

    def numbers(self) -> list[Number]:
        """All that supervisors have."""
        return [number for one in self.supervisors() for number in one.numbers.values()]

    # ---- what goes wrong ----

    def kill_launcher(self) -> None:
        for launcher in self.launchers:
            self.killed.update(number for number, _ in launcher.sent.values())
            launcher.abandon()
        self.launchers.clear()

    def power_cut(self) -> None:
        """No process is left, and what the disk had not of the record files is gone."""
        self.kill_launcher()
        for one in list(self.table.values()):
            if one.alive:
                one.die(137, 9)
        for path in sorted((self.timeline.home / "records").iterdir()):
            if self.dice.random() < 0.3 and path.stat().st_ino not in self.synced:
                text = path.read_bytes()
                os.truncate(path, self.dice.randint(0, len(text)))
                lost = _ended(text) - _ended(path.read_bytes().rpartition(b"\n")[0])
                for name in lost:
                    self.truth.pop(os.fsdecode(name), None)
                    self.over.discard(os.fsdecode(name))
        for run_id in sorted(self.accepted):
            if self.dice.random() < 0.3:  # nor does the disk know that its offer was taken
                self.offer(self.timeline.home, run_id)
        self.boots += 1

    def close(self) -> None:
        for one in list(self.table.values()):
            if one.alive:
                one.die(0, 0)
        self.kill_launcher()
        self.poll.close()

    # ---- what the runtime asks the kernel ----

    def process(self, pid: int) -> Process | None:
        return self.table.get(pid)

    def start_time(self, pid: int) -> int | None:
        found = self.table.get(pid)
        return None if found is None else found.started

    def send(self, pid: int, signo: int) -> None:
        if (found := self.table.get(abs(pid))) is not None:
            found.signal(signo)

    def kill(self, pid: int, signo: int) -> None:
        if pid not in self.table:
            raise ProcessLookupError
        self.table[pid].signal(signo)

    def send_signal(self, pid: int, started: int, signo: int) -> bool:
        found = self.table.get(pid)
        if found is None or found.started != started:
            return False
        found.signal(signo)
        return True

    def children(self, pid: int) -> list[int]:
        if pid not in self.table:
            raise Violation(
                f"{pid}, whose processes are looked for, is not there: another may have its number"
            )
        return [one.pid for one in self.table.values() if one.parent == pid]

    def descendants(self, root: int, spare: object = None) -> list[int]:
        return [one.pid for one in self.table.values() if one.parent == root]

    def tag(self, pid: int) -> int:
        return self.table[pid].tag

    def kill_all(self, look: Callable[[], list[int]]) -> None:
        for pid in look():
            self.send(pid, signal.SIGKILL)

    def marked(self, mark: bytes, *more: bytes) -> dict[bytes, list[Process]]:
        found: dict[bytes, list[Process]] = {}
        for one in self.table.values():
            if one.run_id:
                found.setdefault(os.fsencode(one.run_id), []).append(one)
        return found

    def has_open(self, pid: int, path: str) -> bool:
        found = self.table.get(pid)
        return isinstance(found, Supervisor) and any(
            one.has_file and path.endswith(f"/{one.number}") for one in found.numbers.values()
        )

    offer = staticmethod(ahead.offer)

    def offer_or_fail(self, home: Path, run_id: str) -> None:
        if self.timeline.disk_is_full():
            raise OSError(errno.ENOSPC, "no space left for an offer")
        self.offer(home, run_id)

    def holder(self, file: records.RecordFile) -> int | None:
        holder = self.locks.get(file.number)
        return None if holder is None or not os.path.exists(file.path) else holder.pid

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Have the runtime ask this kernel, and its clock."""
        for name in (
            "process", "start_time", "send", "send_signal", "children", "descendants", "tag", "kill_all", "marked",
            "has_open",
        ):  # fmt: skip
            patch.setattr(processes, name, getattr(self, name))
        patch.setattr(
            processes, "tagged", lambda tag, _: [one for one in self.table.values() if one.tag == tag]
        )
        patch.setattr(processes, "boot_id", lambda: self.boot)
        patch.setattr(processes, "all_processes", lambda: list(self.table.values()))
        patch.setattr(
            processes, "alive",
            lambda pid, started, boot: self.start_time(pid) == started and boot == self.boot,
        )  # fmt: skip
        patch.setattr(os, "kill", self.kill)
        patch.setattr(os, "sched_getaffinity", lambda _pid: self.cpus)  # as many supervisors there are
        patch.setattr(records.RecordFile, "holder", lambda file: self.holder(file))  # noqa: PLW0108 - bound to the file
        patch.setattr(supervisors, "ForkServer", lambda home, keeper: Launcher(self))
        patch.setattr(ahead, "offer", self.offer_or_fail)
        patch.setattr(ahead, "_boot", lambda: self.boot.encode())  # noqa: PLW0108 - of the day
        patch.setattr(os, "fsync", lambda fd: self.synced.add(os.fstat(fd).st_ino))
        listdir = os.listdir
        patch.setattr(os, "listdir", lambda *of: sorted(listdir(*of)))  # a disk has an order of its own
        clock: Any = SimpleNamespace(
            monotonic=lambda: self.timeline.elapsed_s,
            monotonic_ns=lambda: int(self.timeline.elapsed_s * 1e9),
            time_ns=self.timeline.now,
            sleep=self.timeline.sleep,
        )
        for module in (supervisors, findings, local, records, supervision, supervisor):
            patch.setattr(module, "time", clock)


class Runtime(local.LocalRuntime):
    """The real one, of a scheduler that can be killed or overtaken before each call, and whose disk can be full."""

    def __init__(self, timeline: Timeline, actor: object) -> None:
        self.timeline, self.actor = timeline, actor
        super().__init__(timeline.home)

    def _boundary(self, where: str) -> None:
        self.timeline.boundary(self.actor, where)

    def _writes(self, what: str) -> None:
        self._boundary(what)
        if self.timeline.disk_is_full():
            raise RuntimeUnavailable("cannot use the state directory: No space left on device")

    def prepare(self) -> None:
        self._boundary("prepare")
        super().prepare()

    def assign(self) -> int:
        self._writes("assign")
        return super().assign()

    def launch(self, request: LaunchRequest) -> None:
        self._boundary(f"launch {request.run_id}")
        if not self.timeline.can_fork():
            raise OSError(errno.ENOSPC, "no space left for a socket")
        super().launch(request)
        self._boundary(f"launched {request.run_id}")

    def launch_next(self, request: LaunchRequest, follows: str) -> bool:
        self._boundary(f"launch {request.run_id} after {follows}")
        return super().launch_next(request, follows)

    def let_next_go(self, run_id: str) -> None:
        self._boundary(f"let {run_id} go")
        super().let_next_go(run_id)

    def changes(self) -> set[str]:
        self._boundary("changes")
        return super().changes()

    def stop(self, run_id: str, *, grace_s: float, signo: int = 15) -> None:
        self._writes(f"stop {run_id}")
        super().stop(run_id, grace_s=grace_s, signo=signo)

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        self._boundary(f"signal {run_id}")
        return super().signal_run(run_id, signo, tree=tree)

    def clear_lost(self, run_id: str) -> tuple[int, ...]:
        self._boundary(f"clear {run_id}")
        return super().clear_lost(run_id)

    def forget(self, run_id: str) -> None:
        self._boundary(f"forget {run_id}")
        if (state := self.observe(run_id).state) in (RunState.STARTING, RunState.RUNNING):
            raise Violation(f"run {run_id} is forgotten and {state}")
        super().forget(run_id)

    def settle(self, live: Mapping[str, int]) -> None:
        self._boundary("settle")
        if not all(live.values()):
            raise Violation("a run has no number")
        super().settle(live)
