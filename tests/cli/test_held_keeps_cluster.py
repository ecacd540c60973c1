"""`vc delete --drain` says which jobs keep the cluster although they may not start yet (spec 7)."""

from typing import Any

from tests.cli.conftest import Cli
from tests.specification import spec

pytestmark = spec("7.delete")


def submit(nodes: Cli, name: str, *options: str) -> None:
    assert nodes("run", "-d", "-c", "team-a", "--submission-id", name, *options, "--", "true").code == 0


def test_a_drain_names_the_jobs_on_hold(nodes: Cli) -> None:
    assert nodes("vc", "create", "team-a", "--divisible", "--replica-sets", '{"4c8g": 1}').code == 0
    for name in ("kept", "waits"):
        hold = ["--hold"] if name == "kept" else []
        assert nodes("run", "-d", "-c", "team-a", "--submission-id", name, *hold, "--", "true").code == 0
    ran = nodes("vc delete team-a --drain --no-wait")
    assert ran.code == 0
    assert "on hold, so team-a waits for them: kept; vctl job release kept, or vctl job stop kept" in ran.err
    assert "waits;" not in ran.err
    assert nodes("job stop kept").code == 0
    assert "on hold" not in nodes("vc delete team-a --drain --no-wait").err


def test_a_drain_names_those_that_wait_for_a_time_or_for_other_jobs_and_says_for_what(nodes: Cli) -> None:
    assert nodes("vc", "create", "team-a", "--divisible", "--replica-sets", '{"4c8g": 1}').code == 0
    submit(nodes, "kept", "--hold")
    submit(nodes, "waits")
    submit(nodes, "after", "--after", "ok:kept")
    submit(nodes, "later", "--begin", "2050-01-02T03:04:05Z")
    submit(nodes, "many", "--begin", "2050-01-02T03:04:05Z", "--array", "0-3999")
    ran = nodes("vc delete team-a --drain --no-wait")
    at = "begins at 2050-01-02T03:04:05.000000Z"
    held = "on hold, so team-a waits for them: kept; vctl job release kept, or vctl job stop kept"
    others = f"after (waits for ok:kept), later ({at}), many (4000 members) ({at})"
    later = f"not due yet, so team-a waits for them: {others}; vctl job stop after"
    assert ran.err.splitlines() == [held, later]
    reported: Any = nodes("vc delete team-a --drain --no-wait -o json").json
    assert [tuple(one.values()) for one in reported["kept_by"]] == [
        ("kept", 1, "Held", "held until `vctl job release`"),
        ("after", 1, "Dependency", "waits for ok:kept"),
        ("later", 1, "BeginTime", at),
        ("many", 4000, "BeginTime", at),
    ]
