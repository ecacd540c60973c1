"""While a scheduler runs, commands are handed to a process that has everything imported (spec 13): same words, output,
exit codes as without, and nothing is lost or done twice when that process is stuck, killed or another version."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.conftest import PATIENCE_S, ROOT, VCTL, Place, Ran, eventually, is_gone
from tests.specification import spec
from vctl.cli import command_client
from vctl.cli.command_client import SOCKET
from vctl.ops import handing, nodes
from vctl.runtime import processes
from vctl.store.store import Store

pytestmark = spec("13.output")

OWN = {"VCTL_DEBUG": "1"}
"""Has a command carried out in its own process."""
IMPORTED = b"vctl.cli.app"
"""What a command imports that is not handed over."""

REHEARSAL = """
import sys
from vctl.cli import command_server
from vctl.engine import codec
from vctl.engine.changes import JobSubmitted
command_server.rehearse(sys.argv[1])
made = codec._members.cache_info().misses
codec._members(JobSubmitted)
print(made == codec._members.cache_info().misses > 0)
"""

PREPARED = """
import contextlib, os, sys
from vctl.cli import command_server
from vctl.cli.entry import carry_out
from vctl.core import values
from vctl.spec.params import params_of
command_server.prepare(sys.argv[1])
had, read, compiled = set(sys.modules), params_of.cache_info().misses, []
values.compiled = lambda name, source, scope: compiled.append(source)
for line in ("status", "ps", "status -o json", "ps -o json", "job submit --no-wait -- true"):
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        assert carry_out(line.split()) == 0, line
print(sorted(set(sys.modules) - had), params_of.cache_info().misses - read, compiled)
"""


def server_of(place: Place) -> int | None:
    """The pid of the process that answers commands, once it listens."""
    home = os.fsencode(place.home)
    for one in processes.all_processes():
        words = processes.command(one.pid)
        if b"vctl.cli.command_server" in words and words[-1] == home and (place.home / SOCKET).exists():
            return one.pid
    return None


def forks_of(place: Place) -> list[int]:
    """The forks of that process, which carry commands out."""
    server = server_of(place)
    assert server is not None
    return processes.descendants(server)


def only_fork(place: Place) -> int:
    """The fork that waits for a command, when no other one is left."""
    found: list[int] = []

    def is_alone() -> bool:
        found[:] = forks_of(place)
        return len(found) == 1

    eventually(is_alone, "the end of the forks that carry commands out")
    return found[0]


@contextmanager
def with_command_server(folder: Path, nodes: int = 3) -> Iterator[Place]:
    """A state directory with nodes, a daemon and its command server."""
    place = Place(folder / "state", folder / "work")
    try:
        place.add_nodes(nodes)
        place.daemon()
        eventually(lambda: server_of(place), "the command server")
        yield place
    finally:
        place.end()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A state directory with a daemon, its command server, a node, clusters and jobs."""
    with with_command_server(tmp_path_factory.mktemp("served")) as place:
        place.ok("vc", "create", "team", "--divisible", "--replica-sets", '{"4c8g": 1}')
        place.submit("--submission-id", "over", "--", "sh", "-c", "echo out; exit 3")
        place.reach("over", "FAILED")
        place.submit("--submission-id", "runs", "--name", "ä b", "--", "sleep", "1000")
        place.reach("runs", "RUNNING")
        place.submit("--submission-id", "waits", "--num-cpus", "4", "--nodes", "2", "--", "true")
        yield place


def traced(place: Place, *words: str, **env: str) -> Ran:
    """A command with the list of its imports on stderr."""
    return place.run(*words, PYTHONPROFILEIMPORTTIME="1", **env)


