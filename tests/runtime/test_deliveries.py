"""One notice in a process of its own: what it gets, why it failed, and its limit of time."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.runtime import deliveries
from vctl.runtime.deliveries import Delivery

pytestmark = spec("13.notices")

ENV = {"PATH": "/usr/bin:/bin"}


def result(carry_out: Callable[[], None], limit_s: float = 10.0) -> str:
    delivery = Delivery(carry_out, limit_s)
    while (said := delivery.result()) is None:
        poll = select.poll()
        for fd in delivery.fds:
            poll.register(fd, select.POLLIN)
        poll.poll(50)
    return said


def command(*words: str, cwd: str = "/") -> Callable[[], None]:
    return partial(deliveries.command, words, ENV, cwd)


COMMANDS = {
    "a success": (command("true"), ""),
    "an exit code": (command("sh", "-c", "exit 3"), "exit code 3"),
    "its last line": (command("sh", "-c", "echo one; echo two >&2; exit 3"), "exit code 3: two"),
    "what a terminal would obey": (command("sh", "-c", r"printf '\033[2J'; exit 3"), "exit code 3: ?[2J"),
    "a signal": (command("sh", "-c", "kill -9 $$"), "ended by signal 9"),
    "a lot of output": (command("sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; exit 0"), ""),
    "no such command": (command("nonesuch"), "nonesuch: command not found"),
    "no such directory": (command("sh", "-c", "test $PWD = /", cwd="/nonesuch"), ""),
    "no permission": (command("/etc/passwd"), "Permission denied"),
}


@pytest.mark.parametrize("key", COMMANDS)
def test_commands(key: str) -> None:
    carry_out, said = COMMANDS[key]
    assert result(carry_out) == said


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    script = f"sleep 60 & echo $! > {tmp_path}/pid; trap '' TERM; wait; sleep 60"
    assert result(command("sh", "-c", script), 0.5) == "it had not ended after 0.5 s"
    assert time.monotonic() - began < 5
    left = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{left}").exists() or "Z" in Path(f"/proc/{left}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("what the command started runs on")


def test_a_server_that_trickles_is_left_after_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        assert result(partial(deliveries.post, url, b"{}", ENV), 0.5) == "it had not ended after 0.5 s"


class Handler(BaseHTTPRequestHandler):
    bodies: list[tuple[str, object]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append((self.path, json.loads(body)))
        self.send_response(int(self.path.strip("/")))
        self.send_header("Location", "/200")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


STATUSES = {
    200: "",
    204: "",
    302: "HTTP 302 Found",
    404: "HTTP 404 Not Found",
    503: "HTTP 503 Service Unavailable",
}


@pytest.mark.parametrize("status", STATUSES)
def test_a_post_is_delivered_where_the_server_takes_it(status: int) -> None:
    Handler.bodies.clear()
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{status}"
        said = result(partial(deliveries.post, url, b'{"a": 1}', ENV))
        server.shutdown()
    assert said == STATUSES[status]
    assert Handler.bodies == [(f"/{status}", {"a": 1})]


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    assert result(partial(deliveries.post, url, b"{}", ENV)) == "Connection refused"


def test_a_mail_goes_to_sendmail(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/text\n')
    program.chmod(0o700)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert result(partial(deliveries.mail, ["ann@example.org", "bob"], "vctl: j FAILED", "text\n", env)) == ""
    assert (tmp_path / "words").read_text() == "-i -t\n"
    assert (tmp_path / "text").read_text() == "To: ann@example.org, bob\nSubject: vctl: j FAILED\n\ntext\n"


def test_a_machine_without_mail_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "_MAILERS", os.fspath(tmp_path))
    said = result(partial(deliveries.mail, ["ann"], "s", "t", {"PATH": os.fspath(tmp_path)}))
    assert said == "this machine has neither sendmail nor mail"
