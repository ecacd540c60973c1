"""The real command on terminals of three sizes: no line too wide, no page too high, no unmarked cut (spec 13)."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests import crowd
from tests.cli.conftest import ROOT
from tests.specification import spec

pytestmark = spec("13.screen")

SIZES = [(60, 24), (80, 24), (200, 50)]
SCREENS = [
    "status",
    "ps",
    "ps -a --limit 5",
    "vc tree",
    "vc list",
    "node list",
    "list events",
    f"why {crowd.WAITS}",
    f"job status {crowd.WAITS}",
    "vc get teaching",
    "nodes -c teaching",
    "list vnodes",
    "config show --origin",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("crowd")
    world = crowd.build(place, time.time())
    yield place
    world.close()


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VCTL_")}
    return {**kept, "VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0", "NO_COLOR": "1", "TERM": "xterm-256color",
            "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(home / "config")}  # fmt: skip


def terminal(
    home: Path, size: tuple[int, int], *words: str, until: bytes | None = None, env: dict[str, str] | None = None,
    press: bytes = b"\x03", codes: tuple[int, ...] = (0, 130),
) -> str:  # fmt: skip
    """What a command writes to a terminal; a key (Ctrl-C) is pressed once that was seen and it rests."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(
            sys.executable, [sys.executable, "-m", "vctl", *words], {**environment(home), **(env or {})}
        )
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    out, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                block = os.read(fd, 1 << 16)
            except OSError:
                break
            out += block
        elif until is not None and until in out:  # and nothing more comes
            until = None
            os.write(fd, press)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (codes if press == b"\x03" else (0,))
    os.close(fd)
    return out.decode(errors="surrogateescape").replace("\r\n", "\n")


@cache
def piped(home: Path, *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "vctl", *words], capture_output=True, text=True, env=environment(home),
        check=True, timeout=60,
    )  # fmt: skip
    return ran.stdout


def is_command(line: str) -> bool:
    """Commands to copy are never cut or broken, whatever the width is; so is the sentence with one of them."""
    return line.strip().startswith(("vctl ", "No scheduler is running"))


@pytest.mark.parametrize("line", SCREENS)
@pytest.mark.parametrize("size", SIZES, ids=["60x24", "80x24", "200x50"])
def test_no_line_is_wider_and_nothing_is_cut_without_a_mark(
    home: Path, size: tuple[int, int], line: str
) -> None:
    shown = terminal(home, size, *line.split())
    whole = re.sub(r"\s+", " ", piped(home, *line.split()))
    assert shown.strip(), line
    assert "kPrimaryClusterID" not in shown
    for row in shown.splitlines():
        if is_command(row) or re.search(r"… \d+ more", row):
            continue
        assert cell_len(row) <= size[0], row
        for word in re.split(r"\s+", row.strip("│├└─ ")):
            if "…" in word or re.match(r"[\d:.hms]+$", word) or "━" in word:
                continue  # marked, or it moves while we look
            assert word in whole or any(word in part for part in SAID), (word, row)


SAID = (  # for people only
    "No scheduler is running (last seen ago). Start one with `vctl daemon`.",
    "`vctl vc tree` shows all; `vctl job list` shows all; --limit more; more",
)


@pytest.mark.parametrize("size", SIZES, ids=["60x24", "80x24", "200x50"])
def test_columns_do_not_come_and_go_with_what_is_in_them(home: Path, size: tuple[int, int]) -> None:
    one, other = (
        terminal(home, size, "ps", "--state", state).splitlines()[0].split()
        for state in ("RUNNING", "FAILED")
    )
    assert one == other
    assert [name for name in piped(home, "ps").splitlines()[0].split() if name in one] == one


@pytest.mark.parametrize("line", ["ps", "vc tree", "events --limit 1000", "timeline", "status"])
@pytest.mark.parametrize("size", SIZES[:2], ids=["60x24", "80x24"])
def test_rows_of_jobs_that_differ_in_the_middle_can_be_told_apart(
    home: Path, size: tuple[int, int], line: str
) -> None:
    """Each with its number, and running ones first: the 11 that run are on the first screen of 300."""
    rows = terminal(home, size, *line.split()).splitlines()
    cuts = [
        word for row in rows for word in row.strip("│├└─ ").split() if re.search(r"[a-z]\S*\d\d+-\S+", word)
    ]
    jobs = {match[0] for cut in cuts if (match := re.search(r"\d\d+", cut))}
    assert len(cuts) >= 3
    if line.startswith("events"):
        assert len(jobs) > 280  # each id stands there once for its submit, and for its start
    else:
        assert len(set(cuts)) == len(cuts)
    if line == "ps":
        table = [row.split() for row in rows if re.match(r"\S+ +\d+ +[A-Z]+ ", row)]
        assert [row[2] for row in table] == ["RUNNING"] * 11 + ["PENDING"] * 89
        numbers = [int(row[1]) for row in table]
        assert len(set(numbers)) == 100
        assert numbers[11:] == sorted(numbers[11:])


