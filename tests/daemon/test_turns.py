"""What a turn costs: nothing is written, and no further turn taken, for what a scheduler did itself (spec 18)."""

from __future__ import annotations

import select
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World, amounts
from vctl.daemon.trouble import REST_S
from vctl.ops import nodes
from vctl.ops.submitting import submit
from vctl.spec.job_request import JobRequest
from vctl.store import observed

pytestmark = spec("18.budgets")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One node of one CPU, on a hand-cranked clock."""
    with World(tmp_path / "state") as made:
        nodes.add(made.store, resources=amounts(1), node_id="n", template="t")
        yield made


def ask(world: World, job: str) -> None:
    request = JobRequest(argv=("x",), submission_id=job, cwd="/", entry=amounts(1))
    submit(world.store, request, environment={})


def reported(world: World) -> dict[str, str]:
    return {row["shape"]: row["reason"] for row in observed.waits(world.store)}


def test_a_scheduler_is_not_woken_by_what_it_wrote(world: World) -> None:
    scheduler = world.start()
    scheduler.turn()
    ask(world, "a")
    assert select.select([scheduler.watch.fileno()], [], [], 0)[0]
    before = world.store.value("SELECT count(*) FROM events")
    scheduler.turn()
    assert world.store.value("SELECT count(*) FROM events") > before, "a has started"
    assert not select.select([scheduler.watch.fileno()], [], [], 0)[0]
    assert scheduler.sleep_s() > 0


def test_what_others_write_during_a_turn_leads_to_another_one(world: World) -> None:
    scheduler = world.start()
    scheduler.turn()
    heartbeat = scheduler.heartbeat

    def submit_meanwhile() -> None:
        scheduler.heartbeat = heartbeat  # type: ignore[method-assign]
        heartbeat()
        ask(world, "b")

    scheduler.heartbeat = submit_meanwhile  # type: ignore[method-assign]
    ask(world, "a")
    scheduler.turn()
    assert scheduler.sleep_s() == 0
    scheduler.turn()
    assert reported(world), "b was looked at"


def test_a_job_that_starts_at_once_costs_one_transaction(world: World) -> None:
    """It never waited, so no reason is to be removed."""
    scheduler = world.start()
    scheduler.turn()
    ask(world, "a")
    statements: list[str] = []
    scheduler.store.db.set_trace_callback(statements.append)
    scheduler.turn()
    scheduler.turn()
    assert [one for one in statements if one.startswith("BEGIN IMMEDIATE")] == ["BEGIN IMMEDIATE"]
    assert not [one for one in statements if " waits" in one.partition("WHERE")[0]]


@pytest.mark.parametrize(("others_write", "reads"), [(False, 1), (True, 2)])
def test_a_turn_that_writes_observes_the_tables_once(world: World, others_write: bool, reads: int) -> None:
    """They are read before the transaction, and inside of it only when others have written meanwhile."""
    scheduler = world.start()
    ask(world, "a")
    world.turn()
    (run_id,) = world.processes.running()
    world.processes.end(run_id, 0)
    scheduler.observer.processes_at = 0
    observe = scheduler.observer.tables
    observed_runs: list[bool] = []

    def tables(state: Any, at: Any) -> Any:
        observed_runs.append(run_id in state.runs)
        found = observe(state, at)
        if others_write and len(observed_runs) == 1:
            ask(world, "b")
        return found

    scheduler.observer.tables = tables  # type: ignore[method-assign]
    scheduler.turn()
    assert observed_runs.count(True) == reads, "while the end of the run was not written"


def test_reasons_outlive_a_scheduler_and_go_with_their_job(world: World) -> None:
    """The next scheduler writes none of them anew, and removes those of which no job is left."""
    ask(world, "a")
    ask(world, "b")
    world.turn()
    since: Any = world.store.value("SELECT since FROM waits")
    with world.store.transaction():
        observed.set_wait(world.store, "kPrimaryClusterID", "left by a crash", "HeadOfLine", "b is ahead")
        observed.set_wait(world.store, "gone", "left by a crash", "HeadOfLine", "b is ahead")
    world.die()
    world.turn()
    world.turn()
    assert list(reported(world).values()) == ["InsufficientResources"]
    assert world.store.value("SELECT since FROM waits") == since


def test_tables_that_stay_locked_do_not_end_a_scheduler(world: World) -> None:
    """It tries again (spec 12): who holds the lock may be suspended, or the machine slow."""
    scheduler = world.start()
    scheduler.turn()
    ask(world, "a")
    scheduler.store.lock_timeout_s = 0.05
    scheduler.store.db.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(world.home / "cluster.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        scheduler.turn()
        assert scheduler.sleep_s() == REST_S
    assert world.processes.running() == []
    world.sleep(REST_S)
    scheduler.turn()
    assert len(world.processes.running()) == 1
