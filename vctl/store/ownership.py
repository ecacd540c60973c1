"""Whose the state directory and its files are: nobody but their owner uses them, and nobody else may write there.

Root is refused, too: its jobs would be those of the owner, run as root, and files that it makes are closed to the
owner. A directory that others may write to is refused as it is, because what is in it may be theirs.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vctl.errors import NotPermitted

TABLES = "cluster.db"
PARTS = ("", "-wal", "-shm")
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = (
    "changes", "scheduler.lock", "scheduler.start", "scheduler.beat", "migrate.lock", "notifier.lock", "token",
    "records", "stops", "ahead", "offer", "objects", "notices", "gangs", "logs", "daemon.log", "launcher.log", "ray",
)  # fmt: skip
"""What else a state directory holds: docs/architecture.md."""


def check(home: str | Path) -> tuple[os.stat_result | None, ...]:
    """What the tables, the WAL and its index are, None where they are missing. Raises NotPermitted.

    A directory that others can only read is not refused: ``vctl doctor`` names it, and a scheduler closes it.
    """
    try:
        folder = os.stat(home)
    except FileNotFoundError:
        return None, None, None
    if folder.st_uid != os.geteuid():
        raise _of_another(f"the state directory {home}", folder.st_uid)
    infos = tuple(_info(f"{home}/{TABLES}{part}") for part in PARTS)
    if folder.st_mode & _WRITABLE and infos[0] is not None:
        raise NotPermitted(
            f"others may write to the state directory {home} (mode {stat.S_IMODE(folder.st_mode):o}):"
            " what is in it may be theirs",
            fix=f"if all of it is yours: chmod 700 {home}",
        )
    for part, info in zip(PARTS, infos, strict=True):
        if info is not None:
            _check_file(f"{home}/{TABLES}{part}", info, folder)
            if not stat.S_ISREG(info.st_mode):
                raise NotPermitted(
                    f"{home}/{TABLES}{part} is no ordinary file, such as a symbolic link",
                    fix="put the file itself there, or set VCTL_HOME to the directory that it is in",
                )
    return infos


def check_all(home: Path) -> None:
    """Like ``check``, for all that a state directory holds: what a scheduler or a server goes by."""
    check(home)
    folder = os.stat(home)
    for name in _OTHERS:
        if (info := _info(f"{home}/{name}")) is not None:
            _check_file(f"{home}/{name}", info, folder)


def _info(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_file(path: str, info: os.stat_result, folder: os.stat_result) -> None:
    if info.st_uid != os.geteuid():
        owner = _name(folder.st_uid)
        raise NotPermitted(
            f"{path} belongs to {_name(info.st_uid)}, its directory to {owner}",
            fix=f"if it is the state's own file, such as one that root has made: sudo chown {owner} {path}",
        )
    if info.st_mode & _WRITABLE and not stat.S_ISLNK(info.st_mode):
        mode = "700" if stat.S_ISDIR(info.st_mode) else "600"
        raise NotPermitted(
            f"others may write to {path} (mode {stat.S_IMODE(info.st_mode):o}): what is in it may be theirs",
            fix=f"if all of it is yours: chmod {mode} {path}",
        )


def _of_another(what: str, owner: int) -> NotPermitted:
    name = _name(owner)
    fix = "set VCTL_HOME to a directory of your own"
    if os.geteuid() == 0:
        fix = f"run it as its owner: sudo -u {name} vctl …; or {fix}"
    return NotPermitted(f"{what} belongs to {name}, and only its owner may use it", fix=fix)


def _name(uid: int) -> str:
    import pwd  # only errors need it

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"  # as sudo takes it