CASES = [
    ["status", "-o", "json"], ["status"], [], ["ps", "-o", "json"], ["ps", "-a"], ["ps", "-a", "-o", "csv"],
    ["job", "list", "-a", "-o", "jsonl"], ["job", "status", "over", "-o", "json"], ["job", "status", "over"],
    ["logs", "over"], ["job", "logs", "over", "--tail", "1"], ["why", "waits", "-o", "json"],
    ["vc", "tree"], ["vc", "list", "-o", "yaml"], ["vc", "get", "team", "-o", "json"], ["node", "list", "-o", "json"],
    ["list", "events", "-o", "json"], ["events", "--limit", "3"], ["summary", "jobs", "-o", "json"],
    ["cluster-resources"], ["available-resources", "-c", "team", "-o", "json"], ["nodes", "-o", "name"],
    ["current-cluster"], ["lease", "list"], ["demand"], ["__complete", "job", "status", ""],
    ["job", "status", "no-such"], ["job", "status", "no-such", "-o", "json"], ["ps", "--no-such"], ["job", "lst"],
    ["vc", "update", "team", "--revision", "7", "--replica-sets", "{}"], ["job", "status"], ["status", "--help"],
    ["run", "-d", "--num-cpus", "x", "--", "true"], ["run", "-d", "--num-cpus", "1000", "--", "true"],
    ["run", "--dry-run", "-o", "json", "--submission-id", "dry", "--", "true"], ["run", "-d"],
]  # fmt: skip


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_a_command_says_the_same_either_way(served: Place, words: list[str]) -> None:
    handed, own = served.run(*words), served.run(*words, **OWN)
    for clock in (
        b"_ns",
        b"beat",
        b"wait_s",
        b"AGE",
        b"run_s",
        b"ago",
        b"round",
    ):  # what differs from moment to moment
        if clock in own.stdout + own.stderr:
            assert handed.code == own.code
            assert handed.stdout.count(b"\n") == own.stdout.count(b"\n")
            return
    assert (handed.code, handed.stdout, handed.stderr) == (own.code, own.stdout, own.stderr)


def test_it_is_really_handed_over(served: Place) -> None:
    assert IMPORTED not in traced(served, "ps").stderr
    assert IMPORTED in traced(served, "ps", **OWN).stderr


def test_a_submit_takes_environment_directory_and_input_of_the_one_who_asks(served: Place) -> None:
    spec = json.dumps({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}).encode()
    script = 'pwd; echo "$MINE"; umask'
    done = subprocess.run(
        [*VCTL, "run", "-d", "--submission-id", "asks", "--virtual-cluster", "-", "--", "sh", "-c", script],
        env=served.environment({"MINE": "a b=c\nd", "PYTHONPROFILEIMPORTTIME": "1"}), cwd=served.folder,
        input=spec, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"asks\n")
    assert IMPORTED not in done.stderr
    served.reach("asks", "SUCCEEDED")
    assert served.run("logs", "asks").out.splitlines()[:3] == [str(served.folder), "a b=c", "d"]


def test_bytes_that_are_no_text_go_through(served: Place) -> None:
    name = os.fsdecode(b"bytes-\xff")
    handed = served.run("run", "-d", "--submission-id", "raw", "--", "echo", name, RAW=name)
    assert handed.code == 0
    served.reach("raw", "SUCCEEDED")
    assert served.run("logs", "raw").stdout == b"bytes-\xff\n"


