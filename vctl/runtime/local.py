"""Runs processes on this machine: `LocalRuntime`, the local runtime of section 16 of the specification.

Supervisors (supervisor.py) start the processes. A fork server (launcher.py) forks the supervisors, and they
outlive this process. Runs are known only from what supervisors send and have written (records.py), so any
number of schedulers, one after the other or at once, see the same. The runtime decides nothing: the scheduler
decides about time limits and retries.
"""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vctl.core.compact import dumps
from vctl.runtime import cgroup_trees, cgroups, processes
from vctl.runtime.environment import portable
from vctl.runtime.findings import Findings, RunRecords
from vctl.runtime.keeper import KeeperLine
from vctl.runtime.processes import HOME_MARK, RUN_MARK
from vctl.runtime.protocol import (
    LaunchRequest,
    RunState,
    Runtime,
    Seen,
    StartRecord,
    check_run_id,
)
from vctl.runtime.supervisor import STOP_SIGNAL, serves_all
from vctl.runtime.supervisors import GONE
from vctl.runtime.worker_slot import ANSWER_S

_CLEAR_TIMEOUT_S = 2.0
_CLEAR_PAUSE_S = 0.01
_PATIENCE_S = 10.0  # time that a running supervisor gets for a stop: the machine may be overloaded
_LOOK_S = 0.25
_RESUME_S = 5.0
_MARKS_S = 0.2


class _Stop(NamedTuple):
    """A requested stop; times are on the monotonic clock."""

    requested_s: float
    until_ns: int
    """The time at which the run is killed."""
    signo: int


