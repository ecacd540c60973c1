"""A launcher that reads nothing for a long time, as on an overloaded machine, costs no run (spec 12)."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.specification import spec
from vctl.runtime import lines, supervisors
from vctl.runtime.records import Records
from vctl.runtime.supervisors import ANSWER_S, MAX_TRIES, Supervisors

pytestmark = spec("16.local", "12.daemon-death")

RUNS = 8


class Launchers:
    """All launchers: none reads what it is sent; one that is killed takes the lines along."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, _home: Path, _keeper: object) -> Launcher:
        self.made += 1
        return Launcher()


class Launcher:
    def __init__(self) -> None:
        self.unread: list[int] = []

    def is_dead(self) -> bool:
        return False

    def hand(self, _number: int, _place: int, line: socket.socket) -> bool:
        self.unread.append(os.dup(line.fileno()))
        return True

    def abandon(self) -> None:
        for fd in self.unread:
            os.close(fd)
        self.unread.clear()

    close = abandon


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(supervisors, "time", clock)
    return clock


@pytest.fixture
def launchers(monkeypatch: pytest.MonkeyPatch) -> Launchers:
    launchers = Launchers()
    monkeypatch.setattr(supervisors, "ForkServer", launchers)
    return launchers


def of(home: Path) -> tuple[Supervisors, list[int]]:
    """Supervisors, and the numbers of runs that wait to be taken."""
    records = Records(home)
    records.create()
    them = Supervisors(records, "boot", lambda _file: None)
    numbers = [them.assign() for _ in range(RUNS)]
    for number in numbers:
        assert them.give(number, f"run-{number}", b"request")
    return them, numbers


def goes_on(them: Supervisors, clock: SimpleNamespace, seconds: float) -> None:
    """Time passes, and whatever is due is done."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now += max(0.01, them.due_s(1.0))
        them.maintain()
        them.hear(them.poll.poll(0))


def test_a_slow_launcher_is_replaced_once_for_all_that_wait_for_it(
    tmp_path: Path, clock: SimpleNamespace, launchers: Launchers
) -> None:
    them, _ = of(tmp_path)
    goes_on(them, clock, 1.5 * ANSWER_S)
    assert launchers.made == 2
    them.close()


def test_runs_that_wait_for_a_slow_launcher_are_not_given_up(
    tmp_path: Path, clock: SimpleNamespace, launchers: Launchers
) -> None:
    """Its replacement took the lines of all others along, and each loss was one of ten tries."""
    them, numbers = of(tmp_path)
    goes_on(them, clock, 600.0)
    assert not them.refused
    assert {slot.file.number for slot in them.untaken.values()} == set(numbers)
    assert launchers.made < 100
    them.close()


def test_a_run_that_is_given_up_is_not_started_by_a_process_that_was_asked_earlier(
    tmp_path: Path, clock: SimpleNamespace, launchers: Launchers
) -> None:
    them, numbers = of(tmp_path)
    slot = them.slots[numbers[0]]
    for _ in range(3 * MAX_TRIES):
        if slot.line is not None:
            slot.line.shutdown(socket.SHUT_RDWR)  # its process has ended
        goes_on(them, clock, 0.01)
        clock.now = max(clock.now, slot.due)
    assert them.refused == {slot.run: f"{MAX_TRIES} supervisors ended before they took it: see launcher.log"}
    late = lines.Writer(os.fsencode(slot.file.path))
    assert not late.take(os.fsencode(slot.run), b"T\n")
    late.close()
    them.close()
