"""Reading logs: the last lines however long they are, logs that lost their beginning, and what is no log."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.ops import logs

pytestmark = spec("17.retention")

LINES = b"one\ntwo\n\nfour\nfive"
TAILS = {0: b"", 1: b"five", 2: b"four\nfive", 3: b"\nfour\nfive", 9: LINES}


@pytest.mark.parametrize(("count", "shown"), TAILS.items())
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_the_last_lines(tmp_path: Path, count: int, shown: bytes, end: bytes) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(LINES + end)
    assert b"".join(logs.read_log(log, tail=count)) == (shown + end if count else b"")


def test_the_last_lines_across_blocks(tmp_path: Path) -> None:
    """Spec 13: the answer is what ``tail`` would show, wherever blocks end."""
    log = tmp_path / "a.log"
    lines = [b"x" * (n * 7919 % 200_000) + b"\n" for n in range(60)]
    log.write_bytes(b"".join(lines))
    for count in (1, 2, 7, 59, 60, 61):
        assert b"".join(logs.read_log(log, tail=count)) == b"".join(lines[-count:])
    assert b"".join(logs.read_log(log, offset=len(lines[0]), tail=99)) == b"".join(lines[1:])


def test_a_line_of_any_length_takes_little_memory(tmp_path: Path) -> None:
    """Spec 14 and 17: nobody can take a server's memory by a log without line ends."""
    log = tmp_path / "a.log"
    log.write_bytes(b"first\nx")
    os.truncate(log, 300_000_000)
    tracemalloc.start()
    try:
        total = sum(map(len, logs.read_log(log, tail=1)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 300_000_000 - 6
    assert peak < 2_000_000


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Spec 17: a log shows what a job wrote, never what somebody linked to."""
    log = tmp_path / "a.log"
    log.symlink_to("/etc/passwd")
    assert b"".join(logs.read_log(log)) == b""
    log.unlink()
    os.mkfifo(log)
    assert b"".join(logs.read_log(log, tail=1)) == b""
