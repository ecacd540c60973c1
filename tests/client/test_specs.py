"""Spec classes: they say what the JSON says, and refuse where it is written."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import vctl
from tests.specification import spec
from vctl import (
    PACK,
    STRICT_SPREAD,
    DoesNotExist,
    Exists,
    FixedSizeNode,
    FixedSizeNodes,
    In,
    NotIn,
    VirtualCluster,
)
from vctl.errors import BadSpec
from vctl.spec.cluster_spec import parse_cluster_spec

pytestmark = spec("15.with", "4.errors")


def test_the_example_of_the_specification() -> None:
    cluster = VirtualCluster(
        flexible_resource_min={"CPU": 1},
        flexible_resource_max={"CPU": 10},
        fixed_size_nodes=[
            FixedSizeNodes(
                nodes=[
                    FixedSizeNode(
                        resources={"GPU": 1},
                        labels={"bundle_index": "0"},
                        label_selector={"ray.io/accelerator-type": In("A100")},
                    ),
                    FixedSizeNode(resources={"GPU": 1}),
                ],
                scheduling_policy=STRICT_SPREAD,
            )
        ],
    )
    document = {
        "flexible_resource_min": {"CPU": 1},
        "flexible_resource_max": {"CPU": 10},
        "fixed_size_nodes": [
            {
                "nodes": [
                    {
                        "resources": {"GPU": 1},
                        "labels": {"bundle_index": "0"},
                        "label_selector": {"ray.io/accelerator-type": "in(A100)"},
                    },
                    {"resources": {"GPU": 1}},
                ],
                "scheduling_policy": "STRICT_SPREAD",
            }
        ],
    }
    assert cluster.as_dict() == document
    assert json.loads(cluster.to_json()) == document
    assert VirtualCluster.from_dict(document) == cluster
    assert parse_cluster_spec(document) == cluster.parsed(frozenset({"GPU"}))


CONDITIONS = {
    "in": (In("a", "b"), "in(a,b)"),
    "not in": (NotIn("a"), "!in(a)"),
    "exists": (Exists(), "exists()"),
    "does not exist": (DoesNotExist(), "!exists()"),
    "text": ("!a", "!a"),
    "list": (["a", "b"], ["a", "b"]),
}


@pytest.mark.parametrize(("condition", "text"), CONDITIONS.values(), ids=CONDITIONS)
def test_conditions(condition: object, text: object) -> None:
    node = FixedSizeNode({"CPU": 1}, label_selector={"zone": condition})  # type: ignore[dict-item]
    assert node.as_dict()["label_selector"] == {"zone": text}
    assert VirtualCluster(fixed_size_nodes=[node]).as_dict()["fixed_size_nodes"] == [node.as_dict()]


REFUSED = {
    "a share of two devices": ({"fixed_size_nodes": [{"resources": {"GPU": 1.5}}]}, "GPU"),
    "minimum above maximum": (
        {"flexible_resource_min": {"CPU": 2}, "flexible_resource_max": {"CPU": 1}},
        "flexible_resource_max.CPU",
    ),
    "an unknown policy": (
        {"fixed_size_nodes": [FixedSizeNodes([FixedSizeNode({"CPU": 1})], "PACKED")]},
        "fixed_size_nodes[0].scheduling_policy",
    ),
    "no value": (
        {"fixed_size_nodes": [FixedSizeNode({"CPU": 1}, label_selector={"zone": In()})]},
        "zone",
    ),
    "a number in place of amounts": ({"flexible_resource_min": 5}, "flexible_resource_min"),
    "a list in place of amounts": ({"flexible_resource_max": [1]}, "flexible_resource_max"),
    "a number in place of counts": ({"replica_sets": 5}, "replica_sets"),
    "a text in place of groups": ({"fixed_size_nodes": "abc"}, "fixed_size_nodes"),
    "an object in place of groups": ({"fixed_size_nodes": {}}, "fixed_size_nodes"),
    "one group in place of groups": (
        {"fixed_size_nodes": FixedSizeNodes([FixedSizeNode({"CPU": 1})])},
        "fixed_size_nodes",
    ),
    "groups that could be read once only": (
        {"fixed_size_nodes": (one for one in [FixedSizeNode({"CPU": 1})])},
        "fixed_size_nodes",
    ),
    "a number in place of a group": ({"fixed_size_nodes": [5]}, "fixed_size_nodes[0]"),
    "a number in place of nodes": (
        {"fixed_size_nodes": [FixedSizeNodes(5)]},  # type: ignore[arg-type]
        "fixed_size_nodes[0].nodes",
    ),
    "a text in place of the amounts of a node": (
        {"fixed_size_nodes": [FixedSizeNodes([FixedSizeNode("CPU")])]},  # type: ignore[arg-type]
        "fixed_size_nodes[0].nodes[0].resources",
    ),
    "a text in place of a selector": (
        {"fixed_size_nodes": [FixedSizeNode({"CPU": 1}, label_selector="zone")]},  # type: ignore[arg-type]
        "label_selector",
    ),
    "a number in place of a condition": (
        {"fixed_size_nodes": [FixedSizeNode({"CPU": 1}, label_selector={"zone": 5})]},  # type: ignore[dict-item]
        "label_selector.zone",
    ),
}


@pytest.mark.parametrize(("fields", "path"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_named(fields: dict[str, object], path: str) -> None:
    with pytest.raises(BadSpec) as caught:
        VirtualCluster(**fields)  # type: ignore[arg-type]
    assert path in caught.value.details["path"]
    assert caught.value.exit_code == 2
    assert caught.value.fix


@pytest.mark.parametrize(("fields", "path"), REFUSED.values(), ids=REFUSED)
def test_the_same_is_named_in_the_json_form(fields: dict[str, object], path: str) -> None:
    with pytest.raises(BadSpec) as caught:
        VirtualCluster.from_dict(fields)
    assert path in caught.value.details["path"]


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(BadSpec, match="flex_resource_min"):
        VirtualCluster.from_dict({"flex_resource_min": {"CPU": 1}})


def test_everything_that_is_offered_is_there() -> None:
    for name in vctl.__all__:
        assert getattr(vctl, name) is not None
        assert name in dir(vctl)
    assert PACK == "PACK"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vctl.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_imports_nothing() -> None:
    code = "import sys; had = set(sys.modules); import vctl; print(sorted(set(sys.modules) - had))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['vctl']"
