"""Live views in a real terminal: rows are reached with keys, `top` uses its lines, nothing is left behind (spec 13)."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.cli.test_terminal import environment, home  # noqa: F401  # a fixture
from tests.specification import spec
from vctl.cli import status_view
from vctl.cli.screen import Screen

pytestmark = spec("13.screen")

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = b"\x1b[A", b"\x1bOB", b"\x1b[5~", b"\x1b[6~", b"\x1b[H", b"\x1b[F"


class View:
    """A command in a terminal: each key gives its last page."""

    def __init__(self, at: Path, size: tuple[int, int], *words: str) -> None:
        self.size = size
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            sized = f"stty cols {size[0]} rows {size[1]}; exec {sys.executable} -m vctl {' '.join(words)}"
            os.execvpe("sh", ["sh", "-c", sized], environment(at))
        self.out = b""
        self.until(b"q ends it")

    def until(self, words: bytes) -> None:
        end = time.monotonic() + 60
        while words not in self.out or self.read(0.3):
            assert time.monotonic() < end, self.out
            self.read(0.2)

    def read(self, seconds: float) -> bool:
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            self.out += (block := os.read(self.fd, 1 << 16))
        except OSError:
            return False
        return bool(block)

    def page(self) -> list[str]:
        """The lines of the last page without the notice below them."""
        frame = self.out.decode().replace("\r\n", "\n").rpartition("\x1b[H")[2]
        rows = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).split("\n")]
        assert len(rows) <= self.size[1]
        assert all(cell_len(row) <= self.size[0] for row in rows)
        self.height = len(rows)
        notice = next((at for at, row in enumerate(rows) if row.startswith("No scheduler is running")), None)
        return rows[:notice]

    def press(self, *keys: bytes) -> list[str]:
        self.out = b""
        os.write(self.fd, b"".join(keys))
        self.until(b"q ends it")
        return self.page()

    def quit(self, key: bytes = b"q") -> int:
        """End it, and return its exit code; the terminal is as before."""
        os.write(self.fd, key)
        while self.read(5):
            pass
        assert self.out.rstrip().endswith(b"\x1b[?1049l")
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def ids(page: list[str]) -> list[int]:
    """The numbers of the jobs on a page of `ps`."""
    return [int(row.split()[1]) for row in page if re.match(r"\S+ +\d+ +[A-Z]+ ", row)]


def test_keys_reach_every_row_of_a_list(home: Path) -> None:  # noqa: F811
    view = View(home, (60, 24), "ps", "-w", "600")
    first = view.page()
    states = [row.split()[2] for row in first[2:-1]]
    assert states == ["RUNNING"] * 11 + ["PENDING"] * (len(states) - 11)
    assert "more rows do not fit" in first[-1]
    seen = ids(first)
    assert ids(view.press(DOWN, DOWN)) == [*seen[2:], *ids(view.page())[-2:]]
    assert ids(view.press(UP)) == [*seen[1:], *ids(view.page())[-1:]]
    assert ids(view.press(UP, UP, UP)) == ids(first)
    for _ in range(6):
        page = view.press(PAGE_DOWN)
        assert page[1].split()[:3] == ["SUBMISSION", "ID", "STATUS"]
        seen += [number for number in ids(page) if number not in seen]
    assert len(seen) == 100
    last = view.page()
    assert ids(view.press(END)) == ids(last)
    assert "rows above" in last[-1]
    assert ids(view.press(PAGE_UP)) != ids(last)
    assert ids(view.press(HOME)) == ids(first)
    assert view.quit() == 0


def test_the_newest_events_are_shown_and_keys_reach_older_ones(home: Path) -> None:  # noqa: F811
    view = View(home, (80, 24), "events", "-w", "600")
    *_, older, newest = view.page()
    assert view.press(UP)[-1] == older
    assert view.press(DOWN, DOWN)[-1] == newest
    assert "rows above" in view.press(HOME)[2]
    assert view.press(b"G")[-1] == newest
    assert view.quit(b"Q") == 0


@pytest.mark.parametrize("size", [(80, 24), (60, 24), (200, 50)])
def test_top_uses_all_its_lines_and_scrolls_to_the_rest(home: Path, size: tuple[int, int]) -> None:  # noqa: F811
    """At 80x24 no line is empty while jobs are hidden."""
    view = View(home, size, "top")
    page = view.page()
    assert view.height == size[1]
    assert "more" in "\n".join(page)
    if size[1] == 24:
        assert "" not in page
    below = view.press(END)
    assert "rows above, 0 below" in below[-1]
    assert any("Failed within a day" in row for row in below)
    assert view.press(HOME)[1:5] == page[1:5]
    assert view.quit() == 0


@pytest.mark.parametrize("words", [["top"], ["ps", "-aw"], ["ps", "-wa"], ["status", "--watch=1"]])
def test_a_view_that_is_killed_or_loses_its_terminal_leaves_nothing(home: Path, words: list[str]) -> None:  # noqa: F811
    view = View(home, (80, 24), *words)
    os.close(view.fd)
    end = time.monotonic() + 10
    while not (done := os.waitpid(view.pid, os.WNOHANG))[0]:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert done[1] != 0
    view = View(home, (80, 24), *words)
    os.kill(view.pid, signal.SIGKILL)
    os.waitpid(view.pid, 0)
    assert not view.read(0.5)
    os.close(view.fd)


def test_in_a_pipe_pages_follow_each_other_until_nobody_reads(home: Path) -> None:  # noqa: F811
    ran = subprocess.Popen(
        [sys.executable, "-m", "vctl", "ps", "-aw", "0.2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment(home),
    )  # fmt: skip
    assert ran.stdout is not None
    assert b"\x1b" not in ran.stdout.read(1 << 16)
    ran.stdout.close()
    assert ran.wait(20) == 141


def test_what_is_free_on_each_node_is_cut_before_the_rest_of_a_reason() -> None:
    """spec 13: the clause that says what to do comes first on a narrow screen."""
    free = "free: box-0 1, box-1 2; in primary, from which a can grow: box-3 1"
    message = f"needs 8 CPU on one node; {free}; team-b holds 8 CPU idle"
    waiting = {
        "submission_id": "big", "job_id": 7, "user": "bob", "parent_cluster_id": "kPrimaryClusterID", "priority": 0,
        "state_reason": "InsufficientResources", "queue_position": 1, "members": 1, "message": message,
    }  # fmt: skip
    row = list(Screen(width=80).table(status_view._QUEUE, [waiting]))[1]
    assert "needs 8 CPU on one node; team-b holds 8 CPU idle" in row
    assert "box-0" not in row
