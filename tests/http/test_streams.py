"""Answers that take their time: events with resume, logs, waiting; and the figures for Prometheus."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from importlib.util import find_spec

import httpx
import pytest

from tests.http.conftest import Running, Start
from tests.specification import spec
from vctl.http.app import SPOKEN
from vctl.ops import background

pytestmark = spec("14.streams", "14.api")


def submit(server: Running, *words: str, **more: object) -> str:
    answer = server.http.post("/api/v1/jobs", json={"entrypoint": list(words), **more})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["submission_id"])


def events(response: httpx.Response) -> Iterator[dict[str, str]]:
    """Server-sent events as a browser would read them."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if not line:
            if "data" in fields:
                yield fields
            fields = {}
            continue
        name, _, value = line.partition(":")
        fields[name] = value.strip()


def read(server: Running, count: int, **request: object) -> list[dict[str, str]]:
    with server.http.stream("GET", "/api/v1/events/stream", **request) as response:  # type: ignore[arg-type]
        assert response.headers["content-type"].startswith("text/event-stream")
        found = []
        for event in events(response):
            found.append(event)
            if len(found) == count:
                return found
    raise AssertionError(found)


def test_events_resume_where_a_reader_left_off(server: Running):
    server.nodes(6)
    first = read(server, 3, params={"since": 0})
    assert [event["id"] for event in first] == ["1", "2", "3"]
    assert first[0]["event"] == "node.added"
    assert json.loads(first[0]["data"])["object_id"] == "t-00"

    rest = read(server, 3, params={"since": 0}, headers={"Last-Event-ID": first[-1]["id"]})
    assert [event["id"] for event in rest] == ["4", "5", "6"]


def test_a_reader_that_names_no_event_is_told_so(server: Running):
    """It would get only new events, and miss those before without a word."""
    for given in ("nope", "-1", "1" * 19):
        answer = server.http.get("/api/v1/events/stream", headers={"Last-Event-ID": given})
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            400,
            "Last-Event-ID: it must be the number of an event",
        )


def test_a_stream_of_an_unknown_job_names_the_parameter(server: Running):
    answer = server.http.get("/api/v1/events/stream", params={"job": "nope"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "job: there is no job 'nope'")


def test_events_arrive_as_they_happen_and_can_be_filtered(server: Running):
    server.nodes(1)
    other, job = submit(server, "true", hold=True), submit(server, "true", hold=True)
    seen: list[dict[str, str]] = []
    reader = threading.Thread(target=lambda: seen.extend(read(server, 1, params={"job": job})))
    reader.start()
    time.sleep(0.5)
    for name in (other, job):
        server.http.post(f"/api/v1/jobs/{name}/stop")
    reader.join(10)
    assert [(event["event"], json.loads(event["data"])["object_id"]) for event in seen] == [
        ("job.ended", job)
    ]


def test_events_of_a_cluster_are_those_of_what_is_below_it_too(server: Running):
    """The stream and the list choose by the same rule: children, their jobs, and what was removed meanwhile."""
    server.nodes(4)
    assert server.vctl("vc", "create", "team", "--divisible", "--replica-sets", '{"t": 2}').returncode == 0
    assert server.vctl("vc", "create", "other", "--divisible", "--replica-sets", '{"t": 1}').returncode == 0
    assert (
        server.vctl(
            "vc", "create", "squad", "--divisible", "--parent", "team", "--replica-sets", '{"t": 1}'
        ).returncode
        == 0
    )
    for cluster in ("squad", "other"):
        submit(server, "true", hold=True, cluster=cluster, submission_id=f"in-{cluster}")
    listed = server.http.get("/api/v1/events", params={"cluster": "team", "since": 0}).json()["items"]
    streamed = read(server, len(listed), params={"cluster": "team", "since": 0})
    assert [int(event["id"]) for event in streamed] == [event["seq"] for event in listed]
    assert "in-squad" in {json.loads(event["data"])["object_id"] for event in streamed}

    seen: list[dict[str, str]] = []
    after = server.rows("SELECT max(seq) FROM events")[0][0]
    reader = threading.Thread(
        target=lambda: seen.extend(read(server, 2, params={"cluster": "team", "since": after}))
    )
    reader.start()
    server.http.post("/api/v1/jobs/in-other/stop")
    server.http.post("/api/v1/jobs/in-squad/stop")
    server.vctl("vc", "delete", "squad")
    reader.join(30)
    assert [json.loads(event["data"])["object_id"] for event in seen] == ["in-squad", "squad"]
    unknown = server.http.get("/api/v1/events/stream", params={"cluster": "nosuch"})
    assert unknown.status_code == 404


def test_a_log_is_followed_to_its_end(server: Running):
    server.nodes(1)
    script = "for i in 1 2 3; do echo line $i; sleep 0.2; done; printf '\\377\\000end'; exit 3"
    job = submit(server, "sh", "-c", script)
    with server.http.stream("GET", f"/api/v1/jobs/{job}/logs", params={"follow": "true"}) as response:
        times, content = [], b""
        for block in response.iter_raw():
            times.append(time.monotonic())
            content += block
    whole = b"line 1\nline 2\nline 3\n\xff\x00end"
    assert content == whole
    assert len(times) >= 3  # not all at the end
    done = server.http.get(f"/api/v1/jobs/{job}/wait").json()
    assert (done["over"], done["job"]["exit_code"], done["job"]["status"]) == (True, 3, "FAILED")
    rest = server.http.get(f"/api/v1/jobs/{job}/logs", params={"follow": "true", "offset": 7})
    assert rest.content == whole[7:]
    assert server.http.get(f"/api/v1/jobs/{job}/logs", params={"tail": 1}).content == b"\xff\x00end"
    both = server.http.get(f"/api/v1/jobs/{job}/logs", params={"tail": 1, "follow": "true"})
    assert (both.status_code, both.json()["error"]["message"]) == (
        400,
        "tail: it cannot be combined with follow",
    )


def test_waiting_ends_in_time(server: Running):
    server.nodes(1)
    job = submit(server, "sleep", "60")
    started = time.monotonic()
    answer = server.http.get(f"/api/v1/jobs/{job}/wait", params={"timeout_s": 0.5}).json()
    assert answer["over"] is False
    assert 0.4 < time.monotonic() - started < 5
    server.http.post(f"/api/v1/jobs/{job}/stop", json={"grace_s": 0})
    assert server.http.get(f"/api/v1/jobs/{job}/wait").json()["job"]["status"] == "STOPPED"


def test_a_stream_that_cannot_go_on_breaks_off_with_a_line_in_the_log(server: Running):
    """The client sees that it is not complete; there is no traceback, as the fixture checks."""
    server.nodes(1)
    job = submit(server, "sh", "-c", "echo up; exec sleep 1000")
    while not server.http.get(f"/api/v1/jobs/{job}/logs").content:
        time.sleep(0.05)
    with closing(sqlite3.connect(server.home / "cluster.db")) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        for path in (f"/api/v1/jobs/{job}/logs?follow=true", "/api/v1/events/stream"):
            with server.http.stream("GET", path) as response:
                parts = response.iter_bytes()
                assert next(parts) in (b"up\n", b"retry: 1000\n\n")
                db.execute("PRAGMA user_version = 9999")
                with pytest.raises(httpx.RemoteProtocolError):
                    list(parts)
            db.execute(f"PRAGMA user_version = {version}")
            assert server.process.stderr is not None
            said = next(line for line in server.process.stderr if line.startswith("vctl serve: "))
            assert f"the answer to {path.partition('?')[0]} broke off: " in said
            assert "written by a newer vctl" in said
    server.http.post(f"/api/v1/jobs/{job}/stop", json={"grace_s": 0})


def test_a_stream_does_not_keep_the_server(start: Start):
    server = start()
    with server.http.stream("GET", "/api/v1/events/stream", params={"since": 0}) as response:
        server.process.terminate()
        assert server.process.wait(10) == 0
        response.close()


SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+]+\Z')


