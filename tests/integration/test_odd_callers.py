"""Whatever comes to the socket of the command server, the next command is answered (spec 13, 17)."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.conftest import Place, is_gone
from tests.integration.test_command_server import IMPORTED, only_fork, server_of, traced, with_command_server
from tests.specification import spec
from vctl.cli import command_client
from vctl.cli.command_client import SOCKET

pytestmark = spec("13.output", "17.durable")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Place]:
    with with_command_server(tmp_path, nodes=1) as place:
        yield place


def odd_message(dice: random.Random, place: Place) -> bytes:
    """A command as the client sends it, spoiled; or bytes that are none."""
    if dice.random() < 0.2:
        return dice.randbytes(dice.choice([0, 1, 100, 5000]))
    words = dice.choice(
        [["ps"], ["job", "status", "x" * 1000], ["status", "-o", "json"], ["run", "-d"], ["\0"], []]
    )
    head = [os.fsencode(place.folder), b"utf-8", b"63", b"%d" % len(words)]
    spoiled = dice.choice([b"", b"-1", b"99999999999999999999", b"\xff", b"no-such", b"/", b"1e9"])
    if dice.random() < 0.8:
        head[dice.randrange(4)] = spoiled
    rest = [os.fsencode(word) for word in words]
    variables = [
        b"VCTL_HOME=" + os.fsencode(place.home),
        *dice.sample([b"=", b"A", b"=x", b"B=\xff", b"A=1"], 2),
    ]
    whole = b"\0".join([*head, *rest, *variables])
    return whole[: dice.randrange(len(whole))] if dice.random() < 0.2 else whole


def call(dice: random.Random, place: Place) -> None:
    """Connect, and do something odd at some point."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, suppress(OSError):
        line.settimeout(20.0)
        line.connect(str(place.home / SOCKET))
        if dice.random() < 0.2:
            return
        assert line.recv(4096).endswith(command_client.stamp())
        null = os.open(os.devnull, os.O_RDWR)
        try:
            files = [null] * dice.choice([0, 1, 2, 3, 3, 3, 3, 4, 30])
            socket.send_fds(line, [odd_message(dice, place)], files)
        finally:
            os.close(null)
        if dice.random() < 0.7:
            line.recv(16)


def annoy(place: Place, seed: int, count: int) -> None:
    server = server_of(place)
    assert server is not None
    dice = random.Random(seed)
    only_fork(place)
    files = len(os.listdir(f"/proc/{server}/fd"))
    for _ in range(count):
        call(dice, place)
    only_fork(place)
    assert not is_gone(server)
    assert len(os.listdir(f"/proc/{server}/fd")) == files
    done = traced(place, "ps", "-o", "json")
    assert (done.code, done.json["items"]) == (0, [])
    assert IMPORTED not in done.stderr
    assert place.jobs() == {}
    log = (place.folder / "daemon.log").read_text()
    assert "Traceback" not in log
    assert "a message is no command: " in log


def test_odd_callers_disturb_nobody(served: Place) -> None:
    annoy(served, 1, 60)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_odd_callers_disturb_nobody(served: Place, seed: int) -> None:
    annoy(served, seed, 1000)


def test_one_that_says_nothing_holds_nobody_up(served: Place) -> None:
    """Its answer waits for it, in a process of its own, and goes with it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(str(served.home / SOCKET))
        assert line.recv(4096)
        done = traced(served, "ps", "-o", "json")
        assert (done.code, IMPORTED in done.stderr) == (0, False)
    only_fork(served)
