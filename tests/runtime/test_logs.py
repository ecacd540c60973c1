"""The log of a run: no link is followed, and its size is kept by who stands over the run."""

from __future__ import annotations

import fcntl
import os
import time

import pytest

from tests.specification import spec
from vctl.ops import logs
from vctl.runtime import records
from vctl.runtime.protocol import RunState
from vctl.store.database import filesystem_of

pytestmark = spec("17.private", "17.retention")

LIMIT = 4 << 20
WRITES = """
import sys, time
line = b"%07d " + b"x" * 1015 + b"\\n"
began, n = time.monotonic(), 0
while n < int(sys.argv[1]):
    block = b"".join(line % (n + i) for i in range(200))
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    n += 200
    time.sleep(max(0, began + n * 1024 / 100e6 - time.monotonic()))
"""


def test_a_log_stays_below_its_limit_while_it_is_written(ground):
    """Spec 17: log size limit; 100 MB a second, and the latest lines are there."""
    ground.python("a", WRITES, "100000", log_max_bytes=LIMIT)
    ground.running("a")
    log, sizes = ground.runtime.logs / "a", []
    while ground.runtime.observe("a").state is not RunState.EXITED:
        sizes.append(log.stat().st_blocks * 512)
        time.sleep(0.002)
    assert ground.ended("a").exit_code == 0
    sizes.sort()  # a quiet machine: 1.1 at most; on a loaded one the supervisor may not run for some 50 ms
    assert sizes[len(sizes) * 9 // 10] < LIMIT * 1.5
    assert sizes[-1] < LIMIT * 4
    text = b"".join(logs.read_log(log))
    assert LIMIT // 2 < len(text) < LIMIT * 1.5
    assert text.endswith(b"0099999 " + b"x" * 1015 + b"\n")
    assert b"\0" not in text
    assert b"".join(logs.read_log(log, tail=2)).startswith(b"0099998 ")


def test_a_log_below_its_limit_is_left_alone(ground):
    ground.python("a", WRITES, "1000", log_max_bytes=LIMIT)
    ground.ended("a")
    assert len(ground.log("a")) == 1000 * 1024


IN_THE_WAY = ["a link", "a link to nothing", "a pipe", "a directory", "a second name"]


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_stands_in_the_place_of_a_log_gives_way(ground, tmp_path, what):
    """Spec 17: a log is never written through a link that somebody left."""
    log, victim = ground.runtime.logs / "a", tmp_path / "victim"
    victim.write_text("precious")
    match what:
        case "a link":
            log.symlink_to(victim)
        case "a link to nothing":
            log.symlink_to(tmp_path / "new")
        case "a pipe":
            os.mkfifo(log)
        case "a directory":
            log.mkdir()
        case _:
            os.link(victim, log)
    ground.launch("a", "echo", "said")
    assert ground.ended("a").exit_code == 0
    assert ground.log("a") == b"said\n"
    assert not log.is_symlink()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_a_log_goes_on_where_an_earlier_attempt_ended(ground):
    for n in range(2):
        ground.launch(f"r{n}", "echo", str(n), log_path=str(ground.runtime.logs / "a"))
        ground.ended(f"r{n}")
    assert ground.log("a") == b"0\n1\n"


def test_logs_are_made_apart_from_their_neighbours_once(tmp_path):
    """Spec 17: what another process made meanwhile stays."""
    folder = tmp_path / "logs"
    records.make_apart(folder)
    assert os.listdir(tmp_path) == ["logs"]
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "of somebody else").touch()
    records.make_apart(folder)
    assert os.listdir(tmp_path) == ["logs"]
    assert os.listdir(folder) == ["of somebody else"]


def test_ext4_is_asked_for_another_part_of_the_disk(tmp_path):
    """Spec 17: without a journal it passes over the inodes freed in the last minutes there, for every new file."""
    if filesystem_of(tmp_path) != "ext4":
        pytest.skip("another filesystem")
    records.make_apart(tmp_path / "logs")
    folder = os.open(tmp_path, os.O_RDONLY)
    flags = int.from_bytes(fcntl.ioctl(folder, records._GET_FLAGS, bytes(8)), "little")
    os.close(folder)
    assert flags & 0x20000  # EXT4_TOPDIR_FL
