"""Arrays, dependencies, retries and gangs as commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from tests.integration.conftest import SPREAD_2X1, Place
from tests.specification import spec

pytestmark = spec("8.arrays", "8.after", "8.retries", "8.per-node")


def test_an_array_without_a_daemon(one: Place) -> None:
    """Progress on stderr, no log, the first bad code by index."""
    shell = "echo never shown; exit $((VCTL_ARRAY_INDEX == 2 ? 9 : 0))"
    ran = one.run("job", "submit", "--submission-id", "a", "--array", "0-5%2", "--", "sh", "-c", shell)
    assert (ran.code, ran.out) == (9, "")
    assert ran.err.splitlines()[-4:] == [
        "a: 6 of 6 done, 1 failed",
        "a: 1 of 6 did not succeed",
        "  FAILED: 1 NonZeroExit: exited with code 9: 2",
        "Run them again with: vctl job rerun a --failed",
    ]
    assert one.ok("job", "logs", "a_2") == "never shown\n"
    assert one.run("job", "wait", "a").code == 9
    table = one.ok("job", "list", "-a")
    assert table.count("\n") == 2
    assert "6/6" in table
    assert len(one.ok("job", "list", "-a", "--members").splitlines()) == 7
    assert [job["array_index"] for job in one.read("job", "list")["items"]] == [5, 4, 3, 2, 1, 0]
    assert one.read("job", "status", "a")["array"]["states"] == {"FAILED": 1, "SUCCEEDED": 5}
    one.ok("job", "delete", "a")
    assert one.read("job", "list")["items"] == []
    one.assert_sound()


def test_stop_an_array(one: Place) -> None:
    one.daemon()
    assert one.submit("--submission-id", "a", "--array", "0-99", "--", "sleep", "1000") == "a"
    one.running_process("a_0")
    assert one.run("job", "stop", "a").code == 0
    assert one.read("job", "status", "a")["status"] == "STOPPED"
    one.assert_sound()


def test_dependencies(one: Place) -> None:
    one.submit("--submission-id", "bad", "--", "false")
    one.submit("--submission-id", "then", "--after", "notok:bad", "--", "true")
    never = one.run("job", "submit", "--after", "ok:bad", "--after", "any:then", "--", "true")
    assert never.code == 3
    assert "DependencyFailed" in never.err
    assert one.run("job", "wait", "then").code == 0
    assert one.fork("job", "submit", "--no-wait", "--after", "ok:nobody", "--", "true").code == 4


def test_retries(one: Place) -> None:
    shell = "echo try $VCTL_ATTEMPT; exit $((3 - VCTL_ATTEMPT))"
    words = ("--max-retries", "4", "--retry-on", "ExitCode", "--backoff", "0.1s")
    ran = one.run("job", "submit", *words, "--", "sh", "-c", shell)
    assert (ran.code, ran.out) == (0, "try 1\ntry 2\ntry 3\n")
    assert one.fork("job", "submit", "--retry-on", "Rain", "--", "true").code == 2


def test_a_gang(two: Place) -> None:
    said = 'echo "$RANK/$WORLD_SIZE on $MASTER_ADDR:$MASTER_PORT"; >"said.$RANK"'
    # the member that fails ends the other one: it waits until that has said its line
    shell = f"{said}; until [ -e said.0 ]; do sleep 0.01; done; exit $((RANK * 4))"
    ran = two.run("job", "submit", "--virtual-cluster", SPREAD_2X1, "--per-node", "--", "sh", "-c", shell)
    assert ran.code == 4
    ranks, ports = zip(*(line.split(":") for line in sorted(ran.out.splitlines())), strict=True)
    assert ranks[0] == "0/2 on 127.0.0.1"
    assert len(set(ports)) == 1
    two.assert_sound()


def test_json_of_a_waiting_submit(one: Place) -> None:
    ran = one.run("job", "submit", "-o", "json", "--array", "1-2", "--", "true")
    assert ran.code == 0
    assert json.loads(ran.stdout)["array"]["count"] == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", range(10))
def test_a_long_array_is_stopped_while_its_members_run(one: Place, moment: int) -> None:
    """At every moment some of its members start, end, or are handed to a supervisor (finding 35)."""
    with ExitStack() as beside:
        for _ in range(2 * (os.cpu_count() or 1)):  # a busy machine
            busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            beside.callback(busy.wait)
            beside.callback(busy.kill)
        submit = ("--submission-id", "a", "--num-cpus", "0.5", "--array", "0-99999")
        assert one.submit(*submit, "--", "true") == "a"
        time.sleep(0.3 * moment)
        began = time.monotonic()
        ran = one.run("job", "stop", "a")
        assert (ran.code, ran.err) == (0, ""), ran
        assert one.run("job", "wait", "a").code in (0, 143)
        assert time.monotonic() - began < 60
    states = one.read("job", "status", "a")["array"]["states"]
    assert set(states) <= {"STOPPED", "SUCCEEDED"}
    assert sum(states.values()) == 100_000
