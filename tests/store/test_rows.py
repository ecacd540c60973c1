"""Values to rows and back, and the queries whose answer can be told by brute force."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.specification import spec
from tests.store.conftest import Clock
from vctl.core.clusters import POLICIES, PRIMARY, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob
from vctl.core.labels import Condition
from vctl.core.queue_policy import LONGEST, QueuePolicy
from vctl.core.resources import Allocation
from vctl.engine.changes import JobForgotten, JobNominated, JobSubmitted, Launch, SubmitDetails
from vctl.engine.changes.change import PublicEvent
from vctl.errors import BadSpec
from vctl.ops import clusters
from vctl.ops.arrays import stop_requested
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.tree_file import parse_tree
from vctl.store import job_views, jobs, observed, queues, reservations, rows
from vctl.store import settings as settings_of
from vctl.store.rows import dumps
from vctl.store.store import Store
from vctl.store.write import _EVENT, _row
from vctl.store.write.table import insert

pytestmark = spec("17.migration")

names = st.text("CPUGmem/é", min_size=1, max_size=6)
maps = st.dictionaries(names, st.integers(0, 2**53 * 10_000), max_size=3)
conditions = st.builds(
    Condition,
    names,
    st.sampled_from(["in", "!in", "exists", "!exists"]),
    st.lists(names, max_size=2).map(tuple),
)
fixed = st.builds(
    FixedNode, maps, st.dictionaries(names, names, max_size=2), st.lists(conditions, max_size=2).map(tuple)
)
groups = st.builds(Group, st.lists(fixed, min_size=1, max_size=3).map(tuple), st.sampled_from(POLICIES))
specs = st.builds(
    ClusterSpec, maps, st.none() | maps, st.lists(groups, max_size=2).map(tuple),
    st.dictionaries(names, st.integers(0, 9), max_size=2), st.booleans(),
)  # fmt: skip
allocations = st.builds(
    Allocation,
    maps,
    st.dictionaries(
        names, st.dictionaries(st.integers(0, 99), st.integers(1, 10_000), max_size=3), max_size=2
    ),
    st.lists(st.integers(0, 255), unique=True, max_size=4).map(sorted).map(tuple),
)


@given(specs)
def test_a_spec_comes_back_as_it_was(spec: ClusterSpec) -> None:
    assert rows.spec(rows.spec_text(spec)) == spec


@given(allocations)
def test_a_holding_comes_back_as_it_was(allocation: Allocation) -> None:
    amounts, instances, cores = rows.allocation_columns(allocation)
    assert rows.allocation({"amounts": amounts, "instances": instances, "cores": cores}) == allocation  # type: ignore[arg-type]


def test_equal_columns_are_one_allocation() -> None:
    """So that equal virtual nodes share their free capacity, and the same change of many is computed once."""
    row = {"amounts": '{"CPU":10000}', "instances": "{}", "cores": "[1]"}
    assert rows.allocation(row) is rows.allocation(dict(row))  # type: ignore[arg-type]
    assert rows.allocation(row) != rows.allocation(row | {"cores": "[2]"})  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(ValueError, match="are no amounts"):
            rows.allocation(row | {"amounts": "7"})  # type: ignore[arg-type]


def test_reservations_are_read_without_the_jobs_that_have_none(store: Store) -> None:
    steps = [row["detail"] for row in store.rows(f"EXPLAIN QUERY PLAN {reservations._VALID}")]
    assert [step for step in steps if step.startswith("SCAN")] == ["SCAN r"]


def test_a_queue_whose_order_was_makespan_is_longest(store: Store) -> None:
    """Its row, the settings of the primary, and a tree file; nobody can ask for it any more."""
    asked = {"order": "makespan", "weight": 3}
    want = QueuePolicy(LONGEST, weight=3)
    assert rows.queue_policy(asked) == want
    with store.transaction():
        observed.remember(store, rows.PRIMARY_QUEUE, asked)
    assert settings_of.queue_of(store, PRIMARY) == want
    (cluster,) = parse_tree({"clusters": [{"id": "a", "queue": asked}]})
    assert cluster.queue == want
    with pytest.raises(
        BadSpec, match=r"queue.order: .*makespan.* is not one of fifo, .*, longest, shortest\n"
    ):
        clusters.update(store, PRIMARY, ClusterChange(queue=asked))


def queue(
    store: Store, submission_id: str, priority: int = 0, parent: str = PRIMARY, status: str = "PENDING"
) -> int:
    with store.transaction():
        job_id = jobs.next_number(store)
        job = PendingJob(job_id, submission_id, parent, "s", ClusterSpec(), {}, priority, user="me")
        store.emit(JobSubmitted(job, SubmitDetails(None, "{}", None, "{}", None), launch=Launch("true")))
        store.db.execute("UPDATE jobs SET status = ? WHERE job_id = ?", (status, job_id))
    return job_id


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(["a", "b"]), st.booleans()), max_size=12))
def test_positions_are_the_order_of_the_queue(
    tmp_path_factory: object, found: list[tuple[int, str, bool]]
) -> None:
    home = tmp_path_factory.mktemp("queue") / "state"  # type: ignore[attr-defined]
    with Store.open(home) as store:
        known = []
        for number, (priority, parent, waits) in enumerate(found):
            status = "PENDING" if waits else "RUNNING"
            job_id = queue(store, f"j{number}", priority, parent, status)
            if waits:
                known.append((parent, -priority, job_id))
        expected: dict[int, int] = {}
        for parent in ("a", "b"):
            for place, (_, _, job_id) in enumerate(sorted(k for k in known if k[0] == parent), 1):
                expected[job_id] = place
        assert queues.positions(store, "a") | queues.positions(store, "b") == expected
        for parent, priority, job_id in known:
            assert queues.position(store, parent, -priority, job_id) == expected[job_id]


def test_prefixes_are_taken_literally(store: Store) -> None:
    for name in ("a_1", "aX1", "a%", "ab", "a\U0001f600"):
        queue(store, name)
    found = {
        prefix: [name for _, name in jobs.numbers_like(store, prefix)]
        for prefix in ("a_", "a%", "a", "b", "A")
    }
    assert found["a_"] == ["a_1"]
    assert found["a%"] == ["a%"]
    assert len(found["a"]) == 5
    assert found["b"] == found["A"] == []
    assert set(string.ascii_letters) > {"a"}


def test_numbers_are_not_given_out_again(store: Store) -> None:
    first = queue(store, "a")
    with store.transaction():
        store.db.execute("UPDATE jobs SET status = 'STOPPED'")
        store.emit(JobForgotten(first, "a"))
    assert queue(store, "a") == first + 1
    assert jobs.launch(store, first) is None


def test_nothing_stays_reserved_for_a_job_that_is_deleted(store: Store) -> None:
    """By the change itself: a copy that is made from the journal has no foreign keys that would do it."""
    number = queue(store, "a")
    store.db.execute("PRAGMA foreign_keys = OFF")
    with store.transaction():
        store.emit(JobNominated(number, "a", 0, PRIMARY, ()))
        store.db.execute("UPDATE jobs SET status = 'STOPPED'")
    assert store.value("SELECT count(*) FROM nominations") == 1
    with store.transaction():
        store.emit(JobForgotten(number, "a"))
    assert store.value("SELECT count(*) FROM nominations") == 0


def test_the_verdict_on_a_waiting_job(store: Store, clock: Clock) -> None:
    job_id = queue(store, "a")

    def verdict() -> tuple[str | None, str | None]:
        row = job_views.get(store, job_id)
        assert row is not None
        return row["judged"], row["judged_words"]

    assert verdict() == (None, None)
    with store.transaction():
        observed.set_wait(store, PRIMARY, "s", "InsufficientResources", "needs 1 CPU")
        observed.set_wait(store, "other", "s", "CapReached", "elsewhere")
    assert verdict() == ("InsufficientResources", "needs 1 CPU")
    with store.transaction():
        observed.clear_wait(store, PRIMARY, "s")
    assert verdict() == (None, None)


def test_a_second_stop_request_keeps_the_time_and_takes_the_grace(store: Store, clock: Clock) -> None:
    job_id = queue(store, "a", status="RUNNING")
    asked_at = clock.now

    def stop(grace_s: float | None) -> None:
        with store.transaction():
            row = jobs.get(store, job_id)
            assert row is not None
            store.emit(stop_requested(store, row, grace_s=grace_s, message=None))
        clock.now += 5

    stop(10)
    stop(None)
    stop(1)
    row = jobs.get(store, job_id)
    assert row is not None
    assert (row["stop_requested_at"], row["stop_reason"], row["stop_grace_s"]) == (
        asked_at,
        "StoppedByUser",
        1,
    )


def test_the_queue_as_values_is_the_queue_as_rows(store: Store) -> None:
    """A scheduler reads its queue at the start in one go (spec 17); each value is the one its row has."""
    with store.together():
        for number in range(40):
            job_id = queue(
                store,
                f"j{number}",
                number % 3 - 1,
                "ab"[number % 2],
                "RUNNING" if number % 7 == 3 else "PENDING",
            )
            store.db.execute(
                "UPDATE jobs SET held = ?, begin_at = ?, time_limit_s = ?, per_node = ?, user = ? WHERE job_id = ?",
                (
                    number % 5 == 4,
                    number or None,
                    None if number % 3 else 1.5,
                    number % 2,
                    "uv"[number % 2],
                    job_id,
                ),
            )
    found = list(queues.pending(store))
    assert found == [rows.pending(jobs.get(store, job.job_id)) for job in found]  # type: ignore[arg-type]
    assert [job.job_id for job in found] == [row["job_id"] for row in queues.pending_rows(store)]
    assert len(found) == sum(number % 7 != 3 for number in range(40))
    assert list(queues.queued(store)) == [job for job in found if not job.is_gated]
    assert sum(job.is_gated for job in found) == sum(n % 7 != 3 and n % 5 == 4 for n in range(40))
    assert {type(job.per_node) for job in found} == {bool}
    assert {job.time_limit_ns for job in found} == {None, 1_500_000_000}


def tell(store: Store, event: PublicEvent) -> None:
    """Write an event without a change."""
    with store.transaction():
        insert(store.db, _EVENT, [_row(1, 1, event)])


@pytest.mark.parametrize(
    "cluster_id",
    [
        None,
        PRIMARY,
        f"{PRIMARY}##a",
        f"{PRIMARY}##b",
        "team",
        "team##a",
        "team##x",
        "a",
        "##a",
        "1",
        "0",
    ],
)
@pytest.mark.parametrize("object_id", ["a", "x", "7"])
def test_the_cluster_of_an_event_is_kept_whole(store: Store, cluster_id: str | None, object_id: str) -> None:
    """It is written without what the id of the object says already: 30 bytes of each event of a job."""
    tell(store, PublicEvent("job.x", "job", object_id, cluster_id, 1))
    assert store.column("SELECT cluster_id FROM events") == [cluster_id]
    assert store.value("SELECT count(*) FROM v_events WHERE cluster_id IS ?", cluster_id) == 1
    small = cluster_id in (PRIMARY, f"{PRIMARY}##{object_id}")
    assert (store.value("SELECT typeof(place) FROM events") == "integer") == small


USUAL = [
    ("job.submitted", "job", {}),
    ("job.started", "job", {"attempt": 1, "nodes": ["n-00"]}),
    ("job.ended", "job", {"status": "SUCCEEDED", "exit_code": 0}),
    ("job.ended", "job", {"status": "FAILED", "exit_code": 7, "reason": "NonZeroExit"}),
]
OTHERS = [
    ("job.submitted", "job", {"exit_code": 0}),
    ("job.started", "job", {"attempt": 2, "nodes": ["n-00"]}),
    ("job.started", "job", {"attempt": 1, "nodes": ["n-00", "n-01"]}),
    ("job.started", "job", {"attempt": 1, "nodes": []}),
    *(("job.started", "job", {"attempt": 1, "nodes": [name]}) for name in ("{n", 'a"b', "a\\b", "é", "\n")),
    ("job.ended", "job", {"status": "SUCCEEDED", "exit_code": 3}),
    ("job.ended", "job", {"status": "FAILED", "exit_code": 0, "reason": "NonZeroExit"}),
    ("job.ended", "job", {"status": "FAILED", "exit_code": 1, "reason": "OutOfMemory"}),
    ("job.ended", "job", {"status": "FAILED", "exit_code": True, "reason": "NonZeroExit"}),
    ("job.ended", "job", {"status": "STOPPED", "exit_code": None, "reason": "StoppedByUser"}),
    ("job.ended", "job", {"status": "FAILED", "exit_code": 1}),
    ("row.set_aside", "runs", {"problem": "x y"}),
    ("node.heartbeat", "node", {"timeout_s": 0.5}),
    ("jobs.pruned", "jobs", {"count": 0}),
]


@pytest.mark.parametrize(("kind", "object_kind", "data"), USUAL + OTHERS)
def test_an_event_is_kept_whole(store: Store, kind: str, object_kind: str, data: dict[str, object]) -> None:
    """A usual event of a job is kept without names: another 60 bytes."""
    tell(store, PublicEvent(kind, object_kind, "x", None, 1, data))
    row = store.row("SELECT kind, object, data FROM events")
    assert tuple(row or ()) == (kind, object_kind, dumps(data))
    assert tuple(store.row("SELECT kind, object, data FROM v_events") or ()) == tuple(row or ())
    assert tuple(store.row("SELECT kind, object, count FROM event_counts") or ()) == (kind, object_kind, 1)
    assert (store.value("SELECT length(code) + coalesce(length(content), 0) FROM events") < 6) == (
        (kind, object_kind, data) in USUAL
    )
