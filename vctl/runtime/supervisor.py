"""The supervisor process: starts runs, waits, cleans up, and records how each run ended (supervision.py).

It runs stand-alone in a fork of the launcher (see launcher.py) and outlives both launcher and scheduler. It
has one or more numbers, which are never reused. It carries out the runs of one number one after the other,
and the runs of different numbers at the same time. It writes what it does into the record file of the number
(see lines.py). Its files in the state directory:

    records/<number>    made and removed by the scheduler; locked by the supervisor while it has the number.
                        A supervisor that finds no such file, or still finds it locked after a second,
                        starts nothing
    ahead/<run>         an offer to start a run immediately after the run that its request names. The
                        supervisor removes the offer first. It declines if there is no offer, or if the last
                        run of the number was another one or was stopped
    stops/<run>         a request to stop, "<monotonic ns at which to kill> <signal>"; may come before the
                        run; the supervisor removes the file as its answer

Requests come on the line (the socket) of the number. A run that is recorded as taken is not started again,
so a request may be sent again at any time, also to the next process that has the number. A run that was
taken, has no end, and whose record file is not locked is lost: its supervisor was killed. Its processes
continue until the scheduler kills them: a parent-death signal would reach only the main process. Records are
not synced to disk: they outlive every process, and after a power cut the boot id shows that the run is lost.

A daemon whose parents have ended is assigned to its run by its *tag*: the soft limit RLIMIT_LOCKS, which no
kernel since 2.4.25 enforces. The tag is the number that carries out the run; fork, exec, setsid and an empty
environment keep it. A descendant whose tag is no present number has changed its tag: then no run is over
before that process has ended.
"""

import _ctypes
import _socket  # the public module builds enums at import
import heapq
import os
import resource
import select
import sys
import time

MYPY = False
if MYPY or __package__:
    from vctl.privileged import run_request
    from vctl.runtime import frames, lines, processes, spawning, supervision
else:
    import frames
    import lines
    import processes
    import run_request
    import spawning
    import supervision

if MYPY:
    import signal
    from collections.abc import Generator

    from vctl.privileged.child import AsAccount
    from vctl.runtime import cgroups
    from vctl.runtime.user_processes import UserProcesses
else:
    import _signal as signal  # see processes.py

NAME = b"vctl-supervisor"  # as ps shows it
# The last words of a background scheduler's command line, before its state directory.
BACKGROUND_WORDS = [b"--background", b"--home"]
STOP_SIGNAL = signal.SIGUSR1  # tells a supervisor to read the stop files of its runs
NUMBER_BYTES = 8
_MAX_RECEIVED = 2 * run_request.MAX_BYTES  # requests that wait for their turn
_LONGEST_WAIT_S = 3600.0  # the kernel takes milliseconds as an int
_LOCK_PAUSE_S, _MAX_LOCK_PAUSES = 0.005, 200  # to wait for the end of the process that had the number before
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_CHUNK_BYTES = 1 << 14
_SIGNAL_BYTES, _MAX_SIGNALS = 128, 64  # the size of signalfd_siginfo, and how many are read at once
_SIGNALFD = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "signalfd")
_SFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_SET_BYTES = 128
_JOB_OOM = 900  # of 1000: above every supervisor, and below the workers of a private Ray, which have 1000


_AFTER_ERROR_S = 0.05


