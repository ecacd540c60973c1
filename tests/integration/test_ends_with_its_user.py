"""Whoever waits, watches or follows: nothing of a command outlives it, whoever carries it out (spec 13).

What a command needs is part of its declaration. One that uses the terminal has a process of its own; one that only
waits is carried out by a fork of the command server, which then needs neither the server nor the scheduler.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.conftest import PATIENCE_S, VCTL, Place, eventually, is_gone
from tests.integration.test_attached import Typist, shell
from tests.integration.test_command_server import (
    IMPORTED,
    forks_of,
    only_fork,
    output_of,
    server_of,
    traced,
    with_command_server,
)
from tests.specification import spec
from vctl.cli import catalog
from vctl.cli.command_client import SOCKET
from vctl.runtime import processes

pytestmark = spec("13.waiting", "13.output")

ENDS_WITHIN_S = 2.0
INOTIFY = "anon_inode:inotify"
ANSWERS, WAITS, OWN_PROCESS = "answers at once", "waits", "in a process of its own"
ARGUMENTS = {
    "job status": ["runs"], "job why": ["waits"], "why": ["waits"], "vc get": ["team"], "node get": ["4c8g-00"],
    "task status": ["1"], "list": ["jobs"], "get": ["jobs", "runs"], "summary": ["jobs"], "current-node": ["4c8g-01"],
}  # fmt: skip
"""The arguments of commands that can be watched, where they need some."""
WAITING = [
    ["run", "--", "sleep", "1000"], ["job", "submit", "-n4", "--nodes", "2", "--", "true"], ["job", "rerun", "runs"],
    ["wait", "runs"], ["job", "wait", "runs", "waits", "-ojson"], ["logs", "-f", "runs"], ["logs", "-ff", "runs"],
    ["job", "logs", "--follow", "waits"], ["task", "run", "--job", "runs", "--", "sleep", "1000"],
    ["task", "wait", "1"], ["task", "logs", "-f", "1"], ["vc", "delete", "team", "--drain"],
    ["stop", "stubborn", "--grace", "1000"],
]  # fmt: skip
"""Commands that wait for something that does not come."""
ABOUT_THIS_MACHINE = ["daemon", "serve", "simulate", "replay", "doctor", "backup", "restore", "prune"]
"""They last, and wait for nobody."""
ATTACHED = ["attach"]
"""Its end with its caller is tried in test_attach, beside what it runs."""


def watched() -> list[list[str]]:
    """Each command that has --watch, watched; in turn in each of the spellings."""
    spellings = [["-w"], ["-w", "1"], ["-w1"], ["--watch"], ["--watch=1"], ["--watch", "1"]]
    found = [path for path, command in catalog.load_all().items() if "watch" in command.common]
    return [
        [*path.split(), *ARGUMENTS.get(path, []), *spellings[index % len(spellings)]]
        for index, path in enumerate(found)
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A state with a daemon, its command server, and a job and a task that go on for ever."""
    with with_command_server(tmp_path_factory.mktemp("served")) as place:
        place.ok("vc", "create", "team", "--divisible", "--replica-sets", '{"4c8g": 1}')
        deaf = "trap '' TERM; while :; do sleep 1; done"
        for name, words in (
            ("runs", ["-n1", "--", "sleep", "1000"]), ("stubborn", ["-n1", "--", "sh", "-c", deaf]),
            ("inside", ["-c", "team", "-n1", "--", "sleep", "1000"]),
        ):  # fmt: skip
            place.submit("--submission-id", name, *words)
            place.reach(name, "RUNNING")
        place.submit("--submission-id", "waits", "-n4", "--nodes", "2", "--", "true")
        place.ok("task", "run", "--job", "runs", "--no-wait", "--", "sleep", "1000")
        yield place


def test_every_command_that_waits_is_tried_here() -> None:
    """A new one fails this test until it is in one of the lists above."""
    tried = {catalog.find(words)[0].path for words in WAITING}
    tried |= {catalog.SHORT.get(path, path) for path in tried}
    for path, command in catalog.load_all().items():
        named = {param.name for param in command.params if param.info.lasts or param.info.waits}
        if command.lasts or command.waits or named - {"watch"}:
            assert path in tried or path in (*ABOUT_THIS_MACHINE, *ATTACHED), path


