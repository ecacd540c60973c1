"""Jobs as users see them: which one a word names, where it goes, what it is given, how it is forgotten."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.contents import HOMES, spoil
from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.core.clusters import PRIMARY, ClusterSpec, FixedNode, Group
from vctl.core.resources import CPU, SCALE
from vctl.errors import BadSpec, Conflict, Infeasible, NotFound, VctlError
from vctl.ops import clusters, job_edits, jobs, leases, logs, submitting
from vctl.ops.replay import replay
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.options import Dependency, parse_array
from vctl.store import job_views
from vctl.store import jobs as table
from vctl.store.store import Store

pytestmark = spec("8.submit", "8.states")

ONE = ClusterSpec(groups=(Group((FixedNode({CPU: SCALE}),)),), flexible=False)

NAMES = ("train-1", "train-12", "eval", "4", "other", "E")
REFERENCES = {
    "a submission id": ("train-1", "train-1"),
    "which is a prefix of another": ("train-12", "train-12"),
    "a unique prefix": ("ev", "eval"),
    "a number": ("1", "train-1"),
    "a number that is somebody's id": ("4", "4"),
    "the last": ("last", "E"),
    "case matters": ("E", "E"),
}


@pytest.mark.parametrize(("ref", "name"), REFERENCES.values(), ids=list(REFERENCES))
def test_what_names_a_job(ground: Ground, ref: str, name: str) -> None:
    for known in NAMES:
        ground.submit(known)
    assert jobs.get_job(ground.store, ref)["submission_id"] == name


WRONG = {
    "a prefix of two": ("train", BadSpec),
    "nothing": ("", NotFound),
    "a stranger": ("x", NotFound),
    "zero": ("0", NotFound),
    "a negative number": ("-1", NotFound),
    "digits of another script": ("٣", NotFound),
    "too large for the tables": ("9" * 30, NotFound),
    "a wildcard": ("trai%", NotFound),
    "another wildcard": ("trai_", NotFound),
}


@pytest.mark.parametrize(("ref", "error"), WRONG.values(), ids=list(WRONG))
def test_what_names_no_job(ground: Ground, ref: str, error: type[VctlError]) -> None:
    for known in NAMES:
        ground.submit(known)
    with pytest.raises(error):
        jobs.get_job(ground.store, ref)


def test_a_submission_id_that_looks_like_a_number_misleads_nobody(ground: Ground) -> None:
    """The second job has number 2, which is what the first one is called."""
    ground.submit("2")
    second = ground.submit()
    assert (second["job_id"], second["submission_id"]) != (1, "2")
    stopped = jobs.stop(ground.store, second["job_id"])
    assert stopped["submission_id"] == second["submission_id"]
    assert jobs.get_job(ground.store, "2")["status"] == "PENDING"
    assert jobs.get_job(ground.store, 2)["status"] == "STOPPED"
    with pytest.raises(NotFound):
        jobs.get_job(ground.store, 3)


def test_a_submission_id_is_taken_once(ground: Ground) -> None:
    ground.submit("a")
    with pytest.raises(Conflict, match="exists already"):
        ground.submit("a")
    ground.end("a")
    with pytest.raises(Conflict):
        ground.submit("a")
    jobs.delete(ground.store, "a")
    assert ground.submit("a")["job_id"] == 2


def test_where_a_job_goes(ground: Ground) -> None:
    clusters.create(ground.store, "shared", ClusterChange(replica_sets={"4c8g": 1}))
    clusters.create(ground.store, "apart", ClusterChange(divisible=True, replica_sets={"4c8g": 1}))

    def place(**fields: object) -> tuple[str, str]:
        job = ground.submit("j", **fields)
        jobs.stop(ground.store, "j")
        jobs.delete(ground.store, "j")
        return job["parent_cluster_id"], job["cluster_id"]

    with pytest.raises(Infeasible):
        ground.submit(spec=ONE)  # whole nodes left the primary
    assert place(cluster="shared") == ("shared", "shared")
    assert place(cluster="apart", spec=ONE) == ("apart", "apart##j")
    assert place(environment={"VCTL_CLUSTER": "apart"}) == ("apart", "apart##j")
    assert place(cluster="shared", environment={"VCTL_CLUSTER": "apart"}) == ("shared", "shared")
    assert place(environment={"VCTL_CLUSTER_ID": "shared"}) == ("shared", "shared")
    with pytest.raises(NotFound, match="The virtual cluster nobody does not exist"):
        ground.submit(cluster="nobody")
    with pytest.raises(NotFound) as near:
        ground.submit(cluster="apert")
    assert "apart" in near.value.fix
    with pytest.raises(BadSpec, match="indivisible"):
        ground.submit(cluster="shared", spec=ONE)


MEANWHILE = {
    "is removed": (False, NotFound, "The virtual cluster team does not exist"),
    "is to be removed": (True, Conflict, "is being removed"),
}


@pytest.mark.parametrize(("busy", "error", "words"), MEANWHILE.values(), ids=list(MEANWHILE))
def test_the_target_changes_while_a_job_is_judged(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, busy: bool, error: type[VctlError], words: str
) -> None:
    clusters.create(ground.store, "team", ClusterChange(divisible=True, replica_sets={"4c8g": 1}))
    if busy:
        ground.submit("before", cluster="team", spec=ONE)
    check = submitting.check_feasible

    def others_first(*asked: Any) -> None:
        with Store.open(ground.store.home) as other:
            clusters.delete(other, "team", drain=True)
        check(*asked)

    monkeypatch.setattr(submitting, "check_feasible", others_first)
    two = ClusterSpec(groups=(Group((FixedNode({CPU: 2 * SCALE}),)),), flexible=False)
    with pytest.raises(error, match=words):
        ground.submit("late", cluster="team", spec=two)
    assert [row["submission_id"] for row in ground.store.rows("SELECT submission_id FROM jobs")] == [
        "before"
    ] * busy


@pytest.mark.parametrize("word", ["primary", PRIMARY])
def test_the_primary_by_both_names(ground: Ground, word: str) -> None:
    job = ground.submit("j", cluster=word)
    assert (job["parent_cluster_id"], job["cluster_id"]) == (PRIMARY, f"{PRIMARY}##j")


def test_the_environment_is_captured(ground: Ground) -> None:
    around = {"PATH": "/bin", "MINE": "1", "VCTL_JOB_ID": "9", "VCTL_CLUSTER_ID": PRIMARY, "VCTL_RUN_ID": "r"}

    def kept(**fields: object) -> dict[str, str]:
        job = ground.submit(environment=around, **fields)
        row = table.launch(ground.store, job["job_id"])
        assert row is not None
        found: dict[str, str] = json.loads(row["env"])
        return found

    assert kept() == {"PATH": "/bin", "MINE": "1"}  # what is said about another job is not handed on
    assert kept(env={"MINE": "2", "NEW": "3"}) == {"PATH": "/bin", "MINE": "2", "NEW": "3"}
    assert kept(clean_env=True, env={"NEW": "3"}) == {"PATH": "/bin", "NEW": "3"}


def test_a_job_has_a_reason_from_the_moment_of_submit(ground: Ground) -> None:
    job = ground.submit()
    assert job["status"] == "PENDING"
    assert job["state_reason"] == "PendingEvaluation"
    assert job["message"]
    assert job["queue_position"] == 1
    assert job["submitted_at"] == "2023-11-14T22:13:20.000000Z"
    assert ground.submit(hold=True)["state_reason"] == "Held"


NEVER = {
    "too many CPUs on one node": ClusterSpec(groups=(Group((FixedNode({CPU: 5 * SCALE}),)),), flexible=False),
    "too many in all": ClusterSpec(flexible_min={CPU: 9 * SCALE}),
    "too many nodes": ClusterSpec(
        groups=(Group((FixedNode({CPU: SCALE}),) * 3, "STRICT_SPREAD"),), flexible=False
    ),
    "too much on one node": ClusterSpec(
        groups=(Group((FixedNode({CPU: 3 * SCALE}),) * 2, "STRICT_PACK"),), flexible=False
    ),
    "a template too often": ClusterSpec(replica_sets={"4c8g": 3}, flexible=False),
    "a resource that nobody has": ClusterSpec(flexible_min={"TPU": SCALE}),
}


@pytest.mark.parametrize("spec", NEVER.values(), ids=list(NEVER))
def test_what_could_never_run_leaves_no_row(ground: Ground, spec: ClusterSpec) -> None:
    with pytest.raises(Infeasible, match="can never run") as refused:
        ground.submit(spec=spec)
    assert refused.value.exit_code == 3
    assert set(refused.value.details) == {"resource", "need", "largest"}
    assert jobs.list_jobs(ground.store, all=True) == ([], 0)
    assert ground.store.value("SELECT count(*) FROM events WHERE object = 'job'") == 0


def test_positions_in_a_list_are_those_of_each_job_also_where_others_stand_between(ground: Ground) -> None:
    for name in ("first", "second"):
        ground.submit(name)
    ground.submit("array", array=parse_array("1-3"))
    for name in ("third", "fourth"):
        ground.submit(name)

    def positions(**asked: Any) -> dict[str, int | None]:
        found = {
            job["submission_id"]: job["queue_position"] for job in jobs.list_jobs(ground.store, **asked)[0]
        }
        alone = {name: jobs.get_job(ground.store, name)["queue_position"] for name in found}
        assert found == alone
        return found

    assert list(positions().values()) == [7, 6, 5, 4, 3, 2, 1]
    assert list(positions(limit=2).values()) == [7, 6]
    assert positions(members=False) == {"fourth": 7, "third": 6, "array": None, "second": 2, "first": 1}
    job_edits.edit(ground.store, "third", {"priority": 1})
    ground.end("second")
    expected = {"fourth": 6, "third": 1, "array": None, "second": None, "first": 2}
    assert positions(members=False, all=True) == expected
    assert positions(all=True, filters=["status=SUCCEEDED"]) == {"second": None}


@pytest.mark.parametrize("kinds", [0, 4, 100])
def test_a_list_tells_of_each_job_what_the_job_itself_tells(
    ground: Ground, kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of it was read once, as all jobs had it in common."""
    monkeypatch.setattr(job_views, "KINDS", kinds)
    ground.submit("array", array=parse_array("1-5"), name="ours")
    ground.submit("held", hold=True, priority=3)
    for number, name in enumerate(["array_2", "array_4"]):
        ground.now += 10**9
        ground.end(name, "FAILED", number)
    listed: list[tuple[int, dict[str, Any]]] = [
        (4, {}), (6, {"all": True}), (3, {"all": True, "limit": 3}), (2, {"all": True, "filters": ["status=FAILED"]}),
    ]  # fmt: skip
    for count, asked in listed:
        found = jobs.list_jobs(ground.store, **asked)[0]
        assert list(found) == [jobs.get_job(ground.store, job["submission_id"]) for job in found]
        assert len(found) == count


