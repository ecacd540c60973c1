"""Opens the log file of a run without following links, and keeps it below a size while the run writes it.

Stand-alone, like processes.py: runs in a supervisor. A log that has grown too large loses its beginning: the
kernel frees the blocks (a hole), the rest keeps its offsets, and writers and readers do not notice.
"""

import _ctypes
import errno
import os
import stat

_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_AGAIN = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SHARED = 0o640  # a user's, and readable by the group of the service
_BLOCK = 4096
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_FASTEST = 400_000_000  # the fastest expected growth of a log, in bytes per second
_LOOKS_S = (0.001, 0.25)
_FALLOCATE = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "fallocate64")


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001 - ctypes itself costs 3 ms
    _type_ = "l"


def open_for_writing(path: bytes, folder: "int | None" = None, owner: "tuple[int, int] | None" = None) -> int:
    """Open a log to append to it. Moves aside anything that is no plain file, or has a second link.

    ``folder``: the directory in which ``path`` is. ``owner``: the user and the group that a new one is given to, who
    may write and read it; the log of anybody else is refused. Raises OSError.
    """
    for _ in range(3):
        try:
            fd = os.open(path, _NEW, 0o600, dir_fd=folder)
        except FileExistsError:
            pass  # the log of an earlier attempt, or anything that a job put there
        else:
            return fd if owner is None else _given(fd, owner)
        try:
            fd = os.open(path, _AGAIN, dir_fd=folder)
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
        else:
            info = os.fstat(fd)
            if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
                os.set_blocking(fd, True)
                return fd if owner is None or info.st_uid == owner[0] else _given(fd, owner)
            os.close(fd)
        above, name = os.path.split(path)
        aside = os.path.join(above, b"." + name + b".aside-" + os.urandom(6).hex().encode())
        try:
            os.rename(path, aside, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            continue
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _given(fd: int, owner: tuple[int, int]) -> int:
    """Give an open log of root, which nobody has written to yet, to its user. Raises OSError, and closes it then."""
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        os.fchown(fd, *owner)
        os.fchmod(fd, _SHARED)
    except OSError:
        os.close(fd)
        raise
    return fd


def allocate(fd: int, start: int, count: int) -> None:
    """Reserve space beyond the end of a file without changing its size. Raises OSError."""
    # _ctypes gives no errno, so a failed call is repeated by os.posix_fallocate, which raises it.
    if _ctypes.call_function(_FALLOCATE, (fd, _KEEP_SIZE, _Long(start), _Long(count))) != 0:
        try:
            os.posix_fallocate(fd, start, count)
        finally:
            os.ftruncate(fd, start)


class Bounded:
    """A log that keeps about the latest ``max_bytes`` bytes."""

    def __init__(self, path: bytes, max_bytes: int, fd: int = -1) -> None:
        """``fd``: the log, if it is open already."""
        self.path, self.max_bytes = path, max(max_bytes, 16 * _BLOCK)
        self.fd = fd
        if fd < 0:
            self._open()

    def _open(self) -> None:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return  # the job has moved the log away, or no file or memory is left: the next look tries again
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
            self.fd = fd
        else:  # the job has put something else there
            os.close(fd)

    def trim(self) -> float:
        """Free the oldest bytes if there are too many; returns the seconds until the next look."""
        if self.fd < 0:
            self._open()
        if self.fd < 0:
            return _LOOKS_S[1]
        info = os.fstat(self.fd)
        used = info.st_blocks * 512
        if used > self.max_bytes:
            rest = self.max_bytes * 3 // 4
            self._cut((info.st_size - rest) // _BLOCK * _BLOCK)
            used = rest
        capacity = self.max_bytes + self.max_bytes // 16 - used
        return min(max(capacity / _FASTEST, _LOOKS_S[0]), _LOOKS_S[1])

    def _cut(self, end: int) -> None:
        if end <= 0:
            return
        args = (self.fd, _PUNCH_HOLE | _KEEP_SIZE, _Long(0), _Long(end))
        if _ctypes.call_function(_FALLOCATE, args) != 0:
            os.ftruncate(self.fd, 0)  # a filesystem without holes: the whole log is lost

    def close(self) -> None:
        """Close the log."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
