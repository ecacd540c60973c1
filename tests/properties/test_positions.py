"""spec 8, 11: the positions that are shown are the order of the starts that follow, in every order and discipline.

Trees of elastic clusters with random policies; past use and lag come from a random past. All jobs need one CPU, so
that whoever is next fits. Then nobody arrives any more: the positions are read on every surface, and jobs begin.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World, amounts
from vctl.core.queue_policy import FAIR, FIFO, LONGEST, PRIORITY, QUEUE_DISCIPLINES, SHORTEST
from vctl.ops import cluster_views, overview, submitting, why
from vctl.ops import clusters as cluster_ops
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_dependency

pytestmark = spec("8.orders", "8.disciplines", "8.reasons")

USERS = ("ann", "bob", "cy")
OTHER = "other"
"""A user who holds what comes free, and waits for nothing: nobody's share changes with the end of such a job."""
CPUS = 4


class Scene:
    """A tree under random policies, and users who have used it in the past."""

    def __init__(self, world: World, seed: int, monkeypatch: pytest.MonkeyPatch, levels: int = 4) -> None:
        self.world, self.store, self.dice = world, world.store, random.Random(seed)
        self.user, self.made = OTHER, 0
        monkeypatch.setattr(node_ops, "author", lambda *_: self.user)
        count = self.dice.choice((1, 2, 3))
        self.cpus = count * CPUS
        node_ops.add(self.store, resources=amounts(CPUS), count=count, template="t")
        self.parents = ["primary"]
        elastic = parse_cluster_spec({"flexible_resource_min": {}}, logical=True)
        for name in "abcd"[: self.dice.randint(min(levels, 1), levels)]:
            parent = self.dice.choice(self.parents)
            cluster_ops.create(
                self.store,
                name,
                ClusterChange(divisible=True, spec=elastic),
                parent_id=None if parent == "primary" else parent,
            )
            self.parents.append(name)
        for name in self.parents:
            cluster_ops.update(self.store, name, ClusterChange(queue=self.policy()))

    def policy(self) -> dict[str, Any]:
        order = self.dice.choice((FIFO, PRIORITY, FAIR, FAIR, FAIR, LONGEST, SHORTEST))
        queue = {
            "order": order,
            "discipline": self.dice.choice(QUEUE_DISCIPLINES),
            "weight": self.dice.choice((1, 2, 5)),
        }
        if order in (PRIORITY, FAIR) and self.dice.random() < 0.5:
            queue["ageing_s"] = self.dice.choice((10, 100))
        if self.dice.random() < 0.5:
            queue["half_life_s"] = self.dice.choice((10, 100, 1000))
        return queue

    def submit(self, cluster: str, user: str, **fields: Any) -> str:
        self.made += 1
        self.user, name = user, fields.pop("name", f"j{self.made:03}")
        request = JobRequest(
            argv=("x",), submission_id=name, cluster=None if cluster == "primary" else cluster, cwd="/",
            entry=amounts(1), grace_s=0, **fields,
        )  # fmt: skip
        submitting.submit(self.store, request, environment={})
        return name

    def wait(self, many: int, clusters: Sequence[str]) -> None:
        """Jobs that wait from now on, some of them for a time, for a release, or for another job."""
        for _ in range(many):
            draw, fields = self.dice, dict[str, Any]()
            gate = draw.random()
            if gate < 0.1:
                fields["hold"] = True
            elif gate < 0.2:
                fields["begin_at"] = self.world.now() / 1e9 + 1e7
            elif gate < 0.3:
                fields["after"] = (parse_dependency("ok:never"),)
            self.submit(
                draw.choice(clusters), draw.choice(USERS), priority=draw.choice((0, 0, 0, 1, 2)),
                time_limit_s=draw.choice((None, 1e6, 2e6, 3e6)), **fields,
            )  # fmt: skip
            self.world.sleep(draw.choice((0, 0, 0, 7)))

    def run_ids(self, whose: str) -> list[str]:
        sql = f"SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE {whose} ORDER BY run_id"
        return [row[0] for row in self.store.rows(sql)]

    def past(self) -> None:
        """Users compete for some minutes; what they got beyond their due, and what they used, is remembered."""
        self.submit("primary", OTHER, hold=True, name="never")
        for _ in range(self.dice.choice((0, 3, 8))):
            for _ in range(self.dice.randint(0, 4)):
                self.submit(self.dice.choice(self.parents), self.dice.choice(USERS))
            self.world.turn()
            self.world.sleep(self.dice.choice((0.5, 3, 20)))
            for run_id in self.run_ids("1"):
                if self.dice.random() < 0.4:
                    self.world.processes.end(run_id, 0)
            self.world.turn()

    def fill(self) -> None:
        """The other user takes everything that is free, and what some of the users' jobs leave."""
        for run_id in self.run_ids("1"):
            if self.dice.random() < 0.6:
                self.world.processes.end(run_id, 0)
        self.world.turn()
        left = f"SELECT submission_id FROM jobs WHERE status = 'PENDING' AND user = '{OTHER}' AND NOT held"
        while not self.store.rows(left):
            self.submit("primary", OTHER, priority=9)
            self.world.turn()
            self.world.sleep(40)  # idle leases go home
            self.world.turn()
        for row in self.store.rows(
            "SELECT submission_id FROM jobs WHERE status = 'PENDING' AND user = ? AND NOT held", OTHER
        ):
            job_ops.stop(self.store, row[0])

    # ---- what is shown ----

    def shown(self) -> dict[str, list[str]]:
        """Queue -> the jobs that may start, in the order of their positions, as every surface shows them."""
        listed = {
            one["submission_id"]: one
            for one in job_ops.list_jobs(self.store)[0]
            if one["status"] == "PENDING"
        }
        found: dict[str, list[tuple[int, str]]] = {}
        for name, one in listed.items():
            alone = job_ops.get_job(self.store, name)
            assert alone["queue_position"] == one["queue_position"], name
            if one["state_reason"] not in ("Held", "BeginTime", "Dependency"):
                found.setdefault(one["parent_cluster_id"], []).append((one["queue_position"], name))
        orders = {cluster: [name for _, name in sorted(places)] for cluster, places in found.items()}
        for cluster, places in found.items():
            assert sorted(place for place, _ in places) == list(range(1, len(places) + 1)), (cluster, places)
        for name in self.dice.sample(sorted(listed), min(4, len(listed))):
            said, place = why.why(self.store, name), listed[name]["queue_position"]
            order = orders.get(listed[name]["parent_cluster_id"], [])
            assert said["queue_position"] == place
            assert [one["submission_id"] for one in said["ahead"]] == order[: place - 1], name
        for one in overview.status(self.store)["queue"]["head"]:
            assert one["queue_position"] == listed[one["submission_id"]]["queue_position"]
        return orders

    def starts(self, since: int) -> dict[str, list[str]]:
        """Queue -> the jobs that began after an event, in order."""
        found: dict[str, list[str]] = {}
        for row in self.store.rows(
            "SELECT submission_id, parent_cluster_id FROM events e JOIN jobs USING (job_id)"
            " WHERE seq > ? AND e.kind = 'job.started' ORDER BY seq", since,
        ):  # fmt: skip
            found.setdefault(row[1], []).append(row[0])
        return found

    def last(self) -> int:
        return int(self.store.value("SELECT max(seq) FROM events"))

    def policy_of(self, cluster: str) -> Mapping[str, object]:
        return cluster_views.get_cluster(self.store, cluster)["queue"]

    def compare(self, cluster: str, begun: list[str], shown: list[str]) -> None:
        """They began in the order that was shown. Backfill lets a shorter job pass one that a reservation keeps."""
        policy, left = self.policy_of(cluster), list(shown)
        for name in begun:
            passed = left[: left.index(name)]
            if policy["discipline"] == "backfill":
                passed = [one for one in passed if self.limit(one) <= self.limit(name)]
            assert passed == [], (cluster, policy, begun, shown)
            left.remove(name)

    def limit(self, name: str) -> float:
        limit_s = self.store.value("SELECT time_limit_s FROM jobs WHERE submission_id = ?", name)
        return float("inf") if limit_s is None else float(limit_s)


