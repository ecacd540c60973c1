"""The background scheduler: started by whoever needs one when none runs, ended when there is nothing to do.

Nothing is lost between the two. A change that needs a scheduler looks for one inside its transaction, before the
commit; a background scheduler decides to leave inside a transaction, too. So either it sees the change, or the
change sees that it has left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vctl import ops
from vctl.errors import Unreachable
from vctl.ops.rights import check_service_at
from vctl.store import locks, upkeep
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.config import Config

LOG = "daemon.log"
LOG_MAX_BYTES = 1 << 20
OLDER = "older"
"""Kind of a scheduler of a version that did not say what it is."""
SCHEDULERS = (locks.FOREGROUND, locks.BACKGROUND, OLDER)
STOP_S, KILL_S = 10.0, 5.0
"""A scheduler that does not leave within the first time is killed: nothing is lost by that."""
_SETTINGS = (
    "local_node", "unit_resources", "maintenance_interval", "lease_idle_timeout", "lease_cooldown", "lease_duration",
    "reclaim_grace", "ray", "provider", "provider_timeout", "log_max_bytes", "idle_exit", "autostart", "kill_grace",
    "lock_timeout",
)  # fmt: skip
"""What a scheduler is set to by the one who starts it; everything else is about commands."""
_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "XDG_CONFIG_HOME",
)  # fmt: skip
"""Of the starter's environment; jobs have that of their own submitters."""
BEGAN, ENDED = " schedules ", " ends; running jobs go on"
"""How its log tells that it got to work, and that it left in good order."""
_MOST_STARTS, _MINUTE_S = 4, 60.0
"""One command starts not more than so many in a minute."""
_PAUSE_S = 0.02


class Background:
    """Sees to it that a scheduler is at work on one state directory."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.home = config.home().absolute()
        self.wanted = bool(config.get("autostart"))
        self.problem = ""
        """Why none could be started."""
        self.insisted = False
        """Whether a change that needs a scheduler is refused where there can be none, as somebody will wait for it."""
        self._starts: list[tuple[float, int]] = []
        """When this process started one, and where its lines in the log begin."""

    def attend(self, store: Store) -> Store:
        """From now on changes by this store that need a scheduler start one."""
        store.before_commit = self._needed
        store.could_make = self._templates
        return store

    def _templates(self, announced: object) -> list[dict[str, Any]]:
        """The nodes that a scheduler could have made that is started from here."""
        if not self.config.get("provider") or (
            announced is not None and locks.scheduler_is_running(self.home)
        ):
            return []
        from vctl.spec.provider_spec import parse_provider

        return parse_provider(self.config.get("provider"), units=self.config.get("unit_resources")).kinds()

    def _needed(self, store: Store) -> None:
        if is_at_work(self.home) or not upkeep.is_unfinished(store):
            return
        if not self.wanted:
            if self.insisted:
                raise none_at_work()
            return
        try:
            self.start()
        except (
            Unreachable
        ) as error:  # what was asked for is queued all the same, and the next command tries again
            self.problem = error.problem

    def start(self) -> None:
        """Start one, unless another process does or it is there already; returns before it is at work."""
        lock = locks.StartLock.take(self.home)
        if lock is None:
            return
        try:
            if locks.scheduler_is_running(self.home):
                return
            log = self.home / LOG
            self._starts.append((time.monotonic(), _rotate(log)))
            env = {**small_environment(os.environ), **self.settings()}
            words = [
                sys.executable,
                "-P",
                "-m",
                "vctl",
                "daemon",
                "--background",
                "--home",
                os.fspath(self.home),
            ]
            from vctl.runtime.detached import start_detached

            start_detached(words, env, log=log, hand_over=lock.fd)
        except OSError as error:
            raise Unreachable(
                f"cannot start a scheduler in {self.home}: {error.strerror}",
                fix="start one with `vctl daemon`",
            ) from None
        finally:
            lock.release()

    def settings(self) -> dict[str, str]:
        """What a scheduler that is started from here is set to, as variables."""
        return self.config.handed_on(_SETTINGS)

    def require(self) -> None:
        """Refuse to wait when nobody schedules and nobody is to be started."""
        if not self.wanted and not is_at_work(self.home):
            raise none_at_work()

    def see_to_it(self) -> bool:
        """For those who wait, now and then: whether a scheduler is at work. None is started again and again."""
        if locks.scheduler_is_running(self.home):
            return True
        if locks.scheduler_is_starting(self.home):
            return False
        self.require()
        if self._starts:
            self._look_into_its_end()
        self.start()
        return False

    def _look_into_its_end(self) -> None:
        """The one that we have started is gone: it may have been ended, or it cannot live here."""
        now = time.monotonic()
        self._starts = [one for one in self._starts if now - one[0] < _MINUTE_S]
        if not self._starts:
            return
        said = _said(self.home / LOG, self._starts[-1][1])
        if any(ENDED in line for line in said):  # in good order: it was idle, or told to
            self._starts.clear()
            return
        if any(BEGAN in line for line in said) and len(self._starts) < _MOST_STARTS:
            return
        raise Unreachable(
            "the background scheduler ended at its start: "
            + (said[-1] if said else _silent_reason(self.home)),
            fix=f"see {self.home / LOG}, or run `vctl daemon` to see its messages",
            details={"log": said},
        )


def none_at_work() -> Unreachable:
    """Nobody schedules, and nobody is to be started."""
    return Unreachable(
        "no scheduler is running, and `autostart` is off",
        fix="start one with `vctl daemon`, or set autostart to true",
    )


def is_at_work(home: Path) -> bool:
    """Whether a scheduler runs or is about to."""
    return locks.scheduler_is_running(home) or locks.scheduler_is_starting(home)


def wait_for_start(background: Background, *, within_s: float = 30.0) -> locks.Holder:
    """Start one and wait until it is at work."""
    give_up = time.monotonic() + within_s
    while not background.see_to_it():
        if time.monotonic() > give_up:
            raise Unreachable(
                f"no scheduler is running in {background.home} after {within_s:g} s",
                fix=f"see {background.home / LOG}",
            )
        time.sleep(_PAUSE_S)
    found = locks.holder(background.home)
    return found if found is not None else wait_for_start(background, within_s=within_s)


def pinned(holder: locks.Holder, home: Path) -> int | None:
    """A handle of the process that schedules, and of none that gets its pid later; None when it has ended."""
    try:
        handle = os.pidfd_open(holder.pid)
    except (ProcessLookupError, ValueError):  # no pid: it has not said yet who it is
        return None
    if locks.holder(home) == holder:
        return handle
    os.close(handle)
    return None


def signal_process(handle: int, signo: int) -> None:
    """Signal a process, a suspended one too."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signo)
        signal.pidfd_send_signal(handle, signal.SIGCONT)


