"""Backups of the state: made while a scheduler may run, restored while none runs."""

from __future__ import annotations

import os
from pathlib import Path

from vctl.errors import Conflict, Damaged, NotFound, VctlError, disk_trouble
from vctl.ops import forms, rights
from vctl.store import copies, database, ownership, reading
from vctl.store.announcements import CHANGES, turn
from vctl.store.database import BUSY_TIMEOUT_S
from vctl.store.locks import SchedulerLock
from vctl.store.store import Store


def backup(store: Store, path: Path) -> forms.Form:
    """Write a consistent copy of the tables to a new file, mode 0600."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise Conflict(f"{path} exists already", fix="choose another name") from None
    except OSError as error:
        raise disk_trouble(error) or VctlError(
            f"cannot write {path}: {error.strerror}", fix="choose a place you can write"
        ) from None
    try:
        copies.copy_to(store.db, path)
        sound = reading.is_sound(path)
        failed = None if sound else reading.read_error(path)
    except BaseException:  # for example a full disk or an interrupt: remove the incomplete copy
        copies.remove(path)
        raise
    if not sound:
        copies.remove(path)
        raise disk_trouble(failed or OSError()) or Damaged(
            "the tables of the state directory are damaged, and a copy would be damaged too",
            fix="find the damage with `vctl doctor`; put an older backup in place with `vctl restore FILE`",
        )
    return {"path": str(path), "bytes": path.stat().st_size}


def restore(home: Path, path: Path) -> forms.Form:
    """Replace the tables by the rows of a copy; the old tables are kept as ``cluster.db.before-restore``.

    Writers wait from the copy of the old tables to their replacement, so each of their commits is in the one or comes
    after the other. A file that has other tables, triggers or views than a backup is refused; only rows are copied.
    """
    if not path.is_file():
        raise NotFound(f"there is no file {path}", fix="name a file made by `vctl backup`")
    ownership.check(home)
    rights.check_service_at(home, "the state as a whole")
    version = copies.check_copy(path)
    database.prepare_home(home)
    database.check_files(home)
    lock = SchedulerLock(home)
    if not lock.acquire("restore"):
        raise Conflict("a scheduler is running here", fix="vctl daemon --stop, then restore")
    try:
        with copies.taken_over(home, path, version) as fresh, turn(home, BUSY_TIMEOUT_S):
            database.disown(
                fresh
            )  # before, as a kill may follow: runs that the copy has are not started again
            os.truncate(home / CHANGES, 0)  # the journal of the copy ends elsewhere
            saved = copies.replace_by(home, fresh)
            os.truncate(home / CHANGES, 0)  # which wakes all who watch it
            lock.release()  # before somebody commits who would take this for a scheduler
    finally:
        lock.release()
    return {"restored": str(path), "kept": None if saved is None else str(saved)}
