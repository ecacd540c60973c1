"""A scheduler returns memory by ``exec`` of a new image: same pid, same lock, and it reads the tables again.

Python returns memory to the machine by the mebibyte, and one live object keeps a whole mebibyte. So after a
queue of 100,000 jobs has ended, the process keeps most of its memory. Recovery from a crash loses nothing and
takes a moment. So a scheduler does the same on purpose, when much of its memory is free and nothing has
happened for a second.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import vctl
from vctl.ops import background
from vctl.runtime.detached import HANDED_OVER
from vctl.store import schema

if TYPE_CHECKING:
    from pathlib import Path

    from vctl.config import Config
    from vctl.daemon.loop import Signals
    from vctl.store.locks import SchedulerLock

LEAST_BLOCKS = 40_000
"""The fewest freed objects that are worth it: those of some 4,500 jobs, up to ten mebibytes."""
SHARE = 0.25
"""The fewest freed objects that are worth it, as a share of the objects that are left."""
QUIET_S, LEAST_AGE_S = 1.0, 5.0
LOOK_EVERY_S = 0.5
REST_S = 0.5
"""Work that is due sooner than that comes first."""
PROGRAM = (sys.executable, vctl.__file__, schema.__file__)
"""The files of this version. If they change, another version is installed, which somebody else must start."""
AGAIN = " gives memory back and begins anew"


class Renewal:
    """Decides when to begin anew, from the peak number of objects and the time since the last activity."""

    def __init__(self) -> None:
        self._program = _program()
        self._most = 0
        self._is_worth_it = False
        self._look_at = 0.0
        self._quiet_at = time.monotonic() + LEAST_AGE_S

    def put_off(self) -> None:
        """Wait longer, because something has happened."""
        self._quiet_at = max(self._quiet_at, time.monotonic() + QUIET_S)

    def due_s(self) -> float:
        """Seconds until the scheduler begins anew if nothing happens; infinity if it has no reason to."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            left = sys.getallocatedblocks()
            self._most = max(self._most, left)
            is_large = self._most - left >= max(LEAST_BLOCKS, SHARE * left)
            self._is_worth_it = is_large and _program() == self._program
        return max(0.0, self._quiet_at - now) if self._is_worth_it else math.inf


def _program() -> list[int]:
    try:
        os.getcwd()  # no program can start in a directory that was removed
        return [os.stat(path).st_mtime_ns for path in PROGRAM]
    except OSError:
        return []


def begin_anew(home: Path, config: Config, lock: SchedulerLock, signals: Signals, *, kind: str) -> None:
    """Replace this process image by a new scheduler that inherits the lock; returns if a signal has come.

    The caller has closed everything else. A signal that comes meanwhile is blocked until the new image
    handles it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.numbers)
    if signals.caught:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.numbers)
        lock.release()
        return
    lock.hand_over(HANDED_OVER)
    words = background.words(home, kind=kind)
    settings = background.Background(config).settings()
    os.execve(words[0], words, {**os.environ, **background.small_environment(os.environ), **settings})
