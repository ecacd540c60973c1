"""Filters of lists in SQL choose what ``forms.matches`` chooses, and read no more than they must (spec 13)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.benchmarks.crowd import fill
from tests.specification import spec
from vctl.core import jobs as jb
from vctl.ops import forms, jobs, tasks, views
from vctl.store import filters as table
from vctl.store import job_views
from vctl.store.store import Store

pytestmark = spec("13.output", "18.budgets")

STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED")
NAMES = (
    None,
    "",
    "Train",
    "train",
    "TRAIN-2",
    "größe",
    "GRÖSSE",
    "\u212ahan",
    "khan",
    "10",
    "9",
    "1e1",
    "nan",
    "İ",
    "a,b",
)
USERS = ("ana", "Ana", "ben", "\u00c9va", "10")
PARENTS = ("kPrimaryClusterID", "Team", "team", "team/ml")
JOBS = 60
WORDS = (
    *(name or "" for name in NAMES), *USERS, *PARENTS, *STATES, "failed,stopped", "pending,", ",", "0", "1", "137",
    "-3", "01", "+1", "5", "1_0", "inf", "NaN", "99999999999999999999", "primary", "ended-30", "ENDED-30", "Sweep_1",
    "sweep", "SWEEP", "kPrimaryClusterID##ended-7", "team##ended-9", "x##y", "NonZeroExit", "nonzeroexit", "Held",
    "held", "PendingEvaluation", "2026", "2026-11-26", "2026-11-26T12:00:00Z", "2026-11-26T12:00:00+02:00", "T", "z",
    "\0", "FINISHED", "cancelled", "task-3", "sim-1", "job.ended", "JOB", "n\u0000",
)  # fmt: skip
filters_of: Callable[[Sequence[str]], Any] = lambda keys: st.lists(  # noqa: E731
    st.tuples(
        st.sampled_from(list(keys)), st.sampled_from(["=", "!=", ">="]), st.sampled_from(WORDS) | st.text(max_size=4)
    ).map("".join),
    max_size=3,
)  # fmt: skip
HURRY = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Jobs, tasks and events in which each column has all kinds of values."""
    home = tmp_path_factory.mktemp("lists") / "state"
    fill(home, queued=8, finished=JOBS)
    chance = random.Random(7)
    noon = 1_795_694_400 * 10**9  # 2026-11-26T12:00:00Z
    with Store.open(home) as store:
        with store.transaction():
            for row in store.rows("SELECT job_id, submission_id, status FROM jobs"):
                status = row["status"] if row["status"] == "PENDING" else chance.choice(STATES[1:])
                store.db.execute(
                    "UPDATE jobs SET status = ?, name = ?, user = ?, parent_cluster_id = ?, shares_parent = ?,"
                    " priority = ?, exit_code = ?, state_reason = ?, submitted_at = ?, held = ? WHERE job_id = ?",
                    (
                        status, chance.choice(NAMES), chance.choice(USERS), chance.choice(PARENTS),
                        chance.random() < 0.2, chance.choice([0, 1, -3, 10]), chance.choice([None, 0, 1, 137]),
                        None if status == "PENDING" else chance.choice([None, "NonZeroExit", "Held", "größe"]),
                        noon + chance.choice([0, 1, 999, 1000, -(10**9), 7200 * 10**9, -7200 * 10**9, 10**12]),
                        status == "PENDING" and chance.random() < 0.5, row["job_id"],
                    ),
                )  # fmt: skip
            for array_id, first in (("Sweep", 11), ("sweep", 21)):
                store.db.execute(
                    "UPDATE jobs SET array_id = ?1, array_index = job_id - ?2,"
                    " submission_id = ?1 || '_' || (job_id - ?2) WHERE job_id BETWEEN ?2 AND ?2 + 5",
                    (array_id, first),
                )
                store.db.execute(
                    "INSERT INTO arrays (array_id, first_job_id, last_job_id, range, count)"
                    " VALUES (?, ?, ?, '0-5', 6)",
                    (array_id, first, first + 5),
                )
            for number in range(1, 40):
                state = chance.choice(["FINISHED", "FAILED", "PENDING_ARGS_AVAIL", "RUNNING"])
                over = state in ("FINISHED", "FAILED")
                store.db.execute(
                    "INSERT INTO tasks (task_id, job_id, cluster_id, owner_id, name, state, state_reason, request,"
                    " selector, strategy, node_id, vnode_id, created_at, ended_at, command_id)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, '{}', '[]', 'DEFAULT', ?, ?, ?, ?, 1)",
                    (
                        f"task-{number}", 5 + number % 7, f"{chance.choice(PARENTS)}##ended-{number}",
                        f"Task-{number - 1}", chance.choice(NAMES), state,
                        chance.choice([None, "cancelled"]) if over else None,
                        chance.choice([None, "sim-1"]), chance.choice([None, "team##ended-9/0"]),
                        noon + number * 10**12, noon if over else None,
                    ),
                )  # fmt: skip
        yield store


