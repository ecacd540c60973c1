"""The checks of clusters made by name, on the command line: exact words, exit codes, their order, nothing changed."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import Place
from tests.specification import spec

pytestmark = spec("7.checks", "7.delete", "7.create")

SHORT = (
    "No enough nodes to {} the virtual cluster. The replica sets that gcs can {} at most are shown below. "
    "Use it as a suggestion to adjust your request or cluster."
)


@pytest.fixture
def racks(place: Place) -> Place:
    """Three nodes of template a, two of b; team is divisible and has one a."""
    resources = '{"CPU": 4}'
    for template, count in (("a", 3), ("b", 2)):
        place.ok(
            "node",
            "add",
            "--simulated",
            "--count",
            str(count),
            "--template",
            template,
            "--resources",
            resources,
        )
    place.ok("vc", "create", "team", "--divisible", "--replica-sets", '{"a": 1}')
    return place


def create(cluster_id: str, counts: object) -> list[str]:
    return ["vc", "create", cluster_id, "--replica-sets", json.dumps(counts)]


def update(cluster_id: str, counts: object, *more: str) -> list[str]:
    return ["vc", "update", cluster_id, "--replica-sets", json.dumps(counts), *more]


PRIMARY = "Invalid request, kPrimaryClusterID can not be created or updated."
CHECKS = {
    "an empty id": (create("", {}), 2, "Invalid request, the virtual cluster id is empty."),
    "the primary": (create("kPrimaryClusterID", {}), 2, PRIMARY),
    "its alias": (create("primary", {}), 2, PRIMARY),
    "update of the primary": (update("kPrimaryClusterID", {"a": 1}), 2, PRIMARY),
    "removal of the primary": (
        ["vc", "delete", "kPrimaryClusterID"], 2, "Invalid request, kPrimaryClusterID can not be removed."),
    "a negative count": (
        create("x", {"a": -1}), 2, "Invalid request, replicas(-1) must >= 0, virtual_cluster_id: x"),
    "a negative count in a spec": (
        ["vc", "create", "x", "--spec", '{"replica_sets": {"a": -1}}'], 2,
        "Invalid request, replicas(-1) must >= 0, virtual_cluster_id: x"),
    "an empty template": (
        create("x", {"": 1}), 2, "Invalid request, template_id is empty, virtual_cluster_id: x"),
    "an id that exists": (create("team", {}), 5, "virtual cluster team exists already"),
    "an unknown id": (update("nosuch", {}), 4, "The virtual cluster nosuch does not exist."),
    "another kind": (
        update("team", {"a": 1}, "--indivisible"), 5,
        "The requested attributes are incompatible with virtual cluster team. expect: (true), actual: (false)."),
    "too few to add": (create("x", {"a": 9}), 5, SHORT.format("add to", "add")),
    # the order: the first failure wins
    "counts before revision": (
        update("team", {"a": -1}, "--revision", "7"), 2,
        "Invalid request, replicas(-1) must >= 0, virtual_cluster_id: team"),
    "removal before addition": (update("busy", {"a": 0, "b": 9}), 5, SHORT.format("remove from", "remove")),
}  # fmt: skip


@pytest.mark.parametrize("case", CHECKS, ids=lambda case: case.replace(" ", "-"))
def test_a_check_says_its_words_and_changes_nothing(racks: Place, case: str) -> None:
    words, code, message = CHECKS[case]
    if "busy" in words:
        racks.ok("vc", "create", "busy", "--divisible", "--replica-sets", '{"a": 1}')
        racks.ok("vc", "create", "inner", "--parent", "busy", "--replica-sets", '{"a": 1}')
    before = racks.tables()
    ran = racks.fork(*words, "-o", "json")
    assert ran.code == code, ran.err
    assert ran.json["error"]["message"] == message
    assert racks.tables() == before
    assert message in racks.fork(*words).err


def test_a_stale_revision_names_the_latest_one_before_other_attributes(racks: Place) -> None:
    latest = racks.read("vc", "get", "team")["revision"]
    ran = racks.fork(*update("team", {"a": 1}, "--revision", "7", "--indivisible"), "-o", "json")
    assert ran.code == 5
    assert ran.json["error"]["message"] == (
        f"The revision (7) is expired, the latest revision of the virtual cluster team is {latest}"
    )


def test_a_shortage_recommends_what_could_be_had_zeros_included(racks: Place) -> None:
    ran = racks.fork(*create("x", {"a": 9, "b": 2, "none": 1}), "-o", "json")
    assert ran.json["error"]["details"]["replicaSetsToRecommend"] == {"a": 2, "b": 2, "none": 0}


def test_other_failures_recommend_nothing(racks: Place) -> None:
    ran = racks.fork(*create("x", {"a": -1}), "-o", "json")
    assert not ran.json["error"]["details"].get("replicaSetsToRecommend")


def test_a_cluster_in_use_is_not_removed_and_its_users_are_named(racks: Place) -> None:
    racks.ok("vc", "create", "inner", "--parent", "team", "--replica-sets", '{"a": 1}')
    before = racks.tables()
    ran = racks.fork("vc", "delete", "team", "-o", "json")
    assert ran.code == 5
    assert ran.json["error"]["message"] == (
        "The virtual cluster team can not be removed as it is still in use. Its users: cluster inner."
    )
    assert ran.json["error"]["details"]["blockers"] == ["cluster inner"]
    assert racks.tables() == before


def test_nodes_that_are_not_idle_or_not_its_are_named_and_none_is_removed(racks: Place) -> None:
    members = sorted(racks.read("vc", "get", "team")["node_instances"])
    before = racks.tables()
    ran = racks.fork("vc", "remove-nodes", "team", *members, "b-000", "-o", "json")
    assert ran.code == 5
    assert ran.json["error"]["message"].startswith(
        "Failed to remove some of the nodes because they are not idle nor found in the virtual cluster. "
        "These nodes with failure are shown below."
    )
    assert ran.json["error"]["details"]["nodesWithFailure"] == ["b-000"]
    assert ran.json["error"]["hint"].endswith(": b-000")  # spec 7: they are shown below the sentence
    assert racks.tables() == before


def test_the_scenario_of_twenty_and_twenty(place: Place) -> None:
    for template in ("0", "1"):
        place.ok(
            "node", "add", "--simulated", "--count", "20", "--template", template, "--resources", '{"CPU": 4}'
        )
    for cluster_id, counts in (
        ("v0", {"0": 5, "1": 10}),
        ("v1", {"0": 15, "1": 10}),
        ("v2", {"0": 0, "1": 0}),
    ):
        place.ok(*create(cluster_id, counts), "--divisible")
    ran = place.fork(*create("v3", {"0": 5, "1": 10}), "--divisible", "-o", "json")
    assert ran.code == 5
    assert ran.json["error"]["details"]["replicaSetsToRecommend"] == {"0": 0, "1": 0}
    assert place.fork("vc", "get", "v3").code == 4
    before = place.tables()
    assert place.fork(*update("v0", {"0": 6})).code == 5
    assert place.tables() == before
    place.ok(*update("v0", {"0": 5}))
    primary = place.read("vc", "get", "primary")
    assert primary["replica_sets"] == {"1": 10}


def test_a_cluster_inside_a_job_is_deleted_by_the_id_that_screens_show(racks: Place) -> None:
    """Spec 7: every verb reads ``primary##job##inner``, as the lists show it."""
    racks.daemon()
    racks.submit("--submission-id", "train", "--num-cpus", "2", "--", "sleep", "600")
    racks.reach("train", "RUNNING")
    spec = '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}'
    racks.ok("vc", "create", "inner", "--parent", "primary##train", "--spec", spec)
    assert "primary##train##inner" in racks.ok("vc", "list")
    racks.ok("vc", "delete", "primary##train##inner")
    assert "inner" not in racks.ok("vc", "list")
    refused = racks.run("vc", "delete", "primary##train##inner")
    assert (refused.code, "does not exist" in refused.err) == (4, True), refused
    for verb in ("stop", "delete"):
        refused = racks.run("vc", verb, "primary##train")
        assert refused.code in (2, 5), refused
        assert "does not exist" not in refused.err + refused.out
