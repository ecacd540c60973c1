"""``vctl daemon``: a scheduler in the foreground, until SIGINT or SIGTERM."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vctl.daemon.collection import Collection
from vctl.daemon.scheduler import Scheduler, say
from vctl.daemon.settings import scheduler_of
from vctl.errors import Conflict
from vctl.store.database import command_name
from vctl.store.locks import SchedulerLock, ask_for_the_lock, stop_asking
from vctl.store.store import Fenced, Store

if TYPE_CHECKING:
    from vctl.config import Config

HANDOVER_S = 10.0


def run_daemon(home: Path, config: Config) -> int:
    """Schedule until told to stop; the exit code. A second daemon is refused at once."""
    from vctl.store.database import prepare_home

    prepare_home(home)
    store = Store.open(home)
    lock = SchedulerLock(home)
    try:
        _take_over(store, lock)
    except Conflict:
        store.close()
        raise
    with Signals() as signals:
        scheduler = scheduler_of(store, config, kind="daemon")
        orderly = False
        collection = Collection()
        try:
            scheduler.start()
            collection.start()
            say(f"vctl daemon {os.getpid()} schedules {home}")
            _loop(scheduler, signals, collection)
            orderly = True
            say(f"vctl daemon {os.getpid()} ends; running jobs go on")
        except Fenced as error:
            say(f"vctl daemon {os.getpid()} ends: {error.problem}")
            return error.exit_code
        finally:
            collection.stop()
            scheduler.close(orderly=orderly)
            lock.release()
            store.close()
    return 0


def _take_over(store: Store, lock: SchedulerLock) -> None:
    """Get the lock: at once when free, within a second from an embedded scheduler, never from a daemon."""
    if lock.acquire():
        return
    give_up = time.monotonic() + HANDOVER_S
    try:
        while True:
            reign = store.last_reign()
            ruled = reign is not None and reign["kind"] == "daemon" and reign["ended_at"] is None
            if reign is not None and ruled and command_name(reign["pid"]) != "gone":
                raise Conflict(
                    f"a daemon is running already in {store.home} (pid {reign['pid']})",
                    fix="use that one, or stop it first",
                )
            if time.monotonic() > give_up:
                raise Conflict(f"the scheduler lock of {store.home} is held", fix="see `vctl status`")
            ask_for_the_lock(store.home)
            store.wake()
            if lock.acquire():
                return
            time.sleep(0.02)
    finally:
        stop_asking(store.home)


def _loop(scheduler: Scheduler, signals: Signals, collection: Collection) -> None:
    poll = select.poll()
    poll.register(scheduler.watch.fileno(), select.POLLIN)
    poll.register(signals.fileno(), select.POLLIN)
    while not signals.caught:
        scheduler.turn()
        pause_s = scheduler.sleep_s()
        collection.between(pause_s)
        poll.poll(pause_s * 1000)


class Signals:
    """SIGINT and SIGTERM as a readable descriptor, so that nothing is ever interrupted half-way."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers or (signal.SIGINT, signal.SIGTERM)
        self.caught: int | None = None

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old = {number: signal.signal(number, self._catch) for number in self.numbers}
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _catch(self, number: int, _: object) -> None:
        self.caught = number

    def fileno(self) -> int:
        """Readable after a signal."""
        return self._read
