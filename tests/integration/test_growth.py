"""Jobs that start because clusters grow, on the command line (specification, sections 6 and 9)."""

from __future__ import annotations

import sys

from tests.integration.conftest import Place, eventually
from tests.specification import spec

pytestmark = spec("9.growth")

TWELVE = '{"flexible_resource_min": {"CPU": 12}}'


def test_a_flexible_minimum_grows_its_parent_over_several_nodes(place: Place) -> None:
    place.add_nodes(2, '{"CPU": 8}')
    place.daemon()
    place.ok("vc", "create", "c", "--divisible", "--spec", '{"flexible_resource_min": {"CPU": 4}}')
    done = place.run("job", "submit", "-c", "c", "--virtual-cluster", TWELVE, "--", "echo", "started")
    assert (done.code, done.out) == (0, "started\n"), done


def test_a_flexible_minimum_takes_what_a_sibling_lends_on_several_nodes(place: Place) -> None:
    place.add_nodes(2, '{"CPU": 8}')
    place.daemon()
    lends = ["--lending-limit", '{"CPU": 12}']
    place.ok(
        "vc", "create", "rich", "--divisible", "--spec", '{"flexible_resource_min": {"CPU": 14}}', *lends
    )
    place.ok("vc", "create", "poor", "--divisible", "--spec", '{"flexible_resource_min": {"CPU": 2}}')
    job = place.sleeper("-c", "poor", "--virtual-cluster", TWELVE)
    place.reach(job, "RUNNING")
    (lent,) = (one for one in place.read("lease", "list")["items"] if one["lender_id"] == "rich")
    assert (lent["resources"], lent["state"]) == ({"CPU": 10}, "GRANTED")
    assert len({one["node_id"] for one in place.read("list", "vnodes", "-c", "poor")["items"]}) == 2
    assert place.run("doctor", "--prove").code == 0
    more = place.sleeper("-c", "poor", "--virtual-cluster", '{"flexible_resource_min": {"CPU": 3}}')
    assert place.reach(more, "PENDING")["status"] == "PENDING"
    place.ok("job", "stop", job)
    place.reach(more, "RUNNING")


def test_work_without_any_request_starts_in_a_cluster_that_has_nothing_yet(place: Place) -> None:
    place.add_nodes(1, '{"CPU": 2}')
    place.daemon()
    nothing = ["--entrypoint-num-cpus", "0"]
    place.ok("vc", "create", "whole", "--divisible", "--spec", "{}")
    place.ok("vc", "create", "shared", "--spec", "{}")
    for cluster in ("whole", "shared"):
        done = place.run("job", "submit", "-c", cluster, *nothing, "--", "echo", "started")
        assert (done.code, done.out) == (0, "started\n"), (cluster, done)
    per_node = ["--per-node", "--virtual-cluster", "{}"]
    done = place.run("job", "submit", "-c", "whole", *per_node, "--", "echo", "started")
    assert (done.code, done.out) == (0, "started\n"), done
    inside = f"{sys.executable} -m vctl task run --num-cpus 0 -- echo inside"
    done = place.run("job", "submit", "-c", "whole", *nothing, "--", "sh", "-c", inside)
    assert done.code == 0, done
    assert "inside" in done.out
    for cluster in ("whole", "shared"):
        eventually(
            lambda cluster=cluster: place.read("vc", "get", cluster)["total_resources"].get("CPU", 0) == 0
        )
        place.ok("vc", "delete", cluster)


@spec("6.never", "10.confined")
def test_a_cluster_of_two_slices_of_one_machine_can_use_both(place: Place) -> None:
    """Spec 1: a flexible virtual node in each. A minimum of 2 was exit 3, "1 can be had"; a second task waited."""
    place.add_nodes(1, '{"CPU": 4}')
    place.daemon()
    slices = '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}, {"resources": {"CPU": 1}}]}]}'
    place.ok("vc", "create", "two", "--divisible", "--spec", slices)
    wanted = ["-c", "two", "--virtual-cluster", '{"flexible_resource_min": {"CPU": 2}}']
    done = place.run("job", "submit", *wanted, "--", "echo", "started")
    assert (done.code, done.out) == (0, "started\n"), done
    large = ["-c", "two", "--virtual-cluster", '{"flexible_resource_min": {"CPU": 3}}']
    done = place.run("job", "submit", *large, "--", "true")
    assert done.code == 3
    assert "3 CPU asked, 2 exist" in done.err

    job = place.sleeper("-c", "two")  # it has no spec: its command holds a CPU, its task makes it grow
    place.reach(job, "RUNNING")
    task = place.ok("task", "run", "--job", job, "--no-wait", "--", "sleep", "60").strip()
    eventually(lambda: place.read("task", "status", task)["state"] == "RUNNING")
    held = [one for one in place.read("list", "vnodes")["items"] if one["cluster_id"] == f"two##{job}"]
    assert {one["parent_id"] for one in held} == {"two/0", "two/1"}
    assert place.run("doctor", "--prove").code == 0
