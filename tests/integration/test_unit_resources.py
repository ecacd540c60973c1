"""Resources that the configuration calls unit resources consist of numbered instances, as GPUs do."""

from __future__ import annotations

import json

from tests.integration.conftest import VCTL, Place
from tests.specification import spec

pytestmark = spec("2.instances", "2.environment")

BOTH = "echo $VCTL_INSTANCES; echo $CUDA_VISIBLE_DEVICES"


def instances(place: Place) -> object:
    with place.sql() as db:
        return json.loads(db.execute("SELECT instances FROM nodes WHERE node_id = 'n1'").fetchone()[0])


def test_a_node_declared_or_changed_by_hand_gets_instances_of_configured_unit_resources(place: Place) -> None:
    units = {"VCTL_UNIT_RESOURCES": "GPU,TPU"}
    place.ok("node", "add", "n1", "--simulated", "--resources", '{"CPU": 2, "TPU": 2}', **units)
    assert instances(place) == {"TPU": {"0": 10_000, "1": 10_000}}
    place.ok("node", "update", "n1", "--resources", '{"TPU": 1}', **units)
    assert instances(place) == {"TPU": {"0": 10_000}}


def test_the_numbers_of_every_unit_resource_reach_the_process(place: Place) -> None:
    """Spec 8: VCTL_INSTANCES has the physical numbers, also of what only the configuration calls a unit resource."""
    units = {"VCTL_UNIT_RESOURCES": "GPU,FPGA"}
    place.ok("node", "add", "n1", "--simulated", "--resources", '{"CPU": 4, "GPU": 4, "FPGA": 2}', **units)
    place.ok("job", "submit", "--no-wait", "--num-gpus", "2", "--", "sleep", "1000", **units)
    place.daemon(**units)
    request = '{"flexible_resource_min": {"CPU": 1, "GPU": 2, "FPGA": 1}}'
    reported = place.ok(
        "job", "submit", "--virtual-cluster", request, "--", "sh", "-c", BOTH,
        **units,
    ).splitlines()  # fmt: skip
    assert json.loads(reported[0]) == {"GPU": [2, 3], "FPGA": [0]}
    assert reported[1] == "2,3"
    bare = place.ok("job", "submit", "--num-cpus", "1", "--", "sh", "-c", "echo $VCTL_INSTANCES", **units)
    assert json.loads(bare) == {}


def test_a_node_keeps_its_numbers_when_it_is_updated(place: Place) -> None:
    """Spec 3 and 13: instance numbers are those of registration; a total that shrinks and grows gets them back."""
    place.ok("node", "add", "n1", "--simulated", "--resources", '{"CPU": 4, "GPU": 2}')
    with (
        place.sql() as db
    ):  # as this machine is registered when CUDA_VISIBLE_DEVICES leaves it devices 2 and 3
        db.execute(
            "UPDATE nodes SET instances = ?, devices = ?",
            ('{"GPU":{"2":10000,"3":10000}}', '{"gpus":[{"index":2},{"index":3}]}'),
        )
    for update, numbers in (
        ('{"CPU": 8}', {"2", "3"}),
        ('{"GPU": 1}', {"2"}),
        ('{"GPU": 2}', {"2", "3"}),
        ('{"GPU": 0}', None),
        ('{"GPU": 2}', {"2", "3"}),
        ('{"GPU": 3}', {"2", "3", "4"}),
        ('{"GPU": 2}', {"2", "3"}),
    ):
        place.ok("node", "update", "n1", "--resources", update)
        found = instances(place)
        assert isinstance(found, dict)
        assert (set(found["GPU"]) if numbers else found) == (numbers or {}), update
    place.daemon()
    place.ok(
        "job", "submit", "--no-wait", "--submission-id", "first", "--num-gpus", "1", "--", "sleep", "1000"
    )
    place.ok(
        "job", "submit", "--no-wait", "--submission-id", "holder", "--num-gpus", "1", "--", "sleep", "1000"
    )
    place.reach("holder", "RUNNING")
    place.ok("job", "stop", "first")
    place.reach("first", "STOPPED")
    place.ok("node", "update", "n1", "--resources", '{"GPU": 1}')
    assert instances(place) == {"GPU": {"3": 10_000}}  # what is in use stays
    place.ok("node", "update", "n1", "--resources", '{"GPU": 2}')
    reported = place.ok("job", "submit", "--num-gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert reported == "2\n"


def test_virtual_nodes_tell_their_machine(place: Place) -> None:
    """Spec 5 and 11: the type of the node, and the label ray.io/node-id, on every level; it can be selected by."""
    place.ok("node", "add", "--count", "3", "--template", "t", "--simulated", "--resources", '{"CPU": 4}')
    names = [node["NodeID"] for node in place.read("nodes")["items"]]
    place.ok("vc", "create", "v", "--replica-sets", '{"t": 2}', "--divisible")
    spec = json.dumps(
        {
            "fixed_size_nodes": [
                {"nodes": [{"resources": {"CPU": 1}, "label_selector": {"ray.io/node-id": names[1]}}]}
            ]
        }
    )
    place.ok(
        "job",
        "submit",
        "--no-wait",
        "--submission-id",
        "j",
        "-c",
        "v",
        "--virtual-cluster",
        spec,
        "--",
        "sleep",
        "1000",
    )
    place.daemon()
    place.reach("j", "RUNNING")
    for cluster in ("primary", "v", "v##j"):
        for node in place.read("nodes", "-c", cluster)["items"]:
            assert node["NodeType"] == "t", cluster
            assert node["Labels"]["ray.io/node-id"] in names
    (inner,) = place.read("nodes", "-c", "v##j")["items"]
    assert inner["Labels"]["ray.io/node-id"] == names[1]
    assert place.job("j")["node_ids"] == [names[1]]


def test_a_job_that_left_something_detached_shows_where(place: Place) -> None:
    """Spec 13: node_ids of a job are the nodes on which it holds or held something."""
    place.ok("node", "add", "n1", "--simulated", "--resources", '{"CPU": 4}')
    place.daemon()
    words = f"{VCTL[0]} -m vctl task run --detach --no-wait -- sleep 1000"
    place.ok("job", "submit", "--submission-id", "j", "--num-cpus", "2", "--", "sh", "-c", words)
    job = place.reach("j", "SUCCEEDED")
    assert job["resources"] == {"CPU": 2.0}
    assert job["node_ids"] == ["n1"]
