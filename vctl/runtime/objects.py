"""The files of objects: a directory for each attempt of a job on each node, in which an object is a file or a tree.

``objects/<job>.<attempt>.<node>/<name>`` below the state directory, with mode 0700; one level, because every job pays
for making and removing it, and empty ones are used again, as a name is changed faster than a directory is made.
Nothing here follows a symbolic link: directories are opened one by one, and what is measured, brought or removed is
looked at itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from vctl.errors import VctlError

ROOT = "objects"
_PLACE = re.compile(r"(\d+)\.(\d+)\.(.+)\Z")
_SPARES = tuple(f".spare-{number}" for number in range(8))
"""Empty directories to be used again; as many as may be free at a time."""
_STAGED, _BROUGHT = ".incoming-", ".brought-"
"""No object has a name with a dot in front."""
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unusable(VctlError):
    """What lies under the name of an object is not one."""

    code = "ObjectUnusable"


def place_of(home: Path, job_id: int, attempt: int, node_id: str) -> Path:
    """Where the objects of one attempt of a job lie on a node: ``VCTL_OBJECT_DIR``."""
    return home / ROOT / f"{job_id}.{attempt}.{node_id}"


def make(place: Path) -> None:
    """Make the directory of a job on a node; what stands in its way is removed."""
    for name in () if os.path.lexists(place) else _SPARES:
        with contextlib.suppress(FileNotFoundError):
            os.rename(place.parent / name, place)
            return
    try:
        _make_one(place)
    except FileNotFoundError:
        _make_one(place.parent)
        _make_one(place)


def _make_one(folder: Path) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            os.unlink(folder)
            os.mkdir(folder, 0o700)


def size_of(place: Path, name: str) -> int:
    """Bytes of an object: of the file, or of all files in the directory. Raises Unusable when it is not there."""
    with _opened(place, name) as here:
        info = _look(here, name)
        if stat.S_ISREG(info.st_mode):
            return info.st_size
        return sum(
            found.st_size
            for _, _, names, folder in os.fwalk(name, dir_fd=here, follow_symlinks=False)
            for found in (os.stat(one, dir_fd=folder, follow_symlinks=False) for one in names)
            if stat.S_ISREG(found.st_mode)
        )


def seal(place: Path, name: str) -> None:
    """An object does not change: its files lose the permission to write, as copies share them."""
    with _opened(place, name) as here:
        if stat.S_ISREG(_look(here, name).st_mode):
            _make_read_only(here, name)
            return
        for _, _, names, folder in os.fwalk(name, dir_fd=here, follow_symlinks=False):
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
    if mark.exists() and is_there(place, name):
        return
    _remove(staged)
    try:
        with _opened(source, name) as here:
            if stat.S_ISREG(_look(here, name).st_mode):
                _link(here, name, staged)
            else:
                _link_tree(here, name, staged)
        _remove(place / name)
        os.rename(staged, place / name)
        mark.touch(mode=0o600)
    except OSError as error:
        raise Unusable(f"{name} cannot be brought to {place}: {error.strerror}") from None
    finally:
        _remove(staged)


def clear(place: Path, name: str) -> None:
    """Remove what an earlier try left under a name."""
    for entry in (name, f"{_BROUGHT}{name}"):
        _remove(place / entry)


def remove(home: Path, job_id: int, attempt: int, node_id: str) -> None:
    """Remove the objects of an attempt of a job on a node; what is gone is gone."""
    if not recycle(home, job_id, attempt, node_id):
        _remove(place_of(home, job_id, attempt, node_id))


def recycle(home: Path, job_id: int, attempt: int, node_id: str) -> bool:
    """Keep a directory for another job if it is as one just made: nearly always a job has left nothing."""
    place = place_of(home, job_id, attempt, node_id)
    with contextlib.suppress(OSError):
        mode = os.lstat(place).st_mode
        if stat.S_ISDIR(mode) and stat.S_IMODE(mode) == 0o700 and not os.listdir(place):
            os.rename(place, place.parent / _SPARES[job_id % len(_SPARES)])
            return True
    return False


def kept(home: Path) -> Iterator[tuple[int, int, str]]:
    """(job, attempt, node) of all directories of objects."""
    with contextlib.suppress(FileNotFoundError), os.scandir(home / ROOT) as entries:
        for entry in entries:
            if found := _PLACE.match(entry.name):
                yield int(found[1]), int(found[2]), found[3]


@contextlib.contextmanager
def _opened(place: Path, name: str) -> Iterator[int]:
    """The directory of a job on a node, opened from the one above it."""
    fd = -1
    try:
        try:
            fd = os.open(place.parent, _OPEN)
            inner = os.open(place.name, _OPEN, dir_fd=fd)
            os.close(fd)
            fd = inner
        except OSError as error:
            raise Unusable(f"there is no {name}: {place}: {error.strerror}") from None
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


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
    for at, folders, names, folder in os.fwalk(name, dir_fd=here, follow_symlinks=False):
        within = target / os.path.relpath(at, name)
        os.mkdir(within, 0o700)
        for one in names:
            _link(folder, one, within / one)
        for one in folders:
            if stat.S_ISLNK(os.stat(one, dir_fd=folder, follow_symlinks=False).st_mode):
                _link(folder, one, within / one)


def _link(folder: int, name: str, target: Path) -> None:
    """One entry of a tree: a link to the same file, the same symbolic link; what is special is left out."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=folder), target)
    elif stat.S_ISREG(mode):
        try:
            os.link(name, target, src_dir_fd=folder, follow_symlinks=False)
        except OSError:  # the filesystem has no links, or no more of this file
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            with open(fd, "rb") as source, open(target, "xb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)


def _remove(path: Path) -> None:
    """Remove a file, a link or a tree; a tree that still changes is left for the next time."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(path, ignore_errors=True)  # never through symbolic links: it opens entry by entry
        if path.is_dir() and not path.is_symlink():
            _open_up(path)
            shutil.rmtree(path, ignore_errors=True)


def _open_up(top: Path) -> None:
    """Let a tree be removed whose directories somebody made read-only."""
    with contextlib.suppress(OSError):
        os.chmod(top, 0o700)
        for at, folders, _ in os.walk(top):
            for one in folders:
                if not os.path.islink(os.path.join(at, one)):
                    os.chmod(os.path.join(at, one), 0o700)