def test_metrics(start: Start):
    server = start(VCTL_AUTOSTART="0")  # no scheduler may start the job before it is counted
    server.nodes(3)
    server.http.post("/virtual_clusters", json={"virtualClusterId": "a", "replicaSets": {"t": 1}})
    submit(server, "true")
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in lines), lines
    assert {
        'vctl_nodes{state="ALIVE"} 3.0',
        'vctl_resources_total{resource="CPU"} 12.0',
        'vctl_resources_reserved{resource="CPU"} 4.0',
        'vctl_resources_used{resource="CPU"} 0.0',
        'vctl_resources_demanded{resource="CPU"} 1.0',
        'vctl_jobs{status="PENDING"} 1.0',
        'vctl_jobs_pending{reason="PendingEvaluation"} 1.0',
        'vctl_clusters{kind="logical"} 1.0',
    } <= set(lines)


def test_ray_finds_its_version(server: Running):
    said = server.http.get("/api/version").json()
    assert {"version", "ray_version", "ray_commit", "session_name"} <= set(said)
    assert said["ray_version"] == (metadata.version("ray") if find_spec("ray") is not None else SPOKEN)


def test_a_job_has_the_settings_of_the_server_and_the_server_starts_a_scheduler(server: Running):
    """spec 13 and 14: `VCTL_LOCAL_NODE=0` of the server holds for commands in its jobs; waiting starts a scheduler."""
    server.nodes(1)
    for more in ({}, {"environment": {"PATH": "/usr/bin:/bin", "MINE": "1"}}):
        name = submit(server, "env", **more)
        over = server.http.get(f"/api/v1/jobs/{name}/wait", params={"timeout_s": 30}).json()
        assert over["job"]["status"] == "SUCCEEDED", over
        reported = server.http.get(f"/api/v1/jobs/{name}/logs").text.splitlines()
        assert "VCTL_LOCAL_NODE=0" in reported
        assert ("MINE=1" in reported) == bool(more)
    assert server.http.get("/api/v1/scheduler").json()["kind"] == "background"


def test_where_nobody_may_be_started_waiting_is_answered_with_the_fix(start: Start):
    """spec 13: `autostart` off"""
    server = start(VCTL_AUTOSTART="0")
    server.nodes(1)
    name = submit(server, "true")
    answer = server.http.get(f"/api/v1/jobs/{name}/wait", params={"timeout_s": 30})
    assert answer.status_code == 503
    assert "vctl daemon" in answer.text
    remote = server.vctl("job", "logs", "--follow", name)
    assert (remote.returncode, "vctl daemon" in remote.stderr) == (6, True), remote


def test_a_request_that_waits_ends_with_its_client(server: Running):
    """It started schedulers for its timeout of a minute, though nobody waited any more."""
    server.nodes(1)
    job = submit(server, "true", hold=True)
    cluster = server.http.post("/api/v1/clusters", json={"cluster_id": "c", "replica_sets": {"t": 1}})
    assert cluster.status_code == 200

    def starts() -> bool:
        return background.status(server.home)["running"]

    for path in (f"/api/v1/jobs/{job}/wait", "/api/v1/clusters/c/wait"):
        background.stop(server.home)
        assert not starts()
        with pytest.raises(httpx.ReadTimeout):
            server.http.get(path, params={"timeout_s": 60}, timeout=2.0)
        assert starts()  # for the one who waits
    time.sleep(1.5)
    background.stop(server.home)
    time.sleep(2.0)
    assert not starts(), "one of the two still waits"
