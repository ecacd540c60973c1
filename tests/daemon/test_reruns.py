"""``job rerun --failed``: what did not succeed runs again in place, with other options, and everything follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life, cpu
from tests.daemon.test_arrays import OVER, array, running, settled, states
from tests.daemon.test_dependencies import after
from tests.daemon.test_holding import submit
from tests.specification import spec
from vctl.core.caller import Caller
from vctl.core.resources import SCALE
from vctl.engine import array_limits
from vctl.errors import BadSpec, Conflict, Infeasible, NotPermitted, VctlError
from vctl.ops import job_edits, logs, reruns, why
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.spec.job_request import JobRequest
from vctl.spec.overrides import Overrides
from vctl.spec.params import Reading, declared

pytestmark = spec("8.arrays", "13.attached")

FLAKY = ("sh", "-c", "echo try $VCTL_ATTEMPT; test -e good || exit $((VCTL_ARRAY_INDEX % 2 * 3))")


@pytest.fixture
def here(life: Life, monkeypatch: pytest.MonkeyPatch) -> Life:
    life.nodes(2, "t")
    monkeypatch.chdir(life.home)
    return life


def changes(**values: Any) -> Overrides[JobRequest]:
    return Overrides(declared(JobRequest), Reading(frozenset(), values), values)


def again(life: Life, ref: str, **values: Any) -> Mapping[str, Any]:
    return reruns.rerun(life.store, ref, changes(**values), failed=True)


def test_the_failed_members_run_again_under_their_indices(here: Life) -> None:
    array(here, "a", "0-5", *FLAKY, time_limit_s=60)
    here.until(lambda: settled(here, "a"))
    assert states(here, "a") == {"SUCCEEDED": 3, "FAILED": 3}
    numbers = {name: here.job(name)["job_id"] for name in ("a_0", "a_1", "a_5")}
    (here.home / "good").touch()
    form = again(here, "a", time_limit_s=120, priority=4, env={"MORE": "1"}, name="second")
    assert form["array"]["states"] == {"PENDING": 3, "SUCCEEDED": 3}
    assert form["status"] == "RUNNING"
    waiting = here.job("a_1")
    assert {key: waiting[key] for key in ("status", "exit_code", "ended_at", "started_at", "state_reason")} == {
        "status": "PENDING", "exit_code": None, "ended_at": None, "started_at": None,
        "state_reason": "PendingEvaluation",
    }  # fmt: skip
    here.until(lambda: settled(here, "a"))
    assert states(here, "a") == {"SUCCEEDED": 6}
    assert here.job("a")["exit_code"] == 0
    assert {name: here.job(name)["job_id"] for name in numbers} == numbers
    for name, attempt, limit in (("a_0", 1, 60), ("a_1", 2, 120)):
        job = here.job(name)
        assert (job["attempt"], job["time_limit_s"], job["name"]) == (
            attempt,
            limit,
            "second" if attempt == 2 else None,
        )
    assert logs.log_of(here.home, "a_1").read_text() == "try 1\ntry 2\n"
    assert here.events("array.rerun") == ["a"]
    assert here.store.value("SELECT count(*) FROM commands") == 2
    with pytest.raises(Conflict, match="no member of a has failed: 6 SUCCEEDED"):
        again(here, "a")


def test_a_rerun_has_its_retries_anew(here: Life) -> None:
    words = ("sh", "-c", "echo x >> tries; exit 3")
    submit(here, "a", *words, max_retries=2, retry_on=("ExitCode",), backoff_s=0)
    here.until(lambda: here.job("a")["status"] in OVER)
    assert here.job("a")["attempt"] == 3
    again(here, "a")
    here.until(lambda: here.job("a")["status"] in OVER)
    assert here.job("a")["attempt"] == 6
    assert (here.home / "tries").read_text() == "x\n" * 6
    assert here.events("job.rerun") == ["a"]


def test_the_running_limit_holds_for_a_rerun(here: Life) -> None:
    array(here, "a", "0-4%2", "false")
    here.until(lambda: settled(here, "a"))
    again(here, "a", entrypoint=SLEEP)
    here.until(lambda: len(running(here)) == 2)
    here.turn()
    assert running(here) == {"a_0", "a_1"}
    here.die()
    here.end("a_0")
    here.until(lambda: running(here) == {"a_1", "a_2"})


def test_stopped_members_and_single_ones(here: Life) -> None:
    array(here, "a", "0-2", *SLEEP, hold=True)
    job_ops.stop(here.store, "a_1")
    job_edits.release(here.store, "a")
    here.until(lambda: running(here) == {"a_0", "a_2"})
    with pytest.raises(Conflict, match="job a_0 is RUNNING: nothing of it has failed"):
        again(here, "a_0")
    again(here, "a_1")
    here.until(lambda: running(here) == {"a_0", "a_1", "a_2"})
    assert here.job("a_1")["attempt"] == 1


def test_overrides_keep_the_rest_of_the_request(here: Life) -> None:
    """Only the memory is to grow: the CPUs of the request stay."""
    node_ops.add(here.store, resources={**cpu(4), "memory": 2**30 * SCALE})
    values = {"num_cpus": 2, "memory": "1MiB"}
    request = declared(JobRequest).read(Reading(frozenset(), values), {"argv": ("false",), **values})
    submit(here, "a", "false", spec=request.spec, metadata={"lr": "1"}, env={"A": "1", "B": "1"})
    here.until(lambda: here.job("a")["status"] in OVER)
    form = again(here, "a", memory="2MiB", metadata={"try": "2"}, env={"B": "2"})
    assert form["resources"] == {"CPU": 2, "memory": 2 << 20}
    assert form["metadata"] == {"lr": "1", "try": "2"}
    here.until(lambda: here.job("a")["status"] in OVER)
    new = reruns.rerun(here.store, "a", changes(num_cpus=1, env={"C": "3"}))
    assert new["submission_id"] != "a"
    assert new["resources"] == {"CPU": 1, "memory": 2 << 20}
    env = here.store.value("SELECT env FROM commands JOIN environments USING (environment_id) WHERE command_id ="
                           " (SELECT command_id FROM jobs WHERE job_id = ?)", new["job_id"])  # fmt: skip
    assert '"A":"1","B":"2","C":"3"' in env.replace(" ", "")


REFUSED: dict[str, tuple[dict[str, Any], type[VctlError], str]] = {
    "the indices": ({"array": "0-3"}, BadSpec, "array: it cannot be changed with failed"),
    "the id": ({"submission_id": "b"}, BadSpec, "submission_id: it cannot be changed"),
    "itself": ({"after": ["any:a"]}, BadSpec, "after: a would wait for itself"),
    "one that waits for it": ({"after": ["any:behind"]}, BadSpec, "after: a would wait for itself"),
    "too much": ({"num_cpus": 99}, Infeasible, "99"),
    "no time": ({"time_limit_s": 0}, BadSpec, "time_limit: the job would end at once"),
    "two ways to say it": ({"num_cpus": 1, "virtual_cluster": {}}, BadSpec, "num_cpus: cannot be combined"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_rerun_refuses(here: Life, case: str) -> None:
    values, error, said = REFUSED[case]
    submit(here, "a", "false")
    here.until(lambda: here.job("a")["status"] in OVER)
    submit(here, "first", "true", hold=True)
    submit(here, "behind", "true", after=after("any:first"))
    if case == "one that waits for it":
        with here.store.transaction():  # what waits for a job that was over, and runs again
            here.store.db.execute("UPDATE dependencies SET awaited = 'a'")
    before = here.store.value("SELECT max(seq) FROM events")
    with pytest.raises(error, match=said):
        again(here, "a", **values)
    assert here.store.value("SELECT max(seq) FROM events") == before
    assert here.job("a")["status"] == "FAILED"


def test_a_job_that_waits_for_the_array_waits_on(here: Life) -> None:
    array(
        here,
        "a",
        "0-1",
        "sh",
        "-c",
        "test -e good && exit; test $VCTL_ARRAY_INDEX = 0 && exec sleep 1000; exit 1",
    )
    submit(here, "then", "true", after=after("any:a"))
    here.until(lambda: states(here, "a").get("FAILED") == 1)
    (here.home / "good").touch()
    again(here, "a")
    here.until(lambda: states(here, "a") == {"RUNNING": 1, "SUCCEEDED": 1})
    assert here.job("then")["state_reason"] == "Dependency"
    here.end("a_0")
    here.until(lambda: here.job("then")["status"] == "SUCCEEDED")


def test_an_array_whose_first_member_was_deleted(here: Life) -> None:
    """All that belongs to an array was read at its first member."""
    array(here, "a", "0-2", "false", time_limit_s=60)
    here.until(lambda: settled(here, "a"))
    job_ops.delete(here.store, "a_0")
    about = here.job("a")["array"]
    assert (about["count"], about["done"], about["failures"][0]["indices"]) == (2, 2, "1-2")
    new = reruns.rerun(here.store, "a")
    assert (new["array"]["indices"], new["time_limit_s"]) == ("0-2", 60)
    again(here, "a")
    assert states(here, "a") == {"PENDING": 2}
    assert why.why(here.store, "a")["submission_id"] == "a_1"
    here.until(lambda: settled(here, "a"))
    submit(here, "other", *SLEEP)
    here.until(lambda: here.job("other")["status"] == "RUNNING")
    here.store.caller = Caller(here.job("other")["job_id"], "other")
    with pytest.raises(NotPermitted):
        job_ops.stop(here.store, "a")


def test_members_that_share_a_row_run_again(here: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were stopped before they had rows of their own, and get them when their turn comes."""
    monkeypatch.setattr(array_limits, "WINDOW", 3)
    array(here, "a", "0-18:2,30-39%2", "true", hold=True)
    job_ops.stop(here.store, "a")
    failures = here.job("a")["array"]["failures"]
    assert [(one["count"], one["indices"]) for one in failures] == [(20, "0,2,4,6,8,10,12,14,16,18,30-39")]
    assert {job["array_index"] for job in job_ops.list_jobs(here.store, all=True, named=["a_12-33"])[0]} == {
        12, 14, 16, 18, 30, 31, 32, 33,
    }  # fmt: skip
    assert (
        len(job_ops.list_jobs(here.store, all=True, named=["a_3?"], filters=["status=STOPPED"], limit=4)[0])
        == 4
    )
    again(here, "a_14")
    assert states(here, "a") == {"PENDING": 1, "STOPPED": 19}
    again(here, "a", priority=3)
    here.until(lambda: settled(here, "a"))
    assert states(here, "a") == {"SUCCEEDED": 20}
