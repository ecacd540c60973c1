"""The background scheduler: commands that need a scheduler start it when none runs; it ends when it is idle.

No change is missed in between. A change that needs a scheduler checks for one inside its transaction, before the
commit; a background scheduler decides to end inside a transaction, too. So either the scheduler sees the change, or
the change sees that the scheduler has ended.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vctl import ops
from vctl.core.nodes import RAY
from vctl.errors import Unreachable
from vctl.store import locks, observed, ownership, upkeep
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.config import Config, Setting

LOG = "daemon.log"
LOG_MAX_BYTES = 1 << 20
_IN_FORCE = "in_force"
OLDER = "older"
"""The kind of a scheduler of an older version, which did not record its kind."""
SCHEDULERS = (locks.FOREGROUND, locks.BACKGROUND, OLDER)
STOP_S, KILL_S = 10.0, 5.0
"""Seconds until a scheduler that does not end is killed, and seconds to wait after that. Nothing is lost by a kill."""
SETTINGS = (
    "local_node", "unit_resources", "maintenance_interval", "lease_idle_timeout", "lease_cooldown", "lease_duration",
    "reclaim_grace", "ray", "provider", "provider_timeout", "log_max_bytes", "idle_exit", "autostart", "kill_grace",
    "supervisor_per_job", "cgroups", "lock_timeout", "foreign_gpu_processes", "foreign_gpu_memory", "idle_gpu_after",
)  # fmt: skip
"""The settings that a starter passes to the scheduler; the others concern commands."""
_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "XDG_CONFIG_HOME", "VCTL_DEVICES_FILE",
)  # fmt: skip
"""The variables that a starter passes to the scheduler; jobs have the environments of their submitters."""
_FOR_RAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""The variables that a scheduler on a Ray cluster gets in addition."""
_RAY_AGAIN_S = 15.0
"""The pause after a start on a Ray cluster that failed: that Ray may be down, as its head is restarted."""
BEGAN, ENDED = " schedules ", " ends; running jobs go on"
"""Texts in the log of a scheduler that show a successful start and a regular end."""
_MAX_STARTS, _MINUTE_S = 4, 60.0
"""The most starts by one command within a minute."""
_PAUSE_S = 0.02


