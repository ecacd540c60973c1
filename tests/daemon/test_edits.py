"""Edits of waiting jobs: each field reaches the job that starts, and what no submit may ask for changes nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life
from tests.daemon.test_arrays import OVER, array, running, settled, states
from tests.daemon.test_dependencies import after
from tests.daemon.test_holding import submit
from tests.specification import spec
from vctl.core.resources import SCALE
from vctl.engine import array_limits
from vctl.errors import BadSpec, Conflict, Infeasible, NotFound, VctlError
from vctl.ops import job_edits, logs, why

pytestmark = spec("8.limits", "8.arrays", "13.attached")

SHOW = ("sh", "-c", 'echo "$A $B $PWD $VCTL_NODE_ID"; env | grep -c "^VCTL_ARRAY"; sleep 60')


@pytest.fixture
def here(life: Life, monkeypatch: pytest.MonkeyPatch) -> Life:
    life.nodes(2, "t")
    monkeypatch.chdir(life.home)
    return life


def edit(life: Life, ref: str, **values: Any) -> Any:
    return job_edits.edit(life.store, ref, values)


def everything(life: Life) -> list[Any]:
    """All rows that an edit may change."""
    tables = ("jobs", "arrays", "dependencies", "commands", "requests", "environments", "events")
    return [[tuple(row) for row in life.store.rows(f"SELECT * FROM {name} ORDER BY 1")] for name in tables]


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "priority": ({"priority": 7}, {"priority": 7}),
    "name": ({"name": "urgent"}, {"name": "urgent"}),
    "no name": ({"name": ""}, {"name": None}),
    "time limit": ({"time_limit_s": 90.0}, {"time_limit_s": 90.0}),
    "no time limit": ({"time_limit_s": None}, {"time_limit_s": None}),
    "cpus": ({"num_cpus": 3}, {"resources": {"CPU": 3.0}}),
    "cluster": ({"cluster": "team"}, {"parent_cluster_id": "team"}),
    "metadata": ({"metadata": {"b": "2"}}, {"metadata": {"a": "1", "b": "2"}}),
}
"""The edit, and what the JSON form says after it; all else there is as before."""


@pytest.mark.parametrize(("values", "want"), FIELDS.values(), ids=list(FIELDS))
def test_each_field(here: Life, values: dict[str, Any], want: dict[str, Any]) -> None:
    here.logical("team", {"t": 1}, divisible=True)
    here.submit("a", hold=True, name="n", time_limit_s=60.0, metadata={"a": "1"})
    here.turn()
    before = here.job("a")
    assert {name: before.get(name) for name in want} != want
    form = edit(here, "a", **values)
    assert {name: form[name] for name in want} == want
    same = (
        before.keys()
        - want.keys()
        - {"queue_position", "wait_s", *(["cluster_id"] if "cluster" in values else [])}
    )
    assert {name: form[name] for name in same} == {name: before[name] for name in same}
    job_edits.release(here.store, "a")
    here.until(lambda: here.job("a")["status"] == "RUNNING")
    runs = here.job("a")
    assert {name: runs[name] for name in want} == want


def test_grace_and_retries(here: Life) -> None:
    submit(here, "a", "sh", "-c", "echo try; exit 3", hold=True)
    edit(here, "a", max_retries=2, retry_on=["ExitCode"], backoff_s=0, grace_s=8.0)
    assert here.store.value("SELECT grace_s FROM jobs") == 8.0
    edit(here, "a", max_retries=1)
    job_edits.release(here.store, "a")
    here.until(lambda: here.job("a")["status"] in OVER)
    assert logs.log_of(here.home, "a").read_text() == "try\n" * 2


def test_fewer_retries_count_from_the_next_failure_on(here: Life) -> None:
    """The attempt for which a job waits was decided at its failure; what should not come is stopped."""
    submit(here, "a", "sh", "-c", "echo try; exit 3", max_retries=5, retry_on=("ExitCode",), backoff_s=0.2)
    here.until(lambda: here.job("a")["state_reason"] == "Backoff")
    edit(here, "a", max_retries=0)
    here.until(lambda: here.job("a")["status"] in OVER)
    assert (here.job("a")["attempt"], here.job("a")["exit_code"]) == (2, 3)
    assert logs.log_of(here.home, "a").read_text() == "try\n" * 2


def test_the_started_run_is_the_edited_one(here: Life) -> None:
    here.logical("team", {"t": 1}, divisible=True)
    inside = here.home / "inside"
    inside.mkdir()
    submit(here, "a", *SHOW, hold=True, env={"A": "old", "B": "kept"})
    edit(here, "a", env={"A": "new"}, cwd=str(inside), cluster="team", num_cpus=2)
    job_edits.release(here.store, "a")
    log = logs.log_of(here.home, "a")
    here.until(lambda: log.exists() and log.read_text().count("\n") == 2)
    (node,) = here.members("team")
    assert log.read_text() == f"new kept {inside} {here.job('a')['node_ids'][0]}\n0\n"
    assert here.job("a")["node_ids"] == [node]
    assert here.store.value("SELECT count(*) FROM commands") == 1  # nothing of the old one is left


def test_begin_time_and_dependencies_come_and_go(here: Life) -> None:
    submit(here, "first", hold=True)
    submit(here, "a", begin_at=time.time() + 3600)
    edit(here, "a", begin_at=None, after=["ok:first"])
    here.turn()
    assert here.job("a")["state_reason"] == "Dependency"
    edit(here, "a", after=["any:first", "notok:first"])
    assert here.store.column("SELECT condition FROM dependencies ORDER BY 1") == ["any", "notok"]
    edit(here, "a", after=[])
    here.until(lambda: here.job("a")["status"] == "RUNNING")
    submit(here, "b", hold=True)
    edit(here, "b", begin_at=time.time() + 3600)
    job_edits.release(here.store, "b")
    here.turn()
    assert here.job("b")["state_reason"] == "BeginTime"
    edit(here, "b", begin_at=time.time() - 5)
    here.until(lambda: here.job("b")["status"] == "RUNNING")


def test_circles_are_refused(here: Life) -> None:
    submit(here, "a", hold=True)
    submit(here, "b", after=after("ok:a"))
    array(here, "s", "0-9", "true", after=after("ok:b"))
    for ref, awaited in (
        ("a", "a"),
        ("a", "b"),
        ("a", "s"),
        ("a", "s_7"),
        ("b", "s"),
        ("s", "s_9"),
        ("s_3", "s"),
    ):
        before = everything(here)
        with pytest.raises(BadSpec, match="would wait for itself"):
            edit(here, ref, after=[f"any:{awaited}"], priority=3)
        assert everything(here) == before, (ref, awaited)
    edit(here, "s_3", after=["ok:s_2"])
    here.turn()


REFUSED: dict[str, tuple[dict[str, Any], type[VctlError]]] = {
    "more than any node has": ({"num_cpus": 400}, Infeasible),
    "an unknown cluster": ({"cluster": "nowhere"}, NotFound),
    "an unknown job": ({"after": ["ok:nobody"]}, NotFound),
    "what can no longer happen": ({"after": ["ok:over"]}, Conflict),
    "part of an indivisible cluster": ({"cluster": "whole", "num_cpus": 1}, BadSpec),
    "nothing": ({}, BadSpec),
}


@pytest.mark.parametrize(("values", "error"), REFUSED.values(), ids=list(REFUSED))
def test_a_refused_edit_changes_nothing(here: Life, values: dict[str, Any], error: type[VctlError]) -> None:
    here.logical("whole", {"t": 1})
    submit(here, "over", "false")
    here.until(lambda: here.job("over")["status"] == "FAILED")
    submit(here, "a", hold=True)
    before = everything(here)
    with pytest.raises(error):
        edit(here, "a", **({"priority": 3, **values} if values else {}))
    assert everything(here) == before


def test_somebody_is_told_who_was_not_to_be(here: Life) -> None:
    submit(here, "a", hold=True)
    array(here, "s", "0-9", "true", hold=True)
    for ref in ("a", "s"):
        edit(here, ref, notify="./tell")
        assert set(here.store.column("SELECT notifies FROM jobs WHERE submission_id LIKE ?", f"{ref}%")) == {
            1
        }
        edit(here, ref, priority=2, env={"A": "1"})  # it goes on
        assert set(here.store.column("SELECT notifies FROM jobs WHERE submission_id LIKE ?", f"{ref}%")) == {
            1
        }
        edit(here, ref, notify=None)
        assert set(here.store.column("SELECT notifies FROM jobs WHERE submission_id LIKE ?", f"{ref}%")) == {
            0
        }


# ---- arrays ----


def test_of_an_array_what_waits_is_edited(here: Life) -> None:
    array(here, "s", "0-9", *SLEEP)
    here.until(lambda: states(here, "s") == {"RUNNING": 8, "PENDING": 2})
    edit(here, "s", num_cpus=2, priority=3, env={"A": "b"})
    assert {here.job(f"s_{n}")["priority"] for n in range(8)} == {0}
    assert {here.job(f"s_{n}")["priority"] for n in (8, 9)} == {3}
    edit(here, "s", time_limit_s=3600.0)  # that of all of them
    assert {here.job(f"s_{n}")["time_limit_s"] for n in range(10)} == {3600.0}
    with pytest.raises(Conflict, match="s_0 is RUNNING: num_cpus=1 cannot be set"):
        edit(here, "s_0", num_cpus=1)
    here.end("s_0")
    here.turn()
    assert here.job("s_8")["status"] == "PENDING"  # it asks for two CPUs now
    here.end("s_1")
    here.turn()
    assert running(here) >= {"s_2"}


@pytest.fixture(params=[3, array_limits.WINDOW], ids=lambda window: f"window-{window}")
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(array_limits, "WINDOW", request.param)
    return int(request.param)


@pytest.mark.usefixtures("window")
def test_members_without_rows_of_their_own(here: Life) -> None:
    array(here, "s", "0-29", "sh", "-c", "echo $A $VCTL_ARRAY_INDEX $VCTL_TIME_LIMIT", hold=True)
    edit(here, "s", env={"A": "all"}, priority=2, time_limit_s=60.0)
    edit(here, "s_20", env={"A": "one"}, priority=3)
    assert {n: here.job(f"s_{n}")["priority"] for n in (0, 19, 20, 21)} == {0: 2, 19: 2, 20: 3, 21: 2}
    here.start()
    here.turn()
    job_edits.release(here.store, "s")
    here.until(lambda: settled(here, "s"))
    for n in range(30):
        said = logs.log_of(here.home, f"s_{n}").read_text().split()
        assert said[:2] == ["one" if n == 20 else "all", str(n)]
    assert here.job("s")["array"]["states"] == {"SUCCEEDED": 30}


@pytest.mark.usefixtures("window")
def test_how_many_run_at_once(here: Life) -> None:
    def limit(at_once: int | None) -> None:
        job_edits.edit(here.store, "s", {}, max_running=at_once)
        here.turn()

    array(here, "s", "0-29%2", *SLEEP)
    here.until(lambda: len(running(here)) == 2)
    limit(4)
    here.until(lambda: len(running(here)) == 4)
    assert here.job("s")["array"]["at_once"] == 4
    limit(1)
    here.end("s_0")
    here.turn()
    assert len(running(here)) == 3  # what runs goes on
    for name in ("s_1", "s_2"):
        here.end(name)
    here.turn()
    assert running(here) == {"s_3"}
    here.die()
    here.turn()
    assert running(here) == {"s_3"}
    limit(None)
    here.until(lambda: len(running(here)) == 8)
    assert here.job("s")["array"]["indices"] == "0-29"
    limit(3)
    here.end("s_3")
    here.turn()
    assert len(running(here)) == 7
    assert here.events("array.edited") == ["s"] * 4


@pytest.mark.usefixtures("window")
def test_a_lowered_limit_binds_retries(here: Life) -> None:
    """A member that fails while more run than may waits for its next attempt until others have ended."""
    command = "[ $VCTL_ARRAY_INDEX-$VCTL_ATTEMPT != 0-1 ] || { sleep 0.5; exit 3; }; exec sleep 60"
    array(
        here, "s", "0-5%3", "sh", "-c", command, max_retries=1, retry_on=("ExitCode",), backoff_s=0,
    )  # fmt: skip
    here.until(lambda: len(running(here)) == 3)
    job_edits.edit(here.store, "s", {}, max_running=1)
    here.until(lambda: here.job("s_0")["status"] == "PENDING")
    here.turn()
    waits = here.job("s_0")
    assert (waits["status"], waits["state_reason"], running(here)) == (
        "PENDING",
        "ArrayLimit",
        {"s_1", "s_2"},
    )
    here.end("s_1")
    here.turn()
    assert running(here) == {"s_2"}
    here.end("s_2")
    here.until(lambda: running(here) == {"s_0"})
    assert here.job("s_0")["attempt"] == 2


@pytest.mark.usefixtures("window")
def test_an_array_without_a_limit_gets_one(here: Life) -> None:
    array(here, "s", "0-19", "true", hold=True)
    job_edits.edit(here.store, "s", {}, max_running=1)
    job_edits.release(here.store, "s")
    here.until(lambda: settled(here, "s"))
    assert states(here, "s") == {"SUCCEEDED": 20}


def test_only_an_array_has_a_limit(here: Life) -> None:
    array(here, "s", "0-3", "true", hold=True)
    submit(here, "a", hold=True)
    for name, fix in (("a", "leave out max_running"), ("s_1", "name the array: s")):
        with pytest.raises(BadSpec, match="is one job, not an array") as caught:
            job_edits.edit(here.store, name, {}, max_running=2)
        assert caught.value.fix == fix


def test_an_edited_job_is_judged_by_what_it_asks_now(here: Life) -> None:
    here.run("first", spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 4}}] * 2}]})
    submit(here, "a", entry={"CPU": 4 * SCALE})
    here.turn()
    here.end("first")
    here.until(lambda: here.job("a")["status"] == "RUNNING")
    submit(here, "b", hold=True)
    edit(here, "b", num_cpus=4, nodes=2)
    job_edits.release(here.store, "b")
    here.turn()
    assert here.job("b")["status"] == "PENDING"
    assert why.why(here.store, "b")["status"] == "PENDING"
    edit(here, "b", nodes=1)
    here.until(lambda: here.job("b")["status"] == "RUNNING")
