"""Delivers one notice in a process of its own: runs a command, posts to a URL, or hands a mail to the system.

A process, because only a process can be ended at any moment: name servers, proxies and peers that trickle keep no time
limit of a library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

LIMIT_S = 20.0
"""How long a delivery may take."""
_CHUNK = 1 << 16
_KEPT = 1000
_OURS = b"\0"
"""Stands before what a process says that did not become a command."""
_MAILERS = "/usr/sbin:/usr/lib:/usr/local/sbin"


class Delivery:
    """A delivery in progress. ``fds`` become readable when it has ended, or has written something."""

    def __init__(self, carry_out: Callable[[], None], limit_s: float = LIMIT_S) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(writing, carry_out)
        os.close(writing)
        os.set_blocking(reading, False)
        self.ended, self.output = os.pidfd_open(self.pid), reading
        self.ends_at = time.monotonic() + limit_s
        self.limit_s = limit_s
        self._said = b""

    @property
    def fds(self) -> tuple[int, int]:
        """The descriptors to wait for."""
        return self.ended, self.output

    def result(self) -> str | None:
        """None while it goes on; afterwards why it failed, or an empty text."""
        self._listen()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self._listen()
            self._close()
            return self._words(os.waitstatus_to_exitcode(status))
        if time.monotonic() < self.ends_at:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)  # before it had a group of its own
        os.waitpid(self.pid, 0)
        self._close()
        return f"it had not ended after {self.limit_s:g} s"

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.output, _CHUNK):
                self._said = (self._said + chunk)[-_KEPT:]

    def _close(self) -> None:
        os.close(self.ended)
        os.close(self.output)

    def _words(self, code: int) -> str:
        if code == 0:
            return ""
        lines = self._said.decode(errors="replace").strip().splitlines()
        said = "".join(letter if letter.isprintable() else "?" for letter in lines[-1]) if lines else ""
        if self._said.startswith(_OURS):
            return said.lstrip("?")
        how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        return f"{how}: {said}" if said else how


def _become(output: int, carry_out: Callable[[], None]) -> None:
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for given, wanted in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(given, wanted)
        carry_out()
        code = 0
    except BaseException as error:  # noqa: BLE001  # whatever it is, this process ends here, and says why
        os.write(2, _OURS + _sentence(error).encode(errors="replace"))
    finally:
        os._exit(code)


def _sentence(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _sentence(reason)
    if (status := getattr(error, "code", None)) is not None:
        return f"HTTP {status} {reason}"
    return str(getattr(error, "strerror", "") or error) or type(error).__name__


def command(words: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
    """Become a command; without the directory of the job in the root directory."""
    try:
        os.chdir(cwd)
    except OSError:
        os.chdir("/")
    try:
        os.execvpe(words[0], list(words), dict(env))
    except FileNotFoundError:
        raise FileNotFoundError(f"{words[0]}: command not found") from None


def post(url: str, body: bytes, env: Mapping[str, str]) -> None:
    """POST a JSON document. Only 2xx is success; redirections are not followed. ``env`` names the proxies."""
    import urllib.request

    class NotFollowed(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    os.environ.clear()
    os.environ.update(env)
    headers = {"Content-Type": "application/json", "User-Agent": "vctl"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # http(s) only
    with urllib.request.build_opener(NotFollowed).open(request, timeout=LIMIT_S) as reply:
        reply.read(1)


def mail(addresses: Sequence[str], subject: str, text: str, env: Mapping[str, str]) -> None:
    """Become sendmail, or else mail, which gets the text as its standard input."""
    path = f"{env.get('PATH', os.defpath)}:{_MAILERS}"
    if (program := shutil.which("sendmail", path=path)) is not None:
        words = [program, "-i", "-t"]
        text = f"To: {', '.join(addresses)}\nSubject: {subject}\n\n{text}"
    elif (program := shutil.which("mail", path=path)) is not None:
        words = [program, "-s", subject, *addresses]
    else:
        raise FileNotFoundError("this machine has neither sendmail nor mail")
    content = os.memfd_create("mail")
    os.write(content, text.encode(errors="replace"))
    os.lseek(content, 0, os.SEEK_SET)
    os.dup2(content, 0)
    command(words, env, "/")
