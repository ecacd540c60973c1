"""Commands that wait are not woken by every commit of others."""

import threading
import time
from pathlib import Path

from tests.specification import spec
from vctl import config
from vctl.daemon.waiting import PAUSE_S, Waiter
from vctl.store import locks
from vctl.store.store import Store

pytestmark = spec("13.waiting")

LOOKED_S = 0.5


def test_who_has_waited_for_long_looks_rarely(tmp_path: Path) -> None:
    schedules, over = locks.SchedulerLock(tmp_path), threading.Event()
    assert schedules.acquire(locks.FOREGROUND)
    settings = config.load(env={"VCTL_HOME": str(tmp_path)})
    with Store.open(tmp_path) as store, Waiter(store, settings) as waiter:
        changes = store.watched()

        def commit() -> None:
            while not over.wait(0.001):
                changes.write_bytes(b"x")

        committing = threading.Thread(target=commit)
        committing.start()
        try:
            early = _looks(waiter)
            waiter.began -= 10.0
            late = _looks(waiter)
        finally:
            over.set()
            committing.join()
            schedules.release()
    assert late <= LOOKED_S / PAUSE_S + 1 < early


def _looks(waiter: Waiter) -> int:
    """How often somebody looks in half a second."""
    looks, until = 0, time.monotonic() + LOOKED_S
    while time.monotonic() < until:
        waiter.rest("jobs", "a", 1.0)
        looks += 1
    return looks
