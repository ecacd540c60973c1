"""A run that uses more memory than it has is killed whole, and its record says why (spec 16)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.conftest import Ground, eventually, is_gone
from tests.specification import spec
from vctl.runtime import memory

pytestmark = spec("16.local")

MIB = 1 << 20
LIMIT = 64 * MIB
FILL = "import sys, time; kept = b'x' * (int(sys.argv[1]) << 20); time.sleep(60)"
HOLDS = "import os, sys, time; kept = b'x' * (40 << 20); open(sys.argv[1], 'w').close(); time.sleep(60)"
PARTS = f"""
import subprocess, sys
for n in range(3):
    subprocess.Popen([sys.executable, "-I", "-S", "-c", {HOLDS!r}, sys.argv[1] + str(n)], start_new_session=True)
raise SystemExit(0 if len(sys.argv) > 2 else subprocess.call(["sleep", "60"]))
"""
COPIES = """
import os, sys, time
kept = b'x' * (40 << 20)
for n in range(4):
    if os.fork() == 0: break
open(sys.argv[1] + str(os.getpid()), "w").close()
time.sleep(1.5)
while True:
    try: os.wait()
    except ChildProcessError: break
"""
MAPS = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)
sum(shared[at] for at in range(0, len(shared), 4096))
time.sleep(1.5)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", FILL, "30"]) as process:
        eventually(lambda: memory.used_bytes([process.pid], 0) > 30 * MIB)
        yield process
        process.kill()


def test_what_processes_use_is_their_own_memory(sleeper: subprocess.Popen[bytes]) -> None:
    assert 30 * MIB < memory.used_bytes([sleeper.pid], 0) < 60 * MIB
    assert memory.used_bytes([sleeper.pid], LIMIT) < 60 * MIB, "the first sum is enough"
    assert memory.used_bytes([], 0) == memory.used_bytes([1 << 22], 0) == 0


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (64 * MIB, "64 MiB"), (1536 * MIB, "1.5 GiB")],
)
def test_a_size_is_shown_as_people_write_it(size: int, words: str) -> None:
    assert memory.shown(size) == words


def test_a_run_that_uses_more_than_it_has_is_killed(ground: Ground) -> None:
    """By a look while it fills its memory, so the message says less than 200 MiB where that takes long."""
    ground.python("a", FILL, "200", memory_bytes=LIMIT)
    end = ground.ended("a")
    assert (end.exit_code, end.signal, end.stopped) == (137, signal.SIGKILL, False)
    said = re.fullmatch(r"asked 64 MiB, peak (.+) MiB; try --memory \d+MiB", end.message or "")
    assert said is not None and LIMIT / MIB < float(said[1]) < 220, end.message


def test_all_processes_of_a_run_count_together_and_end_together(ground: Ground) -> None:
    marks = [ground.home / f"p{n}" for n in range(3)]
    ground.python("a", PARTS, str(ground.home / "p"), memory_bytes=100 * MIB)
    main = ground.running("a").pid
    assert "asked 100 MiB" in ground.ended("a").message
    assert is_gone(main)
    assert any(mark.exists() for mark in marks)
    assert not [
        one for one in os.listdir("/proc") if one.isdigit() and _started_with(one, str(marks[0])[:-1])
    ]


def _started_with(pid: str, word: str) -> bool:
    try:
        return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("what", "limit"),
    [("less", LIMIT), ("copies", LIMIT), ("maps", LIMIT), ("anything", 0)],
)
def test_other_runs_go_on(ground: Ground, what: str, limit: int) -> None:
    """What forks share counts once, and pages of files do not count; without a limit nothing does."""
    large = ground.home / "large"
    large.write_bytes(b"x" * (100 * MIB))
    code, argument = {
        "less": ("import time; kept = b'x' * (30 << 20); time.sleep(1.5)", ""),
        "copies": (COPIES, str(ground.home / "copy")),
        "maps": (MAPS, str(large)),
        "anything": ("import time; kept = b'x' * (200 << 20); time.sleep(1.5)", ""),
    }[what]
    ground.python("a", code, argument, memory_bytes=limit)
    end = ground.ended("a")
    assert (end.exit_code, end.signal, end.message) == (0, None, "")


def test_a_run_that_is_stopped_was_not_killed_for_its_memory(ground: Ground) -> None:
    mark = ground.home / "deaf"
    code = f"import signal; signal.signal(15, signal.SIG_IGN); open({str(mark)!r}, 'w').close()\n{FILL}"
    ground.python("a", code, "30", memory_bytes=LIMIT)
    eventually(mark.exists)
    ground.runtime.stop("a", grace_s=0.3)
    end = ground.ended("a")
    assert (end.signal, end.stopped, end.message) == (signal.SIGKILL, True, "")
