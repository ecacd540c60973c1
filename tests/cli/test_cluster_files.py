"""Admission, limits, and the tree file on the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, python
from tests.specification import spec
from vctl.cli import tree_changes
from vctl.cli.screen import Screen

pytestmark = spec("7.admission", "7.tree-file", "13.output")

TREE = """
clusters:
  - id: research
    replica_sets: {4c8g: 1}
    children:
      - id: vision
        spec: {flexible_resource_min: {CPU: 2}}
        lending_limit: {CPU: 0.5}
"""


@pytest.fixture
def tree(nodes: Cli, tmp_path: Path) -> str:
    pytest.importorskip("yaml")
    path = tmp_path / "tree.yaml"
    path.write_text(TREE)
    return str(path)


def test_a_stopped_cluster_says_so_until_it_is_resumed(nodes: Cli) -> None:
    nodes("vc", "create", "x", "--replica-sets", '{"4c8g": 1}')
    assert nodes("vc", "stop", "x", "--message", "until noon").out == "virtual cluster x is STOPPED\n"
    shown = nodes("vc get x -o json").json
    assert (shown["state"], shown["message"]) == ("STOPPED", "until noon")
    assert "STOPPED" in nodes("vc tree").out.splitlines()[2]
    assert nodes("job", "submit", "--no-wait", "-c", "x", "--submission-id", "j", "--", "true").code == 0
    assert nodes("vc stop x").code == 0
    assert nodes("vc get x -o json").json["message"] is None
    assert nodes("vc resume x -o json").json["state"] == "ACTIVE"
    assert nodes("vc resume x").out == "virtual cluster x is ACTIVE\n"
    kinds = [event["kind"] for event in nodes("events -o json").json["items"]]
    assert [kind for kind in kinds if kind.startswith("cluster.")] == [
        "cluster.created", "cluster.stopped", "cluster.stopped", "cluster.resumed",
    ]  # fmt: skip


def test_jobs_wait_while_their_cluster_is_stopped(nodes: Cli) -> None:
    def vctl(*words: str) -> int:
        return python("-m", "vctl", *words, home=nodes.home).returncode

    nodes("vc", "create", "x", "--replica-sets", '{"4c8g": 1}')
    nodes("vc stop x")
    nodes("job", "submit", "--no-wait", "-c", "x", "--submission-id", "j", "--", "true")
    assert vctl("daemon", "--background") == 0
    assert vctl("job", "wait", "j", "--timeout", "0.3s") == 7
    waiting = nodes("job status j -o json").json
    assert (waiting["status"], waiting["state_reason"]) == ("PENDING", "ClusterStopped")
    nodes("vc resume x")
    assert vctl("job", "wait", "j") == 0


@pytest.mark.parametrize("word", ["stop", "resume"])
def test_what_admits_no_jobs_by_name_is_refused(nodes: Cli, word: str) -> None:
    ran = nodes("vc", word, "primary")
    assert ran.code == 2
    assert "kPrimaryClusterID can not be" in ran.err
    assert nodes("vc", word, "nope").code == 4
    nodes("vc", "create", "x", "--replica-sets", '{"4c8g": 1}')
    nodes("job", "submit", "--no-wait", "-c", "x", "--", "true")
    nodes("vc", "delete", "x", "--drain", "--no-wait")
    ran = nodes("vc", word, "x")
    assert (ran.code, "is being removed" in ran.err) == (5, True)


def test_limits_are_shown_changed_and_taken_back(nodes: Cli) -> None:
    spec = '{"flexible_resource_min": {"CPU": 2}}'
    made = nodes("vc", "create", "x", "--spec", spec, "--borrow-limit", '{"CPU": 1.5}', "-o", "json").json
    assert (made["borrow_limit"], made["lending_limit"]) == ({"CPU": 1.5}, {})
    changed = nodes("vc", "update", "x", "--lending-limit", '{"CPU": 1}', "-o", "json").json
    assert (changed["borrow_limit"], changed["lending_limit"]) == ({"CPU": 1.5}, {"CPU": 1})
    assert changed["revision"] > made["revision"]
    assert changed["spec"] == made["spec"]
    free = nodes("vc", "update", "x", "--borrow-limit", "{}", "-o", "json").json
    assert (free["borrow_limit"], free["lending_limit"]) == (None, {"CPU": 1})
    bad = nodes("vc", "update", "x", "--borrow-limit", '{"cpu": 1}')
    assert (bad.code, "--borrow-limit.cpu" in bad.err) == (2, True)
    assert nodes("vc update x").code == 2


def test_plan_apply_export(tree: str, nodes: Cli, tmp_path: Path) -> None:
    plan = nodes("vc", "plan", "-f", tree)
    assert plan.code == 0
    assert plan.out.splitlines()[0] == "+ create research in primary"
    assert "2 to create, 0 unchanged" in plan.out
    guarded = plan.out.splitlines()[-1].partition("vctl ")[2].split()
    done = nodes(*guarded)
    assert done.out.splitlines()[-1] == "2 created, 0 unchanged"
    exported = nodes("vc export")
    copy = tmp_path / "copy.yaml"
    copy.write_text(exported.out)
    same = nodes("vc", "plan", "--file", str(copy), "--prune", "-o", "json").json
    assert (same["changes"], same["unchanged"]) == ([], ["research", "vision"])
    assert nodes("vc", "plan", "-f", tree).out == "nothing to change, 2 as wanted\n"
    stale = nodes(*guarded)
    assert (stale.code, "have changed since the plan" in stale.err) == (5, True)
    assert nodes("vc export vision -o json").json == {
        "clusters": [
            {
                "id": "vision", "parent": "research", "spec": {"flexible_resource_min": {"CPU": 2}},
                "lending_limit": {"CPU": 0.5},
            }
        ]
    }  # fmt: skip


def test_a_plan_shows_what_changes_and_what_blocks(tree: str, nodes: Cli, tmp_path: Path) -> None:
    nodes("vc", "apply", "-f", tree)
    wanted = tmp_path / "wanted.json"
    wanted.write_text(
        json.dumps({"clusters": [{"id": "research", "divisible": True, "replica_sets": {"4c8g": 9}}]})
    )
    plan = nodes("vc", "plan", "-f", str(wanted), "--prune")
    assert plan.code == 0
    lines = plan.out.splitlines()
    assert lines[0] == "~ update research in primary"
    assert lines[1].split() == ["replica_sets:", "4c8g", "1", "→", "4c8g", "9"]
    assert lines[2].startswith("    blocked: No enough nodes to add")
    assert lines[3] == "- delete vision in research"
    assert lines[-1] == "1 to update, 1 to delete, 0 unchanged, 1 blocked: it could not be applied now"
    refused = nodes("vc", "apply", "-f", str(wanted), "-o", "json")
    assert refused.code == 5
    assert refused.json["error"]["details"] == {"replicaSetsToRecommend": {"4c8g": 1}, "path": "clusters[0]"}


def test_a_mistake_names_its_place_in_the_file(nodes: Cli, tmp_path: Path) -> None:
    spec = {"flexible_resource_min": {"CPU": "2"}}
    wanted = tmp_path / "wanted.json"
    wanted.write_text(
        json.dumps({"clusters": [{"id": "a"}, {"id": "b", "children": [{"id": "c", "spec": spec}]}]})
    )
    ran = nodes("vc", "apply", "-f", str(wanted))
    assert ran.code == 2
    assert (
        "Error: clusters[1].children[0].spec.flexible_resource_min.CPU: the amount must be a number"
        in ran.err
    )
    assert nodes("vc plan -f nope.yaml").code == 2
    assert nodes("vc plan").code == 2


def test_a_plan_has_no_line_longer_than_the_terminal_and_breaks_long_ones_below_each_other() -> None:
    name = "research-group-with-a-long-name-0001"
    spec_ = {"flexible_resource_min": {"CPU": 4, "memory": 4 << 30}, "flexible_resource_max": {"CPU": 12}}
    changes = [
        {
            "action": "create", "cluster_id": name, "parent_id": "primary", "before": None,
            "after": {"id": name, "parent": "primary", "divisible": True, "spec": spec_},
            "blockers": ["No enough nodes to add to the virtual cluster. The replica sets are shown below."],
        },
    ]  # fmt: skip
    summary = {"create": 1, "update": 0, "delete": 0, "unchanged": 0, "blocked": 1}
    screen = Screen(width=50)
    drawn = screen.finish(tree_changes.draw(screen, {"changes": changes, "summary": summary}))
    lines = [line for some in drawn for line in some.split("\n")]
    assert max(map(len, lines)) <= 50, lines
    of_change = lines[next(at for at, line in enumerate(lines) if line.startswith("    ")) : -2]
    assert len(of_change) > 3
    assert all(line.startswith("    ") for line in of_change), lines
