"""spec 8, 11: a reason shown is true when it is shown, compared with an independent count of the raw tables.

A random walk of submits and ends, holds, limits, nodes that come and go; the scheduler turns only at some steps, so
most looks fall between its rounds. The count here shares no code with the reader: it reads columns and adds.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World, amounts
from vctl.errors import VctlError
from vctl.ops import clusters as cluster_ops
from vctl.ops import job_edits, overview, submitting, why
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest

pytestmark = spec("8.reasons")

UNIT = 10_000
PRIMARY = "kPrimaryClusterID"
SHOWN = 4


class Count:
    """What is free, added up from the columns of the tables and nothing else."""

    def __init__(self, world: World) -> None:
        self.db = world.store.db
        self.now = world.now()

    def free(self, cluster: str, name: str) -> dict[str, int]:
        """Node -> the most of a resource that one piece can get there; of devices only whole ones."""
        if cluster == PRIMARY:
            slots = self.db.execute(
                "SELECT node_id, node_id, amounts, instances FROM nodes WHERE state = 'ALIVE'"
            )
        else:
            slots = self.db.execute(
                "SELECT v.vnode_id, v.node_id, v.amounts, v.instances FROM vnodes v, nodes n"
                " WHERE n.node_id = v.node_id AND n.state = 'ALIVE' AND v.cluster_id = ?",
                (cluster,),
            )
        found: dict[str, int] = {}
        for slot, node, total, instances in list(slots):
            inside = list(self.db.execute(
                "SELECT v.amounts, v.instances, v.whole AND c.kind = 'logical' FROM vnodes v, clusters c"
                " WHERE c.cluster_id = v.cluster_id AND v.parent_vnode_id = ?", (slot,)
            ))  # fmt: skip
            if any(gone for _, _, gone in inside):
                continue
            used = [one[:2] for one in inside] + list(self.db.execute(
                "SELECT amounts, instances FROM runs WHERE vnode_id = ?", (slot,)
            ))  # fmt: skip
            rest = json.loads(total).get(name, 0) - sum(json.loads(one[0]).get(name, 0) for one in used)
            whole = json.loads(instances).get(name)
            if whole is not None:
                for _, shares in used:
                    for index, share in json.loads(shares).get(name, {}).items():
                        whole[index] = whole.get(index, 0) - share
                rest = sum(share for share in whole.values() if share == UNIT)
            found[node] = max(found.get(node, 0), rest, 0)
        return found

    def running(self, cluster: str) -> int:
        sql = "SELECT count(*) FROM jobs WHERE status = 'RUNNING' AND parent_cluster_id = ?"
        return int(self.db.execute(sql, (cluster,)).fetchone()[0])


class Walk:
    """Draws what happens next and knows what it asked for, in its own words."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.store = world, world.store
        self.dice = random.Random(seed)
        self.made = 0
        self.asked: dict[str, tuple[str, str, int, int, str]] = {}
        """Job -> (how, resource, amount in units, pieces, cluster)."""
        self.limits: dict[str, int | None] = {}
        self.seen: dict[str, int] = {}
        for template, count, resources in (("t4", 3, amounts(4, 1)), ("t8", 2, amounts(8, 2))):
            node_ops.add(self.store, resources=resources, count=count, template=template)
        cluster_ops.create(self.store, "whole", ClusterChange(divisible=True, replica_sets={"t4": 1}))
        cluster_ops.create(self.store, "shared", ClusterChange(replica_sets={"t4": 1}))
        limited = {"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 5}}
        cluster_ops.create(
            self.store,
            "elastic",
            ClusterChange(divisible=True, spec=parse_cluster_spec(limited, logical=True)),
        )
        cluster_ops.update(self.store, "whole", ClusterChange(queue={"discipline": "strict"}))
        self.actions: list[tuple[int, Callable[[], object]]] = [
            (10, self.submit), (6, self.end), (2, self.hold), (2, self.release), (1, self.drain), (1, self.undrain),
            (1, self.add_node), (1, self.limit), (1, self.stop_or_resume), (6, world.turn), (1, self.sleep),
        ]  # fmt: skip

    def step(self) -> None:
        with contextlib.suppress(VctlError):
            self.dice.choices([do for _, do in self.actions], [weight for weight, _ in self.actions])[0]()
        self.look()

    # ---- what happens ----

    def submit(self) -> None:
        self.made += 1
        name, cluster = f"j{self.made}", self.dice.choice((PRIMARY, PRIMARY, "whole", "shared", "elastic"))
        how = self.dice.choice(("one", "spread", "times", "split", "devices"))
        units = self.dice.choice((1, 2, 3, 4, 6))
        spec: dict[str, Any] | None
        fields: dict[str, Any] = {"cluster": cluster}
        if cluster == "shared":
            units, spec = self.dice.choice((1, 2, 3)), None
            self.asked[name] = ("one", "CPU", units, 1, cluster)
            fields["entry"] = amounts(units)
        elif how == "split":
            spec = {"flexible_resource_min": {"CPU": units}}
            fields["entry"] = {}
            self.asked[name] = ("split", "CPU", units, 1, cluster)
        else:
            resource = "GPU" if how == "devices" else "CPU"
            count = 1 if how in ("one", "devices") else self.dice.choice((2, 3))
            units = min(units, 2) if resource == "GPU" else units
            policy = "STRICT_SPREAD" if how == "spread" else "PACK"
            spec = {"fixed_size_nodes": [
                {"nodes": [{"resources": {resource: units}}] * count, "scheduling_policy": policy}
            ]}  # fmt: skip
            self.asked[name] = ("spread" if how == "spread" else "one", resource, units, count, cluster)
        parsed = None if spec is None else parse_cluster_spec(spec)
        request = JobRequest(
            argv=("x",), submission_id=name, spec=parsed, cwd="/", priority=self.dice.randint(0, 2), **fields
        )
        try:
            form = submitting.submit(self.store, request, environment={"PATH": "/bin"})
        except VctlError:
            del self.asked[name]
            raise
        assert form["state_reason"] in ("PendingEvaluation", "ClusterStopped")

    def pick(self, where: str) -> str | None:
        found = [row[0] for row in self.store.rows(f"SELECT submission_id FROM jobs WHERE {where}")]
        return self.dice.choice(found) if found else None

    def end(self) -> None:
        if running := self.world.processes.running():
            self.world.processes.end(self.dice.choice(running), 0)

    def hold(self) -> None:
        if job := self.pick("status = 'PENDING' AND NOT held"):
            job_edits.hold(self.store, job)

    def release(self) -> None:
        if job := self.pick("status = 'PENDING' AND held"):
            job_edits.release(self.store, job)

    def drain(self) -> None:
        node_ops.drain(
            self.store, self.dice.choice(sorted(n["node_id"] for n in node_ops.list_nodes(self.store)))
        )

    def undrain(self) -> None:
        states = {n["node_id"]: n["state"] for n in node_ops.list_nodes(self.store)}
        if drained := sorted(n for n, state in states.items() if state in ("DRAINING", "DRAINED")):
            node_ops.undrain(self.store, self.dice.choice(drained))

    def add_node(self) -> None:
        if self.dice.random() < 0.3:
            node_ops.add(self.store, resources=amounts(4, 1), count=1, template="t4")

    def limit(self) -> None:
        cluster = self.dice.choice((PRIMARY, "shared"))
        most = self.dice.choice((None, 2, 4))
        self.limits[cluster] = most
        cluster_ops.update(self.store, cluster, ClusterChange(queue={"max_running_jobs": most}))

    def stop_or_resume(self) -> None:
        stopped = self.store.value("SELECT state FROM clusters WHERE cluster_id = 'whole'") == "STOPPED"
        (cluster_ops.resume if stopped else cluster_ops.stop)(self.store, "whole")

    def sleep(self) -> None:
        self.world.sleep(self.dice.choice((1, 60)))

    # ---- what is shown ----

    def look(self) -> None:
        found, total = job_ops.list_jobs(self.store)
        assert total == len(found)
        count = Count(self.world)
        head = {one["submission_id"]: one for one in overview.status(self.store)["queue"]["head"]}
        for job in found:
            if job["status"] != "PENDING":
                continue
            self.seen[job["state_reason"]] = self.seen.get(job["state_reason"], 0) + 1
            assert job["queue_position"] >= 1
            self.judge(job, count)
            name = job["submission_id"]
            if name in head:
                assert (head[name]["state_reason"], head[name]["message"]) == (
                    job["state_reason"], job["message"],
                )  # fmt: skip
        if waiting := [job for job in found if job["status"] == "PENDING"]:
            one = self.dice.choice(waiting)
            assert job_ops.get_job(self.store, one["job_id"]) == one

    def judge(self, job: dict[str, Any], count: Count) -> None:
        how, resource, units, pieces, cluster = self.asked[job["submission_id"]]
        token, message = job["state_reason"], job["message"]
        held = self.store.value("SELECT held FROM jobs WHERE job_id = ?", job["job_id"])
        assert bool(held) == (token == "Held"), job
        if held:
            return
        stopped = self.store.value("SELECT state FROM clusters WHERE cluster_id = ?", cluster) == "STOPPED"
        assert stopped == (token == "ClusterStopped"), job
        if stopped:
            return
        if token == "CapReached":
            most = self.limits[cluster]
            assert most is not None
            assert count.running(cluster) >= most, job
            assert f"{count.running(cluster)} job" in message
            return
        free = count.free(cluster, resource)
        if token == "Infeasible":
            assert message.startswith("exceeds the capacity of "), message
            assert not fits(
                how, units, pieces, {n: self.total(cluster, n, resource) for n in self.nodes(cluster)}
            )
            return
        need = f"{units} {resource}"
        wanted = {
            "split": f"needs {need} in total",
            "spread": f"needs {need} on each of {pieces} nodes",
            "one": f"needs {pieces} times {need}" if pieces > 1 else f"needs {need} on one node",
        }[how]
        assert wanted in message, (job, wanted)
        shown = re.search(r"; free: ([^;]*)", message)
        assert shown, message
        self.compare(shown[1], free, message)
        above = re.search(r"in primary, from which elastic can grow: ([^;(]*)", message)
        if above:
            assert cluster == "elastic"
            self.compare(above[1].strip(), count.free(PRIMARY, resource), message)
        if cluster == "elastic":
            return
        if token == "InsufficientResources":
            assert not fits(how, units, pieces, free), job
        elif "it can start in the next round of the scheduler" in message:
            assert fits(how, units, pieces, free) or self.limits.get(cluster) is not None, job

    def nodes(self, cluster: str) -> list[str]:
        """Those that count for what could ever run: alive or draining."""
        living = "(SELECT node_id FROM nodes WHERE state IN ('ALIVE', 'DRAINING'))"
        if cluster == PRIMARY:
            return [row[0] for row in self.store.rows(f"SELECT node_id FROM nodes WHERE node_id IN {living}")]
        sql = f"SELECT node_id FROM vnodes WHERE cluster_id = ? AND node_id IN {living}"
        return [row[0] for row in self.store.rows(sql, cluster)]

    def total(self, cluster: str, node: str, resource: str) -> int:
        if cluster == PRIMARY:
            taken = self.store.value(
                "SELECT 1 FROM vnodes v, clusters c WHERE c.cluster_id = v.cluster_id AND c.kind = 'logical'"
                " AND v.whole AND v.node_id = ?", node,
            )  # fmt: skip
            if taken:
                return 0
            text = self.store.value("SELECT amounts FROM nodes WHERE node_id = ?", node)
        else:
            text = self.store.value(
                "SELECT amounts FROM vnodes WHERE cluster_id = ? AND node_id = ?", cluster, node
            )
        return int(json.loads(text).get(resource, 0))

    def compare(self, shown: str, free: dict[str, int], message: str) -> None:
        """Every node named with the right amount, the largest named, and the rest no larger than said."""
        if shown == "no node takes work now" or shown.endswith(" has no virtual nodes"):
            assert not free, message
            return
        parts = shown.split(", ")
        rest = re.fullmatch(r"(\d+) more nodes? with (?:nothing|at most ([\d.]+))", parts[-1])
        named = dict(part.rsplit(" ", 1) for part in parts[: -1 if rest else None])
        for node, amount in named.items():
            assert float(amount) * UNIT == free[node], (message, free)
        others = {node: amount for node, amount in free.items() if node not in named}
        assert len(others) == (int(rest[1]) if rest else 0), (message, free)
        assert len(named) == min(len(free), SHOWN)
        if rest:
            assert max(others.values()) == float(rest[2] or 0) * UNIT, (message, free)
            assert max(others.values()) <= min(float(amount) * UNIT for amount in named.values())


def fits(how: str, units: int, pieces: int, free: dict[str, int]) -> bool:
    """Whether equal pieces of one resource have a place."""
    if how == "split":
        return sum(amount // UNIT for amount in free.values()) >= units
    here = [amount // (units * UNIT) for amount in free.values()]
    return sum(min(n, 1) for n in here) >= pieces if how == "spread" else sum(here) >= pieces


def _walk(tmp_path: Path, seed: int, steps: int) -> dict[str, int]:
    with World(tmp_path / "state") as world:
        walk = Walk(world, seed)
        for _ in range(steps):
            walk.step()
        waiting = [job["job_id"] for job in job_ops.list_jobs(world.store)[0] if job["status"] == "PENDING"]
        for job_id in waiting[:3]:
            said, listed = why.why(world.store, job_id), job_ops.get_job(world.store, job_id)
            assert said["queue_position"] == listed["queue_position"] == len(said["ahead"]) + 1
        return walk.seen


@pytest.mark.parametrize("seed", [1, 2])
def test_every_reason_on_a_short_walk(tmp_path: Path, seed: int) -> None:
    seen = _walk(tmp_path, seed, 70)
    assert {"InsufficientResources", "PendingEvaluation"} <= set(seen)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3, 9))
def test_every_reason_on_a_long_walk(tmp_path: Path, seed: int) -> None:
    seen = _walk(tmp_path, seed, 500)
    assert {"InsufficientResources", "PendingEvaluation", "Held", "CapReached", "ClusterStopped"} <= set(seen)
