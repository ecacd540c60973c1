"""Runs that are assigned ahead: their rows, and for each the *offer*, a file that lets a supervisor start it.

A supervisor removes the file ``ahead/<run>`` before it starts the run. A process that takes the run back
renames the file. Only one of them succeeds. So the transaction of a command takes back all runs that have not
started, and none of them starts during the transaction.
"""

from __future__ import annotations

import os
import time
from _sqlite3 import Row
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vctl import engine
from vctl.core.compact import dumps
from vctl.core.jobs import PendingJob
from vctl.core.queue_policy import FIFO, PRIORITY
from vctl.errors import Unreachable

if TYPE_CHECKING:
    from vctl.core.caller import Caller
    from vctl.engine.changes import Change, RunAssignedAhead

T = TypeVar("T")
_BEFORE = (
    "SELECT count(*), sum(parent_cluster_id != ? OR priority < ? OR submitted_at > ?)"
    " FROM runs_ahead JOIN jobs USING (job_id)"
)
_JOBS_OF = """
SELECT job_id FROM clusters WHERE job_id IS NOT NULL AND cluster_id IN (
    SELECT value FROM json_each(?)
    UNION SELECT cluster_id FROM vnodes WHERE vnode_id IN (SELECT value FROM json_each(?))
)
"""
_MOVES = """
SELECT count(*) FROM jobs AS next, jobs AS before
WHERE next.job_id = ? AND before.job_id = ? AND next.parent_cluster_id IS NOT before.parent_cluster_id
"""
FOLDER, _OFFER, _BACK = "ahead", "offer", ".back"
SETTLE_S, SETTLE_PAUSE_S = 5.0, 0.005
"""How long a command waits until a start is recorded, and how long between two tries."""


class Transactions(Protocol):
    """What this module uses of a ``Store``."""

    home: Path
    epoch: int | None
    caller: Caller | None
    being_started: dict[int, int]
    takes_back: bool
    withdrawn: list[str]

    def rows(self, sql: str, *values: object) -> list[Row]:
        """All rows of a query."""

    def value(self, sql: str, *values: object) -> Any:
        """The first column of the first row, or None."""

    def column(self, sql: str, *values: object) -> list[Any]:
        """The first column of all rows."""

    def emit(self, change: Change) -> None:
        """Emit a change in the open transaction."""


class BeingStarted(Unreachable):
    """A supervisor starts a job at this moment, and the scheduler is about to record that: try again."""

    def __init__(self, job_id: int, *, after: int | None = None) -> None:
        behind = "" if after is None else f" in the place of job {after}"
        super().__init__(
            f"job {job_id} is being started{behind}, and no scheduler has recorded that yet",
            fix="try again; start `vctl daemon` where none runs",
        )


def rows(store: Transactions) -> list[Row]:
    """All runs that are assigned ahead, each after the run that it follows."""
    return store.rows("SELECT * FROM runs_ahead ORDER BY revision")


def assigned(row: Row) -> RunAssignedAhead:
    """The change that a row records."""
    return engine.changes.RunAssignedAhead(
        row["run_id"], row["job_id"], row["follows"], row["supervisor"], row["revision"]
    )


@cache
def _boot() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def offer(home: Path, run_id: str) -> None:
    """Let a supervisor start a run.

    The offer is a hard link to an existing file, because a new file is slow: for each one, ext4 without a
    journal checks the inodes of all recently removed files one by one.
    """
    path = f"{home}/{FOLDER}/{run_id}"
    for _ in range(2):
        try:
            os.link(f"{home}/{_OFFER}", path)
        except FileNotFoundError:
            (home / FOLDER).mkdir(mode=0o700, exist_ok=True)
            _write_boot(f"{home}/{_OFFER}")
        except OSError:
            break  # a filesystem without hard links
        else:
            return
    _write_boot(path)


def _write_boot(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, _boot())
    os.close(fd)


def withdraw(home: Path, run_id: str) -> bool:
    """Withdraw the offer of a run. True if the run has not started, and no supervisor can start it any more.

    The offer is renamed, not removed: this process may die before its commit, or be refused, and the next
    process must see that the offer was withdrawn. An offer of another boot may have been taken, because its
    removal by a supervisor may not have reached the disk: the result is False.
    """
    path = f"{home}/{FOLDER}/{run_id}"
    try:
        with open(path, "rb") as file:
            is_ours = file.read() == _boot()
        os.rename(path, path + _BACK) if is_ours else os.unlink(path)
    except OSError:
        return os.path.exists(path + _BACK)
    return is_ours