def test_the_column_that_matters_is_whole_at_80_columns(home: Path) -> None:
    rows = terminal(home, (80, 24), "ps", "--state", "PENDING").splitlines()
    assert sum("InsufficientResources" in row for row in rows) > 90
    held = terminal(home, (80, 24), "why", crowd.WAITS)
    assert "feasible but not available" in held
    assert "HELD BY" in held
    events = terminal(home, (80, 24), "list", "events", "--limit", "3").splitlines()
    assert events[0].split() == ["SEQ", "TIME", "EVENT", "JOB", "OBJECT", "DETAILS"]


@pytest.mark.parametrize("line", ["status", "ps", "vc tree", "list events", "node list"])
def test_watching_stays_inside_the_terminal(home: Path, line: str) -> None:
    shown = terminal(home, (80, 24), *line.split(), "--watch", "--no-header", until=b"q ends it")
    assert shown.startswith("\x1b[?1049h")  # a screen of its own, given back at the end
    assert shown.rstrip().endswith("\x1b[?1049l")
    frames = [one for one in re.split(r"\x1b\[H", shown) if "every 2 s" in one]
    assert frames
    for frame in frames:
        rows = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).splitlines()
        assert len(rows) <= 24
        assert all(cell_len(row.rstrip()) <= 80 for row in rows)
        if line != "node list":
            assert re.search(r"… \d+ more", frame), frame


def test_q_ends_a_view_that_is_watched(home: Path) -> None:
    """spec 13: as in top and less."""
    shown = terminal(home, (80, 24), "top", until=b"q ends it", press=b"q")
    assert shown.rstrip().endswith("\x1b[?1049l")


def test_a_view_that_is_stopped_gives_the_terminal_back_and_is_drawn_again(home: Path) -> None:
    """spec 13: as top and less do on Ctrl-Z, `bg` and `fg` in a shell that controls jobs."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**environment(home), "PS1": "$ "})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    out = b""

    def until(words: bytes) -> bytes:
        """What comes up to these words."""
        nonlocal out
        end = time.monotonic() + 60
        while words not in out:
            assert time.monotonic() < end, out
            if select.select([fd], [], [], 0.2)[0]:
                out += os.read(fd, 1 << 16)
        found, _, out = out.partition(words)
        return found + words

    os.write(fd, f"{sys.executable} -m vctl top\n".encode())
    until(b"\x1b[?1049h")
    until(b"q ends it")
    os.write(fd, b"\x1a")
    assert b"\x1b[?1049l" in until(b"Stopped")
    os.write(fd, b"bg; sleep 1; jobs\n")
    assert b"\x1b[?1049h" not in until(b"Stopped")
    os.write(fd, b"stty -a\n")
    assert b" icanon" in until(b"-flusho").replace(b" -icanon", b"")
    os.write(fd, b"fg\n")
    until(b"\x1b[?1049h")
    until(b"q ends it")
    os.write(fd, b"q")
    until(b"\x1b[?1049l")
    os.write(fd, b"exit\n")
    os.waitpid(pid, 0)
    os.close(fd)


def test_a_terminal_that_shows_only_text_gets_only_text(home: Path) -> None:
    """spec 13: each page follows the other, without colours; nothing was shown at all."""
    shown = terminal(home, (80, 24), "top", until=b"Queue: ", env={"TERM": "dumb", "NO_COLOR": ""})
    assert shown.startswith("Nodes")
    assert "\x1b" not in shown


def test_status_says_what_jobs_use_and_clusters_hold(home: Path) -> None:
    """spec 11: the physical total, what clusters hold, what jobs hold; one and the same on every screen."""
    data = json.loads(piped(home, "status", "-o", "json"))
    assert data["resources"]["CPU"] == {
        "total": 320.0,
        "reserved": 320.0,
        "lent": 0.0,
        "idle": 104.0,
        "used": 216.0,
    }
    lines = {line["cluster_id"]: line for line in data["clusters"]}
    top = lines["kPrimaryClusterID"]
    assert (top["total"]["CPU"], top["reserved"]["CPU"], top["used"]["CPU"]) == (320.0, 320.0, 216.0)
    jobs = json.loads(piped(home, "job", "list", "--state", "RUNNING", "-o", "json"))["items"]
    assert sum(job["resources"]["CPU"] for job in jobs) == 216.0
    assert (data["queue"]["pending"], data["queue"]["running"]) == (288, len(jobs))
    assert {"user", "parent_cluster_id", "node_ids", "run_s", "time_left_s"} <= set(data["running_jobs"][0])
    assert [job["submission_id"] for job in data["recent_failures"]] == ["data-preparation"]
    assert set(data["scheduler"]) >= {"running", "last_beat", "last_round_ms", "rounds"}
    below = json.loads(piped(home, "vc", "tree", "-o", "json"))
    assert below["used"] == top["used"]
    assert sum(child["total"].get("CPU", 0) for child in below["tree"]) == below["reserved"]["CPU"]
