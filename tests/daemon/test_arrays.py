"""``--array``: one submit, many jobs; the limit on how many run at once; what is done to all of them together."""

from __future__ import annotations

import time

import pytest

from tests.daemon.conftest import SLEEP, Life
from tests.daemon.test_dependencies import after
from tests.daemon.test_holding import submit
from tests.specification import spec
from vctl.engine import array_limits
from vctl.errors import BadSpec, Conflict, NotFound
from vctl.ops import clusters, job_edits, logs, reruns
from vctl.ops import jobs as job_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.options import parse_array

pytestmark = spec("8.arrays")

OVER = ("SUCCEEDED", "FAILED", "STOPPED")


@pytest.fixture(params=[3, array_limits.WINDOW], autouse=True, ids=lambda window: f"window-{window}")
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many members have rows of their own before they start: nothing that is seen depends on it."""
    monkeypatch.setattr(array_limits, "WINDOW", request.param)
    return int(request.param)


@pytest.fixture
def here(life: Life) -> Life:
    life.nodes(2, "t")
    return life


def array(life: Life, name: str, indices: str, *words: str, **fields: object) -> str:
    return submit(life, name, *words, array=parse_array(indices), **fields)


def states(life: Life, name: str) -> dict[str, int]:
    found: dict[str, int] = life.job(name)["array"]["states"]
    return found


def settled(life: Life, name: str) -> bool:
    return life.job(name)["status"] in OVER


def running(life: Life) -> set[str]:
    return {row[0] for row in life.store.rows("SELECT submission_id FROM jobs WHERE status = 'RUNNING'")}


def reasons(life: Life, name: str) -> list[str | None]:
    found, _ = job_ops.list_jobs(life.store, all=True, filters=[f"array_id={name}"])
    return [job["state_reason"] for job in reversed(found)]


def test_members_are_jobs(here: Life) -> None:
    shell = "echo $VCTL_ARRAY_ID $VCTL_ARRAY_INDEX of $VCTL_ARRAY_COUNT in $VCTL_SUBMISSION_ID"
    array(here, "a", "3-7:2", "sh", "-c", shell)
    assert [job["submission_id"] for job in job_ops.list_jobs(here.store)[0]] == ["a_7", "a_5", "a_3"]
    here.until(lambda: settled(here, "a"))
    for index in (3, 5, 7):
        assert logs.log_of(here.home, f"a_{index}").read_text() == f"a {index} of 3 in a_{index}\n"
    whole = here.job("a")
    assert (whole["status"], whole["exit_code"]) == ("SUCCEEDED", 0)
    assert whole["array"] == {
        "indices": "3-7:2", "count": 3, "at_once": None, "states": {"SUCCEEDED": 3}, "done": 3,
        "failures": [],
    }  # fmt: skip
    assert here.events("array.submitted") == ["a"]
    assert here.events("job.submitted") == []


def test_a_list_of_indices(here: Life) -> None:
    array(here, "a", "7-9,1,5%2", "true")
    here.until(lambda: settled(here, "a"))
    assert [(job["array_index"], job["job_id"]) for job in reversed(job_ops.list_jobs(here.store, all=True)[0])] == [
        (1, 1), (5, 2), (7, 3), (8, 4), (9, 5),
    ]  # fmt: skip
    assert here.job("a")["array"]["indices"] == "1,5,7-9%2"
    again = reruns.rerun(here.store, "a")
    assert again["array"]["indices"] == "1,5,7-9%2"
    submit(here, "b_7", "true")
    array(here, "b", "2,6,8", "true")
    submit(here, "c_8", "true")
    with pytest.raises(Conflict, match="c_8 exists"):
        array(here, "c", "2,7-9", "true")


def test_a_list_whose_members_share_rows(here: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each range of the list has a row for those of its members that are not next."""
    monkeypatch.setattr(array_limits, "WINDOW", 4)
    indices = [1, 5, *range(7, 21, 2), *range(30, 40)]
    array(here, "a", "1,5,7-20:2,30-39", "true")
    rows = here.store.rows("SELECT array_index, members, step FROM jobs ORDER BY job_id")
    assert [tuple(row) for row in rows] == [
        (1, 1, 1),
        (5, 1, 1),
        (7, 1, 1),
        (9, 1, 1),
        (11, 5, 2),
        (30, 10, 1),
    ]
    assert (here.job("a_13")["array_index"], here.job("a_39")["job_id"]) == (13, 19)
    assert here.job("a")["array"]["count"] == 19
    with pytest.raises(NotFound):
        here.job("a_12")
    here.until(lambda: settled(here, "a"))
    found = {job["array_index"]: job["status"] for job in job_ops.list_jobs(here.store, all=True)[0]}
    assert found == dict.fromkeys(indices, "SUCCEEDED")