def withdrawn(store: Transactions, run_id: str) -> bool:
    """Like ``withdraw``, in a transaction that deletes the run's row; its commit makes the offer obsolete."""
    is_back = withdraw(store.home, run_id)
    if is_back:
        store.withdrawn.append(run_id)
    return is_back


def forget(store: Transactions) -> None:
    """Remove the offers that the transaction has withdrawn; called after the commit."""
    for run_id in store.withdrawn:
        with suppress(OSError):
            os.unlink(f"{store.home}/{FOLDER}/{run_id}{_BACK}")
    store.withdrawn.clear()


def tidy(home: Path, known: Collection[str]) -> None:
    """Remove the offers of unknown runs, and the file that offers link to: it may be of an earlier boot."""
    with suppress(OSError):
        os.unlink(home / _OFFER)
    with suppress(OSError):
        for name in os.listdir(home / FOLDER):
            if name.removesuffix(_BACK) not in known:
                os.unlink(home / FOLDER / name)


# ---- commands ----


def take_back(store: Transactions) -> None:
    """Take back all runs that were assigned ahead and have not started, before a command changes anything.

    Does nothing in a scheduler, which decides itself when to take runs back. Raises BeingStarted if the
    caller is a job whose start is not recorded yet.
    """
    store.being_started, back = {}, set()
    if store.epoch is not None:
        return
    for row in rows(store):
        if withdrawn(store, row["run_id"]) or row["follows"] in back:
            back.add(row["run_id"])
            store.emit(engine.changes.RunTakenBack(row["run_id"], row["job_id"]))
        else:
            store.being_started[row["job_id"]] = int(row["follows"].partition(".")[0])
    if store.caller is not None and store.caller.job_id in store.being_started:
        raise BeingStarted(store.caller.job_id)


@contextmanager
def left_alone(store: Transactions) -> Iterator[None]:
    """Inside, a transaction takes back no run by itself; the caller does so where ``may_precede`` is true."""
    store.takes_back, store.being_started = False, {}
    try:
        yield
    finally:
        store.takes_back = True


def may_precede(store: Transactions, job: PendingJob, order: Callable[[], str]) -> bool:
    """Whether a new job may come before the jobs that were assigned ahead; the caller then takes these back.

    It comes after them if all of them wait before it in its queue, the queue is served by priority and
    arrival, and no job submits it. ``order`` returns the order of the queue.
    """
    count, others = store.rows(_BEFORE, job.parent_id, job.priority, job.submitted_at_ns)[0]
    return bool(count and (others or store.caller is not None or order() not in (FIFO, PRIORITY)))


def check(store: Transactions, change: Change) -> None:
    """Raise BeingStarted for a change of a job whose process is over while another job starts in its place.

    That place must stay exactly as it is. If it goes over to another cluster, all clusters and nodes must.
    """
    changed = _jobs_changed(store, change)
    may_move = isinstance(change, (*engine.changes.OF_CAPACITY, engine.changes.VNodesChanged))
    for job_id, before in store.being_started.items():
        if before in changed or (may_move and store.value(_MOVES, job_id, before)):
            raise BeingStarted(job_id, after=before)


def _jobs_changed(store: Transactions, change: Change) -> set[int]:
    """The jobs whose clusters, virtual nodes or tasks a change of a command affects."""
    clusters, vnodes = set[str | None](), tuple[str, ...]()
    if isinstance(change, engine.changes.TaskSubmitted):
        return {change.task.job_id}
    if isinstance(change, engine.changes.ClusterAdded):
        clusters = {change.cluster.parent_id}
    elif isinstance(change, engine.changes.ClusterChanged):
        clusters = {change.cluster.cluster_id}
    elif isinstance(change, engine.changes.VNodesChanged):
        clusters, vnodes = {vnode.cluster_id for vnode in change.placed}, change.removed
    if not clusters and not vnodes:
        return set()
    return {int(job_id) for job_id in store.column(_JOBS_OF, dumps(sorted(clusters - {None})), dumps(vnodes))}


@contextmanager
def reported_as_start() -> Iterator[None]:
    """Raise BeingStarted instead of IllegalTransition if the job that cannot move is assigned ahead."""
    try:
        yield
    except engine.lifecycle.IllegalTransition as error:
        if error.phase == engine.lifecycle.AHEAD and isinstance(error.key, int):
            raise BeingStarted(error.key) from error
        raise


def settled(do: Callable[[], T], limit_s: float = SETTLE_S) -> T:
    """Call ``do`` again while it raises BeingStarted, for at most ``limit_s`` seconds."""
    until = time.monotonic() + limit_s
    while True:
        try:
            return do()
        except BeingStarted:
            if time.monotonic() > until:
                raise
        time.sleep(SETTLE_PAUSE_S)
