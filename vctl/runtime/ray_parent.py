"""A process above processes of Ray: runs Ray's command, sees what ends, and ends all of it. Stand-alone."""

import ctypes
import json
import os
import select
import signal
import subprocess
import time

MYPY = False
if MYPY or __package__:
    from collections.abc import Sequence
    from typing import Any

    from vctl.runtime import processes, raylets
else:
    import processes
    import raylets

START_S = 120.0
GCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray_gcs.py")
TEMPORARY = "r"
"""Ray's own directory in that of a Ray, which it opens to all users."""
FOLDERS = "/tmp/vctl-ray-"
"""What the paths of the directories of Rays begin with; the last ones are made by the keepers."""
SAID, LEAVING, LEFT = ".said", ".leaving", ".left"
"""Beside NODES: what a keeper says, what virtual nodes are to have soon, the answer that raylets have left the rest."""
JOIN = "join.json"
"""In the directory of a Ray, while it runs: how a raylet joins it."""
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
    """A child subreaper, so that everything which `ray start` leaves in the background is below it."""

    def __init__(self, ray: str, folder: str) -> None:
        self.ray, self.folder = ray, folder
        self.log = f"{folder}/start.log"
        self.address = ""
        self.env: dict[str, str] = {}
        self.ended: dict[int, int] = {}
        """Processes that have ended, and their exit codes."""
        self.signals: set[int] = set()
        """Signals that have come."""
        self.ends: int | None = None
        """A descriptor that is readable when Ray is to end."""

    def become_parent(self) -> None:
        """Adopt what is left behind below; signals only wake it."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for signo in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(signo, lambda *_: None)  # not ignored, which a child would inherit
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def start_raylet(
        self, options: list[str], part: "dict[str, Any]", name: str, cores: list[int] | None
    ) -> tuple[int, str]:
        """Start a raylet, and wait until it has joined; its pid and its node id. Raises Failed, Over."""
        env = {**self.env, "CUDA_VISIBLE_DEVICES": ",".join(part["gpus"])}
        words = ["start", f"--temp-dir={self.folder}/{TEMPORARY}", *options, *raylets.arguments(part, name)]
        code = self.run(words, env, cores)
        found = [
            pid for pid in self.pids(b"/raylet") if b"--node-name=" + name.encode() in processes.command(pid)
        ]
        if code or not found:
            for pid in found:
                processes.send(pid, signal.SIGKILL)  # it was too slow for Ray, which gives up after 30 s
            raise Failed(f"`ray start` ended with {code}:\n{self.last_lines()}")
        mark = b"--node_id="
        ids = [word[len(mark) :].decode() for word in processes.command(found[0]) if word.startswith(mark)]
        return found[0], "".join(ids)

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
        """Run a command to its end; its exit code. Raises Over, Failed."""
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
        """Let a raylet take no more work, finish what it has, and go; whether Ray accepts that."""
        words = [
            raylets.python_of(self.ray),
            GCS,
            self.address,
            "drain",
            node_id,
            reason,
            f"{seconds:g}",
            text,
        ]
        with open(self.log, "ab") as log:
            return not self.finish(words, self.env, log)

    def pids(self, suffix: bytes) -> list[int]:
        """Processes below, by the end of their program's name."""
        return [
            pid
            for pid in processes.descendants(os.getpid())
            if (processes.command(pid) or [b""])[0].endswith(suffix)
        ]

    def last_lines(self) -> str:
        """The end of what Ray's command has written."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-_LAST_LINES:]).rstrip()

    def pause(self, most_s: float, others: "Sequence[int]") -> None:
        """Wait until a process has ended, a signal has come or another descriptor is readable. Raises Over."""
        ends = [] if self.ends is None else [self.ends]
        ready, _, _ = select.select([self.wake, *ends, *others], [], [], max(0.0, min(most_s, START_S)))
        if self.ends in ready:
            raise Over
        if self.wake in ready:
            self.signals |= set(os.read(self.wake, 4096))
        self.reap()

    def reap(self) -> bool:
        """Note which processes have ended; False when there is none left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            self.ended[pid] = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Kill all that is below."""
        while self.reap():
            processes.kill_all(lambda: processes.descendants(os.getpid()))
            time.sleep(0.01)


def put(path: str, document: "Any") -> None:
    """Write a document at once; it is nobody else's to read."""
    write(path, json.dumps(document))


def write(path: str, text: str) -> None:
    """Write a file at once; it is nobody else's to read."""
    with open(f"{path}.new", "w", encoding="utf-8", opener=_private) as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def say(text: str) -> None:
    """Write a line into the log of the job."""
    os.write(2, f"vctl: {text}\n".encode(errors="replace"))