def outcome(forms_: Sequence[Any], wanted: Sequence[str], keys: Sequence[str]) -> list[Any]:
    """Those that pass, as Python says."""
    return [form for form in forms_ if forms.matches(form, forms.parse_filters(wanted, keys))]


@HURRY
@given(
    wanted=filters_of(jobs.FILTER_KEYS),
    limit=st.none() | st.integers(0, 6),
    all_=st.booleans(),
    members=st.booleans(),
)
@example(wanted=["status=failed,stopped", "user=ANA"], limit=2, all_=True, members=True)
@example(wanted=["array_id=SWEEP"], limit=3, all_=True, members=True)
@example(wanted=["array_id!=sweep", "submission_id!=ended-7"], limit=3, all_=True, members=True)
@example(wanted=["cluster_id=team##ended-9"], limit=3, all_=True, members=True)
@example(wanted=["submitted_at>=2026-11-26T12:00:00+02:00"], limit=3, all_=True, members=True)
@example(wanted=["state_reason=Held"], limit=4, all_=True, members=True)
@example(wanted=["name="], limit=4, all_=True, members=True)
@example(wanted=["name=größe"], limit=4, all_=True, members=True)
@example(wanted=["name=khan"], limit=4, all_=True, members=True)
@example(wanted=["exit_code="], limit=4, all_=True, members=True)
@example(wanted=[], limit=3, all_=True, members=False)
@example(wanted=["status=FAILED"], limit=1, all_=True, members=False)
def test_jobs(store: Store, wanted: list[str], limit: int | None, all_: bool, members: bool) -> None:
    every, _ = jobs.list_jobs(store, forecast=False, all=all_, members=members)
    right = outcome(every, wanted, jobs.FILTER_KEYS)
    found, total = jobs.list_jobs(
        store, forecast=False, all=all_, filters=wanted, limit=limit, members=members
    )
    numbers = [form["job_id"] for form in right]
    assert [form["job_id"] for form in found] == numbers[:limit]
    assert total == len(right)
    if not any("state_reason" in one for one in wanted):  # waits are as long as this test takes
        keys = ("submission_id", "status", "name", "user", "cluster_id", "array_id")
        assert (
            [[form[key] for key in keys] for form in found]
            == [  # type: ignore[literal-required]
                [form[key] for key in keys] for form in right[:limit]
            ]
        )


SCOPES = ("kPrimaryClusterID", "kPrimaryClusterID##ended-30", "kPrimaryClusterID##ended-30##part")


@pytest.mark.parametrize("cluster", SCOPES)
@pytest.mark.parametrize("all_", [False, True])
def test_a_limit_inside_a_cluster(store: Store, cluster: str, all_: bool) -> None:
    """Also inside a job, whose own jobs are listed, and in a part of it, which has none."""
    every, count = jobs.list_jobs(store, forecast=False, all=all_, cluster=cluster)
    assert count == len(every)
    assert (count > 0) == ("part" not in cluster) or not all_
    for wanted in ([], ["user=ana"], ["exit_code=x"]):
        right = [form["job_id"] for form in outcome(every, wanted, jobs.FILTER_KEYS)]
        found, total = jobs.list_jobs(
            store, forecast=False, all=all_, cluster=cluster, filters=wanted, limit=1
        )
        assert ([form["job_id"] for form in found], total) == (right[:1], len(right))


@pytest.mark.parametrize("key", jobs.FILTER_KEYS)
def test_each_value_of_each_column(store: Store, key: str) -> None:
    """What a list shows can be written into a filter."""
    every, _ = jobs.list_jobs(store, forecast=False, all=True)
    words = {"" if form[key] is None else str(form[key]) for form in every}  # type: ignore[literal-required]
    if key == "cluster_id":  # that of a job which shares the cluster of its parent is another one
        words |= {f"{form['parent_cluster_id']}##{form['submission_id']}" for form in every}
    for word in sorted(words):
        for mark in table.MARKS:
            wanted = [f"{key}{mark}{word}"]
            right = [form["job_id"] for form in outcome(every, wanted, jobs.FILTER_KEYS)]
            found, total = jobs.list_jobs(store, forecast=False, all=True, filters=wanted, limit=2)
            assert ([form["job_id"] for form in found], total) == (right[:2], len(right)), wanted


