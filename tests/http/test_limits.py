"""Limits of the server (spec 14): requests that never end, too many connections, few open files, odd hosts."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.http.conftest import TOKEN, Running
from tests.specification import spec
from vctl.http import protocol

pytestmark = spec("14.safety")

SLOW = """
import sys
from vctl.http import protocol
protocol.HEADERS_S, protocol.BODY_S = 1.0, 1.5
from vctl.__main__ import main
sys.exit(main())
"""
"""The server with shorter times; all else is the real one."""


def serving(
    tmp_path: Path, *, files: int | None = None, fast: bool = False
) -> tuple[subprocess.Popen[str], int]:
    env = {**os.environ, "VCTL_HOME": str(tmp_path / "home"), "VCTL_TOKEN": TOKEN, "VCTL_LOCAL_NODE": "0"}
    start = ["-c", SLOW] if fast else ["-m", "vctl"]

    words = [sys.executable, *start, "serve", "--port", "0"]
    if files is not None:
        words = ["sh", "-c", f'ulimit -n {files}; exec "$0" "$@"', *words]
    server = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    line = server.stderr.readline()
    return server, int(line.partition("127.0.0.1:")[2].partition(",")[0])


def stopped(server: subprocess.Popen[str]) -> str:
    """What the server said on stderr until its end."""
    server.send_signal(signal.SIGTERM)
    _, said = server.communicate(timeout=30)
    return said


def answer(raw: socket.socket, within_s: float) -> bytes:
    raw.settimeout(within_s)
    with raw, raw.makefile("rb") as file:
        return file.read()


def test_a_request_that_never_ends_is_ended(tmp_path: Path) -> None:
    assert 1 <= protocol.HEADERS_S <= 30
    assert 5 <= protocol.BODY_S <= 120
    server, port = serving(tmp_path, fast=True)
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode()
    try:
        slow = {
            "nothing": b"",
            "half a line": b"GET /heal",
            "half a head": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
            "half a body": head + b"\r\nContent-Length: 1000\r\n\r\n{",
            "no chunk": head + b"\r\nTransfer-Encoding: chunked\r\n\r\n",
            "half the next request": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTT",
        }
        open_ = {}
        for name, sent in slow.items():
            open_[name] = socket.create_connection(("127.0.0.1", port))
            open_[name].sendall(sent)
        dripping = socket.create_connection(("127.0.0.1", port))  # slowloris: always a little more
        began, ended = time.monotonic(), None
        dripping.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        while ended is None and time.monotonic() - began < 20:
            try:
                dripping.sendall(b"x-a: b\r\n")
                time.sleep(0.1)
            except OSError:
                ended = time.monotonic() - began
        dripping.close()
        assert ended is not None
        for name, raw in open_.items():
            said = answer(raw, 20)
            assert b"HTTP/1.1 408" in said, name
            assert b'"code": "RequestTimeout"' in said, name
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    finally:
        said = stopped(server)
    assert said == ""


def test_a_request_that_is_broken_off_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    server, port = serving(tmp_path)
    token = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    try:
        for start, rest in (
            (b"POST /api/v1/jobs HTTP/1.1\r\nContent-Length: 100\r\n", b'{"a"'),
            (b"POST /api/jobs/ HTTP/1.1\r\nContent-Length: 100\r\n", b'{"a"'),
            (b"POST /api/v1/simulate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", b'5\r\n{"a"'),
            (b"PUT /api/packages/gcs/a.zip HTTP/1.1\r\nContent-Length: 100000\r\n", b"PK"),
            (b"GET /api/v1/jobs HTTP/1.1\r\n", b""),
            (b"GET /api/v1/events?follow=true HTTP/1.1\r\n", b""),
        ):
            for lingers in (False, True):
                raw = socket.create_connection(("127.0.0.1", port))
                raw.sendall(start + b"Host: localhost\r\nContent-Type: application/json\r\n" + token + rest)
                time.sleep(0.1)
                if lingers:  # the connection is reset
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raw.close()
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    finally:
        said = stopped(server)
    assert said == ""
    assert not list((tmp_path / "home" / "packages").iterdir())


def test_half_open_connections_of_one_peer_keep_nobody_out(tmp_path: Path) -> None:
    """With 1,000 of them, everybody got 503 for ten seconds. The peer loses the oldest, also those of half a body."""
    server, port = serving(tmp_path)
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nAuthorization: Bearer "
    head += TOKEN.encode() + b"\r\n\r\n{"
    crowd = []
    try:
        for raw in (b"", b"GET /heal", head):
            for _ in range(1000):
                crowd.append(socket.create_connection(("127.0.0.1", port)))
                crowd[-1].sendall(raw)
            for _ in range(3):
                began = time.monotonic()
                assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=10).status_code == 200, raw
                assert time.monotonic() - began < 3, raw
            said = answer(crowd[-1000], 10)
            assert b"503" in said, raw
            assert b"too many unfinished requests of one peer" in said, raw
            for one in crowd:
                one.close()
            crowd.clear()
        with (
            httpx.Client() as client
        ):  # connections that are kept alive between requests are no half-open ones
            for _ in range(300):
                assert client.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    finally:
        for one in crowd:
            one.close()
        left = stopped(server)
    assert left == ""


def test_few_open_files_and_many_connections(tmp_path: Path) -> None:
    server, port = serving(tmp_path, files=64, fast=True)
    try:
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        time.sleep(0.5)
        for raw in crowd:
            raw.close()
        give_up = time.monotonic() + 20
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            assert time.monotonic() < give_up, "it does not recover"
            time.sleep(0.1)
        for _ in range(20):
            found = httpx.get(
                f"http://127.0.0.1:{port}/api/v1/jobs", headers={"Authorization": f"Bearer {TOKEN}"}
            )
            assert found.status_code == 200
    finally:
        said = stopped(server)
    assert "Traceback" not in said
    assert len(said.splitlines()) < 10


def test_many_connections_may_wait_for_a_busy_server(server: Running) -> None:
    """The server is suspended: the kernel takes them all. A connection beyond the limit waited a second or more."""
    assert server.http.get("/healthz").status_code == 200
    host, _, port = server.address.removeprefix("http://").partition(":")
    crowd = [socket.socket() for _ in range(300)]
    server.process.send_signal(signal.SIGSTOP)
    try:
        for raw in crowd:
            raw.settimeout(0.5)
            raw.connect((host, int(port)))
    finally:
        server.process.send_signal(signal.SIGCONT)
        for raw in crowd:
            raw.close()
    assert server.http.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "host", ["[::1]x", "[::1", "::1", "localhost:80x", "localhost:1:2", "a@localhost", "", "127.0.0.1 x"]
)
def test_odd_hosts_are_refused(server: Running, host: str) -> None:
    port = int(server.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        said = answer(raw, 20)
    assert said.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), said


def test_hosts_that_are_ours(server: Running) -> None:
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:99", "[::1]", "[::1]:8265", "a.localhost"):
        assert server.http.get("/healthz", headers={"Host": host}).status_code == 200, host