def test_lists_and_filters(ground: Ground) -> None:
    for number in range(5):
        ground.submit(f"j{number}", priority=number % 2, name=f"n{number}")
    jobs.stop(ground.store, "j0")

    def ids(**given: object) -> list[str]:
        return [job["submission_id"] for job in jobs.list_jobs(ground.store, **given)[0]]  # type: ignore[arg-type]

    assert ids() == ["j4", "j3", "j2", "j1"]
    assert ids(all=True) == ["j4", "j3", "j2", "j1", "j0"]
    assert ids(limit=2) == ["j4", "j3"]
    assert jobs.list_jobs(ground.store, limit=2)[1] == 4
    assert ids(filters=["priority=1"]) == ["j3", "j1"]
    assert ids(filters=["priority!=1"], all=True) == ["j4", "j2", "j0"]
    assert ids(filters=["status=stopped"], all=True) == ["j0"]
    assert ids(filters=["name=n2"], limit=1) == ["j2"]
    with pytest.raises(NotFound, match="nobody"):  # spec 13: exit code 4
        ids(cluster="nobody")


def test_stop_and_delete_are_for_all_or_none(ground: Ground) -> None:
    for name in ("a", "b", "c"):
        ground.submit(name)
    ground.end("a")
    log = logs.log_of(ground.store.home, "a")
    log.parent.mkdir(exist_ok=True)
    log.write_text("text")
    with pytest.raises(Conflict, match="job b is PENDING"):
        jobs.delete(ground.store, "a", "b")
    with pytest.raises(NotFound):
        jobs.delete(ground.store, "a", "nobody")
    assert log.exists()
    jobs.stop(ground.store, "b")
    assert [job["submission_id"] for job in jobs.delete(ground.store, "a", "b")] == ["a", "b"]
    assert not log.exists()
    assert [job["submission_id"] for job in jobs.list_jobs(ground.store, all=True)[0]] == ["c"]
    assert ground.store.value("SELECT count(*) FROM commands") == 1