def test_no_command_is_found_by_its_words() -> None:
    """Spec 13: every spelling of an option that lasts or waits; no option of a command that answers at once."""
    for line, course in {
        "ps": ANSWERS, "ps -a": ANSWERS, "ps -w": OWN_PROCESS, "ps -aw": OWN_PROCESS, "ps -wa": OWN_PROCESS,
        "ps -w1a": None, "ps -aw1": OWN_PROCESS, "ps --watch=1": OWN_PROCESS, "ps -f name=-w": ANSWERS,
        "ps -f -w": None, "top": ANSWERS, "shell": OWN_PROCESS, "run -d true": ANSWERS, "run true -d": WAITS,
        "run -dn1 -- true -w": ANSWERS, "run true --no-wait": WAITS, "run --dry-run true": ANSWERS,
        "run --stdin true": OWN_PROCESS, "run -d --stdin true": OWN_PROCESS, "run --from x": WAITS,
        "run -d --from x": WAITS, "logs x": ANSWERS, "logs -fn5 x": WAITS, "logs -n5 x": ANSWERS, "stop x": WAITS,
        "stop x --no-wait": ANSWERS, "wait x": WAITS, "rerun x": None, "vc delete x": ANSWERS,
        "vc delete x --force": WAITS, "vc delete x --no-wait": ANSWERS, "doctor": OWN_PROCESS,
        "task run -- x": WAITS, "task run --no-wait x": ANSWERS, "events": ANSWERS, "events -w --limit 3": OWN_PROCESS,
    }.items():  # fmt: skip
        assert _course(line.split()) is course, line


def _course(words: list[str]) -> str | None:
    """How a command line is carried out; None where it is a mistake."""
    from vctl.cli import declare
    from vctl.errors import BadSpec

    try:
        command, rest = catalog.find(words)
        values = declare.read(command, rest)
    except BadSpec:
        return None
    if values is None:
        return None
    return OWN_PROCESS if command.lasts_with(values) else WAITS if command.waits_with(values) else ANSWERS


def worker_of(place: Place, process: subprocess.Popen[bytes]) -> int | None:
    """The fork that carries a command out: the one that writes to its output; None if there is none."""
    mine = output_of(process.pid)
    return next((pid for pid in forks_of(place) if mine and output_of(pid) == mine), None)


def is_waiting(place: Place, process: subprocess.Popen[bytes], *, remote: bool = False) -> bool:
    """Whether a fork waits for a command: it watches the state directory, or asks a server."""
    if (pid := worker_of(place, process)) is None:
        return False
    files = files_of(pid)
    sockets = sum(file.startswith("socket:") for file in files)
    return state_of(pid) == "S" and (sockets > 2 if remote else INOTIFY in files)


