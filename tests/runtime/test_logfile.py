"""A bounded log, where it cannot be opened at once."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.specification import spec
from vctl.runtime.logfile import Bounded

pytestmark = spec("17.retention")
LIMIT = 1 << 16


@contextmanager
def no_file_left() -> Iterator[None]:
    """Inside, this process can open no file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_log_that_could_not_be_opened_is_bounded_from_the_next_look_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 4 * LIMIT)
    with no_file_left():
        log = Bounded(os.fsencode(path), LIMIT)
        log.trim()
    assert path.stat().st_blocks * 512 >= 4 * LIMIT
    log.trim()
    log.close()
    assert path.stat().st_blocks * 512 <= LIMIT
    assert path.stat().st_size == 4 * LIMIT


def test_what_a_job_puts_in_the_place_of_its_log_is_left_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    with no_file_left():
        log = Bounded(os.fsencode(path), LIMIT)
    other.write_bytes(b"x" * 4 * LIMIT)
    path.hardlink_to(other)
    log.trim()
    path.unlink()
    os.mkfifo(path)
    log.trim()
    path.unlink()
    log.trim()
    assert log.fd < 0
    assert other.stat().st_blocks * 512 >= 4 * LIMIT
