"""Random lives of small trees: nodes die, drain, shrink and come while clusters and jobs come and go."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from tests.daemon.conftest import Life, cpu
from tests.daemon.test_repair import below
from tests.scheduler.brute_relocation import Brute
from tests.scheduler.test_relocation import check, lost
from tests.specification import spec
from vctl.core.clusters import JOB, LOGICAL
from vctl.core.nodes import DEAD, DRAINING
from vctl.errors import VctlError
from vctl.ops import clusters as cluster_ops
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.scheduler.replacement import below as inside
from vctl.store import clusters

pytestmark = spec("12.node-death", "12.maintenance")

STEPS = (
    "cluster",
    "cluster",
    "job",
    "job",
    "end",
    "kill",
    "drain",
    "undrain",
    "add",
    "shrink",
    "restart",
    "delete",
)


def random_spec(pick: random.Random) -> dict[str, Any]:
    """Fixed slices, a minimum, or both."""
    found: dict[str, Any] = {}
    if pick.random() < 0.5:
        nodes = [{"resources": {"CPU": pick.choice([1, 1, 2, 3])}} for _ in range(pick.choice([1, 2]))]
        policy = pick.choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
        found["fixed_size_nodes"] = [{"nodes": nodes, "scheduling_policy": policy}]
    if not found or pick.random() < 0.3:
        found["flexible_resource_min"] = {"CPU": pick.choice([1, 2, 3, 5])}
    return found


class RandomLife:
    """One life: each step may be refused, and after each the rules hold (``Life.turn``)."""

    def __init__(self, life: Life, seed: int) -> None:
        self.life, self.pick = life, random.Random(seed)
        self.made = 0
        life.nodes(3, "t")

    def step(self, kind: str) -> None:
        with suppress(VctlError):  # refused: no room, in use, in another state
            getattr(self, kind)()
        self.life.turn(maintain=self.pick.random() < 0.3)

    def node(self) -> str:
        return str(self.pick.choice(self.life.store.column("SELECT node_id FROM nodes ORDER BY 1")))

    def cluster(self) -> None:
        self.made += 1
        divisible = self.pick.random() < 0.7
        above = self.life.store.column(
            "SELECT cluster_id FROM clusters WHERE kind = 'logical' AND divisible ORDER BY 1"
        )
        parent = self.pick.choice([None, *above])
        name = f"c{self.made}"
        if self.pick.random() < 0.3:
            self.life.logical(name, {"t": 1}, divisible=divisible, parent=parent)
        else:
            self.life.logical(name, divisible=divisible, parent=parent, spec=random_spec(self.pick))

    def job(self) -> None:
        self.made += 1
        there = self.life.store.rows(
            "SELECT cluster_id, divisible FROM clusters WHERE kind = 'logical' ORDER BY 1"
        )
        row = self.pick.choice([None, *there])
        if row is None or row["divisible"]:
            wanted = random_spec(self.pick) if self.pick.random() < 0.8 else {"replica_sets": {"t": 1}}
            self.life.submit(f"j{self.made}", cluster=row and row["cluster_id"], spec=wanted)
        else:
            self.life.submit(
                f"j{self.made}", cluster=row["cluster_id"], entry=cpu(self.pick.choice([0, 1, 2]))
            )

    def end(self) -> None:
        jobs = self.life.store.column(
            "SELECT submission_id FROM jobs WHERE status IN ('PENDING', 'RUNNING') ORDER BY job_id"
        )
        if jobs:
            self.life.end(self.pick.choice(jobs))

    def kill(self) -> None:
        self.life.kill(self.node())

    def drain(self) -> None:
        node_ops.drain(self.life.store, self.node())

    def undrain(self) -> None:
        node_ops.undrain(self.life.store, self.node())

    def add(self) -> None:
        if self.life.store.value("SELECT count(*) FROM nodes WHERE state = 'ALIVE'") < 4:
            self.life.nodes(1, "t")

    def shrink(self) -> None:
        node_ops.update(self.life.store, self.node(), resources=cpu(self.pick.choice([2, 4, 4, 6])))

    def restart(self) -> None:
        if self.life.scheduler is not None:
            self.life.die()
            self.life.replay()

    def delete(self) -> None:
        there = self.life.store.column("SELECT cluster_id FROM clusters WHERE kind = 'logical' ORDER BY 1")
        if there:
            cluster_ops.delete(self.life.store, self.pick.choice(there))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_what_is_displaced_moves_when_it_can(life: Life, seed: int) -> None:
    here = RandomLife(life, seed)
    for _ in range(14):
        here.step(here.pick.choice(STEPS))
    for job in life.store.column("SELECT submission_id FROM jobs WHERE status IN ('PENDING', 'RUNNING')"):
        job_ops.stop(life.store, job, grace_s=0)
    life.until(
        lambda: not life.store.value("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')")
    )
    life.turn()
    ledger = clusters.load_ledger(life.store)
    assert not any(cluster.kind == JOB for cluster in ledger.clusters.values())
    named = {one.partition(" ")[0] for one in below(life)}
    left = set()
    for node in ledger.nodes.values():
        for vnode in lost(ledger, node.node_id) if node.state in (DEAD, DRAINING) else ():
            assert not Brute(ledger, [vnode, *inside(ledger, vnode.vnode_id)]).fits(), vnode
            if ledger.clusters[vnode.cluster_id].kind == LOGICAL:
                left.add(vnode.cluster_id)
    assert named <= left
    if not any(node.shrunk for node in ledger.nodes.values()):
        check(ledger)
