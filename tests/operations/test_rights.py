"""Who may do what in a shared service: a table over all operations, and a search for what they leak."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.operations.test_declared import DECLARED, HOMES
from tests.specification import spec
from vctl.config import load
from vctl.core.caller import Caller
from vctl.core.identity import Identity
from vctl.errors import BadSpec, NotPermitted, VctlError
from vctl.operations import clusters, jobs, limits, nodes, tasks
from vctl.operations.declare import Context, Operation
from vctl.ops import users
from vctl.ops.rights import RIGHTS
from vctl.store.store import Store

pytestmark = spec("19.rights")

CANARY = "canary-7f3a"
ANA, BEN, SAM = Identity(20001, "ana"), Identity(20002, "ben"), Identity(20003, "sam", frozenset({"lab"}))
PAT, LEA = Identity(20004, "pat", frozenset({"profs"})), Identity(20005, "lea")
ROOT, MEMBER = Identity(0, "root", is_admin=True), Identity(20006, "mia", frozenset({"vctl"}), is_admin=True)


@dataclass(frozen=True)
class Asking:
    """Who asks, and the job in which the process says that it runs."""

    identity: Identity
    job: str = ""


CALLERS = {
    "owner": Asking(ANA),
    "other": Asking(BEN),
    "submitter": Asking(SAM),
    "admin": Asking(PAT),
    "admin above": Asking(LEA),
    "root": Asking(ROOT),
    "member": Asking(MEMBER),
    "its parent job": Asking(ANA, "parent"),
    "owner's other job": Asking(ANA, "beside"),
    "other's job": Asking(BEN, "bens"),
    "other posing": Asking(BEN, "parent"),
    "root posing": Asking(ROOT, "parent"),
}
ALL = {*CALLERS} - {"other posing", "root posing"}
SERVICE = {"root", "member"}
READERS = {"owner", "admin", "admin above", "its parent job", "owner's other job", *SERVICE}
CHANGERS = READERS - {"owner's other job"}
AS_OWNER = {"owner", "its parent job", *SERVICE}
ADMINS = {"admin", "admin above", *SERVICE}
SUBMITTERS = {"owner", "submitter", "its parent job", "owner's other job", *ADMINS}
USERS = ALL - {"its parent job", "owner's other job", "other's job"}

JOB: dict[str, Any] = {"ref": "hers"}
COMMAND: dict[str, Any] = {
    "entrypoint": ("true",),
    "cluster": "lab",
    "cwd": "/",
    "environment": {"PATH": "/bin"},
}
TABLE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "job submit": (COMMAND, SUBMITTERS),
    "job submit-many": ({"jobs": [{"entrypoint": ["true"], "cluster": "lab"}], "cwd": "/"}, SUBMITTERS),
    "job dry-run": (COMMAND, SUBMITTERS),
    "job list": ({}, ALL),
    "job get": (JOB, ALL),
    "job delete": ({"ref": "failed"}, CHANGERS),
    "job delete-all": ({"jobs": ["failed"]}, CHANGERS),
    "job stop": (JOB, CHANGERS),
    "job rerun": ({**JOB, "cluster": "lab"}, CHANGERS),
    "job hold": (JOB, CHANGERS),
    "job release": (JOB, CHANGERS),
    "job edit": ({**JOB, "priority": 3}, CHANGERS),
    "why": (JOB, ALL),
    "task run": ({"entrypoint": ("true",), "job": "running", "cwd": "/", "environment": {}}, AS_OWNER),
    "task run-many": (
        {"tasks": [{"entrypoint": ["true"], "job": "running"}], "cwd": "/", "environment": {}},
        AS_OWNER,
    ),
    "task list": ({}, ALL),
    "task get": ({"ref": "task-1"}, ALL),
    "task why": ({"ref": "task-1"}, ALL),
    "task cancel": ({"ref": "task-1"}, CHANGERS),
    "objects list": ({}, ALL),
    "object get": ({"ref": "running/weights"}, READERS),
    "task put": (
        {"name": "more", "inside": {"VCTL_SUBMISSION_ID": "running", "VCTL_NODE_ID": "n-00"}},
        AS_OWNER,
    ),
    "vc create": ({"cluster_id": "new", "parent": "lab"}, ADMINS),
    "vc list": ({}, ALL),
    "vc tree": ({"cluster_id": "lab"}, ALL),
    "vc get": ({"cluster_id": "lab"}, ALL),
    "vc update": ({"cluster_id": "lab", "submitters": ["root"]}, ADMINS),
    "reserve": ({"cluster": "lab", "num_cpus": 1, "length_s": 60}, SUBMITTERS & USERS),
    "vc delete": ({"cluster_id": "lab"}, {"admin above", *SERVICE}),
    "vc remove-nodes": ({"cluster_id": "lab", "node_ids": []}, ADMINS),
    "vc stop": ({"cluster_id": "lab"}, ADMINS),
    "vc resume": ({"cluster_id": "lab"}, ADMINS),
    "vc export": ({}, ALL),
    "vc plan": ({"clusters": []}, ALL),
    "vc apply": ({"clusters": []}, SERVICE),
    "limit set": ({"cluster": "lab", "cpus": 1}, ADMINS),
    "limit list": ({}, ALL),
    "limit clear": ({"every": True}, SERVICE),
    "node add": ({"resources": {"CPU": 1}}, SERVICE),
    "node list": ({}, ALL),
    "node get": ({"node_id": "n-00"}, ALL),
    "node update": ({"node_id": "n-00", "labels": {"a": "b"}}, SERVICE),
    "node remove": ({"node_id": "n-00"}, SERVICE),
    "node drain": ({"node_id": "n-00"}, SERVICE),
    "node undrain": ({"node_id": "n-00"}, SERVICE),
    "node kill": ({"node_id": "n-00"}, SERVICE),
    "node heartbeat": ({"node_id": "n-00"}, SERVICE),
    "node ignore": ({"node_id": "n-00", "pid": os.getpid()}, SERVICE),
    "simulate": ({}, ALL),
    "prune": ({"older_than_s": 0.0}, SERVICE),
    "replay": ({"dry_run": True}, SERVICE),
    "doctor": ({}, SERVICE),
    "repair": ({}, SERVICE),
    "status": ({}, ALL),
    "scheduler": ({}, ALL),
    "cluster-resources": ({}, ALL),
    "available-resources": ({}, ALL),
    "cluster-nodes": ({}, ALL),
    "gpus": ({}, ALL),
    "current-cluster": ({}, ALL),
    "vnodes": ({}, ALL),
    "vnode": ({"vnode_id": "lab/0"}, ALL),
    "leases": ({}, ALL),
    "demand": ({}, ALL),
    "report": ({"by": "job"}, ALL),
    "events": ({}, ALL),
    "summary": ({"kind": "jobs"}, ALL),
    "login": ({}, USERS),
    "logout": ({}, USERS),
    "token list": ({}, USERS),
    "token revoke": ({"tokens": ["99"]}, USERS),
}
"""Operation -> its arguments, about ana's job in the cluster lab; and who may carry it out."""


