"""Words go to a shared service, text comes back: the same as over HTTP, and nothing of the user's is opened there."""

from __future__ import annotations

import os
import pwd
import re
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import eventually
from tests.integration.service import ANA, BEN, Service, running_service, users_of_the_host
from tests.specification import spec

pytestmark = [
    spec("19.service"),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes users of the machine, so it has to be root"),
]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with users_of_the_host(), running_service() as service:
        eventually(lambda: takes_words(service), "the command server of the service")
        yield service


def takes_words(service: Service) -> bool:
    """Whether a greeting comes from the command server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(1)
        line.connect(str(service.socket.parent / "words.sock"))
        try:
            return bool(line.recv(100))
        except (TimeoutError, ConnectionResetError):
            return False


def imports_of(service: Service, *words: str, **env: str) -> str:
    """What the user's process has imported for a command, as Python says."""
    done = service.run(ANA, *words, PYTHONVERBOSE="1", **env)
    return done.err


HERE = {
    "a list": ["ps", "-a", "-o", "json"],
    "a table": ["ps", "-a", "--columns", "submission_id,user,status"],
    "one job": ["job", "status", "first", "-o", "json"],
    "an unknown job": ["job", "status", "nope"],
    "an error in JSON": ["job", "status", "nope", "-o", "json"],
    "why": ["why", "first"],
    "a log": ["logs", "first"],
    "a log of lines": ["logs", "first", "--tail", "1"],
    "events": ["events", "--job", "first", "-o", "jsonl"],
    "clusters": ["vc", "list"],
    "nodes": ["node", "list", "-o", "csv"],
    "a mistyped option": ["ps", "--foo"],
    "a mistyped command": ["pss"],
    "a value that is none": ["ps", "--state", "running,"],
    "help": ["job", "submit", "--help"],
    "a change that is refused": ["node", "drain", "nope"],
    "a dry run": ["run", "--dry-run", "-n", "1", "--", "true"],
}


@pytest.fixture(scope="module")
def first(service: Service) -> str:
    service.ok(ANA, "run", "-d", "--submission-id", "first", "--", "printf", "a\\nb\\303\\244\\n")
    eventually(lambda: service.read(ANA, "job", "status", "first")["status"] == "SUCCEEDED", "the job")
    return "first"


@pytest.mark.parametrize("words", HERE.values(), ids=list(HERE))
def test_it_says_the_same_as_over_http(service: Service, first: str, words: list[str]) -> None:
    """Output, errors and exit code, byte for byte; the user's process imports nothing of the command line."""
    over_http = service.run(ANA, *words, VCTL_DEBUG="1")
    by_words = service.run(ANA, *words)
    said = [(ran.code, _timeless(ran.out), _timeless(ran.err)) for ran in (by_words, over_http)]
    assert said[0] == said[1]
    assert "import 'vctl.cli.app'" not in imports_of(service, *words)


def _timeless(text: str) -> str:
    return re.sub(r"\b\d+(ms|s)\b", "TIME", text)


ELSEWHERE = {
    "settings of the process": ["config", "show"],
    "a document in a file": ["job", "submit", "-d", "--virtual-cluster", "@{file}", "--", "true"],
    "a document in a file of the service": [
        "job",
        "submit",
        "-d",
        "--virtual-cluster",
        "@{state}/cluster.db",
        "--",
        "true",
    ],
    "variables in a file": ["run", "-d", "--env-file", "{file}", "--", "true"],
    "a directory": ["run", "-d", "--cwd", "{folder}", "--", "pwd"],
    "a tree in a file": ["vc", "plan", "-f", "{file}"],
    "jobs in a file": ["run", "-d", "--from", "{file}"],
    "an inherited variable": ["run", "-d", "--env", "HOME", "--", "true"],
    "another state": ["ps", "--home", "{folder}/state"],
}


@pytest.mark.parametrize("words", ELSEWHERE.values(), ids=list(ELSEWHERE))
def test_what_names_a_file_is_read_by_the_users_own_process(service: Service, words: list[str]) -> None:
    """Files that only the user can read are read; those that only the service can read are not."""
    home = pwd.getpwnam(ANA).pw_dir
    private = Path(home, "private")
    private.write_text("{}\n")
    os.chown(private, pwd.getpwnam(ANA).pw_uid, -1)
    private.chmod(0o600)
    filled = [word.format(file=private, state=service.state, folder=home) for word in words]
    ran = service.run(ANA, *filled)
    assert "internal error" not in ran.err
    if any("{state}" in word for word in words):
        assert (ran.code, "Permission denied" in ran.err) == (2, True), ran
    else:
        assert "Permission denied" not in ran.err
    assert "import 'vctl.cli.app'" in imports_of(service, *filled)


