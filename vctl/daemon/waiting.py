"""Commands that wait: for a job, its log, its stop. Without a daemon the waiting command schedules by itself.

Several may wait at once: one of them holds the scheduler lock and works, the others follow the tables and take over
when it leaves. A starting daemon is given the lock as soon as it asks.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.tasks import FINAL as FINAL_TASK
from vctl.core.tasks import FINISHED
from vctl.daemon import array_waiting
from vctl.daemon.loop import Signals
from vctl.daemon.tail import Tail, tell
from vctl.errors import TimedOut
from vctl.ops import jobs as ops
from vctl.ops import logs
from vctl.ops import tasks as task_ops
from vctl.ops.arrays import exit_code
from vctl.ops.forms import failure_of
from vctl.runtime.watch import CREATE, DELETE, MODIFY, MOVED_TO, Watch
from vctl.store import jobs as table
from vctl.store import tasks as task_table
from vctl.store.locks import SchedulerLock, lock_is_wanted
from vctl.store.store import Fenced, Row, Store

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.daemon.scheduler import Scheduler

SAFETY_MS = 1000
LEFT = "left"
"""Made and removed in the exits directory by a scheduler that leaves, to wake those who wait for its lock."""
INTERRUPTED = 130
SHELL_WORDS = frozenset("cd export source . alias ulimit umask set unset if for while exit".split())


class Waiter:
    """Waits for something in the tables, scheduling meanwhile when nobody else does."""

    def __init__(self, store: Store, config: Config, *, schedule: bool = True) -> None:
        self.store = store
        self.config = config
        self.may_schedule = schedule
        self.lock = SchedulerLock(store.home)
        self.scheduler: Scheduler | None = None
        self.watch = Watch()
        exits = store.home / "exits"
        exits.mkdir(mode=0o700, exist_ok=True)
        self.watch.add(exits, DELETE | MOVED_TO)
        self.watch.add(store.watched(), MODIFY)
        self.signals = Signals()

    def __enter__(self) -> Waiter:
        self.signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._leave()
        finally:
            self.signals.__exit__()
            self.watch.close()

    def until(self, done: Callable[[], bool], *, timeout_s: float | None = None) -> bool:
        """Wait; True when done, False after a signal. Raises TimedOut."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._schedule_if_nobody_does()
            if done():
                return True
            if self.signals.caught:
                return False
            left_ms = float(SAFETY_MS)
            if give_up is not None:
                left_ms = min(left_ms, (give_up - time.monotonic()) * 1000)
                if left_ms <= 0:
                    raise TimedOut(f"not done after {timeout_s:g} s", fix="wait longer with --timeout")
            self._sleep(left_ms)

    def _schedule_if_nobody_does(self) -> None:
        if not self.may_schedule:
            return
        if self.scheduler is not None and lock_is_wanted(self.store.home):
            self._leave()
            return
        if self.scheduler is None:
            if lock_is_wanted(self.store.home) or not self.lock.acquire():
                return
            from vctl.daemon.settings import scheduler_of

            ruling = Store.open(self.store.home)
            self.scheduler = scheduler_of(ruling, self.config, kind="embedded")
            self.scheduler.start()
        try:
            self.scheduler.turn()
        except Fenced:
            self._leave(orderly=False)

    def _leave(self, *, orderly: bool = True) -> None:
        scheduler, self.scheduler = self.scheduler, None
        if scheduler is None:
            return
        scheduler.close(orderly=orderly)
        scheduler.store.close()
        self.lock.release()
        sign = self.store.home / "exits" / LEFT
        with contextlib.suppress(OSError):
            sign.touch()
            sign.unlink()

    def _sleep(self, most_ms: float) -> None:
        poll = select.poll()
        poll.register(self.watch.fileno(), select.POLLIN)
        poll.register(self.signals.fileno(), select.POLLIN)
        if self.scheduler is not None:
            poll.register(self.scheduler.watch.fileno(), select.POLLIN)
            most_ms = min(most_ms, self.scheduler.sleep_s() * 1000)
        poll.poll(max(0.0, most_ms))
        self.watch.read()


# ---- what is waited for ----


def submit_and_follow(
    store: Store, config: Config, submission_id: str, *, stop_on_interrupt: bool = False
) -> int:
    """Stream a job's log until it is over; its exit code. An interrupt detaches, or stops the job when asked to."""
    with Waiter(store, config) as waiter:
        code = _follow(waiter, submission_id)
        if code is not None:
            return code
        if not stop_on_interrupt:
            tell(f"\nDetached: job {submission_id} goes on. Stop it with: vctl job stop {submission_id}")
            return INTERRUPTED
        waiter.signals.caught = None
        ops.stop(store, submission_id)
        code = _follow(waiter, submission_id)
        return INTERRUPTED if code is None else code


def follow_log(store: Store, config: Config, ref: str) -> int:
    """``vctl job logs --follow``: the log to its end; the job's exit code, 130 after an interrupt."""
    submission_id = str(ops.get_job(store, ref)["submission_id"])
    with Waiter(store, config) as waiter:
        code = _follow(waiter, submission_id)
        return INTERRUPTED if code is None else code


