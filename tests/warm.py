"""Servers for tests, started by fork out of a process that has imported what ``vctl serve`` needs.

Each is a process of its own with its own environment, folder and standard error, and runs ``vctl serve`` from the
command line on. Only the imports are shared: they took most of the time of nearly two hundred starts.
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
from typing import TextIO

ROOT = Path(__file__).parents[1]
LONGEST = 1 << 20
"""The bytes of one message."""


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
        message = json.dumps({"words": words, "env": dict(env), "cwd": str(cwd)}).encode()
        socket.send_fds(self._socket, [message], [theirs])
        os.close(theirs)
        while "started" not in (answer := self._receive(None)):
            continue
        return Started(self, answer["started"], open(ours, encoding="utf-8"))

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
            message, fds, *_ = socket.recv_fds(channel, LONGEST, 1)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (channel.detach(), read, write):
                    os.close(fd)
                _become(json.loads(message), fds[0])
            os.close(fds[0])
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


def _become(request: dict[str, list[str]], stderr: int) -> None:
    """Run the command line in this process, as ``python -m vctl`` does."""
    from vctl import __main__ as command_line

    os.dup2(stderr, 2)
    os.close(stderr)
    # those of the nursery know what kind of files they were opened on
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(str(request["cwd"]))
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
