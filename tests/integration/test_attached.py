"""spec 13: `vctl shell`, `--stdin`, `--label`, `job rerun`: a job with the submitter's terminal or input, or again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contents import WHOLE
from tests.integration.conftest import PATIENCE_S, VCTL, Place, eventually, is_gone
from tests.specification import spec

pytestmark = spec("13.attached")


class Typist:
    """Somebody at a terminal, in which a command runs."""

    def __init__(self, place: Place, *words: str, size: tuple[int, int] = (33, 101)) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(place.folder)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` has ignored
            os.execvpe(VCTL[0], [*VCTL, *words], place.environment({"SHELL": "/bin/sh", "PS1": "$ "}))
        self.shown = b""
        self.resize(*size)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def sees(self, text: str) -> None:
        """Wait until that is on the screen."""
        give_up = time.monotonic() + PATIENCE_S
        while text.encode() not in self.shown:
            assert time.monotonic() < give_up, self.shown
            assert self.look(), self.shown

    def look(self) -> bool:
        if select.select([self.fd], [], [], 0.1)[0]:
            try:
                self.shown += os.read(self.fd, 1 << 16)
            except OSError:
                return False
        return True

    def code(self) -> int:
        """The exit code of the command; what it shows meanwhile is read."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            self.look()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(self.shown)

    def close(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def site(place: Place) -> Place:
    place.add_nodes(2)
    place.daemon()
    return place


@contextlib.contextmanager
def shell(place: Place, *words: str) -> Iterator[tuple[Typist, str, int]]:
    """A shell that runs: who types, its job, and the pid of the shell."""
    typist = Typist(place, "shell", *words)
    try:
        typist.sees("$ ")
        typist.type("echo it=$$=$VCTL_SUBMISSION_ID=\r")
        typist.sees("\r\nit=")
        eventually(lambda: typist.look() and typist.shown.rpartition(b"\r\nit=")[2].count(b"=") > 1)
        pid, name, *_ = typist.shown.rpartition(b"\r\nit=")[2].decode().split("=")
        yield typist, name, int(pid)
    finally:
        typist.close()


def test_a_shell_has_a_terminal_resources_and_an_exit_code(site: Place) -> None:
    with shell(site, "--num-cpus", "2") as (typist, name, _):
        assert site.job(name)["resources"] == {"CPU": 2.0}
        typist.type("stty size; echo in=$VCTL_CLUSTER_ID; echo has=$VCTL_RESOURCES\r")
        typist.sees("33 101")
        typist.sees(f"in=kPrimaryClusterID##{name}")
        typist.sees('has={"CPU":2.0}')
        typist.resize(40, 120)
        eventually(lambda: typist.type("stty size\r") or (typist.look() and b"40 120" in typist.shown))
        typist.type("sleep 1000\r")
        time.sleep(0.3)
        typist.type("\x03")
        typist.type("echo code=$?\r")
        typist.sees("code=130")
        assert site.job(name)["status"] == "RUNNING", "Ctrl-C goes to the shell"
        typist.type("exit 7\r")
        assert typist.code() == 7
        assert site.job(name)["exit_code"] == 7
    assert list((site.home / "attach").iterdir()) == []


def test_another_command_and_a_job_that_waits(site: Place) -> None:
    blocker = site.sleeper("--nodes", "2", "--num-cpus", "4")
    site.reach(blocker, "RUNNING")
    typist = Typist(
        site, "run", "--pty", "-n", "1", "--", "sh", "-c", "test -t 0 && test -t 1 && echo terminal; exit 4"
    )
    try:
        typist.sees("waits: ")
        site.ok("job", "stop", blocker)
        typist.sees("terminal")
        assert typist.code() == 4
    finally:
        typist.close()


@pytest.mark.parametrize(("typed", "code"), [(b"", 0), (b"exit 3\n", 3)], ids=["nothing", "a line"])
def test_a_shell_ends_with_its_input(site: Place, typed: bytes, code: int) -> None:
    """As from cron: the input may end before the shell reads. One that edits its lines loses what came before."""
    assert site.run("shell", stdin=typed, SHELL="/bin/bash", TERM="xterm").code == code


def test_ctrl_c_gives_up_a_shell_that_waits(site: Place) -> None:
    site.reach(site.sleeper("--nodes", "2", "--num-cpus", "4"), "RUNNING")
    typist = Typist(site, "shell", "--name", "mine")
    try:
        typist.sees("waits: ")
        typist.type("\x03")
        assert typist.code() == 130
    finally:
        typist.close()
    assert [job["status"] for job in site.jobs().values() if job["name"] == "mine"] == ["STOPPED"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP])
def test_when_the_terminal_dies_the_job_ends(site: Place, how: signal.Signals) -> None:
    with shell(site) as (typist, name, pid):
        os.kill(typist.pid, how)
        typist.code()
        site.reach(name, "FAILED")
        assert is_gone(pid)


def test_when_the_far_side_dies_the_terminal_is_given_back(site: Place) -> None:
    with shell(site) as (typist, name, pid):
        os.kill(site.running_process(name), signal.SIGKILL)
        assert typist.code() == 137
        assert site.job(name)["status"] == "FAILED"
        assert is_gone(pid)


def test_a_stop_ends_a_shell(site: Place) -> None:
    with shell(site) as (typist, name, pid):
        began = time.monotonic()
        site.ok("job", "stop", name, "--grace", "20s")
        assert time.monotonic() - began < 15, "shells do not heed SIGTERM: they are hung up"
        assert typist.code() == 143
        assert is_gone(pid)


