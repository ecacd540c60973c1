"""Rows of preemptions and of past use that nobody can read: they are set aside, and the scheduler goes on."""

from __future__ import annotations

import pytest

from tests.contents import HOMES, spoil
from tests.daemon.test_preempting import Contest, full, there
from tests.specification import spec
from tests.world import amounts
from vctl.ops import clusters, tasks
from vctl.ops.health import doctor
from vctl.ops.replay import replay
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.task_request import TaskRequest

pytestmark = spec("12.odd-rows")

__all__ = ["there"]

SPOILS = {
    "pieces": ("nominations", "UPDATE nominations SET pieces = 'x'"),
    "a piece": ("nominations", "UPDATE nominations SET pieces = '[[1]]'"),
    "the awaited": ("nominations", "UPDATE nominations SET awaited = '5'"),
    "an end": ("preemptions", "UPDATE preemptions SET ends_at = 'x'"),
    "an amount": ("usage", "UPDATE usage SET amount = 'x'"),
    "no amount": ("usage", "UPDATE usage SET amount = 9e999"),
    "a moment": ("usage", "UPDATE usage SET at = 'x'"),
    "a lag": ("lags", "UPDATE lags SET lag = 'x'"),
    "a moment of a lag": ("lags", "UPDATE lags SET at = 'x'"),
}


@pytest.mark.parametrize(("table", "sql"), SPOILS.values(), ids=list(SPOILS))
def test_a_row_that_cannot_be_read_is_set_aside(there: Contest, table: str, sql: str) -> None:
    clusters.update(there.store, "primary", ClusterChange(queue={"order": "fair", "half_life_s": 100}))
    full(there)
    assert there.scheduler is not None
    assert there.scheduler.state is not None
    there.scheduler.memory.write(there.scheduler.state)
    there.die()
    assert there.store.db.execute(sql).rowcount > 0
    assert any(
        one.startswith(f"a row of {table} (") and "cannot be read" in one
        for one in doctor(there.store)["findings"]
    ), "doctor says so before a scheduler has set it aside"
    there.folding.begin()
    there.turn()
    aside = there.store.rows("SELECT source, content FROM set_aside")
    assert {row[0] for row in aside} == {table}
    there.processes.obey()
    for _ in range(3):
        there.later(40)
        there.processes.obey()
    assert there.state("w") == ("RUNNING", None)
    assert there.is_at_rest()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("amounts", "[]"),
        ("amounts", '{"CPU": "x"}'),
        ("amounts", "5"),
        ("instances", "[1]"),
        ("cores", '["x"]'),
    ],
)
def test_doctor_names_a_row_with_values_of_another_kind(there: Contest, column: str, value: str) -> None:
    """JSON that can be read is not yet what the column holds: doctor failed on it, and named one row."""
    full(there)
    there.die()
    there.store.db.execute(f"UPDATE runs SET {column} = ?", (value,))
    assert any(one.startswith(("a row of runs (", "runs ")) for one in doctor(there.store)["findings"])


def test_a_run_of_a_build_before_the_first_release_is_set_aside(there: Contest) -> None:
    """Its records have another form, so nothing can tell whether it runs; its job is lost, and others start."""
    there.submit("a", 2, max_retries=0)
    there.submit("b", 2)
    there.turn()
    run_id = there.run_of("a")
    there.die()
    del there.processes.runs[run_id]  # only that build could see it
    there.store.db.execute("UPDATE runs SET supervisor = NULL WHERE run_id = ?", (run_id,))
    text = "it has no supervisor: a build before the first release wrote it"
    assert f"a row of runs ({run_id}) cannot be read: ValueError: {text}" in doctor(there.store)["findings"]
    there.folding.begin()
    there.submit("c", 2)
    there.turn()
    aside = there.store.rows("SELECT source, row_key, problem FROM set_aside")
    assert [tuple(row) for row in aside] == [("runs", run_id, f"ValueError: {text}")]
    assert (there.state("a")[0], there.state("b")[0], there.state("c")[0]) == ("FAILED", "RUNNING", "RUNNING")
    assert there.job("a")["message"] == "its process is not known any more"


