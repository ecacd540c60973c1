"""Who may ask what: tokens, hosts, origins, sockets, sizes; and every refusal in its envelope."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.conftest import ROOT, TOKEN, Running, Start, message
from tests.specification import spec

pytestmark = spec("14.safety")

OPEN = ["/healthz", "/metrics", "/api/version", "/virtual_clusters", "/openapi.json"]
CLOSED = [
    ("GET", path)
    for path in ("/api/v1/status", "/api/v1/jobs", "/api/v1/jobs/last/logs", "/api/v1/events", "/api/v1/nodes",
                 "/api/v1/events/stream", "/api/v1/nothing", "/api/jobs/", "/api/v1/clusters/primary")
] + [
    ("POST", "/virtual_clusters"),
    ("POST", "/virtual_clusters/remove_nodes"),
    ("DELETE", "/virtual_clusters/a"),
    ("POST", "/api/v1/jobs"),
    ("PATCH", "/api/v1/nodes/a"),
    ("POST", "/nothing"),
]  # fmt: skip


def test_what_needs_a_token(server: Running):
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer"},
    ]
    with httpx.Client(base_url=server.address) as stranger:
        for path in OPEN:
            assert stranger.get(path).status_code == 200, path
        for method, path in CLOSED:
            for headers in wrong:
                answer = stranger.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path, headers)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                body = answer.json()
                assert (
                    body["result"] is False
                    if path.startswith("/virtual")
                    else body["error"]["exit_code"] == 8
                )
        assert stranger.get("/api/v1/status", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200


def test_a_token_is_made_once_and_is_secret(start: Start, tmp_path: Path):
    first = start(VCTL_TOKEN="")
    path = first.home / "token"
    token = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 40
    answer = httpx.get(f"{first.address}/api/v1/status", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    start(VCTL_TOKEN="")
    assert path.read_text().strip() == token


def test_without_a_token_on_loopback_only(start: Start):
    free = start("--no-token")
    assert httpx.get(f"{free.address}/api/v1/status").status_code == 200
    page = {"Origin": "http://evil.example"}
    assert httpx.post(f"{free.address}/virtual_clusters", json={}, headers=page).status_code == 403


def serve(home: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0", "PYTHONPATH": str(ROOT), **more}
    words = [sys.executable, "-m", "vctl", "serve", *options]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_no_token_elsewhere_is_refused(tmp_path: Path, host: str):
    done = serve(tmp_path / "state", "--host", host, "--no-token")
    assert done.returncode == 8
    assert "--no-token" in done.stderr


def test_bad_tokens_and_places_are_refused(tmp_path: Path):
    empty, loose = tmp_path / "empty", tmp_path / "loose"
    empty.touch(mode=0o600)
    loose.write_text("x" * 40)
    loose.chmod(0o644)
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    cases = {
        2: [
            ("--token-file", str(empty)),
            ("--port", "70000"),
            ("--host", "no such host"),
            ("--host", "192.0.2.1"),
        ],
        5: [("--port", str(taken.getsockname()[1])), ("--uds", str(tmp_path / "no" / "dir"))],
        8: [("--token-file", str(loose))],
    }
    for code, many in cases.items():
        for options in many:
            done = serve(tmp_path / "state", *options)
            assert done.returncode == code, (options, done.stderr)
            assert "Fix: " in done.stderr
    taken.close()


def test_options_that_would_have_no_effect_are_refused_by_name(tmp_path: Path):
    """A socket has no port, and neither it nor --no-token has a token. An empty path would be open to all users."""
    socket_ = ("--uds", str(tmp_path / "s"))
    cases = [
        ((*socket_, "--port", "8265"), "--port: it cannot be combined with --uds"),  # also its default
        ((*socket_, "--host", "127.0.0.1"), "--host: it cannot be combined with --uds"),
        ((*socket_, "--token-file", "t"), "--token-file: it cannot be combined with --uds"),
        (("--no-token", "--token-file", "t"), "--token-file: it cannot be combined with --no-token"),
        *(((name, ""), f"{name}: it is empty") for name in ("--uds", "--host", "--token-file")),
    ]
    for options, words in cases:
        done = serve(tmp_path / "state", *options, "-o", "json")
        assert done.returncode == 2, (options, done.stderr)
        assert json.loads(done.stdout)["error"]["message"] == words
    assert not (tmp_path / "state").exists()


def test_hosts_and_origins(server: Running):
    port = server.address.rpartition(":")[2]
    good = [f"127.0.0.1:{port}", f"localhost:{port}", "localhost", "[::1]:8265", "vctl.localhost"]
    bad = ["evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[", "10.0.0.1"]
    for host in good:
        assert server.http.get("/api/v1/status", headers={"Host": host}).status_code == 200, host
    for host in bad:
        answer = server.http.get("/virtual_clusters", headers={"Host": host})
        assert answer.status_code == 403, host
        assert answer.json()["result"] is False
    same = {"Origin": server.address}
    assert server.http.get("/healthz", headers=same).status_code == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"):
        assert server.http.get("/healthz", headers={"Origin": origin}).status_code == 403, origin


def test_a_unix_socket_is_for_its_owner(start: Start, tmp_path: Path):
    path = tmp_path / "s"
    mine = start("--uds", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert mine.http.get("/api/v1/status").status_code == 200
    assert serve(tmp_path / "state", "--uds", str(path)).returncode == 5
    done = mine.vctl("status", "-o", "json", VCTL_ADDRESS=f"unix:{path}", VCTL_TOKEN="")
    assert done.returncode == 0, done.stderr
    mine.process.terminate()
    mine.process.wait(10)
    assert not path.exists()


ODD = [
    ("GET", "/nothing", 404),
    ("GET", "/virtual_clusters/x/y", 405),
    ("PUT", "/virtual_clusters", 405),
    ("DELETE", "/api/v1/status", 405),
    ("GET", "/api/v1/jobs/%00", 404),
    ("GET", "/api/v1/jobs/%ff%fe", 404),
    ("GET", "/api/v1/jobs?limit=-1", 400),
    ("GET", "/api/v1/jobs?limit=99999999999999999999", 400),
    ("GET", "/api/v1/jobs?filter=nonsense", 400),
    ("GET", "/api/v1/events?since=99999999999999999999", 400),
    ("GET", "/api/v1/jobs/99999999999999999999999", 404),
    ("GET", "/docs", 404),
    ("GET", "/" + "x" * 5000, 413),
]


def test_no_bare_framework_error(server: Running):
    for method, path, status in ODD:
        answer = server.http.request(method, path)
        assert answer.status_code == status, (method, path[:40])
        envelope = {"result", "msg", "data"} if path.startswith("/virtual") else {"error"}
        assert set(answer.json()) == envelope, (method, path[:40])


def test_what_is_no_http_gets_our_envelope_too(server: Running):
    port = int(server.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(b"NONSENSE\r\n\r\n")
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'{"error": ' in answer


FIELDS = {
    "entrypoint: it is missing": {},
    "entrypoint[0]: it must be a string": {"entrypoint": [1]},
    "entrypoint: it must be a list": {"entrypoint": "true"},
    "nosuch: unknown field": {"entrypoint": ["true"], "nosuch": 1},
    "subMissionId: unknown field, did you mean submission_id?": {"entrypoint": ["true"], "subMissionId": "a"},
    "priority: it must be a whole number": {"entrypoint": ["true"], "priority": "1"},
    "priority: it must be at most 2147483648": {"entrypoint": ["true"], "priority": 2**40},
    "begin_at: it must be at least 0": {"entrypoint": ["true"], "begin_at": -1},
    "hold: it must be true or false": {"entrypoint": ["true"], "hold": "yes"},
    "env: it must be an object": {"entrypoint": ["true"], "env": [1]},
    "job_scope: it must be 'own' or 'all'": {"entrypoint": ["true"], "job_scope": "x"},
    "name: it has more than 100000 characters": {"entrypoint": ["true"], "name": "x" * 100_001},
}


def test_what_is_wrong_with_a_field_is_said_in_plain_words(server: Running):
    for problem, body in FIELDS.items():
        answer = server.http.post("/api/v1/jobs", json=body)
        assert (answer.status_code, message(answer)) == (400, f"Invalid request, {problem}")
        assert answer.json()["error"]["details"] == {"path": problem.partition(":")[0]}


def test_a_bound_is_written_whole(server: Running):
    answer = server.http.get("/api/v1/events/stream", params={"since": "9" * 23})
    assert message(answer) == "Invalid request, since: it must be at most 4611686018427387904"


UNREAD = {
    "GET /api/v1/jobs?limt=1": "limt: unknown parameter, did you mean limit?",
    "GET /api/v1/jobs?nosuch": "nosuch: unknown parameter",  # without a value
    "GET /api/v1/jobs/a/wait?timeout=1": "timeout: unknown parameter, did you mean timeout_s?",
    "GET /api/v1/events/stream?jobs=a": "jobs: unknown parameter, did you mean job?",
    "GET /api/v1/status?nosuch=1": "nosuch: unknown parameter",
    "GET /virtual_clusters?includeJobClusters=1": (
        "includeJobClusters: unknown parameter, did you mean include_job_clusters?"
    ),
    "DELETE /virtual_clusters/a?force=1": "force: unknown parameter",
    "DELETE /api/v1/clusters/a?forced=1": "forced: unknown parameter, did you mean force?",
    "POST /api/v1/nodes/a/drain?reason=x": "reason: unknown parameter, it is a field of the body",
    "POST /api/v1/nodes/a/undrain?reason=x": "reason: unknown parameter",
    "GET /api/v1/jobs?limit=1&limit=2": "limit: it is there twice",
}
NO_BODY = {
    "DELETE /api/v1/clusters/a": "it takes no body; its parameters are in the query",
    "POST /api/v1/nodes/a/undrain": "it takes no body",
    "DELETE /virtual_clusters/a": "it takes no body",
}
LENIENT = ("/healthz", "/metrics", "/api/version", "/api/jobs/", "/openapi.json")
"""What probes and clients of Ray ask for; both may add parameters of their own."""


def test_what_a_route_would_not_read_is_refused_by_name(server: Running):
    """As an unknown field of a body is: else who misspells a limit or sends it in the wrong place never knows."""
    cases: list[tuple[str, Any, str]] = [(request, None, problem) for request, problem in UNREAD.items()]
    cases += [(request, {"force": True}, problem) for request, problem in NO_BODY.items()]
    for request, body, problem in cases:
        method, path = request.split()
        answer = server.http.request(method, path, json=body)
        start = (
            "Failed to remove virtual cluster a: " if request.startswith("DELETE /virtual_clusters/a") else ""
        )
        assert (answer.status_code, message(answer)) == (400, f"{start}Invalid request, {problem}"), request
    answer = server.http.post("/virtual_clusters?divisible=true", json={"virtualClusterId": "a"})
    assert "divisible: unknown parameter, it is a field of the body" in message(answer)
    assert server.rows("SELECT count(*) FROM clusters WHERE kind = 'logical'") == [(0,)]
    assert server.http.get("/api/v1/jobs?filter=user=x&filter=status=RUNNING").status_code == 200
    assert server.http.request("DELETE", "/api/v1/jobs/a", json={}).status_code == 404
    for path in LENIENT:
        assert server.http.get(f"{path}?probe=1").status_code == 200, path


TWICE = {
    "/virtual_clusters": '{"virtualClusterId": "x", "divisible": true, "virtualClusterId": "y"}',
    "/api/v1/jobs": '{"entrypoint": ["true"], "env": {"virtualClusterId": "1", "virtualClusterId": "2"}}',
    "/api/jobs/": '{"entrypoint": "true", "virtualClusterId": 1, "virtualClusterId": 1}',
    "/api/v1/tree-file/plan": '{"document": {"virtualClusterId": [], "virtualClusterId": []}}',
}


def test_a_key_that_is_there_twice_is_refused_by_name(server: Running):
    """Whoever reads such a body next may take the other value: nothing is guessed, nothing is done."""
    before = server.tree()
    for path, body in TWICE.items():
        answer = server.http.post(path, content=body)
        start = "Failed to create or update virtual cluster : " if path == "/virtual_clusters" else ""
        problem = f'{start}Invalid request, the key "virtualClusterId" appears twice in one object'
        assert (answer.status_code, message(answer)) == (400, problem), path
    assert server.tree() == before
    assert server.rows("SELECT count(*) FROM jobs") == [(0,)]


def test_too_much_is_refused(server: Running):
    answer = server.http.post("/api/v1/jobs", content=b"x" * (9 << 20))
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "TooLarge"

    def chunks():
        for _ in range(40):
            yield b"x" * (1 << 18)

    assert server.http.post("/virtual_clusters", content=chunks()).status_code == 413


def test_an_environment_is_never_shown(server: Running):
    server.nodes(1)
    job = {
        "entrypoint": ["true"],
        "env": {"SECRET": "hunter2"},
        "environment": {"PATH": "/bin", "OTHER": "hunter2"},
    }
    made = server.http.post("/api/v1/jobs", json=job)
    assert made.status_code == 200
    for path in ("/api/v1/jobs", "/api/v1/jobs/last", "/api/v1/events", "/api/v1/status", "/metrics"):
        assert "hunter2" not in server.http.get(path).text


def test_a_signal_right_behind_the_announcement_ends_the_server(tmp_path: Path) -> None:
    """Whatever the server is doing just then: starting its loop, loading the application, answering already."""
    env = {**os.environ, "VCTL_HOME": str(tmp_path / "home"), "VCTL_TOKEN": "x" * 20}
    for delay_s in (0, 0.005, 0.02, 0.08):
        server = subprocess.Popen(
            [sys.executable, "-m", "vctl", "serve", "--port", "0"], env=env, stderr=subprocess.PIPE, text=True
        )
        assert server.stderr is not None
        assert " answers at " in server.stderr.readline()
        time.sleep(delay_s)
        server.terminate()
        _, said = server.communicate(timeout=30)
        assert (server.returncode, said) == (0, "")


def test_text_that_is_none_is_refused_with_its_field(server: Running):
    """spec 14: also what JSON lets pass. Arguments are bytes to the kernel and pass."""
    server.nodes(1)
    job = {"entrypoint": ["true"], "environment": {}, "cwd": "/"}
    for body, field in (
        ({**job, "metadata": {"a": "\ud800"}}, "metadata.a"),
        ({**job, "metadata": {"\udcff": "a"}}, "metadata"),
        ({**job, "name": "a\udcff"}, "name"),
        ({**job, "entrypoint": ["a", "\ud800"]}, "entrypoint[1]"),
        ({**job, "metadata": {"a": "\0"}}, "metadata.a"),
    ):
        answer = server.http.post("/api/v1/jobs", content=json.dumps(body).encode())
        assert answer.status_code == 400, body
        assert answer.json()["error"]["details"]["path"] == field
        assert answer.json()["error"]["hint"]
    for raw in (
        b'{"entrypoint": ["true"], "metadata": {"a": "\xff"}}',
        b'{"entrypoint": ["true"], "metadata": {"a": "\xed\xa0\x80"}}',
        json.dumps({**job, "metadata": {"a": "\ud800"}}).encode("utf-16"),
        json.dumps({**job, "metadata": {"a": "\ud800"}}).encode("utf-16-le"),
    ):
        assert server.http.post("/api/v1/jobs", content=raw).status_code == 400, raw
    for path in ("/virtual_clusters", "/virtual_clusters/remove_nodes"):
        sent = json.dumps({"virtualClusterId": "a\ud800", "replicaSets": {}, "nodesToRemove": []}).encode()
        refused = server.http.post(path, content=sent)
        assert refused.status_code == 400
        assert set(refused.json()) == {"result", "msg", "data"}
    kept = {**job, "entrypoint": ["echo", "\udcff"], "env": {"A": "\udcfe"}, "cwd": "/d\udcfd"}
    made = server.http.post("/api/v1/jobs", content=json.dumps(kept).encode())
    assert made.status_code == 200, made.text
    assert made.json()["entrypoint"] == "echo '\\xff'"
    for query in ("filter=name%3D%ff", "filter=name%3D%ed%a0%80", "cluster=%ff", "cluster=%00"):
        assert server.http.get(f"/api/v1/jobs?{query}").status_code in (200, 400, 404), query
    for path in ("/api/v1/events/stream?job=%ff", "/api/v1/events?job=%ff", "/api/v1/jobs/%ed%a0%80"):
        assert server.http.get(path).status_code in (400, 404), path


def test_what_is_already_stored_never_breaks_an_answer(server: Running):
    """spec 14: a list answers whatever an older vctl has taken."""
    import sqlite3

    server.nodes(1)
    assert server.http.post(
        "/api/v1/jobs", json={"entrypoint": ["true"], "environment": {}, "cwd": "/"}
    ).is_success
    with closing(sqlite3.connect(server.home / "cluster.db", isolation_level=None)) as db:
        db.execute("UPDATE jobs SET metadata = ?", ('{"a": "x\\udcff", "b": "\\ud800"}',))
    for path in ("/api/v1/jobs", "/api/v1/jobs/last", "/api/v1/status", "/api/v1/events", "/metrics"):
        answer = server.http.get(path)
        assert answer.status_code == 200
        answer.content.decode()
    shown = server.http.get("/api/v1/jobs").json()["items"][0]["metadata"]
    assert shown == {"a": "x\\xff", "b": "\\ud800"}


def test_bytes_travel_to_a_server(server: Running):
    """spec 14: the command line works remotely with the same commands."""
    server.nodes(1)
    ran = subprocess.run(
        [sys.executable, "-m", "vctl", "job", "submit", "--num-cpus", "1", "--", "printf", b"%s", b"\xff"],
        env={**server.env, "VCTL_ADDRESS": server.address}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, b"\xff"), ran
