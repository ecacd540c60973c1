"""The commands on small real states: a divided cluster, jobs that run, the care of the state."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, python
from tests.specification import spec

pytestmark = spec("13.output", "11.views")


@pytest.fixture
def divided(nodes: Cli) -> Cli:
    """team-a (divisible) has one of the two nodes, small lies in it."""
    assert nodes("vc", "create", "team-a", "--divisible", "--replica-sets", '{"4c8g": 1}').code == 0
    spec = '{"flexible_resource_min": {"CPU": 2}}'
    assert nodes("vc", "create", "small", "--parent", "team-a", "--spec", spec).code == 0
    return nodes


def test_clusters_are_listed_and_drawn(divided: Cli) -> None:
    items = divided("vc list -o json").json["items"]
    assert [item["cluster_id"] for item in items] == ["kPrimaryClusterID", "team-a", "small"]
    lines = divided("vc tree").out.splitlines()
    assert [re.split("  +-  +(primary|logical)", line)[0] for line in lines] == [
        "CLUSTER" + lines[0][7:],
        "primary",
        "└── team-a",
        "    └── small",
    ]
    assert divided("vc tree team-a -o name").out.split() == ["team-a", "small"]
    assert divided("vc get team-a -o json").json["children"] == ["small"]
    assert "team-a" in divided("vc list").out


def test_the_list_and_the_tree_say_the_same_of_what_jobs_use(divided: Cli) -> None:
    items = divided("vc list -o json").json["items"]
    primary = divided("vc tree -o json").json
    team = primary["tree"][0]
    for listed, branch in zip(items, (primary, team, team["tree"][0]), strict=True):
        assert [listed[name] for name in ("total", "reserved", "used")] == [
            branch[name] for name in ("total", "reserved", "used")
        ]
    cpus = [re.findall(r"\d+/\d+", divided(f"vc {verb}").out) for verb in ("list", "tree")]
    assert cpus == [["0/8", "0/4", "0/2"]] * 2


def test_a_change_says_what_it_did(divided: Cli) -> None:
    ran = divided("vc", "update", "team-a", "--replica-sets", '{"4c8g": 2}')
    assert ran.out.startswith("virtual cluster team-a updated, revision ")
    assert divided("vc delete small").out == "virtual cluster small deleted\n"
    assert divided("vc delete team-a -o json").json["cluster_id"] == "team-a"


def test_shortage_and_stale_revisions_are_conflicts(divided: Cli) -> None:
    ran = divided("vc", "create", "b", "--replica-sets", '{"4c8g": 5}', "-o", "json")
    assert ran.code == 5
    assert ran.json["error"]["details"] == {"replicaSetsToRecommend": {"4c8g": 1}}
    stale = divided("vc", "update", "team-a", "--replica-sets", '{"4c8g": 1}', "--revision", "7")
    assert stale.code == 5
    assert "The revision (7) is expired" in stale.err
    assert divided("vc delete nope").code == 4


def test_what_a_cluster_has(divided: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert divided("cluster-resources -o json").json["CPU"] == 4
    assert divided("cluster-resources --cluster team-a -o json").json["CPU"] == 4
    assert divided("available-resources -c team-a -o json").json["CPU"] == 2
    assert divided("cluster-resources").out.splitlines()[0].split() == ["RESOURCE", "AMOUNT"]
    assert "8GiB" in divided("cluster-resources").out
    assert divided("nodes -o json").json["kind"] == "VNodeList"
    assert divided("list vnodes -o json").json["total"] == 2
    monkeypatch.setenv("VCTL_CLUSTER_ID", "small")
    assert divided("cluster-resources -o json").json == {"CPU": 2.0}
    assert divided("current-cluster -o json").json["cluster_id"] == "small"
    assert divided("nodes -o name").out.split() == ["small/0"]
    assert divided("list vnodes -o name").out.split() == ["small/0"]
    assert divided("current-node").code == 4
    monkeypatch.setenv("VCTL_VNODE_ID", "small/0")
    assert divided("current-node -o json").json["node_id"] == "small/0"


def test_status_is_what_bare_vctl_shows(divided: Cli) -> None:
    divided("job", "submit", "--no-wait", "--submission-id", "x", "--", "true")
    bare = divided("status")
    assert "Queue: 1 waiting, 0 running" in bare.out
    assert "└── team-a" in bare.out
    assert "No scheduler is running" in bare.err
    data = divided("-o", "json").json
    assert set(data) >= {"nodes", "resources", "clusters", "queue", "recent_failures", "scheduler"}
    named = divided("status -o json").json["queue"]
    for line in (*named["head"], *data["queue"]["head"]):
        assert line.pop("expected_start")  # now, at each look
    assert named == data["queue"]


def test_events_show_the_latest_or_what_came_after(nodes: Cli) -> None:
    for name in "abc":
        nodes("job", "submit", "--no-wait", "--submission-id", name, "--", "true")
    everything = nodes("events -o json").json["items"]
    assert [event["seq"] for event in everything] == sorted(event["seq"] for event in everything)
    last = nodes("events --limit 1 -o json").json
    assert (last["items"], last["total"]) == ([everything[-1]], len(everything))
    after = nodes("events", "--since", str(everything[0]["seq"]), "--limit", "1", "-o", "json").json["items"]
    assert after == [everything[1]]
    assert {event["object_id"] for event in nodes("events --job b -o json").json["items"]} == {"b"}


@pytest.mark.on_the_machine  # a backup is a file there
def test_care_of_the_state(nodes: Cli, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    assert nodes("doctor").out.endswith("ok\n")
    assert nodes("doctor -o json").json["ok"] is True
    assert nodes("replay --dry-run").out.startswith("1 primary cluster")
    assert len(nodes("replay -o json").json["steps"]) == 6
    nodes("job", "submit", "--no-wait", "--submission-id", "x", "--", "true")
    assert nodes("backup", copy).out == f"backup written to {copy}\n"
    assert nodes("job stop x").code == 0
    assert nodes("job delete x").out == "job x deleted\n"
    assert nodes("job list -o json").json["total"] == 0
    assert nodes("restore", copy).code == 0
    assert nodes("job list -o json").json["total"] == 1
    assert nodes("job stop x").code == 0
    assert nodes("prune --older-than 0 --dry-run").out == "1 job would be deleted\n"
    assert nodes("prune --older-than 0 -o name").out == "x\n"


# ---- jobs that run: in processes of their own, which schedule while they wait ----


def vctl(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "vctl", *words, home=home)


def test_submit_streams_the_output_and_returns_the_code(nodes: Cli) -> None:
    ran = vctl(
        nodes.home, "job", "submit", "--num-cpus", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 3"
    )
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout == "out\nerr\n"
    assert nodes("job logs last").code == 0


def test_submit_with_json_waits_and_shows_the_job(nodes: Cli) -> None:
    ran = vctl(nodes.home, "job", "submit", "-o", "json", "--", "sh", "-c", "echo out; exit 3")
    assert ran.returncode == 3, ran.stderr
    job: dict[str, Any] = json.loads(ran.stdout)
    assert (job["status"], job["exit_code"]) == ("FAILED", 3)


def test_variables_directory_and_metadata_reach_the_job(nodes: Cli, tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("A=file\nB=file\n")
    runtime = json.dumps({"env_vars": {"A": "ray", "R": "ray"}, "pip": ["x"]})
    ran = vctl(
        nodes.home, "job", "submit", "--submission-id", "x", "--env-file", str(tmp_path / "vars"), "--env", "B=option",
        "--runtime-env-json", runtime, "--working-dir", str(tmp_path), "--metadata", "a=b",
        "--metadata-json", '{"c": "d"}', "--", "sh", "-c", "echo $A $B $R; pwd",
    )  # fmt: skip
    assert ran.stdout == f"file option ray\n{tmp_path}\n", ran.stderr
    assert "vctl ignores pip; with --ray it uses pip" in ran.stderr
    assert nodes("job status x -o json").json["metadata"] == {"a": "b", "c": "d"}


def test_wait_logs_and_stop(nodes: Cli) -> None:
    home = nodes.home
    nodes(
        "job", "submit", "--no-wait", "--submission-id", "bad", "--", "sh", "-c", "echo one; echo two; exit 4"
    )
    assert vctl(home, "job", "wait", "bad").returncode == 4
    assert vctl(home, "job", "logs", "bad").stdout == "one\ntwo\n"
    assert vctl(home, "job", "logs", "bad", "--tail", "1").stdout == "two\n"
    followed = vctl(home, "job", "logs", "--follow", "bad")
    assert (followed.stdout, followed.returncode) == ("one\ntwo\n", 4)
    nodes("job", "submit", "--no-wait", "--submission-id", "long", "--", "sleep", "60")
    late = vctl(home, "job", "wait", "long", "--timeout", "0.5s")
    assert late.returncode == 7
    stopped = vctl(home, "job", "stop", "long")
    assert (stopped.stdout, stopped.returncode) == ("job long is STOPPED\n", 0)


def test_watch_repeats_until_interrupted(nodes: Cli) -> None:
    environment = {**os.environ, "VCTL_HOME": str(nodes.home)}
    watching = subprocess.Popen(
        [sys.executable, "-m", "vctl", "node", "list", "-o", "jsonl", "--watch", "0.1"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    assert watching.stdout is not None
    lines = [watching.stdout.readline() for _ in range(6)]
    assert all(json.loads(line)["node_id"].startswith("4c8g") for line in lines)
    time.sleep(0.05)
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=20)
    assert watching.returncode == 130


@pytest.mark.parametrize(
    "words", ["list leases", "lease list", "demand", "list objects", "list vnodes", "list events"]
)
def test_a_mistyped_filter_is_refused_also_where_there_is_nothing(nodes: Cli, words: str) -> None:
    ran = nodes(*words.split(), "--filter", "clustr_id=x")
    assert ran.code == 2
    assert "unknown key 'clustr_id'" in ran.err


def test_the_name_that_screens_show_is_accepted_everywhere(divided: Cli) -> None:
    """spec 13: a cluster has one name on all screens, and commands take it."""
    for words in (
        "vc get",
        "vc tree",
        "vc delete",
        "vc stop",
        "nodes -c",
        "status -c",
        "cluster-resources -c",
    ):
        ran = divided(f"{words} primary##gone -o json")
        assert ran.code in (1, 2, 4, 5), words
        assert "primary##gone" not in ran.out.replace("kPrimaryClusterID##gone", ""), (words, ran.out)
    assert divided("vc get primary -o json").json["cluster_id"] == "kPrimaryClusterID"
    for name in ("primary", "kPrimaryClusterID"):
        assert divided(f"list clusters --filter parent_id={name} -o name").out.split() == ["team-a"], name
        assert divided(f"vc list --filter cluster_id={name} -o name").out.split() == ["kPrimaryClusterID"], (
            name
        )
