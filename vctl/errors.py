"""Errors that a user can act on: the problem, its fix, and the code for scripts.

The outer layers (``cli``, ``http``, ``client``) show these errors. A broken invariant of vctl itself is a
plain ``AssertionError`` with a traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

_LONG = 1000
"""In a message with more characters than this, words of this length or more are shortened."""
_MARK = "\ufdd0"
"""Marks both ends of a parameter's name in a text. Unicode reserves this noncharacter for internal use."""


def param(name: str) -> str:
    """Mark a parameter's name in the text of an error; the command line replaces it by the option.

    ``num_cpus`` becomes ``--num-cpus``. Give the name of a duration without its suffix ``_s``.
    """
    return f"{_MARK}{name}{_MARK}"


def from_parts(parts: Sequence[str]) -> str:
    """The text of an error, from ``parts`` as ``VctlError.parts`` returns them."""
    return _MARK.join(parts)


def _told(value: Any, said: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return said(value)
    if isinstance(value, list):
        return [_told(one, said) for one in value]
    return {said(name): _told(one, said) for name, one in value.items()} if isinstance(value, dict) else value


class VctlError(Exception):
    """A problem with its fix. Subclasses set the exit code, the HTTP status and the code word."""

    code = "Error"
    exit_code = 1
    http_status = 500
    is_refusal = True
    """False: it may come at any moment, also when everything was done that was asked for."""

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

    def spelled(self, names: Mapping[str, str], *, for_good: bool = False) -> Self:
        """Replace the marked parameter names in the texts; names missing in ``names`` stay. Returns self.

        ``for_good``: nobody replaces them by other names later.
        """
        said = {
            field: "".join(
                names.get(part, part) if index % 2 else part for index, part in enumerate(text.split(_MARK))
            )
            for field, text in self._texts.items()
        }
        self.problem, self.fix, self.args = said["message"], said["hint"], (said["message"],)
        if "path" in self.details:
            self.details["path"] = said["path"]
        if for_good:
            self._texts = said
        return self

    def told_as(self, said: Callable[[str], str]) -> None:
        """Change its texts and the strings of its details, as to hide names."""
        self._texts = {field: said(text) for field, text in self._texts.items()}
        self.details = {name: _told(value, said) for name, value in self.details.items()}
        self.spelled({})

    def parts(self) -> dict[str, list[str]]:
        """The texts that name parameters, each split into parts; every second part is a parameter's name."""
        return {field: text.split(_MARK) for field, text in self._texts.items() if _MARK in text}

    def add_path(self, path: str, about: str = "") -> None:
        """Put a path in front of the message: a parameter, or the place of ``about`` in a document."""
        where = f"{path} ({about})" if about else path
        self._texts |= {"message": f"{where}: {self._texts['message']}", "path": path}
        self.details["path"] = path
        self.spelled({})

    def after(self, effect: str) -> Self:
        """Say what had happened before an error of the machine, so that nobody does it again. Returns self."""
        if not self.is_refusal and effect and effect not in self.problem:
            self._texts["message"] += f"; before that, {effect}"
            look = "`vctl job list`" if "submitted" in effect else "`vctl status`"
            self._texts["hint"] += f"; see with {look} what is there before you run it again"
        return self.spelled({})

    def in_line(self, number: int) -> Self:
        """Put the line of a batch in front of the message, and into ``details``. Returns self."""
        self._texts["message"] = f"line {number}: {self._texts['message']}"
        self.details["line"] = number
        return self.spelled({})

    def __str__(self) -> str:
        """The problem and, on a line of its own, the fix: a traceback in Python shows both."""
        return f"{self.problem}\nFix: {self.fix}" if self.fix else self.problem

    def document(self) -> dict[str, Any]:
        """The error as ``-o json`` and HTTP show it; a remote command raises the same error from it."""
        fields = {"code": self.code, "exit_code": self.exit_code, "message": self.problem, "hint": self.fix}
        return {"error": {**fields, "details": self.details}}


class BadSpec(VctlError):
    """Wrong usage or a value that cannot be read; ``details['path']`` names the field when there is one."""

    code, exit_code, http_status = "BadRequest", 2, 400


class Infeasible(VctlError):
    """The request could never run here, even with every node empty."""

    code, exit_code, http_status = "Infeasible", 3, 409


class NotFound(VctlError):
    """The object does not exist."""

    code, exit_code, http_status = "NotFound", 4, 404


class Conflict(VctlError):
    """The object exists already, is in use or has a newer revision, or a logical cluster has no capacity."""

    code, exit_code, http_status = "Conflict", 5, 409


class Unreachable(VctlError):
    """The scheduler or the server cannot be reached, or the write lock is taken."""

    code, exit_code, http_status = "Unreachable", 6, 503


class TimedOut(VctlError):
    """The wait ended before the awaited event happened."""

    code, exit_code, http_status = "Timeout", 7, 504


class NotPermitted(VctlError):
    """The caller may not do this."""

    code, exit_code, http_status = "NotPermitted", 8, 403


def not_text(error: UnicodeEncodeError) -> BadSpec:
    """The error for a text that UTF-8 cannot encode. It catches what the checks of the fields let through."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(error.object)[:60])
    return BadSpec(f"{text!r} is not valid UTF-8 text", fix="write it in UTF-8")


class DiskTrouble(VctlError):
    """The disk is full or fails. A scheduler concludes nothing from it and tries again until it works."""

    code, exit_code, http_status = "DiskTrouble", 1, 507
    is_refusal = False


class Exhausted(DiskTrouble):
    """This process or the machine has no open file or no memory left; it is waited for as for a full disk."""

    code, http_status = "ResourcesExhausted", 503


class Damaged(VctlError):
    """The database file is corrupt, or is no SQLite database."""

    code = "Damaged"
    is_refusal = False


def is_malformed(error: BaseException) -> bool:
    """Whether SQLite takes a file for a corrupt database, or for none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (_SQLITE_CORRUPT, _SQLITE_NOTADB)


def damage(error: BaseException) -> Damaged | None:
    """The ``Damaged`` error for an SQLite error about a corrupt database file; None for other errors."""
    if isinstance(error, Damaged):
        return error
    if is_malformed(error):
        return Damaged(
            f"the tables of the state directory are damaged: {error}",
            fix="find the damage with `vctl doctor`, stop the daemon, then put a backup in place with"
            " `vctl restore FILE`",
        )
    return None


def known(error: BaseException) -> VctlError | None:
    """The error to show to a user for an exception of the system; None if the cause is a bug of vctl."""
    if isinstance(error, UnicodeEncodeError):
        return not_text(error)
    return disk_trouble(error) or damage(error) or _refusal(error)


_FULL = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_IOERR, _SQLITE_FULL, _SQLITE_CORRUPT, _SQLITE_NOTADB = 10, 13, 11, 26
_SQLITE_GROWTH = (778, 4874)
"""IOERR_WRITE, IOERR_SHMSIZE: SQLite reports EFBIG as one of these."""
_SQLITE_CANTOPEN = 14
_SQLITE_PROTOCOL = 15
"""A lock could not be had: the kernel refused it."""
_SQLITE_REFUSED = (3, 8, _SQLITE_CANTOPEN)
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
    """The error for a path or a database that this process may not use; None for other exceptions."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_REFUSED:
        return NotPermitted(
            f"the tables of the state directory cannot be written: {error}",
            fix="check owner and mode of the state directory, and that its filesystem is writable",
        )
    if isinstance(error, FileNotFoundError) and str(error.filename).startswith("/proc/"):
        try:
            open("/proc/self/stat", "rb").close()
        except FileNotFoundError:
            return VctlError(
                "/proc is not mounted, and vctl observes processes there",
                fix="mount it: `mount -t proc proc /proc`",
            )
        return None
    if isinstance(error, OSError) and error.errno in _REFUSED and error.filename is not None:
        name = str(error.filename)
        short = name if len(name) <= 200 else f"{name[:200]}…"
        return NotPermitted(
            f"{short}: {error.strerror}", fix="name another path, or check its owner and mode"
        )
    return None


def _file_size_limit() -> int | None:
    import resource  # imported here because few commands need it

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _exhausted(error: BaseException) -> Exhausted | None:
    """The error for a lack of open files or memory; None for other exceptions."""
    number = error.errno if isinstance(error, OSError) else 0
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == _SQLITE_CANTOPEN:  # SQLite does not say why
        try:
            open("/dev/null", "rb").close()
        except OSError as cause:
            number = cause.errno or 0
    if number == errno.EMFILE:
        import resource  # imported here because few commands need it

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return Exhausted(
            f"no open file is left: this process may have {limit}",
            fix="raise that limit, such as by `ulimit -n 1024`, then try again",
        )
    if number == errno.ENFILE:
        return Exhausted(
            "the machine has no open file left", fix="raise fs.file-max, or end what has them open"
        )
    if number == errno.ENOLCK or getattr(error, "sqlite_errorcode", 0) & 0xFF == _SQLITE_PROTOCOL:
        return Exhausted(
            "the kernel did not lock a file of the state directory",
            fix="see how many locks `/proc/locks` has, then try again",
        )
    if number in (errno.ENOMEM, errno.ENOBUFS) or isinstance(error, MemoryError):
        return Exhausted(
            "no memory is left", fix="free memory or raise the limit (`ulimit -v`), then try again"
        )
    return None


def _nothing_is_open() -> OSError | None:
    return None


read_error: Callable[[], OSError | None] = _nothing_is_open
"""Why the tables that this process opened last are perhaps not damaged, though SQLite says so (``store/reading.py``).
Whoever opens tables sets it."""


def disk_trouble(error: BaseException) -> DiskTrouble | None:
    """The ``DiskTrouble`` for a failed write or read, or a lack of files or memory; None for another cause."""
    if isinstance(error, DiskTrouble):
        return error
    if is_malformed(error):
        error = read_error() or error
    if (exhausted := _exhausted(error)) is not None:
        return exhausted
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