def files_of(pid: int) -> list[str]:
    """What a process has open."""
    try:
        return [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # it has ended, or has just closed one
        return []


def state_of(pid: int) -> str:
    """R, S, D, T; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def has_written(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


def comes_to_its_end(process: subprocess.Popen[bytes]) -> None:
    """Read both pipes to their end, which comes when nobody holds them any more."""
    assert process.stdout is not None
    assert process.stderr is not None
    give_up, left = time.monotonic() + ENDS_WITHIN_S, {process.stdout, process.stderr}
    while left:
        ready, _, _ = select.select(left, [], [], max(0.0, give_up - time.monotonic()))
        assert ready, f"somebody holds the pipes of {process.args}"
        left -= {file for file in ready if not os.read(file.fileno(), 1 << 16)}


@pytest.mark.parametrize("remote", [False, True], ids=["state", "server"])
def test_nothing_is_left_of_a_command_that_is_killed_while_it_waits(served: Place, remote: bool) -> None:
    """SIGKILL: its pipes are closed, and no process goes on polling; the jobs go on."""
    env: dict[str, str] = {}
    if remote:
        address = served.folder / "socket"
        served.start("serve", "--uds", str(address))
        eventually(address.exists, "the server")
        env["VCTL_ADDRESS"] = f"unix:{address}"
    lines = [*watched(), *WAITING]
    for few in (lines[at : at + 12] for at in range(0, len(lines), 12)):
        started = [served.start(*words, **env) for words in few]
        for process in started:
            is_silent = process.args[3:] in WAITING  # type: ignore[index]  # a list

            def has_begun(process: subprocess.Popen[bytes] = process, is_silent: bool = is_silent) -> bool:
                return is_waiting(served, process, remote=remote) if is_silent else has_written(process)

            eventually(has_begun, str(process.args))
        time.sleep(0.3)
        for process in started:
            assert process.poll() is None, (process.args, process.communicate())
        mine = {pid for process in started for pid in (process.pid, *processes.descendants(process.pid))}
        for process in started:
            process.kill()
        for process in started:
            comes_to_its_end(process)
            process.wait(PATIENCE_S)
        eventually(lambda mine=mine: all(map(is_gone, mine)), "the end of all", ENDS_WITHIN_S)
    only_fork(served)
    assert [served.job(name)["status"] for name in ("runs", "inside")] == ["RUNNING"] * 2


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more: whoever writes to it stands still until somebody reads."""
    read, write = os.pipe()
    size = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    assert os.write(write, bytes(size)) == size
    return read, write


def test_a_command_that_is_answered_by_another_process_ends_with_its_client(served: Place) -> None:
    """Its output stands in a full pipe, which that process would hold for ever."""
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signals.pop()  # under nohup a client ignores it
    for signo in signals:
        for words in (["list", "events", "-ojson"], ["ps", "-ao", "json"]):
            only_fork(served)
            read, write = full_pipe()
            pipe = os.readlink(f"/proc/self/fd/{write}")
            client = subprocess.Popen(
                [*VCTL, *words], env=served.environment({}), cwd=served.folder, stdin=subprocess.DEVNULL,
                stdout=write, stderr=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
            os.close(write)
            eventually(lambda pipe=pipe: pipe in map(output_of, forks_of(served)), "a fork that writes")
            client.send_signal(signo)
            client.wait(PATIENCE_S)
            eventually(
                lambda pipe=pipe: pipe not in map(output_of, forks_of(served)), "its end", ENDS_WITHIN_S
            )
            is_open = True
            while is_open:
                assert select.select([read], [], [], ENDS_WITHIN_S)[0], (signo, words)
                is_open = bool(os.read(read, 1 << 16))
            os.close(read)
    assert IMPORTED not in traced(served, "ps").stderr


@spec("13.screen")
@pytest.mark.parametrize(
    "line", ["ps -w", "status -w 1", "events --watch=1", "ps -aw", "ps -wa", "top", "vc tree -w1"]
)
@pytest.mark.parametrize("served_", [True, False], ids=["handed over", "own process"])
def test_a_view_is_watched_in_a_terminal(served: Place, line: str, served_: bool) -> None:
    typist = Typist(served, *line.split(), *([] if served_ else ["--home", str(served.home)]))
    try:
        typist.sees("q ends it")
        typist.resize(20, 60)
        typist.type("q")
        assert typist.code() == 0
        assert b"Error" not in typist.shown
    finally:
        typist.close()


@spec("13.screen")
@pytest.mark.parametrize("line", ["ps -aw", "status --watch=1", "top", "events -w"])
@pytest.mark.parametrize("how", ["killed", "without its terminal"])
def test_nothing_is_left_of_a_view_in_a_terminal(served: Place, line: str, how: str) -> None:
    """While a scheduler runs and others wait for it: no process, and nobody who holds the terminal."""
    typist = Typist(served, *line.split())
    try:
        typist.sees("q ends it")
        mine = {typist.pid, *processes.descendants(typist.pid)}
        if how == "killed":
            os.kill(typist.pid, signal.SIGKILL)
        else:
            os.close(typist.fd)
            typist.fd = os.open(os.devnull, os.O_RDONLY)
        eventually(lambda: all(map(is_gone, mine)), "the end of the view", ENDS_WITHIN_S)
        only_fork(served)
        if how == "killed":  # the terminal ends when nobody has it open
            give_up = time.monotonic() + ENDS_WITHIN_S
            with suppress(OSError):
                while os.read(typist.fd, 1 << 16):
                    assert time.monotonic() < give_up
    finally:
        typist.close()


def test_a_shell_is_ended_with_its_terminal(served: Place) -> None:
    """The command is killed: its shell gets the hangup of the terminal, and the job ends."""
    with shell(served, "-n1") as (typist, name, pid):
        os.kill(typist.pid, signal.SIGKILL)
        eventually(lambda: is_gone(pid), "the end of the shell")
        assert served.reach(name, "SUCCEEDED", "FAILED", "STOPPED")["ended_at"]


# ---- what waits is carried out by a fork ----


@contextmanager
def waiting(place: Place, *words: str, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command that waits, and the fork that carries it out."""
    process = place.start(*words, **env)
    try:
        eventually(lambda: is_waiting(place, process), f"{words} to wait")
        worker = worker_of(place, process)
        assert worker is not None
        yield process, worker
    finally:
        process.kill()
        place.finish(process)


@pytest.mark.parametrize(
    "words", [["wait", "runs"], ["logs", "-f", "runs"], ["task", "wait", "1"]], ids=" ".join
)
@pytest.mark.parametrize("own", [False, True], ids=["fork", "own process"])
@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_waiting_either_way(
    served: Place, words: list[str], own: bool, signo: signal.Signals
) -> None:
    process = served.start(
        *words, *(["--home", str(served.home)] if own else []), VCTL_DEBUG="1" if own else ""
    )
    worker = None
    if own:
        eventually(lambda: INOTIFY in files_of(process.pid), "the command to wait")
    else:
        eventually(lambda: is_waiting(served, process), "the command to wait")
        worker = worker_of(served, process)
    process.send_signal(signo)
    ran = served.finish(process)
    detached = "Detached: job runs goes on. Stop it with: vctl job stop runs\n" if "-f" in words else ""
    assert (ran.code, ran.out, ran.err) == (130, "", detached)
    if worker is not None:
        eventually(lambda: is_gone(worker), "the end of the fork")
    assert served.job("runs")["status"] == "RUNNING"


def test_a_command_that_waits_imports_nothing(served: Place) -> None:
    served.submit("--submission-id", "quick", "--", "sh", "-c", "echo out; exit 3")
    for words in (["wait", "quick"], ["logs", "-f", "quick"], ["run", "--", "sh", "-c", "exit 3"]):
        ran = traced(served, *words)
        assert (ran.code, IMPORTED in ran.stderr) == (3, False), words


def test_a_suspended_command_shows_nothing_until_it_is_resumed(served: Place) -> None:
    """Ctrl-Z and `fg`: the one who waits for it is suspended with it."""
    job = served.submit("--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo out; exec sleep 1000")
    with waiting(served, "logs", "-f", job) as (process, worker):
        process.send_signal(signal.SIGTSTP)
        eventually(lambda: (state_of(process.pid), state_of(worker)) == ("T", "T"), "both to be suspended")
        (served.folder / "go").touch()
        eventually(lambda: served.run("logs", job).out == "out\n", "the output")
        assert not has_written(process)
        process.send_signal(signal.SIGCONT)
        eventually(lambda: has_written(process), "the output of the command")
        assert state_of(worker) == "S"
        process.send_signal(signal.SIGTSTP)
        eventually(lambda: (state_of(process.pid), state_of(worker)) == ("T", "T"), "both to be suspended")
        process.kill()
        eventually(lambda: is_gone(worker), "the end of one that is suspended", ENDS_WITHIN_S)
        comes_to_its_end(process)
    served.ok("stop", job)


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_one_who_waits_at_a_full_pipe_ends_with_its_client(served: Place, signo: signal.Signals) -> None:
    job = served.submit("--", "sh", "-c", "yes | head -c 1000000; exec sleep 1000")
    read, write = full_pipe()
    pipe = os.readlink(f"/proc/self/fd/{write}")
    client = subprocess.Popen(
        [*VCTL, "logs", "-f", job], env=served.environment({}), cwd=served.folder, stdin=subprocess.DEVNULL,
        stdout=write, stderr=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
    os.close(write)
    eventually(lambda: pipe in map(output_of, forks_of(served)), "a fork that writes")
    time.sleep(0.3)
    client.send_signal(signo)
    code = client.wait(PATIENCE_S)
    assert code == (130 if signo in (signal.SIGTERM, signal.SIGINT) else -signo)
    eventually(lambda: pipe not in map(output_of, forks_of(served)), "its end", ENDS_WITHIN_S)
    os.close(read)
    served.ok("stop", job)


def test_a_fork_that_is_killed_while_it_waits_is_reported(served: Place) -> None:
    with waiting(served, "wait", "runs") as (process, worker):
        os.kill(worker, signal.SIGKILL)
        ran = served.finish(process)
        assert ran.code == 1
        assert ran.err.startswith("Error: the command was killed before it was done\n")


def test_many_who_wait_cost_the_server_no_file(served: Place) -> None:
    server = server_of(served)
    before = len(os.listdir(f"/proc/{server}/fd"))
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(waiting(served, "wait", "runs"))
        assert len(os.listdir(f"/proc/{server}/fd")) <= before + 1
        assert IMPORTED not in traced(served, "ps").stderr
    only_fork(served)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("autostart", ["1", "0"], ids=["autostart", "no autostart"])
def test_the_end_of_the_scheduler_under_one_who_waits(
    tmp_path: Path, ending: signal.Signals, autostart: str
) -> None:
    """It starts the next scheduler, or says that none runs; and nobody knocks at the socket that it inherited."""
    place = Place(tmp_path / "state", tmp_path / "work")
    place.add_nodes(1)
    try:
        daemon = place.daemon()
        eventually(lambda: server_of(place), "the command server")
        job = place.submit("--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 3")
        place.reach(job, "RUNNING")
        process = place.start("wait", job, VCTL_AUTOSTART=autostart)
        eventually(lambda: is_waiting(place, process), "the command to wait")
        daemon.send_signal(ending)
        place.finish(daemon)
        if autostart == "0":
            eventually(lambda: not is_listening(place), "the end of the command server")
        (place.folder / "go").touch()
        ran = place.finish(process)
        if autostart == "1":
            assert (ran.code, ran.err) == (3, "")
        else:
            assert (ran.code, ran.err.partition("\n")[0]) == (
                6, "Error: no scheduler is running, and `autostart` is off"
            )  # fmt: skip
    finally:
        place.end()


def is_listening(place: Place) -> bool:
    """Whether anybody would get a command at the socket of the state directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        try:
            line.connect(str(place.home / SOCKET))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True