def _submit(context: Context, identity: Identity, name: str, inside: str = "", **fields: Any) -> None:
    context.store.identity, context.store.caller = identity, _caller(context.store, inside)
    given = {
        "entrypoint": ("sh", "-c", f"echo {CANARY}"), "cwd": f"/home/{CANARY}", "cluster": "lab", "submission_id": name,
        "metadata": {"note": CANARY}, "environment": {"PATH": "/bin", "SECRET": CANARY}, **fields,
    }  # fmt: skip
    jobs.submit.at(context, **given)
    context.store.identity = context.store.caller = None


def _caller(store: Store, job: str) -> Caller | None:
    if not job:
        return None
    return Caller(store.value("SELECT job_id FROM jobs WHERE submission_id = ?", job), job)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state with ana's jobs in the cluster lab, whose private parts all have the canary."""
    home = tmp_path_factory.mktemp("shared") / "state"
    with Store.open(home) as store:
        context = Context(store, load(flags={"home": str(home)}))
        nodes.add.at(context, resources={"CPU": 8, "memory": 2**33}, count=2, node_id="n", template="8c")
        clusters.create.at(
            context, "dept", divisible=True, spec={"flexible_resource_min": {"CPU": 8}}, admins=["lea"]
        )
        clusters.create.at(
            context, "lab", parent="dept", divisible=True, spec={"flexible_resource_min": {"CPU": 4}},
            submitters=["ana", "@lab"], admins=["@profs"],
        )  # fmt: skip
        for name in ("parent", "beside", "running", "failed"):
            _submit(context, ANA, name)
        _submit(
            context,
            BEN,
            "bens",
            cluster="primary",
            metadata={},
            entrypoint=("true",),
            cwd="/",
            environment={},
        )
        for name in ("hers", "running", "failed"):
            if name != "hers":
                store.db.execute("UPDATE jobs SET submitted_by = 1 WHERE submission_id = ?", (name,))
        _submit(context, ANA, "hers", inside="parent")
        _submit(context, ANA, "many", array="1-2060")
        with store.transaction():
            store.db.execute(
                "UPDATE jobs SET status = 'FAILED', ended_at = ?, message = ?, state_reason = 'LaunchFailed',"
                " exit_code = 126 WHERE submission_id = 'failed'",
                (store.clock(), f"cannot run /home/{CANARY}"),
            )
            store.db.execute(
                "UPDATE jobs SET status = 'RUNNING', started_at = ? WHERE submission_id = 'running'",
                (store.clock(),),
            )
            number = store.value("SELECT job_id FROM jobs WHERE submission_id = 'running'")
            store.db.execute(
                "INSERT INTO objects VALUES (?, 'weights', 'n-00', 'lab##running', 7, NULL, ?)",
                (number, store.clock()),
            )
            store.event("job.noted", "job", "running", data={"text": CANARY})
            store.db.execute("UPDATE events SET job_id = ? WHERE object_id = 'running'", (number,))
        tasks.run.at(
            context,
            entrypoint=("echo", CANARY),
            job="running",
            cwd=f"/home/{CANARY}",
            environment={"SECRET": CANARY},
        )
    return home


