"""What a queue believes of its cluster ends when the cluster has something else, however little else has happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World, amounts
from vctl.core.nodes import Template
from vctl.ops import clusters, job_edits, nodes, submitting, why
from vctl.ops import jobs as job_ops
from vctl.scheduler.reservations import Reservation
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.provider_spec import ProviderSpec

pytestmark = spec("8.reasons", "18.budgets")

TWO, EIGHT = {"2c": 1}, {"8c": 1}


class Shop(World):
    """Two nodes of two CPUs, one of eight."""

    def prepare(self) -> None:
        nodes.add(self.store, resources=amounts(2), count=2, template="2c")
        nodes.add(self.store, resources=amounts(8), node_id="big", template="8c")

    def submit(self, name: str, *cpus: float, cluster: str | None = None, **options: Any) -> None:
        spec = parse_cluster_spec(
            {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": n}} for n in cpus]}]}
        )
        request = JobRequest(argv=("x",), submission_id=name, spec=spec, cluster=cluster, **options)
        submitting.submit(self.store, request, environment={"PATH": "/usr/bin:/bin"})
        self.turn()

    def state(self, name: str) -> tuple[str, str | None]:
        job = job_ops.get_job(self.store, name)
        return job["status"], job["state_reason"]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Shop(tmp_path / "state") as world:
        world.prepare()
        yield world


@pytest.mark.parametrize("where", ["primary", "X"])
def test_a_head_that_became_impossible_blocks_nobody(shop: Shop, where: str) -> None:
    if where == "X":
        clusters.create(shop.store, "X", ClusterChange(replica_sets={**TWO, **EIGHT}, divisible=True))
    clusters.update(shop.store, where, ClusterChange(queue={"order": "fifo", "discipline": "strict"}))
    shop.submit("holder", 8, cluster=where)
    shop.submit("head", 8, cluster=where)
    shop.submit("next", 2, cluster=where)
    assert shop.state("head") == ("PENDING", "InsufficientResources")
    assert shop.state("next") == ("PENDING", "HeadOfLine")
    nodes.kill(shop.store, "big")
    shop.turn()
    assert shop.state("head") == ("PENDING", "Infeasible")
    assert shop.state("next") == ("RUNNING", None)
    nodes.add(shop.store, resources=amounts(8), node_id="big2", template="8c")
    shop.turn()
    shop.processes.obey()
    shop.turn()
    assert shop.state("head") == ("RUNNING", None)


@pytest.mark.parametrize(
    ("cpus", "head", "behind"), [(4, "Infeasible", None), (8, "InsufficientResources", "HeadOfLine")]
)
@spec("6.never")
def test_what_no_provider_can_make_either_blocks_nobody(
    tmp_path: Path, cpus: float, head: str, behind: str | None
) -> None:
    made = (Template("made", amounts(cpus), most=1),)
    with Shop(tmp_path / "state", provider=ProviderSpec("simulated", made, boot_s=60)) as shop:
        shop.prepare()
        clusters.update(shop.store, "primary", ClusterChange(queue={"order": "fifo", "discipline": "strict"}))
        for name in ("holder", "head", "next"):
            shop.submit(name, 2 if name == "next" else 8)
        assert shop.state("head")[1] == "InsufficientResources"
        nodes.kill(shop.store, "big")
        shop.turn()
        assert (shop.state("head")[1], shop.state("next")[1]) == (head, behind)
        assert why.why(shop.store, "head")["state_reason"] == head


def test_hope_behind_a_head_outlives_the_room_that_gave_it(shop: Shop) -> None:
    """Something came free behind a blocked head, others took it, then a node joins: that is another hope."""
    clusters.update(shop.store, "primary", ClusterChange(queue={"discipline": "strict"}))
    for n in range(2):
        shop.submit(f"small{n}", 2)
    shop.submit("large", 8)
    shop.submit("behind", 2)
    shop.submit("head", 8, priority=5)
    assert (shop.state("head")[1], shop.state("behind")[1]) == ("InsufficientResources", "HeadOfLine")
    shop.processes.end(_run_of(shop, "small0"), 0)
    shop.turn()
    nodes.drain(shop.store, "2c-00")
    nodes.drain(shop.store, "2c-01")
    nodes.add(shop.store, resources=amounts(10), node_id="new", template="10c")
    shop.turn()
    assert (shop.state("head")[0], shop.state("behind")[0]) == ("RUNNING", "RUNNING")


def test_nodes_that_were_exchanged_are_others(shop: Shop) -> None:
    """The tree that is read anew has as many virtual nodes as before, and they have the same names."""
    clusters.create(shop.store, "X", ClusterChange(replica_sets=EIGHT, divisible=True))
    shop.submit("holder", 8, cluster="X")
    shop.submit("waits", 8, cluster="X")
    assert shop.state("waits") == ("PENDING", "InsufficientResources")
    job_edits.hold(shop.store, "waits")
    shop.processes.end(shop.processes.running()[0], 0)
    shop.turn()
    clusters.update(shop.store, "X", ClusterChange(replica_sets=TWO))
    job_edits.release(shop.store, "waits")
    shop.turn()
    assert shop.state("waits") == ("PENDING", "Infeasible")


def test_what_is_reserved_on_a_node_ends_with_its_exchange(shop: Shop) -> None:
    nodes.add(shop.store, resources=amounts(1), node_id="small", template="1c")
    clusters.create(shop.store, "X", ClusterChange(replica_sets={"2c": 2}, divisible=True))
    clusters.update(shop.store, "X", ClusterChange(queue={"order": "fifo", "discipline": "backfill"}))
    shop.submit("holder", 2, cluster="X", time_limit_s=1000)
    shop.submit("head", 2, 2, cluster="X", time_limit_s=100)
    assert [one.submission_id for one in _kept(shop)] == ["head"]
    clusters.update(shop.store, "X", ClusterChange(replica_sets={**TWO, "1c": 1}))
    shop.submit("next", 1, cluster="X", time_limit_s=5000)
    assert shop.state("head") == ("PENDING", "Infeasible")
    assert _kept(shop) == []
    assert shop.state("next") == ("RUNNING", None)


def _run_of(shop: Shop, name: str) -> str:
    found = shop.store.value("SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE submission_id = ?", name)
    return str(found)


def _kept(shop: Shop) -> list[Reservation]:
    assert shop.scheduler is not None
    assert shop.scheduler.state is not None
    return list(shop.scheduler.state.queues["X"].kept.values())
