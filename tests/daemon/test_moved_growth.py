"""What a cluster has idle on one node goes home, and comes again under the same id on another (spec 9)."""

from __future__ import annotations

from pathlib import Path

from tests.specification import spec
from tests.world import World, amounts
from vctl.ops import clusters, nodes, submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest

pytestmark = spec("9.growth", "9.return")


def logical(document: dict[str, object]) -> ClusterChange:
    return ClusterChange(divisible=True, spec=parse_cluster_spec(document, logical=True))


def submit(world: World, cpus: float, selector: dict[str, str] | None = None, to: str = "x") -> str:
    node = {"resources": {"CPU": cpus}, **({"label_selector": selector} if selector else {})}
    request = JobRequest(
        argv=("x",), cwd="/", cluster=to, spec=parse_cluster_spec({"fixed_size_nodes": [{"nodes": [node]}]})
    )
    return str(submitting.submit(world.store, request, environment={})["submission_id"])


def parts(world: World) -> list[tuple[str, str]]:
    """The virtual nodes of ``a`` and ``x``, each with its node."""
    sql = "SELECT vnode_id, node_id FROM vnodes WHERE cluster_id IN ('a', 'x') ORDER BY 1"
    return [tuple(row) for row in world.store.rows(sql)]


def test_nested_parts_that_are_idle_on_one_node_return_and_grow_on_another_in_one_start(
    tmp_path: Path,
) -> None:
    """``x`` may have 7 CPU: its idle 2 on the small node go home for 6 on the large one, both levels with their ids."""
    with World(tmp_path / "s") as world:
        nodes.add(world.store, resources=amounts(4), node_id="small", labels={"size": "small"})
        nodes.add(world.store, resources=amounts(8), node_id="large")
        clusters.create(world.store, "a", logical({"flexible_resource_min": {}}))
        limited = logical({"flexible_resource_min": {}, "flexible_resource_max": {"CPU": 7}})
        clusters.create(world.store, "x", limited, parent_id="a")
        submit(world, 2, {"size": "small"})
        world.turn()
        (run_id,) = world.processes.running()
        world.processes.end(run_id, 0)
        world.turn()
        submit(world, 6)
        world.turn()
        assert parts(world) == [("a/0", "large"), ("x/0", "large")]
        assert len(world.processes.running()) == 1


def test_a_part_whose_parent_goes_grows_on_a_node_where_that_cluster_has_another_one(tmp_path: Path) -> None:
    """``a`` may have 8 CPU and uses 1 on the large node: its idle 2 on the small one go, with those of ``x`` in them.

    The scheduler stopped: ``a/0`` was removed while ``x/0``, whose id grows on the large node, was still in it.
    """
    with World(tmp_path / "s") as world:
        nodes.add(world.store, resources=amounts(4), node_id="small", labels={"size": "small"})
        nodes.add(world.store, resources=amounts(8), node_id="large", labels={"size": "large"})
        clusters.create(
            world.store, "a", logical({"flexible_resource_min": {}, "flexible_resource_max": {"CPU": 8}})
        )
        limited = logical({"flexible_resource_min": {}, "flexible_resource_max": {"CPU": 7}})
        clusters.create(world.store, "x", limited, parent_id="a")
        submit(world, 2, {"size": "small"})
        world.turn()
        (run_id,) = world.processes.running()
        submit(world, 1, {"size": "large"}, "a")
        world.turn()
        world.processes.end(run_id, 0)
        world.turn()
        submit(world, 6)
        world.turn()
        assert parts(world) == [("a/1", "large"), ("x/0", "large")]
        assert len(world.processes.running()) == 2


def test_a_lender_lends_nothing_out_of_a_fixed_node_of_the_cluster_around_it(tmp_path: Path) -> None:
    """Both may lend 2 CPU, but what ``inner`` has on the small node lies in what the spec of ``outer`` reserves there.

    The fixed virtual node of ``outer`` got smaller, so it had less than its spec.
    """
    with World(tmp_path / "s") as world:
        nodes.add(world.store, resources=amounts(2), node_id="small", labels={"size": "small"})
        nodes.add(world.store, resources=amounts(2), node_id="large", labels={"size": "large"})
        reserved = {"resources": {"CPU": 2}, "label_selector": {"size": "small"}}
        lends = {"lending_limit": amounts(2), "divisible": True}
        fixed = {"fixed_size_nodes": [{"nodes": [reserved]}], "flexible_resource_min": {"CPU": 2}}
        outer = ClusterChange(spec=parse_cluster_spec(fixed, logical=True), **lends)
        clusters.create(world.store, "outer", outer)
        all_of_it = parse_cluster_spec({"flexible_resource_min": {"CPU": 4}}, logical=True)
        clusters.create(world.store, "inner", ClusterChange(spec=all_of_it, **lends), parent_id="outer")
        submit(world, 1, {"size": "small"}, "primary")
        world.turn()
        assert world.processes.running() == []
        submit(world, 1, {"size": "large"}, "primary")
        world.turn()
        assert len(world.processes.running()) == 1
