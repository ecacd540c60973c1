"""The command line against a server: the same commands, output and exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.http.conftest import TOKEN, Running
from tests.specification import spec

pytestmark = spec("14.remote")

RESOURCES = '{"CPU": 4, "memory": "8GiB"}'


def local(server: Running, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**server.env, "VCTL_TOKEN": ""}
    return server.nursery.run(list(words), env, Path.cwd())


@pytest.fixture
def remote(server: Running) -> Running:
    made = server.vctl(
        "node", "add", "--count", "3", "--template", "t", "--simulated", "--resources", RESOURCES
    )
    assert (made.returncode, made.stdout) == (0, "3 nodes t-00 to t-02 added\n"), made.stderr
    return server


def test_a_remote_submit_hands_on_every_variable_that_is_text(remote: Running) -> None:
    """spec 8: the environment of the submitter is captured, whatever letters and line ends are in it."""
    value = "one\nz\u00fcrich\ttab\x7f\u202e\u0085 end"
    ran = remote.vctl("job", "submit", "--", "sh", "-c", 'printf %s "$ODD"', ODD=value)
    assert (ran.returncode, ran.stdout) == (0, value), ran.stderr


def test_a_client_inside_a_job_changes_nothing_outside_of_it(remote: Running) -> None:
    """spec 11: command line, HTTP and Python agree."""
    for name in ("outsider", "me"):
        assert remote.vctl("run", "-d", "--submission-id", name, "--", "sleep", "60").returncode == 0
    number = json.loads(remote.vctl("job", "status", "me", "-o", "json").stdout)["job_id"]
    here = {
        "VCTL_JOB_ID": str(number),
        "VCTL_SUBMISSION_ID": "me",
        "VCTL_CLUSTER_ID": "kPrimaryClusterID##me",
    }
    assert remote.vctl("run", "-d", "--submission-id", "child", "--", "sleep", "60", **here).returncode == 0
    assert remote.vctl("ps", "-o", "name", **here).stdout.split() == ["child", "me"]
    refused = remote.vctl("stop", "outsider", **here)
    assert (refused.returncode, refused.stdout) == (8, ""), refused.stderr
    assert remote.vctl("node", "drain", "t-00", **here).returncode == 8
    assert remote.vctl("stop", "--no-wait", "child", **here).returncode == 0
    assert remote.vctl("stop", "--no-wait", "outsider").returncode == 0


READING = """
status; cluster-resources; available-resources; nodes; current-cluster; current-node team/0
vc list; vc list --limit 1 -o name; vc tree; vc get team; vc get nope; vc export
vc delete team/; vc update .. --spec {}
node list; node get t-00; node get nope; task list -a; events; events --limit 2; replay --dry-run
job list -a; job list --filter nonsense; job status last; job status nope; job logs last; job wait last
list jobs; list clusters --detail; list vnodes; list nodes --filter state=ALIVE; list events --limit 2
why last; why nope; get jobs last; get clusters primary; get nodes t-01; get vnodes team/0; summary jobs; summary nodes
vc create n --spec 5; vc create n --replica-sets []; vc update team --borrow-limit 5; node add --resources 5
run --virtual-cluster 5 -- true; run --entrypoint-resources 5 -- true; task run --job last --label-selector 5 -- true
"""
AGES = re.compile(r" *\b(?:\d+m)?\d+ ?s\b")


def ageless(text: str) -> str:
    """Without what grows from one look to the next, and without the width of its column."""
    return re.sub(r" +(AGE|TIME)\b", r" \1", AGES.sub(" _", text))


@pytest.mark.timeout(400)  # some 300 commands
def test_reading_says_the_same_as_on_the_machine(remote: Running):
    assert remote.vctl("vc", "create", "team", "--replica-sets", '{"t": 1}').returncode == 0
    assert remote.vctl("job", "submit", "--", "echo", "hello").returncode == 0
    assert (
        local(remote, "daemon", "--stop").returncode == 0
    )  # its beat would differ from one look to the next
    for line in re.split(r"[;\n] *", READING.strip()):
        here, there = local(remote, *line.split()), remote.vctl(*line.split())
        assert there.returncode == here.returncode, (line, there.stderr)
        assert ageless(there.stdout) == ageless(here.stdout), line
        if here.returncode:
            assert there.stderr == here.stderr, line
        if " -o " in line or line.startswith("job logs"):
            continue
        here, there = local(remote, *line.split(), "-o", "json"), remote.vctl(*line.split(), "-o", "json")
        assert there.stdout == here.stdout, line


def test_a_submit_streams_and_exits_with_the_code_of_the_job(remote: Running):
    script = "echo out $GREETING; pwd; echo err >&2; exit 5"
    done = remote.vctl(
        "job", "submit", "--env", "GREETING=hi", "--working-dir", "/tmp", "--", "sh", "-c", script
    )
    assert (done.returncode, done.stdout) == (5, "out hi\n/tmp\nerr\n"), done.stderr
    form = remote.vctl("job", "submit", "-o", "json", "--num-cpus", "2", "--nodes", "2", "--", "true")
    assert form.returncode == 0
    job = json.loads(form.stdout)
    assert (job["status"], job["resources"]["CPU"]) == ("SUCCEEDED", 4.0)
    assert remote.vctl("job", "logs", "--follow", "last").returncode == 0


def test_jobs_are_stopped_waited_for_and_deleted(remote: Running):
    name = remote.vctl("job", "submit", "--no-wait", "--", "sleep", "60").stdout.strip()
    late = remote.vctl("job", "wait", name, "--timeout", "1s")
    assert (late.returncode, "not done after 1 s" in late.stderr) == (7, True)
    stopped = remote.vctl("job", "stop", name, "--grace", "0")
    assert (stopped.returncode, stopped.stdout) == (0, f"job {name} is STOPPED\n"), stopped.stderr
    assert remote.vctl("job", "wait", name).returncode == 143
    assert remote.vctl("job", "delete", name, "nope").returncode == 4
    assert remote.vctl("job", "delete", name).stdout == f"job {name} deleted\n"
    assert remote.vctl("job", "delete", name).returncode == 4


def test_an_interrupt_detaches(remote: Running):
    env = {**remote.env, "VCTL_ADDRESS": remote.address, "VCTL_TOKEN": TOKEN}
    words = [
        sys.executable,
        "-m",
        "vctl",
        "job",
        "submit",
        "--submission-id",
        "j",
        "--",
        "sh",
        "-c",
        "echo on; sleep 60",
    ]
    child = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "on\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=10)
    assert child.returncode == 130
    assert "vctl job stop j" in said
    assert remote.http.get("/api/v1/jobs/j").json()["status"] == "RUNNING"
    assert remote.vctl("job", "stop", "j", "--grace", "0").returncode == 0


def test_clusters_are_made_changed_and_removed(remote: Running):
    made = remote.vctl("vc", "create", "team", "--divisible", "--replica-sets", '{"t": 2}', "-o", "json")
    revision = json.loads(made.stdout)["revision"]
    stale = remote.vctl("vc", "update", "team", "--replica-sets", '{"t": 1}', "--revision", "5")
    assert (stale.returncode, str(revision) in stale.stderr) == (5, True)
    short = remote.vctl("vc", "update", "team", "--replica-sets", '{"t": 9}', "-o", "json")
    error = json.loads(short.stdout)["error"]
    assert (short.returncode, error["code"], error["details"]["replicaSetsToRecommend"]) == (
        5,
        "Conflict",
        {"t": 1},
    )
    small = remote.vctl(
        "vc", "create", "small", "--spec", '{"flexible_resource_min": {"CPU": 2}}', "--parent", "team"
    )
    assert small.returncode == 0, small.stderr
    assert remote.vctl("vc", "delete", "team").returncode == 5
    assert remote.vctl("vc", "delete", "small").returncode == 0
    name = remote.vctl("job", "submit", "--no-wait", "-c", "team", "--", "sleep", "60").stdout.strip()
    gone = remote.vctl("vc", "delete", "team", "--force")
    assert gone.returncode == 0, gone.stderr
    assert remote.vctl("job", "status", name, "-o", "json").stdout.find("STOPPED") > 0
    assert remote.vctl("job", "submit", "--num-cpus", "99", "--", "true").returncode == 3


def test_waiting_jobs_are_held_and_edited(remote: Running):
    name = remote.vctl("job", "submit", "--no-wait", "--hold", "--", "true").stdout.strip()
    assert remote.vctl("job", "hold", name).stdout == f"job {name} is held\n"
    edited = remote.vctl("job", "edit", name, "--priority", "7", "--time-limit", "none", "-o", "json")
    assert (json.loads(edited.stdout)["priority"], json.loads(edited.stdout)["state_reason"]) == (7, "Held")
    assert remote.vctl("job", "edit", name).returncode == 2
    assert remote.vctl("job", "release", name).stdout == f"job {name} is released\n"
    assert remote.vctl("job", "wait", name).returncode == 0


def test_nodes_are_given_back(remote: Running):
    assert remote.vctl("vc", "create", "team", "--replica-sets", '{"t": 2}').returncode == 0
    refused = remote.vctl("vc", "remove-nodes", "team", "t-00", "t-02", "-o", "json")
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["details"]["nodesWithFailure"]) == (5, ["t-02"])
    done = remote.vctl("vc", "remove-nodes", "team", "t-00")
    assert (done.returncode, done.stdout) == (0, "node removed from virtual cluster team\n")
    assert json.loads(local(remote, "vc", "get", "team", "-o", "json").stdout)["replica_sets"] == {"t": 1}


def test_completion_offers_what_the_server_has(remote: Running):
    offered = remote.vctl("__complete", "node", "get", "").stdout.splitlines()
    assert offered == ["t-00\tALIVE", "t-01\tALIVE", "t-02\tALIVE"]


def test_nodes_change_state(remote: Running):
    assert remote.vctl("node", "drain", "t-00", "--reason", "disk").stdout == "node t-00 is DRAINED\n"
    assert remote.vctl("node", "undrain", "t-00").stdout == "node t-00 is ALIVE\n"
    assert (
        remote.vctl("node", "update", "t-00", "--resources", '{"CPU": 8}', "--label", "rack=r1").returncode
        == 0
    )
    form = json.loads(remote.vctl("node", "get", "t-00", "-o", "json").stdout)
    assert (form["resources"]["CPU"], form["labels"]) == (8.0, {"rack": "r1"})
    assert remote.vctl("node", "kill", "t-00").stdout == "node t-00 is DEAD\n"
    assert remote.vctl("node", "heartbeat", "t-00").returncode == 5
    assert remote.vctl("node", "remove", "t-02").returncode == 0


def test_a_server_that_cannot_be_used_is_told_apart(remote: Running):
    for address, code in (("http://127.0.0.1:1", 6), ("nonsense", 2), ("ftp://x", 2), ("unix:/nowhere", 6)):
        done = remote.vctl("status", VCTL_ADDRESS=address)
        assert (done.returncode, "Fix: " in done.stderr) == (code, True), done.stderr
    assert remote.vctl("status", VCTL_TOKEN="wrong").returncode == 8
    error = json.loads(remote.vctl("status", "-o", "json", VCTL_ADDRESS="http://127.0.0.1:1").stdout)["error"]
    assert (error["code"], error["exit_code"]) == ("Unreachable", 6)
    there_only = remote.vctl("backup", "/tmp/never-written.db")
    assert (there_only.returncode, "Fix: " in there_only.stderr) == (8, True)


def test_following_survives_a_server_that_restarts_or_says_what_to_do(remote: Running):
    env = {**remote.env, "VCTL_ADDRESS": remote.address, "VCTL_TOKEN": TOKEN}
    script = "echo one; sleep 3; echo two"
    words = [sys.executable, "-m", "vctl", "job", "submit", "--submission-id", "j", "--", "sh", "-c", script]
    child = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "one\n"
    remote.process.terminate()
    remote.process.wait(10)
    port = remote.address.rpartition(":")[2]
    again = subprocess.Popen(
        [sys.executable, "-m", "vctl", "serve", "--port", port], env=remote.env, stderr=subprocess.DEVNULL
    )
    try:
        rest, said = child.communicate(timeout=40)
        assert (child.returncode, rest) == (0, "two\n"), said
    finally:
        again.terminate()
        again.wait(10)


def test_times(remote: Running):
    """A remote command costs little more than a local one."""
    started = time.monotonic()
    assert remote.vctl("status").returncode == 0
    assert time.monotonic() - started < 5


TREE = """
clusters:
  - id: org
    divisible: true
    replica_sets: {t: 2}
    children:
      - id: team
        replica_sets: {t: 1}
