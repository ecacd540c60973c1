"""A scheduler gives memory back by becoming a new process image: same pid, same lock, and the tables are read again.

Python returns memory to the machine by the mebibyte, and one object that is still needed keeps each of them: after a
queue of 100,000 has ended, most of what it took stays. Recovery from a crash loses nothing and takes a moment, so a
scheduler on purpose does the same, when much of its memory is free and nothing has happened for a second.
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
"""Fewer objects that are gone are not worth it: those of some 4,500 jobs, up to ten mebibytes."""
SHARE = 0.25
"""Nor is less than this share of the objects that are left."""
QUIET_S, LEAST_AGE_S = 1.0, 5.0
LOOK_EVERY_S = 0.5
REST_S = 0.5
"""What is due sooner than that comes first."""
PROGRAM = (sys.executable, vctl.__file__, schema.__file__)
"""Other files there are another version: it begins when somebody starts it, and not before."""
AGAIN = " gives memory back and begins anew"


class Renewal:
    """Knows how many objects there were at most, and since when nothing has happened."""

    def __init__(self) -> None:
        self._program = _program()
        self._most = 0
        self._is_worth_it = False
        self._look_at = 0.0
        self._quiet_at = time.monotonic() + LEAST_AGE_S

    def put_off(self) -> None:
        """Something has happened."""
        self._quiet_at = max(self._quiet_at, time.monotonic() + QUIET_S)

    def due_s(self) -> float:
        """In how many seconds the scheduler begins anew if nothing happens until then; infinity: it has no reason."""
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
        os.getcwd()  # no program begins in a directory that is gone
        return [os.stat(path).st_mtime_ns for path in PROGRAM]
    except OSError:
        return []


def begin_anew(home: Path, config: Config, lock: SchedulerLock, signals: Signals, *, kind: str) -> None:
    """Replace the program of this process by a scheduler that finds the lock held; returns if a signal has come.

    Everything else is closed. A signal that comes meanwhile waits until the new program looks for signals.
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
