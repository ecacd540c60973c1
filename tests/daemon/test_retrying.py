"""Retries by cause: another attempt in a new cluster, after a backoff, under the same submission id."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import SLEEP, Life
from tests.daemon.test_holding import status, submit
from tests.specification import spec
from vctl.ops import job_edits, logs
from vctl.ops import jobs as job_ops
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.options import parse_array

pytestmark = spec("8.retries")

TWO = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}] * 2, "scheduling_policy": "STRICT_SPREAD"}]}
COUNTING = ("sh", "-c", 'echo "attempt $VCTL_ATTEMPT in $VCTL_CLUSTER_ID"; exit $((3 - VCTL_ATTEMPT))')


@pytest.fixture
def here(life: Life) -> Life:
    life.nodes(3, "t")
    return life


def test_a_job_is_tried_again_until_it_succeeds(here: Life) -> None:
    submit(here, "a", *COUNTING, max_retries=5, retry_on=("ExitCode",), backoff_s=0)
    here.until(lambda: here.job("a")["status"] == "SUCCEEDED")
    assert here.job("a")["attempt"] == 3
    lines = logs.log_of(here.home, "a").read_text().splitlines()
    assert lines == [f"attempt {n} in kPrimaryClusterID##a" for n in (1, 2, 3)]
    assert here.events("job.requeued") == ["a", "a"]
    assert here.events("job.ended") == ["a"]


def test_the_last_attempt_decides(here: Life) -> None:
    submit(here, "a", "sh", "-c", "exit 7", max_retries=1, retry_on=("ExitCode",), backoff_s=0)
    here.until(lambda: here.job("a")["status"] == "FAILED")
    job = here.job("a")
    assert (job["attempt"], job["exit_code"], job["state_reason"]) == (2, 7, "NonZeroExit")


def test_the_wait_doubles_and_says_so(here: Life) -> None:
    submit(here, "a", "false", max_retries=2, retry_on=("ExitCode",), backoff_s=100)
    for attempt, wait_s in ((1, 100), (2, 200)):
        here.until(lambda: here.job("a")["state_reason"] == "Backoff")
        job = here.job("a")
        assert (job["status"], job["attempt"], job["started_at"]) == ("PENDING", attempt, None)
        assert job["message"].startswith(f"attempt {attempt} of 3: exited with code 1; next try at 2")
        assert here.store.value("SELECT count(*) FROM clusters") == 0
        here.skew_ns += (wait_s - 5) * 10**9
        here.turn()
        assert status(here, "a") == ("PENDING", "Backoff")
        here.skew_ns += 10 * 10**9
        here.turn()
    here.until(lambda: here.job("a")["status"] == "FAILED")


CAUSES = {
    "launch failed, listed": (("/no/such",), ("LaunchFailed",), 2),
    "launch failed, not listed": (("/no/such",), ("ExitCode",), 1),
    "exit code, not listed": (("false",), ("NodeFailed", "LaunchFailed"), 1),
    "a signal counts as an exit code": (("sh", "-c", "kill -9 $$"), ("ExitCode",), 2),
}


@pytest.mark.parametrize(("argv", "retry_on", "attempts"), CAUSES.values(), ids=list(CAUSES))
def test_only_for_the_causes_asked_for(
    here: Life, argv: tuple[str, ...], retry_on: tuple[str, ...], attempts: int
) -> None:
    submit(here, "a", *argv, max_retries=1, retry_on=retry_on, backoff_s=0)
    here.until(lambda: here.job("a")["status"] == "FAILED")
    assert here.job("a")["attempt"] == attempts


def test_a_stop_is_final(here: Life) -> None:
    submit(here, "a", *SLEEP, max_retries=3, retry_on=("ExitCode", "NodeFailed"), backoff_s=0)
    here.until(lambda: here.job("a")["status"] == "RUNNING")
    here.end("a")
    assert (here.job("a")["status"], here.job("a")["attempt"]) == ("STOPPED", 1)


def test_a_time_limit_is_final(here: Life) -> None:
    submit(here, "a", *SLEEP, max_retries=3, retry_on=("ExitCode",), time_limit_s=0.1)
    here.until(lambda: here.job("a")["status"] == "FAILED")
    assert (here.job("a")["state_reason"], here.job("a")["attempt"]) == ("TimeLimit", 1)


def test_a_dead_node_is_the_default_cause(here: Life) -> None:
    submit(here, "a", *SLEEP, max_retries=1, backoff_s=0, entry=None, spec=parse_cluster_spec(TWO))
    submit(here, "b", *SLEEP, entry=None, spec=parse_cluster_spec(TWO))
    here.until(lambda: here.job("b")["status"] == "RUNNING" and here.job("a")["status"] == "RUNNING")
    victim = next(n for n in here.job("a")["node_ids"] if n in here.job("b")["node_ids"])
    here.kill(victim)
    here.until(lambda: here.job("b")["status"] == "FAILED" and here.job("a")["attempt"] == 2, maintain=True)
    assert here.job("b")["state_reason"] == "NodeFailed"
    here.until(lambda: here.job("a")["status"] == "RUNNING")
    assert victim not in here.job("a")["node_ids"]


def test_a_daemon_killed_in_the_backoff(here: Life) -> None:
    submit(here, "a", *COUNTING, max_retries=5, retry_on=("ExitCode",), backoff_s=100)
    here.until(lambda: here.job("a")["state_reason"] == "Backoff")
    here.die()
    here.turn()
    assert status(here, "a") == ("PENDING", "Backoff")
    here.skew_ns += 101 * 10**9
    here.until(lambda: here.job("a")["attempt"] == 2)


def test_a_stop_in_the_backoff(here: Life) -> None:
    submit(here, "a", "false", max_retries=5, retry_on=("ExitCode",), backoff_s=100)
    here.until(lambda: here.job("a")["state_reason"] == "Backoff")
    held = here.job("a")["node_ids"]
    here.end("a")
    assert status(here, "a") == ("STOPPED", "StoppedByUser")
    assert held == here.job("a")["node_ids"] == ["t-00"]
    assert (here.job("a")["exit_code"], here.job("a")["message"]) == (143, "stopped before its next attempt")


def test_an_array_is_stopped_while_a_member_waits_for_its_next_attempt(here: Life) -> None:
    """A member that has run has the exit code of a stopped job; one that never ran has none."""
    members = parse_array("0-1%1")
    submit(here, "a", "false", array=members, max_retries=5, retry_on=("ExitCode",), backoff_s=100)
    job_edits.hold(here.store, "a_1")
    here.until(lambda: here.job("a_0")["state_reason"] == "Backoff")
    job_ops.stop(here.store, "a")
    ended = [(one["status"], one["exit_code"], one["message"]) for one in map(here.job, ("a_0", "a_1"))]
    assert ended == [
        ("STOPPED", 143, "stopped before its next attempt"),
        ("STOPPED", None, "stopped before it started"),
    ]
    here.turn()
    assert here.job("a")["array"]["states"] == {"STOPPED": 2}
