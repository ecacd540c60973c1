"""Runs processes on this machine: `LocalRuntime`, the Launcher of section 16's local runtime.

Processes are started by a fork server (launcher.py), each under a supervisor of its own (supervisor.py) that
outlives this process. What is known of runs is read from their files (records.py), so any number of
schedulers, one after the other or at once, see the same. Decides nothing: time limits and retries are the
scheduler's.
"""

import marshal
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from vctl.runtime import processes
from vctl.runtime.forkserver import ForkServer
from vctl.runtime.protocol import LaunchRequest, RunState, RuntimeUnavailable, Seen, StartRecord
from vctl.runtime.records import Damaged, RunFiles, check_run_id
from vctl.runtime.supervisor import STOP_SIGNAL, Request, serves_all

RUN_MARK, HOME_MARK = "VCTL_RUN_ID", "VCTL_HOME"
"""In the environment of every process of a run: how what a killed supervisor left behind is found."""

_SWEEP_AT = 256
_CLEAR_TIMEOUT_S = 2.0
_CLEAR_PAUSE_S = 0.01
_ANSWER_S = 2.0  # who has not answered by then is suspended, or as good as dead
_PATIENCE_S = 10.0  # with a supervisor that is not suspended: the machine is overloaded
_LONGEST_ANSWER_S = 60.0
_LOOK_S = 0.25
_RESUME_S = 5.0
_MARKS_S = 0.2


_Record = TypeVar("_Record")


