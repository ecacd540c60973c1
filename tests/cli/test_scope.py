"""spec 11: inside a job every command looks at its cluster and changes nothing outside of it, however it is spelled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SERVER, Cli
from tests.operations.test_declared import DECLARED
from tests.specification import spec
from tests.world import World
from vctl import connect
from vctl.core.caller import Caller
from vctl.core.resources import CPU, SCALE
from vctl.errors import BadSpec, NotPermitted
from vctl.ops import nodes as world_nodes
from vctl.ops import submitting, tasks
from vctl.spec.job_request import JobRequest
from vctl.spec.task_request import TaskRequest
from vctl.store.store import Store

pytestmark = spec("11.scope")

ME = "kPrimaryClusterID##me"


def submit(cli: Cli, name: str, *words: str) -> int:
    ran = cli("run", "--no-wait", "--submission-id", name, *words, "-o", "json", "--", "sleep", "9")
    assert ran.code == 0, ran.err
    number: int = ran.json["job_id"]
    return number


def enter(monkeypatch: pytest.MonkeyPatch, number: int, name: str = "me", cluster: str = ME) -> None:
    """This process is one of a job from now on."""
    monkeypatch.setenv("VCTL_JOB_ID", str(number))
    monkeypatch.setenv("VCTL_SUBMISSION_ID", name)
    monkeypatch.setenv("VCTL_CLUSTER_ID", cluster)


@pytest.fixture
def inside(nodes: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A shell inside the job ``me``, which has submitted ``child``; ``outsider`` and ``team`` are nothing of it."""
    monkeypatch.setenv("VCTL_AUTOSTART", "0")
    assert nodes("vc", "create", "team", "--spec", '{"flexible_resource_min": {"CPU": 1}}').code == 0
    submit(nodes, "outsider")
    number = submit(nodes, "me")
    enter(monkeypatch, number)
    submit(nodes, "child")
    return nodes


SPELLINGS = ["ps", "job list", "job list -a", "list jobs", "ps -a", "list jobs --detail"]


@pytest.mark.parametrize("line", SPELLINGS)
def test_every_list_of_jobs_shows_its_own(inside: Cli, line: str) -> None:
    assert [job["submission_id"] for job in inside(line + " -o json").json["items"]] == ["child", "me"]


@pytest.mark.parametrize("line", SPELLINGS)
def test_another_cluster_is_shown_when_it_is_named(inside: Cli, line: str) -> None:
    found = [job["submission_id"] for job in inside(line + " -c primary -o json").json["items"]]
    assert found == ["child", "me", "outsider"]
    assert inside(line + " -c team -o json").json["items"] == []


def test_counts_and_history_have_the_same_scope(inside: Cli) -> None:
    assert inside("summary jobs -o json").json["total"] == 2
    for line in ("events", "list events"):
        items = inside(line + " -o json").json["items"]
        assert {item["object_id"] for item in items} == {"me", "child"}, line
    assert inside("vc list -o json").json["items"] == inside("list clusters -o json").json["items"] == []
    assert inside("vc export -o json").json == {"clusters": []}
    assert [one["id"] for one in inside("vc export primary -o json").json["clusters"]] == ["team"]
    assert inside("demand -o json").json["items"] == inside("lease list -o json").json["items"] == []


@pytest.mark.parametrize(
    "line", ["ps", "events", "list jobs", "vc list", "lease list", "demand", "list leases", "summary jobs"]
)
def test_an_unknown_cluster_is_not_found(nodes: Cli, line: str) -> None:
    """spec 13: exit code 4."""
    ran = nodes(line + " -c nosuch")
    assert (ran.code, ran.out) == (4, ""), ran.err
    assert "nosuch" in ran.err


