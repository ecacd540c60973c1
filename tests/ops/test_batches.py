"""Many jobs at once: the same rows as by one submit after the other, or none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contents import JOURNAL
from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.errors import Conflict, Infeasible, VctlError
from vctl.ops import batches, clusters, submitting
from vctl.ops.prove import prove
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest, shortcut_spec
from vctl.spec.options import parse_array, parse_dependency
from vctl.store.store import Store

pytestmark = spec("13.batch", "8.after")

ENVIRONMENT = {"PATH": "/bin", "LANG": "C"}
TABLES = ("jobs", "arrays", "commands", "environments", "requests", "dependencies", "feasible", "job_counts")
CONDITIONS = ("ok", "any", "notok")


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[tuple[Ground, Ground]]:
    """Two equal states, with jobs that ended well, ended badly, and wait."""
    with Store.open(tmp_path / "one") as one, Store.open(tmp_path / "other") as other:
        grounds = Ground(one), Ground(other)
        for ground in grounds:
            ground.nodes(4)
            clusters.create(ground.store, "lab", ClusterChange(divisible=True, spec=parse_cluster_spec({})))
            clusters.create(ground.store, "shared", ClusterChange(divisible=False, replica_sets={"4c8g": 1}))
            for name in ("good", "bad", "waits"):
                ground.submit(name)
            ground.submit("row", array=parse_array("0-3", "array"))
            ground.end("good")
            ground.end("bad", "FAILED", 1)
        yield grounds


def rows(store: Store) -> dict[str, list[dict[str, Any]]]:
    """All rows. Of several conditions that are impossible, a job names any: whichever is seen first."""
    found = {
        table: [dict(row) for row in store.rows(f"SELECT * FROM {table} ORDER BY 1, 2")] for table in TABLES
    }
    for job in found["jobs"]:
        job["message"] = job["message"] and job["message"].partition(" for ")[0]
    return found


def journal(store: Store) -> list[tuple[Any, ...]]:
    found = store.rows(
        f"SELECT kind, object_id, job_id, change FROM {JOURNAL} WHERE kind NOT LIKE 'cluster%' ORDER BY seq"
    )
    return sorted(tuple(row) for row in found)


def requests(dice: random.Random, count: int) -> list[JobRequest]:
    """Jobs of many kinds, which wait for earlier ones and for jobs that are there."""
    found: list[JobRequest] = []
    names = ["good", "bad", "waits", "row", "row_2"]
    for number in range(count):
        fields: dict[str, Any] = {"submission_id": f"j{number}", "argv": ("true",), "cwd": "/"}
        members = 0
        if dice.random() < 0.2:
            members = dice.randint(1, 4)
            fields["array"] = parse_array(
                f"0-{members}%2" if dice.random() < 0.5 else f"0-{members}", "array"
            )
        if dice.random() < 0.6:
            fields["after"] = tuple(
                parse_dependency(f"{dice.choice(CONDITIONS)}:{dice.choice(names)}", "after")
                for _ in range(dice.randint(1, 3))
            )
        if dice.random() < 0.3:
            fields["cluster"] = dice.choice(("lab", "shared", "primary"))
        if dice.random() < 0.3 and fields.get("cluster") != "shared":
            fields["spec"] = shortcut_spec(dice.randint(1, 4), None, None, dice.choice((None, 1, 2)))
        if dice.random() < 0.2:
            fields |= {"hold": True, "priority": dice.randint(-3, 3), "env": {"A": str(number)}, "name": "x"}
        if dice.random() < 0.2:
            fields |= {"clean_env": True, "time_limit_s": 5.0, "begin_at": dice.choice((1.0, 1.8e9))}
        found.append(JobRequest(**fields))
        names += [f"j{number}", *([f"j{number}_{members}"] if members else [])]
    return found


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_leaves_the_rows_of_single_submits(twins: tuple[Ground, Ground], seed: int) -> None:
    """Ids, numbers, conditions, spans of arrays, ends of what can never run: all as by one submit after the other."""
    dice = random.Random(seed)
    one, other = twins
    asked = requests(dice, dice.randint(1, 40))
    names = batches.queue(one.store, [(request, ENVIRONMENT) for request in asked])
    for request in asked:
        submitting.queue(other.store, request, ENVIRONMENT)
    assert names == [request.submission_id for request in asked]
    ours, theirs = rows(one.store), rows(other.store)
    for table in TABLES:
        assert ours[table] == theirs[table], (seed, table)
    assert prove(one.store) == []


@pytest.mark.parametrize("seed", range(10))
def test_all_or_none(twins: tuple[Ground, Ground], seed: int) -> None:
    """A batch with one bad line anywhere changes nothing, also where others of its lines end at once."""
    dice = random.Random(seed)
    one, _ = twins
    asked = requests(dice, 12)
    before = rows(one.store), journal(one.store)
    for bad in (
        JobRequest(argv=("true",), cwd="/", submission_id="good"),
        JobRequest(argv=("true",), cwd="/", spec=shortcut_spec(64)),
        JobRequest(argv=("true",), cwd="/", cluster="nowhere"),
        JobRequest(argv=("true",), cwd="/", after=(parse_dependency("ok:nobody", "after"),)),
        JobRequest(argv=("true",), cwd="/", after=(parse_dependency("ok:last-one", "after"),)),
    ):
        for position in range(len(asked) + 1):
            lines = [*asked[:position], bad, *asked[position:]]
            lines.append(JobRequest(argv=("true",), cwd="/", submission_id="last-one"))
            with pytest.raises(VctlError, match=f"^line {position + 1}: ") as found:
                batches.queue(one.store, [(request, ENVIRONMENT) for request in lines])
            assert found.value.details["line"] == position + 1
            assert (rows(one.store), journal(one.store)) == before


def test_what_can_never_run_ends_with_all_that_waits_for_it(ground: Ground) -> None:
    ground.submit("bad")
    ground.end("bad", "FAILED", 1)
    chain = [
        JobRequest(argv=("true",), cwd="/", submission_id="a", after=(parse_dependency("ok:bad", "after"),))
    ]
    chain += [
        JobRequest(
            argv=("true",),
            cwd="/",
            submission_id=name,
            after=(parse_dependency(f"{wish}:{before}", "after"),),
        )
        for name, wish, before in (("b", "ok", "a"), ("c", "notok", "b"), ("d", "any", "c"), ("e", "ok", "c"))
    ]
    batches.queue(ground.store, [(request, ENVIRONMENT) for request in chain])
    found = ground.store.rows("SELECT submission_id, status, waits_for FROM jobs ORDER BY job_id")
    assert [tuple(row)[:2] for row in found] == [
        ("bad", "FAILED"), ("a", "FAILED"), ("b", "FAILED"), ("c", "PENDING"), ("d", "PENDING"), ("e", "PENDING"),
    ]  # fmt: skip
    assert [row["waits_for"] for row in found[3:]] == [0, 1, 1]


def test_ids_that_nobody_chose_are_free(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 2**40 of them: a batch of 100,000 beside a million jobs draws one that is taken now and then."""
    ground.submit("job-01")
    drawn = iter(["job-01", "job-02", "job-02", "job-03", "job-04", "job-02", "job-05", "job-06", "job-07"])
    monkeypatch.setattr(submitting, "new_id", lambda: next(drawn))
    job, chosen = (
        JobRequest(argv=("true",), cwd="/"),
        JobRequest(argv=("true",), cwd="/", submission_id="job-03"),
    )
    names = batches.queue(ground.store, [(one, ENVIRONMENT) for one in (job, job, chosen, job, job)])
    assert len(set(names)) == 5 and names[2] == "job-03" and "job-01" not in names
    with pytest.raises(Conflict, match="line 2: job job-03 exists already"):
        batches.queue(ground.store, [(JobRequest(argv=("x",), cwd="/"), ENVIRONMENT), (chosen, ENVIRONMENT)])


