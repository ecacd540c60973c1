"""The files of objects: each attempt of a job has a directory on each node, with a file or tree per object.

An object is at ``objects/<job>.<attempt>.<node>/<name>`` in the state directory; the directory has mode
0700, and only one level, because every job needs one. When a job is over, its directory is kept for another
job if it is empty, because renaming is faster than making a directory; else it is removed.

Nothing here follows a symbolic link: directories are opened one by one, and links are not followed to
measure, bring or remove an object. Whatever a job did to its directory, the worst result is the error
Unusable.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from vctl.errors import disk_trouble
from vctl.runtime import trees

ROOT = "objects"
_FOLDER_NAME = re.compile(r"(\d+)\.(\d+)\.(.+)\Z")
_MAX_SPARES = 256
"""At most this many unused empty directories are kept for later jobs."""


class _Known:
    """Directories of jobs that are not over (``made``), and of jobs that are over: those that may be empty
    (``spares``, the latest at the end) and the others (``stale``).
    """

    __slots__ = ("made", "spares", "stale")

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.spares: dict[str, None] = {}
        self.stale: set[str] = set()


_known: dict[str, _Known] = {}
"""State directory's ``objects`` -> the directories in it."""
empty_for_us: Callable[[str], None] | None = None
"""In a shared service: has a directory emptied with the rights of its user."""
_STAGED, _BROUGHT = ".incoming-", ".brought-"
"""Prefixes of names that are no objects: the name of an object begins with a letter or digit."""
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
Unusable = trees.Unusable
MAX_SIZE = 1 << 60
"""The largest object in bytes: sizes of sparse files could overflow the sums in the tables."""


def folder_path(home: Path, job_id: int, attempt: int, node_id: str) -> Path:
    """The directory of the objects of one attempt of a job on a node: ``VCTL_OBJECT_DIR``."""
    return Path(folder_of(str(home), job_id, attempt, node_id))


def folder_of(home: str, job_id: int, attempt: int, node_id: str) -> str:
    """Like ``folder_path``, as text."""
    return f"{home}/{ROOT}/{job_id}.{attempt}.{node_id}"


def make(folder: str | Path) -> None:
    """Make the directory of a job on a node; a file in its place is removed."""
    folder = os.fspath(folder)
    above = os.path.dirname(folder)
    known = _known_below(above)
    known.spares.pop(folder, None)
    known.stale.discard(folder)
    if folder not in known.made:
        known.made.add(folder)
        while known.spares:
            spare, _ = known.spares.popitem()
            if not _is_as_made(spare):
                known.stale.add(spare)
                continue
            try:
                os.rename(spare, folder)
            except FileNotFoundError:
                continue
            except OSError:  # something else has the name
                known.spares[spare] = None
                break
            return
    try:
        _make_folder(folder)
    except FileNotFoundError:
        _make_folder(above)
        _make_folder(folder)


def _known_below(above: str) -> _Known:
    if (known := _known.get(above)) is None:
        known = _known[above] = _Known()
        with contextlib.suppress(OSError):
            known.made.update(f"{above}/{name}" for name in os.listdir(above))
    return known


def _is_as_made(folder: str) -> bool:
    """Whether a directory is like a new one: empty, with mode 0700. Most jobs leave it so."""
    try:
        mode = os.lstat(folder).st_mode
        return stat.S_ISDIR(mode) and stat.S_IMODE(mode) == 0o700 and not os.listdir(folder)
    except OSError:
        return False


def _make_folder(folder: str | Path) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        info = os.lstat(folder)
        mode = info.st_mode
        if not stat.S_ISDIR(mode):
            os.unlink(folder)
            os.mkdir(folder, 0o700)
        elif stat.S_IMODE(mode) != 0o700 and info.st_uid == os.geteuid():  # a job has changed the mode
            os.chmod(folder, 0o700)


def size_of(folder: Path, name: str) -> int:
    """The size of an object in bytes: of the file, or of all files in the tree. Raises Unusable."""
    with _opened(folder, name) as fd, _reading(name):
        info = _stat(fd, name)
        size = info.st_size if stat.S_ISREG(info.st_mode) else 0
        for _, inner, names in trees.walk(fd, name) if stat.S_ISDIR(info.st_mode) else ():
            infos = (os.stat(file, dir_fd=inner, follow_symlinks=False) for file in names)
            size += sum(info.st_size for info in infos if stat.S_ISREG(info.st_mode))
        if size > MAX_SIZE:
            raise Unusable(f"{name} claims {size} bytes; an object has at most {MAX_SIZE}")
        return size


def seal(folder: Path, name: str) -> None:
    """Make the files of an object read-only, because its copies are hard links. Raises Unusable."""
    with _opened(folder, name) as fd, _reading(name):
        if stat.S_ISREG(_stat(fd, name).st_mode):
            _make_read_only(fd, name)
            return
        for _, inner, names in trees.walk(fd, name):
            for file in names:
                _make_read_only(inner, file)


def is_there(folder: Path, name: str) -> bool:
    """Whether there is an object of this name."""
    try:
        with _opened(folder, name) as fd:
            _stat(fd, name)
    except Unusable:
        return False
    return True


