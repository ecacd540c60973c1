"""The lines of a record file, ``records/<number>``, about the runs that one supervisor carries out.

    H <number> <boot>                             the scheduler has made the file
    T <run> <supervisor> <its start> <boot>       the supervisor takes the run: no other process starts it
    S <run> <pid> <its start> <epoch ns>          the main process runs
    W <run> <message>                             its process cannot be started yet, and why; next try soon
    E <run> <code> <signal> <errno> <stopped> <epoch ns> <max rss KiB> <user us> <system us> <message>

    D <run>                                       it declines a run assigned ahead; is sent, but not written

A line ends in a checksum and a newline, and counts only if both are there. A supervisor that writes after a
line that was cut short begins with a newline. The same lines travel to the scheduler on the supervisor's line
to it.

Stand-alone, like processes.py: written by supervisors, read by schedulers. Imports only built-in modules.
"""

import errno
import fcntl
import os
import stat
import zlib

MYPY = False
if MYPY or __package__:
    from vctl.runtime import logfile
else:
    import logfile

HEADER, TAKEN, WAITS, STARTED, ENDED, DECLINED = b"H", b"T", b"W", b"S", b"E", b"D"
_MAX_MESSAGE = 2000
_LEAST_SPACE, _SPACE = 8192, 32768  # bytes to reserve for several runs: the end of a taken run always fits
NO_FILE = (errno.ELOOP, errno.EACCES, errno.ENXIO, errno.EISDIR)  # from opening anything but a record file
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CHUNK_BYTES = 4096
_MAX_BYTES = 1 << 26  # none has so much: a number has a thousand runs
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
"""Errors of ext2 and ramfs, which cannot reserve space. (glibc writes zeros instead, not with O_APPEND.)"""


def line(kind: bytes, run: bytes, rest: bytes) -> bytes:
    """A line with its checksum and newline."""
    body = b"%b %b %b" % (kind, run, rest)
    return b"%b %08x\n" % (body, zlib.crc32(body))


def parsed(whole: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Kind, run and the rest of a line without its newline; None if it is no such line."""
    body, _, check = whole.rpartition(b" ")
    try:
        if len(check) != 8 or int(check, 16) != zlib.crc32(body):
            return None
        kind, run, rest = body.split(b" ", 2)
    except ValueError:
        return None
    return kind, run, rest


def message(text: str) -> bytes:
    """A message as the last word of a line."""
    return text.replace("\n", " ").encode(errors="surrogateescape")[:_MAX_MESSAGE]


class Busy(Exception):
    """Another process has the record file, or it is none."""


class Writer:
    """The record file of this process, held locked while the process lives.

    The lock belongs to the process, not to the open file: child processes do not have it, and the kernel
    tells other processes the pid of the holder. The process must not open the file a second time: closing it
    drops the lock.
    """

    __slots__ = ("capacity", "fd", "runs", "torn")

    def __init__(self, path: bytes) -> None:
        """Lock the file and read which runs were taken. Raises Busy, FileNotFoundError."""
        self.fd = os.open(path, _APPEND)
        self.capacity = 0
        try:
            info = os.fstat(self.fd)
            if not stat.S_ISREG(info.st_mode) or info.st_size > _MAX_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.fd)
            raise Busy from error
        text = b""
        while part := os.read(self.fd, _CHUNK_BYTES):
            text += part
        self.torn = text[-1:] not in (b"", b"\n")
        self.runs: dict[bytes, None] = {}
        for whole in text.split(b"\n")[:-1]:
            if whole[:1] == TAKEN and (taken_line := parsed(whole)) is not None:
                self.runs[taken_line[1]] = None

    def take(self, run: bytes, whole: bytes) -> bool:
        """Write that a run is taken; False if it was taken before. Raises OSError if the disk is full."""
        if run in self.runs:
            return False
        if self.capacity < _LEAST_SPACE:  # reserve space for all lines until the end of the run
            try:
                logfile.allocate(self.fd, os.lseek(self.fd, 0, os.SEEK_END), _SPACE)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
            self.capacity = _SPACE
        self.write(whole)
        self.runs[run] = None
        return True

    def write(self, whole: bytes) -> None:
        """Append lines. Raises OSError if they were not written completely."""
        data = b"\n" + whole if self.torn else whole
        written = os.write(self.fd, data)
        self.capacity -= written
        self.torn = written != len(data)
        if self.torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file, which also unlocks it."""
        os.close(self.fd)
