"""What the account of a service can make root do, if it is in the hands of an attacker: nothing beyond its own rights.

It has the line of a number, the channel of the launcher, and the state directory.
"""

from __future__ import annotations

import json
import os
import pwd
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.accounts import as_root, needs_root
from tests.runtime.conftest import eventually, is_gone
from tests.runtime.shared_ground import SharedGround
from tests.specification import spec
from vctl.privileged import accounts, child, run_request
from vctl.runtime import frames, launcher, processes, supervisor, user_processes
from vctl.runtime.supervisor import NUMBER_BYTES

pytestmark = spec("19.start")
GOOD: dict[str, Any] = {
    "run": "7.1", "follows": "", "uid": 20001, "grace_ms": 3000, "log_bytes": 0, "memory_bytes": 0, "argv": ["true"],
    "env": {"PATH": "/bin"}, "cwd": "/", "log": "/srv/state/logs/7", "cpus": None,
    "confinement": None,
}  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 1 << 31, 1 << 32, (1 << 32) - 1, 1 << 63, 10**400, 1.5, float("nan"), float("inf"), "",
    "a", "..", "../x", "a/b", "/etc/passwd", "\0", "\n", "a b", "\ud800", "\udc80", "x" * 300, "root", "0", [], [None],
    [[]], ["a", 1], [0], list(range(20000)), {}, {"a": 1}, {"": ""}, {"a": None}, {"A=B": "c"}, {"LD_PRELOAD": "/x.so"},
    [["a"]], {"a": {"b": "c"}}, [1, 2, []], [1, -1, []], [1, 2, [["../x", [1, 1, 1]]]], [1, 2, [["", [1, 1, 1]]]],
    [1, 2, [["x", [1, 1]]]], [1, 2, [["x", [1, 1, "1"]]]], [1, 2, [["x", [1, 1, 1]]] * 100], [1, 2, {"x": [1, 1, 1]}],
]  # fmt: skip