def bring(source: Path, target: Path, name: str) -> None:
    """Make an object visible on another node of this machine, all or nothing, by hard links or copies.

    Raises Unusable if the object is gone. An object that was brought before is not changed: others may read
    it.
    """
    staged, mark = target / f"{_STAGED}{name}", target / f"{_BROUGHT}{name}"
    if os.path.lexists(mark) and is_there(target, name):
        return
    trees.remove(staged)
    try:
        with _opened(source, name) as fd:
            if stat.S_ISREG(_stat(fd, name).st_mode):
                _link(fd, name, staged)
            else:
                _link_tree(fd, name, staged)
        trees.remove(target / name)
        os.rename(staged, target / name)
        mark.touch(mode=0o600)
    except OSError as error:
        if (trouble := disk_trouble(error)) is not None:
            raise trouble from None
        raise Unusable(f"{name} cannot be brought to {target}: {error.strerror}") from None
    finally:
        trees.remove(staged)


def clear(folder: Path, name: str) -> None:
    """Remove the object that an earlier attempt left under a name."""
    for entry in (name, f"{_BROUGHT}{name}"):
        trees.remove(folder / entry)


def remove(home: Path, job_id: int, attempt: int, node_id: str) -> None:
    """Remove the objects of an attempt of a job on a node, if there are any."""
    folder = folder_of(str(home), job_id, attempt, node_id)
    _known_below(f"{home}/{ROOT}").made.discard(folder)
    _remove(folder)


def _remove(folder: str) -> None:
    """Remove a directory; what only its user can remove goes soon, and the directory with the next look at all."""
    trees.remove(Path(folder))
    if empty_for_us is not None and os.path.lexists(folder):
        empty_for_us(folder)


def let_go(home: Path, job_id: int, attempt: int, node_id: str) -> None:
    """Make a directory a spare: the next job that needs one gets it, or ``tidy`` removes it."""
    known, folder = _known_below(f"{home}/{ROOT}"), folder_of(str(home), job_id, attempt, node_id)
    known.made.discard(folder)
    known.spares[folder] = None


def tidy(home: Path) -> None:
    """Remove the objects of jobs that are over, and the empty directories above ``_MAX_SPARES``."""
    known = _known_below(f"{home}/{ROOT}")
    known.stale.update(folder for folder in known.spares if not _is_as_made(folder))
    known.stale.update(list(known.spares)[: -_MAX_SPARES or None])
    for folder in sorted(known.stale):
        known.spares.pop(folder, None)
        _remove(folder)
        known.stale.discard(folder)


def folders(home: Path) -> Iterator[tuple[int, int, str]]:
    """(job, attempt, node) of all directories of objects, without those that this process has let go."""
    known = _known_below(f"{home}/{ROOT}")
    with contextlib.suppress(FileNotFoundError), os.scandir(home / ROOT) as entries:
        for entry in entries:
            if (match := _FOLDER_NAME.match(entry.name)) and entry.path not in known.spares:
                yield int(match[1]), int(match[2]), match[3]


def is_empty(home: Path, job_id: int, attempt: int, node_id: str) -> bool:
    """Whether the directory is empty, with its mode unchanged; also true for a spare."""
    return _is_as_made(folder_of(str(home), job_id, attempt, node_id))


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[int]:
    """Open the directory of a job on a node, by way of its parent, without following links."""
    fd = -1
    try:
        try:
            fd = os.open(folder.parent, trees.OPEN)
            inner = os.open(folder.name, trees.OPEN, dir_fd=fd)
            os.close(fd)
            fd = inner
        except OSError as error:
            raise Unusable(f"there is no {name}: {folder}: {error.strerror}") from None
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Raise Unusable for a tree of which a part cannot be read, or is removed meanwhile."""
    try:
        yield
    except OSError as error:
        raise Unusable(f"{name} cannot be read: {error.strerror}") from None


def _stat(folder: int, name: str) -> os.stat_result:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise Unusable(f"there is no {name}") from None
    except OSError as error:
        raise Unusable(f"{name} cannot be looked at: {error.strerror}") from None
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        kind = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "a special file"
        raise Unusable(f"{name} is {kind}; an object is a file or a directory")
    return info


def _make_read_only(folder: int, name: str) -> None:
    """Make a file read-only, unless it has further hard links, which may be somebody else's."""
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            info = os.fstat(fd)
            if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
                os.fchmod(fd, stat.S_IMODE(info.st_mode) & ~_WRITE)
        finally:
            os.close(fd)


def _link_tree(above: int, name: str, target: Path) -> None:
    for within, folder, names in trees.walk(above, name):
        os.mkdir(target / within, 0o700)
        if os.fstat(folder).st_uid != os.geteuid():
            os.chmod(target / within, 0o755)
        for file in names:
            _link(folder, file, target / within / file)


def _link(folder: int, name: str, target: Path) -> None:
    """Copy one entry of a tree: a file as a hard link or copy, a symbolic link as such; special files not."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=folder), target)
    elif stat.S_ISREG(mode):
        try:
            os.link(name, target, src_dir_fd=folder, follow_symlinks=False)
        except OSError:  # the filesystem has no hard links, or the file has too many
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with open(fd, "rb") as source, open(target, "xb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                if os.fstat(source.fileno()).st_uid != os.geteuid():  # of a user, who is to read the copy
                    os.fchmod(copy.fileno(), 0o644 | stat.S_IMODE(mode) & 0o111)
