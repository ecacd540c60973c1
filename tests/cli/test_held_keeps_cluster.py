"""`vc delete --drain` says which jobs on hold keep the cluster (spec 7)."""

from tests.cli.conftest import Cli
from tests.specification import spec

pytestmark = spec("7.delete")


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
