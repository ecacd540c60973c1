"""Cyclic garbage of a scheduler: collected while nothing is to be done, never inside a round.

A collection looks at every container that exists: some 100 ms with ten thousand nodes. What is there after loading
stays, so it is frozen: later collections look at what came since.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

IDLE_S = 0.05
"""A pause in which there is time for a collection."""
MOST_NEW = 200_000
"""Containers that may have come without one; above that the youngest are looked at, idle or not."""
THAW_S = 3600.0
"""How often everything is looked at, also what was frozen: cycles of it may have become garbage."""


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside: what is built here stays."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Collection:
    """Takes over collecting from the interpreter, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._thawed_at = time.monotonic()
        self._taken_over = False

    def start(self) -> None:
        """From here on nothing is collected unless ``between`` does it."""
        gc.disable()
        self._taken_over = True

    def settle(self) -> None:
        """Everything that exists now stays. What little of it is garbage waits for the next thaw."""
        gc.freeze()

    def stop(self) -> None:
        """Give it back to the interpreter."""
        if self._taken_over:
            self._taken_over = False
            gc.unfreeze()
            gc.enable()

    def between(self, pause_s: float) -> None:
        """Between two turns, before a pause of that length."""
        new = gc.get_count()[0]
        if not self._taken_over or new < 1000:
            return
        if pause_s >= IDLE_S:
            if time.monotonic() - self._thawed_at > THAW_S:
                self._thawed_at = time.monotonic()
                gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif new > MOST_NEW:
            gc.collect(0)