class _Suppressed:
    """Ignores an OSError, as ``contextlib.suppress``, which is slow to import."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        return isinstance(error, OSError)


class SupervisorNumber:
    """One number: its file, its line to the scheduler, its requests, and the run that it carries out."""

    __slots__ = ("above", "due", "file", "line", "number", "received", "run", "steps", "unsaid", "waits")

    def __init__(self, above: "Supervisor", number: int) -> None:
        self.above, self.number = above, number
        self.line: _socket.socket | None = None
        self.file: lines.Writer
        self.run: supervision.Supervision | None = None
        self.unsaid = b""  # lines that were not sent to the scheduler yet
        self.received = bytearray()
        self.waits = False  # for a request
        self.due = 0.0  # when ``steps`` goes on at the latest, on the monotonic clock
        self.steps = self.live()

    def live(self) -> "Generator[float, None, None]":
        """Lock the record file and serve; end if there is no file, or if it stays locked.

        Waits for the end of the process that had the number before. Yields as ``supervision`` does.
        """
        for _ in range(_MAX_LOCK_PAUSES):
            try:
                with self.above.as_account:
                    self.file = lines.Writer(b"%b/records/%d" % (self.above.home, self.number))
            except lines.Busy:
                yield _LOCK_PAUSE_S
            except FileNotFoundError:
                return
            else:
                try:
                    yield from self.serve()
                finally:
                    self.file.close()
                return

    def serve(self) -> "Generator[float, None, None]":
        """Carry out requests until the line has ended and no request is left."""
        last = b""  # the run that was carried out last; empty if it was stopped
        while True:
            if (message := self._next_message()) is None:
                if self.line is None:
                    return
                self.waits = True
                yield supervision.NEVER
                self.waits = False
                continue
            run = supervision.Supervision(self, self.above.checked(message))
            if run.follows and not (run.follows == last and self.accept(run.name)):
                self.decline(run.name)
                continue
            self.run = run
            if (yield from run.carry_out()):
                last = b"" if run.stopped else run.name
            self.run = None

    def _next_message(self) -> bytes | None:
        try:
            return frames.cut(self.received, run_request.MAX_BYTES)
        except ValueError as error:
            raise run_request.BadRequest(str(error)) from None

    def hear(self) -> bool:
        """Read from the line; False if it has ended: the scheduler is gone or needs the number no more.

        Also where memory fails: a part of what was read may be lost, and the scheduler sends all again that was not
        taken, once it sees the end of the line.
        """
        assert self.line is not None
        try:
            chunk = self.line.recv(_CHUNK_BYTES, _socket.MSG_DONTWAIT)
            self.received += chunk
        except BlockingIOError:
            return True
        except MemoryError:
            return False
        except (
            OSError
        ) as error:  # gone without having read what we wrote; or no line at all, from a hostile account
            if spawning.passes(error):
                raise
            return False
        return bool(chunk) and len(self.received) <= _MAX_RECEIVED

    def accept(self, run: bytes) -> bool:
        """Take the offer of a run that was assigned ahead. True if it may start: it was not taken back.

        From now on, nobody can take the run back.
        """
        try:
            with self.above.as_account:
                os.unlink(self.above.home + b"/ahead/" + run)
        except OSError:
            return False
        return True

    def decline(self, run: bytes) -> None:
        """Tell the scheduler that a run is not taken; if it is gone, the next one takes back all."""
        self.unsaid += lines.line(lines.DECLINED, run, b"")
        self.say()

    def write(self, whole: bytes) -> None:
        """Write one or more complete lines into the record file, and queue them for the scheduler.

        Raises OSError.
        """
        self.file.write(whole)
        self.unsaid += whole

    def say(self) -> None:
        """Send the queued lines to the scheduler; if it is gone, the next one reads the file."""
        if self.unsaid and self.line is not None:
            try:
                self.line.sendall(self.unsaid)
            except OSError:
                # It is gone, or the kernel has no memory. A line of which a part is missing is of no use: both
                # sides see its end next, and the scheduler reads the file.
                self.unsaid = b""
                with _Suppressed():
                    self.line.shutdown(_socket.SHUT_RDWR)
        self.unsaid = b""


class Supervisor:
    """The process: its numbers, its runs, and its event loop."""

    def __init__(
        self, home: bytes, boot: bytes, channel: int, service: "UserProcesses | None" = None
    ) -> None:
        """``channel``: the descriptor on which the launcher sends numbers, each with its line.

        ``service``: what it belongs to where users share it; None where all is one user's.
        """
        self.home, self.service = home, service
        self.as_account: supervision.AsItself | AsAccount = supervision.AsItself()
        if service is not None:
            self.as_account = service.as_account
        pid = os.getpid()
        self.signature = b"%d %d %b" % (pid, processes.start_time(pid) or 0, boot)
        self.shared = run_request.Unpacked()
        self.numbers: dict[int, SupervisorNumber] = {}
        self.by_line: dict[int, SupervisorNumber] = {}
        self.running: dict[int, supervision.Supervision] = {}
        """Pid of a main process -> its run."""
        self._tags: dict[int, int] = {}
        """Pid -> tag, as first seen, of children that are no main process."""
        self._due: list[tuple[float, int]] = []
        """A heap of (monotonic time, number); outdated if the time is not ``due`` of the number."""
        self._cpus = os.sched_getaffinity(0)
        self._max_tag = resource.getrlimit(processes.TAG)[1]
        self._oom = _OomScore()
        self._has_missed = False
        """Whether an error came while an event was handled: all runs are looked at then."""
        self._groups: cgroups.Groups | None = None
        """Where runs have groups; None before the first run that is to have one."""
        self._signals = _signal_descriptor(signal.SIGCHLD, STOP_SIGNAL)
        try:
            self._children_file = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY)
        except FileNotFoundError:
            self._children_file = -1  # a kernel without it
        self._channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, channel)
        self._poll = select.epoll()
        for descriptor in (self._signals, channel):
            self._poll.register(descriptor, select.EPOLLIN)

    def serve(self) -> None:
        """Serve until there is no number left."""
        self._add_numbers()
        while self.numbers:
            try:
                self._turn()
            except (OSError, MemoryError) as error:  # the death of this process would lose all of its runs
                if not spawning.passes(error):
                    raise
                self._has_missed = True
        if self._groups is not None:
            self._channel.close()  # first: no more numbers come here while this takes its time
            self._groups.sweep()

    def _turn(self) -> None:
        """Wait for the next event, and handle what has happened. It may be called again after any error."""
        wait_s = min(max(0.0, self._due[0][0] - time.monotonic()), _LONGEST_WAIT_S) if self._due else -1
        if self._has_missed:
            wait_s = _AFTER_ERROR_S if wait_s < 0 else min(wait_s, _AFTER_ERROR_S)
        ready = self._poll.poll(wait_s)
        now = time.monotonic()  # what becomes due from here on waits for the next poll
        if self._has_missed:
            self._look_at_all()
            self._has_missed = False
        for descriptor, _ in ready:
            if descriptor == self._signals:
                self._read_signals()
            elif (number := self.by_line.get(descriptor)) is not None:
                self._hear(number)
            elif descriptor == self._channel.fileno():
                self._add_numbers()
        while self._due and self._due[0][0] <= now:
            due, name = heapq.heappop(self._due)
            if (waiting := self.numbers.get(name)) is not None and waiting.due == due:
                self.step(waiting)

    def _look_at_all(self) -> None:
        """After an error: a signal or a time that was due may have been missed."""
        self._reap()
        for number in list(self.numbers.values()):
            if number.run is not None:
                number.run.is_signalled = True
            if not number.waits or number.received:
                self.step(number)

    def step(self, number: SupervisorNumber) -> None:
        """Continue the steps of a number until they have to wait; drop the number if they are over."""
        try:
            wait_s = next(number.steps, None)
        except run_request.BadRequest as error:
            sys.stderr.write(f"number {number.number}: a request was refused, and starts nothing: {error}\n")
            sys.stderr.flush()
            wait_s = None
        except Exception:  # noqa: BLE001 - an error of one number: its run is lost, those of the others go on
            sys.excepthook(*sys.exc_info())
            wait_s = None
        if wait_s is None:
            self._drop(number)
        else:
            number.due = time.monotonic() + wait_s
            if wait_s != supervision.NEVER:
                heapq.heappush(self._due, (number.due, number.number))

    # ---- numbers ----

    def _add_numbers(self) -> None:
        message, given = frames.receive(self._channel, NUMBER_BYTES)
        if not message:
            self._poll.unregister(self._channel.fileno())  # the launcher has ended
        for line in given:
            self.add(int.from_bytes(message, "little"), line)

    def add(self, name: int, line: int) -> None:
        """Add a number with its line. The line of a number that exists already is replaced; no socket adds nothing."""
        try:
            opened = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, line)
        except OSError:
            os.close(line)
            return
        if (number := self.numbers.get(name)) is not None:
            self._hang_up(number)
            number.received.clear()
        else:
            number = self.numbers[name] = SupervisorNumber(self, name)
        number.line = opened
        self.by_line[line] = number
        try:
            self._poll.register(line, select.EPOLLIN)
        except OSError:  # no memory: the scheduler sees the end of the line
            self._hang_up(number)
        if number.run is None:
            self.step(number)

    def _hear(self, number: SupervisorNumber) -> None:
        if not number.hear():
            self._hang_up(number)
        if number.waits:
            self.step(number)

    def _hang_up(self, number: SupervisorNumber) -> None:
        if number.line is not None:
            del self.by_line[number.line.fileno()]
            with _Suppressed():  # it may not be registered
                self._poll.unregister(number.line)
            number.line.close()
            number.line = None

    def _drop(self, number: SupervisorNumber) -> None:
        self._hang_up(number)
        del self.numbers[number.number]
        if number.run is not None:
            self.running.pop(number.run.main, None)

    # ---- processes ----

    def checked(self, message: bytes) -> run_request.RunRequest:
        """The request in a message. Raises Refused."""
        request = run_request.checked(message)
        if (request.uid is None) != (self.service is None):
            raise run_request.BadRequest("a shared service starts processes of users, any other its own only")
        return request

    def spawn(self, run: "supervision.Supervision") -> int:
        """Start the main process of a run with its tag and on its CPUs; its pid. Raises SpawnError."""
        if self._max_tag == resource.RLIM_INFINITY:
            resource.setrlimit(processes.TAG, (run.number.number, self._max_tag))
        self._oom.write(_JOB_OOM)
        if run.confinement is not None:
            run.group = self._group_of(run, run.confinement)
        pid = 0
        try:
            if self.service is None or run.uid is None:
                pid = spawning.spawn(run.plan, self.home)
            else:
                run.begun = self.service.start(run.plan, run.uid, keeps_log=run.log_bytes > 0)
                pid = run.begun.pid
        finally:
            self._oom.write(self._oom.own)
            if run.plan[4] is not None:
                os.sched_setaffinity(0, self._cpus)
            if run.group is not None:
                run.group.leave()
                if not pid:
                    run.group.remove()
                    run.group = None
        self.running[pid] = run
        return pid

    def _group_of(
        self, run: "supervision.Supervision", confinement: "cgroups.Confinement"
    ) -> "cgroups.RunGroup | None":
        """Make the group of a run and enter it; None where there can be none, so that memory is measured instead."""
        if self._groups is None:
            self._groups = _find_groups(self.home)
            self._groups.prepare()
        if not self._groups.trees:
            return None
        group = None
        try:
            group = self._groups.make(run.name, confinement)
            group.enter()
        except OSError as error:
            if group is not None:
                group.leave()
                group.remove()
            sys.stderr.write(f"no group for {os.fsdecode(run.name)}: {error.strerror}\n")
            sys.stderr.flush()
            return None
        return group

    def _read_signals(self) -> None:
        received = os.read(self._signals, _SIGNAL_BYTES * _MAX_SIGNALS)
        starts = range(0, len(received), _SIGNAL_BYTES)
        if any(int.from_bytes(received[at : at + 4], sys.byteorder) == STOP_SIGNAL for at in starts):
            for number in list(self.numbers.values()):
                if number.run is not None:
                    number.run.is_signalled = True
                    self.step(number)
        self._reap()

    def _reap(self) -> None:
        """Collect the children that have ended, and continue the runs that they belong to."""
        changed: dict[SupervisorNumber, None] = {}
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, _LOOK)
            except ChildProcessError:
                break
            if seen is None:
                break
            run = self.running.get(seen.si_pid) or self._run_of(seen.si_pid)  # a zombie still has its tag
            if run is not None and run.main == seen.si_pid:
                run.status = _status_of(seen)  # first: where memory fails in wait4, it cannot be had again
            pid, status, usage = os.wait4(seen.si_pid, 0)
            self._tags.pop(pid, None)
            if run is not None:
                run.ended(pid, status, usage)
                changed[self.numbers[run.number.number]] = None
                if run.main == pid:
                    del self.running[pid]
            else:  # it belonged to no run: every run whose main process has ended may have waited for it
                for number in self.numbers.values():
                    if number.run is not None and number.run.status is not None:
                        changed[number] = None
        for number in changed:
            self.step(number)

    def _run_of(self, pid: int) -> "supervision.Supervision | None":
        if (tag := self._tags.get(pid)) is None:
            tag = self._tags[pid] = self._number_of(pid)
        number = self.numbers.get(tag)
        return None if number is None else number.run

    def _number_of(self, pid: int) -> int:
        """The number whose run a process belongs to: by its group, which it cannot change, else by its tag."""
        if self._groups is not None and (name := self._groups.run_of(pid)):
            for number in self.numbers.values():
                if number.run is not None and number.run.name == name:
                    return number.number
        return processes.tag(pid)

    def orphans(self, run: "supervision.Supervision") -> list[int]:
        """Pids of children whose parents ended and that belong to this run, or to no run."""
        return [
            pid
            for pid in self._children()
            if pid not in self.running and self._run_of(pid) in (run, None) and not self.spares(pid)
        ]

    def _children(self) -> list[int]:
        if self._children_file >= 0:
            text = os.pread(self._children_file, _CHUNK_BYTES, 0)
            if len(text) < _CHUNK_BYTES:
                return list(map(int, text.split()))
        return processes.children(os.getpid())

    def spares(self, pid: int) -> bool:
        """Whether a process is a scheduler or supervisor of this state directory that a run has started."""
        return self.service is None and serves_all(pid, self.home)


def _find_groups(home: bytes) -> "cgroups.Groups":
    """Where runs can have groups. The modules are loaded for the first run that is to have one."""
    if MYPY or __package__:
        from vctl.runtime import cgroup_trees
    else:
        import cgroup_trees
    return cgroup_trees.find(home)


class _OomScore:
    """The ``oom_score_adj`` of this process, which the processes that it starts inherit.

    When memory runs out, the kernel kills processes of jobs first: a supervisor is small, and its end loses all of
    its runs. Each process may raise its value, and lower it to what it was.
    """

    def __init__(self) -> None:
        self._fd, self.own = -1, _JOB_OOM
        try:
            self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self.own = int(os.pread(self._fd, 16, 0))
            if self.own >= _JOB_OOM:  # it was started by a job
                os.pwrite(self._fd, b"0", 0)
                self.own = 0
        except (OSError, ValueError):
            return  # a kernel without it, or one that does not allow less

    def write(self, score: int) -> None:
        """Set the value; does nothing if it is that of a job anyway."""
        if self.own < _JOB_OOM:
            with _Suppressed():
                os.pwrite(self._fd, b"%d" % score, 0)


def _status_of(seen: "os.waitid_result") -> int:
    """The status of a process that has ended, as wait4 gives it."""
    return seen.si_status << 8 if seen.si_code == os.CLD_EXITED else seen.si_status


def _signal_descriptor(*numbers: int) -> int:
    """A signalfd of these signals, which are blocked."""
    mask = sum(1 << number - 1 for number in numbers).to_bytes(8, sys.byteorder).ljust(_SET_BYTES, b"\0")
    descriptor: int = _ctypes.call_function(_SIGNALFD, (-1, mask, _SFD_FLAGS))
    if descriptor < 0:
        raise OSError("no descriptor for signals")
    return descriptor


def serves_all(pid: int, home: bytes) -> bool:
    """Whether a process is a supervisor or background scheduler of this state directory."""
    words = processes.command(pid)
    if processes.name(pid) == NAME and words[-1:] == [home]:
        return True
    return words[-3:-1] == BACKGROUND_WORDS and os.path.realpath(words[-1]) == os.path.realpath(home)
