"""The directories in /tmp and /var/tmp in which the files of a job's own ones are: made, held and removed.

Every process that uses them holds a lock, which the kernel drops when it dies. Who ends last removes them, and who
starts removes those of its user that nobody holds: no scheduler and no root are needed, also where a job of a shared
service was killed. Links are not followed. Stand-alone, like processes.py.
"""

import fcntl
import os
import time

PLACES = ("/tmp", "/var/tmp")
PREFIX = "vctl-tmp-"
REMOVE_S = 0.5
"""How long a run begins or ends later for this at most; the rest is removed another time."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotOurs(Exception):
    """Something of another user, or no directory, has the name."""


class OwnTmp:
    """The directories of one job, held by this process."""

    def __init__(self, store: str) -> None:
        """Make them unless they are there, and hold them. Raises OSError, NotOurs."""
        self.store = store
        self.places = [place for place in PLACES if os.path.isdir(place) and not os.path.islink(place)]
        self.above = {place: os.open(place, _OPEN) for place in self.places}
        self.lock = self._held()
        for place in self.places:
            self._make(self.above[place])

    def folder(self, place: str) -> str:
        """What is to be seen in the place of a public directory."""
        return f"{place}/{self.store}/tmp"

    def remove(self) -> None:
        """Remove them, if no other process holds them."""
        if _locked(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
            self._remove(self.store, time.monotonic() + REMOVE_S)

    def remove_unused(self) -> None:
        """Remove those of this user that no process holds."""
        give_up = time.monotonic() + REMOVE_S
        for above in self.above.values():
            for name in os.listdir(above):
                if name.startswith(PREFIX) and name != self.store and self._is_unused(name, above):
                    self._remove(name, give_up)

    def _held(self) -> int:
        """A lock on the directory that has the name now: who was last may remove it meanwhile."""
        above = self.above[self.places[0]]
        while True:
            self._make(above)
            try:
                lock = os.open(self.store, _OPEN, dir_fd=above)
            except FileNotFoundError:
                continue
            _locked(lock, fcntl.LOCK_SH)
            try:
                if os.stat(self.store, dir_fd=above, follow_symlinks=False).st_ino == os.fstat(lock).st_ino:
                    return lock
            except FileNotFoundError:
                pass
            os.close(lock)

    def _make(self, above: int) -> None:
        for path, mode in ((self.store, 0o700), (f"{self.store}/tmp", 0o1777)):
            try:
                os.mkdir(path, 0o700, dir_fd=above)
                os.chmod(path, mode, dir_fd=above)
            except FileExistsError:
                pass
            seen = os.stat(path, dir_fd=above, follow_symlinks=False)
            if seen.st_uid != os.geteuid() or seen.st_mode & 0o170000 != 0o040000:
                raise NotOurs(path)

    def _is_unused(self, name: str, above: int) -> bool:
        first = self.above[self.places[0]]
        try:
            if os.stat(name, dir_fd=above, follow_symlinks=False).st_uid != os.geteuid():
                return False
            lock = os.open(name, _OPEN, dir_fd=first)
        except FileNotFoundError:
            return True  # its first one, which has the lock, is gone
        except OSError:
            return False
        try:
            return _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(lock)

    def _remove(self, name: str, give_up: float) -> None:
        """Remove the directories of this name, the one with the lock last."""
        for above in reversed(self.above.values()):
            try:
                _remove(name, above, give_up)
            except (OSError, RecursionError):
                return  # somebody still writes, or it takes too long, or is too deep: another time


def _locked(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how)
    except BlockingIOError:
        return False
    return True


def _remove(name: str, above: int, give_up: float) -> None:
    """Remove a file or a tree. Raises OSError, RecursionError."""
    if time.monotonic() > give_up:
        raise TimeoutError
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        os.chmod(name, 0o700, dir_fd=above)
        fd = os.open(name, _OPEN, dir_fd=above)
        try:
            for entry in os.listdir(fd):
                _remove(entry, fd, give_up)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=above)
