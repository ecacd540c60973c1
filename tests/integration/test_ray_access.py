"""Who may use the Ray cluster below a daemon, and what others there can reach: its token, its namespace, its nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import Place, eventually
from tests.ray_cluster import RAY_S, WITH_RAY, RayCluster, begin, leave, log_of, running
from tests.specification import spec
from vctl.ray.private.raylets import free_port

pytestmark = [spec("16.ray"), *WITH_RAY]

TOKEN = "a1" * 32


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A head without CPUs and a node of two, behind a token."""
    yield from running((2, 0), token=TOKEN)


REFUSED = {
    "no token": {"RAY_AUTH_MODE": "disabled"},
    "a mode without a token": {"RAY_AUTH_MODE": "token"},
    "another token": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b2" * 32},
}


@pytest.mark.parametrize("environment", REFUSED.values(), ids=REFUSED)
def test_without_the_token_of_ray_no_daemon_starts(
    place: Place, cluster: RayCluster, environment: dict[str, str]
) -> None:
    place.more.update({"HOME": str(place.folder), "TMPDIR": str(cluster.folder)})
    place.more.update(environment)
    assert_refused(place, cluster.address)


def test_an_address_where_no_ray_is(place: Place) -> None:
    """Refused at once; Ray's own client would try for a minute."""
    assert_refused(place, f"127.0.0.1:{free_port()}")


def assert_refused(place: Place, address: str) -> None:
    ran = place.finish(place.start("daemon", "--ray", address), within_s=RAY_S)
    assert ran.code == 6, ran
    assert f"Ray cannot be reached at {address}" in ran.err
    assert "Fix: check the address, and RAY_AUTH_MODE and RAY_AUTH_TOKEN" in ran.err
    assert place.read("node", "list")["items"] == []


def test_others_in_the_same_ray(place: Place, cluster: RayCluster) -> None:
    """A job does not get the token of the daemon; nobody enters its reservation by node, by name or by chance."""
    begin(place, cluster)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        place.more.pop(name)  # the daemon has them, who submits has not
    shell = "env | grep -c RAY_AUTH; exec sleep 1000"
    place.submit("--submission-id", "holds", "--num-cpus", "2", "--", "sh", "-c", shell)
    eventually(lambda: log_of(place, "holds"), "the job to start", RAY_S)
    assert log_of(place, "holds") == "0\n"
    (name,) = cluster.groups()
    code = f"""
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Node
(node,) = [one["NodeID"] for one in ray.nodes() if one["Resources"].get("CPU")]
task = ray.remote(num_cpus=1)(lambda: 1)
asked = [task.remote(), task.options(scheduling_strategy=Node(node, soft=False)).remote()]
try:
    ray.util.get_placement_group({name!r})
    found = "found"
except ValueError:
    found = "unknown"
print(len(ray.wait(asked, num_returns=2, timeout=5)[0]), found, ray.util.list_named_actors())
"""
    assert cluster.ask(code).split() == ["0", "unknown", "[]"]
    place.ok("job", "stop", "holds")
    leave(place, cluster)
    place.assert_sound()
