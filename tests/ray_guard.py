"""Ends what tests with real Ray have started when their process has ended, however that came.

Run as a script, ``python -m tests.ray_guard PID START``. Schedulers, jobs and processes of Ray lie in sessions of
their own and outlive a test run that is killed; each of them has inherited the variable ``TESTS_OF_VCTL``.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

from vctl.runtime import processes

VARIABLE = "TESTS_OF_VCTL"
_PAUSE_S = 0.05


def begin() -> None:
    """Start a guard for this process and what it starts from now on."""
    me = os.getpid()
    mark = f"{me}-{processes.start_time(me)}"
    if os.environ.get(VARIABLE) != mark:
        environment = {**os.environ, VARIABLE: "", "PYTHONPATH": str(Path(__file__).parents[1])}
        os.environ[VARIABLE] = mark
        words = [sys.executable, "-m", "tests.ray_guard", *mark.split("-")]
        nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
        os.posix_spawn(words[0], words, environment, setsid=True, file_actions=nowhere)


def main(pid: int, started: int) -> None:
    """Wait for the end of a process, and kill what came from it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    else:
        if processes.start_time(pid) == started:
            select.select([handle], [], [])
    mark = f"{pid}-{started}".encode()
    while left := processes.marked(os.fsencode(VARIABLE)).get(mark, ()):
        for one in left:
            processes.send(one.pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
