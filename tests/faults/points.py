"""Lets one call or one allocation of a process fail, as SQLite tests itself: the first, then the second, and so on.

A process counts its points from 1 on, and the one of a number fails, once. There are four kinds:

    call        a call of a C function that asks the kernel for something, or of SQLite, raises the error that it
                really has when a disk, a table of files, processes or memory is full or broken (``ERRORS``)
    io          a system call of SQLite itself fails; it has a table of them for exactly this purpose
                (``sqlite3_vfs.xSetSystemCall``)
    memory      an allocation of Python fails (``_testcapi.set_nomemory``)
    sqlite      an allocation of SQLite fails (``SQLITE_CONFIG_MALLOC``); see ``prepare``

Only tests use this: nothing in vctl knows of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

KINDS = ("call", "io", "memory", "sqlite")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_FULL = (errno.ENOSPC, errno.EIO)
_FILES = (errno.EMFILE,)
_MEMORY = (errno.ENOMEM,)
_DISK = (errno.EIO,)
ERRORS: dict[str, tuple[int, ...]] = {
    "posix.open": (errno.EMFILE, errno.ENOSPC, errno.EIO), "io.open": (errno.EMFILE, errno.ENOSPC, errno.EIO),
    **dict.fromkeys(("posix.write", "posix.pwrite", "posix.writev", "posix.posix_fallocate"), _FULL),
    **dict.fromkeys(("posix.mkdir", "posix.rename", "posix.replace", "posix.link", "posix.symlink"), _FULL),
    **dict.fromkeys(("posix.read", "posix.pread", "posix.readlink", "posix.listdir", "posix.scandir"), _DISK),
    **dict.fromkeys(("posix.unlink", "posix.remove", "posix.rmdir", "posix.fsync", "posix.truncate"), _DISK),
    **dict.fromkeys(("posix.ftruncate", "posix.utime", "posix.chmod", "posix.fchmod", "posix.statvfs"), _DISK),
    **dict.fromkeys(("posix.stat", "posix.lstat", "posix.fstat", "posix.getcwd", "posix.getcwdb"), _MEMORY),
    **dict.fromkeys(("posix.chdir", "posix.sched_setaffinity"), _MEMORY),
    **dict.fromkeys(("posix.pipe", "posix.pipe2", "posix.dup", "posix.dup2", "posix.pidfd_open"), _FILES),
    **dict.fromkeys(("posix.memfd_create", "posix.eventfd", "select.epoll", "_socket.socketpair"), _FILES),
    **dict.fromkeys(("posix.fork", "posix.posix_spawn", "_posixsubprocess.fork_exec"), (errno.EAGAIN, errno.ENOMEM)),
    **dict.fromkeys(("posix.kill", "_signal.pidfd_send_signal"), (errno.ESRCH,)),
    **dict.fromkeys(("fcntl.flock", "fcntl.lockf"), (errno.ENOLCK,)), "fcntl.fcntl": _MEMORY,
    **dict.fromkeys(("socket.connect", "socket.bind"), (errno.ENOENT, errno.ENOMEM)),
    **dict.fromkeys(("socket.send", "socket.sendall", "socket.sendmsg"), (errno.EPIPE, errno.ENOBUFS)),
    **dict.fromkeys(("socket.recv", "socket.recvmsg", "socket.recv_into"), (errno.ECONNRESET, errno.ENOMEM)),
    "socket.accept": (errno.EMFILE,), "socket.getsockopt": (errno.ENOBUFS,),
    **dict.fromkeys(("poll.poll", "epoll.poll", "epoll.register", "epoll.modify", "select.select"), _MEMORY),
    **dict.fromkeys(("file.read", "file.readline", "file.readlines"), _DISK),
    **dict.fromkeys(("file.write", "file.writelines", "file.flush", "file.close"), _FULL),
    **dict.fromkeys(("sqlite.execute", "sqlite.executemany", "sqlite.executescript"), (-10, -13, -7)),
    **dict.fromkeys(("sqlite.backup", "sqlite.commit"), (-10, -7)),  # reading rows fails from inside: io, sqlite
    "sqlite3.connect": (-14, -7), "_sqlite3.connect": (-14, -7),
}  # fmt: skip
"""What a call of each kind really fails with. Left out is what cannot fail, and what tells an error by its result.
Negative: the result code of SQLite."""
MOST = 1_000_000
"""More allocations than any subject makes."""
SMALL = 256
"""The largest number of which CPython keeps the object."""
_TEXTS = {10: "disk I/O error", 13: "database or disk is full", 14: "unable to open database file"}


class Points:
    """Counts the points of this process, and lets the one of a number fail. ``at`` 0: none."""

    def __init__(self, at: int = 0, turn: int = 0) -> None:
        """``turn``: which of the errors of the point; they are used one after the other."""
        self.at, self.turn = at, turn
        self.passed: list[str] = []
        """The points, by function and by the line of vctl that called it."""
        self.is_over = self.is_paused = self.is_memory = False

    def passes(self, name: str, frame: FrameType | None) -> bool:
        """Whether the next point is the one that fails."""
        if self.is_over or self.is_paused:
            return False
        self.passed.append(f"{name} {place(frame)}" if not self.at else "")
        self.is_over = len(self.passed) == self.at
        return self.is_over

    # ---- calls ----

    def watch_calls(self) -> None:
        """Count the calls of this thread from now on."""
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and (name := _name(function)) in ERRORS and self.passes(name, frame):
            errors = ERRORS[name]
            raise error_of(errors[self.turn % len(errors)])

    # ---- system calls of SQLite ----

    def watch_io(self) -> None:
        """Count the system calls of SQLite from now on."""
        library = ctypes.CDLL("libsqlite3.so.0")
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        vfs = library.sqlite3_vfs_find(b"unix")
        for name, (result, arguments, errors) in _SYSTEM_CALLS.items():
            kind = ctypes.CFUNCTYPE(result, *arguments, use_errno=True)
            usual = vfs.contents.get(vfs, name.encode())
            if usual:
                call = kind(self._failing(name, kind(usual), errors))
                _KEPT.append(call)
                vfs.contents.set(vfs, name.encode(), ctypes.cast(call, ctypes.c_void_p))

    def _failing(self, name: str, usual: Callable[..., int], errors: tuple[int, ...]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if self.passes(f"sqlite {name}", sys._getframe(1)):
                ctypes.set_errno(errors[self.turn % len(errors)])
                return -1
            return usual(*arguments)

        return call

    def finish(self, name: str = "") -> None:
        """Count no more, in this process. ``name``: of the allocations that were counted."""
        sys.setprofile(None)
        _counts.clear()
        if (module := sys.modules.get("_testcapi")) is not None:
            if self.is_memory and not self.at:
                self.passed += [name] * _allocated()
            module.remove_mem_hooks()
        self.is_memory = False

    # ---- allocations ----

    def watch_memory(self) -> None:
        """Let the allocation of the number fail from now on."""
        import _testcapi

        self.is_memory = True
        number = self.at or MOST
        _testcapi.set_nomemory(number, number + 1)

    def watch_sqlite(self) -> None:
        """Count the allocations of SQLite from now on."""
        _counts.append(lambda: self.passes("sqlite allocation", sys._getframe(2)))

    def watch(self, kind: str) -> None:
        """Count the points of one kind."""
        {
            "call": self.watch_calls, "io": self.watch_io, "memory": self.watch_memory, "sqlite": self.watch_sqlite,
        }[kind]()  # fmt: skip


def _allocated() -> int:
    """How many allocations there were since ``watch_memory`` without a number: those not left until ``MOST``."""
    rounds = 0
    try:
        while True:
            object()
            rounds += 1
    except MemoryError:
        return MOST - (2 * rounds - SMALL)  # the object and the number; no small number is allocated


def place(frame: FrameType | None) -> str:
    """The line of vctl nearest to a frame."""
    while frame is not None:
        path = frame.f_code.co_filename
        if "/vctl/" in path and "/tests/" not in path:
            return f"{path[path.rindex('/vctl/') + 1 :]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "-"


def error_of(number: int) -> BaseException:
    """The error that a call raises: by errno, or by SQLite's result code if it is negative."""
    if number == -7:
        return MemoryError()
    if number < 0:
        import sqlite3

        error = sqlite3.OperationalError(_TEXTS[-number])
        error.sqlite_errorcode = -number
        return error
    return OSError(number, os.strerror(number))


