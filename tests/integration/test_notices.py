"""``--notify`` for real: commands and a web server on loopback are told, beside a scheduler that may be killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Place, eventually, is_gone
from tests.specification import spec
from vctl.runtime import processes

pytestmark = spec("13.notices")


@pytest.fixture
def told(one: Place) -> Path:
    """A file with what the hook ``./hook`` was told."""
    hook = one.folder / "hook"
    hook.write_text(
        '#!/bin/sh\necho "$VCTL_SUBMISSION_ID $VCTL_STATUS [$VCTL_EXIT_CODE] $MINE" >> told\n'
        "[ $# -eq 0 ] || echo $$ >> pids\n"
        '[ $# -eq 0 ] || while [ ! -e "$1" ]; do sleep 0.05; done\n'
    )
    hook.chmod(0o700)
    return one.folder / "told"


def lines(path: Path, count: int) -> list[str]:
    def enough() -> list[str] | None:
        found = path.read_text().splitlines() if path.exists() else []
        return found if len(found) >= count else None

    return list(eventually(enough, f"{count} notices in {path}"))


def senders(place: Place) -> list[int]:
    """The processes that send the notices of a place."""
    return [
        one.pid
        for one in processes.all_processes()
        if (words := processes.command(one.pid))
        and b"vctl.daemon.notifier" in words
        and os.fsencode(place.home) in words
    ]


@pytest.fixture
def server() -> Iterator[tuple[str, list[Any]]]:
    """A web server on loopback, and the documents that were sent to it; it refuses the first one."""
    bodies: list[Any] = []
    refused: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not refused:
                refused.append(503)
            else:
                bodies.append(body)
            self.send_response(204 if bodies else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/hook?secret=words", bodies
        listening.shutdown()


def test_a_command_is_told_with_the_environment_and_in_the_directory_of_the_job(
    one: Place, told: Path
) -> None:
    ran = one.run(
        "run", "--submission-id", "a", "--notify", "./hook", "--", "sh", "-c", "exit 3", MINE="mine"
    )
    assert ran.code == 3
    assert lines(told, 2) == ["a RUNNING [] mine", "a FAILED [3] mine"]
    eventually(lambda: senders(one) == [], "the process that sends to end", 10)


def test_the_setting_holds_for_every_job_and_a_job_can_refuse_it(one: Place, told: Path) -> None:
    (one.folder / ".vctl.toml").write_text('notify = "./hook"\n')
    assert one.run("run", "--submission-id", "a", "--", "true").code == 0
    assert one.run("run", "--submission-id", "quiet", "--notify", "none", "--", "true").code == 0
    script = "import vctl; vctl.connect().submit(['true'], submission_id='p').wait()"
    import subprocess
    import sys

    subprocess.run(
        [sys.executable, "-c", script], env=one.environment({}), cwd=one.folder, check=True, timeout=60
    )
    assert lines(told, 4) == ["a RUNNING [] ", "a SUCCEEDED [0] ", "p RUNNING [] ", "p SUCCEEDED [0] "]


def test_an_array_is_told_of_once(one: Place, told: Path) -> None:
    words = ("--array", "0-9%2", "--notify", "./hook", "--", "sh", "-c", "exit $((VCTL_ARRAY_INDEX == 4))")
    assert one.run("run", "--submission-id", "a", *words).code == 1
    assert lines(told, 2) == ["a RUNNING [] ", "a FAILED [1] "]
    assert one.run("run", "--", "true").code == 0
    assert lines(told, 2) == ["a RUNNING [] ", "a FAILED [1] "]


def test_a_url_gets_the_job_and_a_refusal_is_tried_again(one: Place, server: tuple[str, list[Any]]) -> None:
    url, bodies = server
    assert one.run("run", "--submission-id", "a", "--notify", url, "--", "sh", "-c", "exit 3").code == 3
    eventually(lambda: len(bodies) == 2, "two documents")
    assert [(job["submission_id"], job["status"], job["exit_code"]) for job in bodies] == [
        ("a", "RUNNING", None),
        ("a", "FAILED", 3),
    ]
    assert bodies[1] == one.read("job", "status", "a")
    eventually(lambda: not one.read("list", "events", "--filter", "kind=notice.failed")["items"])
    words = [processes.command(one_.pid) for one_ in processes.all_processes()]
    assert not any(b"secret=words" in word for line in words for word in line)


def test_a_failure_is_an_event_and_never_the_jobs(one: Place) -> None:
    ran = one.run("run", "--submission-id", "a", "--notify", "./nonesuch", "--", "true")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("Warning: nobody is told: there is no command ./nonesuch; ")

    def failed() -> list[Any]:
        return [e for e in one.read("list", "events")["items"] if e["kind"] == "notice.failed"]

    eventually(lambda: len(failed()) == 2, "two events")
    assert [event["object_id"] for event in failed()] == ["a", "a"]
    assert [event["data"] for event in failed()] == [
        {"moment": moment, "problem": "./nonesuch: command not found"} for moment in ("start", "end")
    ]
    job = one.job("a")
    assert (job["status"], job["exit_code"], job["message"]) == ("SUCCEEDED", 0, None)
    one.assert_sound()


def test_a_scheduler_that_is_killed_between_an_end_and_its_notice(one: Place, told: Path) -> None:
    """The next one sends it. A notice that was being sent when all processes were killed is sent again."""
    daemon = one.daemon()
    words = ("--no-wait", "--submission-id", "a", "--notify", "./hook go", "--", "true")
    assert one.run("run", *words).code == 0
    one.reach("a", "SUCCEEDED")
    assert lines(told, 1) == ["a RUNNING [] "]  # it hangs, and the end is told after it
    one.kill(daemon)
    for pid in (*senders(one), *map(int, lines(one.folder / "pids", 1))):
        os.kill(pid, signal.SIGKILL)
    (one.folder / "go").touch()
    time.sleep(0.3)
    assert lines(told, 1) == ["a RUNNING [] "]
    one.daemon()
    assert lines(told, 3) == ["a RUNNING [] ", "a RUNNING [] ", "a SUCCEEDED [0] "]
    eventually(lambda: senders(one) == [], "the process that sends to end", 10)
    assert len(lines(told, 3)) == 3


def test_what_is_being_sent_outlives_the_scheduler_and_what_is_not_waits_for_the_next(
    one: Place, told: Path
) -> None:
    daemon = one.daemon()
    assert one.run("run", "--submission-id", "a", "--notify", "./hook go", "--", "true").code == 0
    assert lines(told, 1) == ["a RUNNING [] "]
    one.kill(daemon)
    (one.folder / "go").touch()
    eventually(lambda: senders(one) == [], "the process that sends to end", 10)
    assert lines(told, 1) == ["a RUNNING [] "]
    one.daemon()
    assert lines(told, 2) == ["a RUNNING [] ", "a SUCCEEDED [0] "]


def test_hooks_that_hang_hold_nothing_up(one: Place, told: Path) -> None:
    one.daemon()
    for n in range(6):
        words = ("--submission-id", f"h{n}", "--notify", "./hook go", "--", "true")
        assert one.run("run", *words).code == 0
    began = time.monotonic()
    assert one.run("run", "--submission-id", "a", "--", "true").code == 0
    assert time.monotonic() - began < 5
    assert len(lines(told, 4)) == 4  # at most four are called at once
    (sender,) = senders(one)
    (one.folder / "go").touch()
    assert len(lines(told, 12)) == 12
    eventually(lambda: is_gone(sender), "the process that sends to end", 10)
