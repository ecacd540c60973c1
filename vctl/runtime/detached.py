"""Starts a detached process: own session, no terminal, no directory in use, not our child.

It outlives the process that starts it, the terminal, and the job that both may be in.
"""

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vctl.runtime.protocol import RuntimeUnavailable

HANDED_OVER = 3
"""The descriptor under which the new process finds what it was given."""
_SHELL = "/bin/sh"
_BEHIND = 'unset PWD OLDPWD; "$@" &'
"""The shell forks once more and exits, so the new process is no child of the program that starts it."""


def start_detached(argv: Sequence[str], env: Mapping[str, str], *, log: Path, hand_over: int) -> None:
    """Start a process and return at once. Its output is appended to the log; it inherits one descriptor."""
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.fspath(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        (os.POSIX_SPAWN_DUP2, hand_over, HANDED_OVER),
    ]
    every = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
    words = [_SHELL, "-c", _BEHIND, _SHELL, *argv]
    try:
        child = os.posix_spawn(
            words[0], words, env, file_actions=files, setsid=True, setsigmask=(), setsigdef=every
        )
    except OSError as error:
        raise RuntimeUnavailable(f"cannot start {argv[0]}: {error.strerror}", fix=f"see {log}") from error
    with contextlib.suppress(ChildProcessError):  # the program around us collects its children itself
        os.waitpid(child, 0)


def settle_in() -> None:
    """In the new process: keep nothing of the starter but the standard files and HANDED_OVER."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > HANDED_OVER:
            with contextlib.suppress(OSError):  # the one that listed the directory
                os.close(int(name))
    os.chdir("/")
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell lets its background processes ignore SIGQUIT


def use_cpus(cpu_ids: Iterable[int]) -> None:
    """Use all these CPUs of the node: a job that started this process may have had fewer."""
    with contextlib.suppress(OSError):  # the machine may have lost some of them
        os.sched_setaffinity(0, cpu_ids)
