"""The parent of processes of Ray: runs Ray's command, notes which processes end, kills all. Stand-alone."""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import time

MYPY = False
if MYPY or __package__:
    from collections.abc import Sequence
    from typing import Any

    from vctl.ray.private import ray_gcs, raylets
    from vctl.runtime import processes
else:
    import processes
    import ray_gcs
    import raylets

START_S = 120.0
GCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray_gcs.py")
TEMPORARY = "ray"
"""The subdirectory for Ray's own files, where RAY_TMPDIR leads: Ray opens it to all users, its parent does not."""
FOLDERS = "/tmp/vctl-ray-"
"""The prefix of the directories of Rays, which keepers make."""
SAID, LEAVING, LEFT = ".said", ".leaving", ".left"
"""Suffixes of files beside NODES: messages of a keeper; a request to use less; the answer to the request."""
JOIN = "join.json"
"""The file in the directory of a running Ray that says how a raylet joins it."""
STOPPING = "stopping"
"""The file in the directory of a Ray that ray_stop.py makes; the keeper removes it when it has read it."""
PLACE = "\0vctl-ray-start-{}"
"""The abstract unix sockets that starts of Ray on this machine hold, one for each CPU, whoever starts them."""
_PLACE_S, _PLACE_POLL_S = 600.0, 0.1
"""How long to wait for such a place at most, and how often to look for one."""
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGURG,
)
_LAST_LINES = 15


class Failed(Exception):
    """Ray did not start."""


class Over(Exception):
    """The event that this process waits for has come: Ray is to end."""


class Parent:
    """A child subreaper: every background process that `ray start` leaves becomes its child."""

    def __init__(self, ray: str, folder: str) -> None:
        self.ray, self.folder = ray, folder
        self.python = ""
        """The Python that has Ray; known when a raylet runs."""
        self.log = f"{folder}/start.log"
        self.address = ""
        self.env: dict[str, str] = {}
        self.ended: dict[int, int] = {}
        """Pids of processes that have ended, with their exit codes (negative: killed by a signal)."""
        self.signals: set[int] = set()
        """Numbers of the signals that have come."""
        self.ends: int | None = None
        """A descriptor that is readable when Ray is to end."""

    def become_parent(self) -> None:
        """Become a child subreaper; signals then only wake this process."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for signo in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(signo, lambda *_: None)  # not ignored, which a child would inherit
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def start_raylet(
        self, options: list[str], part: "dict[str, Any]", name: str, cores: list[int] | None
    ) -> tuple[int, str]:
        """Start a raylet, and wait until it has joined; its pid and its node id. Raises Failed, Over."""
        path = raylets.path_with(self.ray, self.env.get("PATH", os.defpath))
        env = {**self.env, "PATH": path, "CUDA_VISIBLE_DEVICES": ",".join(part["gpus"])}
        name = raylets.node_name(name)
        words = ["start", f"--temp-dir={self.folder}/{TEMPORARY}", *options, *raylets.arguments(part, name)]
        with self.place():
            code = self.run(words, env, cores)
        found = [
            (pid, command)
            for pid in self.pids(b"/raylet")
            if b"--node-name=" + name.encode() in (command := processes.command(pid))
        ]
        if code or not found:
            for pid, _ in found:
                processes.send(pid, signal.SIGKILL)  # it was too slow for Ray, which gives up after 30 s
            raise Failed(f"`ray start` ended with {code}:\n{self.last_lines()}")
        (pid, command), *_ = found
        self.python = raylets.python_of(command)
        return pid, raylets.node_id_of(command)

    def place(self) -> "socket.socket":
        """Wait until fewer starts of Ray are under way on this machine than it has CPUs; the returned place is one.

        A start takes seconds of CPU time, and Ray gives one up that takes too long: of many at once, none would
        succeed. The place is free when the socket is closed, however its process ends. Raises Over.
        """
        give_up = time.monotonic() + _PLACE_S
        while True:
            place = socket.socket(socket.AF_UNIX)
            for number in range(os.cpu_count() or 1):
                with contextlib.suppress(OSError):  # another start has it
                    place.bind(PLACE.format(number))
                    return place
            if time.monotonic() > give_up:
                return place
            place.close()
            self.pause(_PLACE_POLL_S, ())

    def run(self, words: list[str], env: dict[str, str], cores: list[int] | None = None) -> int:
        """Run Ray's command to its end; its exit code. Raises Over, Failed."""
        mine = os.sched_getaffinity(0)
        if cores:
            os.sched_setaffinity(0, cores)
        try:
            with open(self.log, "ab") as log:
                return self.finish([self.ray, *words], env, log)
        finally:
            os.sched_setaffinity(0, mine)

    def finish(self, words: list[str], env: dict[str, str], output: "Any") -> int:
        """Run a command to its end, at most ``START_S`` seconds; its exit code. Raises Over, Failed."""
        process = subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        give_up = time.monotonic() + START_S
        while process.pid not in self.ended:
            self.pause(give_up - time.monotonic(), ())
            if time.monotonic() > give_up:
                processes.send(process.pid, signal.SIGKILL)
                raise Failed(f"`{words[1]}` took more than {START_S:g} s:\n{self.last_lines()}")
        process.returncode = self.ended.pop(process.pid)
        return process.returncode

    def drain(self, node_id: str, reason: str, seconds: float, text: str) -> bool:
        """Ask Ray to drain a node: no new work, an end when its work is done. True if Ray accepts."""
        words = [self.python, GCS, self.address, "drain", node_id, reason, f"{seconds:g}", text]
        with open(self.log, "ab") as log:
            return not self.finish(words, self.env, log)

    def note_death(self, node_id: str) -> None:
        """Tell Ray that a node is dead, which it would find out seconds later, and count it until then."""
        words = [self.python, GCS, self.address, ray_gcs.END, node_id]
        with open(self.log, "ab") as log:
            if self.finish(words, self.env, log):
                say(
                    "Ray has not been told that a raylet has ended, and counts its resources until it notices:\n"
                    + self.last_lines()
                )

    def pids(self, suffix: bytes) -> list[int]:
        """Pids of the descendants whose program has this suffix."""
        return [
            pid
            for pid in processes.descendants(os.getpid())
            if (processes.command(pid) or [b""])[0].endswith(suffix)
        ]

    def last_lines(self) -> str:
        """The last lines of the output of Ray's command."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-_LAST_LINES:]).rstrip()

    def pause(self, limit_s: float, others: "Sequence[int]") -> None:
        """Wait for the end of a child, a signal, input on ``others``, or the end of the time.

        Raises Over when ``ends`` is readable.
        """
        ends = [] if self.ends is None else [self.ends]
        ready, _, _ = select.select([self.wake, *ends, *others], [], [], max(0.0, min(limit_s, START_S)))
        if self.ends in ready:
            raise Over
        if self.wake in ready:
            self.signals |= set(os.read(self.wake, 4096))
        self.reap()

    def reap(self) -> bool:
        """Collect the children that have ended; False if no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            self.ended[pid] = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Kill all descendants, and collect them."""
        while self.reap():
            processes.kill_all(lambda: processes.descendants(os.getpid()))
            time.sleep(0.01)


def put(path: str, document: "Any") -> None:
    """Write a document as JSON, atomically and readable only for its owner."""
    write(path, json.dumps(document))


def write(path: str, text: str) -> None:
    """Write a file, atomically and readable only for its owner."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    os.rename(new, path)


def say(text: str) -> None:
    """Write a line to standard error, which is the log of the job."""
    os.write(2, f"vctl: {text}\n".encode(errors="replace"))