@pytest.mark.parametrize(
    "line",
    [
        'vc update nosuch --spec {"flexible_resource_min":{"CPU":1}}',
        "vc update nosuch --queue-order fifo",
        "vc create x --parent nosuch",
        "vc stop nosuch",
        "vc remove-nodes nosuch 4c8g-00",
        "vc delete nosuch",
    ],
)
def test_an_unknown_cluster_is_not_one_outside_of_the_job(inside: Cli, line: str) -> None:
    ran = inside(line)
    assert (ran.code, ran.out) == (4, ""), ran.err
    assert "cluster nosuch does not exist" in ran.err


CHANGES = {
    "job stop": "stop outsider",
    "job hold": "job hold outsider",
    "job release": "job release outsider",
    "job edit": "job edit outsider --priority 3",
    "job delete": "job delete outsider",
    "job delete-all": "job delete outsider",
    "job rerun": "job rerun outsider",
    "task run": "task run --job outsider -- true",
    "job submit": "run -c team --no-wait -- true",
    "job submit-many": "job submit --from lines.jsonl --no-wait",
    "job dry-run": "run -c team --dry-run -- true",
    "vc create": 'vc create x --parent primary --spec {"flexible_resource_min":{"CPU":1}}',
    "vc update": 'vc update team --spec {"flexible_resource_min":{"CPU":2}}',
    "the queue of the primary": "vc update primary --queue-order fair",
    "vc delete": "vc delete team",
    "reserve": "reserve --cpus 1 --for 1h",
    "vc stop": "vc stop team",
    "vc resume": "vc resume team",
    "vc remove-nodes": "vc remove-nodes team 4c8g-00",
    "vc apply": "vc apply -f tree.yaml",
    "node drain": "node drain 4c8g-00",
    "node undrain": "node undrain 4c8g-00",
    "node kill": "node kill 4c8g-00",
    "node add": 'node add --simulated --resources {"CPU":1}',
    "node update": 'node update 4c8g-00 --resources {"CPU":1}',
    "node remove": "node remove 4c8g-00",
    "node heartbeat": "node heartbeat 4c8g-00",
    "node ignore": "node ignore 4c8g-00 4242",
    "prune": "prune --older-than 1d",
    "limit set": "limit set --user root --cpus 2",
    "limit clear": "limit clear --all",
    "replay": "replay",
    "repair": "doctor --repair",
    "the scheduler": "daemon --stop",
    "restore": "restore copy",
}
CHANGE_NOTHING = {"vc plan", "simulate"}
ELSEWHERE = {"task cancel", "task run-many", "task put", "login", "logout", "token revoke"}
"""Cancel and many: test_the_task_of_another_job_is_not_cancelled. What is put belongs to the calling job, unnamed.
Tokens are of a shared service: tests/operations/test_rights.py.
"""


def test_every_verb_that_changes_something_is_tried() -> None:
    """A new verb belongs above, or it says why a job may call it."""
    changing = {verb.name for verb in DECLARED if verb.method != "GET"}
    assert changing <= CHANGES.keys() | CHANGE_NOTHING | ELSEWHERE


def test_the_task_of_another_job_is_not_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with World(tmp_path / "state") as world:
        world_nodes.add(world.store, resources={CPU: 4 * SCALE})
        numbers = {
            name: submitting.submit(
                world.store,
                JobRequest(argv=("x",), submission_id=name, cwd="/"),
                environment={"PATH": "/bin"},
            )["job_id"]
            for name in ("me", "outsider")
        }
        world.turn()
        asked = TaskRequest(argv=("sleep", "9"), job="outsider", request={CPU: SCALE}, cwd="/")
        task_id = tasks.run(world.store, asked, environment={"PATH": "/bin"})["task_id"]
        world.store.caller = Caller(numbers["me"], "me")
        with pytest.raises(NotPermitted, match="job me may not change job outsider"):
            tasks.cancel(world.store, task_id)
        with pytest.raises(NotPermitted, match="line 1: job me may not change job outsider"):
            tasks.run_many(world.store, [(asked, {})])
        world.store.caller = Caller(numbers["outsider"], "outsider")
        assert tasks.cancel(world.store, task_id)["state"] == "FAILED"


