"""Messages between processes arrive whole, in order and once, however a stream cuts them; descriptors do not leak."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import vctl
from tests.specification import spec
from vctl.runtime import frames

pytestmark = spec("16.local")

BODIES = [b"", b"x", b"\0" * 5, os.urandom(300), b"\xff" * 70_000]
WITH_DESCRIPTORS = {
    "runtime/frames.py",
    "runtime/attach_socket.py",  # a terminal, to a relay that imports nothing
    "runtime/relay.py",
    "cli/command_client.py",  # imports nothing
    "cli/command_server.py",
    "privileged/keeper.py",  # knows only the standard library
}


@pytest.mark.parametrize("seed", range(20))
def test_frames_that_are_cut_anywhere_arrive_whole_and_in_order(seed: int) -> None:
    dice = random.Random(seed)
    sent = dice.choices(BODIES, k=8)
    stream = b"".join(map(frames.frame, sent))
    received, found = bytearray(), []
    while stream:
        size = dice.choice((1, 2, 3, 4, 5, 100, 10_000))
        received += stream[:size]
        stream = stream[size:]
        while (body := frames.cut(received)) is not None:
            found.append(body)
    assert (found, received) == (sent, b"")


def test_an_incomplete_frame_stays() -> None:
    whole = frames.frame(b"body")
    for end in range(len(whole)):
        received = bytearray(whole[:end])
        assert frames.cut(received) is None
        assert received == whole[:end]


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pair[0], pair[1]:
        yield pair


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_packet_brings_its_descriptors_and_no_program_inherits_them(
    line: tuple[socket.socket, socket.socket], tmp_path: Path, count: int
) -> None:
    files = [os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT) for n in range(count)]
    frames.send(line[0], b"first", files)
    frames.send(line[0], b"second", [])
    before = open_files()
    body, given = frames.receive(line[1], 100, max(count, 1))
    assert (body, len(given), open_files()) == (b"first", count, before + count)
    for n, fd in enumerate(given):
        assert not os.get_inheritable(fd)
        assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / str(n)))
    assert frames.receive(line[1], 100) == (b"second", [])
    for fd in (*files, *given):
        os.close(fd)


def test_more_descriptors_than_expected_are_not_left_open(
    line: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    files = [os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT) for n in range(9)]
    frames.send(line[0], b"many", files)
    before = open_files()
    _, given = frames.receive(line[1], 100, 1)
    assert open_files() == before + len(given)
    for fd in (*files, *given):
        os.close(fd)


def test_an_end_and_nothing_to_read_are_not_the_same(line: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(BlockingIOError):
        frames.receive(line[1], 100, waits=False)
    line[0].close()
    assert frames.receive(line[1], 100, waits=False) == (b"", [])
    with pytest.raises(OSError, match="Broken pipe"):
        frames.send(line[1], b"x", [])


def test_descriptors_travel_nowhere_else() -> None:
    root = Path(vctl.__file__).parent
    words = ("recvmsg", "sendmsg", "send_fds", "recv_fds")
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert found == WITH_DESCRIPTORS
