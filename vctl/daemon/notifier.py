"""Sends the notices of a scheduler in a process of its own, so that none of them can hold a turn up.

The scheduler starts this process when a notice is due; it ends when none is due any more, or with the scheduler. A
notice is over in the tables only after it was carried out, so the next scheduler sends what a killed one left: each
notice at least once.
"""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from vctl.daemon.child import Child
from vctl.errors import Unreachable
from vctl.ops import notifying
from vctl.ops.notifying import Notice
from vctl.runtime.deliveries import Delivery
from vctl.store import locks
from vctl.store.store import Store

MODULE = "vctl.daemon.notifier"
LOCK = "notifier.lock"
AT_ONCE = 4
"""How many notices are sent at the same time."""
PAUSES_S = (1.0, 5.0)
"""The pauses before a URL or a mail is tried again."""
LINGER_S = 1.0
"""How long the process waits for another notice before it ends."""
_LOOK_S = 0.1
_CHECK_S = 0.5
_AFTER_FAILURE_S = 5.0


class Notifier:
    """Sees to it that notices are sent while a scheduler runs."""

    def __init__(self, home: Path) -> None:
        self._seen = -1
        self._is_due = False
        self._check_at = 0.0
        self._child = Child(MODULE, home)

    def due_s(self) -> float:
        """Seconds until the next call of ``maintain`` is due."""
        return max(0.0, self._check_at - time.monotonic()) if self._is_due else float("inf")

    def maintain(self, seen: int, is_due: bool) -> None:
        """Start the process if a notice is due. ``seen`` differs when the tables may have a new one."""
        self._is_due = is_due
        if seen == self._seen and time.monotonic() < self._check_at:
            return
        self._seen = seen
        if not self._is_due:
            return
        now, code = time.monotonic(), self._child.ended()
        if code != 0:
            self._check_at = now + (_CHECK_S if code is None else _AFTER_FAILURE_S)
        elif now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._child.start()

    def close(self) -> None:
        """Let the process end once it has carried out what it has begun."""
        self._child.end()


class Sender:
    """The process: sends what is due, a few at a time, of each job one after the other."""

    def __init__(
        self, store: Store, life: int, start: Callable[[Callable[[], None]], Delivery] = Delivery
    ) -> None:
        self._store, self._life, self._start = store, life, start
        self._sending: dict[Delivery, tuple[Notice, int]] = {}
        self._again: list[tuple[float, Notice, int]] = []
        """When a notice is tried again, and how often it was."""
        self._is_ending = False

    def run(self) -> None:
        """Send until nothing has been due for a while, or until the scheduler has ended."""
        idle_since = time.monotonic()
        while True:
            if not self._is_ending:
                self._begin()
            if not self._sending and (self._is_ending or not self._again):
                if self._is_ending or time.monotonic() - idle_since > LINGER_S:
                    return
            else:
                idle_since = time.monotonic()
            self._wait()
            self._settle()

    def _begin(self) -> None:
        now = time.monotonic()
        for entry in [one for one in self._again if one[0] <= now][: AT_ONCE - len(self._sending)]:
            self._again.remove(entry)
            self._sending[self._start(entry[1].carry_out)] = entry[1], entry[2]
        while len(self._sending) < AT_ONCE:
            busy = [notice.subject for notice, _ in self._sending.values()]
            busy += [notice.subject for _, notice, _ in self._again]
            if (notice := notifying.next_notice(self._store, busy)) is None:
                return
            self._sending[self._start(notice.carry_out)] = notice, 0

    def _wait(self) -> None:
        poll = select.poll()
        if not self._is_ending:
            poll.register(self._life, 0)  # the scheduler's end closes it
        for delivery in self._sending:
            poll.register(delivery.ended, select.POLLIN)
        ready = poll.poll(_LOOK_S * 1000)
        self._is_ending |= any(fd == self._life for fd, _ in ready)

    def _settle(self) -> None:
        for delivery, (notice, tried) in list(self._sending.items()):
            if (problem := delivery.result()) is None:
                continue
            del self._sending[delivery]
            if problem and notice.is_repeatable and tried < len(PAUSES_S):
                self._again.append((time.monotonic() + PAUSES_S[tried], notice, tried + 1))
            else:
                notifying.over(self._store, notice, problem)


def main(home: Path) -> None:
    """The process."""
    with contextlib.suppress(Unreachable), locks.exclusive(home / LOCK, 0):  # locked: another one sends
        with Store.open(home, create=False) as store:
            Sender(store, 0).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
