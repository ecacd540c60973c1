"""Supervises one run, from its request to the record of its end; supervisor.py drives it.

A run is a generator. It yields the longest time to wait, in seconds, and is continued after that time, when
one of its processes has ended, or when a stop is requested. It knows nothing of the other runs of its
supervisor.

Stand-alone, like processes.py. Imports only built-in modules.
"""

import os
import time

MYPY = False
if MYPY or __package__:
    from vctl.runtime import lines, logfile, memory, processes, spawning
else:
    import lines
    import logfile
    import memory
    import processes
    import spawning

if MYPY:
    import resource
    import signal
    from collections.abc import Callable, Generator, Iterator
    from typing import Protocol

    from vctl.privileged.child import AsAccount
    from vctl.privileged.run_request import RunRequest, Unpacked
    from vctl.runtime import cgroups
    from vctl.runtime.user_processes import Becoming
else:
    import _signal as signal  # see processes.py

NEVER = float("inf")
RETRY_S = 1.0
_AT_ONCE_S = 0.001  # if a run ends within this time, its start is written together with its end
_USER_AT_ONCE_S = 0.004  # the same where the process first becomes a user's, in a fork of Python
# If a run ends within this further time, the scheduler gets one message of start and end. The second time is
# for a run that follows another one at once.
_SHORT_S, _SHORT_NEXT_S = 0.005, 0.03
_AGAIN_S = 0.05  # before a run is looked at again after an error
_MAX_STOP_BYTES = 200
_FOR_EVER_NS = 1 << 63
_MAX_WAITS = 3  # lines that say why a process is not started yet: their space is that of the end of the run
_LABEL = (os.fsencode(os.path.dirname(os.path.abspath(__file__))) + b"/relay.py", b"label")
_DRAIN_S = 1.0  # for the relay to write what the command wrote before it was killed
_REMOVALS = 5  # tries to remove the group of a run; the next look for what lost runs left finds it
_KILL_PAUSE_S = (0.001, 0.25)  # first and longest wait between rounds of SIGKILL
_LOOK_S, _FAR_LOOK_S = 0.1, 0.5  # between looks at the memory of a run; the second if it uses at most half
_BEGIN_PAUSE_S = 0.002  # first wait between looks whether a process of a user is its program yet


class AsItself:
    """In ``with``: files are opened with the rights of this process, as where all is one user's."""

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


if MYPY:

    class Above(Protocol):
        """The supervisor, as its runs use it (supervisor.py)."""

        home: bytes
        signature: bytes
        shared: Unpacked
        as_account: AsItself | AsAccount
        """Who opens the files of the state directory."""

        def spawn(self, run: "Supervision") -> int:
            """Start the main process of a run; its pid."""

        def orphans(self, run: "Supervision") -> list[int]:
            """Pids of children whose parents ended and that belong to this run, or to no run."""

        def spares(self, pid: int) -> bool:
            """Whether a process is not to be ended with the run."""

    class Number(Protocol):
        """The number that carries out a run (supervisor.py)."""

        number: int
        file: lines.Writer
        unsaid: bytes

        @property
        def above(self) -> Above:
            """The supervisor."""

        def say(self) -> None:
            """Send the scheduler what was not sent yet."""

        def write(self, whole: bytes) -> None:
            """Append a line to the record file, and send it."""


