"""The quick subset: ``pytest -m fast``. Which tests are in it, and what holds for each of them while it runs.

It is chosen by folder: tests of pure code, of the border and of the tables. Such a test starts no process and does
not sleep, so that the subset takes seconds and gives the same answer on a busy machine. A test in one of these
folders that has to, or that takes seconds, has the mark ``not_fast`` with the reason.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PARTS = ("core", "engine", "spec", "scheduler", "store", "simulate", "operations/test_declared.py")
EXCLUDED = ("slow", "soak", "not_fast")
FORBIDDEN = {
    "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "pty.spawn", "subprocess.Popen",
}  # fmt: skip
"""Audit events of the interpreter: they come however the function was imported. Sleeping has one since 3.13 only."""

_seen: list[str] | None = None
_others: set[int | None] = set()
"""Threads that ran before the test began: what they do is not its business."""


class NotFast(AssertionError):
    """A fast test has started a process or has slept."""


def mark(items: list[pytest.Item]) -> None:
    """Give the mark ``fast`` to each test of the subset."""
    for item in items:
        path = item.path.relative_to(TESTS) if item.path.is_relative_to(TESTS) else item.path
        chosen = any(path.is_relative_to(part) for part in PARTS)
        if chosen and not any(item.get_closest_marker(name) for name in EXCLUDED):
            item.add_marker("fast")


def is_outside(path: Path) -> bool:
    """Whether a file or folder of tests has no fast tests: ``-m fast`` need not import it."""
    if not path.is_relative_to(TESTS) or path == TESTS:
        return False
    inside = path.relative_to(TESTS)
    return not any(inside.is_relative_to(part) or Path(part).is_relative_to(inside) for part in PARTS)


@contextmanager
def enforced() -> Iterator[list[str]]:
    """Within, a forbidden call raises `NotFast`; one whose error was swallowed is reported at the end."""
    global _seen
    _others.update(thread.ident for thread in threading.enumerate())
    _others.discard(threading.get_ident())
    _seen = []
    sleep = time.sleep

    def sleeps(seconds: float) -> None:
        _refuse_call("time.sleep")
        sleep(seconds)

    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(time, "sleep", sleeps)
            yield _seen
        if _seen:
            raise NotFast(
                f"a fast test called {', '.join(_seen)}: mark it not_fast with the reason, or move it"
            )
    finally:
        _seen = None
        _others.clear()


def _refuse_call(event: str) -> None:
    if _seen is not None and threading.get_ident() not in _others:
        _seen.append(event)
        raise NotFast(f"a fast test called {event}")


def _on_audit(event: str, args: object, forbidden: Set[str] = frozenset(FORBIDDEN)) -> None:
    if event in forbidden:  # the names of this module are gone when the interpreter ends
        _refuse_call(event)


sys.addaudithook(_on_audit)