def test_prune(ground: Ground) -> None:
    for name in ("old", "young", "waits"):
        ground.submit(name)
    ground.end("old")
    ground.now += 1000 * 10**9
    ground.end("young")
    events = ground.store.value("SELECT count(*) FROM events")
    assert jobs.prune(ground.store, 500, dry_run=True)["jobs"] == ["old"]
    assert ground.store.value("SELECT count(*) FROM events") == events
    assert jobs.prune(ground.store, 500)["jobs"] == ["old"]
    assert {job["submission_id"] for job in jobs.list_jobs(ground.store, all=True)[0]} == {"young", "waits"}
    assert jobs.prune(ground.store, 500)["jobs"] == []


def test_prune_leaves_what_a_scheduler_may_not_have_read(ground: Ground) -> None:
    ground.submit("a")
    ground.submit("b")
    jobs.prune(ground.store, 0)
    assert ground.store.value("SELECT count(*) FROM events WHERE kind = 'job.submitted'") == 2


def test_jobs_that_are_alike_in_all_but_what_they_wait_for_have_reasons_of_their_own(ground: Ground) -> None:
    """Spec 13: every job of a list has its own true reason, also where many are alike."""
    for name in ("a", "b"):
        ground.submit(name, hold=True)
    for name, awaited in (("c", "a"), ("d", "b"), ("e", "b")):
        ground.submit(name, after=(Dependency("ok", awaited),))
    forms, total = jobs.list_jobs(ground.store)
    assert total == len(forms) == 5
    assert {form["submission_id"]: form["message"] for form in forms} == {
        "a": "held until `vctl job release`", "b": "held until `vctl job release`",
        "c": "waits for ok:a", "d": "waits for ok:b", "e": "waits for ok:b",
    }  # fmt: skip
    for form in forms:
        assert form == jobs.get_job(ground.store, form["job_id"])