class Supervision:
    """One run. `main`: pid of the main process, 0 before its start; `status`: its wait status when ended."""

    __slots__ = (
        "begin_pause_s",
        "begun",
        "confinement",
        "deadline",
        "failed",
        "follows",
        "grace_s",
        "group",
        "is_signalled",
        "kill_pause_s",
        "last_signal",
        "log",
        "log_bytes",
        "main",
        "max_rss_kib",
        "memory_at",
        "memory_bytes",
        "name",
        "number",
        "plan",
        "status",
        "stop_path",
        "stopped",
        "system_s",
        "uid",
        "unwritten",
        "user_s",
        "waits",
        "why",
    )  # fmt: skip

    def __init__(self, number: "Number", request: "RunRequest") -> None:
        self.number = number
        self.name, self.follows, self.uid = request.run, request.follows, request.uid
        self.log_bytes, self.memory_bytes = request.log_bytes, request.memory_bytes
        env = number.above.shared.with_own(request.shared, request.env)
        self.plan: spawning.Plan = request.argv, env, request.cwd, request.log, request.cpus
        self.stop_path = number.above.home + b"/stops/" + self.name
        self.grace_s = request.grace_ms / 1000
        self.confinement = request.confinement
        self.group: cgroups.RunGroup | None = None
        self.begun: Becoming | None = None  # of a process that becomes a user's
        self.failed: spawning.NotStarted | None = None  # what it said of why there is no program
        self.begin_pause_s = _BEGIN_PAUSE_S
        self.main = 0
        self.status: int | None = None
        self.is_signalled = False  # that there may be a request to stop
        self.deadline: float | None = None  # when asking ends and killing starts
        self.last_signal: int | None = None  # the signal that last asked the tree to end
        self.stopped = False
        self.why: str | None = None  # why the supervisor killed the run without a request
        self.memory_at = 0.0  # when its memory is looked at again
        self.waits: list[str] = []  # why the process was not started yet
        self.log: logfile.Bounded | None = None
        self.unwritten = b""  # the line of the start while it is not in the record file
        self.kill_pause_s = _KILL_PAUSE_S[0]
        self.max_rss_kib, self.user_s, self.system_s = 0, 0.0, 0.0  # of all collected processes

    def carry_out(self) -> "Generator[float, None, bool]":
        """Carry the run out until its end is recorded; False if it was taken before."""
        if not (yield from self._retried(self._take)):
            return False
        self.read_stop()
        while not self.main and not self.stopped:
            try:
                self.start()
                yield from self.wait()
                self._check_begun()
            except spawning.NotStarted as failed:
                self._take_back_start()
                if not failed.passes:
                    yield from self._end(failed.exit_code, launch_errno=failed.errno, why=str(failed))
                    return True
                self.record_wait(str(failed))
                yield RETRY_S
                self.read_stop()
        if not self.main:
            yield from self._end(128 + signal.SIGTERM, signal.SIGTERM)
            return True
        if self.log is not None:
            self.log.close()
        signo = (self.status or 0) & 0x7F  # 0: it ended by itself
        code = 128 + signo if signo else (self.status or 0) >> 8
        if self.group is not None:
            if (ran_out := self.measure_group(self.group)) and not self.stopped:
                code, signo = 128 + signal.SIGKILL, signal.SIGKILL
                self.why = ran_out
            for _ in range(_REMOVALS):
                if self.group.remove():
                    break
                yield _AGAIN_S
        yield from self._end(code, signo, why=self.why if signo == signal.SIGKILL else None)
        return True

    def measure_group(self, group: "cgroups.RunGroup") -> str:
        """Take over what the group of the run has used; if the kernel killed it for its memory, what to say."""
        usage = group.usage()
        if usage.peak is not None:
            self.max_rss_kib = usage.peak >> 10
        if usage.cpu_s is not None:  # also of processes that nobody waited for
            self.user_s = max(self.user_s, usage.cpu_s - self.system_s)
        return self.ran_out(group, usage)

    def ran_out(self, group: "cgroups.RunGroup", usage: "cgroups.GroupUsage") -> str:
        """If the kernel killed a process of the run for want of memory, who had too little; else nothing."""
        if not usage.killed:
            return ""
        peak = usage.peak or 0
        if self.memory_bytes and (group.was_full or peak >= self.memory_bytes):
            return memory.exceeded(self.memory_bytes, peak)
        if self.status is None or self.status & 0x7F != signal.SIGKILL:
            return ""  # its main process has coped with the end of another one
        asked = f"asked {memory.shown(self.memory_bytes)}" if self.memory_bytes else "asked for no memory"
        full = group.full_cluster()
        where = (
            f"cluster {full} used all of its memory on this node"
            if full
            else "the machine had no memory left"
        )
        return f"{where}, and the kernel killed it: {asked}, peak {memory.shown(peak)}"

    def _take(self) -> bool:
        """Record the run as taken, so that nobody else starts it; False if it was taken before.

        Raises OSError if the disk is full.
        """
        whole = lines.line(lines.TAKEN, self.name, self.number.above.signature)
        if not self.number.file.take(self.name, whole):
            return False
        self.number.unsaid += whole
        return True

    def start(self) -> None:
        """Start the main process in a session of its own, or raise SpawnError."""
        started_at, before = time.time_ns(), processes.ticks_now()
        self.main = self.number.above.spawn(self)
        if self.group is not None and not self.group.limit_memory(self.memory_bytes):
            self.exceed(memory.exceeded(self.memory_bytes, self.memory_bytes), time.monotonic())
        started = processes.ticks_now()
        if started != before:
            started = processes.start_time(self.main) or 0
        if self.log_bytes:
            opened = -1 if self.begun is None else self.begun.log
            self.log = logfile.Bounded(spawning.log_path(self.plan), self.log_bytes, opened)
        self.unwritten = lines.line(lines.STARTED, self.name, b"%d %d %d" % (self.main, started, started_at))

    def _becomes(self) -> bool:
        """Whether the process of a user is not his program yet, or will never be."""
        if self.begun is None:
            return False
        try:
            return self.failed is not None or not self.begun.is_over()
        except spawning.NotStarted as failed:
            self.failed = failed
            return True

    def _check_begun(self) -> None:
        """Raise NotStarted if the process that has ended never was its program."""
        if self._becomes() and self.failed is not None:
            raise self.failed

    def _take_back_start(self) -> None:
        """After a start that failed: nothing runs, and the next start is like the first."""
        if self.log is not None:
            self.log.close()
        if self.group is not None:
            self.group.remove()
            self.group = None
        self.main, self.status, self.unwritten, self.log = 0, None, b"", None
        self.begun = self.failed = self.deadline = self.last_signal = None
        self.begin_pause_s = _BEGIN_PAUSE_S

    def record_wait(self, why: str) -> None:
        """Write why the process is not started yet, for ``vctl why``; a reason is written once."""
        if why in self.waits or len(self.waits) == _MAX_WAITS:
            return
        self.waits.append(why)
        try:
            self.number.write(lines.line(lines.WAITS, self.name, lines.message(why)))
        except (OSError, MemoryError) as error:
            if not spawning.passes(error):
                raise
        self.number.say()

    def wait(self) -> "Iterator[float]":
        """Wait until the main process and its descendants have ended; carry out stops and limits.

        Also writes the start of the run, unless it ends at once.
        """
        yield from self._first_wait()
        while True:
            try:
                timeout_s = self._look()
            except (OSError, MemoryError) as error:  # the processes go on: nothing of the run is lost yet
                if not spawning.passes(error):
                    raise
                timeout_s = _AGAIN_S
            if timeout_s is None:
                return
            yield timeout_s

    def _look(self) -> float | None:
        """Do what is to be done now; how long to wait at most, None if all processes have ended.

        It may be called again after any error.
        """
        above = self.number.above
        if self.status is not None and not above.orphans(self) and not self._grouped():
            return None
        now = time.monotonic()
        if self.unwritten:
            self.record_start()
            self.number.say()
        if self.is_signalled:
            self.read_stop()
            if self.is_signalled:
                return _AGAIN_S
        if self.status is not None and self.deadline is None:
            self.ask(signal.SIGTERM, now + self.grace_s)
        if self.memory_bytes and self.status is None and self.deadline is None and now >= self.memory_at:
            self.check_memory(now)
        if self.deadline is not None and now >= self.deadline:
            timeout_s = self.kill()
        else:
            timeout_s = NEVER if self.deadline is None else self.deadline - now
        if self.unwritten:
            timeout_s = min(timeout_s, self.begin_pause_s if self.begun is not None else RETRY_S)
            self.begin_pause_s = min(2 * self.begin_pause_s, RETRY_S)
        if self.log is not None:
            timeout_s = min(timeout_s, self.log.trim())
        if self.memory_bytes and self.status is None and self.deadline is None:
            timeout_s = min(timeout_s, self.memory_at - now)
        return timeout_s

    def _first_wait(self) -> "Iterator[float]":
        """Delay the record of the start and its message: a run that ends soon has one for start and end."""
        yield _AT_ONCE_S if self.begun is None else _USER_AT_ONCE_S
        if self.status is None and not self.is_signalled:
            self.record_start()
            if self.log is None:  # a bounded log needs ``wait`` from now on
                yield _SHORT_NEXT_S if self.follows else _SHORT_S
        if self.status is None:
            self.number.say()

    def ended(self, pid: int, status: int, usage: "resource.struct_rusage") -> None:
        """Note that a process of the run was collected."""
        self.max_rss_kib = max(self.max_rss_kib, usage.ru_maxrss)
        self.user_s += usage.ru_utime
        self.system_s += usage.ru_stime
        if pid == self.main:
            self.status = status
        self.kill_pause_s = _KILL_PAUSE_S[0]

    def below(self) -> list[int]:
        """Pids of all processes of the run, except a scheduler that a command in it started, and its runs."""
        above = self.number.above
        roots = above.orphans(self)
        if self.main and self.status is None:
            roots.append(self.main)
        found = processes.trees(roots, above.spares)
        if self.group is not None:
            found += [pid for pid in self._grouped() if pid not in found]
        return found

    def _grouped(self) -> list[int]:
        """Pids of the processes in the group of the run, whatever they have made of themselves."""
        if self.group is None:
            return []
        return [pid for pid in self.group.processes() if not self.number.above.spares(pid)]

    def read_stop(self) -> None:
        """Carry out the stop file, if there is one: signal the tree, and set or shorten its deadline.

        ``is_signalled`` stays if it could not be read: whoever has asked takes a request that is gone for answered.
        """
        self.is_signalled = False
        if not os.access(self.stop_path, os.F_OK):
            return
        with self.number.above.as_account:
            until_ns, signo = self._taken_stop()
        if not 0 < signo <= signal.SIGRTMAX or not 0 <= until_ns < _FOR_EVER_NS:
            return
        self.stopped = self.stopped or self.status is None
        if self.main:
            self.ask(signo, until_ns / 1e9)

    def _taken_stop(self) -> tuple[int, int]:
        """What the stop file says, which is removed; zeros if it is gone, or says something else."""
        staged, until_ns, signo = self.number.above.home + b"/stops/.taken-%d" % os.getpid(), 0, 0
        try:
            os.rename(self.stop_path, staged)
        except OSError:
            return 0, 0  # it is gone; or it stays, and the scheduler signals again
        try:
            with open(staged, "rb", opener=_no_link) as file:
                until_ns, signo = map(int, file.read(_MAX_STOP_BYTES).split())
        except ValueError:
            pass  # the scheduler did not write it
        except (OSError, MemoryError) as error:
            self.is_signalled = spawning.passes(error)
            _try(os.link, staged, self.stop_path)  # unless there is a newer one
        _try(os.unlink, staged)  # else the next one takes its place
        return until_ns, signo

    def ask(self, signo: int, until: float) -> None:
        """Send the tree a signal, unless it was the last one, and kill it at ``until`` or before."""
        self.deadline = until if self.deadline is None else min(self.deadline, until)
        if signo == self.last_signal:
            return
        signalled: set[int] = set()
        for _ in range(2):  # a second look finds what was forked during the first
            for pid in self.below():  # parents first: a shell ends before it sees its command end
                if pid not in signalled:
                    signalled.add(pid)
                    processes.send(pid, signo)
                    processes.send(pid, signal.SIGCONT)  # a stopped process does not act on the signal
        self.last_signal = signo  # only now: after an error it is sent again

    def check_memory(self, now: float) -> None:
        """Have the tree killed at once if it uses more memory than ``memory_bytes``."""
        if self.group is not None and self.group.bounds_memory:
            if self.group.killed() and (why := self.ran_out(self.group, self.group.usage())):
                self.exceed(why, now)
            self.memory_at = now + _LOOK_S
            return
        used = memory.used_bytes(self.below(), self.memory_bytes)
        self.max_rss_kib = max(self.max_rss_kib, used >> 10)
        if used > self.memory_bytes:
            self.exceed(memory.exceeded(self.memory_bytes, used), now)
        self.memory_at = now + (_LOOK_S if 2 * used > self.memory_bytes else _FAR_LOOK_S)

    def exceed(self, why: str, now: float) -> None:
        """Have the tree killed at once, for this reason."""
        self.why, self.deadline = why, now

    def kill(self) -> float:
        """SIGKILL all processes of the run; return how many seconds to wait before the next look.

        A relay that labels lines is spared for ``_DRAIN_S``, to write the lines that the command wrote
        before.
        """
        drains = 0
        if self.plan[0][3:5] == _LABEL and time.monotonic() < (self.deadline or 0) + _DRAIN_S:
            drains = self.main
        if self.group is not None and not drains:
            self.group.kill()
        processes.kill_all(lambda: [pid for pid in self.below() if pid != drains])
        if drains:
            processes.send(drains, signal.SIGCONT)  # it was stopped with its process group
        pause_s = self.kill_pause_s
        # Processes may outlive SIGKILL: they wait in the kernel, or belong to another user.
        self.kill_pause_s = min(2 * pause_s, _KILL_PAUSE_S[1])
        return pause_s

    def record_start(self) -> None:
        """Write the start into the record file; if the disk is full, the job goes on and ``wait`` retries."""
        if self._becomes():
            return
        try:
            self.number.write(self.unwritten)
        except (OSError, MemoryError) as error:
            if not spawning.passes(error):
                raise
            return
        self.unwritten = b""

    def _end(
        self, code: int, signo: int = 0, *, launch_errno: int = 0, why: str | None = None
    ) -> "Iterator[float]":
        """Write how the run ended, waiting while the disk is full, and tell the scheduler."""
        rest = b"%d %d %d %d %d %d %d %d %b" % (
            code, signo, launch_errno, self.stopped, time.time_ns(), self.max_rss_kib,
            int(self.user_s * 1_000_000), int(self.system_s * 1_000_000), lines.message(why) if why else b"",
        )  # fmt: skip
        whole = self.unwritten + lines.line(lines.ENDED, self.name, rest)
        yield from self._retried(lambda: self.number.write(whole))
        self.number.say()

    @staticmethod
    def _retried(do: "Callable[[], bool | None]") -> "Generator[float, None, bool | None]":
        """Call ``do`` every ``RETRY_S`` seconds until it does not fail for want of a resource; its result."""
        while True:
            try:
                return do()
            except (OSError, MemoryError) as error:
                if not spawning.passes(error):
                    raise
            yield RETRY_S


def _try(call: "Callable[..., None]", *paths: bytes) -> None:
    try:
        call(*paths)
    except OSError:
        return


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
