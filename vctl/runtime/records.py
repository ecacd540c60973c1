"""The files by which a supervisor tells of its run (layout: see supervisor.py), read and judged.

Whoever can read the state directory can observe; no supervisor, launcher or scheduler is asked. A file that
cannot be read for any reason but absence raises RuntimeUnavailable.
"""

import fcntl
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from vctl.runtime.protocol import ExitRecord, RunState, RuntimeUnavailable, Seen, StartRecord

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
            for place in (self.home, self.runs, self.exits, self.stops, self.logs):
                place.mkdir(mode=0o700, parents=place is self.home, exist_ok=True)
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
        except OSError as error:
            raise _unavailable(error) from error

    def observe(self, run_id: str) -> Seen:
        """Judge a run by its files."""
        ended = self.exit_record(run_id)
        if ended is None:
            if not self.started(run_id):
                return Seen(RunState.NEVER_STARTED)
            held = self._lock_is_held(run_id)
            start = self.start_record(run_id)
            if held:
                return Seen(RunState.STARTING if start is None else RunState.RUNNING, start)
            ended = self.exit_record(run_id)  # it may have been written between the first look and the lock
            if ended is None:
                return Seen(RunState.LOST, start)
        return Seen(RunState.EXITED, self.start_record(run_id), ended)

    def start_record(self, run_id: str) -> StartRecord | None:
        """Read that and how a run's process was started; None when it was not (yet)."""
        fields = _fields(self.exits / f"{run_id}.start")
        if fields is None:
            return None
        numbers = ("pid", "pid_started", "supervisor", "supervisor_started", "started_at")
        return StartRecord(boot_id=fields["boot_id"], **{name: int(fields[name]) for name in numbers})

    def exit_record(self, run_id: str) -> ExitRecord | None:
        """Read how a run ended; None when it has not."""
        fields = _fields(self.exits / f"{run_id}.exit")
        if fields is None:
            return None
        numbers = ("exit_code", "ended_at", "max_rss_kib", "user_us", "system_us")
        return ExitRecord(
            signal=int(fields["signal"]) or None,
            launch_errno=int(fields["launch_errno"]) or None,
            message=fields["message"],
            stopped=fields["stopped"] == "1",
            **{name: int(fields[name]) for name in numbers},
        )

    def supervisor(self, run_id: str) -> tuple[int, int] | None:
        """Pid and start time of the run's supervisor, dead or alive; None when none has taken it up."""
        text = _text(self.runs / run_id / "lock")
        if not text:
            return None
        pid, started = text.split()
        return int(pid), int(started)

    def request_stop(self, run_id: str, grace_s: float, signo: int) -> None:
        """Leave a stop request; a supervisor reads it before it starts the process and when signalled.

        An earlier request that is due sooner stays due: the supervisor may not have read it yet.
        """
        earlier = _text(self.stops / run_id)
        until_ns = time.monotonic_ns() + round(grace_s * 1e9)
        if earlier:
            until_ns = min(until_ns, int(earlier.split()[0]))
        staged = self.stops / f".{run_id}.{os.getpid()}.{threading.get_ident()}"
        try:
            staged.write_text(f"{until_ns} {signo}\n")
            staged.rename(self.stops / run_id)
        except OSError as error:
            raise _unavailable(error) from error

    def remove(self, run_id: str) -> None:
        """Remove all files of a run but its log; the directory last, as it keeps the run from starting."""
        run = self.runs / run_id
        files = (self.exits / f"{run_id}.start", self.exits / f"{run_id}.exit", self.stops / run_id)
        try:
            for path in (*files, run / "record", run / "lock"):
                path.unlink(missing_ok=True)
            if run.is_dir():
                run.rmdir()
        except OSError as error:
            raise _unavailable(error) from error

    def _lock_is_held(self, run_id: str) -> bool:
        try:
            lock = os.open(self.runs / run_id / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
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


def _fields(path: Path) -> Mapping[str, str] | None:
    """Read name=value lines. An incomplete file counts as none: only a power cut can have made it."""
    text = _text(path)
    if not text or not text.endswith("\n"):
        return None
    pairs = (line.partition("=") for line in text[:-1].split("\n"))
    return {name: value for name, _, value in pairs}


def _text(path: Path) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> RuntimeUnavailable:
    return RuntimeUnavailable(f"cannot use {error.filename or 'the state directory'}: {error.strerror}")
