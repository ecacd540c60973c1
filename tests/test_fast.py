"""The quick subset is quick: none of its tests starts a process or sleeps, and it is not empty by mistake."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests import fast, order
from tests.specification import spec

pytestmark = spec("13.help")

CALLS: dict[str, Callable[[], object]] = {
    "os.fork": os.fork,
    "subprocess.Popen": lambda: subprocess.Popen([sys.executable, "-c", ""]),
    "os.posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "os.system": lambda: os.system("true"),
    "time.sleep": lambda: time.sleep(0),
}


@pytest.mark.parametrize("event", CALLS)
def test_a_fast_test_that_forks_or_sleeps_fails(event: str) -> None:
    """Also where the code under test has taken the error for one of its own."""
    with pytest.raises(fast.NotFast, match=f"called {event}: mark it"), fast.enforced():
        _swallowed(CALLS[event])


def _swallowed(call: Callable[[], object]) -> None:
    with pytest.raises(fast.NotFast):
        call()


def test_a_thread_of_an_earlier_test_may_sleep() -> None:
    begin, slept = threading.Event(), threading.Event()

    def other() -> None:
        begin.wait(10)
        time.sleep(0)
        slept.set()

    thread = threading.Thread(target=other)
    thread.start()
    with fast.enforced():
        begin.set()
        thread.join()
    assert slept.is_set()


def test_a_thread_that_the_test_has_started_may_not() -> None:
    def other() -> None:
        with pytest.raises(fast.NotFast):
            time.sleep(0)

    with pytest.raises(fast.NotFast, match=r"called time\.sleep: mark it"), fast.enforced():
        _joined(threading.Thread(target=other))


def _joined(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


def test_other_tests_may() -> None:
    assert subprocess.run([sys.executable, "-c", ""], check=True).returncode == 0
    time.sleep(0)


@pytest.mark.fast
def test_the_mark_alone_forbids_it(forbidden_calls: list[str]) -> None:
    """The fixture of tests/conftest.py looks at the mark."""
    with pytest.raises(fast.NotFast):
        time.sleep(0)
    assert forbidden_calls == ["time.sleep"]
    forbidden_calls.clear()


@pytest.mark.parametrize(
    ("path", "outside"),
    [
        ("core/test_ledger.py", False), ("operations", False), ("operations/test_declared.py", False),
        ("operations/test_fields.py", True), ("http", True), ("test_readme.py", True), ("", False),
    ],
)  # fmt: skip
def test_what_is_left_out_of_the_collection(path: str, outside: bool) -> None:
    assert fast.is_outside(fast.TESTS / path) == outside


@pytest.mark.parametrize("part", fast.PARTS)
def test_each_part_is_marked(part: str, request: pytest.FixtureRequest) -> None:
    path = fast.TESTS / part
    assert path.suffix == ".py" or list(path.glob("test_*.py"))
    collected = [item for item in request.session.items if item.path.is_relative_to(path)]
    marked = [item for item in collected if item.get_closest_marker("fast")]
    assert marked or not collected


def test_commands_are_compiled_once() -> None:
    """A variable of the caller would have each of a thousand commands compile all of vctl."""
    command = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"
    assert not sys.dont_write_bytecode


def test_the_interpreter_ends_without_a_word() -> None:
    """The hook that watches calls outlives the names of its module."""
    command = [
        sys.executable,
        "-c",
        "import sys, tests.fast; vars(sys.modules['tests.fast']).update(FORBIDDEN=None)",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=fast.TESTS.parent)
    assert done.stderr == ""


def test_those_with_ray_come_first_and_the_short_ones_last(request: pytest.FixtureRequest) -> None:
    order_of = [order.turn(item) for item in request.session.items]
    assert order_of == sorted(order_of)
    ray = SimpleNamespace(fixturenames=["tmp_path", "alone_with_ray"])
    assert order.turn(ray) < order.turn(request.node)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "marks", "more"), [("auto", "", 1), ("auto", "fast", None), (None, "", None)]
)
def test_tests_that_wait_have_more_workers_than_cores(
    monkeypatch: pytest.MonkeyPatch, words: str | None, marks: str, more: int | None
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    config = SimpleNamespace(option=SimpleNamespace(numprocesses=words, markexpr=marks))
    assert order.workers(config) == (None if more is None else 2 + more)  # type: ignore[arg-type]
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "7")
    assert order.workers(config) is None  # type: ignore[arg-type]
