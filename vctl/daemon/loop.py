"""``vctl daemon``: a scheduler in the foreground until SIGINT or SIGTERM, or in the background until it is idle."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vctl.daemon.collection import Collection
from vctl.daemon.command_server import CommandServer
from vctl.daemon.devices import DevicePolicy
from vctl.daemon.notifier import Notifier
from vctl.daemon.scheduler import Scheduler
from vctl.daemon.trouble import say
from vctl.engine.settings import LeaseTerms
from vctl.errors import Conflict, DiskTrouble, Unreachable, VctlError, known
from vctl.ops import background
from vctl.ray.daemon import ray_nodes
from vctl.runtime import objects as job_objects
from vctl.runtime.cgroup_trees import step_out
from vctl.runtime.detached import settle_in, use_cpus
from vctl.runtime.keeper import KeeperLine
from vctl.runtime.local import LocalRuntime
from vctl.spec.provider_spec import parse_provider
from vctl.store import locks, nodes, ownership, rows, settings, upkeep, write
from vctl.store.files import Gone, identity
from vctl.store.locks import BACKGROUND, FOREGROUND, SchedulerLock, StartLock
from vctl.store.store import Fenced, Store

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.ray.daemon.ray_nodes import RayNodes
    from vctl.runtime.protocol import Runtime


class SharedService(NamedTuple):
    """What a scheduler of a shared service has: the line to its keeper, the address by which jobs reach it, and the
    socket at which its command server takes words.
    """

    keeper: KeeperLine
    address: str
    words: socket.socket


HANDOVER_S = 20.0
LEAVE_S = 5.0
"""The time in which a background scheduler must end when a foreground scheduler starts."""
CHECK_EVERY_S = 1.0
"""The time between two checks of the files of the state directory."""
_PAUSE_S = 0.01


def run_daemon(home: Path, config: Config, shared: SharedService | None = None) -> int:
    """Schedule in the foreground until a signal; returns the exit code. A second one is refused at once."""
    from vctl.store.database import prepare_home

    prepare_home(home)
    with Signals() as signals, Store.open(home) as store:
        store.address = "" if shared is None else shared.address
        lock = SchedulerLock(home)
        _take_over(home, lock, signals)
        return 0 if signals.caught else _rule(store, config, lock, signals, kind=FOREGROUND, shared=shared)


def run_in_background(home: Path, config: Config, start: StartLock) -> int:
    """Schedule until there has been nothing to do for a while; returns the exit code."""
    settle_in()
    step_out(os.fsencode(home))
    ownership.check_all(home)
    try:
        with Signals() as signals, Store.open(home, create=False) as store:
            lock = SchedulerLock(home)
            while not lock.acquire(BACKGROUND):
                holder = background.settled(home)
                if signals.caught or (holder is not None and holder.kind in background.SCHEDULERS):
                    return 0  # another scheduler was quicker
                time.sleep(_PAUSE_S)  # a replay or a restore is over soon
            start.release()
            if local := nodes.local(store):
                use_cpus(rows.node(local[-1]).total.cores or ())
            return _rule(store, config, lock, signals, kind=BACKGROUND)
    except VctlError:
        raise
    except Exception as error:
        if (trouble := known(error)) is not None:
            raise trouble from error
        traceback.print_exc()  # this log is the only place where a user can see it
        raise


def _rule(
    store: Store,
    config: Config,
    lock: SchedulerLock,
    signals: Signals,
    *,
    kind: str,
    shared: SharedService | None = None,
) -> int:
    """Schedule until the scheduler ends, and release the lock; returns the exit code."""
    if shared is not None:
        settings.note_shared(store)
    ray_nodes.check(store, on_ray=bool(config.get("ray")))
    write.load_all()
    scheduler = _scheduler_of(store, config, kind=kind, shared=shared)
    nodes = ray_nodes.of(scheduler.runtime, store.home, config)
    idle_s = float(config.get("idle_exit")) if kind == BACKGROUND else None
    orderly = False
    collection, commands, notifier = (
        Collection(),
        _command_server(store, config, shared),
        Notifier(store.home),
    )
    try:
        collection.start()
        if nodes is not None:
            nodes.connect()
        scheduler.start()
        background.put_in_force(store, config)
        collection.settle()
        say(f"vctl daemon {os.getpid()}{background.BEGAN}{store.home} in the {kind}")
        keeper = None if shared is None else shared.keeper
        orderly = _loop(scheduler, signals, collection, commands, notifier, nodes, lock, idle_s, keeper)
        say(f"vctl daemon {os.getpid()}{background.ENDED}")
    except VctlError as error:  # a newer scheduler has taken over, or the directory is gone
        say(f"vctl daemon {os.getpid()} ends: {error.problem}")
        if isinstance(error, Fenced):
            return error.exit_code
        raise
    finally:
        collection.stop()
        commands.close()
        notifier.close()
        scheduler.close(orderly=orderly)
        lock.release()
    return 0


def _command_server(store: Store, config: Config, shared: SharedService | None) -> CommandServer:
    if shared is None:
        return CommandServer(store.home)
    return CommandServer(store.home, shared.words, shared.address, config.handed_on(background.SETTINGS))


def _scheduler_of(store: Store, config: Config, *, kind: str, shared: SharedService | None) -> Scheduler:
    """A scheduler with the settings of a configuration; ``kind``: foreground or background."""
    runtime: Runtime
    if address := config.get("ray"):
        from vctl.ray.on_ray.runtime import RayRuntime

        runtime = RayRuntime(store.home, address)
    else:
        mark = None if shared is None else ("VCTL_ADDRESS", shared.address)
        keeper = None if shared is None else shared.keeper
        apart = bool(config.get("supervisor_per_job"))
        local = runtime = LocalRuntime(store.home, mark=mark, apart=apart, keeper=keeper)
        if shared is not None:
            job_objects.empty_for_us = local.empty_objects
    duration = config.get("lease_duration")
    return Scheduler(
        store,
        kind=kind,
        local_node=config.local_node,
        runtime=runtime,
        maintenance_interval_s=float(config.get("maintenance_interval")),
        terms=LeaseTerms(
            idle_s=float(config.get("lease_idle_timeout")),
            cooldown_s=float(config.get("lease_cooldown")),
            duration_s=None if duration is None else float(duration),
            reclaim_grace_s=float(config.get("reclaim_grace")),
        ),
        log_max_bytes=int(config.get("log_max_bytes")),
        cgroups=config.get("cgroups"),
        provider=parse_provider(
            config.get("provider"),
            timeout_s=float(config.get("provider_timeout")),
            units=config.get("unit_resources"),
        ),
        devices=DevicePolicy(
            config.get("foreign_gpu_processes"),
            int(config.get("foreign_gpu_memory")),
            float(config.get("idle_gpu_after")),
        ),
    )


def _loop(
    scheduler: Scheduler,
    signals: Signals,
    collection: Collection,
    commands: CommandServer,
    notifier: Notifier,
    nodes: RayNodes | None,
    lock: SchedulerLock,
    idle_s: float | None,
    keeper: KeeperLine | None,
) -> bool:
    """Take turns until the scheduler ends: True, by a signal or with its keeper; False, idle, it has resigned."""
    poll = select.poll()
    poll.register(scheduler.watch.fileno(), select.POLLIN)
    poll.register(scheduler.runtime.fileno(), select.POLLIN)
    poll.register(signals.fileno(), select.POLLIN)
    poll.register(commands.fileno(), select.POLLIN)
    resting = select.poll()  # while the scheduler rests after an error, only a signal wakes it
    resting.register(signals.fileno(), select.POLLIN)
    if keeper is not None:
        for each in (poll, resting):
            each.register(keeper.fileno(), 0)
    watched = WatchedHome(scheduler, lock)
    idle_at: float | None = None  # since when it is known not to be needed; the last check may be long ago
    while not (signals.caught or (keeper is not None and keeper.is_gone())):
        watched.maintain()
        commands.maintain()
        if nodes is not None:
            nodes.maintain()
        scheduler.work.handed += commands.handed()
        scheduler.turn()
        if scheduler.state is not None:  # None after trouble: the tables may not be readable
            notifier.maintain(*scheduler.work.notices(scheduler.state))
        sleep_s = min(scheduler.sleep_s(), commands.due_s(), notifier.due_s())
        if idle_s is not None:
            if scheduler.is_needed():
                idle_at = None
            elif idle_at is None:
                idle_at = time.monotonic()
            elif time.monotonic() >= idle_at + idle_s:
                if _has_resigned(scheduler, lock):
                    return False
                idle_at = time.monotonic()
            if idle_at is not None:
                sleep_s = min(sleep_s, max(idle_at + idle_s - time.monotonic(), _PAUSE_S))
        collection.between(sleep_s)
        (resting if scheduler.trouble.rest_s() else poll).poll(sleep_s * 1000)
    return True


def _has_resigned(scheduler: Scheduler, lock: SchedulerLock) -> bool:
    """End the term and release the lock in one transaction, unless work has come: ``vctl.ops.background``."""
    store = scheduler.store
    with contextlib.suppress(DiskTrouble, Unreachable), store.together():
        if not upkeep.is_unfinished(store):
            scheduler.resign()
            lock.release()
    return not lock.is_held


# ---- taking over from another scheduler ----


def _take_over(home: Path, lock: SchedulerLock, signals: Signals) -> None:
    """Take the lock: at once if it is free, within a second from a background scheduler. Raises Conflict."""
    with contextlib.ExitStack() as stack:
        give_up = time.monotonic() + HANDOVER_S
        starting = False
        while not signals.caught:
            if (holder := background.settled(home)) is not None and holder.kind != BACKGROUND:
                who = "a daemon" if holder.kind in background.SCHEDULERS else f"`vctl {holder.kind}`"
                raise Conflict(
                    f"{who} is running already in {home} (pid {holder.pid or 'unknown'})",
                    fix="use that one, or stop it first: `vctl daemon --stop`",
                )
            if not starting and (start := StartLock.take(home)) is not None:
                stack.callback(start.release)  # nobody starts a background scheduler meanwhile
                starting = True
            if starting and holder is None and lock.acquire(FOREGROUND):
                return
            if starting and holder is not None:
                _send_away(home, holder)
            if time.monotonic() > give_up:
                raise Conflict(f"the scheduler lock of {home} is held", fix="see `vctl daemon --status`")
            time.sleep(_PAUSE_S)


def _send_away(home: Path, holder: locks.LockHolder) -> None:
    """Have the background scheduler end: by SIGTERM, and after ``LEAVE_S`` by SIGKILL."""
    if (handle := background.pinned(holder, home)) is None:
        return
    try:
        background.signal_process(handle, signal.SIGTERM)
        give_up = time.monotonic() + LEAVE_S
        while locks.holder(home) == holder:
            if time.monotonic() > give_up:
                background.signal_process(handle, signal.SIGKILL)
            time.sleep(_PAUSE_S)
    finally:
        os.close(handle)


class WatchedHome:
    """Checks before a turn that the tables are still those of the directory, and sometimes that other files exist."""

    def __init__(self, scheduler: Scheduler, lock: SchedulerLock) -> None:
        self.scheduler = scheduler
        self.lock = lock
        self.home = scheduler.store.home
        self._ours = identity(self.home)
        self._checked_at = time.monotonic()

    def maintain(self) -> None:
        """Restore missing files and directories. Raises Gone, or the error that prevents it."""
        self.scheduler.store.db.check()
        now = time.monotonic()
        if now - self._checked_at < CHECK_EVERY_S:
            return
        self._checked_at = now
        if identity(self.home) != self._ours:
            raise Gone(
                f"the state directory {self.home} was removed or replaced",
                fix="start a scheduler with `vctl daemon`",
            )
        if not self.lock.in_place():
            with self.scheduler.store.transaction():
                pass  # raises Fenced when another scheduler has taken over since: that says more
            raise Gone(f"the lock {self.lock.path} was removed", fix="start a scheduler with `vctl daemon`")
        self.scheduler.restore_files()


class Signals:
    """SIGINT and SIGTERM as a readable descriptor, so that nothing is ever interrupted half-way."""

    def __init__(self) -> None:
        self.caught: int | None = None

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        numbers = signal.SIGINT, signal.SIGTERM
        self._old = {number: signal.signal(number, self._catch) for number in numbers}
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
