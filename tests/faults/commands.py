"""A command in a process of its own, in which one point fails; what it said, and what it left."""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import select
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.faults import points
from tests.faults.points import Points
from vctl import __main__ as command_line

PATIENCE_S = 30.0
EXIT_CODES = (0, 1, 2, 3, 4, 5, 6, 7, 8)
"""The documented ones."""
CPYTHONS = re.compile(r"SystemError: .*without.*exception|TypeError: .*path.* not PosixPath")
"""Bugs of CPython where memory fails: a result without an error, and no ``__fspath__`` of what has one."""
IGNORED = re.compile(r"^Exception ignored .*\nTraceback .*\n(  .*\n)*MemoryError: ?\n", re.MULTILINE)
"""What CPython writes where an exception cannot go on, as at the end of a generator."""


@dataclass(frozen=True)
class Ended:
    """How a process ended. ``code``: negative for a signal."""

    code: int
    out: str
    err: str


def play(
    run: Callable[[], None],
    folder: Path,
    env: Mapping[str, str],
    kind: str,
    failing: Points,
    notes: Path | None = None,
    within_s: float = PATIENCE_S,
) -> Ended:
    """Run something in a fork of this process, with one point that fails. ``notes``: where to write the points."""
    return ended(begun(run, folder, env, kind, failing, notes), folder, within_s)


def begun(
    run: Callable[[], None],
    folder: Path,
    env: Mapping[str, str],
    kind: str,
    failing: Points,
    notes: Path | None = None,
) -> int:
    """The pid of a fork that runs something, with one point that fails."""
    out, err = folder / ".stdout", folder / ".stderr"
    pid = os.fork()
    if pid == 0:
        _exit = os._exit
        try:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(env)
            for number, path in enumerate((Path(os.devnull), out, err)):
                flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                os.dup2(os.open(path, flags), number)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w") for n in range(3))
            sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
            os._exit = lambda code: _leave(_exit, code, failing, notes)  # type: ignore[assignment]
            gc.disable()  # in a call of SQLite, garbage of SQLite's would wait for the lock that this call holds
            if kind in points.KINDS:
                failing.watch(kind)
            run()
            failing.finish()
            _leave(_exit, 98, failing, notes)
        except SystemExit as ending:
            failing.finish()
            sys.stderr.flush()
            _leave(_exit, int(ending.code or 0), failing, notes)
        except BaseException:  # noqa: BLE001 - as the interpreter does
            failing.finish()
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            sys.stderr.flush()
            _leave(_exit, 99, failing, notes)
    return pid


def ended(pid: int, folder: Path, within_s: float = PATIENCE_S) -> Ended:
    """How a fork ends, and what it said."""
    code = collected(pid, within_s)
    return Ended(code, *((folder / name).read_text(errors="replace") for name in (".stdout", ".stderr")))


def _leave(leave: Callable[[int], None], code: int, failing: Points, notes: Path | None) -> None:
    failing.finish()
    if notes is not None:
        notes.write_text(json.dumps(failing.passed))
    leave(code)


def collected(pid: int, within_s: float = PATIENCE_S) -> int:
    """The exit code of a child; one that hangs is killed and fails."""
    handle = os.pidfd_open(pid)
    has_ended = bool(select.select([handle], [], [], within_s)[0])
    os.close(handle)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert has_ended, "it hangs"
    return os.waitstatus_to_exitcode(status)


def vctl(*words: str) -> Callable[[], None]:
    """The command, as ``python -m vctl`` runs it."""

    argv = ["vctl", *words]

    def run() -> None:
        sys.modules.pop("threading", None)  # the points have imported it; without it a command ends otherwise
        sys.argv = argv
        command_line.run()

    return run


def is_a_sentence(done: Ended) -> list[str]:
    """What is wrong with what a command said: nothing if it is a success, or one error with its fix."""
    wrong = []
    text = done.out + IGNORED.sub("", done.err)
    if done.code not in EXIT_CODES:
        wrong.append(f"exit code {done.code}")
    if CPYTHONS.search(text):
        return wrong
    if "Traceback" in text or "internal error" in text or "Exception ignored" in text:
        wrong.append("no sentence")
    elif done.code and not re.search(r"^Error: .+", done.err, re.MULTILINE):
        wrong.append("fails and does not say why")
    elif done.code and not re.search(r"^Fix: .+", done.err, re.MULTILINE):
        wrong.append("says no fix")
    return wrong


def counted(
    run: Callable[[], None], fresh: Callable[[], tuple[Path, Mapping[str, str]]], kind: str
) -> list[str]:
    """The points that a run passes when none fails."""
    folder, env = fresh()
    failing, notes = Points(), folder / ".points"
    done = play(run, folder, env, kind, failing, notes)
    assert done.code == 0, done
    return list(json.loads(notes.read_text()))


class Modules(Points):
    """Counts nothing, and notes which modules there are at the end."""

    def finish(self, name: str = "") -> None:
        self.passed = [*sys.modules]


def warm(run: Callable[[], None], folder: Path, env: Mapping[str, str]) -> None:
    """Import here what a run imports, so that the runs that follow do not."""
    names = folder / ".modules"
    done = play(run, folder, env, "none", Modules(), names)
    assert done.code == 0, done
    import_all(names)


def import_all(names: Path) -> None:
    """Import the modules of a list, apart from those of the interpreter itself that are there."""
    for name in json.loads(names.read_text()):
        if name.startswith("vctl") or name not in sys.modules:
            importlib.import_module(name)


class Sample:
    """A state directory that is copied for each point."""

    def __init__(self, base: Path, work: Path) -> None:
        self.base, self.work = base, work

    def copy(self) -> Path:
        home = self.work / "state"
        shutil.rmtree(home, ignore_errors=True)
        if self.base.exists():
            shutil.copytree(self.base, home)
        return home
