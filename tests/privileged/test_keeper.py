"""What an account that was broken into can have root do by the line to the keeper: start launchers, remove logs."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.privileged.keeper import MAX_BYTES, MAX_LAUNCHERS, SCHEDULER, SERVER, ServiceKeeper, ServiceProcess

pytestmark = spec("19.service")


class Heard(ServiceKeeper):
    """A keeper that starts nothing, with the line of one process."""

    def __init__(self, folder: Path, name: str = SCHEDULER) -> None:
        self.logs = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.launchers, self.started = set[int](), 0
        self.process = ServiceProcess(name, [])
        self.process.line, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process.line.setblocking(False)

    def _launch(self, channel: int) -> None:
        assert os.fstat(channel)
        if len(self.launchers) < MAX_LAUNCHERS:
            self.started += 1

    def send(self, body: bytes, *descriptors: int) -> None:
        socket.send_fds(self.theirs, [body], descriptors)
        self.hear(self.process)

    def end(self) -> None:
        os.close(self.logs)
        self.theirs.close()
        if self.process.line is not None:
            self.process.line.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Heard]:
    (tmp_path / "logs").mkdir()
    (tmp_path / "outside.log").write_text("kept")
    (tmp_path / "logs" / "a.log").write_text("a")
    (tmp_path / "logs" / "link.log").symlink_to(tmp_path / "outside.log")
    made = Heard(tmp_path / "logs")
    yield made
    made.end()


def test_a_log_is_removed_and_who_asked_hears_of_it(keeper: Heard, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    keeper.send(b'["remove log", "a.log"]', theirs)
    os.close(theirs)
    assert os.read(ours, 1) == b""  # the keeper has closed its copy
    os.close(ours)
    assert not (tmp_path / "logs" / "a.log").exists()
    keeper.send(b'["remove log", "a.log"]')  # once more: nothing happens


def test_a_link_in_place_of_a_log_is_removed_itself(keeper: Heard, tmp_path: Path) -> None:
    keeper.send(b'["remove log", "link.log"]')
    assert not (tmp_path / "logs" / "link.log").is_symlink()
    assert (tmp_path / "outside.log").read_text() == "kept"


NAMES = [
    "../outside.log", "/etc/passwd", ".log", "a.log/", "./a.log", "a\0.log", "a.log\n", "x" * 300 + ".log",
    "-a.log", "..", "", "a", "a.txt", 7, None, ["a.log"], {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_name_that_is_no_logs_removes_nothing(
    keeper: Heard, tmp_path: Path, name: object, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper.send(json.dumps(["remove log", name]).encode())
    assert sorted(os.listdir(tmp_path / "logs")) == ["a.log", "link.log"]
    assert "was dropped" in capsys.readouterr().err


def test_only_the_scheduler_gets_launchers(tmp_path: Path) -> None:
    for name, count in ((SCHEDULER, 1), (SERVER, 0)):
        keeper = Heard(tmp_path, name)
        with socket.socket() as channel:
            keeper.send(b'["launcher"]', channel.fileno())
            keeper.send(b'["launcher"]')  # without a channel
            keeper.send(b'["launcher", "--root"]', channel.fileno())
        assert keeper.started == count
        keeper.end()


def test_garbage_starts_and_removes_nothing(keeper: Heard, tmp_path: Path) -> None:
    """Ten thousand messages, of bytes and of JSON that is nearly right; the line goes on."""
    rng = random.Random(1)
    words = ["launcher", "remove log", "a.log", "../a.log", "", 0, None, True, [], {}, 1e400, "\ud800"]
    files = len(os.listdir("/proc/self/fd"))
    for number in range(10_000):
        if number % 2:
            body = rng.randbytes(rng.randint(1, 200))
        else:
            body = json.dumps([rng.choice(words) for _ in range(rng.choice((0, 1, 3, 4)))]).encode()
        body = b"[" * 3000 if number % 1000 == 7 else body + b" " * (MAX_BYTES if number % 1000 == 8 else 0)
        keeper.send(body, *([0] if number % 3 == 0 and body != b'["launcher"]' else []))
    assert keeper.started == 0
    assert sorted(os.listdir(tmp_path / "logs")) == ["a.log", "link.log"]
    assert len(os.listdir("/proc/self/fd")) == files
    keeper.send(b'["remove log", "a.log"]')
    assert os.listdir(tmp_path / "logs") == ["link.log"]


def test_two_descriptors_are_one_too_many(keeper: Heard) -> None:
    """The kernel drops what there is no room for, and says so: the message is dropped, and nothing stays open."""
    files = len(os.listdir("/proc/self/fd"))
    keeper.send(b'["launcher"]', 0, 1)
    assert keeper.started == 0
    assert len(os.listdir("/proc/self/fd")) == files
