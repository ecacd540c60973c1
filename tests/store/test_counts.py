"""Kept counts of jobs and queues: exact whatever happens; with them looking costs the same (spec 11, 18)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.crowd import fill
from tests.contents import plain
from tests.specification import spec
from vctl.ops import health, overview, positions, submitting, views
from vctl.ops.jobs import list_jobs
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.store import job_views, queues, repair
from vctl.store import jobs as table
from vctl.store.store import Row, Store

pytestmark = spec("18.budgets")

PARENTS = ("kPrimaryClusterID", "a", "b")
GATES = (
    ("held", 1), ("held", 0), ("waits_for", 2), ("waits_for", 0), ("begin_at", 1), ("begin_at", 1 << 62),
    ("begin_at", None),
)  # fmt: skip
"""What keeps a job from starting, and what no longer does: a begin time in the past does not."""


def is_gated(store: Store, job_id: int) -> bool:
    row = table.get(store, job_id)
    assert row is not None
    return bool(row["held"] or row["waits_for"] or (row["begin_at"] or 0) > store.clock())


def counted_by_hand(store: Store, row: Row) -> int:
    """spec 8: jobs that are held or wait for a time or for other jobs are ahead of nobody."""
    place = 1
    for other in store.rows(
        "SELECT * FROM jobs WHERE status = 'PENDING' AND parent_cluster_id = ?", row["parent_cluster_id"]
    ):
        is_before = (-other["priority"], other["job_id"]) < (-row["priority"], row["job_id"])
        place += is_before and not is_gated(store, other["job_id"])
    return place


def put(store: Store, number: int, parent: str, priority: int, status: str = "PENDING") -> None:
    store.db.execute(
        "INSERT INTO jobs (job_id, submission_id, parent_cluster_id, status, priority, user, metadata, grace_s,"
        " submitted_at, command_id) VALUES (?, ?, ?, ?, ?, 'u', '{}', 3, ?, ?)",
        (number, f"j{number}", parent, status, priority, number, plain(store.db)),
    )


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_exact_whatever_happens_to_jobs(store: Store, seed: int) -> None:
    """spec 11: places in the queue. Numbers are spread over many blocks, as they are after a prune."""
    rng = random.Random(seed)
    known: list[int] = []
    for step in range(300):
        with store.transaction():
            if not known or rng.random() < 0.5:
                number = (
                    rng.randrange(1, 2**40)
                    if rng.random() < 0.3
                    else (max(known, default=0) + rng.randrange(1, 900))
                )
                if number not in known:
                    put(
                        store,
                        number,
                        rng.choice(PARENTS),
                        rng.randrange(-2, 3),
                        rng.choice(("PENDING", "RUNNING")),
                    )
                    known.append(number)
            else:
                number = rng.choice(known)
                match rng.randrange(7):
                    case 0:
                        store.db.execute(
                            "UPDATE jobs SET priority = ? WHERE job_id = ?", (rng.randrange(-2, 3), number)
                        )
                    case 1:
                        store.db.execute(
                            "UPDATE jobs SET parent_cluster_id = ? WHERE job_id = ?",
                            (rng.choice(PARENTS), number),
                        )
                    case 2 | 3:
                        status = rng.choice(("PENDING", "RUNNING", "SUCCEEDED", "FAILED"))
                        store.db.execute("UPDATE jobs SET status = ? WHERE job_id = ?", (status, number))
                    case 4 | 5:
                        gate, value = rng.choice(GATES)
                        store.db.execute(f"UPDATE jobs SET {gate} = ? WHERE job_id = ?", (value, number))
                    case 6:
                        store.db.execute("DELETE FROM jobs WHERE job_id = ?", (number,))
                        known.remove(number)
        if step % 20 == 0:
            assert (
                repair.wrong_counts(store, all_rows=True) == repair.wrong_counts(store, all_rows=False) == []
            )
            places = {
                job_id: place for one in PARENTS for job_id, place in queues.positions(store, one).items()
            }
            for job_id, place in places.items():
                row = table.get(store, job_id)
                assert row is not None
                assert queues.position(store, row["parent_cluster_id"], row["priority"], job_id) == place
                assert positions.position(store, row) == place == counted_by_hand(store, row)
                before = positions.ahead(store, row)
                assert len(before) == place - 1
                assert not {one for one in before if is_gated(store, one)}
    counted = dict(store.rows("SELECT status, count(*) FROM jobs GROUP BY 1"))
    assert job_views.counts_by_status(store) == counted


def test_counts_follow_a_rollback_and_a_wrong_one_is_found(store: Store) -> None:
    """spec 12: doctor computes all rules from the raw tables."""

    def fail() -> None:
        with store.transaction():
            put(store, 1, "a", 0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert job_views.counts_by_status(store) == {}
    with store.transaction():
        put(store, 2, "kPrimaryClusterID", 0)
        put(store, 3, "a", 0)
        store.db.execute("UPDATE job_counts SET count = 7 WHERE parent_cluster_id = 'kPrimaryClusterID'")
        store.db.execute("UPDATE job_counts SET block = 9 WHERE parent_cluster_id = 'a'")
        store.event("node.heartbeat", "node", "n")
    assert not any("event_counts" in one for one in repair.wrong_counts(store, all_rows=True))
    store.db.execute("UPDATE event_counts SET count = 3")
    assert "event_counts of node.heartbeat: 3 kept, 1 rows" in repair.wrong_counts(store, all_rows=True)
    found = health.doctor(store)["findings"]
    assert "job_counts of kPrimaryClusterID PENDING 0 0: 7 kept, 1 rows" in found
    assert "job_counts of a PENDING 0 0: 0 kept, 1 rows" in found
    assert "job_counts of a PENDING 0 9: 1 kept, 0 rows" in found


def steps(store: Store, do: Callable[[], object]) -> int:
    """What SQLite does for it, in units of 10 instructions: rows read and rows counted, whoever else is busy."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    do()  # once before: statements are prepared, the shape is judged
    store.db.set_progress_handler(count, 10)
    try:
        do()
    finally:
        store.db.set_progress_handler(None, 0)
    return counted


def test_what_looking_and_submitting_cost_does_not_grow(tmp_path: Path) -> None:
    """spec 18. The same with CPU time and large numbers: ``python -m tests.benchmarks crowd``."""
    taken: dict[str, list[int]] = {}
    # in both as many jobs are in the last block of 1024, which are counted one by one
    for name, queued, finished in (("small", 3000, 596), ("large", 20_000, 10_420)):
        fill(tmp_path / name, queued=queued, finished=finished)
        with Store.open(tmp_path / name) as store:
            array = parse_array(f"0-{queued - 1}")
            for gate in ({}, {"hold": True}, {"begin_at": 4e9}):
                submitting.submit(
                    store,
                    JobRequest(argv=("true",), cwd="/", array=array, priority=1, **gate),
                    environment={},
                )
            asked = {
                "submit": lambda store=store: submitting.submit(
                    store, JobRequest(argv=("true",), cwd="/"), environment={}
                ),
                "status": lambda store=store: overview.status(store),
                "the last jobs": lambda store=store: list_jobs(store, all=True, limit=5),
                "the last events": lambda store=store: views.list_events(store, limit=5),
                "summary": lambda store=store: views.summary(store, "jobs"),
            }
            for what, do in asked.items():
                taken.setdefault(what, []).append(steps(store, do))
    assert {what: cost for what, cost in taken.items() if cost[1] > 2 * cost[0] + 100} == {}
