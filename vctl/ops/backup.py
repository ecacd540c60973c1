"""Copies of the state: taken while everything runs, put back while no scheduler does."""

from __future__ import annotations

import os
from pathlib import Path

from vctl.errors import Conflict, NotFound, VctlError
from vctl.ops import forms
from vctl.store import database
from vctl.store.locks import SchedulerLock
from vctl.store.store import Store


def backup(store: Store, path: Path) -> forms.Form:
    """Write a consistent copy of the tables to a new file, mode 0600."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise Conflict(f"{path} exists already", fix="choose another name") from None
    except OSError as error:
        raise VctlError(
            f"cannot write {path}: {error.strerror}", fix="choose a place you can write"
        ) from None
    database.copy_to(store.db, path)
    return {"path": str(path), "bytes": path.stat().st_size}


def restore(home: Path, path: Path) -> forms.Form:
    """Put a copy back in place of the tables; what was there is kept beside it as ``cluster.db.before-restore``."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}", fix="name a file made by `vctl backup`")
    database.check_copy(path)
    database.prepare_home(home)
    lock = SchedulerLock(home)
    if not lock.acquire("restore"):
        raise Conflict("a scheduler is running here", fix="stop the daemon first, then restore")
    try:
        kept = database.replace_with(home, path)
        database.disown(home)  # what they say has begun is not begun again
    finally:
        lock.release()
    return {"restored": str(path), "kept": None if kept is None else str(kept)}
