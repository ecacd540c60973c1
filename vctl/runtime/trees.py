"""Reads and removes trees that a job has left: follows no link, and removes any depth and any mode."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from vctl.errors import VctlError

OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags to open a directory without following a link."""
MAX_DEPTH = 100
"""The most nested directories that are read: each stays open while those in it are read."""


class Unusable(VctlError):
    """The entry under the name of an object is no object."""

    code = "ObjectUnusable"


def walk(above: int, name: str, within: str = ".", depth: int = 1) -> Iterator[tuple[str, int, list[str]]]:
    """Each directory of a tree, from the top down: relative path, descriptor, names of its non-directories.

    Raises Unusable if the tree is too deep, OSError if a directory cannot be read or is removed meanwhile.
    """
    if depth > MAX_DEPTH:
        raise Unusable(f"more than {MAX_DEPTH} directories lie within each other; pack them into one file")
    fd = os.open(name, OPEN, dir_fd=above)
    try:
        folders, others = _entries(fd)
        yield within, fd, others
        for folder in folders:
            yield from walk(fd, folder, f"{within}/{folder}", depth + 1)
    finally:
        os.close(fd)


def _entries(folder: int) -> tuple[list[str], list[str]]:
    """The names of the directories in a directory, and the others; a symbolic link is one of the others."""
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return folders, others


def remove(path: Path) -> None:
    """Remove a file, a link or a tree; a tree that still changes is left for the next time."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        with contextlib.suppress(OSError):
            _remove_tree(path)


def _remove_tree(top: Path) -> None:
    """Remove a tree without recursion. Raises OSError.

    Directories are moved to the top before they are emptied, because a job may have nested them deeper than
    the limits of frames, open files and bytes in a path.
    """
    above = os.open(top.parent, OPEN)
    try:
        fd = _enter(above, top.name)
        try:
            pending = _empty(fd, fd, "")
            unlike, number = f".gone-{os.urandom(8).hex()}-", 0
            while pending:
                folder = pending.pop()
                with contextlib.suppress(OSError):
                    inner = _enter(fd, folder)
                    try:
                        pending += _empty(inner, fd, f"{unlike}{number}-")
                    finally:
                        os.close(inner)
                    os.rmdir(folder, dir_fd=fd)
                number += 1
        finally:
            os.close(fd)
        os.rmdir(top.name, dir_fd=above)
    finally:
        os.close(above)


def _empty(folder: int, top: int, prefix: str) -> list[str]:
    """Remove all entries of a directory, but move its directories to the top; their names there."""
    folders, others = _entries(folder)
    for entry in others:
        with contextlib.suppress(OSError):
            os.unlink(entry, dir_fd=folder)
    if folder == top:
        return folders
    moved = []
    for number, entry in enumerate(folders):
        with contextlib.suppress(OSError):
            os.close(_enter(folder, entry))  # moving a directory needs write permission in it
            os.rename(entry, f"{prefix}{number}", src_dir_fd=folder, dst_dir_fd=top)
            moved.append(f"{prefix}{number}")
    return moved


def _enter(above: int, name: str) -> int:
    """Open a directory to empty it, and make it writable if necessary. Raises OSError."""
    seen = os.open(name, os.O_PATH | OPEN, dir_fd=above)
    try:
        if stat.S_IMODE(os.fstat(seen).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{seen}", stat.S_IRWXU)  # this one, even if it has another name now
        return os.open(".", OPEN, dir_fd=seen)
    finally:
        os.close(seen)