@spec("13.output")
def test_a_refusal_has_the_name_of_the_cluster_that_screens_have(inside: Cli) -> None:
    run = inside("run --no-wait -c team -- true")
    assert "may not change cluster team, and submits to primary only: it is" in run.err
    made = inside("vc create x --parent primary --spec {}")
    assert "may not change cluster primary: it is" in made.err


@spec("13.waiting")
@pytest.mark.on_the_machine  # a server without a scheduler lets each of these waits take long
def test_a_job_that_waits_for_its_own_end_is_warned(inside: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = "me is the job of this command: if it waits for this command, both wait forever.\n"
    for line in ("job wait me --timeout 0", "logs -f me"):
        assert inside(line).err.count(warning) == 1, line
    assert warning not in inside("job wait child --timeout 0").err
    assert warning not in inside("logs me").err
    with monkeypatch.context() as here:
        here.setenv("VCTL_TASK_ID", "t")  # a detached task may outlive the job
        assert warning not in inside("job wait me --timeout 0").err
    with monkeypatch.context() as here:
        here.setenv("VCTL_JOB_ID", "999")  # a job of the same name in another state directory
        assert warning not in inside("job wait me --timeout 0").err
    assert warning not in inside("job stop me").err
    assert warning not in inside("job wait me").err  # it is over


@spec("7.create", "14.api")
def test_a_cluster_inside_a_job_is_divisible_and_nothing_else(
    nodes: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = submit(nodes, "me")
    with World(nodes.home) as world:
        world.turn()
    enter(monkeypatch, number)
    refused = nodes("vc create s --indivisible")
    assert refused.code == 2
    assert refused.err == (
        "Error: --indivisible: s is inside the cluster of a job, where every cluster is divisible\n"
        "Fix: leave it out: the jobs and tasks of the job share its clusters anyway\n"
    )
    assert nodes("vc get primary##me##s").code == 4
    assert nodes("vc create s -o json").json["divisible"] is True
    assert nodes("vc create t --divisible -o json").json["divisible"] is True


@pytest.mark.parametrize("line", CHANGES.values(), ids=list(CHANGES))
def test_what_is_outside_is_not_changed(
    inside: Cli, line: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tree.yaml").write_text("clusters: []\n")
    Path("lines.jsonl").write_text('{"entrypoint": ["true"]}\n{"entrypoint": ["true"], "cluster": "team"}\n')
    with monkeypatch.context() as here:
        here.delenv("VCTL_ADDRESS", raising=False)
        assert inside("backup copy").code == 0
    everything = [
        "ps -a -c primary -o json",
        "vc get team -o json",
        "vc get primary -o json",
        "node list -o json",
    ]
    monkeypatch.delenv("VCTL_OUTPUT", raising=False)
    before = [inside(one).json for one in everything]
    ran = inside(line)
    assert (ran.code, ran.out) == (8, ""), ran.err
    away = backend == SERVER and line.startswith("restore")  # not even asked
    assert ("VCTL_ADDRESS" if away else "job_scope = all") in ran.err
    after = [inside(one).json for one in everything]
    for one in (*before, *after):  # times pass
        json.dumps(one)
    assert str(after).count("outsider") == str(before).count("outsider")
    assert after[1]["revision"] == before[1]["revision"]
    assert inside("job status outsider -o json").json["status"] == "PENDING"


def test_what_it_submitted_is_its_own(inside: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """spec 11: to see and to stop; and what that submitted, too."""
    child = inside("job status child -o json").json["job_id"]
    enter(monkeypatch, child, "child", "kPrimaryClusterID##child")
    submit(inside, "grandchild")
    me = inside("job status me -o json").json["job_id"]
    assert inside("stop me").code == 8
    enter(monkeypatch, me)
    assert [job["submission_id"] for job in inside("ps -o json").json["items"]] == [
        "grandchild",
        "child",
        "me",
    ]
    assert (
        inside("job hold child").code
        == inside("stop grandchild").code
        == inside("job delete grandchild").code
        == 0
    )


def test_arrays_are_judged_as_wholes(inside: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(inside, "mine", "--array", "0-2")
    for name in ("VCTL_JOB_ID", "VCTL_SUBMISSION_ID", "VCTL_CLUSTER_ID"):
        monkeypatch.delenv(name)
    assert inside("run --no-wait --submission-id theirs --array 0-2 -- true").code == 0
    me = inside("job status me -o json").json["job_id"]
    enter(monkeypatch, me)
    assert inside("stop theirs").code == inside("stop theirs_1").code == 8
    assert [row.split()[0] for row in inside("ps --no-header").out.splitlines()] == ["me", "child", "mine"]
    assert inside("stop mine").code == 0


def test_the_setting_of_the_submitter_opens_it(nodes: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(nodes, "outsider")
    closed = submit(nodes, "closed")
    monkeypatch.setenv("VCTL_JOB_SCOPE", "all")
    number = submit(nodes, "me")
    enter(monkeypatch, closed, "closed", "kPrimaryClusterID##closed")
    assert nodes("stop outsider").code == 8, "a job cannot set it for itself"
    secret = submit(nodes, "secret")
    enter(monkeypatch, secret, "secret", "kPrimaryClusterID##secret")
    assert nodes("stop outsider").code == 8, "nor for what it submits"
    enter(monkeypatch, number)
    assert nodes("stop outsider").code == 0
    assert nodes("ps -o name").out.split() == ["me"], "it still looks at its own cluster first"


@pytest.mark.on_the_machine  # a server is taken to be the one of the job
def test_the_environment_of_another_state_directory_means_nothing(
    nodes: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(nodes, "here")
    enter(monkeypatch, 77, "elsewhere", "kPrimaryClusterID##elsewhere")
    assert nodes("ps -o name").out.split() == ["here"]
    assert nodes("cluster-resources").code == nodes("stop here").code == 0


def test_the_recorded_jobs_of_others_are_not_simulated(inside: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`simulate` replayed the jobs of everybody; a job that shares a cluster replays those of that cluster."""
    with Store.open(inside.home) as store, store.transaction():
        store.db.execute(
            "UPDATE jobs SET status = 'SUCCEEDED', started_at = submitted_at, ended_at = submitted_at + 9"
        )
    for words in ("simulate", "simulate -c " + ME, "simulate -c primary##me"):
        ran = inside(words)
        assert (ran.code, ran.out) == (2, ""), words
        assert "--cluster: primary##me is the cluster of one job" in ran.err
        assert "write --cluster=primary" in ran.err
    assert inside("simulate -c primary -o json").json["jobs"] == 3
    assert inside("simulate -c primary##nosuch").code == 4
    assert inside("simulate --model lublin --jobs 3 --nodes 4").code == 0
    with pytest.raises(BadSpec, match="cluster of one job"):
        connect(inside.home, cluster=ME).simulate()
    assert connect(inside.home).simulate(cluster="primary")["jobs"] == 3
    monkeypatch.setenv("VCTL_CLUSTER_ID", "team")
    assert "there is no job of team in it" in inside("simulate").err


def test_python_has_the_same_scope(inside: Cli) -> None:
    program = """
import vctl, json
from vctl.errors import BadSpec, NotPermitted
found = [job["submission_id"] for job in vctl.list_jobs()]
try:
    vctl.connect().jobs.get("outsider").stop(wait=False)
except NotPermitted as error:
    found.append(error.exit_code)
vctl.connect().jobs.get("child").stop(wait=False)
print(json.dumps(found))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(ran.stdout) == ["child", "me", 8]