class LocalRuntime(Runtime):
    """Launches, observes and stops runs below one state directory. Safe to use from several threads."""

    def __init__(
        self,
        home: Path,
        *,
        mark: tuple[str, str] | None = None,
        apart: bool = False,
        keeper: KeeperLine | None = None,
    ) -> None:
        """Make missing directories. The first process starts with `prepare` or `launch`.

        ``mark``: the variable by which processes find this directory, or its service; None means VCTL_HOME.
        ``apart``: each process that runs has a supervisor of its own. ``keeper``: starts the launchers of a service.
        """
        self.boot = processes.boot_id()
        self._findings = Findings(home.absolute(), self.boot)
        self._findings.supervisors.apart = apart
        self._is_shared = keeper is not None
        self._findings.supervisors.keeper = keeper
        name, text = mark or (HOME_MARK, os.fspath(self._findings.records.home))
        self._mark = name.encode(), os.fsencode(text)
        self._records = self._findings.records
        self._supervisors, self._of = self._findings.supervisors, self._findings.of
        self._stopping: dict[str, _Stop] = {}  # of runs that are not over
        self._running: dict[str, tuple[int, int]] = {}  # supervisors of running runs as first seen
        self._next_resume = 0.0
        self._marks: tuple[float, dict[bytes, dict[int, int]]] = (-1.0, {})
        self._bases: tuple[float, list[cgroups.Groups]] = (-1.0, [])
        self._lock = self._findings.lock

    @property
    def logs(self) -> Path:
        """The directory of the logs of runs."""
        return self._records.logs

    def prepare(self) -> None:
        """Start the launcher without waiting for it, so that the first launch finds it ready."""
        with self._lock:
            self._supervisors.live_server()
            self._findings.watch()

    def restore(self) -> None:
        """Make removed directories again."""
        with self._lock:
            if self._records.restore():
                self._supervisors.retire_idle()

    # ---- starting ----

    def assign(self) -> int:
        """The number of the supervisor for one more run."""
        with self._lock:
            return self._supervisors.assign()

    def launch(self, request: LaunchRequest) -> None:
        """Start a run and return at once; its records show the result."""
        check_run_id(request.run_id)
        packed = _packed(request, self._mark)
        with self._lock:
            if (file := self._records.files.get(request.supervisor)) is not None:
                file.declined.discard(request.run_id)
            given = self._supervisors.give(request.supervisor, request.run_id, packed)
            if given and (file := self._records.files.get(request.supervisor)) is not None:
                self._of[request.run_id] = file

    def launch_next(self, request: LaunchRequest, follows: str) -> bool:
        """Have a run start as soon as another one is over; False when that is not possible."""
        check_run_id(request.run_id)
        packed = _packed(request, self._mark, follows)
        with self._lock:
            given = self._supervisors.give_next(request.supervisor, request.run_id, packed)
            if given:
                self._of[request.run_id] = self._records.files[request.supervisor]
        return given

    def was_declined(self, run_id: str) -> bool:
        """Whether a run that was to follow another one was not taken, and never will be."""
        with self._lock:
            file = self._of.get(run_id)
            return file is not None and run_id in file.declined and run_id not in file.runs

    def let_next_go(self, run_id: str) -> None:
        """Drop a run that was to follow another one and was taken back."""
        with self._lock:
            file = self._of.pop(run_id, None)
            if file is not None:
                file.declined.discard(run_id)
                if (slot := self._supervisors.slots.get(file.number)) is not None:
                    if slot.run != run_id:
                        self._supervisors.drop(slot, run_id)
                    self._supervisors.free(slot)

    # ---- hearing ----

    def fileno(self) -> int:
        """A descriptor that is readable when a supervisor has sent a message, or a watched file changed."""
        return self._findings.poll.fileno()

    def changes(self) -> set[str]:
        """Runs that have started or ended since the last call; also maintains supervisors that do not answer."""
        with self._lock:
            self._findings.hear()
            self._supervisors.maintain()
            news, self._supervisors.news = self._supervisors.news, set()
        self._resume_suspended()
        return news | {run_id for run_id in list(self._stopping) if self._insist(run_id)}

    def due_s(self) -> float:
        """Seconds until ``changes`` has to be called at the latest."""
        with self._lock:
            return self._supervisors.due_s(_LOOK_S if self._stopping else _RESUME_S)

    # ---- looking ----

    def observe(self, run_id: str) -> Seen:
        """The state of a run.

        A record of an end alone is no proof, because jobs can write the file. A run is over if its
        supervisor said so on its line, if no process of the run is left below it, or if it is gone and no
        process of the run is found.
        """
        with self._lock:
            records = self._findings.find(run_id)
        refused = self._supervisors.refused.get(run_id)
        if records is None:
            if refused or run_id in self._running:
                records = RunRecords(self._running.get(run_id), problem=refused or GONE)
            else:
                return Seen(RunState.NEVER_STARTED)
        if records.proved:
            return Seen(RunState.EXITED, records.start, records.exit)
        start, ended = records.start, records.exit
        going = Seen(RunState.STARTING if start is None else RunState.RUNNING, start)
        supervisor = self._running.get(run_id) or records.supervisor
        alive = supervisor is not None and processes.start_time(supervisor[0]) == supervisor[1]
        path = records.open_file  # may have been removed
        if supervisor and alive and (records.held or (path and processes.has_open(supervisor[0], path))):
            if ended is None or self._below(supervisor[0], run_id):
                self._running.setdefault(run_id, supervisor)
                return going
            return Seen(RunState.EXITED, start, ended)
        if records.held:  # by an unknown process
            return going
        if ended is not None and (alive or not self._has_processes(run_id, start)):
            return Seen(RunState.EXITED, start, ended)
        return Seen(RunState.LOST, start, problem=refused or records.problem)

    def _below(self, supervisor: int, run_id: str) -> list[int]:
        """Pids of the run's processes below its supervisor, without schedulers in it and their runs."""
        with self._lock:
            mains, numbers = self._findings.others(run_id)
        roots = [
            pid
            for pid in processes.children(supervisor)
            if pid not in mains and processes.tag(pid) not in numbers and not self._spares(pid)
        ]
        return processes.trees(roots, self._spares)

    def _spares(self, pid: int) -> bool:
        return not self._is_shared and serves_all(pid, os.fsencode(self._records.home))

    def _has_processes(self, run_id: str, start: StartRecord | None) -> bool:
        """Whether a run without supervisor has a process; one look at all processes serves many runs."""
        name = os.fsencode(run_id)
        if time.monotonic() - self._marks[0] > _MARKS_S:
            self._marks = time.monotonic(), self._marked()
        elif name in self._marks[1] and not any(
            processes.start_time(pid) == started for pid, started in self._marks[1][name].items()
        ):
            self._marks = time.monotonic(), self._marked()  # they have ended since, and may have left others
        if name in self._marks[1]:
            return True
        return start is not None and processes.alive(start.pid, start.pid_started, start.boot_id)

    def _marked(self) -> dict[bytes, dict[int, int]]:
        """The processes with the marks of a run, by the run: pid -> start time."""
        mark = b"%b=%b" % self._mark
        if not self._is_shared:
            found = processes.marked(RUN_MARK.encode(), mark)
            return {run: {one.pid: one.started for one in those} for run, those in found.items()}
        marked: dict[bytes, dict[int, int]] = {}
        for line in self._ask(name=RUN_MARK, marked=os.fsdecode(mark)).splitlines():
            pid, started, run = line.split(b" ", 2)
            marked.setdefault(run, {})[int(pid)] = int(started)
        return marked

    def _send_signal(self, pid: int, started: int, signo: int) -> bool:
        """Send a signal to exactly this process; False if it is gone. In a shared service, by way of root."""
        if not self._is_shared:
            return processes.send_signal(pid, started, signo)
        return self._ask(signal=signo, pid=pid, started=started) == b"1"

    def empty_objects(self, folder: str) -> None:
        """In a shared service: have a directory of objects emptied with the rights of its user, soon."""
        self._ask(empty=os.path.basename(folder))

    def _ask(self, **question: object) -> bytes:
        with self._lock:
            answer = self._supervisors.live_server().ask(question)
            if answer is None:  # it was killed, maybe just now
                answer = self._supervisors.replace_server().ask(question)
            return answer or b""

    # ---- ending ----

    def stop(self, run_id: str, *, grace_s: float, signo: int = 15) -> None:
        """End a run and all its processes; a second request can only shorten the grace."""
        check_run_id(run_id)
        if self.observe(run_id).state is RunState.EXITED:
            return
        # The request comes before the look for a supervisor: one that takes the run in between reads it.
        self._records.request_stop(run_id, grace_s, signo)
        request = _Stop(time.monotonic(), time.monotonic_ns() + int(grace_s * 1e9), signo)
        before = self._stopping.get(run_id, request)
        self._stopping[run_id] = _Stop(before.requested_s, min(before.until_ns, request.until_ns), signo)
        if supervisor := self._supervisor_of(run_id, unsaid=True):
            self._send_signal(*supervisor, STOP_SIGNAL)
            self._send_signal(*supervisor, signal.SIGCONT)  # its job may have stopped it

    def _supervisor_of(self, run_id: str, *, unsaid: bool = False) -> tuple[int, int] | None:
        """Pid and start time of the supervisor of a run."""
        if known := self._running.get(run_id):
            return known
        with self._lock:
            records = self._findings.find(run_id, unsaid=unsaid)
        return None if records is None else records.supervisor

    def _insist(self, run_id: str) -> bool:
        """Carry out a stop for a supervisor that does not answer. True if the run is over."""
        stop = self._stopping[run_id]
        waited_s = time.monotonic() - stop.requested_s
        if waited_s < ANSWER_S:
            return False
        pending, seen = self._records.pending_stop(run_id), self.observe(run_id)
        if seen.state not in (RunState.RUNNING, RunState.STARTING):
            if seen.state is not RunState.NEVER_STARTED:  # else its supervisor will read the request
                del self._stopping[run_id]
            return seen.state in (RunState.EXITED, RunState.LOST)
        supervisor = self._supervisor_of(run_id)
        if supervisor is None or processes.start_time(supervisor[0]) != supervisor[1]:
            return False  # the pid is another process's now
        is_suspended = getattr(processes.process(supervisor[0]), "state", "X") in "Tt"
        if pending is None:
            if not is_suspended:
                return False
            pending = stop.until_ns, stop.signo  # it was stopped after it had taken the request
        if is_suspended or waited_s > _PATIENCE_S:
            until_ns, signo = pending
            if time.monotonic_ns() < until_ns:
                for pid in self._below(supervisor[0], run_id):
                    processes.send(pid, signo)
                    processes.send(pid, signal.SIGCONT)
            else:
                processes.kill_all(lambda: self._below(supervisor[0], run_id))
        self._send_signal(*supervisor, STOP_SIGNAL)
        self._send_signal(*supervisor, signal.SIGCONT)
        return False

    def _resume_suspended(self) -> None:
        """Resume stopped supervisors every few seconds: they would not notice the ends of their runs."""
        if (now := time.monotonic()) < self._next_resume:
            return
        self._next_resume = now + _RESUME_S
        for pid, started in list(self._running.values()):
            seen = processes.process(pid)
            if seen is not None and seen.started == started and seen.state == "T":
                self._send_signal(pid, started, signal.SIGCONT)

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        """Send a signal to the main process, or to all of the run's processes; False if none got it."""
        seen = self.observe(run_id)
        if seen.state is not RunState.RUNNING or seen.start is None:
            return False
        if not tree:
            return self._send_signal(seen.start.pid, seen.start.pid_started, signo)
        pids = self._below(seen.start.supervisor, run_id)
        below = [process for process in map(processes.process, pids) if process is not None]
        if self.observe(run_id).state is not RunState.RUNNING:
            return False  # its supervisor may carry out another run by now
        signalled = [self._send_signal(process.pid, process.started, signo) for process in below]
        return any(signalled)

    def clear_lost(self, run_id: str) -> tuple[int, ...]:
        """Kill the processes of a run that is LOST or without records; the pids left after two seconds.

        Finds its main process, the session of that, their descendants, and every process with the run's mark
        (a variable) or tag, or in its group (cgroups.py), which is removed. Without a group, a process that none
        of these five identifies is not found; only a supervisor can find it.
        """
        seen = self.observe(run_id)
        if seen.state not in (RunState.LOST, RunState.NEVER_STARTED):
            return ()
        self._clear_groups(run_id)
        give_up = time.monotonic() + _CLEAR_TIMEOUT_S
        while (remaining := self._leftovers(run_id, seen.start)) and time.monotonic() < give_up:
            for pid, started in remaining.items():
                self._send_signal(pid, started, 9)
            time.sleep(_CLEAR_PAUSE_S)
        return tuple(remaining.keys() | self._clear_groups(run_id))

    def _clear_groups(self, run_id: str) -> set[int]:
        """End what is in the groups of a run whose supervisor was killed, and remove them; the pids that are left."""
        if self._is_shared:
            return set(map(int, self._ask(clear=run_id).split()))
        if time.monotonic() - self._bases[0] > _MARKS_S:  # one search serves many runs
            self._bases = time.monotonic(), cgroup_trees.bases(os.fsencode(self._records.home))
        return set(cgroup_trees.clear(os.fsencode(run_id), self._bases[1]))

    def forget(self, run_id: str) -> None:
        """Remove all records of a run that is over or was never started; its log stays."""
        with self._lock:
            file = self._of.get(run_id)
            entry = None if file is None else file.runs.get(run_id)
            if entry is None or not entry.proved:
                state = self.observe(run_id).state
                assert state not in (RunState.STARTING, RunState.RUNNING), f"run {run_id} is {state}"
            self._of.pop(run_id, None)
            self._supervisors.refused.pop(run_id, None)
            self._running.pop(run_id, None)
            if self._stopping.pop(run_id, None) is not None:
                self._records.drop_stop(run_id)
            if file is not None:
                file.forget(run_id)
                slot = self._supervisors.slots.get(file.number)
                if slot is not None:
                    self._supervisors.drop(slot, run_id)

    def known_runs(self) -> list[str]:
        """Runs that may have processes, whether the tables know them or not."""
        return self._findings.known_runs()

    def settle(self, live: Mapping[str, int]) -> None:
        """Remove records and stop requests that belong to no live run. ``live``: run -> its number."""
        self._findings.settle(live)
        for run_id in [name for name in self._stopping if name not in live]:
            if self.observe(run_id).state is RunState.NEVER_STARTED:
                del self._stopping[run_id]

    def drop_ended(self) -> None:
        """Forget the ends of runs, because the tables are not those that the runs belong to."""
        self._findings.drop_ended()

    def close(self) -> None:
        """End the launcher once it has read what was sent; runs continue."""
        with self._lock:
            self._findings.close()

    def _leftovers(self, run_id: str, start: StartRecord | None) -> dict[int, int]:
        """The processes of a run without supervisor on this machine, in this boot: pid -> start time."""
        pids = dict(self._marked().get(os.fsencode(run_id), {}))
        if start is not None and start.boot_id == processes.boot_id():
            for process in processes.all_processes():
                # A session keeps its pid from reuse: it is the run's unless another process has that pid.
                if process.session == start.pid:
                    if processes.start_time(start.pid) in (None, start.pid_started):
                        pids[process.pid] = process.started
        if (file := self._of.get(run_id)) is not None and file.last == run_id:
            pids |= {process.pid: process.started for process in processes.tagged(file.number, self._spares)}
        for pid in [below for root in pids for below in processes.descendants(root)]:
            started = processes.start_time(pid)
            if started is not None:
                pids[pid] = started
        return pids


def _packed(request: LaunchRequest, mark: tuple[bytes, bytes], follows: str = "") -> bytes:
    """The request as vctl/privileged/run_request.py reads it."""
    env = {portable(name): portable(text) for name, text in request.own.items()}
    env[RUN_MARK], env[portable(os.fsdecode(mark[0]))] = request.run_id, portable(os.fsdecode(mark[1]))
    head = {
        "run": request.run_id, "follows": follows, "uid": request.uid, "grace_ms": round(request.grace_s * 1000),
        "log_bytes": request.log_max_bytes, "memory_bytes": request.memory_bytes,
        "argv": [portable(word) for word in request.argv], "env": env, "cwd": portable(request.cwd),
        "log": portable(request.log_path), "cpus": request.cpu_ids,
        "confinement": request.confinement,
    }  # fmt: skip
    return b"%b\n%b" % (dumps(head).encode(), request.shared.packed)