@HURRY
@given(wanted=filters_of(tasks.FILTER_KEYS), limit=st.none() | st.integers(0, 6), all_=st.booleans())
@example(wanted=["state=finished,failed"], limit=2, all_=True)
@example(wanted=["state_reason=cancelled"], limit=2, all_=True)
@example(wanted=["created_at>=2026-11-26T12:30:00Z"], limit=2, all_=True)
def test_tasks(store: Store, wanted: list[str], limit: int | None, all_: bool) -> None:
    every, _ = tasks.list_tasks(store, all=all_)
    right = [form["task_id"] for form in outcome(every, wanted, tasks.FILTER_KEYS)]
    found, total = tasks.list_tasks(store, all=all_, filters=wanted, limit=limit)
    assert [form["task_id"] for form in found] == (
        right if limit is None else right[max(0, len(right) - limit) :]
    )
    assert total == len(right)


EVENT_KEYS = forms.fields_of("EventForm")


@HURRY
@given(wanted=filters_of(EVENT_KEYS), limit=st.none() | st.integers(0, 6), since=st.integers(0, 9))
@example(wanted=["kind=JOB.ended"], limit=2, since=0)
@example(wanted=["kind!=job.ended"], limit=2, since=3)
@example(wanted=[], limit=2, since=0)
@example(wanted=["object=JOB", "kind!=job.ended"], limit=2, since=0)
@example(wanted=["kind=node.added"], limit=1, since=0)
@example(wanted=["object=node"], limit=1, since=0)
@example(wanted=["kind=nothing"], limit=1, since=0)
@example(wanted=["job_id=7"], limit=2, since=0)
@example(wanted=["job_id="], limit=2, since=0)
def test_events(store: Store, wanted: list[str], limit: int | None, since: int) -> None:
    every, _ = views.list_events(store, since=since)
    right = [form["seq"] for form in outcome(every, wanted, EVENT_KEYS)]
    found, total = views.list_events(store, since=since, filters=wanted, limit=limit)
    most = len(right) if limit is None else limit
    assert [form["seq"] for form in found] == (right[:most] if since else right[max(0, len(right) - most) :])
    assert total == len(right)


def test_only_the_kelvin_sign_would_be_ascii_in_lower_case() -> None:
    """So that the comparison of SQLite, which knows the case of ASCII alone, is that of Python."""
    found = [chr(n) for n in range(128, 0x110000) if chr(n).lower().isascii()]
    assert found == [table._KELVIN]


PLAIN = ("", "user=ana", "user!=ana", "name=train", "exit_code=1", "priority>=1", "submitted_at>=2026-11-26",
         "status=FAILED", "state_reason=NonZeroExit", "parent_cluster_id=team", "cluster_id=team##x", "submission_id=x",
         "job_id=7", "array_id=sweep")  # fmt: skip


@pytest.mark.parametrize("wanted", PLAIN)
def test_a_list_with_a_limit_reads_no_table_of_all_jobs(store: Store, wanted: str) -> None:
    """Each step is along an index that has what is compared, or reads the rows that are found there."""
    chosen = [wanted] if wanted else []
    where, values = job_views.condition(store, forms.parse_filters(chosen, jobs.FILTER_KEYS))
    for states in (jb.FINAL, {jb.PENDING, jb.RUNNING}):
        for source in job_views._sources(states, where):
            for sql in (f"SELECT job_id FROM {source} AND {where} ORDER BY j.job_id DESC LIMIT 5",
                        f"SELECT count(*) FROM {source} AND {where}"):  # fmt: skip
                steps = [row["detail"] for row in store.rows(f"EXPLAIN QUERY PLAN {sql}", *values)]
                assert all("INDEX" in step or not step.startswith("SCAN") for step in steps), steps
                if states == jb.FINAL:
                    assert (
                        any("COVERING INDEX jobs_over" in step for step in steps) or "(job_id" in steps[0]
                    ), steps


def test_a_list_with_a_limit_reads_what_it_shows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the filter is: the columns of ten jobs are read, not those of all."""
    read: list[int] = []
    listed = job_views.listed

    def noted(*given: Any) -> Any:
        found = listed(*given)
        read.append(len(found["job_id"]))
        return found

    monkeypatch.setattr(job_views, "listed", noted)
    for wanted in PLAIN:
        read.clear()
        jobs.list_jobs(store, forecast=False, all=True, filters=[wanted] if wanted else [], limit=2)
        waiting = store.value("SELECT count(*) FROM jobs WHERE status = 'PENDING'")
        assert sum(read) <= 2 + ("state_reason" in wanted) * waiting