def test_an_output_that_nobody_reads_any_more(served: Place) -> None:
    for words, more in (
        ("list events -o json", {}),
        ("list events -o json", OWN),
        ("--help", {}),
        ("--version", {}),
    ):
        shell = f"{sys.executable} -m vctl {words}; echo $? >&2"
        done = subprocess.run(
            ["bash", "-c", f"({shell}) | true"], env=served.environment(more), cwd=served.folder,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        assert done.stderr in (b"141\n", b"0\n")


@spec("13.errors")
@pytest.mark.parametrize("handed", [True, False])
def test_an_output_whose_disk_is_full(served: Place, handed: bool) -> None:
    """Spec 13, errors: said as what it is, on standard error, also where the output keeps a buffer."""
    full = "Error: the disk is full: the data could not be written\n"
    for words, code, reported in (
        ("status", 1, full),
        ("list events -o json", 1, full),
        ("list --help", 1, full),
        ("--help", 1, full),
        *([("--version", 1, full)] if handed else []),
        ("job status nosuch -o json", 4, "Error: there is no job 'nosuch'\n"),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m vctl {words} {'' if handed else '--home $VCTL_HOME'} > /dev/full"],
            env=served.environment({"PYTHONUNBUFFERED": ""}), cwd=served.folder, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr.decode().partition("Fix: ")[0]) == (code, reported), words


@spec("13.errors")
@pytest.mark.parametrize("handed", [True, False])
def test_messages_that_cannot_be_written_change_no_exit_code(served: Place, handed: bool) -> None:
    for words, code in (("job status nosuch", 4), ("nosuch", 2), ("ps", 0)):
        for rest in ("2> /dev/full", "2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}"):
            done = subprocess.run(
                ["bash", "-c", f"{sys.executable} -m vctl {words} {'' if handed else '--home $VCTL_HOME'} {rest}"],
                env=served.environment({"PYTHONUNBUFFERED": ""}), cwd=served.folder, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (code, b""), (words, rest)


def test_ctrl_c_ends_it(served: Place, tmp_path: Path) -> None:
    """Its output stands in a full pipe."""
    read, write = os.pipe()
    pipe = os.readlink(f"/proc/self/fd/{write}")
    fill = os.fpathconf(read, "PC_PIPE_BUF")
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, bytes(fill))
    except BlockingIOError:
        os.set_blocking(write, True)
    with (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [*VCTL, "list", "events", "-o", "json"], env=served.environment({}), cwd=served.folder,
            stdin=subprocess.DEVNULL, stdout=write, stderr=errors,
        )  # fmt: skip
    eventually(lambda: pipe in map(output_of, forks_of(served)), "a fork that writes")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    os.close(read)
    os.close(write)
    eventually(lambda: pipe not in map(output_of, forks_of(served)), "the end of the fork")
    assert (tmp_path / "errors").read_bytes() == b""


def output_of(pid: int) -> str:
    """Where a process writes to; nowhere when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def test_a_fork_takes_the_next_command_as_if_it_were_its_first(served: Place) -> None:
    """Nothing is left of the one before: environment, directory, files, signals that come late."""

    def twice() -> bool:
        done, forks = [], set()
        for folder, more in (("/usr", {"MINE": "a"}), ("/", {})):
            ran = subprocess.run(
                [*VCTL, "run", "-d", "--", "sh", "-c", "echo ${MINE-none}; pwd"], env=served.environment(more),
                cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
            )  # fmt: skip
            done.append(ran.stdout.strip())
            forks.add(fork := only_fork(served))
            os.kill(fork, signal.SIGINT)
        for name in done:
            served.reach(name, "SUCCEEDED")
        assert [served.run("logs", name).out for name in done] == ["a\n/usr\n", "none\n/\n"]
        return len(forks) == 1

    eventually(twice, "two commands by one fork, within five seconds")
    served.ok("ps")
    fork = only_fork(served)
    assert output_of(fork) == os.devnull
    assert os.readlink(f"/proc/{fork}/cwd") == "/"


def test_a_fork_ends_after_a_failure_after_a_while_and_when_it_is_killed(served: Place) -> None:
    served.ok("ps")
    fork = only_fork(served)
    assert served.run("job", "status", "no-such").code == 4
    eventually(lambda: fork not in forks_of(served), "another fork")
    served.ok("ps")
    fork = only_fork(served)
    eventually(lambda: fork not in forks_of(served), "the end of a fork that nobody needs")
    fork = only_fork(served)
    os.kill(fork, signal.SIGKILL)
    eventually(lambda: fork not in forks_of(served), "its end")
    assert IMPORTED not in traced(served, "ps").stderr


def test_commands_at_the_same_time(served: Place) -> None:
    """Each has a fork of its own, and of those one stays."""
    started = [served.start("ps", "-o", "json") for _ in range(6)]
    assert [served.finish(one).code for one in started] == [0] * 6
    only_fork(served)


def test_a_closed_standard_file(served: Place) -> None:
    for closed in ("<&-", ">&-", "2>&-"):
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m vctl ps {closed}"], env=served.environment({}), check=False,
            cwd=served.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done


def test_another_installation_carries_its_commands_out_itself(served: Place, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "vctl", tmp_path / "vctl", ignore=shutil.ignore_patterns("__pycache__"))
    done = traced(served, "ps", "-o", "json", PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
    assert done.code == 0
    assert IMPORTED in done.stderr


def test_an_environment_that_is_too_large_for_a_message(served: Place) -> None:
    more = {f"LARGE{n}": "x" * 100_000 for n in range(3)}
    assert served.run("ps", "-o", "json", **more).code == 0


def test_a_directory_that_is_gone(served: Place, tmp_path: Path) -> None:
    script = (
        f"cd {tmp_path}; mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m vctl job list -o json"
    )
    results = [
        subprocess.run(
            ["sh", "-c", script], env=served.environment(more), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=PATIENCE_S, check=False,
        )
        for more in ({}, OWN)
    ]  # fmt: skip
    assert results[0].returncode == results[1].returncode


def test_a_suspended_server_holds_nobody_up(served: Place) -> None:
    server = server_of(served)
    assert server is not None
    fork = only_fork(served)
    for pid in (server, fork):
        os.kill(pid, signal.SIGSTOP)
    try:
        done = traced(served, "run", "-d", "--submission-id", "once", "--", "true")
        assert (done.code, done.stdout) == (0, b"once\n")
        assert IMPORTED in done.stderr
    finally:
        for pid in (server, fork):
            os.kill(pid, signal.SIGCONT)
    only_fork(served)
    served.reach("once", "SUCCEEDED")
    assert [name for name in served.jobs() if name.startswith("once")] == ["once"]


def test_a_server_that_is_killed_before_it_answers(tmp_path: Path) -> None:
    """It may have carried the command out: that is said, and nothing is done again."""
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(home / SOCKET))
        listening.listen()
        place = Place(home, tmp_path / "work")
        process = place.start("run", "-d", "--", "true")
        line, _ = listening.accept()
        with line:
            line.send(b"1 " + command_client.stamp())
            assert line.recv(1 << 18)
        done = place.finish(process)
    assert (done.code, done.stdout) == (1, b"")
    assert done.err.splitlines()[0] == "Error: the command was killed before it was done"
    assert not (home / "cluster.db").exists()


@pytest.mark.parametrize("ending", [signal.SIGCONT, signal.SIGKILL], ids=["resumed", "killed"])
def test_a_suspended_scheduler_gets_no_job_twice(tmp_path: Path, ending: signal.Signals) -> None:
    """Each job was handed to it, and was written by its command when no answer came."""
    place = Place(tmp_path / "state", tmp_path / "work")
    place.add_nodes(1)
    try:
        daemon = place.daemon()
        eventually(lambda: server_of(place), "the command server")
        words = ("job", "submit", "--no-wait", "--", "sh", "-c", "echo $VCTL_SUBMISSION_ID >> ran")
        first = place.ok(*words).strip()
        place.reach(first, "SUCCEEDED")
        daemon.send_signal(signal.SIGSTOP)
        done = [traced(place, *words) for _ in range(3)]
        assert [(one.code, IMPORTED in one.stderr) for one in done] == [(0, False)] * 3
        names = {first, *(one.out.strip() for one in done)}
        daemon.send_signal(ending)
        if ending == signal.SIGKILL:
            place.kill(daemon)
            place.daemon()
        for name in names:
            place.reach(name, "SUCCEEDED")
        assert sorted((place.folder / "ran").read_text().split()) == sorted(names)
        assert len(names) == len(place.jobs()) == 4
    finally:
        place.end()


def test_the_line_to_the_scheduler_is_open_in_the_server_alone(served: Place) -> None:
    server = server_of(served)
    assert server is not None
    line = os.readlink(f"/proc/{server}/fd/{handing.LINE}")
    assert line.startswith("socket:")
    job = served.submit("--", "sh", "-c", "ls -l /proc/self/fd; sleep 1000")
    runs = served.running_process(job)
    assert line not in [os.readlink(file) for file in Path(f"/proc/{runs}/fd").iterdir()]
    served.ok("job", "stop", job)


def test_it_ends_with_its_scheduler_and_comes_with_the_next(tmp_path: Path) -> None:
    place = Place(tmp_path / "state", tmp_path / "work")
    place.add_nodes(1)
    try:
        daemon = place.daemon()
        first = eventually(lambda: server_of(place), "the command server")
        place.kill(daemon)
        eventually(lambda: is_gone(first), "the end of the server")
        assert place.run("ps").code == 0  # nobody listens at the old socket
        daemon = place.daemon()
        eventually(lambda: IMPORTED not in traced(place, "ps").stderr, "the next server")
        assert server_of(place) not in (None, first)
        place.term(daemon)
        assert server_of(place) is None
        assert not (place.home / SOCKET).exists()
    finally:
        place.end()


def test_a_rehearsal_builds_what_a_submit_needs_and_leaves_nothing(tmp_path):
    """Spec 13: before the first command a submit is carried out and taken back, in the state as it is."""
    with Store.open(tmp_path) as store:
        nodes.add(store, resources={"CPU": 10_000}, node_id="n", template="t")
        before = list(store.db.iterdump())
    words = [sys.executable, "-c", REHEARSAL, str(tmp_path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("True\n", "")
    with Store.open(tmp_path) as store:
        assert list(store.db.iterdump()) == before


@spec("18.budgets")
def test_the_forks_have_what_the_frequent_commands_import_and_build(place: Place) -> None:
    """Otherwise every fork imports it or builds it anew, for up to as long as the rest of a command."""
    place.add_nodes(1)
    place.submit("--", "true")
    words = [sys.executable, "-c", PREPARED, str(place.home)]
    done = subprocess.run(
        words,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=place.environment({"VCTL_AUTOSTART": "0"}),
    )
    assert done.stdout == "[] 0 []\n", done.stderr


def test_a_rehearsal_makes_no_state(tmp_path):
    """Spec 13: the state directory of a scheduler whose directory is gone is not made again."""
    words = [sys.executable, "-c", REHEARSAL, str(tmp_path / "gone")]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert list(tmp_path.iterdir()) == []
