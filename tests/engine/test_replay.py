"""What a replay finds in tables: a table of what is wrong on the one side, the changes that mend it on the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.engine.states import run_job, state_of
from tests.scheduler import trees
from tests.specification import spec
from vctl.core.clusters import FIXED, JOB, PRIMARY, SUB, Cluster, ClusterSpec, VNode
from vctl.core.jobs import Run
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import EMPTY
from vctl.core.values import replace
from vctl.engine import changes as ch
from vctl.engine.changes import Change
from vctl.engine.replay import TITLES, Replayed, TableRows, replay
from vctl.engine.state import SchedulerState

pytestmark = spec("12.replay", "12.odd-rows")

NOW = 9
OWN = f"{PRIMARY}##j1"


def tables_of(state: SchedulerState) -> TableRows:
    """What the tables say when all is right."""
    ledger = state.ledger
    clusters = [one for one in ledger.clusters.values() if one.parent_id is not None]
    vnodes: dict[str, list[VNode]] = {}
    for vnode in ledger.vnodes.values():
        if vnode.parent_id is not None:
            vnodes.setdefault(vnode.cluster_id, []).append(vnode)
    return TableRows(
        list(ledger.nodes.values()), QueuePolicy(), clusters, vnodes, list(state.runs.values()),
        dict(state.running.jobs), list(state.leases.values()), (), (),
    )  # fmt: skip


def running() -> TableRows:
    """Job j1 with two members on two nodes."""
    state = state_of()
    run_job(state, members=2)
    return tables_of(state)


def found(tables: TableRows) -> tuple[list[Change], dict[int, list[str]], Replayed]:
    """The changes, the steps that say something, and the rest."""
    done = Replayed()
    replay(tables, done, NOW)
    return done.changes, {step: said for step, said in enumerate(done.steps, 1) if said}, done


def aside(table: str, key: str, problem: str) -> ch.RowSetAside:
    return ch.RowSetAside(NOW, table, (key,), problem)


def test_tables_that_are_right_need_no_change_and_give_the_same_tree() -> None:
    state = state_of()
    job = run_job(state, members=2)
    changes, steps, done = found(tables_of(state))
    assert (changes, steps, done.runs) == ([], {}, state.runs)
    assert done.ledger.vnodes == state.ledger.vnodes
    assert done.ledger.charges == state.ledger.charges
    assert job.cluster_id in done.ledger.clusters
    assert len(TITLES) == 6


@dataclass(frozen=True)
class Wrong:
    """Something that is wrong in the tables, in which step it is found, and what mends it."""

    break_it: Callable[[TableRows], TableRows]
    step: int
    changes: list[Change]


def without_parent(tables: TableRows) -> TableRows:
    return replace(tables, clusters=[replace(one, parent_id="gone") for one in tables.clusters])


def job_over(tables: TableRows) -> TableRows:
    return replace(tables, running={}, runs=[])


def with_sub_clusters(tables: TableRows, *, detached: bool = False) -> TableRows:
    """Two of them, one inside the other."""
    first = Cluster(f"{OWN}##a", OWN, SUB, ClusterSpec(), job="1")
    second = Cluster(f"{OWN}##a##b", first.cluster_id, SUB, ClusterSpec(), job="1", detached=detached)
    return replace(tables, clusters=[*tables.clusters, first, second])


def job_over_but_for_a_task(tables: TableRows) -> TableRows:
    return replace(with_sub_clusters(tables), running={}, runs=[], inhabited=[OWN])


def job_over_but_for_a_task_below(tables: TableRows) -> TableRows:
    return replace(with_sub_clusters(tables), running={}, runs=[], inhabited=[f"{OWN}##a"])


def no_process_but_sub_clusters(tables: TableRows) -> TableRows:
    return replace(with_sub_clusters(tables), runs=[])


def no_process_but_a_detached_cluster(tables: TableRows) -> TableRows:
    return replace(with_sub_clusters(tables, detached=True), runs=[])


def runs_of_a_job_that_is_over(tables: TableRows) -> TableRows:
    return replace(tables, running={}, inhabited=[OWN])


def no_process(tables: TableRows) -> TableRows:
    return replace(tables, runs=[])


def too_large(tables: TableRows) -> TableRows:
    (first, second) = tables.runs
    more = replace(first.allocation, amounts={"CPU": 90000})
    return replace(tables, runs=[replace(first, allocation=more), second])


def no_such_cluster(tables: TableRows) -> TableRows:
    lost = [replace(tables.vnodes[OWN][0], vnode_id="x/0", cluster_id="x")]
    return replace(tables, vnodes={**tables.vnodes, "x": lost})


def outside_its_parent(tables: TableRows) -> TableRows:
    first, second = tables.vnodes[OWN]
    more = replace(second.allocation, amounts={"CPU": 90000})
    return replace(tables, vnodes={OWN: [first, replace(second, allocation=more)]})


def ended(run_id: str) -> ch.RunEnded:
    return ch.RunEnded(NOW, run_id, None, "its job was over")


LOST = ch.JobEnded(
    NOW, 1, "j1", None, OWN, "end", "FAILED", "ProcessLost", "its process is not known any more", None,
    ch.ClusterRemoved(OWN, silent=True),
)  # fmt: skip

WRONG = {
    "a job cluster whose job is over": Wrong(job_over, 4, [ch.ClusterRemoved(OWN)]),
    "sub-clusters of a job that is over but for a task": Wrong(
        job_over_but_for_a_task, 4, [ch.ClusterRemoved(f"{OWN}##a##b"), ch.ClusterRemoved(f"{OWN}##a")]
    ),
    "a sub-cluster in one with a task that outlives the job": Wrong(
        job_over_but_for_a_task_below, 4, [ch.ClusterRemoved(f"{OWN}##a##b")]
    ),
    "a running job with sub-clusters and without a process": Wrong(
        no_process_but_sub_clusters, 6,
        [ch.ClusterRemoved(f"{OWN}##a##b"), ch.ClusterRemoved(f"{OWN}##a"), LOST],
    ),
    "a running job with a detached cluster and without a process": Wrong(
        no_process_but_a_detached_cluster, 6, [replace(LOST, removed=None)]
    ),
    "processes of a job that is over": Wrong(
        runs_of_a_job_that_is_over, 6, [ended("j1.0"), ended("j1.1")]
    ),
    "a running job without a process": Wrong(no_process, 6, [LOST]),
    "a process that holds more than there is": Wrong(too_large, 6, [ch.RunStripped("j1.0")]),
    "virtual nodes of no cluster": Wrong(
        no_such_cluster, 4, [aside("vnodes", "x/0", "its cluster x does not exist")]
    ),
    "a virtual node outside of its parent": Wrong(
        outside_its_parent, 4, [aside("vnodes", f"{OWN}/1", "it is not inside its parent")]
    ),
    "a cluster without its parent": Wrong(
        without_parent, 4, [
            *(aside("vnodes", f"{OWN}/{n}", "its parent gone does not exist") for n in (0, 1)),
            aside("clusters", OWN, "its parent gone does not exist"),
            ch.RunStripped("j1.0"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_in_its_step_and_mended(name: str) -> None:
    wrong = WRONG[name]
    changes, steps, _ = found(wrong.break_it(running()))
    assert changes == wrong.changes
    assert min(steps) == wrong.step


def test_a_process_that_lost_its_reservation_goes_on_without_it() -> None:
    _, _, done = found(too_large(running()))
    assert done.runs["j1.0"].allocation == EMPTY
    assert "j1.0" not in done.ledger.charges


def test_what_is_detached_keeps_the_cluster_of_a_job_that_is_over() -> None:
    tables = replace(running(), running={}, runs=[], inhabited=[OWN])
    assert found(tables)[0] == []


def test_a_removed_cluster_takes_its_leases_along_and_what_it_lent_its_parent_lends() -> None:
    ledger = trees.tree("8c", "a < primary [6c] lend=4c: n1~2c", "b < primary []: n1~4c")
    job = Cluster("a##j1", "a", JOB, ClusterSpec(flexible_min={}), job="1")
    ledger.put_cluster(job)
    state = SchedulerState(ledger, {}, 0)
    borrowed = Lease(1, job.cluster_id, "a", {"CPU": 1}, 1)
    lent = Lease(2, "b", job.cluster_id, {"CPU": 1}, 1)
    for lease in (borrowed, lent):
        state.ledger.put_lease(lease)
    changes, _, _ = found(tables_of(state))
    assert changes == [ch.ClusterRemoved(job.cluster_id, (1,), (2,), "a")]


def repaired(ledger: Ledger) -> list[Change]:
    """Step 3 for a job of cluster ``team`` that has moved to n3 while the cluster still lists the dead n1."""
    spec_ = ClusterSpec(replica_sets={"4c": 2}, flexible=False)
    ledger.put_cluster(Cluster("team", PRIMARY, "logical", spec_))
    parts = [
        VNode(f"team/{n}", "team", f"n{n}", f"n{n}", FIXED, ledger.nodes[f"n{n}"].total, whole=True, rank=n)
        for n in (1, 2)
    ]
    job = Cluster("team##j1", "team", JOB, spec_, job="1")
    held = VNode("team##j1/0", job.cluster_id, "n3", "team/1", FIXED, ledger.nodes["n3"].total, whole=True)
    run = Run("j1.0", 1, 1, 0, job.cluster_id, held.vnode_id, "n3", EMPTY)
    state = SchedulerState(ledger, {run.run_id: run}, 0)
    tables = replace(
        tables_of(state), vnodes={"team": parts, job.cluster_id: [held]},
        clusters=[ledger.clusters["team"], job], running={1: run_job(state_of())},
    )  # fmt: skip
    return found(tables)[0]


def test_a_divisible_cluster_gets_the_node_that_its_job_has_already_and_loses_the_dead_one() -> None:
    ledger = trees.tree("4c,4c,4c")
    ledger.put_node(replace(ledger.nodes["n1"], state=DEAD))
    changes = repaired(ledger)
    assert ch.ClusterRepaired("team") in changes
    assert not any(isinstance(one, ch.RowSetAside | ch.RunStripped) for one in changes)
    placed = [vnode for one in changes if isinstance(one, ch.VNodesChanged) for vnode in one.placed]
    assert [vnode.node_id for vnode in placed if vnode.cluster_id == "team"] == ["n3"]
    gone = [vnode_id for one in changes if isinstance(one, ch.VNodesChanged) for vnode_id in one.removed]
    assert gone == ["team/1"]