def in_one_round(world: World, monkeypatch: pytest.MonkeyPatch, seed: int) -> int:
    """Somebody else's jobs end, one by one: jobs begin in the order that was read before the first of these ends."""
    scene = Scene(world, seed, monkeypatch)
    scene.past()
    scene.fill()
    scene.wait(scene.dice.randint(3, 14), scene.parents)
    world.turn()
    shown, since = scene.shown(), scene.last()
    for run_id in scene.run_ids(f"user = '{OTHER}'"):
        world.processes.end(run_id, 0)
        world.turn()
    begun = scene.starts(since)
    for cluster, names in begun.items():
        scene.compare(cluster, names, shown[cluster])
    return sum(map(len, begun.values()))


def as_they_end(world: World, monkeypatch: pytest.MonkeyPatch, seed: int) -> int:
    """Anybody's jobs end, and time passes: whoever begins then was next, as it was shown just before.

    The clusters admit no jobs while the ends are recorded, so that the positions after these ends can be read.
    """
    scene = Scene(world, seed, monkeypatch)
    scene.past()
    scene.fill()
    inner, count = scene.parents[1:], 0
    scene.wait(scene.dice.randint(3, 20), inner)
    world.turn()
    for _ in range(12):
        for name in inner:
            cluster_ops.stop(scene.store, name)
        world.turn()
        for run_id in scene.dice.sample(
            ids := scene.run_ids("1"), min(len(ids), scene.dice.choice((1, 1, 1, 3)))
        ):
            world.processes.end(run_id, 0)
        world.turn()
        world.sleep(scene.dice.choice((0, 0.1, 3, 50)))
        if scene.dice.random() < 0.3:
            world.die()  # commands that read need no scheduler
        shown, since = scene.shown(), scene.last()
        for name in inner:
            cluster_ops.resume(scene.store, name)
        world.turn()
        for cluster, names in scene.starts(since).items():
            count += len(names)
            scene.compare(cluster, names, shown[cluster])
    return count