def test_the_first_bad_code_by_index(here: Life) -> None:
    array(
        here, "a", "0-3", "sh", "-c", "sleep 0.$((3 - VCTL_ARRAY_INDEX)); exit $((VCTL_ARRAY_INDEX % 3 * 10))"
    )
    here.until(lambda: settled(here, "a"))
    assert (here.job("a")["status"], here.job("a")["exit_code"]) == ("FAILED", 10)


def test_the_reason_of_an_array_fits_its_status(here: Life) -> None:
    """FAILED by the reason of a member that was stopped: no job is that."""
    array(here, "a", "0-1", "sh", "-c", "test $VCTL_ARRAY_INDEX = 0 && exec sleep 60; exit 4")
    here.until(lambda: states(here, "a").get("FAILED"))
    job_ops.stop(here.store, "a_0")
    here.until(lambda: settled(here, "a"))
    whole = here.job("a")
    assert states(here, "a") == {"FAILED": 1, "STOPPED": 1}
    assert (whole["status"], whole["state_reason"], whole["exit_code"]) == ("FAILED", "NonZeroExit", 143)


def test_the_running_limit(here: Life) -> None:
    array(here, "a", "0-9%3", *SLEEP)
    assert reasons(here, "a") == ["PendingEvaluation"] * 3 + ["ArrayLimit"] * 7
    here.until(lambda: states(here, "a") == {"PENDING": 7, "RUNNING": 3})
    for _ in range(3):
        here.turn()
    assert running(here) == {"a_0", "a_1", "a_2"}
    here.end("a_1")
    here.until(lambda: running(here) == {"a_0", "a_2", "a_3"})
    job_ops.stop(here.store, "a_4")  # one that waits leaves its place in the row to the next
    here.end("a_0")
    here.until(lambda: running(here) == {"a_2", "a_3", "a_5"})
    here.die()
    here.end("a_2")
    here.until(lambda: running(here) == {"a_3", "a_5", "a_6"})


def messages(life: Life, name: str) -> list[str]:
    """What each member says that waits for a place, by index; the list has the members of all arrays."""
    found, _ = job_ops.list_jobs(life.store, all=True)
    return [
        job["message"]
        for job in reversed(found)
        if job["array_id"] == name and job["state_reason"] == "ArrayLimit"
    ]


def test_the_limit_has_numbers(here: Life) -> None:
    """Spec 8: a pending job always has numbers; those of one array are not shown for another."""
    array(here, "a", "0-4%3", *SLEEP)
    array(here, "b", "0-2%1", *SLEEP)
    at_limit = "the running members of its array are at the limit: "
    assert messages(here, "a") == [f"{at_limit}0 run and 3 are next, at most 3 may run at a time"] * 2
    here.until(lambda: len(running(here)) == 4)
    assert messages(here, "a") == [f"{at_limit}3 run, at most 3 may run at a time"] * 2
    assert messages(here, "b") == [f"{at_limit}1 runs, at most 1 may run at a time"] * 2
    assert here.job("b_2")["message"] == f"{at_limit}1 runs, at most 1 may run at a time"
    job_edits.hold(here.store, "b_1")
    assert messages(here, "b") == [f"{at_limit}1 runs, at most 1 may run at a time"]
    for most, told in (
        (2, "the next round of the scheduler gives out the free places of its array: "),
        (1, at_limit),
    ):
        with here.store.transaction():
            here.store.db.execute("UPDATE arrays SET at_once = ? WHERE array_id = 'b'", (most,))
        assert messages(here, "b") == [f"{told}1 runs, at most {most} may run at a time"]