@pytest.fixture
def context(template: Path, tmp_path: Path) -> Iterator[Context]:
    home = tmp_path / "state"
    shutil.copytree(template, home)
    with Store.open(home) as store:
        yield Context(store, load(flags={"home": str(home)}))


def verdict(operation: Operation[Any, Any], context: Context, given: dict[str, Any]) -> tuple[bool, str]:
    """Whether an operation got past the rights, and all that it said."""
    try:
        reply = operation.document(operation.at(context, **given))
    except VctlError as error:
        return not isinstance(error, NotPermitted), json.dumps(error.document())
    return True, json.dumps(reply, default=list)


@pytest.mark.parametrize("operation", DECLARED, ids=lambda one: one.name.replace(" ", "-"))
def test_who_may_carry_it_out(operation: Operation[Any, Any], template: Path, tmp_path: Path) -> None:
    """Every operation has a row here, and what others get of it is silent about what ana runs."""
    given, allowed = TABLE[operation.name]
    assert operation.right in RIGHTS
    found = set()
    for name, asking in CALLERS.items():
        home = tmp_path / name
        shutil.copytree(template, home)
        with Store.open(home) as store:
            context = Context(store, load(flags={"home": str(home)}))
            store.identity, store.caller = asking.identity, _caller(store, asking.job)
            passed, said = verdict(operation, context, given)
        if passed:
            found.add(name)
        if name not in READERS:
            assert CANARY not in said, (operation.name, name)
    assert found == allowed


def test_no_row_is_of_an_operation_that_is_gone() -> None:
    assert TABLE.keys() == {operation.name for operation in DECLARED}
    assert len(HOMES) >= len(TABLE)


def test_the_owner_and_admins_see_all_of_it(context: Context) -> None:
    """The canary is found by those who may see it, so its absence elsewhere says something."""
    for name in sorted(READERS):
        context.store.identity = CALLERS[name].identity
        for operation, given in (
            (jobs.get_job, {"ref": "hers"}),
            (jobs.list_jobs, {}),
            (jobs.get_job, {"ref": "many"}),
        ):
            assert CANARY in verdict(operation, context, given)[1], (name, operation.name)


