"""Servers and remote commands for tests, started by fork out of a process that has imported what they need.

Each is a process of its own with its own environment, folder and standard files, and runs ``vctl`` from the command
line on. Only the imports are shared: they took most of the time of two hundred servers and a thousand commands.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]
LONGEST = 1 << 20
"""The bytes of one message."""
LONGEST_S = 60.0
"""The silence after which a command has failed."""


class Started:
    """A server process; it has what the tests use of ``subprocess.Popen``."""

    def __init__(self, nursery: Nursery, pid: int, stderr: TextIO) -> None:
        self.nursery, self.pid, self.stderr = nursery, pid, stderr

    def poll(self) -> int | None:
        """The exit code, as ``Popen`` gives it, or None."""
        return self.nursery.ended(self.pid, 0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code."""
        code = self.nursery.ended(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("vctl serve", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process from which servers are forked. It ends when this object is closed, or with this process."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
            self._process = subprocess.Popen(words, cwd=ROOT, pass_fds=[theirs.fileno()])

    def start(self, words: list[str], env: Mapping[str, str], cwd: Path) -> Started:
        """Start ``vctl`` with these words."""
        ours, theirs = os.pipe()
        pid = self._fork(words, env, cwd, {2: theirs})
        return Started(self, pid, open(ours, encoding="utf-8"))

    def run(self, words: list[str], env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it has no standard input."""
        pipes = {target: os.pipe() for target in (1, 2)}
        theirs = {target: write for target, (_, write) in pipes.items()}
        pid = self._fork(words, env, cwd, {0: os.open(os.devnull, os.O_RDONLY), **theirs})
        said: dict[int, bytes] = {1: b"", 2: b""}
        files = {read: target for target, (read, _) in pipes.items()}
        while files:
            for fd in select.select(list(files), [], [], LONGEST_S)[0] or self._late(pid, words):
                if part := os.read(fd, LONGEST):
                    said[files[fd]] += part
                else:
                    os.close(fd)
                    del files[fd]
        if (code := self.ended(pid, LONGEST_S)) is None:
            self._late(pid, words)
        assert code is not None
        return subprocess.CompletedProcess(words, code, said[1].decode(), said[2].decode())

    def _late(self, pid: int, words: list[str]) -> list[int]:
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(words, LONGEST_S)

    def _fork(self, words: list[str], env: Mapping[str, str], cwd: Path, files: dict[int, int]) -> int:
        """The pid of a new process with these files, which this one closes."""
        message = {"words": words, "env": dict(env), "cwd": str(cwd), "files": list(files)}
        socket.send_fds(self._socket, [json.dumps(message).encode()], list(files.values()))
        for fd in files.values():
            os.close(fd)
        while "started" not in (answer := self._receive(None)):
            continue
        return answer["started"]

    def ended(self, pid: int, timeout: float | None) -> int | None:
        """The exit code of a server; None if it has not ended within that time."""
        give_up = None if timeout is None else time.monotonic() + timeout
        while pid not in self._codes:
            left = None if give_up is None else max(0.0, give_up - time.monotonic())
            if not self._receive(left):
                return None
        return self._codes[pid]

    def close(self) -> None:
        """End the process; servers that run go on."""
        self._socket.close()
        self._process.wait(30)

    def _receive(self, timeout: float | None) -> dict[str, int]:
        if not select.select([self._socket], [], [], timeout)[0]:
            return {}
        message = self._socket.recv(LONGEST)
        assert message, "the nursery has ended"
        answer: dict[str, int] = json.loads(message)
        if "ended" in answer:
            self._codes[answer["ended"]] = answer["code"]
        return answer


# ---- in the nursery ----


def serve_requests(channel: socket.socket) -> None:
    """Fork a server for each request, and report each end, until the other side closes."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([channel, read], [], [])[0]
        if read in ready:
            os.read(read, 4096)
            _report_ends(channel)
        if channel in ready:
            message, fds, *_ = socket.recv_fds(channel, LONGEST, 3)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (channel.detach(), read, write):
                    os.close(fd)
                _become(json.loads(message), fds)
            for fd in fds:
                os.close(fd)
            channel.send(json.dumps({"started": pid}).encode())


def _report_ends(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Run the command line in this process, as ``python -m vctl`` does."""
    from vctl import __main__ as command_line

    for fd, target in zip(files, request["files"], strict=True):
        os.dup2(fd, target)
        os.close(fd)
    # those of the nursery know what kind of files they were opened on
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["vctl", *request["words"]]
    code = 1
    try:
        command_line.run()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:  # noqa: BLE001 - the interpreter would print it, too
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Import what a server needs, and start servers."""
    import uvicorn.protocols.http.h11_impl  # noqa: F401
    import wsproto  # noqa: F401

    import vctl.cli.commands.serve
    import vctl.http.app
    import vctl.http.listen
    import vctl.http.protocol  # noqa: F401

    with socket.socket(fileno=int(sys.argv[1])) as channel:
        serve_requests(channel)


if __name__ == "__main__":
    main()
