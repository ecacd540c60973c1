"""Record files as a scheduler reads them (format: lines.py), and requests to stop.

Any process that can read the state directory can observe runs, without a supervisor, launcher or scheduler. A
job can write here too: a line that is not as a supervisor writes it is skipped, and local.py judges what the
other lines say. A disk that cannot be read raises RuntimeUnavailable.
"""

import contextlib
import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from vctl.errors import disk_trouble
from vctl.runtime import lines
from vctl.runtime.protocol import ExitRecord, RuntimeUnavailable, StartRecord

FOLDER = "records"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_BYTES, _LONGEST_LINE = 1 << 24, 1 << 16
_MAX, _MAX_PID = (1 << 63) - 1, 1 << 22
_FLOCK = struct.Struct("hhqqi4x")
_NUMBER_BYTES = 6
_FIELDS = 8
_STOP_BYTES = 200
_FLAGS = struct.Struct("l")
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000  # FS_IOC_GETFLAGS and so on


class Entry:
    """The entry of a run in a record file.

    `proved`: the end came on the supervisor's line, which is proof; `waits`: why its process is not started yet.
    """

    __slots__ = ("boot", "exit", "proved", "start", "supervisor", "waits")

    def __init__(self, supervisor: tuple[int, int], boot: str) -> None:
        self.supervisor, self.boot = supervisor, boot
        self.start: StartRecord | None = None
        self.exit: ExitRecord | None = None
        self.proved, self.waits = False, ""


class RecordFile:
    """One record file, read as it grows."""

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = path, number
        self.runs: dict[str, Entry] = {}
        self.last = ""  # the run that was taken last
        self.declined: set[str] = set()  # runs that were assigned ahead and not taken
        self.awaited: set[str] = set()  # live runs of this number that no supervisor with a line has
        self.reported = ""  # the run that the present line last reported as taken
        self.over: set[str] = set()  # forgotten runs whose end the line may still report
        self.problem = ""  # the last problem of the file, such as a line that is no record
        self.boot = ""  # the boot in which it was made; empty: the file is gone, or its first line is bad
        self._offset, self._rest = 0, b""

    def read(self) -> set[str]:
        """Read the new lines of the file; the runs in them. Empty if the file is gone or no plain file."""
        with _opened(self.path) as fd:
            if fd < 0:
                self.problem, self.boot = self.problem or f"{FOLDER}/{self.number} is gone or no file", ""
                return set()
            size = os.fstat(fd).st_size
            if size < self._offset:
                self._offset, self._rest = 0, b""  # it was truncated
            data = os.pread(fd, min(size - self._offset, _MAX_BYTES), self._offset)
        if self._offset == 0:
            first, newline, _ = data.partition(b"\n")
            self.boot = _boot(first, self.number) if newline else ""
        self._offset += len(data)
        changed, self._rest = self.feed(self._rest + data)
        if len(self._rest) > _LONGEST_LINE:
            self.problem, self._rest = f"{FOLDER}/{self.number} has a line that is no record", b""
        return changed

    def feed(self, data: bytes, *, on_line: bool = False) -> tuple[set[str], bytes]:
        """Take in lines; the runs with news in them, and the incomplete rest. ``on_line``: sent by the supervisor."""
        changed: set[str] = set()
        *whole, rest = data.split(b"\n")
        mark = b"%b %b " % (lines.TAKEN, os.fsencode(self.reported))
        # the line has reported what precedes it
        old = not on_line and any(record.startswith(mark) for record in whole)
        for record in whole:
            old = old and not record.startswith(mark)
            if record and (run_id := self._take_in(record, on_line=on_line, old=old)) is None:
                self.problem = f"{FOLDER}/{self.number} has a line that is no record"
            elif record and run_id:
                changed.add(run_id)
        return changed, rest

    def forget(self, run_id: str) -> None:
        """Forget a run that is over."""
        entry = self.runs.pop(run_id, None)
        if entry is not None and not entry.proved:
            self.over.add(run_id)

    def _take_in(self, record: bytes, *, on_line: bool, old: bool) -> str | None:
        if (parsed := lines.parsed(record)) is None:
            return None
        kind, run, rest = parsed
        run_id = os.fsdecode(run)
        entry = self.runs.get(run_id)
        if kind == lines.DECLINED:
            if on_line and entry is None:
                self.declined.add(run_id)
            return run_id
        if on_line and kind == lines.TAKEN:
            self.reported = run_id
        if run_id in self.over and on_line and kind == lines.ENDED:
            self.over.discard(run_id)
            return ""
        # whether the line has reported it, and it was forgotten
        known = not on_line and (old or run_id == self.reported)
        if entry.proved if entry is not None else known or run_id in self.over:
            return ""  # more about it in the file is late, or not from its supervisor
        try:
            if kind == lines.HEADER:
                return ""
            if entry is None:  # if this is no T line, that one was removed
                pid, started, boot = rest.split(b" ") if kind == lines.TAKEN else (b"0", b"0", b"")
                supervisor = _number(pid, kind == lines.TAKEN, _MAX_PID), _number(started)
                entry = self.runs[run_id] = Entry(supervisor, boot.decode())
                self.last = run_id
            _note(entry, kind, rest, on_line=on_line)
        except ValueError:
            return None
        return run_id

    def holder(self) -> int | None:
        """Pid of the process that has the file locked, from the kernel; None when it is free or gone."""
        with _opened(self.path) as fd:
            if fd < 0:
                return None
            try:
                query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
            except OSError as error:
                raise unavailable(error) from error
        return None if kind == fcntl.F_UNLCK else pid


