"""The tree file: what it says, what is refused and where, the way back."""

from __future__ import annotations

import io
import sys

import pytest

from tests.specification import spec
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.resources import SCALE
from vctl.errors import BadSpec
from vctl.spec.source import read_file
from vctl.spec.tree_file import parse_tree, tree_document

pytestmark = spec("7.tree-file")


def test_a_tree_is_read_parents_first():
    found = parse_tree(
        {
            "clusters": [
                {
                    "id": "a",
                    "replica_sets": {"8c": 2},
                    "children": [{"id": "a1", "spec": {"flexible_resource_min": {}}}],
                },
                {
                    "id": "b",
                    "parent": "primary",
                    "borrow_limit": {"CPU": 0},
                    "lending_limit": {"CPU": 1.5},
                    "private": ["pids", "tmp"],
                },
            ]
        }
    )
    assert [(c.cluster_id, c.parent_id, c.divisible, c.path) for c in found] == [
        ("a", PRIMARY, True, "clusters[0]"),
        ("a1", "a", False, "clusters[0].children[0]"),
        ("b", PRIMARY, False, "clusters[1]"),
    ]
    assert found[0].spec == ClusterSpec(flexible=False, replica_sets={"8c": 2})
    assert found[1].spec.flexible
    assert found[2].spec == ClusterSpec(flexible=False)
    assert [c.private for c in found] == [(), (), ("tmp", "pids")]
    assert (found[2].borrow_limit, found[2].lending_limit) == ({"CPU": 0}, {"CPU": SCALE * 3 // 2})


def cluster(**fields):
    return {"clusters": [{"id": "x"}, {"id": "a", "children": [{"id": "b"} | fields]}]}


HERE = "clusters[1].children[0]"
BAD = {
    "no object": ([], "", "clusters"),
    "no clusters": ({}, "clusters", "clusters"),
    "an unknown word": ({"cluster": []}, "cluster", "did you mean clusters"),
    "no list": ({"clusters": {"a": {}}}, "clusters", "write it as"),
    "no id": ({"clusters": [{}]}, "clusters[0].id", "write id"),
    "a number for an id": ({"clusters": [{"id": 7}]}, "clusters[0].id", "quotes"),
    "a bad id": (cluster(id="a##b"), f"{HERE}.id", "without ##"),
    "the primary": (cluster(id="primary"), f"{HERE}.id", "another id"),
    "twice": (cluster(id="x"), f"{HERE}.id", "keep one"),
    "an unknown field": (cluster(replicas={}), f"{HERE}.replicas", "replica_sets"),
    "both": (cluster(replica_sets={}, spec={}), f"{HERE}.spec", "keep one"),
    "an amount": (
        cluster(spec={"flexible_resource_min": {"CPU": "2"}}), f"{HERE}.spec.flexible_resource_min.CPU", "quotes",
    ),
    "a group": (
        cluster(spec={"fixed_size_nodes": [{"nodes": [{"resources": {"GPU": 1.5}}]}]}),
        f"{HERE}.spec.fixed_size_nodes[0].nodes[0].resources.GPU", "write 1 or 2",
    ),
    "a maximum below the minimum": (
        cluster(spec={"flexible_resource_min": {"CPU": 2}, "flexible_resource_max": {"CPU": 1}}),
        f"{HERE}.spec.flexible_resource_max.CPU", "raise",
    ),
    "a count": (cluster(replica_sets={"8c": -1}), f"{HERE}.replica_sets.8c", "0 or more"),
    "a limit": (cluster(borrow_limit={"cpu": 1}), f"{HERE}.borrow_limit.cpu", "did you mean CPU"),
    "a queue setting": (cluster(queue={"ordr": "fair"}), f"{HERE}.queue.ordr", "did you mean order"),
    "a queue order": (cluster(queue={"order": "far"}), f"{HERE}.queue.order", "fair"),
    "divisible in words": (cluster(divisible="yes"), f"{HERE}.divisible", "divisible: true"),
    "children of an indivisible one": (
        cluster(divisible=False, children=[{"id": "c"}]), f"{HERE}.divisible", "divisible: true",
    ),
    "another parent": (cluster(parent="x"), f"{HERE}.parent", "leave parent out"),
    "a parent in the file": (
        {"clusters": [{"id": "a", "divisible": True}, {"id": "b", "parent": "a"}]}, "clusters[1].parent", "children",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("document", "path", "fix"), BAD.values(), ids=BAD)
def test_refused_with_the_place_in_the_file(document, path, fix):
    with pytest.raises(BadSpec) as error:
        parse_tree(document)
    assert error.value.details.get("path", "") == path
    assert error.value.problem.startswith(path)
    assert fix in error.value.fix


def test_the_way_back():
    document = {
        "clusters": [
            {
                "id": "a", "parent": "top", "divisible": True, "replica_sets": {"8c": 2},
                "children": [
                    {"id": "b", "spec": {"flexible_resource_min": {"CPU": 1.5}}, "borrow_limit": {"CPU": 1}},
                    {"id": "c", "divisible": True, "replica_sets": {}},
                ],
            }
        ]
    }  # fmt: skip
    assert tree_document(parse_tree(document)) == document


@pytest.mark.parametrize(
    "text",
    [
        "clusters:\n- id: a\n  divisible: yes\n",
        '{"clusters": [{"id": "a", "divisible": true}]}',
        "\n {clusters: []}",
    ],
)
def test_standard_input_may_be_yaml_or_json(text, monkeypatch):
    pytest.importorskip("yaml")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    if "{clusters" in text:
        with pytest.raises(BadSpec, match="not JSON"):
            read_file("-", "a tree file", "--file")
        return
    assert read_file("-", "a tree file", "--file") == {"clusters": [{"id": "a", "divisible": True}]}


def test_files_by_name(tmp_path):
    (tmp_path / "tree").write_text("clusters: []\n")
    pytest.importorskip("yaml")
    assert read_file(str(tmp_path / "tree"), "a tree file", "--file") == {"clusters": []}
    with pytest.raises(BadSpec, match="cannot read"):
        read_file(str(tmp_path / "nope"), "a tree file", "--file")