def test_a_refusal_names_who_may(context: Context) -> None:
    context.store.identity = BEN
    with pytest.raises(NotPermitted) as refused:
        jobs.stop.at(context, "hers")
    assert refused.value.problem == (
        "job hers belongs to ana: ana, admins of lab, admins of dept and root may stop it"
    )
    assert refused.value.details["may"] == ["ana", "admins of lab", "admins of dept", "root"]
    with pytest.raises(
        NotPermitted,
        match=r"ben is no submitter of lab: ana, @lab, admins of lab and admins of dept may submit to it",
    ):
        jobs.submit.at(context, **COMMAND)
    with pytest.raises(
        NotPermitted, match="ben is no admin of lab: admins of lab, admins of dept and root may change lab"
    ):
        clusters.stop.at(context, "lab")


@pytest.mark.parametrize(
    "changes", [{"env": {"LD_PRELOAD": "/tmp/x.so"}}, {"cwd": "/tmp"}, {"clean_env": True}]
)
def test_an_admin_of_a_cluster_runs_nothing_as_another_user(
    context: Context, changes: dict[str, Any]
) -> None:
    """He stops and edits jobs; what they run is for their owners and for those who are root anyway."""
    store, rerun = context.store, jobs.rerun
    for identity, is_refused in ((PAT, True), (ANA, False), (ROOT, False)):
        store.identity = identity
        for operation, given in ((jobs.edit, {"ref": "hers"}), (rerun, {"ref": "failed", "failed": True})):
            if operation is jobs.edit and "clean_env" in changes:
                continue  # no job can be edited so
            passed, _ = verdict(operation, context, {**given, **changes})
            assert passed is not is_refused, (identity.name, operation.name)
    store.identity = PAT  # what he runs again is his own, with his own rights
    assert rerun.at(context, "failed", **changes)["user"] == "pat"
    assert store.value("SELECT uid FROM jobs ORDER BY job_id DESC") == PAT.uid


def test_the_output_is_for_readers(context: Context) -> None:
    from vctl.ops import jobs as job_ops
    from vctl.ops import tasks as task_ops

    for name, asking in CALLERS.items():
        if name.endswith("posing"):
            continue
        context.store.identity = asking.identity
        for read, ref in ((job_ops.log, "hers"), (job_ops.log, "many"), (task_ops.log, "task-1")):
            try:
                read(context.store, ref)
                passed = True
            except NotPermitted:
                passed = False
            assert passed is (name in READERS), (name, ref)