@pytest.mark.parametrize(
    ("column", "value"), [("priority", "1.5"), ("entry", "x"), ("spec", "[]"), ("submission_id", "x'ff'")]
)
def test_every_waiting_row_that_cannot_be_read_is_found_among_those_that_are_alike(
    ground: Ground, column: str, value: str
) -> None:
    """Spec 12: a row that cannot be read is set aside, and no other."""
    for number in range(6):
        ground.submit(f"job-{number}")
    for number in (3,) if column == "submission_id" else (3, 5):
        if column in HOMES:
            spoil(ground.store.db, column, value, f"job_id = {number}")
        else:
            ground.store.db.execute(f"UPDATE jobs SET {column} = {value} WHERE job_id = {number}")
    steps = replay(ground.store, dry_run=True)["steps"]
    found = [action for step in steps for action in step["actions"] if "unreadable" in action]
    assert [action.partition(" of ")[0].rpartition(" ")[2] for action in found] == (
        ["3"] if column == "submission_id" else ["3", "5"]
    )


@spec("15.client")
def test_no_two_jobs_of_a_list_share_what_a_caller_may_change(ground: Ground) -> None:
    """Equal jobs are made of the same row; each reply has maps of its own."""
    ground.submit(), ground.submit()
    for found in (jobs.list_jobs(ground.store)[0], list(jobs.list_jobs(ground.store)[0])):
        first, second = list(found)[:2]
        first["resources"]["CPU"] = 99
        first["metadata"]["key"] = "value"
        assert second["resources"].get("CPU") != 99
        assert second["metadata"] == {}


@spec("11.why")
def test_demand_counts_requests_that_wait_for_the_same_reason(ground: Ground) -> None:
    """One of the equal jobs is held: the others are not shown as held."""
    ground.submit("held", hold=True)
    ground.submit("free")
    ground.submit("other")
    found = {one["reason"]: (one["count"], one["by"]) for one in leases.demand(ground.store)}
    assert found == {"Held": (1, ["held"]), "PendingEvaluation": (2, ["free", "other"])}


@pytest.mark.parametrize(
    "word",
    ["a", "", "-", "--x=1", "a b", "a'b", "$x", "a_1", "ä", "x;y", "~", "{1..3}", "a/b:c,d@e%+", "\u00b2"],
)
def test_the_entrypoint_is_quoted_as_a_shell_reads_it(ground: Ground, word: str) -> None:
    job = submitting.submit(
        ground.store, submitting.JobRequest(argv=("echo", word, "end"), cwd="/"), environment={}
    )
    assert job["entrypoint"] == shlex.join(["echo", word, "end"])
