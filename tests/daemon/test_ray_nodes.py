"""The nodes of a Ray cluster in the tables: they join with the id that Ray gave them, and die when Ray says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.conftest import cpu
from tests.specification import spec
from vctl.config import load
from vctl.core.nodes import ALIVE, DEAD, MADE_BY, RAY, Template
from vctl.core.resources import CPU, GPU, MEMORY, SCALE
from vctl.core.values import replace
from vctl.errors import BadSpec, Conflict, Unreachable
from vctl.ops import nodes as node_ops
from vctl.ops import submitting
from vctl.ray.daemon import ray_nodes
from vctl.ray.daemon.ray_nodes import RayNodes
from vctl.ray.on_ray.runtime import RayRuntime
from vctl.ray.on_ray.wire import RayNode
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRay, JobRequest
from vctl.store import nodes, rows
from vctl.store.store import Store

pytestmark = spec("3.sources", "16.ray")

ONE, TWO = "a" * 56, "b" * 56


def reported(runtime: RayRuntime, *found: tuple[str, str]) -> None:
    """What the link says of the nodes: id and death."""
    amounts = {CPU: 4 * SCALE, GPU: 2 * SCALE}
    labels = {"ray.io/node-id": ONE, "zone": "west", "no label": "x"}
    runtime._handle("nodes", [[(node_id, "10.0.0.1", amounts, labels, death) for node_id, death in found]])


def states(store: Store) -> dict[str, str]:
    return {row["node_id"]: row["state"] for row in nodes.all_rows(store)}


def test_nodes_join_and_die(tmp_path: Path) -> None:
    runtime = RayRuntime(tmp_path, "nowhere:1")
    follower = RayNodes(tmp_path, runtime, frozenset({GPU}))
    with Store.open(tmp_path) as store:
        reported(runtime, (ONE, ""), (TWO, ""))
        follower.maintain()
        assert states(store) == {ONE: ALIVE, TWO: ALIVE}
        node = rows.node(nodes.all_rows(store)[0])
        assert (node.source, node.hostname, node.template_id) == (RAY, "10.0.0.1", "4c2gpu")
        assert node.labels == {"zone": "west"}
        assert sorted(node.total.instances[GPU]) == [0, 1]
        before = store.last_entry
        follower.maintain()
        reported(runtime, (ONE, ""), (TWO, ""))
        follower.maintain()
        assert store.last_entry == before
        reported(runtime, (ONE, "its raylet was killed"))
        follower.maintain()
        assert states(store) == {ONE: DEAD, TWO: DEAD}
        reasons = {row["node_id"]: (row["reason"], row["author"]) for row in nodes.all_rows(store)}
        assert reasons[ONE] == ("its raylet was killed", "ray")
        reported(runtime, (ONE, ""))
        follower.maintain()
        assert states(store)[ONE] == DEAD  # Ray never says that of a dead one


def test_a_state_directory_is_of_one_kind(tmp_path: Path) -> None:
    """Its nodes are Ray's, or none is; where they are Ray's this machine does not join by itself."""
    with Store.open(tmp_path / "ray") as store:
        ray_nodes.check(store, on_ray=True)
        node_ops.ensure_local(store)
        assert states(store) == {}
        runtime = RayRuntime(tmp_path / "ray", "nowhere:1")
        reported(runtime, (ONE, ""))
        RayNodes(tmp_path / "ray", runtime, frozenset()).maintain()
        ray_nodes.check(store, on_ray=True)
        with pytest.raises(Conflict, match="nodes of a Ray cluster"):
            ray_nodes.check(store, on_ray=False)
        node_ops.kill(store, ONE)
        ray_nodes.check(store, on_ray=False)
        node_ops.ensure_local(store)
        assert len(states(store)) == 1  # it joins only while there is no other node
    with Store.open(tmp_path / "local") as store:
        node_ops.add(store, resources=cpu(1), template="t")
        with pytest.raises(Conflict, match="not of a Ray cluster"):
            ray_nodes.check(store, on_ray=True)


@spec("3.sources")
def test_a_ray_that_cannot_be_reached_leaves_the_directory_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ``vctl daemon --ray`` with a wrong address: after that each submit was refused, as there was no node."""
    runtime = RayRuntime(tmp_path, "nowhere:1")

    def unreachable() -> None:
        raise Unreachable("Ray cannot be reached")

    monkeypatch.setattr(runtime, "connect", unreachable)
    with Store.open(tmp_path) as store:
        ray_nodes.check(store, on_ray=True)
        with pytest.raises(Unreachable):
            RayNodes(tmp_path, runtime, frozenset()).connect()
        node_ops.ensure_local(store)
        assert len(states(store)) == 1


@spec("9.provider")
def test_the_node_provider_of_a_ray_cluster_is_rays_autoscaler(tmp_path: Path) -> None:
    runtime = RayRuntime(tmp_path, "nowhere:1")
    of_ray = '{"kind": "ray", "templates": {"4c": {"resources": {"CPU": 4, "GPU": 2}}}}'
    for refused in ({"ray": "nowhere:1", "provider": '{"kind": "simulated"}'}, {"provider": of_ray}):
        with pytest.raises(BadSpec, match="provider"):
            ray_nodes.of(runtime, tmp_path, load(tmp_path, {}).with_flags(refused))
    assert ray_nodes.of(runtime, tmp_path, load(tmp_path, {})) is None
    config = load(tmp_path, {}).with_flags({"ray": "nowhere:1", "provider": of_ray})
    assert ray_nodes.of(runtime, tmp_path, config) is not None


@spec("9.provider")
@pytest.mark.parametrize(
    ("labels", "template"),
    [({}, "mine"), ({"ray.io/node-group": "mine"}, "mine"), ({"ray.io/node-group": "head"}, "head")],
)
def test_a_node_is_of_the_type_that_rays_autoscaler_calls_it(labels: dict[str, str], template: str) -> None:
    """Else of the one that has its size: how much memory Ray gives a node varies."""
    amounts = {CPU: 4 * SCALE, MEMORY: 5 * SCALE}
    templates = [Template("other", {CPU: 2 * SCALE}, 1), Template("mine", {CPU: 4 * SCALE}, 1)]
    node = ray_nodes.node_of(RayNode(ONE, "10.0.0.1", amounts, labels), frozenset(), templates)
    assert node.template_id == template
    assert node.labels.get(MADE_BY) == (RAY if template == "mine" else None)


def test_a_ray_of_its_own_on_ray(tmp_path: Path) -> None:
    """spec 16: the Ray that is used is that of the node, whatever is installed where the job is submitted."""
    half = parse_cluster_spec({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 0.5}}]}]})
    with Store.open(tmp_path) as store:
        ray_nodes.check(store, on_ray=True)
        runtime = RayRuntime(tmp_path, "nowhere:1")
        reported(runtime, (ONE, ""))
        RayNodes(tmp_path, runtime, frozenset()).maintain()
        request = JobRequest(argv=("/nowhere/python",), submission_id="a", ray=JobRay("plain"))
        around = {"PATH": "/nowhere"}
        with pytest.raises(BadSpec, match=r"a virtual node with 0\.5 CPU"):
            submitting.submit(store, replace(request, spec=half), environment=around)
        assert submitting.without_ray(store, request, around) is None
        submitting.submit(store, request, environment=around)