"""


def test_a_tree_from_a_file(remote: Running, tmp_path: Path):
    file = tmp_path / "tree.yaml"
    file.write_text(TREE)
    plan = remote.vctl("vc", "plan", "-f", str(file), "-o", "json")
    assert plan.returncode == 0, plan.stderr
    assert [change["cluster_id"] for change in json.loads(plan.stdout)["changes"]] == ["org", "team"]
    done = remote.vctl("vc", "apply", "-f", str(file))
    assert done.returncode == 0, done.stderr
    again = json.loads(remote.vctl("vc", "plan", "-f", str(file), "-o", "json").stdout)
    assert again["changes"] == []
    assert remote.vctl("vc", "export").stdout == local(remote, "vc", "export").stdout


def test_tasks_of_a_job(remote: Running):
    name = remote.vctl("job", "submit", "--no-wait", "--", "sleep", "60").stdout.strip()
    remote.http.get(f"/api/v1/jobs/{name}/wait", params={"timeout_s": 2})
    done = remote.vctl(
        "task", "run", "--job", name, "--num-cpus", "1", "--", "sh", "-c", "echo in a task; exit 4"
    )
    assert (done.returncode, done.stdout) == (4, "in a task\n"), done.stderr
    assert remote.vctl("task", "logs", "last").stdout == "in a task\n"
    assert remote.vctl("task", "wait", "last").returncode == 4
    assert remote.vctl("job", "stop", name, "--grace", "0").returncode == 0


def test_simulations(remote: Running, tmp_path: Path) -> None:
    """Command line, HTTP and Python play the same work: recorded, of a trace, of a model."""
    import vctl

    assert remote.vctl("run", "--", "true").returncode == 0
    words = ("simulate", "--policy", "fair/backfill", "-o", "json")
    here, there = local(remote, *words), remote.vctl(*words)
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)
    answer = remote.http.post("/api/v1/simulate", json={"policies": ["fair/backfill"]})
    assert (answer.status_code, answer.json()) == (200, json.loads(here.stdout))
    client = vctl.connect(remote.address, token=TOKEN)
    found = json.loads(here.stdout)
    assert client.simulate(policies=["fair/backfill"]) == {
        key: found[key] for key in ("workload", "jobs", "notes", "items")
    }
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"at": 0, "run": 60, "cluster": "a"}\n{"at": 1, "run": 60}\n')
    words = ("simulate", "--trace", str(trace), "--nodes", "1", "-o", "json")
    figures = [json.loads(ran.stdout)["items"] for ran in (local(remote, *words), remote.vctl(*words))]
    answer = remote.http.post("/api/v1/simulate", json={"trace": trace.read_text(), "nodes": [1]})
    assert figures[0] == figures[1] == answer.json()["items"]
    answer = remote.http.post(
        "/api/v1/simulate", json={"model": {"jobs": 20}, "nodes": [16], "limit_factor": 2}
    )
    assert answer.json()["jobs"] == 20
    assert client.simulate(model={"jobs": 20}, nodes=[16], limit_factor=2)["items"] == answer.json()["items"]
    for wrong in ({"trace": "{", "nodes": [1]}, {"policies": ["nosuch"]}, {"model": {"jobs": 0}}):
        assert remote.http.post("/api/v1/simulate", json=wrong).status_code in (400, 422)
    assert remote.http.post("/api/v1/simulate", json={"cluster": "nosuch"}).status_code == 404