class Background:
    """Starts a scheduler for one state directory when one is needed."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.home = config.home().absolute()
        self.autostart = bool(config.get("autostart")) and not _would_end_with_job(self.home)
        self.problem = ""
        """The reason why a start failed; empty without a failure."""
        self.insisted = False
        """Whether a change that needs a scheduler is refused if none may be started, as the command waits."""
        self._is_on_ray = False
        """Whether this process started a scheduler on a Ray cluster: until that succeeds, it is tried again."""
        self._starts: list[tuple[float, int]] = []
        """The times at which this process started a scheduler, with the positions of their output in the log."""

    def attend(self, store: Store) -> Store:
        """Let changes of this store that need a scheduler start one."""
        store.before_commit = self.needed
        store.could_make = self._templates
        return store

    def _templates(self, announced: object) -> list[dict[str, Any]]:
        """The nodes that the provider in the settings of this process could make."""
        if not self.config.get("provider") or (
            announced is not None and locks.scheduler_is_running(self.home)
        ):
            return []
        from vctl.spec.provider_spec import parse_provider

        return parse_provider(self.config.get("provider"), units=self.config.get("unit_resources")).kinds()

    def needed(self, store: Store) -> None:
        """Start a scheduler where the change in the open transaction needs one."""
        if is_at_work(self.home) or not upkeep.is_unfinished(store):
            return
        if not self.autostart:
            if self.insisted:
                raise none_at_work()
            return
        try:
            self.start()
        except Unreachable as error:  # the request is queued anyway, and the next command tries again
            self.problem = error.problem

    def start(self) -> None:
        """Start a scheduler, unless one runs or another process starts one; returns before it works."""
        lock = locks.StartLock.take(self.home)
        if lock is None:
            return
        try:
            if locks.scheduler_is_running(self.home):
                return
            log = self.home / LOG
            self._starts.append((time.monotonic(), _rotate(log)))
            env = {**small_environment(os.environ), **self.settings(), **self._on_ray()}
            from vctl.runtime.detached import start_detached

            start_detached(words(self.home, kind=locks.BACKGROUND), env, log=log, hand_over=lock.fd)
        except OSError as error:
            raise Unreachable(
                f"cannot start a scheduler in {self.home}: {error.strerror}",
                fix="start one with `vctl daemon`",
            ) from None
        finally:
            lock.release()

    def settings(self) -> dict[str, str]:
        """The settings for a scheduler that this process starts, as variables."""
        return self.config.handed_on(SETTINGS)

    def _on_ray(self) -> dict[str, str]:
        """What a scheduler on a Ray cluster needs; its address is that of the last one, if none is set."""
        from vctl.config import BY_NAME

        address = self.config.get("ray")
        with Store.open(self.home, create=False) as store:
            if not address and store.recall(RAY) and (record := store.recall(_IN_FORCE)) is not None:
                address = record["settings"].get("ray")
        if not address:
            return {}
        self._is_on_ray = True
        own = {name: os.environ[name] for name in _FOR_RAY if name in os.environ}
        return {BY_NAME["ray"].env: address, **own}

    def require(self) -> None:
        """Raise Unreachable when no scheduler runs and none may be started."""
        if not self.autostart and not is_at_work(self.home):
            raise none_at_work()

    def see_to_it(self) -> bool:
        """Whether a scheduler works; starts one if none runs. Called repeatedly while waiting; starts are limited."""
        if locks.scheduler_is_running(self.home):
            return True
        if locks.scheduler_is_starting(self.home):
            return False
        self.require()
        if self._is_on_ray:
            if time.monotonic() < self._starts[-1][0] + _RAY_AGAIN_S:
                return False
        elif self._starts:
            self._raise_if_starts_fail()
        self.start()
        return False

    def _raise_if_starts_fail(self) -> None:
        """Raise Unreachable if the schedulers that this process started fail; a regular end is no failure."""
        now = time.monotonic()
        self._starts = [start for start in self._starts if now - start[0] < _MINUTE_S]
        if not self._starts:
            return
        said = _said(self.home / LOG, self._starts[-1][1])
        if any(ENDED in line for line in said):  # a regular end: it was idle, or was told to end
            self._starts.clear()
            return
        if any(BEGAN in line for line in said) and len(self._starts) < _MAX_STARTS:
            return
        raise Unreachable(
            "the background scheduler ended at its start: " + (_problem(said) or _silent_reason(self.home)),
            fix=f"see {self.home / LOG}, or run `vctl daemon` to see its messages",
            details={"log": said},
        )


class KeptScheduler(Background):
    """A scheduler that a keeper starts, and starts again: nobody else does, and who needs it waits for it."""

    def needed(self, store: Store) -> None:
        """Start nothing."""

    def require(self) -> None:
        """Let the caller wait."""

    def see_to_it(self) -> bool:
        """Whether a scheduler works."""
        return locks.scheduler_is_running(self.home)


def _would_end_with_job(home: Path) -> bool:
    """Whether this is a job of this state directory with a PID namespace of its own, in which all ends with it."""
    is_own = os.environ.get("VCTL_OBJECT_DIR", "").startswith(f"{home}/")
    return is_own and "pids" in os.environ.get("VCTL_PRIVATE", "")


def none_at_work() -> Unreachable:
    """The error where no scheduler runs and none may be started."""
    if "pids" in os.environ.get("VCTL_PRIVATE", ""):
        return Unreachable(
            "no scheduler is running, and one that this job starts would end with it (--private pids)",
            fix="start one with `vctl daemon` outside of the job",
        )
    return Unreachable(
        "no scheduler is running, and `autostart` is off",
        fix="start one with `vctl daemon`, or set autostart to true",
    )


def is_at_work(home: Path) -> bool:
    """Whether a scheduler runs or is starting."""
    return locks.scheduler_is_running(home) or locks.scheduler_is_starting(home)


def wait_for_start(background: Background, *, within_s: float = 30.0) -> locks.LockHolder:
    """Start a scheduler and wait until it works."""
    give_up = time.monotonic() + within_s
    while not background.see_to_it():
        if time.monotonic() > give_up:
            raise Unreachable(
                f"no scheduler is running in {background.home} after {within_s:g} s",
                fix=f"see {background.home / LOG}",
            )
        time.sleep(_PAUSE_S)
    holder = locks.holder(background.home)
    return holder if holder is not None else wait_for_start(background, within_s=within_s)


def pinned(holder: locks.LockHolder, home: Path) -> int | None:
    """A pidfd of the process of a scheduler; None when it has ended."""
    if not holder.pid:
        raise Unreachable(
            f"a scheduler runs in {home}, but {locks.SCHEDULER_LOCK} does not say which process it is",
            fix="find the process with `ps`, and end it",
        )
    try:
        handle = os.pidfd_open(holder.pid)
    except (ProcessLookupError, ValueError):
        return None
    if locks.holder(home) == holder:
        return handle
    os.close(handle)
    return None


def signal_process(handle: int, signo: int) -> None:
    """Send a signal to a process, and resume the process if it is suspended."""
    import signal  # here and below, because it is slow to import, and every command imports this module

    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signo)
        signal.pidfd_send_signal(handle, signal.SIGCONT)


def stop(home: Path) -> locks.LockHolder | None:
    """End the scheduler of a state directory and wait until it is gone; its record, or None if none ran."""
    import select
    import signal

    ops.rights.check_service_at(home, "the scheduler")
    holder = _once_started(home)
    if holder is None or (handle := pinned(holder, home)) is None:
        return None
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        for signo, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILL_S)):
            signal_process(handle, signo)
            if poll.poll(seconds * 1000):
                return holder
    finally:
        os.close(handle)
    raise Unreachable(
        f"the scheduler of {home} (pid {holder.pid}) does not end",
        fix="find out what it waits for, or end that process",
    )


def _once_started(home: Path) -> locks.LockHolder | None:
    """The running scheduler; waits for one that is starting. Raises NotPermitted for a directory of another user."""
    ownership.check(home)
    give_up = time.monotonic() + STOP_S
    while (
        (holder := settled(home)) is None and locks.scheduler_is_starting(home) and time.monotonic() < give_up
    ):
        time.sleep(_PAUSE_S)
    return holder


def settled(home: Path) -> locks.LockHolder | None:
    """The running scheduler, once it has written its record, which it does directly after taking the lock."""
    for _ in range(10):
        holder = locks.holder(home)
        if holder is None or holder.pid:
            return holder
        time.sleep(_PAUSE_S)
    return locks.LockHolder(OLDER, 0, 0)


def put_in_force(store: Store, config: Config) -> None:
    """Record the settings of the scheduler that this process is."""
    with store.transaction():
        observed.remember(store, _IN_FORCE, {"pid": os.getpid(), "settings": config.of_the_scheduler()})


def in_force(store: Store) -> dict[str, Any] | None:
    """The settings that the running scheduler started with; None if none runs."""
    holder, record = locks.holder(store.home), store.recall(_IN_FORCE)
    if holder is None or record is None or record["pid"] != holder.pid:
        return None
    settings: dict[str, Any] = record["settings"]
    return settings


def not_in_force(store: Store, config: Config) -> list[str]:
    """A sentence for each setting that was given here and that the running scheduler does not have."""
    from vctl.config import BY_NAME, OF_THE_SCHEDULER

    given = [name for name in OF_THE_SCHEDULER if config.origins[name] != "default"]
    has = in_force(store) if given else None
    if has is None:
        return []
    return [
        f"{name} ({config.origins[name].removeprefix('environment ')}) is not in force: the running scheduler has"
        f" {_words(BY_NAME[name], has[name])}"
        for name in given
        if name in has and has[name] != config.get(name)
    ]


def _words(setting: Setting, value: object) -> str:
    if value == setting.default:
        return "none" if value is None else f"{value}, the default"
    return "another one" if setting.name == "provider" else str(value)


def status(home: Path) -> dict[str, Any]:
    """The running scheduler: ``{running, kind, pid, since}``."""
    holder = _once_started(home)
    if holder is None:
        return {"running": False, "kind": None, "pid": None, "since": None}
    return {
        "running": True,
        "kind": holder.kind,
        "pid": holder.pid,
        "since": ops.forms.timestamp(holder.since_ns),
    }


def words(home: Path, *, kind: str) -> list[str]:
    """The command line that starts a scheduler for a state directory."""
    how = ["--background"] if kind == locks.BACKGROUND else []
    return [sys.executable, "-P", "-m", "vctl", "daemon", *how, "--home", os.fspath(home)]


def small_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a scheduler: few variables, and the path of this package."""
    passed_on = {name: environ[name] for name in _KEPT if name in environ}
    root = os.fspath(Path(__file__).absolute().parents[2])
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    if root not in paths and not root.endswith(("site-packages", "dist-packages")):
        paths.append(root)
    return {**passed_on, "PYTHONPATH": os.pathsep.join(paths)} if paths else passed_on


def _rotate(log: Path) -> int:
    """Rotate a log that is too long; returns the position of new lines."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= LOG_MAX_BYTES:
        return size
    log.replace(log.with_suffix(".log.1"))
    return 0


def _said(log: Path, offset: int) -> list[str]:
    """The last lines of a log after a position."""
    try:
        with log.open("rb") as file:
            file.seek(max(offset, log.stat().st_size - 4096))
            return file.read().decode("utf-8", "replace").splitlines()[-10:]
    except OSError:
        return []


def _problem(said: Sequence[str]) -> str | None:
    """The last error in the output of a scheduler, else its last line; None without output."""
    errors = [line.removeprefix("Error: ") for line in said if line.startswith("Error: ")]
    return next(reversed(errors or said), None)


def _silent_reason(home: Path) -> str:
    try:
        free = os.statvfs(home)
    except OSError as error:
        return f"{home}: {error.strerror}"
    return f"the disk of {home} is full" if free.f_bavail == 0 else "it wrote no message"
