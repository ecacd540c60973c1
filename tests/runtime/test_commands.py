"""Executables of the user that answer a question: bounded in size and time, and they block nobody (spec 9)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pytest

from tests.specification import spec
from vctl.runtime import commands, processes
from vctl.runtime.commands import Called, ProviderCall

pytestmark = spec("9.provider")

PYTHON = (sys.executable, "-S", "-c")


@pytest.fixture
def calls() -> Iterator[list[ProviderCall]]:
    made: list[ProviderCall] = []
    yield made
    for call in made:
        call.kill()


def ended(call: ProviderCall, within_s: float = 20.0) -> Called:
    give_up = time.monotonic() + within_s
    while (found := call.poll()) is None:
        assert time.monotonic() < give_up
        time.sleep(0.005)
    return found


def call(code: str, question: bytes = b"", *, timeout_s: float = 60.0, mark: str = "m") -> ProviderCall:
    return ProviderCall((*PYTHON, code), question, mark=mark, timeout_s=timeout_s, env=dict(os.environ))


def of_call(mark: str) -> list[processes.Process]:
    """The processes of a call that live."""
    return list(processes.marked(commands.CALL_MARK.encode()).get(mark.encode(), ()))


ANSWERS = {
    "it answers what it was asked": ("import sys; print(sys.stdin.read()[::-1])", b"abc", Called(b"cba\n")),
    "it says nothing": ("pass", b"", Called(b"")),
    "it does not listen": ("print(1)", b"x" * 200_000, Called(b"1\n")),
    "it fails": ("import sys; print(1); sys.exit(3)", b"", Called(problem="exit code 3")),
    "it is killed": ("import os; os.kill(os.getpid(), 9)", b"", Called(problem="exit code 137")),
    "a long answer": ("print('x' * 1048575)", b"", Called(b"x" * 1048575 + b"\n")),
    "one that is too long": (
        "print('x' * 1048576)",
        b"",
        Called(problem="its answer is longer than 1048576 bytes"),
    ),
    "one without an end": (
        "while True: print('x' * 4096)",
        b"",
        Called(problem="its answer is longer than 1048576 bytes"),
    ),
}


@pytest.mark.parametrize(("code", "question", "want"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_or_the_reason_for_none(
    code: str, question: bytes, want: Called, calls: list[ProviderCall]
) -> None:
    """Spec 9: answers up to 1 MiB."""
    calls.append(call(code, question))
    assert ended(calls[0]) == want


def test_a_background_child_that_holds_the_output_delays_nothing(calls: list[ProviderCall]) -> None:
    """Spec 9: what the command left in the background is left alone, and nobody waits for it."""
    code = "import os, time\nprint(os.getpid(), flush=True)\nif os.fork() == 0: time.sleep(300)"
    mark = f"background-{os.getpid()}"
    calls.append(call(code, mark=mark))
    done = ended(calls[0], within_s=10)
    assert done.problem is None
    assert int(done.answer) > 0
    left = of_call(mark)
    assert len(left) == 1
    assert not commands.end_orphan(mark)  # the call itself is over
    os.kill(left[0].pid, 9)


def test_a_call_ends_with_its_time_limit_and_its_whole_group(calls: list[ProviderCall]) -> None:
    """Spec 9: ``provider_timeout``."""
    code = "import os, time\nos.fork()\ntime.sleep(300)"
    calls.append(call(code, timeout_s=0.5, mark=f"late-{os.getpid()}"))
    began = time.monotonic()
    assert ended(calls[0]) == Called(problem="it did not end within 0.5 s")
    assert time.monotonic() - began < 5
    give_up = time.monotonic() + 10
    while of_call(f"late-{os.getpid()}"):
        assert time.monotonic() < give_up


def test_looking_never_waits(calls: list[ProviderCall]) -> None:
    """Spec 9: a command at work costs the scheduler nothing."""
    calls.append(call("import time; print('x', flush=True); time.sleep(300)"))
    worst = 0.0
    for _ in range(100):
        began = time.monotonic()
        assert calls[0].poll() is None
        worst = max(worst, time.monotonic() - began)
    assert worst < 0.2


def test_a_call_that_outlived_its_scheduler_is_ended(calls: list[ProviderCall]) -> None:
    """Spec 9: the same request is not worked on twice at a time."""
    calls.append(call("import time; time.sleep(300)", mark="orphan"))
    give_up = time.monotonic() + 10
    while not commands.end_orphan("orphan"):
        assert time.monotonic() < give_up  # between fork and exec it has no mark yet
    assert ended(calls[0]).problem == "exit code 137"
    assert not commands.end_orphan("other")


def test_what_cannot_be_started_is_an_error(calls: list[ProviderCall]) -> None:
    with pytest.raises(FileNotFoundError):
        ProviderCall(("/no/such/command",), b"", mark="m", timeout_s=1, env={})