def test_a_submit_has_the_directory_and_the_variables_of_its_user(service: Service) -> None:
    home = pwd.getpwnam(ANA).pw_dir
    done = subprocess.run(
        [service.python, "-P", "-m", "vctl", "run", "-d", "--", "sh", "-c", "echo $COLOUR $VCTL_SOCKET; pwd; id -un"],
        cwd=home, capture_output=True, check=True, **service.of(ANA, {"COLOUR": "blue"}),
    )  # fmt: skip
    name = done.stdout.decode().strip()
    eventually(lambda: service.read(ANA, "job", "status", name)["status"] == "SUCCEEDED", "the job")
    assert service.ok(ANA, "logs", name).splitlines() == ["blue", home, ANA]


@pytest.mark.parametrize("over", ["words", "HTTP"])
@pytest.mark.parametrize("words", [["logs", "first"], ["job", "stop", "first"], ["job", "delete", "first"]])
def test_what_is_another_users_is_refused(service: Service, first: str, words: list[str], over: str) -> None:
    ran = service.run(BEN, *words, **({"VCTL_DEBUG": "1"} if over == "HTTP" else {}))
    assert (ran.code, ran.out) == (8, ""), ran


def test_a_fork_has_little_of_the_environment_of_its_user(service: Service) -> None:
    """A command that submits nothing sends only the variables that are listed."""
    from vctl.cli.command_client import TO_SERVICE, encode_for_service

    os.environ["SECRET_OF_MINE"] = "x"
    try:
        message = encode_for_service(["ps"])
    finally:
        del os.environ["SECRET_OF_MINE"]
    _, _, word, *variables = message.split(b"\0")
    assert word == b"ps"
    assert {pair.partition(b"=")[0] for pair in variables} <= set(TO_SERVICE)


HOSTILE = {
    "nothing": b"",
    "no numbers": b"a b c\0/\0ps",
    "more words than there are": b"0 0 0 0 1000000\0/\0ps",
    "numbers without end": b"9" * 5000 + b" 0 0 0 1\0/\0ps",
    "a time zone that is a file": b"0 0 0 0 1\0/\0ps\0TZ=:/etc/shadow",
    "variables of Python": b"0 0 0 0 1\0/\0ps\0PYTHONPATH=/tmp\0LD_PRELOAD=/tmp/x.so\0HOME=/root",
    "a width beyond all": b"1 1 999999999 999999999 1\0/\0ps",
    "bytes that are no text": b"0 0 0 0 1\0\xff\xfe\0\xff\xfe",
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_messages_harm_nobody(service: Service, message: bytes) -> None:
    path = str(service.socket.parent / "words.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(10)
        line.connect(path)
        assert line.recv(4096)
        line.send(message) if message else line.close()
        while message and (answer := _next(line)):
            assert len(answer) <= (1 << 15) + 1
    assert service.run(BEN, "ps").code == 0


def _next(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 17)
    except ConnectionResetError:
        return b""


def test_silent_connections_of_one_user_leave_the_others_theirs(service: Service) -> None:
    flood = (
        "import socket, sys, time\n"
        "lines = []\n"
        "for _ in range(300):\n"
        "    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "    line.settimeout(0.2)\n"
        "    try: line.connect(sys.argv[1])\n"
        "    except OSError: continue\n"
        "    lines.append(line)\n"
        "print(len(lines), flush=True)\n"
        "time.sleep(100)\n"
    )
    words = [service.python, "-c", flood, str(service.socket.parent / "words.sock")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, **service.of(ANA)) as flooding:
        try:
            assert flooding.stdout is not None
            flooding.stdout.readline()
            assert service.run(BEN, "ps").code == 0
            eventually(
                lambda: "import 'vctl.cli.app'" not in _imports(service, BEN), "words to be taken again"
            )
        finally:
            flooding.kill()


def _imports(service: Service, user: str) -> str:
    return service.run(user, "ps", PYTHONVERBOSE="1").err


def test_the_socket_is_roots(service: Service) -> None:
    info = os.lstat(service.socket.parent / "words.sock")
    assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (0, 0o666)


def test_a_killed_client_ends_its_fork(service: Service) -> None:
    """A command of which nobody hears the end is ended: no fork is left after a while."""

    def forks() -> int:
        found = 0
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    words = Path("/proc", entry, "cmdline").read_bytes()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                found += b"vctl.cli.command_server" in words and os.fsencode(service.state) in words
        return found

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(str(service.socket.parent / "words.sock"))
        line.recv(4096)
        line.send(b"0 0 0 0 1\0/\0ps")
    time.sleep(0.1)
    eventually(lambda: forks() <= 2, "the forks to end")