def stop(home: Path) -> locks.Holder | None:
    """End the scheduler of a state directory and wait until it is gone; who it was, None when there was none."""
    check_service_at(home, "the scheduler")
    found = _once_started(home)
    if found is None or (handle := pinned(found, home)) is None:
        return None
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        for signo, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILL_S)):
            signal_process(handle, signo)
            if poll.poll(seconds * 1000):
                return found
    finally:
        os.close(handle)
    raise Unreachable(
        f"the scheduler of {home} (pid {found.pid}) does not end",
        fix="find out what it waits for, or end that process",
    )


def _once_started(home: Path) -> locks.Holder | None:
    """Who schedules; one that is starting gets the time for it."""
    give_up = time.monotonic() + STOP_S
    while (
        (found := settled(home)) is None and locks.scheduler_is_starting(home) and time.monotonic() < give_up
    ):
        time.sleep(_PAUSE_S)
    return found


def settled(home: Path) -> locks.Holder | None:
    """Who schedules, once it has said who it is, which it does at once."""
    for _ in range(10):
        found = locks.holder(home)
        if found is None or found.pid:
            return found
        time.sleep(_PAUSE_S)
    return locks.Holder(OLDER, 0, 0)


def status(home: Path) -> dict[str, Any]:
    """Which scheduler is at work: ``{running, kind, pid, since}``."""
    found = _once_started(home)
    if found is None:
        return {"running": False, "kind": None, "pid": None, "since": None}
    return {
        "running": True,
        "kind": found.kind,
        "pid": found.pid,
        "since": ops.forms.timestamp(found.since_ns),
    }


def inherited_start(home: Path) -> locks.StartLock | None:
    """What a starter has handed over to this process; None when it was started by hand."""
    from vctl.runtime.detached import HANDED_OVER

    return locks.StartLock.inherited(home, HANDED_OVER)


def small_environment(around: Mapping[str, str]) -> dict[str, str]:
    """A small one, in which this package is found again."""
    kept = {name: around[name] for name in _KEPT if name in around}
    root = os.fspath(Path(__file__).absolute().parents[2])
    places = [place for place in around.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(place)]
    if root not in places and not root.endswith(("site-packages", "dist-packages")):
        places.append(root)
    return {**kept, "PYTHONPATH": os.pathsep.join(places)} if places else kept


def _rotate(log: Path) -> int:
    """Keep the log short, and say where new lines will begin."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= LOG_MAX_BYTES:
        return size
    log.replace(log.with_suffix(".log.1"))
    return 0


def _said(log: Path, offset: int) -> list[str]:
    """The last lines of a log after a place in it."""
    try:
        with log.open("rb") as file:
            file.seek(max(offset, log.stat().st_size - 4096))
            return file.read().decode("utf-8", "replace").splitlines()[-10:]
    except OSError:
        return []


def _silent_reason(home: Path) -> str:
    try:
        free = os.statvfs(home)
    except OSError as error:
        return f"{home}: {error.strerror}"
    return f"the disk of {home} is full" if free.f_bavail == 0 else "it wrote no message"
