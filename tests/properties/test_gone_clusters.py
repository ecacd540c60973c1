"""spec 7, 10, 12: a deleted cluster is gone at the same moment with a scheduler and without one.

Random sequences of users who make clusters inside jobs, detach them and tasks in them, and delete clusters in all
ways. After each step the rule is asked of the tables, as a command does, and of the state, as a scheduler does.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.specification import spec
from tests.users import Users
from tests.world import World, loaded
from vctl.core.clusters import JOB, PRIMARY
from vctl.engine.apply import apply
from vctl.engine.rules import clusters as rule
from vctl.errors import VctlError
from vctl.ops import cluster_views, nodes
from vctl.ops import clusters as cluster_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.store import clusters as table
from vctl.store import rows
from vctl.store.store import Store

pytestmark = spec("7.delete", "10.life", "12.maintenance")

STEPS = 200


class Deleting(Users):
    """Users who make and delete clusters most of the time, also detached ones inside jobs."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.actions += [(8, self.delete), (5, self.divide), (5, self.detach), (4, self.delete_inside)]

    def step(self) -> None:
        """One action without a turn after it."""
        weights, actions = zip(*self.actions, strict=True)
        (action,) = self.dice.choices(actions, weights)
        self.done.append(action.__name__)
        with contextlib.suppress(VctlError):
            action()

    def detach(self) -> None:
        sql = "SELECT c.cluster_id FROM clusters c JOIN jobs j USING (job_id) WHERE j.status = 'RUNNING'"
        if (inside := self.one(f"{sql} AND c.divisible")) is not None:
            name = f"d{self.number():03}"
            cluster_ops.create(
                self.store, name, ClusterChange(spec=self.spec(logical=False)), parent_id=inside, detach=True
            )

    def delete_inside(self) -> None:
        if (inside := self.one("SELECT cluster_id FROM clusters WHERE kind <> 'logical'")) is not None:
            how = self.dice.choice([{}, {"drain": True}, {"force": True}])
            cluster_ops.delete(self.store, inside, **how)


def ids(store: Store) -> list[str]:
    return [row["cluster_id"] for row in table.all_rows(store)]


def end_some(users: Users) -> None:
    """Some clusters are deleted, some jobs, tasks and processes are over, and nothing has followed from that yet."""
    for cluster_id in ids(users.store):
        if users.dice.random() < 0.4:
            users.store.db.execute(
                "UPDATE clusters SET state = 'REMOVING' WHERE cluster_id = ?", (cluster_id,)
            )
    for row in users.store.rows("SELECT job_id FROM jobs WHERE status IN ('PENDING', 'RUNNING')"):
        if users.dice.random() < 0.5:
            ended = "UPDATE jobs SET status = 'FAILED', ended_at = 1, held = 0 WHERE job_id = ?"
            users.store.db.execute(ended, (row[0],))
            users.store.db.execute("DELETE FROM runs WHERE task_id IS NULL AND job_id = ?", (row[0],))
    for row in users.store.rows("SELECT task_id FROM tasks WHERE ended_at IS NULL"):
        if users.dice.random() < 0.6:
            users.store.db.execute(
                "UPDATE tasks SET state = 'FAILED', ended_at = 1 WHERE task_id = ?", (row[0],)
            )
            users.store.db.execute("DELETE FROM runs WHERE task_id = ?", (row[0],))


def compare(store: Store) -> int:
    """Compare what is empty, what the end of a job leaves behind, and what goes. Returns how many went."""
    state = loaded(store)
    known, there = rule.InState(state), table.InTables(store)
    for row in table.all_rows(store):
        cluster = rows.cluster(row)
        is_empty = not cluster_views.blockers_of(store, cluster.cluster_id)
        assert rule.is_empty(known, cluster) == rule.is_empty(there, cluster) == is_empty, cluster.cluster_id
        if cluster.kind == JOB:
            left = rule.orphaned(known, cluster.cluster_id)
            assert rule.orphaned(there, cluster.cluster_id) == left, cluster.cluster_id
    before = ids(store)
    for change in rule.removed(known):
        apply(state, change)
    cluster_ops.sweep(store)
    assert set(ids(store)) == state.ledger.clusters.keys() - {PRIMARY}
    return len(before) - len(ids(store))


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_is_gone_when_the_rule_says_so(tmp_path: Path, seed: int) -> None:
    goes = 0
    with World(tmp_path / "state") as world:
        users = Deleting(world, seed)
        for _ in range(3):
            users.join()
        for _ in range(STEPS):
            users.step()
            with nodes.rolled_back(users.store):
                compare(users.store)
            with nodes.rolled_back(users.store):
                end_some(users)
                goes += compare(users.store)
            if users.dice.random() < 0.4:
                world.turn()
                assert not list(rule.removed(table.InTables(users.store))), "the scheduler left some"
                world.processes.obey()
    assert goes > 20
