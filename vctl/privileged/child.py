"""Becomes a user: the process between a supervisor that is root and the program of a job, and files of the account.

The order in the child is what makes it safe. Descriptors first, while it is root; then all groups, the group, the user,
each of the three ids of a kind, and the proof that there is no way back; only then the working directory and the
program, which are opened with the user's rights, so nothing that the user could not read or run himself is opened.
Until the program is there, the kernel lets the user neither trace this process nor read its memory, because it has
changed its ids.

Stand-alone, like vctl/runtime/processes.py. Imports only built-in modules and ``resource``.
"""

import errno
import os
import resource

MYPY = False
if MYPY:
    import signal
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from vctl.privileged.accounts import UserAccount
else:
    import _signal as signal  # the public module builds enums at import

_PIPE, _FIRST_OTHER = 3, 4
_MAX_FILES = 1 << 20
FAILED = 126
"""The exit code of a child whose program did not start."""
MAX_WORDS = 4096
"""The most that a child says of why there is no program."""


class AsAccount:
    """In ``with``: files are opened with the rights of another account, whose links lead where it could go itself.

    The real and the saved user stay root, so that account can neither signal nor trace this process meanwhile.
    """

    def __init__(self, uid: int, gid: int) -> None:
        self.uid, self.gid = uid, gid

    def __enter__(self) -> None:
        os.setegid(self.gid)
        os.seteuid(self.uid)

    def __exit__(self, *_: object) -> None:
        os.seteuid(0)
        os.setegid(0)


def start(
    account: "UserAccount", log: int, limits: "Iterable[tuple[int, tuple[int, int]]]", before: "Callable[[], None]",
    become: "Callable[[], bytes]",
) -> tuple[int, int]:  # fmt: skip
    """Fork a process that becomes the account, then the program; its pid, and the end of a pipe.

    The pipe ends empty once the program runs; else it has the words of ``become``, which returns only where there is no
    such program. Nothing waits for that here: the working directory of a user may be one that never answers. ``before``
    is called in the child, as root. Raises OSError if the kernel has no process or file left.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        pid = os.fork()
        if pid == 0:
            _live(account, log, writing, limits, before, become)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return pid, reading


def _live(
    account: "UserAccount", log: int, pipe: int, limits: "Iterable[tuple[int, tuple[int, int]]]",
    before: "Callable[[], None]", become: "Callable[[], bytes]",
) -> "NoReturn":  # fmt: skip
    """Be the child: its program, or the words of why not. ``log`` is above the standard files.

    Each line costs: the first touch of a page of this fork is a copy of it.
    """
    words = b"%d 0 0 it ended before its program" % FAILED
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        pipe = _move(pipe)
        os.closerange(_FIRST_OTHER, _MAX_FILES)
        before()
        for limit, values in limits:
            resource.setrlimit(limit, values)
        drop(account)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        words = become()
    except BaseException as error:  # noqa: BLE001 - this process may only end by _exit
        words = failure(error)
    finally:
        try:
            os.write(pipe, words[:MAX_WORDS])
        finally:
            os._exit(FAILED)


def _move(pipe: int) -> int:
    """Give the pipe the first descriptor behind the standard files, so that all others can be closed at once."""
    if pipe != _PIPE:
        os.dup2(pipe, _PIPE, inheritable=False)
    return _PIPE


def drop(account: "UserAccount") -> None:
    """Become the account for ever. Raises OSError, also if any right of before has stayed."""
    uid, gid = account.uid, account.gid
    os.setgroups(account.groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    os.umask(account.umask)
    if (
        os.getresuid() != (uid,) * 3
        or os.getresgid() != (gid,) * 3
        or set(os.getgroups()) != set(account.groups)
    ):
        raise PermissionError(errno.EPERM, "the ids of this process are not those of the account")
    try:
        os.setresuid(-1, 0, -1)
    except PermissionError:
        return  # it has no capability any more: the kernel takes them all away together
    raise PermissionError(errno.EPERM, "this process could become root again")


def failure(error: BaseException) -> bytes:
    """The words for an error that is none of the program: errno, and what it says."""
    number = getattr(error, "errno", None) or errno.EPERM
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return b"%d %d 0 %b" % (FAILED, number, f"cannot become the user: {reason}".encode(errors="replace"))
