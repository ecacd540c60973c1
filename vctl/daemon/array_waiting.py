"""Commands that wait for an array: progress on stderr, no logs; the first bad exit code by index."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from vctl.ops import arrays as ops
from vctl.store import arrays as table
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.daemon.waiting import Waiter

EVERY_S = 1.0
OFTEN_S = 0.2
"""Least time between two signs of progress, on a terminal more often."""


def is_over(store: Store, array_id: str) -> bool:
    """Whether no member waits or runs."""
    array = table.get(store, array_id)
    return array is None or not table.is_unfinished(store, array)


def code(store: Store, array_id: str) -> int:
    """The first bad exit code by index."""
    array = table.get(store, array_id)
    return 1 if array is None else ops.code(store, array)


def follow(waiter: Waiter, array_id: str) -> int | None:
    """Show progress until all members are over: the exit code, or None after a signal."""
    progress = Progress(waiter.store, array_id)

    def done() -> bool:
        over = is_over(waiter.store, array_id)
        progress.show(last=over)
        return over

    return code(waiter.store, array_id) if waiter.until(done) else None


class Progress:
    """One line that is written again on a terminal, and now and then anew elsewhere."""

    def __init__(self, store: Store, array_id: str) -> None:
        self.store = store
        self.array_id = array_id
        self._shown = ""
        self._at = 0.0
        self._terminal = sys.stderr.isatty()

    def show(self, *, last: bool) -> None:
        """Write how far the array is, when that changed and not too often."""
        since = time.monotonic() - self._at
        if not last and since < (OFTEN_S if self._terminal else EVERY_S):
            return
        if (array := table.get(self.store, self.array_id)) is None:
            return
        line = ops.progress(ops.form(self.store, array))
        if line == self._shown and not (last and self._terminal):
            return
        self._at, self._shown = time.monotonic(), line
        start, end = ("\r\x1b[K", "\n" if last else "") if self._terminal else ("", "\n")
        sys.stderr.write(f"{start}{line}{end}")
        sys.stderr.flush()
