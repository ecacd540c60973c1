"""The files by which a supervisor tells of its run (layout: see supervisor.py), read and checked.

Whoever can read the state directory can observe; no supervisor, launcher or scheduler is asked. A job can write here
too: what is not as a supervisor writes it is Damaged. A disk that cannot be read raises RuntimeUnavailable.
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from vctl.runtime import trees
from vctl.runtime.protocol import ExitRecord, RuntimeUnavailable, StartRecord

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
_MAX_RUN_ID_BYTES = 200  # a file name has 255, and a suffix is added


class RunFiles:
    """The files of all runs below one state directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runs, self.exits, self.stops, self.logs = (
            home / name for name in ("runs", "exits", "stops", "logs")
        )

    def create(self) -> None:
        """Make the directories, readable by their owner only."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unavailable(error) from error
        self.restore()

    def restore(self) -> None:
        """Make again what is missing in the state directory; nothing where that itself is gone."""
        for place in (self.runs, self.exits, self.stops, self.logs):
            try:
                place.mkdir(mode=0o700, exist_ok=True)
            except FileNotFoundError:
                return
            except OSError as error:
                raise _unavailable(error) from error

    def started(self, run_id: str) -> bool:
        """Say whether a supervisor has taken up the run, ever."""
        try:
            os.stat(self.runs / run_id)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unavailable(error) from error
        return True

    def run_ids(self) -> list[str]:
        """Every run a supervisor has taken up and nobody has forgotten."""
        try:
            return sorted(name for name in os.listdir(self.runs) if not name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unavailable(error) from error

    def start_record(self, run_id: str) -> StartRecord | None:
        """Read that and how a run's process was started; None when it was not (yet). Raises Damaged."""
        path = self.exits / f"{run_id}.start"
        if (fields := _fields(path)) is None:
            return None
        numbers = {name: _number(path, fields, name, least) for name, least in _START.items()}
        return StartRecord(boot_id=_word(path, fields, "boot_id"), **numbers)

    def exit_record(self, run_id: str) -> ExitRecord | None:
        """Read how a run ended; None when it has not. Raises Damaged."""
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
        """Give a file that is no record another name, so that it is looked at once and the right one has its place."""
        try:
            os.rename(damaged.path, self.exits / f".aside-{os.urandom(6).hex()}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unavailable(error) from error

    def supervisor(self, run_id: str) -> tuple[int, int] | None:
        """Pid and start time of the run's supervisor, dead or alive; None when none has taken it up."""
        try:
            words = (_text(self.runs / run_id / "lock") or "").split()
            pid, started = map(int, words)
        except (Damaged, ValueError):
            return None  # somebody wrote into it
        return (pid, started) if 0 < pid < _MOST_PID and 0 <= started < _MOST else None

    def request_stop(self, run_id: str, grace_s: float, signo: int) -> None:
        """Leave a stop request; a supervisor reads it before it starts the process and when signalled.

        An earlier request that is due sooner stays due: the supervisor may not have read it yet.
        """
        until_ns = time.monotonic_ns() + round(grace_s * 1e9)
        if (earlier := self.pending_stop(run_id)) is not None:
            until_ns = min(until_ns, earlier[0])
        staged = self.stops / f".{run_id}.{os.getpid()}.{threading.get_ident()}"
        try:
            if not self.stops.is_dir():
                self.restore()
            staged.write_text(f"{until_ns} {signo}\n")
            staged.rename(self.stops / run_id)
        except OSError as error:
            raise _unavailable(error) from error

    def pending_stop(self, run_id: str) -> tuple[int, int] | None:
        """(When to kill in monotonic ns, signal) of a request that no supervisor has taken yet."""
        try:
            until_ns, signo = map(int, (_text(self.stops / run_id) or "").split())
        except (Damaged, ValueError):
            return None
        return until_ns, signo

    def remove(self, run_id: str) -> None:
        """Remove all files of a run but its log; the directory last, as it keeps the run from starting."""
        run = self.runs / run_id
        files = (self.exits / f"{run_id}.start", self.exits / f"{run_id}.exit", self.stops / run_id)
        try:
            for path in (*files, run / "record", run / "lock"):
                path.unlink(missing_ok=True)
            if run.is_dir():
                run.rmdir()
        except OSError:
            for path in (*files, run):
                trees.remove(path)  # a job may have put anything there
            if os.path.lexists(run):
                raise RuntimeUnavailable(f"cannot remove {run}") from None

    def lock_path(self, run_id: str) -> str:
        """The file that a supervisor holds locked."""
        return f"{self.runs}/{run_id}/lock"

    def lock_is_held(self, run_id: str) -> bool:
        """Whether a supervisor stands over the run."""
        try:
            lock = os.open(self.runs / run_id / "lock", _READ)
        except (FileNotFoundError, NotADirectoryError):
            return False  # being forgotten
        except OSError as error:
            raise _unavailable(error) from error
        try:
            # Shared: two observers at once must not take each other for the supervisor.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise _unavailable(error) from error
        finally:
            os.close(lock)
        return False


def check_run_id(run_id: str) -> None:
    """Refuse an id that cannot be a file name; ids are the scheduler's, so this is a broken invariant."""
    plain = "/" not in run_id and "\0" not in run_id and not run_id.startswith(".")
    assert plain, f"not a run id: {run_id!r}"
    assert 0 < len(os.fsencode(run_id)) <= _MAX_RUN_ID_BYTES, f"not a run id: {run_id!r}"


class Damaged(Exception):
    """A file that has the name of a record and is none."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path.parent.name}/{path.name} {problem}")
        self.path = path


def _fields(path: Path) -> Mapping[str, str] | None:
    """Read name=value lines."""
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
    """A file of ours, whole; None when it is not there. Anything else in its place is Damaged."""
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


def _unavailable(error: OSError) -> RuntimeUnavailable:
    return RuntimeUnavailable(f"cannot use {error.filename or 'the state directory'}: {error.strerror}")