def _name(function: Any) -> str:
    """``module.function``, or the kind of object and its method."""
    owner = function.__self__
    if owner is None or isinstance(owner, type(sys)):
        return f"{function.__module__ or ''}.{function.__name__}"
    for kind, name in _OBJECTS:
        if isinstance(owner, kind):
            return f"{name}.{function.__name__}"
    return ""


def _objects() -> list[tuple[Any, str]]:
    import _socket
    import io
    import select
    import sqlite3

    return [
        (io.IOBase, "file"), (_socket.socket, "socket"), (sqlite3.Connection, "sqlite"),
        (sqlite3.Cursor, "sqlite"), (type(select.poll()), "poll"), (select.epoll, "epoll"),
    ]  # fmt: skip


# ---- SQLite from inside ----

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
_SYSTEM_CALLS: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]] = {
    "open": (_I, (ctypes.c_char_p, _I, _I), (errno.EMFILE, errno.ENOSPC)),
    "stat": (_I, (ctypes.c_char_p, _P), (errno.ENOMEM,)),
    "fstat": (_I, (_I, _P), (errno.EIO,)),
    "ftruncate": (_I, (_I, _L), (errno.EIO, errno.ENOSPC)),
    "fcntl": (_I, (_I, _I, _P), (errno.ENOLCK,)),
    "pread": (_L, (_I, _P, _L, _L), (errno.EIO,)),
    "pread64": (_L, (_I, _P, _L, _L), (errno.EIO,)),
    "pwrite": (_L, (_I, _P, _L, _L), (errno.ENOSPC, errno.EIO)),
    "pwrite64": (_L, (_I, _P, _L, _L), (errno.ENOSPC, errno.EIO)),
    "fchmod": (_I, (_I, _I), (errno.EIO,)),
    "unlink": (_I, (ctypes.c_char_p,), (errno.EIO,)),
    "mmap": (_P, (_P, _L, _I, _I, _I, _L), (errno.ENOMEM,)),
}
"""Name -> its result, its arguments, and what it fails with."""
_KEPT: list[Any] = []
"""What SQLite has pointers to."""


