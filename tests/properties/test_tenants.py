"""Random users of one crowded machine whose clusters lend, borrow and nest: the rules hold after every step.

The tree stays, so that much waits at each level and moves; users do all that ``tests.users`` does but remove clusters,
and the scheduler turns only now and then, so that one round decides about many changes. In each third sequence its
rounds are cut, in each third there is a node provider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.users import Users, play
from tests.world import World, amounts
from vctl.core.clusters import ClusterSpec
from vctl.daemon import turn
from vctl.ops import clusters as cluster_ops
from vctl.ops import nodes as node_ops
from vctl.ops import submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest

pytestmark = spec("5.conservation", "9.conserving", "9.growth", "9.return", "8.disciplines", "12.doctor")

STEPS = 90
PIECE = 6
MOST_WAITING = 25
SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "order": ("priority", "priority", "fair", "fifo", "longest", "shortest"),
    "discipline": ("best-effort", "best-effort", "strict", "backfill"),
    "weight": (1, 2, 5),
    "half_life_s": (None, 60),
    "starvation_after_s": (None, 1, 60),
    "backfill_depth": (1, 2, 5),
    "max_running_jobs": (None, None, 1, 3),
    "max_running_per_user": (None, None, None, 2),
    "preemption": ("off", "off", "requeue", "stop"),
    "min_runtime_s": (0, 5),
    "preemption_grace_s": (0, 5, 30),
}


class Tenants(Users):
    """Users of five clusters, of which two are inside others, and of what is left of the machine."""

    turns = 0.3

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.actions = [
            (34, self.submit), (14, self.exit_process), (5, self.set_queue), (3, self.set_limits),
            (3, self.drain), (3, self.undrain), (1, self.kill), (1, self.join), (1, self.change_node),
            (1, self.forget_node), (2, self.divide), (1, self.update), (1, self.stop_or_resume),
            (3, self.submit_array), (2, self.stop_job), (1, self.hold), (2, self.release), (2, self.edit),
            (1, self.forget_job), (1, self.lose_process), (5, self.run_task), (3, self.end_task),
            (1, self.cancel_task), (5, self.wait), (1, self.restart), (1, self.crash),
        ]  # fmt: skip
        self.arrange()

    def arrange(self) -> None:
        node_ops.add(self.store, resources=amounts(8, 2), count=3, template="t8")
        node_ops.add(self.store, resources=amounts(4), count=3, template="t4", labels={"zone": "a"})
        for name, parent, least, most, lends in (
            ("a", None, {}, {}, 0),
            ("b", None, {"CPU": 6}, {}, self.dice.choice((2, 6))),
            ("c", None, {"CPU": 2}, {"CPU": 9, "GPU": 2}, self.dice.choice((0, 2))),
            ("x", "a", {}, {"CPU": 7}, 0),
            ("y", "b", {"CPU": self.dice.choice((0, 2))}, {}, self.dice.choice((0, 2))),
        ):
            document = {"flexible_resource_min": least, **({"flexible_resource_max": most} if most else {})}
            cluster_ops.create(
                self.store, name,
                ClusterChange(
                    divisible=True, spec=parse_cluster_spec(document, logical=True), lending_limit=amounts(lends)
                ),
                parent_id=parent,
            )  # fmt: skip
        cluster_ops.create(self.store, "w", ClusterChange(divisible=True, replica_sets={"t4": 1}))
        for _ in range(4):
            self.set_queue()

    def target(self) -> str | None:
        return self.dice.choice((*"abcxyw", None))

    def submit(self) -> None:
        if self.count("SELECT count(*) FROM jobs WHERE status = 'PENDING'") >= MOST_WAITING:
            return
        draw = self.dice
        request = JobRequest(
            argv=("x",), submission_id=f"j{self.number():03}", cluster=self.target(), spec=self.shape(), cwd="/",
            entry=draw.choice((None, None, None, amounts(1), {})), priority=draw.randint(0, 3), grace_s=0,
            time_limit_s=draw.choice((None, 60.0, 600.0)), max_retries=draw.choice((0, 0, 1)),
            retry_on=("NodeFailed", "ExitCode"), **(self.gates() if draw.random() < 0.3 else {}),
        )  # fmt: skip
        submitting.submit(self.store, request, environment={})

    def shape(self) -> ClusterSpec:
        """A gang: its nodes anywhere, apart, together, with devices, chosen, flexible, or whole."""
        draw = self.dice
        cpus, many = draw.choice((0.5, 1, 2, 3, 5, 8)), draw.choice((1, 2, 3))
        node: dict[str, Any] = {"resources": {"CPU": cpus}}
        with_gpu = {"resources": {"CPU": cpus, "GPU": draw.choice((0.5, 1, 2))}}
        chosen = {**node, "label_selector": {"zone": "a"}}
        apart = {"nodes": [{"resources": {"CPU": 1}}] * 2, "scheduling_policy": "STRICT_SPREAD"}
        document: dict[str, Any] = draw.choice((
            {"fixed_size_nodes": [{"nodes": [node] * many}]},
            {"fixed_size_nodes": [{"nodes": [node] * many, "scheduling_policy": "STRICT_SPREAD"}]},
            {"fixed_size_nodes": [{"nodes": [node] * many, "scheduling_policy": "STRICT_PACK"}]},
            {"fixed_size_nodes": [{"nodes": [with_gpu] * many}]},
            {"fixed_size_nodes": [{"nodes": [chosen] * many}]},
            {"fixed_size_nodes": [{"nodes": [node] * many}, apart]},
            {"fixed_size_nodes": [{"nodes": [node]}], "flexible_resource_min": {"CPU": 1}},
            {"flexible_resource_min": {"CPU": cpus * many}},
            {"flexible_resource_min": {"CPU": cpus * many, "GPU": 1}},
            {"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": cpus * many + 1}},
            {"replica_sets": {draw.choice(("t4", "t8")): many}},
        ))  # fmt: skip
        return parse_cluster_spec(document)

    def set_queue(self) -> None:
        names = self.dice.sample(sorted(SETTINGS), self.dice.choice((1, 2, 3)))
        queue = {name: self.dice.choice(SETTINGS[name]) for name in names}
        cluster_ops.update(self.store, self.target() or "primary", ClusterChange(queue=queue))

    def set_limits(self) -> None:
        """What a cluster has for sure, may have, may borrow and may lend."""
        draw, target = self.dice, self.target() or "b"
        least = {"CPU": draw.choice((0, 2, 6)), "GPU": draw.choice((0, 0, 1))}
        most = {} if draw.random() < 0.5 else {"CPU": least["CPU"] + draw.choice((0, 4, 8))}
        document = {"flexible_resource_min": least, **({"flexible_resource_max": most} if most else {})}
        some: dict[str, Any] = {
            "spec": parse_cluster_spec(document, logical=True),
            "borrow_limit": draw.choice(({}, amounts(2), amounts(6, 1))),
            "lending_limit": draw.choice(({}, amounts(2), amounts(6, 1))),
        }
        wanted = {name: some[name] for name in draw.sample(sorted(some), draw.choice((1, 1, 2)))}
        cluster_ops.update(self.store, target, ClusterChange(**wanted))


def crowd(
    home: Path, seed: int, patch: pytest.MonkeyPatch, make: Callable[[World, int], Users] = Tenants
) -> None:
    if seed % 3 == 1:
        patch.setattr(turn, "PIECE", PIECE + seed % 20)
    play(home, seed, STEPS, make)


@pytest.mark.parametrize("seed", range(4))
def test_tenants_of_one_machine_keep_all_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    crowd(tmp_path / "state", seed, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4, 400))
def test_many_tenants_keep_all_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    crowd(tmp_path / "state", seed, monkeypatch)
