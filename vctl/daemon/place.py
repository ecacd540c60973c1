"""Watches the state directory of a running scheduler: restores removed files, or ends the scheduler."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vctl.store.files import Gone, identity

if TYPE_CHECKING:
    from vctl.daemon.scheduler import Scheduler
    from vctl.store.locks import SchedulerLock

LOOK_EVERY_S = 1.0


class WatchedHome:
    """Checks before a turn that the tables are still those of the directory, and sometimes that other files exist."""

    def __init__(self, scheduler: Scheduler, lock: SchedulerLock) -> None:
        self.scheduler = scheduler
        self.lock = lock
        self.home = scheduler.store.home
        self._ours = identity(self.home)
        self._looked_at = time.monotonic()

    def maintain(self) -> None:
        """Restore missing files and directories. Raises Gone, or the error that prevents it."""
        self.scheduler.store.db.check()
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        if identity(self.home) != self._ours:
            raise Gone(
                f"the state directory {self.home} was removed or replaced",
                fix="start a scheduler with `vctl daemon`",
            )
        if not self.lock.in_place():
            with self.scheduler.store.transaction():
                pass  # raises Fenced when another scheduler has taken over since: that says more
            raise Gone(f"the lock {self.lock.path} was removed", fix="start a scheduler with `vctl daemon`")
        self.scheduler.restore_files()
