"""Ends all runs on a node of a Ray cluster when its raylet ends: from then on, Ray and vctl count it as dead.

Run as a script, `python -m vctl.ray.on_ray.guard FOLDER PID START HOME`, by an agent. It is
detached and sleeps until the raylet has ended. Then it kills each run of the folder with all its descendants,
and removes the folder and the directories of the jobs' Rays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from vctl.ray.on_ray.keepers import Keepers
from vctl.runtime import processes
from vctl.runtime.detached import HANDED_OVER, start_detached
from vctl.runtime.local import LocalRuntime
from vctl.runtime.processes import HOME_MARK
from vctl.runtime.protocol import RunState

_LOCK = "guard"
_PAUSE_S = 0.05
_POLL_S = 60.0
_MAX_S = 60.0


def start(folder: Path, raylet: int, started: int, home: str) -> None:
    """Start the guard of a folder, unless it has one."""
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        words = [sys.executable, "-m", __name__, str(folder), str(raylet), str(started), home]
        env = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
        start_detached(words, env, log=folder / "guard.log", hand_over=handle)
    except BlockingIOError:
        return
    finally:
        os.close(handle)


def end(folder: Path) -> None:
    """End the guard of a folder without runs. A guard that is just starting notices that by itself."""
    with contextlib.suppress(FileNotFoundError, ValueError), open(folder / _LOCK) as lock:
        os.unlink(folder / _LOCK)
        pid, started = map(int, lock.read().split())
        processes.send_signal(pid, started, signal.SIGKILL)


def main(words: list[str]) -> None:
    """Wait for the end of the raylet, and end everything."""
    folder, raylet, started, home = Path(words[0]), int(words[1]), int(words[2]), Path(words[3])
    os.chdir("/")
    me = os.getpid()
    os.pwrite(HANDED_OVER, f"{me} {processes.start_time(me)}\n".encode(), 0)
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(raylet)
        while processes.start_time(raylet) == started:
            if not os.fstat(HANDED_OVER).st_nlink:
                return  # the folder is gone
            if select.select([handle], [], [], _POLL_S)[0]:
                break
    local = LocalRuntime(folder, mark=(HOME_MARK, str(home)))
    local.prepare()
    until = time.monotonic() + _MAX_S
    while time.monotonic() < until:
        local.changes()
        remaining = [run_id for run_id in local.known_runs() if not _is_over(local, run_id)]
        if not remaining:
            break
        for run_id in remaining:
            local.stop(run_id, grace_s=0)
        time.sleep(_PAUSE_S)
    local.close()
    with contextlib.suppress(FileNotFoundError):
        Keepers(folder).forget_all()
    shutil.rmtree(folder, ignore_errors=True)


def _is_over(local: LocalRuntime, run_id: str) -> bool:
    state = local.observe(run_id).state
    if state is RunState.LOST:
        return not local.clear_lost(run_id)
    return state not in (RunState.STARTING, RunState.RUNNING)


if __name__ == "__main__":
    main(sys.argv[1:])