def wait_for_jobs(
    store: Store, config: Config, refs: Sequence[str], *, timeout_s: float | None = None
) -> int:
    """``vctl job wait``: until all are over; 0 when all went well, else the first bad exit code in the order given."""
    names = [str(ops.get_job(store, ref)["submission_id"]) for ref in refs]
    left = list(names)

    def done() -> bool:
        while left and _is_over(store, left[-1]):
            left.pop()
        return not left

    with Waiter(store, config) as waiter:
        if not waiter.until(done, timeout_s=timeout_s):
            return INTERRUPTED
    return next((code for code in (_code(store, name) for name in names) if code), 0)


def wait_until_stopped(store: Store, config: Config, ref: str) -> int:
    """After ``vctl job stop``: until every process of the job is gone; 0, or 130 after an interrupt."""
    name = str(ops.get_job(store, ref)["submission_id"])
    with Waiter(store, config) as waiter:
        return 0 if waiter.until(lambda: _is_over(store, name)) else INTERRUPTED


def follow_task(store: Store, config: Config, ref: str) -> int:
    """``vctl task run``: the task's output to its end; its exit code, 130 after an interrupt (it goes on)."""
    task_id = str(task_ops.get_task(store, ref)["task_id"])
    with Waiter(store, config) as waiter:
        if not _copy_log(waiter, task_id, lambda: _task_is_over(store, task_id)):
            tell(f"\nDetached: task {task_id} goes on. Cancel it with: vctl task cancel {task_id}")
            return INTERRUPTED
    if line := failure_of(task_ops.get_task(store, task_id)):
        tell(line)
    return _task_code(store, task_id)


def wait_for_tasks(
    store: Store, config: Config, refs: Sequence[str], *, timeout_s: float | None = None
) -> int:
    """``vctl task wait``: until all are over; 0 when all finished well, else the first bad exit code in order."""
    ids = [str(task_ops.get_task(store, ref)["task_id"]) for ref in refs]
    with Waiter(store, config) as waiter:
        if not waiter.until(lambda: all(_task_is_over(store, one) for one in ids), timeout_s=timeout_s):
            return INTERRUPTED
    return next((code for code in (_task_code(store, one) for one in ids) if code), 0)


def _task_is_over(store: Store, task_id: str) -> bool:
    row = task_table.get(store, task_id)
    return row is None or row["state"] in FINAL_TASK


def _task_code(store: Store, task_id: str) -> int:
    row = task_table.get(store, task_id)
    if row is None:
        return 1
    if row["exit_code"] is not None:
        return int(row["exit_code"])
    if row["state"] == FINISHED:
        return 0
    return jb.EXIT_NEVER_RAN if row["started_at"] is None else 1


def _follow(waiter: Waiter, submission_id: str) -> int | None:
    """Copy the log to stdout until the job is over: its exit code, or None after a signal."""
    store = waiter.store
    if ops.is_array(store, submission_id):
        return array_waiting.follow(waiter, submission_id)
    if not _copy_log(waiter, submission_id, lambda: _is_over(store, submission_id)):
        return None
    row = _row(store, submission_id)
    if row is not None and row["status"] != jb.SUCCEEDED and row["state_reason"] != jb.NON_ZERO_EXIT:
        tell(f"Job {submission_id} {row['status']}: {row['state_reason']}: {row['message']}")
        if row["state_reason"] == jb.LAUNCH_FAILED and (line := _shell_line(row["entrypoint"])):
            tell(f"Fix: a shell reads such a line: vctl job submit -- sh -c {line}")
    return _code(store, submission_id)


def _copy_log(waiter: Waiter, name: str, is_over: Callable[[], bool]) -> bool:
    """Copy a log to stdout until what writes it is over; False after a signal."""
    path = logs.log_of(waiter.store.home, name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    waiter.watch.add(path.parent, CREATE)
    with Tail(path, waiter.watch) as tail:

        def done() -> bool:
            over = is_over()  # first the state, then the log: what was written before the end is shown
            tail.copy()
            return over

        return waiter.until(done)


def _shell_line(entrypoint: str) -> str | None:
    """The command quoted for ``sh -c``, when its first word is a whole line or a word of the shell's own."""
    from shlex import quote, split

    words = split(entrypoint)
    if len(words) == 1 and len(words[0].split()) > 1:
        return quote(words[0])
    return quote(" ".join(words)) if words[0] in SHELL_WORDS else None


def _row(store: Store, submission_id: str) -> Row | None:
    number = table.number_of(store, submission_id)
    return None if number is None else table.get(store, number)


def _is_over(store: Store, name: str) -> bool:
    """Whether a job or every member of an array is over; one that was forgotten is."""
    row = _row(store, name)
    if row is None:
        return array_waiting.is_over(store, name)
    return row["status"] in jb.FINAL


def _code(store: Store, name: str) -> int:
    """What a waiting command exits with."""
    row = _row(store, name)
    return array_waiting.code(store, name) if row is None else exit_code(row)
