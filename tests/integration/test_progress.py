"""What a command that waits says of that: a line on a terminal, warnings everywhere (spec 13)."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from datetime import datetime, timedelta

import pytest

from tests.integration.conftest import PATIENCE_S, VCTL, Place, eventually, interrupt
from tests.specification import spec

pytestmark = spec("13.waiting")

WIDTH = 80


class Terminal:
    """A command on a terminal of 80 columns."""

    def __init__(self, place: Place, *words: str) -> None:
        from termios import tcsetwinsize

        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(place.folder)
            os.execve(VCTL[0], [*VCTL, *words], place.environment({"TERM": "xterm"}))
        tcsetwinsize(self.fd, (24, WIDTH))
        self.told = ""

    def until(self, text: str) -> float:
        """Read until the command has written this; how long that took."""
        began = time.monotonic()
        while text not in self.told:
            assert time.monotonic() - began < PATIENCE_S, self.told
            if select.select([self.fd], [], [], 0.1)[0]:
                self.told += os.read(self.fd, 4096).decode()
        return time.monotonic() - began

    def end(self) -> int:
        """Read to the end; the exit code."""
        try:
            while more := os.read(self.fd, 4096):
                self.told += more.decode()
        except OSError:
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def screen(self) -> list[str]:
        """The lines that are left to be seen."""
        return [line.rpartition("\x1b[2K")[2].strip("\r") for line in self.told.split("\n")]


@pytest.fixture
def full(two: Place) -> Place:
    """Two nodes of 4 CPUs, all of them taken by ``hog``."""
    two.ok(
        "job",
        "submit",
        "--no-wait",
        "--submission-id",
        "hog",
        "--num-cpus",
        "4",
        "--nodes",
        "2",
        "--",
        "sleep",
        "1000",
    )
    two.reach("hog", "RUNNING")
    return two


def test_a_waiting_submit_keeps_a_line_and_then_says_where_it_runs(full: Place) -> None:
    words = ("job", "submit", "--submission-id", "mine", "--num-cpus", "3", "--nodes", "2", "--")
    terminal = Terminal(full, *words, "sh", "-c", "echo begin; sleep 0.1; echo end")
    terminal.until("mine waits: ")
    terminal.until("; vctl why mine")
    line = terminal.screen()[-1]
    assert "(#1 in primary); vctl why mine" in line
    assert len(line) < WIDTH
    full.ok("job", "stop", "hog")
    assert terminal.end() == 0
    assert terminal.screen() == ["mine runs on 4c8g-00, 4c8g-01", "begin", "end", ""]


@spec("13.expected")
def test_the_line_and_why_say_when_a_job_is_expected_to_start(one: Place) -> None:
    one.daemon()
    one.submit("--submission-id", "first", "--num-cpus", "4", "--time-limit", "1h", "--", "sleep", "1000")
    began = datetime.fromisoformat(one.reach("first", "RUNNING")["started_at"])
    terminal = Terminal(one, "job", "submit", "--submission-id", "b", "--num-cpus", "4", "--", "true")
    terminal.until("; start ")
    terminal.until("; vctl why b")
    at = (began + timedelta(hours=1)).astimezone()
    assert (
        f"(#1 in primary); start {at:%H:%M}" in terminal.told
        or f"; start {at:%Y-%m-%d %H:%M}" in terminal.told
    )
    stamp = (began + timedelta(hours=1)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    said = {"expected_start": stamp, "expected_start_basis": f"when first ends by its time limit at {stamp}"}
    for words in (("why", "b"), ("job", "status", "b")):
        assert said.items() <= one.read(*words).items()
    assert said.items() <= one.read("job", "list")["items"][0].items()
    assert said.items() <= one.read("status")["queue"]["head"][0].items()
    assert f"expected start: {at:%Y-%m-%d %H:%M:%S}, when first ends by its time limit" in one.ok("why", "b")
    os.write(terminal.fd, b"\x03")
    assert terminal.end() == 130


def test_job_wait_and_logs_say_so_too(full: Place) -> None:
    full.ok("job", "submit", "--no-wait", "--submission-id", "mine", "--num-cpus", "3", "--", "sleep", "1")
    waiting, following = Terminal(full, "job", "wait", "mine"), Terminal(full, "job", "logs", "-f", "mine")
    for terminal in (waiting, following):
        terminal.until("; vctl why mine")
    full.ok("job", "stop", "hog")
    waiting.until("mine runs on 4c8g-0")
    assert (waiting.end(), following.end()) == (0, 0)
    assert waiting.screen() == [""]  # one line, gone at the end
    assert following.screen()[0].startswith("mine runs on 4c8g-0")


def test_what_is_over_at_once_says_nothing(one: Place) -> None:
    one.ok("daemon", "--background")
    terminal = Terminal(one, "job", "submit", "--", "echo", "hi")
    assert terminal.end() == 0
    assert terminal.screen()[-2:] == ["hi", ""]


def test_a_task_that_waits(one: Place) -> None:
    one.ok("job", "submit", "--no-wait", "--submission-id", "j", "--num-cpus", "1", "--entrypoint-num-cpus", "1",
           "--", "sleep", "1000")  # fmt: skip
    one.reach("j", "RUNNING")
    terminal = Terminal(one, "task", "run", "--job", "j", "--num-cpus", "9", "--", "true")
    terminal.until("; vctl why task-1")
    os.write(terminal.fd, b"\x03")
    assert terminal.end() == 130
    assert "Detached: task task-1 goes on." in terminal.told


@pytest.mark.parametrize("more", [(), ("--stdin",)], ids=["alone", "with its input"])
def test_in_a_pipe_there_is_no_line_unless_it_is_asked_for(full: Place, more: tuple[str, ...]) -> None:
    quiet = full.start("job", "submit", "--submission-id", "quiet", "--num-cpus", "3", "--", "true")
    loud = full.start(
        "job", "submit", "--submission-id", "loud", "--num-cpus", "3", "--progress", *more, "--", "true"
    )
    assert loud.stderr is not None
    first = loud.stderr.readline().decode()
    assert first.startswith("loud waits: ")
    full.ok("job", "stop", "hog")
    assert full.finish(quiet).stderr == b""
    assert b"\x1b" not in full.finish(loud).stderr


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_input_that_nobody_reads_is_told(one: Place, kind: str) -> None:
    """``echo hi | vctl job submit -- cat``"""
    one.ok("daemon", "--background")
    if kind == "pipe":
        ran = one.run("job", "submit", "--", "cat", stdin=b"hi\n")
    else:
        (one.folder / "in").write_text("hi\n")
        line = f"{' '.join(VCTL)} job submit -- cat < in"
        import subprocess

        done = subprocess.run(
            ["sh", "-c", line], env=one.environment({}), cwd=one.folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "--stdin" in done.stderr
        return
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("Warning: ")
    assert "--stdin" in ran.err
    assert one.run("job", "submit", "--", "true", stdin=b"").err == ""


def test_the_log_of_a_job_that_waits_says_why_there_is_none(full: Place) -> None:
    full.ok("job", "submit", "--no-wait", "--submission-id", "mine", "--num-cpus", "3", "--", "true")
    ran = full.fork("job", "logs", "mine")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("job mine has not started, so it has no output: ")
    assert "vctl why mine" in ran.err


def test_stop_on_interrupt_shows_the_log_once(one: Place) -> None:
    """spec 13, and what it writes while it is stopped is shown, too."""
    code = (
        "import signal, time\n"
        "signal.signal(15, lambda *_: (print('bye', flush=True), exit(7)))\n"
        "print('hi', flush=True)\n"
        "time.sleep(99)"
    )
    running = one.start(
        "job", "submit", "--stop-on-interrupt", "--submission-id", "j", "--", sys.executable, "-c", code
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"hi\n"
    interrupt(running)
    ran = one.finish(running)
    assert ran.stdout == b"bye\n"
    assert ran.code == 143
    eventually(lambda: one.job("j")["status"] == "STOPPED", "the job to be stopped", 5)