@pytest.mark.parametrize("how", [in_one_round, as_they_end])
@pytest.mark.parametrize("seed", range(10))
def test_positions_are_the_order_of_the_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[..., int], seed: int
) -> None:
    with World(tmp_path / "state") as world:
        how(world, monkeypatch, seed)


@spec("11.why")
def test_why_counts_who_starts_first_by_the_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ann has used the machine for an hour, so Bob is next, though he came later; no scheduler runs when she asks."""
    with World(tmp_path / "state") as world:
        scene = Scene(world, 0, monkeypatch, levels=0)
        cluster_ops.update(
            scene.store,
            "primary",
            ClusterChange(queue={"order": FAIR, "half_life_s": 3600, "ageing_s": None}),
        )
        for _ in range(scene.cpus):
            scene.submit("primary", "ann")
        world.turn()
        world.sleep(3600)
        world.turn()
        for run_id in scene.run_ids("1")[:2]:
            world.processes.end(run_id, 0)
        world.turn()
        world.die()
        hers, his = (
            scene.submit("primary", "ann"),
            [scene.submit("primary", "bob") for _ in range(scene.cpus)],
        )
        said = why.why(scene.store, hers)
        assert [one["submission_id"] for one in said["ahead"]] == his[: len(said["ahead"])]
        assert said["queue_position"] == len(said["ahead"]) + 1 > 2
        assert "2 jobs ahead of it would start first" in said["message"]
