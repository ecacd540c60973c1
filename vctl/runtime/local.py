"""Runs processes on this machine: `LocalRuntime`, the Launcher of section 16's local runtime.

Processes are started by a fork server (launcher.py), each under a supervisor of its own (supervisor.py) that
outlives this process. What is known of runs is read from their files (records.py), so any number of
schedulers, one after the other or at once, see the same. Decides nothing: time limits and retries are the
scheduler's.
"""

import marshal
import os
import threading
import time
from pathlib import Path

from vctl.runtime import processes
from vctl.runtime.forkserver import ForkServer
from vctl.runtime.protocol import LaunchRequest, RunState, RuntimeUnavailable, Seen, StartRecord
from vctl.runtime.records import RunFiles, check_run_id
from vctl.runtime.supervisor import STOP_SIGNAL, Request

RUN_MARK = "VCTL_RUN_ID"
"""In the environment of every process of a run: how what a killed supervisor left behind is found."""

_SWEEP_AT = 256
_CLEAR_TIMEOUT_S = 2.0
_CLEAR_PAUSE_S = 0.01


class LocalRuntime:
    """Launches, observes and stops runs below one state directory. Safe to use from several threads."""

    def __init__(self, home: Path) -> None:
        """Create what is missing of the directories; no process is started before `prepare` or `launch`."""
        self._files = RunFiles(home.absolute())
        self._files.create()
        self._server: ForkServer | None = None
        self._untaken: dict[str, bytes] = {}  # sent, and not yet seen to be taken up by a supervisor
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

    def launch(self, request: LaunchRequest) -> None:
        """Start a run and return at once; how it went shows in its records."""
        check_run_id(request.run_id)
        packed = marshal.dumps(_packed(request, self._files.home))
        with self._lock:
            server = self._live_server()
            self._untaken[request.run_id] = packed
            if len(self._untaken) > _SWEEP_AT:
                self._drop_taken()
            if not server.send(packed):
                self._replace_server()

    def tend(self) -> None:
        """If the launcher has died, start another and give it what no supervisor has taken up."""
        with self._lock:
            if self._untaken:
                self._live_server()

    def observe(self, run_id: str) -> Seen:
        """Look at a run; one that was launched and not taken up by a launcher that died is launched again."""
        seen = self._files.observe(run_id)
        if seen.state is RunState.NEVER_STARTED:
            self.tend()
        else:
            self._untaken.pop(run_id, None)
        return seen

    def known_runs(self) -> list[str]:
        """Every run that was taken up here and is not forgotten, over or not."""
        return self._files.run_ids()

    def stop(self, run_id: str, *, grace_s: float, signo: int = 15) -> None:
        """End a run and all that came from it; asked again, only a shorter grace counts."""
        check_run_id(run_id)
        if self._files.exit_record(run_id) is not None:
            return
        # First the file, then the look for a supervisor: one that appears in between reads the file.
        self._files.request_stop(run_id, grace_s, signo)
        if supervisor := self._files.supervisor(run_id):
            processes.send_signal(*supervisor, STOP_SIGNAL)

    def signal_run(self, run_id: str, signo: int, *, tree: bool = False) -> bool:
        """Send a signal to the main process, or to all of the run's processes; False when nobody got it."""
        seen = self._files.observe(run_id)
        if seen.state is not RunState.RUNNING or seen.start is None:
            return False
        if not tree:
            return processes.send_signal(seen.start.pid, seen.start.pid_started, signo)
        below = list(map(processes.process, processes.descendants(seen.start.supervisor)))
        if self._files.observe(run_id).state is not RunState.RUNNING:
            return False  # its supervisor may stand over another run by now
        told = [processes.send_signal(one.pid, one.started, signo) for one in below if one is not None]
        return any(told)

    def clear_lost(self, run_id: str) -> tuple[int, ...]:
        """Kill what a LOST run left behind; return the pids still there after two seconds.

        Found are its main process, the session of that, what descends from them, and every process that
        carries the run's mark. A process that shed all four cannot be told from others; only a supervisor can
        hold it.
        """
        seen = self._files.observe(run_id)
        if seen.state is not RunState.LOST:
            return ()
        give_up = time.monotonic() + _CLEAR_TIMEOUT_S
        while (left := _leftovers(run_id, seen.start)) and time.monotonic() < give_up:
            for pid, started in left.items():
                processes.send_signal(pid, started, 9)
            time.sleep(_CLEAR_PAUSE_S)
        return tuple(left)

    def forget(self, run_id: str) -> None:
        """Remove the files of a run that is over or was never started; its log stays."""
        state = self._files.observe(run_id).state
        assert state not in (RunState.STARTING, RunState.RUNNING), f"run {run_id} is {state}"
        self._untaken.pop(run_id, None)
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


def _packed(request: LaunchRequest, home: Path) -> Request:
    """The request as bytes: the launcher's locale, and so its encoding, may not be ours."""
    encode = os.fsencode
    env = {encode(name): encode(value) for name, value in request.env.items()}
    argv = tuple(encode(word) for word in request.argv)
    env[encode(RUN_MARK)] = encode(request.run_id)
    return (
        encode(home),
        encode(request.run_id),
        round(request.grace_s * 1000),
        request.log_max_bytes,
        (argv, env, encode(request.cwd), encode(request.log_path), request.cpu_ids, request.niceness),
    )


def _leftovers(run_id: str, start: StartRecord | None) -> dict[int, int]:
    """Pid -> start time of what a run without supervisor still has on this machine, in this boot."""
    found = {one.pid: one.started for one in processes.marked(RUN_MARK, run_id)}
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
