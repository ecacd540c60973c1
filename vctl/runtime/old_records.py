"""Reads and removes the records of an earlier version of vctl, which had a directory for each run.

    runs/<run>/lock     locked (flock) while the supervisor lives; contains its "<pid> <start time>"
    exits/<run>.start   exists once the process runs
    exits/<run>.exit    exists once no process of the run is left

A job can write here too, so a file that is not as a supervisor writes it raises Damaged. A disk that cannot
be read raises RuntimeUnavailable.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from vctl.runtime import processes, trees
from vctl.runtime.protocol import ExitRecord, RuntimeUnavailable, StartRecord
from vctl.runtime.records import unavailable as _unavailable

_Record = TypeVar("_Record")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MOST_BYTES = 1 << 16
_MOST, _MOST_DIGITS = (1 << 63) - 1, 19
_MOST_PID = 1 << 22
_START = {"pid": 1, "pid_started": 0, "supervisor": 1, "supervisor_started": 0, "started_at": 0}  # least
_EXIT = {
    "exit_code": 255,
    "ended_at": _MOST,
    "max_rss_kib": _MOST,
    "user_us": _MOST,
    "system_us": _MOST,
}  # most


class OldRecords:
    """The files of all runs of the earlier version in one state directory."""

    def __init__(self, home: Path) -> None:
        self.runs, self.exits = home / "runs", home / "exits"

    def claim(self, run_id: str) -> bool:
        """Take a run, so that no supervisor of the earlier version starts it; False if one has taken it.

        Uses the protocol of that version: a process takes a run by renaming a non-empty directory to its
        place.
        """
        staged, place = self.runs / f".{run_id}.{os.getpid()}", self.runs / run_id
        try:
            staged.mkdir(mode=0o700, exist_ok=True)
            (staged / "moved").touch(mode=0o600)
            os.rename(staged, place)
        except FileNotFoundError:
            return True  # without the directory ``runs``, no supervisor of the earlier version is left
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise _unavailable(error) from error
            with contextlib.suppress(OSError):
                os.unlink(staged / "moved")
                os.rmdir(staged)
            return (place / "moved").exists()
        return True

    def started(self, run_id: str) -> bool:
        """Whether a supervisor of the earlier version has ever taken the run."""
        try:
            os.stat(self.runs / run_id)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unavailable(error) from error
        return not (self.runs / run_id / "moved").exists()

    def run_ids(self) -> list[str]:
        """Ids of all runs that were taken or claimed, and not removed since."""
        try:
            return sorted(name for name in os.listdir(self.runs) if not name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unavailable(error) from error

    def start_record(self, run_id: str) -> StartRecord | None:
        """Read how a run's process was started; None if it was not started. Raises Damaged."""
        path = self.exits / f"{run_id}.start"
        if (fields := _fields(path)) is None:
            return None
        numbers = {name: _number(path, fields, name, least) for name, least in _START.items()}
        return StartRecord(boot_id=_word(path, fields, "boot_id"), **numbers)

    def exit_record(self, run_id: str) -> ExitRecord | None:
        """Read how a run ended; None if it has not ended. Raises Damaged."""
        path = self.exits / f"{run_id}.exit"
        if (fields := _fields(path)) is None:
            return None
        numbers = {name: _number(path, fields, name, 0, most) for name, most in _EXIT.items()}
        return ExitRecord(
            signal=_number(path, fields, "signal", 0, 64) or None,
            launch_errno=_number(path, fields, "launch_errno", 0, 4095) or None,
            message=_word(path, fields, "message"),
            stopped=_number(path, fields, "stopped", 0, 1) == 1,
            **numbers,
        )

    def set_aside(self, damaged: "Damaged") -> None:
        """Rename a damaged file, so that it is reported only once and a good record can take its place."""
        try:
            os.rename(damaged.path, self.exits / f".aside-{os.urandom(6).hex()}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unavailable(error) from error

    def read(self, read: Callable[[str], _Record | None], run_id: str, problems: list[str]) -> _Record | None:
        """Read a record. A damaged one is set aside and added to ``problems``; the result is None then."""
        try:
            return read(run_id)
        except Damaged as damaged:
            problems.append(str(damaged))
            self.set_aside(damaged)
            return None

    def supervisor(self, run_id: str, *, held: bool) -> tuple[int, int] | None:
        """Pid and start time of the run's supervisor, dead or alive; None if they are unknown.

        From the kernel's lock table if the lock is ``held``, else from the lock file.
        """
        if held and (holder := processes.holder_of_lock(self.lock_path(run_id))):
            return holder, processes.start_time(holder) or 0
        try:
            words = (_text(self.runs / run_id / "lock") or "").split()
            pid, started = map(int, words)
        except (Damaged, ValueError):
            return None  # a job wrote into it
        return (pid, started) if 0 < pid < _MOST_PID and 0 <= started < _MOST else None

    def remove(self, run_id: str) -> None:
        """Remove all files of a run but its log; the directory last, because it prevents a second start."""
        run = self.runs / run_id
        files = (self.exits / f"{run_id}.start", self.exits / f"{run_id}.exit")
        try:
            for path in (*files, run / "moved", run / "lock"):
                path.unlink(missing_ok=True)
            if run.is_dir():
                run.rmdir()
        except OSError:
            for path in (*files, run):
                trees.remove(path)  # a job may have put anything there
            if os.path.lexists(run):
                raise RuntimeUnavailable(f"cannot remove {run}") from None

    def lock_path(self, run_id: str) -> str:
        """The path of the file that a supervisor keeps locked."""
        return f"{self.runs}/{run_id}/lock"

    def lock_is_held(self, run_id: str) -> bool:
        """Whether the supervisor of the run is alive."""
        try:
            lock = os.open(self.runs / run_id / "lock", _READ)
        except (FileNotFoundError, NotADirectoryError):
            return False  # being forgotten
        except OSError as error:
            raise _unavailable(error) from error
        try:
            # A shared lock, so that two observers do not take each other for the supervisor.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise _unavailable(error) from error
        finally:
            os.close(lock)
        return False


class Damaged(Exception):
    """A file with the name of a record that is no record."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path.parent.name}/{path.name} {problem}")
        self.path = path


def _fields(path: Path) -> Mapping[str, str] | None:
    """Read the name=value lines of a file; None if there is no file. Raises Damaged."""
    if (text := _text(path)) is None:
        return None
    if not text.endswith("\n"):
        raise Damaged(path, "is not whole")
    pairs = (line.partition("=") for line in text[:-1].split("\n"))
    return {name: value for name, _, value in pairs}


def _word(path: Path, fields: Mapping[str, str], name: str) -> str:
    if name not in fields:
        raise Damaged(path, f"has no {name}")
    return fields[name]


def _number(path: Path, fields: Mapping[str, str], name: str, least: int, most: int = _MOST) -> int:
    text = _word(path, fields, name)
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and least <= int(text) <= most):
        raise Damaged(path, f"has {name}={text[:40]!r}")
    return int(text)


def _text(path: Path) -> str | None:
    """The text of a regular file; None if there is none. Raises Damaged for anything else in its place."""
    try:
        fd = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EACCES, errno.ENXIO):
            raise Damaged(path, f"cannot be read: {error.strerror}") from None
        raise _unavailable(error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Damaged(path, "is not a file")
        data = os.read(fd, _MOST_BYTES + 1)
    except OSError as error:
        raise _unavailable(error) from error
    finally:
        os.close(fd)
    if len(data) > _MOST_BYTES:
        raise Damaged(path, f"has more than {_MOST_BYTES} bytes")
    return data.decode("utf-8", errors="surrogateescape")
