"""Methods (RFC 9110): HEAD is GET without a body, Allow names every method of a path, and OPTIONS asks for it."""

from __future__ import annotations

import http.client
import re
import socket
from pathlib import Path

import httpx
import pytest

from tests.http.conftest import TOKEN, Running, Start
from tests.http.test_streams import submit
from tests.specification import spec

pytestmark = spec("14.api")

STEADY = ["/healthz", "/api/version", "/openapi.json", "/virtual_clusters", "/api/v1/nodes", "/api/v1/nothing",
          "/api/v1/jobs/nothing", "/api/v1/jobs?limit=-1", "/api/jobs/", "/api/packages/gcs/nothing.zip"]  # fmt: skip
"""Paths whose answer is the same each time, refusals among them."""

ALLOWED = {
    "/healthz": "GET HEAD OPTIONS",
    "/virtual_clusters": "GET HEAD POST OPTIONS",
    "/virtual_clusters/a": "DELETE OPTIONS",
    "/api/v1/jobs": "GET HEAD POST OPTIONS",
    "/api/v1/jobs/a": "GET HEAD PATCH DELETE OPTIONS",
    "/api/v1/jobs/a/stop": "POST OPTIONS",
    "/api/v1/events/stream": "GET HEAD OPTIONS",
    "/api/jobs/": "GET HEAD POST OPTIONS",
    "/api/packages/gcs/a.zip": "GET HEAD PUT OPTIONS",
}


def headers(answer: httpx.Response) -> dict[str, str]:
    """The headers that do not change with the time."""
    return {name: value for name, value in answer.headers.items() if name not in ("date", "server-timing")}


def described(server: Running) -> dict[str, dict[str, object]]:
    """The methods of each described path, its parameters replaced by a job or any word."""
    paths = server.http.get("/openapi.json").json()["paths"]
    job = submit(server, "true")
    return {
        re.sub(r"\{\w+(:path)?\}", "a", re.sub(r"\{(job|submission_id)\}", job, path)): methods
        for path, methods in paths.items()
    }


def test_head_is_get_without_a_body(start: Start):
    server = start(VCTL_AUTOSTART="0")
    server.nodes(1)
    read = [path for path, methods in described(server).items() if "get" in methods]
    assert len(read) > 30
    for path in [*STEADY, *read]:
        query = "?timeout_s=0" if path.endswith("/wait") else ""
        with server.http.stream("GET", path + query) as got:
            wanted = headers(got)
        head = server.http.head(path + query)
        found = headers(head)
        if path not in STEADY:  # ages and counts may have grown by a digit
            assert ("content-length" in found) == ("content-length" in wanted), path
            wanted.pop("content-length", None), found.pop("content-length", None)
        assert (head.status_code, head.content, found) == (got.status_code, b"", wanted), path


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_a_connection_lives_on_behind_a_head(start: Start, tmp_path: Path, unix: bool):
    server = start(*(("--uds", str(tmp_path / "s")) if unix else ()), VCTL_AUTOSTART="0")
    server.nodes(1)
    job = submit(server, "true")  # waits for ever: nobody schedules
    connection = http.client.HTTPConnection("localhost", timeout=5)
    connection.auto_open = 0  # one connection for all
    if unix:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(5)
        connection.sock.connect(str(tmp_path / "s"))
    else:
        port = int(server.address.rpartition(":")[2])
        connection.sock = socket.create_connection(("127.0.0.1", port), timeout=5)
    token = {"Authorization": f"Bearer {TOKEN}"}
    asked = [("HEAD", "/api/v1/jobs", 200), ("HEAD", "/api/v1/events/stream?since=0", 200),
             ("HEAD", "/api/v1/events/stream", 200), ("HEAD", f"/api/v1/jobs/{job}/logs?follow=true", 200),
             ("HEAD", "/api/v1/jobs/nothing", 404), ("HEAD", "/api/v1/jobs/a/stop", 405),
             ("HEAD", "/" + "x" * 5000, 413), ("OPTIONS", "/api/v1/jobs", 204), ("PUT", "/api/v1/jobs", 405),
             ("GET", "/healthz", 200)]  # fmt: skip
    with connection.sock:
        for method, path, status in asked:
            connection.request(method, path, headers=token)
            answer = connection.getresponse()
            assert answer.status == status, (method, path)
            body = answer.read()  # what is left over would be taken for the next answer
            assert bool(body) == (method not in ("HEAD", "OPTIONS")), (method, path)


def test_allow_names_every_method(start: Start):
    server = start(VCTL_AUTOSTART="0")
    server.nodes(1)
    for path, words in ALLOWED.items():
        allowed = ", ".join(words.split())
        asked = server.http.options(path)
        assert (asked.status_code, asked.headers["allow"], asked.content) == (204, allowed, b""), path
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"} - set(words.split()):
            refused = server.http.request(method, path)
            assert (refused.status_code, refused.headers["allow"]) == (405, allowed), (method, path)
            if path.startswith("/api"):
                assert refused.json()["error"]["hint"] == f"it takes {allowed}"
    for path, methods in described(server).items():
        allow = server.http.options(path).headers["allow"].split(", ")
        assert {method.upper() for method in methods} <= set(allow), path
        assert ("HEAD" in allow) == ("GET" in allow), path
    assert server.http.options("/api/v1/nothing").status_code == 404


def test_head_and_options_are_checked_as_get_is(server: Running):
    for method in ("HEAD", "OPTIONS"):
        for path in ("/api/v1/jobs", "/api/jobs/", "/api/packages/gcs/a.zip", "/api/v1/nothing"):
            answer = httpx.request(method, server.address + path)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "allow" not in answer.headers
        answer = server.http.request(method, "/healthz", headers={"Host": "example.org"})
        assert answer.status_code == 403
        assert httpx.request(method, server.address + "/healthz").status_code < 300