def test_submitters_and_admins_are_inherited_and_taken_back(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = context.store
    monkeypatch.setattr(users, "check_names", lambda *_: None)

    def may(identity: Identity, cluster: str) -> bool:
        store.identity = identity
        passed, _ = verdict(jobs.submit, context, {**COMMAND, "cluster": cluster})
        store.identity = None
        return passed

    clusters.create.at(context, "sub", parent="lab", divisible=True)
    assert may(BEN, "dept")
    assert not may(BEN, "sub")
    assert may(SAM, "sub")
    assert may(PAT, "sub")
    store.identity = PAT
    clusters.update.at(context, "sub", submitters=["ben"])
    assert may(BEN, "sub")
    assert not may(SAM, "sub")
    assert may(LEA, "sub")
    store.identity = LEA
    clusters.update.at(context, "sub", submitters=[])
    assert not may(BEN, "sub")
    clusters.update.at(context, "lab", submitters=[], admins=[])
    assert may(BEN, "sub")
    store.identity = PAT
    assert not verdict(clusters.update, context, {"cluster_id": "lab", "admins": ["pat"]})[0]
    store.identity = ROOT
    clusters.update.at(context, "primary", submitters=["@lab"], admins=["sam"])
    assert clusters.get_cluster.at(context, "primary")["admins"] == ["sam"]
    assert not may(BEN, "primary")
    assert may(SAM, "dept")
    store.identity = SAM
    assert verdict(clusters.stop, context, {"cluster_id": "lab"})[0]


def test_what_a_process_says_about_itself_adds_nothing(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in the environment, of the caller or of the server, are no identity."""
    for name in ("USER", "LOGNAME", "SUDO_USER", "VCTL_USER"):
        monkeypatch.setenv(name, "ana")
    context.store.identity = BEN
    assert not verdict(jobs.stop, context, {"ref": "hers"})[0]
    made = jobs.submit.at(
        context, entrypoint=("true",), cwd="/", environment={"USER": "ana"}, cluster="primary"
    )
    assert (made["user"], os.environ["USER"]) == ("ben", "ana")


HIDDEN_IDS = ("hers", "running", "failed", "many", "many_7", "many_2055")


def test_a_private_queue_hides_names(context: Context) -> None:
    """Of jobs and of their users, on every surface, from all but those who administer the cluster."""
    store = context.store
    store.identity = ROOT
    clusters.update.at(context, "dept", private_queue=True)
    assert clusters.get_cluster.at(context, "lab")["private_queue"] is None  # as above it
    for operation in DECLARED:
        given, allowed = TABLE[operation.name]
        if "other" not in allowed or operation.right not in ("see", "submit"):
            continue
        store.identity = BEN
        if "ref" in given:
            given = {**given, "ref": given["ref"] if "task" in operation.name else "6"}
        said = verdict(operation, context, given)[1]
        for name in HIDDEN_IDS:
            assert not re.search(rf'"{name}"(?!:)', said), (operation.name, name)
            assert f"##{name}" not in said, (operation.name, name)
        if operation.name in ("job list", "status", "job get", "why", "demand", "gpus"):
            assert '"ana"' not in said, operation.name
    listed, _ = jobs.list_jobs.at(context, members=False)
    assert {job["submission_id"] for job in listed if job["user"] == "ben"} == {"bens"}
    assert {job["submission_id"] for job in listed if job["user"] != "ben"} == {
        f"hidden-{number}" for number in (1, 2, 3, 4, 6, 7)
    }
    assert jobs.get_job.at(context, "6")["submission_id"] == "hidden-6"
    for filters in (["user=ana"], ["name!=x", "user!=ben"], ["submission_id=hers"], ["cluster_id=lab##hers"]):
        for members in (True, False):
            assert jobs.list_jobs.at(context, filters=filters, members=members) == ([], 0), filters
    with pytest.raises(VctlError) as refused:
        jobs.get_job.at(context, "herz")
    assert "hers" not in json.dumps(refused.value.document())
    for identity, hidden in ((ANA, False), (PAT, False), (LEA, False), (MEMBER, False), (SAM, True)):
        store.identity = identity
        assert (jobs.get_job.at(context, "6")["submission_id"] != "hers") is hidden, identity.name
    store.identity = PAT
    clusters.update.at(context, "lab", private_queue=False)
    store.identity = BEN
    assert jobs.get_job.at(context, "hers")["user"] == "ana"


def test_a_shared_service_runs_no_command_of_a_user_on_its_own_account(context: Context) -> None:
    """A notice of a job would run as the account of the service, which owns the tables."""
    context.store.identity = ANA
    with pytest.raises(BadSpec, match="a shared service runs none on its own account"):
        jobs.submit.at(context, **COMMAND, notify="touch /tmp/x")
    for notify in ("none", "https://example.org/hook", "mailto:ana@example.org"):
        jobs.submit.at(context, **COMMAND, notify=notify)


def test_names_that_nobody_has_are_refused(context: Context) -> None:
    """A name with a mistake would shut somebody out, or in a group's place let nobody in."""
    context.store.identity = ROOT
    for given, problem in (
        ({"submitters": ["nobody-here"]}, "submitters: there is no user nobody-here on this machine"),
        ({"admins": ["@nobody-here"]}, "admins: there is no group nobody-here on this machine"),
    ):
        with pytest.raises(BadSpec, match=problem):
            clusters.update.at(context, "lab", **given)
        with pytest.raises(BadSpec, match=problem):
            clusters.update.at(context, "primary", **given)
    clusters.update.at(context, "lab", submitters=["root"], admins=["@root"])
    assert clusters.get_cluster.at(context, "lab")["admins"] == ["@root"]


def test_limits_of_users_are_set_by_the_admins_of_the_service(context: Context) -> None:
    store = context.store
    for identity, may in ((ANA, False), (PAT, False), (LEA, False), (ROOT, True), (MEMBER, True)):
        store.identity = identity
        for user in ("ana", "*"):
            assert verdict(limits.set_limits, context, {"user": user, "cpus": 1})[0] is may, identity
    assert {one["set_by"] for one in limits.list_limits.at(context)} == {"mia"}
    store.identity = PAT
    assert limits.set_limits.at(context, cluster="lab", running_jobs=3)[0]["set_by"] == "pat"
    assert not verdict(limits.clear, context, {"user": "ana"})[0]
    assert verdict(limits.clear, context, {"cluster": "lab"})[0]
