"""One answer to each question: asked on every surface about random states, it gets the same one.

The states are those of ``test_reasons.Walk``, with several users and limits for each of them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.properties.test_reasons import PRIMARY, Count, Walk
from tests.specification import spec
from tests.world import World, amounts, picture
from vctl.core.ledger import Ledger
from vctl.core.resources import total
from vctl.core.wording import in_units
from vctl.engine.state import SchedulerState
from vctl.errors import VctlError
from vctl.ops import cluster_views, submitting, views, why
from vctl.ops import clusters as cluster_ops
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.ops.reachable import Reachable
from vctl.scheduler.elasticity import allowance, growing
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.store import clusters

pytestmark = spec("8.reasons")

USERS = ("ann", "bob")
LIMITED = {"CapReached": "max_running_jobs", "UserLimit": "max_running_per_user"}


class States(Walk):
    """The walk with users, of which each may have a limit. After each turn the same questions are asked everywhere."""

    def __init__(self, world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.user = USERS[0]
        monkeypatch.setattr(node_ops, "author", lambda *_: self.user)
        super().__init__(world, seed)
        self.each: dict[str, int | None] = {}
        self.actions.append((3, self.limit))

    def submit(self) -> None:
        self.user = self.dice.choice(USERS)
        super().submit()

    def limit(self) -> None:
        super().limit()
        cluster = self.dice.choice((PRIMARY, "shared"))
        self.each[cluster] = self.dice.choice((None, 1, 2))
        cluster_ops.update(
            self.store, cluster, ClusterChange(queue={"max_running_per_user": self.each[cluster]})
        )

    def judge(self, job: dict[str, Any], count: Count) -> None:
        if job["state_reason"] != "UserLimit":
            super().judge(job, count)

    def turned(self) -> Iterator[dict[str, Any]]:
        """The waiting jobs of states in which the scheduler has just come to rest."""
        self.world.turn()
        yield from (job for job in job_ops.list_jobs(self.store)[0] if job["status"] == "PENDING")

    def running(self, cluster: str, user: str | None = None) -> int:
        """The number of running jobs in the tables."""
        sql = "SELECT count(*) FROM jobs WHERE status = 'RUNNING' AND parent_cluster_id = ?"
        return int(
            self.store.value(
                sql + ("" if user is None else " AND user = ?"), cluster, *([user] if user else [])
            )
        )

    @property
    def known(self) -> SchedulerState:
        """The state of the scheduler."""
        assert self.world.scheduler is not None
        assert self.world.scheduler.state is not None
        return self.world.scheduler.state

    def told(self, job_id: int) -> str:
        """What the last round told about a waiting job."""
        return str(self.store.value("SELECT message FROM v_jobs WHERE job_id = ?", job_id))


def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int) -> Iterator[States]:
    """A walk after each of its steps."""
    with World(tmp_path / "state") as world:
        states = States(world, seed, monkeypatch)
        for _ in range(steps):
            states.step()
            yield states


LONG = [pytest.param(seed, 100, marks=pytest.mark.soak) for seed in range(20, 26)]


@pytest.mark.parametrize(("seed", "steps"), [(11, 60), (13, 60), *LONG])
def test_a_limit_is_the_same_number_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int
) -> None:
    """The round, the list of jobs, why and its changes name the same limit and the same number of running jobs."""
    seen = set()
    for states in walk(tmp_path, monkeypatch, seed, steps):
        for job in states.turned():
            if (limit := LIMITED.get(job["state_reason"])) is None:
                continue
            seen.add(limit)
            cluster, user = job["parent_cluster_id"], job["user"]
            per_user = limit == "max_running_per_user"
            most = (states.each if per_user else states.limits)[cluster]
            running = states.running(cluster, user if per_user else None)
            known = states.known.running
            assert running == (known.count_of(cluster, user) if per_user else known.count(cluster))
            assert most is not None
            assert running >= most
            assert re.match(rf"at most {most} jobs? ", states.told(job["job_id"])), job
            assert re.match(rf"{running} jobs? .* where at most {most} ", job["message"]), job
            said = why.why(states.store, job["job_id"])
            assert (said["state_reason"], said["message"].split(";")[0]) == (
                job["state_reason"],
                job["message"],
            )
            for change in said["changes"]:
                if change["kind"] in LIMITED.values():
                    field = states.each if change["kind"] == "max_running_per_user" else states.limits
                    assert change["change"].endswith(f"at a time instead of {field[cluster]}"), change
    assert seen == {*LIMITED.values()} or steps > 60


@pytest.mark.parametrize(("seed", "steps"), [(31, 60), (32, 60), *LONG])
def test_what_is_free_is_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int
) -> None:
    """The scheduler's ledger, the tables' one, lists of nodes and clusters, and what reasons count with."""
    for states in walk(tmp_path, monkeypatch, seed, steps):
        states.world.turn()
        store, ledger = states.store, clusters.load_ledger(states.store)
        assert picture(states.known.ledger) == picture(ledger)
        reach, forms_of = (
            Reachable(store),
            {one["cluster_id"]: one for one in cluster_views.list_clusters(store)},
        )
        for cluster_id in ledger.clusters:
            free = in_units({n: max(a, 0) for n, a in available(ledger, cluster_id).items()})
            assert without_zeros(views.available_resources(store, cluster_id)) == without_zeros(free)
            assert without_zeros(forms_of[cluster_id]["available_resources"]) == without_zeros(free)
            by_node = {
                one["NodeID"]: without_zeros(one["Available"]) for one in views.nodes(store, cluster_id)
            }
            for vnode_id, shown in by_node.items():
                assert shown == without_zeros(in_units(available_in(ledger, vnode_id)))
            in_view = {
                slot_id: group for group in ledger.index(cluster_id).classes.values() for slot_id in group.ids
            }
            counted = {slot.slot_id: slot for slot in reach.slots(cluster_id).all}
            assert counted.keys() == in_view.keys()
            assert all(slot_id in by_node for slot_id in in_view)
            for slot_id, slot in counted.items():
                capacity, group = ledger.capacities[slot_id], in_view[slot_id]
                assert (slot.capacity.free, slot.capacity.instances) == (capacity.free, capacity.instances)
                assert (slot.template_id, slot.untouched) == (group.template_id, group.untouched)
                assert slot.labels() == ledger.vnodes[slot_id].labels
            growers = [ledger.clusters[one] for one in growing(ledger, cluster_id)]
            for above, grower in zip(reach.above(cluster_id), growers, strict=True):
                assert above.allowance == allowance(ledger, grower)
            sums = forms_of[cluster_id]
            below = [one for one in forms_of.values() if one["parent_id"] == cluster_id]
            assert without_zeros(sums["total"]) == without_zeros(in_units(living(ledger, cluster_id)))
            assert without_zeros(sums["reserved"]) == without_zeros(
                in_units(total(living(ledger, one["cluster_id"]) for one in below))
            )
        for node in node_ops.list_nodes(store):
            assert without_zeros(node["available"]) == without_zeros(
                in_units(available_in(ledger, node["node_id"]))
            )


@pytest.mark.parametrize(("seed", "steps"), [(41, 60), (42, 60), *LONG])
def test_why_says_what_the_next_round_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int
) -> None:
    """Nothing happens between the question and the round: who is told to start starts, and the others are told why.

    Where others start first, the reason is that of the present state.
    """
    seen = set()
    for states in walk(tmp_path, monkeypatch, seed, steps):
        store, dice = states.store, states.dice
        states.world.turn()
        with contextlib.suppress(VctlError):
            dice.choice((states.submit, states.hold, states.release, states.limit, states.undrain))()
        waiting = [job for job in job_ops.list_jobs(store)[0] if job["status"] == "PENDING"]
        asked = dice.sample(waiting, min(3, len(waiting)))
        said = {job["job_id"]: why.why(store, job["job_id"]) for job in asked}
        states.world.turn()
        for job_id, answer in said.items():
            after = job_ops.get_job(store, job_id)
            starts = answer["message"] == why.STARTS_NOW
            assert starts == (after["status"] != "PENDING"), (answer, after)
            others_first = "would start first" in answer["message"]  # and may use up a limit, or what is free
            if not (starts or others_first):
                seen.add(answer["state_reason"])
                told = store.value("SELECT state_reason FROM v_jobs WHERE job_id = ?", job_id)
                assert answer["state_reason"] == after["state_reason"] == told, (answer, after)
    assert {"InsufficientResources", "CapReached"} <= seen


def available(ledger: Ledger, cluster_id: str) -> dict[str, int]:
    """What is free in all virtual nodes of a cluster; of each at least nothing."""
    return total(available_in(ledger, vnode_id) for vnode_id in ledger.members[cluster_id])


def available_in(ledger: Ledger, vnode_id: str) -> dict[str, int]:
    if not ledger.nodes[ledger.vnodes[vnode_id].node_id].schedulable:
        return {}
    return {name: max(amount, 0) for name, amount in ledger.capacities[vnode_id].free.items()}


def living(ledger: Ledger, cluster_id: str) -> dict[str, int]:
    """The total of a cluster on nodes that are not dead."""
    vnodes = map(ledger.vnodes.__getitem__, ledger.members[cluster_id])
    return total(one.allocation.amounts for one in vnodes if ledger.nodes[one.node_id].state != "DEAD")


def without_zeros(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if amount}


def test_the_limit_of_each_user_is_told_with_the_jobs_of_that_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the verdict the limit became another one: of equal jobs all showed the count of the first one's user."""
    user = USERS[0]
    monkeypatch.setattr(node_ops, "author", lambda *_: user)
    with World(tmp_path / "state") as world:
        node_ops.add(world.store, resources=amounts(8), count=1, template="t")
        cluster_ops.update(world.store, "primary", ClusterChange(queue={"max_running_jobs": 3}))
        for number, name in enumerate(("ann", "bob", "bob", "ann", "bob")):
            user = name
            request = JobRequest(argv=("x",), submission_id=f"j{number}", cwd="/", entry=amounts(1))
            submitting.submit(world.store, request, environment={})
        world.turn()
        cluster_ops.update(
            world.store, "primary", ClusterChange(queue={"max_running_jobs": None, "max_running_per_user": 1})
        )
        waiting = {
            job["submission_id"]: job["message"]
            for job in job_ops.list_jobs(world.store)[0]
            if job["status"] == "PENDING"
        }
    most = "in primary, where at most 1 of each user may run at a time"
    assert waiting == {"j3": f"1 job of ann runs {most}", "j4": f"2 jobs of bob run {most}"}
