"""Collects the cyclic garbage of a scheduler while there is nothing to do, never inside a turn.

A collection visits every container that exists: some 100 ms with ten thousand nodes. The objects that exist
after loading stay, so they are frozen: later collections visit only newer objects.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

IDLE_S = 0.05
"""The shortest pause in which there is time for a collection."""
MAX_NEW = 200_000
"""The most new containers without a collection; above that the youngest are collected, idle or not."""
THAW_S = 3600.0
"""How often frozen objects are collected, too: cycles of them may have become garbage."""


@contextmanager
def paused() -> Iterator[None]:
    """Inside, there is no collection: the objects that are built here stay."""
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
        self._active = False

    def start(self) -> None:
        """From now on only ``between`` collects."""
        gc.disable()
        self._active = True

    def settle(self) -> None:
        """Freeze all objects that exist now. The few that are garbage wait for the next thaw."""
        gc.freeze()

    def stop(self) -> None:
        """Give collecting back to the interpreter."""
        if self._active:
            self._active = False
            gc.unfreeze()
            gc.enable()

    def between(self, pause_s: float) -> None:
        """Collect if it is due: called between two turns, before a pause of ``pause_s``."""
        new = gc.get_count()[0]
        if not self._active or new < 1000:
            return
        if pause_s >= IDLE_S:
            if time.monotonic() - self._thawed_at > THAW_S:
                self._thawed_at = time.monotonic()
                gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif new > MAX_NEW:
            gc.collect(0)