def make_apart(folder: Path) -> None:
    """Make a directory for many files, on ext4 in another part of the disk than its parent.

    For every new file, ext4 without a journal checks the inodes freed in the last minutes one by one. If
    many files were removed nearby, such as in an earlier directory of this name, that takes longer than
    starting a process.
    """
    staged = folder.with_name(f".{folder.name}-{os.urandom(6).hex()}")  # ext4 chooses the place by the name
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # another kind of filesystem, or the directory of another user
            flags = _FLAGS.unpack(fcntl.ioctl(parent, _GET_FLAGS, bytes(_FLAGS.size)))[0]
            fcntl.ioctl(parent, _SET_FLAGS, _FLAGS.pack(flags | _TOP_FOLDER))
        staged.mkdir(mode=0o700)
    finally:
        os.close(parent)
    try:
        staged.rename(folder)
    except OSError:
        staged.rmdir()  # another process made the directory meanwhile, and it is in use


class Records:
    """All record files of one state directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder, self.stops, self.logs = (home / name for name in (FOLDER, "stops", "logs"))
        self.files: dict[int, RecordFile] = {}
        self._path = f"{home}/{FOLDER}/"

    def create(self) -> None:
        """Make the directories, readable by their owner only."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise unavailable(error) from error
        self.restore()

    def restore(self) -> bool:
        """Make missing directories again; whether the directory of the record files was missing."""
        missing = not self.folder.is_dir()
        for folder in (self.folder, self.stops, self.logs):
            try:
                if folder == self.logs and not os.path.lexists(folder):
                    make_apart(folder)
                folder.mkdir(mode=0o700, exist_ok=True)
            except FileNotFoundError:
                break  # the state directory is gone
            except OSError as error:
                raise unavailable(error) from error
        return missing

    def add(self, boot: str) -> RecordFile:
        """Make a record file with a new random number."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        for remaining in reversed(range(3)):
            number = int.from_bytes(os.urandom(_NUMBER_BYTES), "little") + 1
            try:
                fd = os.open(f"{self._path}{number}", flags, 0o600)
                try:
                    os.write(fd, lines.line(lines.HEADER, b"%d" % number, boot.encode()))
                finally:
                    os.close(fd)
            except OSError as error:
                if not remaining or not isinstance(error, FileExistsError | FileNotFoundError):
                    raise unavailable(error) from error
                self.restore()
                continue
            break
        file = self.files[number] = RecordFile(f"{self._path}{number}", number)
        return file

    def file(self, number: int) -> RecordFile | None:
        """The file of a number; None if there is none."""
        if number not in self.files:
            if not os.path.lexists(f"{self._path}{number}"):
                return None
            self.files[number] = RecordFile(f"{self._path}{number}", number)
            self.files[number].read()
        return self.files[number]

    def scan(self) -> list[RecordFile]:
        """Find and read the files that are not known yet, and return them."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unavailable(error) from error
        numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
        return [file for number in numbers if number not in self.files and (file := self.file(number))]

    def remove(self, number: int) -> None:
        """Remove a file that has no writer any more; the tables must have all ends in it."""
        self.files.pop(number, None)
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            os.unlink(f"{self._path}{number}")

    # ---- requests to stop ----

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
            raise unavailable(error) from error

    def pending_stop(self, run_id: str) -> tuple[int, int] | None:
        """(When to kill in monotonic ns, signal) of a request that no supervisor has taken yet."""
        with _opened(f"{self.stops}/{run_id}") as fd:
            try:
                until_ns, signo = map(int, (b"" if fd < 0 else os.read(fd, _STOP_BYTES)).split())
            except ValueError:
                return None
        return until_ns, signo

    def stop_requests(self) -> list[str]:
        """Ids of the runs with a stop request."""
        try:
            return [name for name in os.listdir(self.stops) if not name.startswith(".")]
        except OSError:
            return []

    def drop_stop(self, run_id: str) -> None:
        """Remove a stop request that is not needed any more."""
        with contextlib.suppress(OSError):
            os.unlink(self.stops / run_id)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a plain file for reading; -1 if there is none."""
    try:
        fd = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        fd = -1
    except OSError as error:
        if error.errno not in lines.NO_FILE:
            raise unavailable(error) from error
        fd = -1
    try:
        yield fd if fd >= 0 and stat.S_ISREG(os.fstat(fd).st_mode) else -1
    except OSError as error:
        raise unavailable(error) from error
    finally:
        if fd >= 0:
            os.close(fd)


def _boot(first: bytes, number: int) -> str:
    """The boot in the first line of a file; empty if that line is not a header with this number."""
    parsed = lines.parsed(first)
    return parsed[2].decode() if parsed is not None and parsed[:2] == (lines.HEADER, b"%d" % number) else ""


def _note(entry: Entry, kind: bytes, rest: bytes, *, on_line: bool) -> None:
    """Note what a line says about a run. Raises ValueError if it is not as a supervisor writes it."""
    if kind == lines.WAITS:
        entry.waits = os.fsdecode(rest)
    elif kind == lines.STARTED:
        pid, began, at = rest.split(b" ")
        entry.start = StartRecord(_number(pid, 1), _number(began), *entry.supervisor, entry.boot, _number(at))
    elif kind == lines.ENDED:
        entry.exit, entry.proved = _exit(rest), on_line


def _exit(rest: bytes) -> ExitRecord:
    code, signo, number, stopped, ended, rss, user, system, words = rest.split(b" ", _FIELDS)
    return ExitRecord(
        exit_code=_number(code, 0, 255), signal=_number(signo, 0, 64) or None,
        launch_errno=_number(number, 0, 4095) or None, message=os.fsdecode(words),
        stopped=_number(stopped, 0, 1) == 1, ended_at=_number(ended), max_rss_kib=_number(rss),
        user_us=_number(user), system_us=_number(system),
    )  # fmt: skip


def _number(word: bytes, least: int = 0, limit: int = _MAX) -> int:
    number = int(word)
    if not least <= number <= limit:
        raise ValueError
    return number


def unavailable(error: OSError) -> RuntimeUnavailable:
    """The error to raise when the disk fails."""
    trouble = disk_trouble(error)
    return RuntimeUnavailable(
        f"cannot use {error.filename or 'the state directory'}: {error.strerror}",
        fix="check owner and mode of the state directory" if trouble is None else trouble.fix,
    )
