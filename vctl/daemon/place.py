"""Watches the state directory of a running scheduler: restores removed files, or ends the scheduler."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vctl.errors import VctlError
from vctl.store.database import database_path, identity

if TYPE_CHECKING:
    from vctl.daemon.scheduler import Scheduler
    from vctl.store.locks import SchedulerLock

LOOK_EVERY_S = 1.0


class Gone(VctlError):
    """The state that this scheduler works on is no longer the one of its directory."""

    code, exit_code = "Gone", 1


class Place:
    """Checks before a turn, at most every ``LOOK_EVERY_S``, that the files of the scheduler still exist."""

    def __init__(self, scheduler: Scheduler, lock: SchedulerLock) -> None:
        self.scheduler = scheduler
        self.lock = lock
        self.home = scheduler.store.home
        self._ours = {path: identity(path) for path in (self.home, database_path(self.home))}
        self._looked_at = time.monotonic()

    def look_after(self) -> None:
        """Restore missing files and directories. Raises Gone, or the error that prevents it."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        for path, ours in self._ours.items():
            if identity(path) != ours:
                what = "the state directory" if path == self.home else "the database"
                raise Gone(
                    f"{what} {path} was removed or replaced", fix="start a scheduler with `vctl daemon`"
                )
        if not self.lock.in_place():
            with self.scheduler.store.transaction():
                pass  # raises Fenced when another scheduler has taken over since: that says more
            raise Gone(f"the lock {self.lock.path} was removed", fix="start a scheduler with `vctl daemon`")
        self.scheduler.restore_files()