def test_equal_shapes_are_judged_once(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are in proportion to what differs: 500 lines of two shapes are two judgements."""
    judged: list[object] = []
    real = submitting.check_feasible
    monkeypatch.setattr(
        submitting, "check_feasible", lambda *given: (judged.append(given[2:]), real(*given))[1]
    )
    jobs = [JobRequest(argv=("true",), cwd="/", spec=shortcut_spec(1 + n % 2)) for n in range(500)]
    batches.queue(ground.store, [(job, ENVIRONMENT) for job in jobs])
    assert len(judged) == 2
    batches.queue(ground.store, [(job, ENVIRONMENT) for job in jobs])
    assert len(judged) == 2, "the verdicts are stored"


def test_a_cluster_that_goes_between_the_check_and_the_write(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.create(ground.store, "lab", ClusterChange(divisible=True, spec=parse_cluster_spec({})))
    real = submitting.Preparation.columns

    def columns(self: Any, *given: Any) -> Any:
        with Store.open(ground.store.home) as other:
            clusters.delete(other, "lab")
        monkeypatch.setattr(submitting.Preparation, "columns", real)
        return real(self, *given)

    monkeypatch.setattr(submitting.Preparation, "columns", columns)
    jobs = [JobRequest(argv=("true",), cwd="/"), JobRequest(argv=("true",), cwd="/", cluster="lab")]
    with pytest.raises(VctlError, match=r"^line 2: .*lab"):
        batches.queue(ground.store, [(job, ENVIRONMENT) for job in jobs])
    assert ground.store.value("SELECT count(*) FROM jobs") == 0


def test_the_whole_batch_is_told_where_no_line_is_to_blame(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_JOBS", 3)
    job = JobRequest(argv=("true",), cwd="/")
    with pytest.raises(VctlError, match=r"^4 jobs are too many"):
        batches.queue(ground.store, [(job, ENVIRONMENT)] * 4)
    with pytest.raises(Infeasible, match=r"^line 3: "):
        batches.queue(
            ground.store,
            [(job, {}), (job, {}), (JobRequest(argv=("x",), cwd="/", spec=shortcut_spec(64)), {})],
        )