def hostile(dice: random.Random) -> bytes:
    """A request that is nearly good, or is not at all."""
    fields = dict(GOOD)
    for _ in range(dice.choice([0, 1, 1, 1, 2, 4])):
        what = dice.random()
        if what < 0.75:
            fields[dice.choice(list(GOOD))] = dice.choice(ODD)
        elif what < 0.85:
            del fields[dice.choice(list(fields))]
        else:
            fields[dice.choice(["user", "gid", "groups", "umask", "", "argv2", "__class__"])] = dice.choice(
                ODD
            )
    text = json.dumps(fields).encode()
    shared = dice.choice(
        [*[b"{}"] * 40, b"", b"{", b"[]", b'{"A": 1}', b'{"A": "b"}', b"null", b'"x"', b"{}{}", b"\xff"]
    )
    message = text + (b"\n" if dice.random() < 0.9 else dice.choice([b"", b"\n\n", b" "])) + shared
    what = dice.random()
    if what < 0.15:  # any bytes of it are others
        changed = bytearray(message)
        for _ in range(dice.randrange(1, 6)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        return bytes(changed)
    if what < 0.25:
        return message[: dice.randrange(len(message))]
    if what < 0.3:
        return dice.randbytes(dice.randrange(200))
    if what < 0.32:
        return dice.choice([b"[" * 100_000, b'{"a":' * 50_000, b"1" * 100_000, b"\0" * 70_000])
    return message


@needs_root
def test_ten_thousand_requests_start_nothing_that_the_rules_do_not_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What passes the schema has exactly its types; what then starts is a person's, with a log in root's directory."""
    dice = random.Random(29)
    started: list[int] = []

    def account_of(uid: int, gid: int = 20001) -> pwd.struct_passwd:
        if uid not in (0, 1, 999, 20001, 65534):
            raise KeyError(uid)
        return pwd.struct_passwd((f"u{uid}", "x", uid, gid, "", f"/home/u{uid}", "/bin/sh"))

    opened = list[int]()

    def start(account: accounts.UserAccount, log: int, *_: object) -> tuple[int, int]:
        started.append(account.uid)
        opened.append(os.open("/dev/null", os.O_RDONLY))
        return 1, opened[-1]

    def log_of(name: bytes, folder: int, owner: tuple[int, int]) -> int:
        assert name
        assert b"/" not in name
        assert not name.startswith(b".")
        return os.open("/dev/null", os.O_RDONLY)

    monkeypatch.setattr(pwd, "getpwuid", account_of)
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [20001])
    monkeypatch.setattr(child, "start", start)
    monkeypatch.setattr(user_processes.logfile, "open_for_writing", log_of)
    (tmp_path / "logs").mkdir(mode=0o750)
    service = user_processes.UserProcesses(b"/srv/state", os.fsencode(tmp_path), 20000, 20000)
    passed, refused, codes = 0, list[str](), set[int]()
    for _ in range(10_000):
        try:
            request = run_request.checked(hostile(dice))
            env = {**run_request.variables(request.shared), **request.env}
        except run_request.BadRequest as error:
            refused.append(str(error))
            continue
        passed += 1
        assert_typed(request)
        assert all(type(name) is bytes and type(text) is bytes for name, text in env.items())
        if request.uid is not None:
            try:
                service.start(
                    (request.argv, env, request.cwd, request.log, request.cpus), request.uid, keeps_log=False
                )
            except user_processes.spawning.NotStarted as error:
                codes.add(error.exit_code)
            while opened:
                os.close(opened.pop())
    assert passed > 500
    assert len(refused) > 5000
    assert all(0 < len(text) < 300 for text in refused)
    assert codes <= {126}
    assert len(started) > 300
    assert set(started) == {20001}


def assert_typed(request: run_request.RunRequest) -> None:
    if request.confinement is not None:
        processes, weight, clusters = request.confinement
        assert all(type(name) is bytes and name and b"/" not in name for name, _ in clusters)
        numbers = [processes, weight, *(number for _, limits in clusters for number in limits)]
        assert all(type(number) is int and number >= 0 for number in numbers)
        assert len(clusters) <= 64
    for name in ("run", "follows", "cwd", "log"):
        assert type(getattr(request, name)) is bytes
    assert not set(request.run + request.follows) & set(b"/\0\n ")
    assert 0 < len(request.run) <= 200
    assert not request.run.startswith(b".")
    for name in ("grace_ms", "log_bytes", "memory_bytes"):
        assert type(getattr(request, name)) is int
        assert 0 <= getattr(request, name) <= 1 << 62
    assert request.uid is None or (type(request.uid) is int and 0 <= request.uid < 1 << 32)
    assert all(type(word) is bytes for word in request.argv)
    assert request.cpus is None or all(type(cpu) is int and cpu >= 0 for cpu in request.cpus)


REFUSED = {
    "no JSON": (b"{\n{}", "it is no JSON"),
    "code": (b"\xe3\x00\x00\x00\n{}", "it is no JSON"),
    "two values": (b"{} {}\n{}", "something stands behind its JSON"),
    "a list": (b"[]\n{}", "its fields must be run, follows, uid, "),
    "a field too many": (json.dumps({**GOOD, "gid": 0}).encode() + b"\n{}", "its fields must be run, "),
    "a field too few": (json.dumps({"run": "a"}).encode() + b"\n{}", "its fields must be run, "),
    "a path as the run": (json.dumps({**GOOD, "run": "../x"}).encode() + b"\n{}", "run cannot be '../x'"),
    "a truth as a number": (json.dumps({**GOOD, "uid": True}).encode() + b"\n{}", "uid cannot be True"),
    "a number as a word": (
        json.dumps({**GOOD, "argv": ["a", 1]}).encode() + b"\n{}",
        "argv cannot be this list",
    ),
    "a cgroup above those of the service": (
        json.dumps({**GOOD, "confinement": [1, 1, [["..", [1, 1, 1]]]]}).encode() + b"\n{}",
        "confinement cannot be this list",
    ),
    "variables that are none": (
        json.dumps(GOOD).encode() + b'\n{"A": 1}',
        "the variables are no names with texts",
    ),
    "very deep": (b"[" * 1_000_000, "it is no JSON"),
    "very long": (b"[" * (run_request.MAX_BYTES + 1), "it has more than 16777216 bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_request_is_refused_in_a_sentence(what: str) -> None:
    message, words = REFUSED[what]
    with pytest.raises(run_request.BadRequest) as refused:
        run_request.variables(run_request.checked(message).shared)
    assert str(refused.value).startswith(words)


# ---- with a real launcher and its supervisors ----


class Attacker:
    """Has a channel to a launcher of root, and the lines of numbers."""

    def __init__(self, shared: SharedGround) -> None:
        self.shared = shared
        server = shared.runtime._supervisors.live_server()
        self.channel = server._channel

    def line(self, index: int = 0) -> tuple[int, socket.socket]:
        """A new number with its record file and its line."""
        number = self.shared.runtime.assign()
        ours, theirs = socket.socketpair()
        words = number.to_bytes(NUMBER_BYTES, "little") + index.to_bytes(NUMBER_BYTES, "little")
        with theirs:
            frames.send(self.channel, words, [theirs.fileno()], waits=True)
        return number, ours

    def say(self, body: bytes, *, prefix: bytes | None = None, wait_s: float = 20) -> bytes:
        """Send a request on a line of its own; what comes back until the run is over, or the line.

        Again where nothing comes: a supervisor that was about to end has hung up, and a scheduler asks again, too.
        """
        for _ in range(3):
            said, has_ended = self._said(body, prefix, wait_s)
            if said or not has_ended:
                break
        return said

    def _said(self, body: bytes, prefix: bytes | None, wait_s: float) -> tuple[bytes, bool]:
        _, line = self.line()
        said = b""
        with line:
            line.settimeout(wait_s)
            try:
                line.sendall(frames.frame(body) if prefix is None else prefix + body)
                while b"\nE " not in said and (part := line.recv(1 << 16)):
                    said += part
            except (BrokenPipeError, ConnectionResetError):
                return said, True
            except TimeoutError:  # it waits for more
                return said, False
        return said, True

    def request(self, **fields: object) -> bytes:
        home = str(self.shared.home)
        good = {**GOOD, "uid": self.shared.ana.pw_uid, "log": f"{home}/logs/x"}
        return json.dumps({**good, **fields}).encode() + b"\n{}"


@needs_root
def test_hostile_messages_end_neither_the_launcher_nor_a_supervisor(shared: SharedGround) -> None:
    shared.launch("good", "sleep", "1000")
    start = shared.running("good")
    attacker, dice = Attacker(shared), random.Random(7)
    for _ in range(150):
        attacker.say(hostile(dice).replace(b'"uid": 20001', b'"uid": 0'))
    for length, wait_s in ((1 << 31, 20), (0, 20), (1 << 20, 0.05)):  # the last one may still come
        assert attacker.say(b"x", prefix=length.to_bytes(4, "little"), wait_s=wait_s) == b""
    for _ in range(100):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            frames.send(
                attacker.channel, dice.randbytes(dice.randrange(1, 4000)), [theirs.fileno()], waits=True
            )
    frames.send(attacker.channel, b"no descriptor", [], waits=True)
    with open(shared.home / "theirs", "wb") as theirs_file:
        question = json.dumps({"signal": 0, "pid": 1, "started": 1}).encode()
        frames.send(attacker.channel, question, [theirs_file.fileno()], waits=True)
    assert attacker.say(attacker.request(run="last")).count(b" last ") == 3  # T, S, E
    assert processes.start_time(start.supervisor) == start.supervisor_started
    assert shared.runtime.signal_run("good", signal.SIGTERM)
    assert shared.ended("good").signal == signal.SIGTERM
    said = shared.errors()
    assert "Traceback" not in said
    assert "a request was refused, and starts nothing: " in said
    assert "a question was refused: it is no JSON" in said
    assert (
        shared.home / "theirs"
    ).read_bytes() == b""  # root writes into no file that the account has opened


NO_LINES = ("a pipe", "an event", "a socket that listens", "a socket of packets")


def no_line(what: str) -> list[Any]:
    """Open files, of which the first is no line of a number, and has something to read."""
    if what == "a pipe":
        reading, writing = os.pipe()
        os.write(writing, b"x")
        return [os.fdopen(reading), os.fdopen(writing, "w")]
    if what == "an event":
        return [os.fdopen(os.eventfd(1))]
    if what == "a socket that listens":
        listening = socket.create_server(("127.0.0.1", 0))
        return [listening, socket.create_connection(listening.getsockname())]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(b"abc")
    return [theirs, ours]


@needs_root
@pytest.mark.parametrize("what", NO_LINES)
def test_a_descriptor_that_is_no_line_ends_no_supervisor(shared: SharedGround, what: str) -> None:
    """It ended the one that got it, and all of its runs were lost."""
    shared.launch("good", "sleep", "1000")
    start = shared.running("good")
    attacker = Attacker(shared)
    opened = no_line(what)
    number = shared.runtime.assign()
    for index in (0, 1, 2, 3):
        words = number.to_bytes(NUMBER_BYTES, "little") + index.to_bytes(NUMBER_BYTES, "little")
        frames.send(attacker.channel, words, [opened[0].fileno()], waits=True)
    assert attacker.say(attacker.request(run="last")).count(b" last ") == 3  # T, S, E
    assert processes.start_time(start.supervisor) == start.supervisor_started
    assert shared.runtime.signal_run("good", signal.SIGTERM)
    assert shared.ended("good").signal == signal.SIGTERM
    assert "Traceback" not in shared.errors()
    for file in opened:
        file.close()


@needs_root
def test_an_account_cannot_fill_the_table_of_processes_as_root(shared: SharedGround) -> None:
    """One launcher forked a supervisor for each place that it was told, without end."""
    shared.launch("good", "sleep", "1000")
    start = shared.running("good")
    attacker = Attacker(shared)
    lines = [attacker.line(index)[1] for index in range(100, 100 + launcher.MOST_SUPERVISORS + 40)]
    last = attacker.line(9999)[1]
    last.sendall(frames.frame(attacker.request(run="last")))
    last.settimeout(20)
    said = b""
    while b"\nE " not in said:
        said += last.recv(1 << 16)
    parent = processes.process(start.supervisor)
    assert parent is not None
    found = [pid for pid in processes.children(parent.parent) if processes.name(pid) == supervisor.NAME]
    assert 1 < len(found) <= launcher.MOST_SUPERVISORS
    for line in (*lines, last):
        line.close()
    eventually(lambda: len([pid for pid in found if not is_gone(pid)]) == 1)
    again = attacker.line(10000)[1]  # the places of those that have ended are free again
    again.sendall(frames.frame(attacker.request(run="again")))
    again.settimeout(20)
    assert again.recv(1 << 16).startswith(b"T again ")
    again.close()


@needs_root
def test_nothing_runs_as_root_or_as_the_system(shared: SharedGround) -> None:
    attacker = Attacker(shared)
    for uid in (0, 1, 2, 33, 65534, 4294967294, shared.account.pw_uid):
        said = attacker.say(attacker.request(run=f"u{uid}", uid=uid))
        assert b" 126 0 22 " in said, uid  # exit code, signal, errno
        assert b"cannot start a process of uid %d: " % uid in said
    assert attacker.say(attacker.request(uid=None)) == b""
    assert "a shared service starts processes of users" in shared.errors()


@needs_root
@pytest.mark.parametrize("what", ["the file", "its directory"])
def test_a_record_file_that_is_a_link_makes_root_write_nowhere(shared: SharedGround, what: str) -> None:
    attacker = Attacker(shared)
    records, folder = shared.home / "records", shared.top / "root"
    number = shared.runtime.assign()
    with as_root():
        folder.mkdir(mode=0o755)
        (folder / str(number)).write_text(
            "root's\n"
        )  # whom to read it is no secret, but only root may write it
    if what == "the file":
        (records / str(number)).unlink()
        os.symlink(folder / str(number), records / str(number))
    else:
        records.rename(shared.home / "records.old")
        os.symlink(folder, records)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            words = number.to_bytes(NUMBER_BYTES, "little") + bytes(NUMBER_BYTES)
            frames.send(attacker.channel, words, [theirs.fileno()], waits=True)
        ours.settimeout(20)
        assert ours.recv(1 << 16) == b""
    with as_root():
        assert (folder / str(number)).read_text() == "root's\n"
    if what == "its directory":
        records.unlink()
        (shared.home / "records.old").rename(records)
    assert "denied" in (said := shared.errors()) or "symbolic links" in said


@needs_root
def test_stops_and_offers_that_are_links_remove_and_read_nothing_of_roots(shared: SharedGround) -> None:
    with as_root():
        folder = shared.top / "root"
        folder.mkdir(mode=0o755)
        for name in ("a", "b"):
            (folder / name).write_text(f"{time.monotonic_ns()} 9\n")
            (folder / name).chmod(0o600)
    shared.launch("a", "sleep", "1000")
    start = shared.running("a")
    os.symlink(folder / "a", shared.home / "stops" / "a")  # a link to what only root may read
    shared.runtime._send_signal(start.supervisor, start.supervisor_started, 10)
    time.sleep(0.1)
    assert not is_gone(start.pid)
    (shared.home / "stops").rename(shared.home / "stops.old")
    os.symlink(folder, shared.home / "stops")  # its files could be renamed and removed by root only
    shared.runtime._send_signal(start.supervisor, start.supervisor_started, 10)
    (shared.home / "ahead").symlink_to(folder)
    time.sleep(0.2)
    assert not is_gone(start.pid)
    with as_root():
        assert sorted(os.listdir(folder)) == ["a", "b"]
    (shared.home / "stops").unlink()
    (shared.home / "stops.old").rename(shared.home / "stops")


@needs_root
@pytest.mark.parametrize(
    "words", ["1" * 199, "99999999999999999999999999 9", "-5 9", "1 99", "1e9 9", "\xff", "9" * 30 + " 15"]
)
def test_no_stop_request_ends_a_supervisor(shared: SharedGround, words: str) -> None:
    """A time beyond what the kernel takes ended it, and all of its runs were lost."""
    shared.launch("a", "sleep", "1000")
    start = shared.running("a")
    (shared.home / "stops" / "a").write_text(words)
    shared.runtime._send_signal(start.supervisor, start.supervisor_started, 10)
    eventually(lambda: not (shared.home / "stops" / "a").exists())
    time.sleep(0.05)
    assert processes.start_time(start.supervisor) == start.supervisor_started
    assert not is_gone(start.pid)
