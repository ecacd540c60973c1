"""Runs executables of the user that answer a question, such as those of a node provider, without blocking.

The question is a file on standard input; the answer is read from a pipe, as far as it is available and up to
a size limit. A time limit kills the whole process group. A background process of the command may keep its
standard output open, which does not block the caller.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from vctl.core.values import value
from vctl.runtime import processes

MAX_ANSWER = 1 << 20
"""Largest answer, in bytes."""
CALL_MARK = "VCTL_REQUEST_ID"
"""The variable of a command by which a call that outlived its scheduler is found."""


@value(frozen=True, slots=True)
class Called:
    """How a call ended: the answer, or why there is none."""

    answer: bytes = b""
    problem: str | None = None


class ProviderCall:
    """One call of an executable. Raises OSError if it cannot be started."""

    def __init__(
        self, words: Sequence[str], question: bytes, *, mark: str, timeout_s: float, env: Mapping[str, str]
    ) -> None:
        self._timeout_s = timeout_s
        self._ends = time.monotonic() + timeout_s
        self._answer = bytearray()
        stdin = os.memfd_create("question", os.MFD_CLOEXEC)
        try:
            os.write(stdin, question)
            os.lseek(stdin, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                list(words), bufsize=0, stdin=stdin, stdout=subprocess.PIPE, env={**env, CALL_MARK: mark},
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(stdin)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)

    def poll(self) -> Called | None:
        """Read the available output; the result once the command has ended or hit a limit, else None."""
        code = self._process.poll()  # before reading: after the end, all output is in the pipe
        while len(self._answer) <= MAX_ANSWER and (part := self._output.read(65536)):
            self._answer += part
        if len(self._answer) > MAX_ANSWER:
            return self._fail(f"its answer is longer than {MAX_ANSWER} bytes")
        if code is None:
            if time.monotonic() < self._ends:
                return None
            return self._fail(f"it did not end within {self._timeout_s:g} s")
        self._output.close()
        if code:
            return Called(problem=f"exit code {code if code > 0 else 128 - code}")
        return Called(bytes(self._answer))

    def kill(self) -> None:
        """Kill the process group of the command, and collect the command."""
        if self._process.returncode is None:  # not collected yet, so the pid is still the command's
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()

    def wait(self, seconds: float) -> None:
        """Wait at most this long for the command to end by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _fail(self, problem: str) -> Called:
        self.kill()
        return Called(problem=problem)


def end_orphan(mark: str) -> bool:
    """Kill a call that outlived its scheduler; True if there was one.

    Only while its first process lives: background processes of a finished command are left alone.
    """
    marked = processes.marked(CALL_MARK.encode()).get(mark.encode(), ())
    calls = [call for call in marked if call.pid == call.session]
    for call in calls:
        with suppress(ProcessLookupError):
            os.killpg(call.group, signal.SIGKILL)
    return bool(calls)
