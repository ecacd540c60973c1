"""Hold, begin time, edits and warnings as commands."""

from __future__ import annotations

from tests.integration.conftest import Place, eventually
from tests.specification import spec

pytestmark = spec("8.limits")


def test_hold_release_edit(one: Place) -> None:
    one.submit("--submission-id", "j", "--hold", "--", "true")
    assert one.job("j")["state_reason"] == "Held"
    assert one.fork("job", "edit", "j").code == 2
    edited = one.read("job", "edit", "j", "--priority", "7", "--name", "x", "--time-limit", "1h")
    assert (edited["priority"], edited["name"]) == (7, "x")
    assert "j is released" in one.ok("job", "release", "j")
    assert "j is held" in one.ok("job", "hold", "j")
    one.ok("job", "release", "j")
    assert one.run("job", "wait", "j").code == 0
    for words in (("hold",), ("release",), ("edit", "--time-limit", "none")):
        assert one.fork("job", words[0], "j", *words[1:]).code == 5
    assert one.fork("job", "hold", "nobody").code == 4


def test_begin(one: Place) -> None:
    one.submit("--submission-id", "later", "--begin", "1h", "--", "true")
    assert one.job("later")["state_reason"] == "BeginTime"
    ran = one.run("job", "submit", "--begin", "now+0.3s", "--", "echo", "here")
    assert (ran.code, ran.out) == (0, "here\n")
    assert 0.3 < ran.seconds < 10


def test_a_warning_and_then_the_end(one: Place) -> None:
    shell = "trap 'echo warned' USR1; while :; do sleep 0.05; done"
    ran = one.run(
        "job", "submit", "--time-limit", "1.5", "--signal", "USR1@1s", "--grace", "0", "--", "sh", "-c", shell
    )
    assert (ran.code, ran.out) == (124, "warned\n")


def test_a_limit_given_to_a_running_job(one: Place) -> None:
    one.daemon()
    one.sleeper("--submission-id", "j")
    one.running_process("j")
    refused = one.fork("job", "edit", "j", "--priority", "3")
    assert refused.code == 5
    assert "--time-limit" in refused.err
    one.ok("job", "edit", "j", "--time-limit", "0.1")
    eventually(lambda: one.job("j")["status"] == "FAILED", "the end")
    assert one.job("j")["exit_code"] == 124
