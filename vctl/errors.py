"""Errors a user can act on: what is wrong, how to fix it, and the code that scripts see.

Only the borders (``cli``, ``http``, ``client``) catch these. A broken invariant of our own is a plain
``AssertionError`` and crashes with its story.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any, Self

_LONG = 1000
"""Characters of a word that a message repeats whole."""
_MARK = "\ufdd0"
"""Stands around the name of a parameter in a text. Unicode keeps this character for use inside of programs."""


def param(name: str) -> str:
    """A parameter in the text of an error, where the command line has its option: ``num_cpus``, ``--num-cpus``.

    A number of seconds is named without ``_s``, as people write a duration.
    """
    return f"{_MARK}{name}{_MARK}"


def from_parts(parts: Sequence[str]) -> str:
    """The text of an error from its parts."""
    return _MARK.join(parts)


class VctlError(Exception):
    """A problem with its fix. Subclasses set the exit code, the HTTP status and the code word."""

    code = "Error"
    exit_code = 1
    http_status = 500

    def __init__(self, problem: str, *, fix: str = "", details: Mapping[str, Any] | None = None) -> None:
        if len(problem) > _LONG:
            import re

            problem = re.sub(rf"(\S{{200}})\S{{{_LONG - 220},}}(\S{{20}})", r"\1…\2", problem)
        super().__init__(problem)
        self.problem = problem
        self.fix = fix
        self.details: dict[str, Any] = dict(details or {})
        self._texts = {"message": problem, "hint": fix, "path": str(self.details.get("path", ""))}
        self.spelled({})

    def spelled(self, names: Mapping[str, str]) -> Self:
        """The same error with these names of its parameters; those that are not listed stay as they are."""
        said = {
            field: "".join(
                names.get(part, part) if index % 2 else part for index, part in enumerate(text.split(_MARK))
            )
            for field, text in self._texts.items()
        }
        self.problem, self.fix, self.args = said["message"], said["hint"], (said["message"],)
        if "path" in self.details:
            self.details["path"] = said["path"]
        return self

    def parts(self) -> dict[str, list[str]]:
        """The texts that name parameters, each in parts of which every second one is such a name."""
        return {field: text.split(_MARK) for field, text in self._texts.items() if _MARK in text}

    def place(self, path: str, about: str = "") -> None:
        """Put the error at a path: a parameter, or that of a document around the one that it is about."""
        where = f"{path} ({about})" if about else path
        self._texts |= {"message": f"{where}: {self._texts['message']}", "path": path}
        self.details["path"] = path
        self.spelled({})

    def __str__(self) -> str:
        """The problem and, on a line of its own, the fix: a traceback in Python shows both."""
        return f"{self.problem}\nFix: {self.fix}" if self.fix else self.problem

    def document(self) -> dict[str, Any]:
        """What ``-o json`` and HTTP show; a remote command raises the same error from it."""
        fields = {"code": self.code, "exit_code": self.exit_code, "message": self.problem, "hint": self.fix}
        return {"error": {**fields, "details": self.details}}


class BadSpec(VctlError):
    """Wrong usage or a value that cannot be read; ``details['path']`` names the field when there is one."""

    code, exit_code, http_status = "BadRequest", 2, 400


class Infeasible(VctlError):
    """Could never run here, even with every node empty."""

    code, exit_code, http_status = "Infeasible", 3, 409


class NotFound(VctlError):
    """No such object; the fix names the nearest ones."""

    code, exit_code, http_status = "NotFound", 4, 404


class Conflict(VctlError):
    """Exists already, in use, stale revision, or no capacity for a logical cluster."""

    code, exit_code, http_status = "Conflict", 5, 409


class Unreachable(VctlError):
    """The scheduler, the server or the write lock cannot be had."""

    code, exit_code, http_status = "Unreachable", 6, 503


class TimedOut(VctlError):
    """The wait ended before what was waited for happened."""

    code, exit_code, http_status = "Timeout", 7, 504


class NotPermitted(VctlError):
    """The caller may not do this."""

    code, exit_code, http_status = "NotPermitted", 8, 403


def not_text(error: UnicodeEncodeError) -> BadSpec:
    """What could not be stored or sent because it is no Unicode text: the last line behind the checks of each field."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(error.object)[:60])
    return BadSpec(f"{text!r} is not valid UTF-8 text", fix="write it in UTF-8")


class DiskTrouble(VctlError):
    """The disk is full or does not work: nothing is judged by that, and it is tried again while it lasts."""

    code, exit_code, http_status = "DiskTrouble", 1, 507


class Damaged(VctlError):
    """The file of the tables has pages that cannot be read."""

    code = "Damaged"


def damage(error: BaseException) -> Damaged | None:
    """What a failure to read says about the file of the tables; None when it says nothing about it."""
    if isinstance(error, Damaged):
        return error
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (_SQLITE_CORRUPT, _SQLITE_NOTADB):
        return Damaged(
            f"the tables of the state directory are damaged: {error}",
            fix="find the damage with `vctl doctor`, stop the daemon, then put a backup in place with"
            " `vctl restore FILE`",
        )
    return None


def known(error: BaseException) -> VctlError | None:
    """What an exception of the system says to a user; None when it is a mistake of this program."""
    if isinstance(error, UnicodeEncodeError):
        return not_text(error)
    return disk_trouble(error) or damage(error) or _refusal(error)


_FULL = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_IOERR, _SQLITE_FULL, _SQLITE_CORRUPT, _SQLITE_NOTADB = 10, 13, 11, 26
_SQLITE_GROWTH = (778, 4874)
"""IOERR_WRITE, IOERR_SHMSIZE: also what SQLite makes of EFBIG."""
_SQLITE_REFUSED = (3, 8, 14)
"""PERM, READONLY, CANTOPEN."""
_REFUSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EISDIR,
)


def _refusal(error: BaseException) -> VctlError | None:
    """What the system says about a path that cannot be used."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_REFUSED:
        return NotPermitted(
            f"the tables of the state directory cannot be written: {error}",
            fix="check owner and mode of the state directory, and that its filesystem is writable",
        )
    if isinstance(error, OSError) and error.errno in _REFUSED and error.filename is not None:
        name = str(error.filename)
        short = name if len(name) <= 200 else f"{name[:200]}…"
        return NotPermitted(
            f"{short}: {error.strerror}", fix="name another path, or check its owner and mode"
        )
    return None


def _file_size_limit() -> int | None:
    import resource  # here: few commands need it

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def disk_trouble(error: BaseException) -> DiskTrouble | None:
    """What the failure of a write or a read says about the disk; None when it says nothing about it."""
    if isinstance(error, DiskTrouble):
        return error
    result = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if result == _SQLITE_FULL or (isinstance(error, OSError) and error.errno in _FULL):
        return DiskTrouble(
            "the disk is full: the data could not be written",
            fix="free some space, then try again",
        )
    is_growth = (
        getattr(error, "sqlite_errorcode", 0) in _SQLITE_GROWTH or getattr(error, "errno", 0) == errno.EFBIG
    )
    if is_growth and (limit := _file_size_limit()) is not None:
        return DiskTrouble(
            f"a file could not grow: this process may write files of at most {limit} bytes",
            fix="raise that limit, such as by `ulimit -f unlimited`, then try again",
        )
    if result == _SQLITE_IOERR or (isinstance(error, OSError) and error.errno == errno.EIO):
        return DiskTrouble(
            f"the disk reports an error: {error}",
            fix="look for disk errors in `dmesg`, free some space, then try again",
        )
    return None