def test_who_is_awaited_and_not_ended_is_awaited_no_longer(there: Contest) -> None:
    """Without its preemption the victim goes on for ever: the room is looked for anew."""
    full(there)
    there.die()
    there.processes.told_to_stop.clear()
    there.store.db.execute("DELETE FROM preemptions")
    there.store.db.execute("UPDATE runs SET stop_reason = NULL")
    there.folding.begin()
    there.turn()
    there.later(40)
    there.processes.obey()
    there.turn()
    assert there.state("w") == ("RUNNING", None)


@spec("12.replay")
def test_nobody_waits_for_a_victim_that_was_lost(there: Contest) -> None:
    """Its process is not known any more when the next scheduler starts: with the job its preemption is over."""
    full(there)
    there.die()
    del there.processes.runs[there.run_of("b")]
    there.processes.told_to_stop.clear()
    there.store.db.execute("DELETE FROM runs WHERE job_id = 2")
    there.folding.begin()
    there.turn()
    assert there.state("b") == ("FAILED", "ProcessLost")
    assert there.store.rows("SELECT * FROM preemptions") == []
    assert there.state("w") == ("RUNNING", None)
    assert there.is_at_rest()


RUNNING = {
    "its outcome": "UPDATE jobs SET outcome = 'x' WHERE submission_id = 'a'",
    "its time limit": "UPDATE jobs SET time_limit_s = 'x' WHERE submission_id = 'a'",
    "no time limit": "UPDATE jobs SET time_limit_s = 9e999 WHERE submission_id = 'a'",
}


@pytest.mark.parametrize("sql", RUNNING.values(), ids=list(RUNNING))
def test_a_running_job_that_cannot_be_read_is_set_aside_and_its_resources_return(
    there: Contest, sql: str
) -> None:
    for name in "ab":
        there.submit(name, 2)
    there.turn()
    there.submit("w", 2)
    there.turn()
    there.die()
    there.store.db.execute(sql)
    there.folding.begin()
    there.start()
    there.processes.obey()  # nobody knows whose process it is
    there.turn()
    assert [row[0] for row in there.store.rows("SELECT row_key FROM set_aside")] == ["1"]
    assert (there.state("b"), there.state("w")) == (("RUNNING", None), ("RUNNING", None))


OF_OTHER_TYPES = (
    ("nodes", "amounts", "-1"),
    ("nodes", "labels", "[]"),
    ("clusters", "job_id", "x"),
    ("vnodes", "amounts", "null"),
    ("vnodes", "cluster_id", b"x"),
    ("runs", "amounts", "[]"),
    ("tasks", "request", '"a"'),
    ("tasks", "request", "null"),
    ("jobs", "parent_cluster_id", "x"),
    ("jobs", "entry", "-1"),
    ("jobs", "begin_at", "x"),
    ("nominations", "priority", "x"),
    ("nodes", "node_id", None),
    ("clusters", "cluster_id", None),
    ("vnodes", "vnode_id", None),
)


@pytest.mark.parametrize(("table", "column", "value"), OF_OTHER_TYPES)
def test_a_value_of_another_type_is_set_aside_although_it_is_json(
    there: Contest, table: str, column: str, value: object
) -> None:
    clusters.update(there.store, "primary", ClusterChange(queue={"order": "fair", "half_life_s": 100}))
    full(there)
    tasks.run(
        there.store, TaskRequest(argv=("x",), job="a", request=amounts(0.5)), environment={"PATH": "/usr/bin"}
    )
    there.turn()
    assert there.scheduler is not None
    assert there.scheduler.state is not None
    there.scheduler.memory.write(there.scheduler.state)
    there.die()
    which = "max" if column in ("entry", "begin_at") else "min"  # the last job waits
    key = "run_id" if table == "runs" else "rowid"
    row = f"{key} = (SELECT {which}({key}) FROM {table})"
    if column in HOMES and table == "jobs":
        spoil(there.store.db, column, value, row)
    else:
        there.store.db.execute(f"UPDATE {table} SET {column} = ? WHERE {row}", (value,))
    there.start()
    assert table in {row[0] for row in there.store.rows("SELECT source FROM set_aside")}
    assert sum(map(len, (step["actions"] for step in replay(there.store, dry_run=True)["steps"]))) == 0