def test_standard_input_is_handed_on(site: Place) -> None:
    done = site.run(
        "run", "--stdin", "--", "sh", "-c", "head -c 1; cat /dev/stdin; exit 3", stdin=b"ab\0\xff\n" * 100_000
    )
    assert (done.code, done.stdout) == (3, b"ab\0\xff\n" * 100_000), done.stderr
    assert site.run("run", "--stdin", "--", "wc", "-c", stdin=b"").out == "0\n"
    assert site.run("run", "--stdin", "--", "nosuch", stdin=b"").code == 127


def test_the_input_stays_when_the_submitting_command_is_killed(site: Place) -> None:
    reading, writing = os.pipe()
    import subprocess

    words = [*VCTL, "run", "--stdin", "--submission-id", "reader", "--", "cat"]
    command = subprocess.Popen(words, env=site.environment({}), cwd=site.folder, stdin=reading)
    os.close(reading)
    os.write(writing, b"before ")
    pid = site.running_process("reader")
    eventually(lambda: os.readlink(f"/proc/{pid}/exe").endswith("cat"))
    command.kill()
    command.wait()
    os.write(writing, b"after")
    os.close(writing)
    site.reach("reader", "SUCCEEDED")
    assert site.ok("logs", "reader") == "before after"


@pytest.mark.parametrize(
    "more", [["--no-wait"], ["--array", "0-1"], ["--per-node"], ["--max-retries", "1"], ["--pty"]]
)
def test_one_process_reads_the_input_once(site: Place, more: list[str]) -> None:
    done = site.run("run", "--stdin", *more, "--", "cat", stdin=b"x")
    assert done.code == 2, done
    assert site.jobs() == {}


def test_lines_get_the_rank(site: Place, tmp_path: Path) -> None:
    """Rank 1, whose failure ends the gang, ends last: rank 0 says when it has nothing more to write."""
    over = tmp_path / "over"
    script = (
        f"printf 'out %s\\n' $RANK; echo err >&2; printf unfinished; [ $RANK = 1 ] || exec sh -c 'echo $PPID >{over}';"
        f" until [ -s {over} ]; do sleep 0.01; done;"
        f" while kill -0 $(cat {over}) 2>/dev/null; do sleep 0.01; done; exit 5"
    )
    done = site.fork("run", "--nodes", "2", "-n", "1", "--per-node", "--label", "--", "sh", "-c", script)
    wanted = [f"{rank}: {line}" for rank in (0, 1) for line in (f"out {rank}", "err", "unfinished")]
    assert (done.code, sorted(done.out.splitlines())) == (5, sorted(wanted)), done
    assert site.fork("run", "--label", "--", "true").code == 2


def test_signals_reach_a_labelled_command(site: Place) -> None:
    script = (
        "trap 'echo warned' USR1; trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    )
    site.submit(
        "--submission-id",
        "gang",
        "--nodes",
        "2",
        "-n",
        "1",
        "--per-node",
        "--label",
        "--",
        "sh",
        "-c",
        script,
    )
    eventually(lambda: site.ok("logs", "gang").count("ready") == 2)
    site.ok("job", "stop", "gang")
    assert site.ok("logs", "gang").count("asked") == 2
    assert site.job("gang")["exit_code"] == 143


def test_a_job_once_more(site: Place) -> None:
    words = ["--nodes", "2", "-n", "1", "--per-node", "--priority", "4", "--time-limit", "1h", "--metadata", "k=v",
             "--signal", "USR1@60", "--max-retries", "2", "--name", "n", "--env", "A=b c"]  # fmt: skip
    both_said = 'said=$VCTL_SUBMISSION_ID; >"$said.$RANK"; until [ -e "$said.0" -a -e "$said.1" ]; do sleep 0.01; done'
    line = f'echo "$ODD $A $RANK $PWD"; {both_said}; exit 3'  # the first that fails ends the other one
    first = site.fork("run", "--submission-id", "first", *words, "--", "sh", "-c", line, ODD="x\ny")
    assert first.code == 3
    again = site.fork("job", "rerun", "first", ODD="other", A="other")
    assert (again.code, sorted(again.out)) == (3, sorted(first.out))
    jobs = sorted(site.jobs().values(), key=lambda job: int(job["job_id"]))
    same = (
        "name",
        "priority",
        "resources",
        "entrypoint",
        "metadata",
        "parent_cluster_id",
        "exit_code",
        "status",
    )
    assert [jobs[1][key] for key in same] == [jobs[0][key] for key in same]
    with site.sql() as db:
        rules = db.execute(
            f"SELECT rules, time_limit_s, shape, spec, entry FROM {WHOLE} ORDER BY job_id"
        ).fetchall()
    assert rules[0] == rules[1]
    name = site.ok("job", "rerun", "-d", "first").strip()
    assert site.job(name)["submission_id"] == name


def test_an_array_once_more(site: Place) -> None:
    script = "echo $VCTL_ARRAY_INDEX of $VCTL_ARRAY_COUNT; exit $VCTL_ARRAY_INDEX"
    site.fork("run", "--submission-id", "a", "--array", "0-2%2", "--", "sh", "-c", script)
    name = site.ok("job", "rerun", "--no-wait", "a").strip()
    site.reach(f"{name}_2", "FAILED")
    assert site.job(name)["array"]["count"] == 3
    member = site.fork("job", "rerun", "a_1")
    assert (member.code, member.out) == (1, "1 of 3\n")
    assert site.fork("job", "rerun", "nosuch").code == 4
