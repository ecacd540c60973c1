"""The scheduler's end of the launcher: starts it, sends numbers for supervisors, notices its death.

In a shared service the launcher is root's, and the keeper starts it.
"""

import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from vctl.core.compact import dumps
from vctl.runtime import frames, processes
from vctl.runtime.keeper import KeeperLine
from vctl.runtime.protocol import RuntimeUnavailable
from vctl.runtime.questions import ANSWERED
from vctl.runtime.supervisor import NUMBER_BYTES

_SCRIPT = str(Path(__file__).with_name("launcher.py"))
_SEND_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_MS = 1000
_CHUNK_BYTES = 1 << 16
# The only variables of the scheduler that the launcher and the supervisors get, because they may outlive it.
_KEPT = ("LD_LIBRARY_PATH", "PATH", "TZ")


class ForkServer:
    """One launcher process. Numbers may be sent before it is ready; it reads them later."""

    def __init__(self, home: Path, keeper: KeeperLine | None = None) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_SEND_TIMEOUT_S)
        self.pid = self._started = 0
        self._handle = -1
        """The process, where it is a child of this one."""
        with theirs:
            try:
                if keeper is None:
                    self._spawn(home, theirs)
                else:
                    keeper.launcher(theirs)
            except BaseException:
                self._channel.close()
                raise

    def _spawn(self, home: Path, theirs: socket.socket) -> None:
        errors = os.fspath(home / "launcher.log")
        files = [
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
        ]
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        argv = [sys.executable, "-I", "-S", _SCRIPT, os.fspath(home)]
        try:
            self.pid = os.posix_spawn(sys.executable, argv, env, file_actions=files, setsid=True)
        except OSError as error:
            raise RuntimeUnavailable(
                f"cannot start the launcher: {error.strerror}",
                fix="free memory, or raise the limit of processes (`ulimit -u`), then try again",
            ) from error
        self._started = processes.start_time(self.pid) or 0
        self._handle = os.pidfd_open(self.pid)

    def is_dead(self) -> bool:
        """Whether the launcher has ended."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        return bool(poll.poll(0))

    def hand(self, number: int, index: int, line: socket.socket) -> bool:
        """Send a number and its line for the supervisor in a place.

        False if the launcher is dead or stuck, and has to be replaced.
        """
        try:
            words = number.to_bytes(NUMBER_BYTES, "little") + index.to_bytes(NUMBER_BYTES, "little")
            frames.send(self._channel, words, [line.fileno()], waits=True)
            if self.pid:
                signal.pidfd_send_signal(self._handle, signal.SIGCONT)  # it may have been stopped
        except (ProcessLookupError, BrokenPipeError, ConnectionResetError, TimeoutError):
            return False
        return True

    def ask(self, question: Mapping[str, object]) -> bytes | None:
        """The answer of root's launcher to a question (questions.py); None if it has ended, or is stuck."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(_SEND_TIMEOUT_S)
            try:
                with theirs:
                    frames.send(self._channel, dumps(question).encode(), [theirs.fileno()], waits=True)
                answer = b""
                while part := ours.recv(_CHUNK_BYTES):
                    answer += part
            except OSError:
                return None
        return answer.removeprefix(ANSWERED) if answer.startswith(ANSWERED) else None

    def abandon(self) -> None:
        """Kill a launcher that failed."""
        if self.pid:
            processes.send_signal(self.pid, self._started, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the launcher by closing its channel, and collect it; its supervisors continue."""
        self._channel.close()
        if not self.pid:
            return  # the keeper collects it
        try:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            poll.poll(_CLOSE_TIMEOUT_MS)  # a suspended one is left to end when it is resumed
            os.close(self._handle)
            os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return  # the program around us collects its children itself
