"""Whoever waits, watches or follows is a process of its own, and nothing of a command outlives it (spec 13).

What a command needs is part of its declaration: the command server carries out only what answers at once.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import PATIENCE_S, VCTL, Place, eventually, is_gone
from tests.integration.test_attached import Typist, shell
from tests.integration.test_command_server import (
    IMPORTED,
    forks_of,
    only_fork,
    output_of,
    traced,
    with_command_server,
)
from tests.specification import spec
from vctl.cli import catalog
from vctl.runtime import processes

pytestmark = spec("13.waiting", "13.output")

ENDS_WITHIN_S = 2.0
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


def test_every_command_that_lasts_is_tried_here() -> None:
    """A new one fails this test until it is in one of the lists above."""
    tried = {catalog.find(words)[0].path for words in WAITING}
    tried |= {catalog.SHORT.get(path, path) for path in tried}
    for path, command in catalog.load_all().items():
        named = {param.name for param in command.params if param.info.lasts}
        if command.lasts or named - {"watch"}:
            assert path in tried or path in ABOUT_THIS_MACHINE, path


def test_no_command_is_found_by_its_words() -> None:
    """Spec 13: every spelling of an option that lasts; no option of a command that answers at once."""
    for line, lasts in {
        "ps": False, "ps -a": False, "ps -w": True, "ps -aw": True, "ps -wa": True, "ps -w1a": None, "ps -aw1": True,
        "ps --watch=1": True, "ps -f name=-w": False, "ps -f -w": False, "top": False, "shell": True,
        "run -d true": False, "run true -d": True, "run -dn1 -- true -w": False, "run true --no-wait": True,
        "run --dry-run true": False, "run --stdin true": True, "logs x": False, "logs -fn5 x": True,
        "logs -n5 x": False, "stop x": True, "stop x --no-wait": False, "wait x": True, "rerun x": None,
        "vc delete x": False, "vc delete x --force": True, "vc delete x --no-wait": False, "doctor": True,
        "task run -- x": True, "task run --no-wait x": False, "events": False, "events -w --limit 3": True,
    }.items():  # fmt: skip
        assert _lasts(line.split()) is lasts, line


def _lasts(words: list[str]) -> bool | None:
    """Whether a command line lasts; None where it is a mistake."""
    from vctl.cli import declare
    from vctl.errors import BadSpec

    try:
        command, rest = catalog.find(words)
    except BadSpec:
        return None
    values = declare.read(command, rest)
    return None if values is None else command.lasts_with(values)


def is_waiting(process: subprocess.Popen[bytes], remote: bool) -> bool:
    """Whether a silent command waits for a wake-up: it watches the state directory, or asks a server."""
    try:
        files = [os.readlink(file) for file in Path(f"/proc/{process.pid}/fd").iterdir()]
    except OSError:
        return False
    return any(file.startswith("socket:") if remote else file == "anon_inode:inotify" for file in files)


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
                return is_waiting(process, remote) if is_silent else has_written(process)

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


def test_a_shell_is_ended_with_its_terminal(served: Place) -> None:
    """The command is killed: its shell gets the hangup of the terminal, and the job ends."""
    with shell(served, "-n1") as (typist, name, pid):
        os.kill(typist.pid, signal.SIGKILL)
        eventually(lambda: is_gone(pid), "the end of the shell")
        assert served.reach(name, "SUCCEEDED", "FAILED", "STOPPED")["ended_at"]