def test_a_limit_to_the_end(here: Life) -> None:
    array(here, "a", "0-19%2", "true")
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, len(running(here)))
        return settled(here, "a")

    here.until(done)
    assert states(here, "a") == {"SUCCEEDED": 20}
    assert most <= 2


def test_a_held_member_leaves_its_place(here: Life) -> None:
    array(here, "a", "0-4%1", *SLEEP)
    job_edits.hold(here.store, "a_0")
    here.until(lambda: running(here) == {"a_1"})
    job_edits.release(here.store, "a_0")
    here.turn()
    assert reasons(here, "a")[0] == "ArrayLimit"
    here.end("a_1")
    here.until(lambda: running(here) == {"a_0"})


def test_a_retry_keeps_its_place(here: Life) -> None:
    array(
        here,
        "a",
        "0-2%1",
        "sh",
        "-c",
        "exit $((VCTL_ATTEMPT < 3))",
        max_retries=2,
        retry_on=("ExitCode",),
        backoff_s=0,
    )
    here.until(lambda: settled(here, "a"))
    assert states(here, "a") == {"SUCCEEDED": 3}


def test_stop_hold_release_edit_and_delete_act_on_all(here: Life) -> None:
    array(here, "a", "0-19", *SLEEP, hold=True)
    assert reasons(here, "a") == ["Held"] * 20
    job_edits.edit(here.store, "a", {"priority": 4})
    job_edits.release(here.store, "a")
    here.until(lambda: states(here, "a") == {"PENDING": 12, "RUNNING": 8})
    job_edits.hold(here.store, "a")
    assert reasons(here, "a")[8:] == ["Held"] * 12
    with pytest.raises(Conflict, match="a_0 is RUNNING: priority="):
        job_edits.edit(here.store, "a", {"priority": 1})
    with pytest.raises(Conflict, match="a is RUNNING"):
        job_ops.delete(here.store, "a")
    stopping = job_ops.stop(here.store, "a", grace_s=0)
    assert stopping["array"]["states"] == {"RUNNING": 8, "STOPPED": 12}
    here.until(lambda: settled(here, "a"))
    assert (here.job("a")["status"], here.job("a")["exit_code"]) == ("STOPPED", 143)
    job_ops.delete(here.store, "a")
    for table in ("jobs", "arrays", "commands", "environments", "requests", "runs"):
        assert here.store.value(f"SELECT count(*) FROM {table}") == 0
    assert not list((here.home / "logs").iterdir())


def test_members_deleted_one_by_one(here: Life) -> None:
    array(here, "a", "0-1", "true")
    here.until(lambda: settled(here, "a"))
    job_ops.delete(here.store, "a_0")
    assert here.job("a")["array"]["states"] == {"SUCCEEDED": 1}
    job_ops.delete(here.store, "a_1")
    assert here.store.value("SELECT count(*) FROM arrays") == 0


def test_names(here: Life) -> None:
    array(here, "sweep", "0-1", "true")
    assert here.job("last")["array_id"] == "sweep"
    assert here.job("swe")["submission_id"] == "sweep"
    assert here.job("sweep_1")["array_index"] == 1
    with pytest.raises(Conflict):
        submit(here, "sweep")
    with pytest.raises(Conflict):
        submit(here, "sweep_1")
    submit(here, "b_7", "true")
    with pytest.raises(Conflict, match="b_7 exists"):
        array(here, "b", "5-9", "true")
    with pytest.raises(BadSpec):
        array(here, "x" * 127, "0-1", "true")


