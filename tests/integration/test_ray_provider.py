"""The node provider ``ray``: what waits for nodes has Ray's autoscaler make them, and no longer than it waits.

The autoscaler is Ray's own with its node provider that starts raylets on this machine; of its second version, which
cannot use that provider, only what it was asked for is read back, and the test adds the nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Place, eventually
from tests.ray_cluster import RAY_S, WITH_RAY, AutoscalingRay, alive, begin, leave
from tests.specification import spec

pytestmark = [spec("9.provider", "16.ray"), *WITH_RAY]

TYPES = {
    "two": {"resources": {"CPU": 2, "object_store_memory": 80_000_000}, "min_workers": 0, "max_workers": 3}
}
TEMPLATES = {"two": {"resources": {"CPU": 2}, "max": 3}, "gpu": {"resources": {"CPU": 1, "GPU": 8}, "max": 1}}


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest) -> Iterator[AutoscalingRay]:
    made = AutoscalingRay(TYPES, version=request.param)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def ray(place: Place, cluster: AutoscalingRay) -> Iterator[Place]:
    """A state directory on the Ray cluster; afterwards Ray is asked for nothing, and has nothing of vctl."""
    place.more["VCTL_PROVIDER"] = json.dumps({"kind": "ray", "templates": TEMPLATES})
    begin(place, cluster)
    yield place
    leave(place, cluster)
    assert cluster.wanted() == []


def test_what_waits_gets_nodes_and_those_that_died_are_removed(ray: Place, cluster: AutoscalingRay) -> None:
    """A gang of two nodes, then another node while the first two are busy: as many are made as are missing."""
    assert len(alive(ray)) == 1
    spread = ("--num-cpus", "2", "--", "sleep", "1000")
    for ref, count, bundles in (("two", 2, 2), ("one", 1, 3)):
        ray.submit("--submission-id", ref, "--nodes", str(count), *spread)
        if cluster.version == 2:
            eventually(lambda n=bundles: cluster.wanted() == [{"CPU": 2.0}] * n, "Ray to be asked", RAY_S)
            for _ in range(count):
                cluster.add(cpus=2)
        ray.reach(ref, "RUNNING", within_s=RAY_S)
        eventually(lambda: cluster.wanted() == [], "the request to be withdrawn", RAY_S)
        assert len(alive(ray)) == 1 + bundles
    refused = ray.run("job", "submit", "--nodes", "7", *spread)
    assert refused.code == 3, refused
    nodes = ray.read("node", "list")["items"]
    assert sorted(one["labels"].get("vctl.io/provider", "") for one in nodes) == ["", "ray", "ray", "ray"]
    assert {one["template_id"] for one in nodes if one["labels"].get("vctl.io/provider")} == {"two"}
    for ref in ("two", "one"):
        ray.run("job", "stop", ref)
    cluster.kill_raylets()
    eventually(lambda: len(ray.read("node", "list")["items"]) == 1, "the dead nodes to be removed", RAY_S)
    ray.assert_sound()


def test_what_no_longer_waits_is_not_asked_for(ray: Place, cluster: AutoscalingRay) -> None:
    """Ray has no such node: the job waits, and the request lasts as long as it does, whoever is killed."""
    ray.submit("--submission-id", "waits", "--num-gpus", "8", "--", "true")
    eventually(lambda: cluster.wanted() == [{"CPU": 1.0, "GPU": 8.0}], "Ray to be asked", RAY_S)
    assert ray.job("waits")["status"] == "PENDING"
    asked = [one for one in ray.read("events")["items"] if one["kind"] == "provider.up"]
    assert [one["data"]["template"] for one in asked] == ["gpu"]
    ray.kill(ray._started[-1])
    assert cluster.wanted() == [{"CPU": 1.0, "GPU": 8.0}]
    begin(ray, cluster)
    ray.term(ray._started[-1])
    assert cluster.wanted() == []  # who has no scheduler needs no nodes
    begin(ray, cluster)
    eventually(lambda: cluster.wanted() == [{"CPU": 1.0, "GPU": 8.0}], "Ray to be asked again", RAY_S)
    ray.kill(ray._started[-1])
    ray.more["VCTL_PROVIDER"] = ""
    begin(ray, cluster)
    eventually(lambda: cluster.wanted() == [], "the request to be withdrawn", RAY_S)
    ray.run("job", "stop", "waits")
    ray.assert_sound()
