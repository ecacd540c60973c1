"""A full disk, by bytes and by inodes: said as what it is, waited for, and nothing is judged by it (spec 12 and 17)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Place
from tests.specification import spec

pytestmark = spec("17.durable")

FULL = "the disk is full"


@pytest.fixture(params=["bytes", "inodes"])
def small(request: pytest.FixtureRequest, tmp_path: Path, mount: Callable[..., Path]) -> Iterator[Place]:
    """A state directory on a disk of its own, with a node and space for little more."""
    limit = "size=8m" if request.param == "bytes" else "size=64m,nr_inodes=120"
    disk = mount("-t", "tmpfs", "-o", f"{limit},mode=700", "tmpfs")
    place = Place(disk / "state", tmp_path / "work")
    place.add_nodes(1)
    yield place
    empty(place)
    place.end()


def fill(place: Place) -> None:
    """Take all the room there is."""
    disk = place.home.parent
    with contextlib.suppress(OSError):
        for n in range(1000):
            (disk / f"inode{n}").touch()
    for n in range(3):  # what is left in small pieces, too
        with contextlib.suppress(OSError):
            fd = os.open(disk / f"fill{n}", os.O_WRONLY | os.O_CREAT)
            try:
                while os.statvfs(disk).f_bavail and os.statvfs(disk).f_blocks < 4096:
                    os.write(fd, bytes(4096))
            finally:
                os.close(fd)


def empty(place: Place) -> None:
    for path in place.home.parent.glob("[fi]*[0-9]"):
        path.unlink()


def cpu_s(pid: int) -> float:
    """What a process has used of the processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_full_disk_ends_nothing_and_is_waited_for(small: Place) -> None:
    daemon = small.daemon()
    small.submit("--submission-id", "runs", "--num-cpus", "1", "--", "sh", "-c", "sleep 2; exit 3")
    small.running_process("runs")
    small.submit("--submission-id", "waits", "--num-cpus", "4", "--", "sh", "-c", "exit 5")
    fill(small)
    refused = small.run("vc", "create", "v" * 60)
    if refused.code:  # a commit needs no inode
        assert (refused.code, FULL in refused.err, "free some space" in refused.err) == (1, True, True), (
            refused
        )
    copy = small.run("backup", str(small.home.parent / "copy"))
    assert (copy.code, FULL in copy.err) == (1, True), copy
    assert not list(small.home.parent.glob("copy*")), "half a backup stays"
    for words in (["job", "list"], ["status"], ["doctor"]):
        assert small.run(*words).code == 0, words
    began, spent_s = time.monotonic(), cpu_s(daemon.pid)
    while time.monotonic() < began + 4:  # the scheduler is woken again and again
        with open(small.home / "changes", "r+b", 0) as changes:
            changes.write(changes.read(1))
        time.sleep(0.1)
    assert daemon.poll() is None, (small.folder / "daemon.log").read_text()
    assert cpu_s(daemon.pid) - spent_s < 1, "it does not rest"
    empty(small)
    assert small.reach("runs", "FAILED")["exit_code"] == 3
    waited = small.reach("waits", "FAILED")
    assert (waited["exit_code"], waited["state_reason"]) == (5, "NonZeroExit")
    assert small.ok("job", "submit", "--", "echo", "works") == "works\n"
    log = (small.folder / "daemon.log").read_text()
    assert "Traceback" not in log
    assert "internal error" not in log
    small.term(daemon)


def test_a_scheduler_that_starts_on_a_full_disk_says_so_and_ends(small: Place) -> None:
    """Nothing waits for it yet: exit 1, one error, and the next one starts where there is space (spec 13)."""
    small.submit("--submission-id", "waits", "--hold", "--", "true")
    fill(small)
    for words in (["daemon"], ["job", "submit", "--", "true"], ["status"]):
        ran = small.run(*words)
        assert (ran.code, ran.err.count("Error: ")) == (1, 1), (words, ran)
        assert FULL in ran.err, (words, ran)
        assert "free some space" in ran.err, (words, ran)
    empty(small)
    daemon = small.daemon()
    small.ok("job", "release", "waits")
    small.reach("waits", "SUCCEEDED")
    small.term(daemon)
