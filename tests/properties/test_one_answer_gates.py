"""May a waiting job start at all? The tables and the program answer alike, whatever the row (``core/gates.py``)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contents import plain
from tests.specification import spec
from vctl.core import gates
from vctl.ops import reasons
from vctl.store import gates as sql
from vctl.store import job_views, queues, repair, rows
from vctl.store import jobs as table
from vctl.store.store import Store

pytestmark = spec("8.reasons", "8.after", "8.limits", "8.arrays")

NOW = 1_900_000_000 * 10**9
JOBS = 400
TIMES = (None, 1, NOW // 2, NOW - 1, NOW, NOW + 1, 2 * NOW, 4 * NOW)


@pytest.fixture(params=range(3))
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Waiting jobs with every kind of gate, also those that no program has written."""
    chance = random.Random(request.param)
    with Store.open(tmp_path / "state") as store:
        store.clock = lambda: NOW
        with store.transaction():
            command = plain(store.db)
            for number in range(1, JOBS + 1):
                store.db.execute(
                    "INSERT INTO jobs (job_id, submission_id, parent_cluster_id, status, priority, command_id, user,"
                    " metadata, grace_s, submitted_at, state_reason, message, held, waits_for, begin_at, closed,"
                    " attempt)"
                    " VALUES (?, ?, ?, 'PENDING', ?, ?, 'u', '{}', 3, 1, ?, 'said', ?, ?, ?, ?, ?)",
                    (
                        number * 37, f"j{number}", chance.choice(("kPrimaryClusterID", "a")), chance.randrange(-1, 2),
                        command, chance.choice((None, "Preempted", "Backoff", "NodeFailed")), chance.random() < 0.2,
                        chance.choice((0, 0, 0, 1, 3)), chance.choice(TIMES), chance.random() < 0.2,
                        chance.choice((0, 0, 1)),
                    ),
                )  # fmt: skip
        yield store


def test_gates_in_sql_and_in_python_agree(store: Store) -> None:
    found = store.rows(
        f"SELECT *, {sql.opens()} AS opens, {sql.in_queue()} AS queued, {sql.gate(str(NOW))} AS gate FROM jobs"
    )
    seen = Counter[object]()
    for row in found:
        held, waits_for, begin_at, closed = (
            row[name] for name in ("held", "waits_for", "begin_at", "closed")
        )
        opens, token = gates.opens_at(held, waits_for, begin_at), row["gate"]
        assert row["opens"] == opens
        assert bool(row["queued"]) == gates.is_in_queue(held, waits_for, closed)
        assert token == gates.gate_of(
            held, waits_for, begin_at, closed, row["attempt"], row["state_reason"], NOW
        ), dict(row)  # fmt: skip
        assert reasons.gate(store, row)[0] == token
        shown = job_views.get(store, row["job_id"])
        assert shown is not None
        job = rows.pending(shown)
        assert job.is_gated == (not row["queued"])
        assert job.may_start(NOW) == (opens <= NOW)
        if token in (gates.HELD, gates.DEPENDENCY, gates.BEGIN_TIME):
            assert not job.may_start(NOW)
        if token is None:
            assert job.may_start(NOW)
            assert not job.is_gated
        seen[token] += 1
    assert set(seen) == {
        None, gates.HELD, gates.DEPENDENCY, gates.PREEMPTED, gates.BEGIN_TIME, gates.BACKOFF, gates.ARRAY_LIMIT
    }  # fmt: skip


def test_queues_and_views_ask_the_same(store: Store) -> None:
    """Readers of the tables, whose clock is SQLite's, the queue of a scheduler, positions, and the kept counts."""
    store.clock = lambda: 3 * NOW  # both clocks are after all times but one
    every = {row["job_id"]: row for row in store.rows("SELECT * FROM jobs")}
    queued = {job.job_id for job in queues.queued(store)}
    assert queued == {
        number
        for number, row in every.items()
        if gates.is_in_queue(row["held"], row["waits_for"], row["closed"])
    }
    for row in store.rows("SELECT job_id, state_reason FROM v_jobs"):
        of = every[row["job_id"]]
        if of["begin_at"] is None or of["begin_at"] < NOW // 2 + 1 or of["begin_at"] == 4 * NOW:
            token = reasons.gate(store, table.get(store, row["job_id"]))[0]  # type: ignore[arg-type]
            kept = None if of["state_reason"] == "Backoff" else of["state_reason"]
            assert row["state_reason"] == (token or kept or "PendingEvaluation"), dict(of)
    counted = {
        tuple(row)
        for row in store.rows("SELECT parent_cluster_id, priority, opens, block, count FROM job_counts")
    }
    assert counted == {
        (*key, count)
        for key, count in Counter(
            (
                row["parent_cluster_id"], row["priority"],
                gates.opens_at(row["held"], row["waits_for"], row["begin_at"]), row["job_id"] >> 10,
            )
            for row in every.values()
        ).items()
    }  # fmt: skip
    assert repair.wrong_counts(store, all_rows=True) == []
    for parent in ("kPrimaryClusterID", "a"):
        ahead = 1
        order = sorted(
            (row for row in every.values() if row["parent_cluster_id"] == parent),
            key=lambda row: (-row["priority"], row["job_id"]),
        )
        places = queues.positions(store, parent)
        for row in order:
            assert places[row["job_id"]] == ahead
            assert queues.position(store, parent, row["priority"], row["job_id"]) == ahead
            ahead += gates.opens_at(row["held"], row["waits_for"], row["begin_at"]) <= store.clock()


def test_jobs_that_may_not_start_yet_are_counted_in_an_index_of_their_own(store: Store) -> None:
    """It has few jobs of a long queue, and each look at a position counts in it."""
    plan = " ".join(
        row["detail"]
        for row in store.rows(f"EXPLAIN QUERY PLAN SELECT job_id {queues._SHUT}", "a", 0, 0, NOW)
    )
    assert "COVERING INDEX jobs_gated" in plan, plan
