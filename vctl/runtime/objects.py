"""The files of objects: a directory for each attempt of a job on each node, in which an object is a file or a tree.

``objects/<job>.<attempt>.<node>/<name>`` below the state directory, with mode 0700; one level, because every job pays
for making and removing it. One whose job is over keeps its name until another job gets it, if it is empty, as a name is
changed faster than a directory is made; else it is removed.
Nothing here follows a symbolic link: directories are opened one by one, and what is measured, brought or removed is
looked at itself. Whatever a job made of its directory, the worst that comes of it is Unusable.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from vctl.errors import disk_trouble
from vctl.runtime import trees

ROOT = "objects"
_PLACE = re.compile(r"(\d+)\.(\d+)\.(.+)\Z")
_MOST_SPARES = 256
"""At most this many unused empty directories are kept for later jobs."""


class _Known:
    """Directories of jobs that are not over, and of jobs that are: those that may be empty, the last one at the end,
    and those that are not.
    """

    __slots__ = ("left", "made", "spares")

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.spares: dict[str, None] = {}
        self.left: set[str] = set()


_known: dict[str, _Known] = {}
"""By the directory above them."""
_STAGED, _BROUGHT = ".incoming-", ".brought-"
"""No object has a name that begins with a dot."""
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
Unusable = trees.Unusable
MAX_SIZE = 1 << 60
"""Bytes: files with holes may claim more than the tables can add up."""


def place_of(home: Path, job_id: int, attempt: int, node_id: str) -> Path:
    """Where the objects of one attempt of a job lie on a node: ``VCTL_OBJECT_DIR``."""
    return Path(folder_of(str(home), job_id, attempt, node_id))


def folder_of(home: str, job_id: int, attempt: int, node_id: str) -> str:
    """Like ``place_of``, as text."""
    return f"{home}/{ROOT}/{job_id}.{attempt}.{node_id}"


def make(folder: str | Path) -> None:
    """Make the directory of a job on a node; what stands in its way is removed."""
    folder = os.fspath(folder)
    above = os.path.dirname(folder)
    known = _known_below(above)
    known.spares.pop(folder, None)
    known.left.discard(folder)
    if folder not in known.made:
        known.made.add(folder)
        while known.spares:
            spare, _ = known.spares.popitem()
            if not _is_as_made(spare):
                known.left.add(spare)
                continue
            try:
                os.rename(spare, folder)
            except FileNotFoundError:
                continue
            except OSError:  # something stands in its way
                known.spares[spare] = None
                break
            return
    try:
        _make_one(folder)
    except FileNotFoundError:
        _make_one(above)
        _make_one(folder)


def _known_below(above: str) -> _Known:
    if (found := _known.get(above)) is None:
        found = _known[above] = _Known()
        with contextlib.suppress(OSError):
            for name in os.listdir(above):
                if name.startswith(".spare-"):  # the version before gave them another name
                    found.spares[f"{above}/{name}"] = None
                else:
                    found.made.add(f"{above}/{name}")
    return found


def _is_as_made(folder: str) -> bool:
    """Whether a directory is as one just made: nearly always a job has left nothing."""
    try:
        mode = os.lstat(folder).st_mode
        return stat.S_ISDIR(mode) and stat.S_IMODE(mode) == 0o700 and not os.listdir(folder)
    except OSError:
        return False


def _make_one(folder: str | Path) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        mode = os.lstat(folder).st_mode
        if not stat.S_ISDIR(mode):
            os.unlink(folder)
            os.mkdir(folder, 0o700)
        elif stat.S_IMODE(mode) != 0o700:  # whoever shut it finds it open again
            os.chmod(folder, 0o700)


def size_of(place: Path, name: str) -> int:
    """Bytes of an object: of the file, or of all files in the directory. Raises Unusable when it is not there."""
    with _opened(place, name) as here, _reading(name):
        info = _look(here, name)
        size = info.st_size if stat.S_ISREG(info.st_mode) else 0
        for _, folder, names in trees.walk(here, name) if stat.S_ISDIR(info.st_mode) else ():
            found = (os.stat(one, dir_fd=folder, follow_symlinks=False) for one in names)
            size += sum(one.st_size for one in found if stat.S_ISREG(one.st_mode))
        if size > MAX_SIZE:
            raise Unusable(f"{name} claims {size} bytes; an object has at most {MAX_SIZE}")
        return size


def seal(place: Path, name: str) -> None:
    """An object does not change: its files lose the permission to write, as copies share them. Raises Unusable."""
    with _opened(place, name) as here, _reading(name):
        if stat.S_ISREG(_look(here, name).st_mode):
            _make_read_only(here, name)
            return
        for _, folder, names in trees.walk(here, name):
            for one in names:
                _make_read_only(folder, one)


def is_there(place: Path, name: str) -> bool:
    """Whether an object lies there."""
    try:
        with _opened(place, name) as here:
            _look(here, name)
    except Unusable:
        return False
    return True


def bring(source: Path, place: Path, name: str) -> None:
    """Make an object visible on another node of this machine, whole or not at all: links, or copies where none can be.

    Raises Unusable when it is not there any more. What was brought once is left alone: others may read it.
    """
    staged, mark = place / f"{_STAGED}{name}", place / f"{_BROUGHT}{name}"
    if os.path.lexists(mark) and is_there(place, name):
        return
    trees.remove(staged)
    try:
        with _opened(source, name) as here:
            if stat.S_ISREG(_look(here, name).st_mode):
                _link(here, name, staged)
            else:
                _link_tree(here, name, staged)
        trees.remove(place / name)
        os.rename(staged, place / name)
        mark.touch(mode=0o600)
    except OSError as error:
        if (trouble := disk_trouble(error)) is not None:
            raise trouble from None
        raise Unusable(f"{name} cannot be brought to {place}: {error.strerror}") from None
    finally:
        trees.remove(staged)


def clear(place: Path, name: str) -> None:
    """Remove what an earlier try left under a name."""
    for entry in (name, f"{_BROUGHT}{name}"):
        trees.remove(place / entry)


def remove(home: Path, job_id: int, attempt: int, node_id: str) -> None:
    """Remove the objects of an attempt of a job on a node; what is gone is gone."""
    folder = folder_of(str(home), job_id, attempt, node_id)
    _known_below(f"{home}/{ROOT}").made.discard(folder)
    trees.remove(Path(folder))


def let_go(home: Path, job_id: int, attempt: int, node_id: str) -> None:
    """Nobody needs a directory: the next job that needs one gets it, or it is removed at leisure."""
    known, folder = _known_below(f"{home}/{ROOT}"), folder_of(str(home), job_id, attempt, node_id)
    known.made.discard(folder)
    known.spares[folder] = None


def tidy(home: Path) -> None:
    """Remove what jobs have left that are over, and empty directories of which there are many."""
    known = _known_below(f"{home}/{ROOT}")
    known.left.update(folder for folder in known.spares if not _is_as_made(folder))
    known.left.update(list(known.spares)[: -_MOST_SPARES or None])
    for folder in sorted(known.left):
        known.spares.pop(folder, None)
        trees.remove(Path(folder))
        known.left.discard(folder)


def folders(home: Path) -> Iterator[tuple[int, int, str]]:
    """(job, attempt, node) of all directories of objects, without those that this process has let go."""
    known = _known_below(f"{home}/{ROOT}")
    with contextlib.suppress(FileNotFoundError), os.scandir(home / ROOT) as entries:
        for entry in entries:
            if (found := _PLACE.match(entry.name)) and entry.path not in known.spares:
                yield int(found[1]), int(found[2]), found[3]


def is_empty(home: Path, job_id: int, attempt: int, node_id: str) -> bool:
    """Whether there is nothing in a directory; one that a scheduler keeps for another job is such."""
    return _is_as_made(folder_of(str(home), job_id, attempt, node_id))


@contextlib.contextmanager
def _opened(place: Path, name: str) -> Iterator[int]:
    """The directory of a job on a node, opened from the one above it."""
    fd = -1
    try:
        try:
            fd = os.open(place.parent, trees.OPEN)
            inner = os.open(place.name, trees.OPEN, dir_fd=fd)
            os.close(fd)
            fd = inner
        except OSError as error:
            raise Unusable(f"there is no {name}: {place}: {error.strerror}") from None
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """A tree of which a part cannot be read, or goes meanwhile, is Unusable."""
    try:
        yield
    except OSError as error:
        raise Unusable(f"{name} cannot be read: {error.strerror}") from None


def _look(folder: int, name: str) -> os.stat_result:
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
    """Only a file of our own: one that has other names, too, belongs to somebody else as well."""
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            info = os.fstat(fd)
            if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
                os.fchmod(fd, stat.S_IMODE(info.st_mode) & ~_WRITE)
        finally:
            os.close(fd)


def _link_tree(here: int, name: str, target: Path) -> None:
    for within, folder, names in trees.walk(here, name):
        os.mkdir(target / within, 0o700)
        for one in names:
            _link(folder, one, target / within / one)


def _link(folder: int, name: str, target: Path) -> None:
    """One entry of a tree: a link to the same file, the same symbolic link; what is special is left out."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=folder), target)
    elif stat.S_ISREG(mode):
        try:
            os.link(name, target, src_dir_fd=folder, follow_symlinks=False)
        except OSError:  # the filesystem has no links, or no more of this file
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with open(fd, "rb") as source, open(target, "xb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