class LocalRuntime:
    """Launches, observes and stops runs below one state directory. Safe to use from several threads."""

    def __init__(self, home: Path) -> None:
        """Create what is missing of the directories; no process is started before `prepare` or `launch`."""
        self._files = RunFiles(home.absolute())
        self._files.create()
        self._server: ForkServer | None = None
        self._untaken: dict[str, bytes] = {}  # sent, and not yet seen to be taken up by a supervisor
        self._progress = 0.0  # when the last of them was taken up
        self._answer_s = _ANSWER_S
        self._stopping: dict[str, float] = {}  # since when a stop is asked for that no supervisor has taken
        self._supervisors: dict[
            str, tuple[int, int]
        ] = {}  # of running processes: pid and start time as first seen
        self._next_resume = 0.0
        self._marks: tuple[float, dict[bytes, list[processes.Process]]] = (-1.0, {})
        self._lock = threading.Lock()

    @property
    def exits(self) -> Path:
        """The directory to watch (IN_MOVED_TO): `<run id>.start` and `<run id>.exit` appear in it."""
        return self._files.exits

    @property
    def logs(self) -> Path:
        """Where the logs of runs are kept."""
        return self._files.logs

    def prepare(self) -> None:
        """Start the launcher without waiting for it, so that the first launch finds it ready."""
        with self._lock:
            self._live_server()

    def restore(self) -> None:
        """Make directories again that somebody removed."""
        self._files.restore()

    def launch(self, request: LaunchRequest) -> None:
        """Start a run and return at once; how it went shows in its records."""
        check_run_id(request.run_id)
        packed = marshal.dumps(_packed(request, self._files.home))
        with self._lock:
            server = self._live_server()
            if not self._untaken:
                self._progress = time.monotonic()
            self._untaken[request.run_id] = packed
            if len(self._untaken) > _SWEEP_AT:
                self._drop_taken()
            if not server.send(packed):
                self._replace_server()

    def tend(self) -> set[str]:
        """Look after those who do not answer: launcher and supervisors. Runs that are to be looked at again."""
        with self._lock:
            if self._untaken:
                self._live_server()
                before = len(self._untaken)
                self._drop_taken()
                now = time.monotonic()
                if len(self._untaken) < before:
                    self._progress, self._answer_s = now, _ANSWER_S
                elif now - self._progress > self._answer_s:  # the launcher is suspended or the disk is full
                    self._progress, self._answer_s = now, min(2 * self._answer_s, _LONGEST_ANSWER_S)
                    self._replace_server()
        self._resume_suspended()
        return {run_id for run_id in list(self._stopping) if self._insist(run_id)}

    def due_s(self) -> float:
        """When to tend next."""
        return _LOOK_S if self._untaken or self._stopping else _RESUME_S

    def observe(self, run_id: str) -> Seen:
        """Look at a run; one that was launched and not taken up by a launcher that died is launched again.

        An end counts when its supervisor has nothing of the run left below it, or when the supervisor is gone and
        no process of the run is found: anybody could have written the record.
        """
        seen = self._look(run_id)
        if seen.state is RunState.NEVER_STARTED:
            with self._lock:
                if self._untaken:
                    self._live_server()
            return seen
        if self._untaken.pop(run_id, None) is not None:
            self._progress, self._answer_s = time.monotonic(), _ANSWER_S
        if seen.state is RunState.RUNNING and seen.start is not None:
            self._supervisors.setdefault(run_id, (seen.start.supervisor, seen.start.supervisor_started))
        elif seen.state is RunState.STARTING and (supervisor := self._supervisor(run_id, None, held=True)):
            self._supervisors.setdefault(run_id, supervisor)
        return seen

    def _look(self, run_id: str) -> Seen:
        problems: list[str] = []
        ended = self._read(self._files.exit_record, run_id, problems)
        if ended is None and not problems and not self._files.started(run_id):
            if run_id not in self._supervisors:
                return Seen(RunState.NEVER_STARTED)
            problems.append("its records are gone")
        held = self._files.lock_is_held(run_id)
        start = self._read(self._files.start_record, run_id, problems)
        if not held and ended is None and not problems:
            # It may have been written between the first look and the lock.
            ended = self._read(self._files.exit_record, run_id, problems)
        supervisor = self._supervisor(run_id, start, held=held)
        alive = supervisor is not None and processes.start_time(supervisor[0]) == supervisor[1]
        if supervisor is not None and alive and (held or self._stands_over(supervisor[0], run_id)):
            if ended is None or self._below(supervisor[0]):
                return Seen(RunState.STARTING if start is None else RunState.RUNNING, start)
            return Seen(RunState.EXITED, start, ended)
        if held:  # by somebody who cannot be named
            return Seen(RunState.STARTING if start is None else RunState.RUNNING, start)
        if ended is not None and (alive or not self._left(run_id, start)):
            return Seen(RunState.EXITED, start, ended)
        return Seen(RunState.LOST, start, problem="; ".join(problems))

    def _read(
        self, read: Callable[[str], _Record | None], run_id: str, problems: list[str]
    ) -> _Record | None:
        try:
            return read(run_id)
        except Damaged as damaged:
            problems.append(str(damaged))
            self._files.set_aside(damaged)
            return None

    def _supervisor(self, run_id: str, start: StartRecord | None, *, held: bool) -> tuple[int, int] | None:
        """Pid and start time of the run's supervisor: as it was first seen, as the kernel says, as files say."""
        if (known := self._supervisors.get(run_id)) is not None:
            return known
        if held and (pid := processes.holder_of_lock(self._files.lock_path(run_id))):
            return pid, processes.start_time(pid) or 0
        if start is not None:
            return start.supervisor, start.supervisor_started
        return self._files.supervisor(run_id)

    def _stands_over(self, pid: int, run_id: str) -> bool:
        """Whether a supervisor has the lock of this run open, whatever became of the file."""
        return processes.has_open_below(pid, os.path.dirname(self._files.lock_path(run_id)))

    def _below(self, supervisor: int) -> list[int]:
        """What came from a run, without a scheduler that was started inside of it, and what that launched."""
        home = os.fsencode(self._files.home)
        return processes.descendants(supervisor, lambda pid: serves_all(pid, home))

    def _left(self, run_id: str, start: StartRecord | None) -> bool:
        """Whether a process of a run whose supervisor is gone is still there; one look at all serves many runs."""
        at, marks = self._marks
        if time.monotonic() - at > _MARKS_S:
            marks = self._marked()
            self._marks = time.monotonic(), marks
        if os.fsencode(run_id) in marks:
            return True
        return start is not None and processes.alive(start.pid, start.pid_started, start.boot_id)

    def _marked(self) -> dict[bytes, list[processes.Process]]:
        return processes.marked(RUN_MARK.encode(), os.fsencode(f"{HOME_MARK}={self._files.home}"))

    def known_runs(self) -> list[str]:
        """Every run that was taken up here and is not forgotten, over or not."""
        return self._files.run_ids()

    def stop(self, run_id: str, *, grace_s: float, signo: int = 15) -> None:
        """End a run and all that came from it; asked again, only a shorter grace counts."""
        check_run_id(run_id)
        if self._look(run_id).state is RunState.EXITED:
            return
        # First the file, then the look for a supervisor: one that appears in between reads the file.
        self._files.request_stop(run_id, grace_s, signo)
        self._stopping.setdefault(run_id, time.monotonic())
        if supervisor := self._supervisors.get(run_id) or self._files.supervisor(run_id):
            processes.send_signal(*supervisor, STOP_SIGNAL)
            processes.send_signal(*supervisor, signal.SIGCONT)  # its job may have suspended it

    def _insist(self, run_id: str) -> bool:
        """Carry a stop out for a supervisor that does not answer. Whether the run is to be looked at again."""
        asked_s = time.monotonic() - self._stopping[run_id]
        if asked_s < _ANSWER_S:
            return False
        pending, seen = self._files.pending_stop(run_id), self._look(run_id)
        if pending is None or seen.state not in (RunState.RUNNING, RunState.STARTING):
            if seen.state is not RunState.NEVER_STARTED:  # else whoever takes the run up reads the request
                del self._stopping[run_id]
            return seen.state in (RunState.EXITED, RunState.LOST)
        supervisor = self._supervisor(run_id, seen.start, held=True)
        if supervisor is None:
            return False
        state = getattr(processes.process(supervisor[0]), "state", "X")
        if state in "Tt" or asked_s > _PATIENCE_S:
            until_ns, signo = pending
            if time.monotonic_ns() < until_ns:
                for pid in self._below(supervisor[0]):
                    processes.send(pid, signo)
                    processes.send(pid, signal.SIGCONT)
            else:
                processes.kill_all(lambda: self._below(supervisor[0]))
                if asked_s > 2 * _ANSWER_S:
                    processes.send_signal(*supervisor, signal.SIGKILL)
                    return True
        processes.send_signal(*supervisor, STOP_SIGNAL)
        processes.send_signal(*supervisor, signal.SIGCONT)
        return False

    def _resume_suspended(self) -> None:
        """Nobody suspends a supervisor for long: it would not notice the end of its run."""
        if (now := time.monotonic()) < self._next_resume:
            return
        self._next_resume = now + _RESUME_S
        for pid, started in self._supervisors.values():
            seen = processes.process(pid)
            if seen is not None and seen.started == started and seen.state == "T":
                processes.send_signal(pid, started, signal.SIGCONT)

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        """Send a signal to the main process, or to all of the run's processes; False when nobody got it."""
        seen = self._look(run_id)
        if seen.state is not RunState.RUNNING or seen.start is None:
            return False
        if not tree:
            return processes.send_signal(seen.start.pid, seen.start.pid_started, signo)
        below = list(map(processes.process, self._below(seen.start.supervisor)))
        if self._look(run_id).state is not RunState.RUNNING:
            return False  # its supervisor may stand over another run by now
        told = [processes.send_signal(one.pid, one.started, signo) for one in below if one is not None]
        return any(told)

    def clear_lost(self, run_id: str) -> tuple[int, ...]:
        """Kill what a run left behind that is LOST, or whose files are; return the pids still there after two seconds.

        Found are its main process, the session of that, what descends from them, and every process that
        carries the run's mark. A process that shed all four cannot be told from others; only a supervisor can
        hold it.
        """
        seen = self._look(run_id)
        if seen.state not in (RunState.LOST, RunState.NEVER_STARTED):
            return ()
        give_up = time.monotonic() + _CLEAR_TIMEOUT_S
        while (left := self._leftovers(run_id, seen.start)) and time.monotonic() < give_up:
            for pid, started in left.items():
                processes.send_signal(pid, started, 9)
            time.sleep(_CLEAR_PAUSE_S)
        return tuple(left)

    def forget(self, run_id: str) -> None:
        """Remove the files of a run that is over or was never started; its log stays."""
        state = self._look(run_id).state
        assert state not in (RunState.STARTING, RunState.RUNNING), f"run {run_id} is {state}"
        self._untaken.pop(run_id, None)
        self._supervisors.pop(run_id, None)
        self._stopping.pop(run_id, None)
        self._files.remove(run_id)

    def close(self) -> None:
        """End the launcher once it has read what was sent; runs go on."""
        with self._lock:
            if self._server is not None:
                self._server.close()
            self._server = None
            self._untaken.clear()

    def _live_server(self) -> ForkServer:
        if self._server is None or self._server.is_dead():
            return self._replace_server()
        return self._server

    def _replace_server(self) -> ForkServer:
        """Start a new launcher and send it what is untaken; what the old one did take up cannot run twice."""
        failed, self._server = self._server, None
        if failed is not None:
            failed.abandon()
        self._drop_taken()
        server = ForkServer(self._files.home)
        self._server = server
        if not all(map(server.send, list(self._untaken.values()))):
            raise RuntimeUnavailable("the launcher dies as soon as it is started", fix="see launcher.log")
        return server

    def _drop_taken(self) -> None:
        for run_id in [one for one in list(self._untaken) if self._files.started(one)]:
            self._untaken.pop(run_id, None)

    def _leftovers(self, run_id: str, start: StartRecord | None) -> dict[int, int]:
        """Pid -> start time of what a run without supervisor still has on this machine, in this boot."""
        found = {one.pid: one.started for one in self._marked().get(os.fsencode(run_id), ())}
        if start is not None and start.boot_id == processes.boot_id():
            for one in processes.all_processes():
                # A session keeps its pid from being reused: it is ours unless another process has that pid.
                if one.session == start.pid and processes.start_time(start.pid) in (None, start.pid_started):
                    found[one.pid] = one.started
        for pid in [below for root in found for below in processes.descendants(root)]:
            started = processes.start_time(pid)
            if started is not None:
                found[pid] = started
        return found


def _packed(request: LaunchRequest, home: Path) -> Request:
    """The request as bytes: the launcher's locale, and so its encoding, may not be ours."""
    encode = os.fsencode
    env = {encode(name): encode(value) for name, value in request.env.items()}
    argv = tuple(encode(word) for word in request.argv)
    env[encode(RUN_MARK)], env[encode(HOME_MARK)] = encode(request.run_id), encode(home)
    return (
        encode(home),
        encode(request.run_id),
        round(request.grace_s * 1000),
        request.log_max_bytes,
        (argv, env, encode(request.cwd), encode(request.log_path), request.cpu_ids, request.niceness),
    )