def test_dependencies_on_arrays_and_of_arrays(here: Life) -> None:
    array(here, "good", "0-2", "true", hold=True)
    array(here, "bad", "0-2", "sh", "-c", "exit $((VCTL_ARRAY_INDEX == 1))", hold=True)
    submit(here, "then", "true", after=after("ok:good", "notok:bad"))
    submit(here, "never", "true", after=after("ok:bad"))
    array(here, "next", "0-2%1", "true", after=after("any:bad"))
    array(here, "none", "0-2", "true", after=after("notok:good"))
    assert reasons(here, "next") == ["Dependency"] * 3
    for name in ("good", "bad"):
        job_edits.release(here.store, name)
    here.until(lambda: all(here.job(name)["status"] in OVER for name in ("then", "never", "next", "none")))
    assert here.job("then")["status"] == "SUCCEEDED"
    assert here.job("never")["state_reason"] == "DependencyFailed"
    assert states(here, "next") == {"SUCCEEDED": 3}
    assert here.job("none")["exit_code"] == 3


def test_arrays_in_the_list(here: Life) -> None:
    array(here, "a", "0-4", "true", hold=True)
    submit(here, "b", "true")
    found, total = job_ops.list_jobs(here.store, members=False)
    assert ([job["submission_id"] for job in found], total) == (["b", "a"], 2)
    assert job_ops.list_jobs(here.store)[1] == 6


def test_members_on_hold_do_not_keep_the_rest_from_starting(here: Life) -> None:
    array(here, "a", "0-8", "true")
    for index in range(3):
        job_edits.hold(here.store, f"a_{index}")
    here.until(lambda: states(here, "a") == {"PENDING": 3, "SUCCEEDED": 6})
    job_edits.release(here.store, "a")
    here.until(lambda: settled(here, "a"))
    assert here.job("a")["exit_code"] == 0


def test_a_job_waits_for_a_member_that_has_no_row_yet(here: Life) -> None:
    array(here, "a", "0-8", "true", hold=True)
    submit(here, "next", "true", after=after("ok:a_7"))
    assert here.job("next")["state_reason"] == "Dependency"
    job_edits.release(here.store, "a_7")
    here.until(lambda: here.job("next")["status"] == "SUCCEEDED")
    submit(here, "never", "true", after=after("ok:a_6"))
    job_ops.stop(here.store, "a")
    here.until(lambda: here.job("never")["state_reason"] == "DependencyFailed")
    assert states(here, "a") == {"STOPPED": 8, "SUCCEEDED": 1}


@spec("7.delete")
def test_a_cluster_is_deleted_with_all_members_that_wait_in_it(here: Life) -> None:
    clusters.create(here.store, "c", ClusterChange(replica_sets={"t": 1}, divisible=True))
    array(here, "a", "0-8", *SLEEP, cluster="c", hold=True)
    with pytest.raises(Conflict) as refused:
        clusters.delete(here.store, "c")
    assert refused.value.details["blockers"] == [f"job a_{index}" for index in range(8, -1, -1)]
    clusters.delete(here.store, "c", force=True)
    assert states(here, "a") == {"STOPPED": 9}


@spec("13.batch")
def test_a_million(here: Life, window: int) -> None:
    """Spec 13: neither a submit nor what waits is dearer for the members that have no turn yet."""
    began = time.process_time()
    array(here, "a", "0-999999%4", "true", hold=True)
    took = time.process_time() - began
    assert states(here, "a") == {"PENDING": 1_000_000}
    assert here.store.value("SELECT count(*) FROM jobs") == window + 1
    assert here.store.value("SELECT count(*) FROM commands") == 1
    assert here.store.value("SELECT count(*) FROM events WHERE object IN ('job', 'array')") == 1
    here.turn()
    began = time.process_time()
    job_ops.list_jobs(here.store, members=False)
    listed = time.process_time() - began
    job_ops.stop(here.store, "a")
    here.turn()
    assert settled(here, "a")
    assert states(here, "a") == {"STOPPED": 1_000_000}
    assert took < 1, took  # CPU; 0.1 s on an idle machine
    assert listed < 1, listed