class _Vfs(ctypes.Structure):
    pass


_Vfs._fields_ = [
    ("version", _I), ("size", _I), ("longest", _I), ("next", _P), ("name", ctypes.c_char_p), ("data", _P),
    *((f"x{n}", _P) for n in range(13)),
    ("set", ctypes.CFUNCTYPE(_I, ctypes.POINTER(_Vfs), ctypes.c_char_p, _P)),
    ("get", ctypes.CFUNCTYPE(_P, ctypes.POINTER(_Vfs), ctypes.c_char_p)),
]  # fmt: skip


class _Memory(ctypes.Structure):
    _fields_ = [
        ("malloc", ctypes.CFUNCTYPE(_P, _I)), ("free", _P), ("realloc", ctypes.CFUNCTYPE(_P, _P, _I)),
        ("size", _P), ("roundup", _P), ("init", _P), ("shutdown", _P), ("data", _P),
    ]  # fmt: skip


_counts: list[Callable[[], bool]] = []
"""Who counts the allocations of SQLite now, if somebody does."""


def prepare() -> None:
    """Let SQLite ask for its memory here. Only before this process has imported ``sqlite3``."""
    assert "_sqlite3" not in sys.modules
    library = ctypes.CDLL("libsqlite3.so.0")
    usual, own = _Memory(), _Memory()
    assert library.sqlite3_config(5, ctypes.byref(usual)) == 0  # SQLITE_CONFIG_GETMALLOC
    ctypes.memmove(ctypes.byref(own), ctypes.byref(usual), ctypes.sizeof(own))
    malloc, realloc = usual.malloc, usual.realloc

    def fails() -> bool:
        return bool(_counts) and _counts[0]()

    own.malloc = type(own.malloc)(lambda size: None if fails() else malloc(size))
    own.realloc = type(own.realloc)(lambda old, size: None if fails() else realloc(old, size))
    _KEPT.extend((usual, own))
    assert library.sqlite3_config(4, ctypes.byref(own)) == 0  # SQLITE_CONFIG_MALLOC


_OBJECTS: list[tuple[Any, str]] = []


def begin() -> None:
    """Learn the kinds of objects; imports ``sqlite3``."""
    _OBJECTS[:] = _objects()
