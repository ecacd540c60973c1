"""The proposal's examples on the command line, with its names; in Python they are in tests/client/test_programs.py.

What is looked at inside is only what belongs to that cluster, though another job runs beside it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.integration.conftest import Place
from tests.specification import spec

pytestmark = spec("4.fields", "10.strategies")

TWO_ACTORS = {
    "fixed_size_nodes": [
        {
            "nodes": [
                {"resources": {"GPU": 1}, "labels": {"bundle_index": "0"}},
                {"resources": {"GPU": 1}, "labels": {"bundle_index": "1"}},
            ],
            "scheduling_policy": "STRICT_SPREAD",
        }
    ]
}
TUNE_AND_DATASET = {
    "fixed_size_nodes": [
        {"nodes": [{"resources": {"CPU": 1, "GPU": 1}}] * 2, "scheduling_policy": "PACK"},
        {"nodes": [{"resources": {"CPU": 1, "GPU": 1}}] * 2, "scheduling_policy": "PACK"},
    ],
    "flexible_resource_min": {"CPU": 1},
    "flexible_resource_max": {"CPU": 10},
}
LOOK = """
tell() { name=$1; shift; printf '{"%s": %s}\\n' "$name" "$("$PYTHON" -m vctl "$@" -o json)"; }
for what in clusters vnodes nodes jobs tasks events; do
    tell "list $what" list $what
    tell "summary $what" summary $what
done
for what in cluster-resources available-resources current-cluster current-node nodes; do
    tell $what $what
done
"""


@pytest.fixture
def site(place: Place) -> Place:
    """Two nodes of two GPUs each, a daemon, and somebody else's job."""
    place.ok(
        "node",
        "add",
        "--count",
        "2",
        "--template",
        "t",
        "--resources",
        '{"CPU": 16, "GPU": 2}',
        "--simulated",
    )
    place.daemon()
    place.sleeper("--submission-id", "stranger", "--num-cpus", "1")
    return place


def reported(text: str) -> dict[str, Any]:
    """What a script told, one JSON object after the other."""
    found: dict[str, Any] = {}
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found |= value
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def ids(listed: dict[str, Any], key: str) -> list[str]:
    assert listed["total"] == len(listed["items"])
    return [item[key] for item in listed["items"]]


def look(site: Place, spec: dict[str, Any], name: str, *words: str, before: str = "") -> dict[str, Any]:
    script = f"{before}\n{LOOK}"
    ran = site.run(
        "job", "submit", "--virtual-cluster", json.dumps(spec), "--submission-id", name,
        "--env", f"PYTHON={sys.executable}", *words, "--", "sh", "-c", script,
    )  # fmt: skip
    assert ran.code == 0, ran
    return reported(ran.out)


def test_a_gang_of_two_actors(site: Place) -> None:
    """Each is a member of a ``--per-node`` job on the virtual node of its bundle."""
    ran = site.run(
        "job", "submit", "--virtual-cluster", json.dumps(TWO_ACTORS), "--submission-id", "actors", "--per-node",
        "--", "sh", "-c", 'echo "$RANK $WORLD_SIZE $VCTL_VNODE_ID $VCTL_NODE_ID [$CUDA_VISIBLE_DEVICES]"',
    )  # fmt: skip
    assert ran.code == 0, ran
    members = sorted(line.split() for line in ran.out.splitlines())
    top = "kPrimaryClusterID##actors"
    assert [member[:3] for member in members] == [["0", "2", f"{top}/0"], ["1", "2", f"{top}/1"]]
    assert len({member[3] for member in members}) == 2
    assert all(member[4] in ("[0]", "[1]") for member in members)


def test_what_an_actor_sees(site: Place) -> None:
    seen = look(site, TWO_ACTORS, "actors", "--per-node", before='[ "$RANK" = 0 ] || exit 0')
    top = "kPrimaryClusterID##actors"
    assert ids(seen["list clusters"], "cluster_id") == [top]
    assert ids(seen["list jobs"], "submission_id") == ["actors"]
    assert ids(seen["list vnodes"], "vnode_id") == [f"{top}/0", f"{top}/1"]
    assert len(ids(seen["list nodes"], "node_id")) == 2
    assert ids(seen["list tasks"], "task_id") == []
    assert {kind: seen[f"summary {kind}"]["total"] for kind in ("clusters", "jobs", "vnodes", "nodes")} == {
        "clusters": 1,
        "jobs": 1,
        "vnodes": 2,
        "nodes": 2,
    }
    assert seen["cluster-resources"] == {"GPU": 2.0}
    here = seen["current-cluster"]
    assert (here["cluster_id"], here["parent"], here["children"]) == (top, "kPrimaryClusterID", [])
    assert here["max_resources"] == {"GPU": 2.0}
    assert here["nodes"] == [f"{top}/0", f"{top}/1"]
    assert seen["current-node"]["labels"]["bundle_index"] == "0"
    events = seen["list events"]["items"]
    assert events
    assert all(top in (one["cluster_id"], one["object_id"]) or "actors" in one["object_id"] for one in events)


def test_tune_and_dataset(site: Place) -> None:
    """A task that needs a GPU runs in a trial's node; data tasks in the flexible part, which grows to 10."""
    grow = '"$PYTHON" -m vctl task run --num-cpus 10 --name data -- true >&2 && '
    grow += '"$PYTHON" -m vctl task run --num-cpus 1 --num-gpus 1 --name trial -- true >&2'
    seen = look(site, TUNE_AND_DATASET, "tune", before=grow)
    assert [task["name"] for task in seen["list tasks"]["items"]] == ["data", "trial"]
    assert seen["summary tasks"]["counts"] == {"FINISHED": 2}
    kinds = {node["NodeID"]: node["Kind"] for node in seen["nodes"]["items"]}
    where = {task["name"]: kinds.get(task["vnode_id"], "flexible") for task in seen["list tasks"]["items"]}
    assert where == {"data": "flexible", "trial": "fixed"}
    assert seen["current-cluster"]["max_resources"] == {"CPU": 14.0, "GPU": 4.0}


def test_lists_of_another_cluster(site: Place) -> None:
    """Outside, everything is shown, and ``--cluster`` chooses."""
    site.ok("vc", "create", "team", "--divisible", "--spec", '{"flexible_resource_max": {"CPU": 4}}')
    site.ok("job", "submit", "-c", "team", "--submission-id", "inner", "--num-cpus", "1", "--", "true")
    assert {one["submission_id"] for one in site.read("list", "jobs")["items"]} == {"stranger", "inner"}
    for words in (("--cluster", "team"), ("-c", "team")):
        assert [one["submission_id"] for one in site.read("list", "jobs", *words)["items"]] == ["inner"]
        assert [one["cluster_id"] for one in site.read("list", "clusters", *words)["items"]] == ["team"]
        assert site.read("summary", "jobs", *words)["counts"] == {"SUCCEEDED": 1}
    assert site.fork("list", "jobs", "--cluster", "nobody").code == 4
