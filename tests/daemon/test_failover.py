"""The failover replay on a whole tree: dead members as they are, and a tree that a writer left half-written."""

from __future__ import annotations

import json

import pytest

from tests.daemon.conftest import Life
from tests.specification import spec
from vctl.store import clusters, nodes
from vctl.store.store import Fenced

pytestmark = spec("12.replay")

FOUR_FOUR = {"replica_sets": {"0": 4, "1": 4}}
FIVE_FIVE = {"0": 5, "1": 5}
JOBS = {"kPrimaryClusterID##a": "primary", "v1##b": "v1"}


@pytest.fixture
def tree(life: Life) -> Life:
    """40 nodes, two divisible clusters of ten, a job of eight in the primary and one in v1."""
    life.nodes(20, "0")
    life.nodes(20, "1")
    for cluster in ("v1", "v2"):
        life.logical(cluster, FIVE_FIVE, divisible=True)
    life.run("a", spec=FOUR_FOUR)
    life.run("b", spec=FOUR_FOUR, cluster="v1")
    return life


def victims(life: Life) -> dict[str, list[str]]:
    """Two nodes of each job cluster, one of each template, on which no process is."""
    found = {}
    for cluster in JOBS:
        busy = set(life.store.rows("SELECT node_id FROM runs WHERE cluster_id = ?", cluster)[0])
        idle = [node_id for node_id in life.members(cluster) if node_id not in busy]
        found[cluster] = [next(n for n in idle if n.startswith(f"{template}-")) for template in "01"]
    return found


def check_whole(life: Life) -> None:
    """Every alive node is owned by exactly one of primary and logical clusters, job clusters lie in their parents."""
    alive = {row["node_id"] for row in nodes.all_rows(life.store) if row["state"] != "DEAD"}
    owned = [n for cluster in ("primary", "v1", "v2") for n in life.members(cluster) if n in alive]
    assert sorted(owned) == sorted(alive)
    for job_cluster, parent in JOBS.items():
        assert set(life.members(job_cluster)) <= set(life.members(parent))
    check_counts(life)


def check_counts(life: Life) -> None:
    for cluster in ("v1", "v2"):
        assert life.counts(cluster) == FIVE_FIVE
    for cluster in JOBS:
        assert life.counts(cluster) == FOUR_FOUR["replica_sets"]


def revisions(life: Life) -> list[tuple[str, int]]:
    return [(row["cluster_id"], row["revision"]) for row in clusters.all_rows(life.store)]


def tables(life: Life) -> str:
    """All rows, but for the history and the reigns."""
    names = ("nodes", "clusters", "vnodes", "jobs", "runs", "leases", "set_aside")
    return json.dumps([[list(row) for row in life.store.rows(f"SELECT * FROM {name}")] for name in names])


def test_dead_members_stay_and_are_replaced_after_the_replay(tree: Life) -> None:
    before = revisions(tree)
    tree.die()
    dead = victims(tree)
    for two in dead.values():
        tree.kill(*two)
    assert tree.replay() == [[]] * 6  # nothing is damaged: the dead are listed as such
    for cluster, two in dead.items():
        assert set(two) <= set(tree.members(cluster))
    tree.turn()
    check_whole(tree)
    assert revisions(tree) == before
    assert {tree.job(job)["status"] for job in "ab"} == {"RUNNING"}
    tree.die()
    written = tables(tree)
    assert tree.replay() == [[]] * 6
    assert tables(tree) == written


@pytest.mark.parametrize("link", ["stale", "physical"])
def test_a_job_cluster_with_replacements_that_its_parent_lacks_is_right(tree: Life, link: str) -> None:
    before = revisions(tree)
    tree.die()
    dead = victims(tree)
    for cluster, two in dead.items():
        tree.kill(*two)
        for node_id in two:
            _replace_in_the_job_cluster_only(tree, cluster, node_id, link)
    reported = tree.replay(dry_run=True)
    assert [bool(actions) for actions in reported] == [False, False, True, False, False, False]
    assert [line for line in reported[2] if line.startswith("dropped")] == [
        f"dropped dead node {node_id} from v1" for node_id in dead["v1##b"]
    ]
    assert len([line for line in reported[2] if line.startswith("added node")]) == 2
    assert tree.replay() == reported
    written = tables(tree)
    assert tree.replay() == [[]] * 6
    assert tables(tree) == written
    check_whole(tree)  # nothing else is to be replaced
    tree.turn()
    check_whole(tree)
    assert revisions(tree) == before
    assert {tree.job(job)["status"] for job in "ab"} == {"RUNNING"}


def _replace_in_the_job_cluster_only(life: Life, cluster: str, dead: str, link: str) -> None:
    template = dead.partition("-")[0]
    spare = next(n for n in life.members("primary") if n.startswith(f"{template}-") and not _is_used(life, n))
    parent = "" if link == "stale" else f", parent_vnode_id = '{spare}'"
    life.store.db.execute(
        f"UPDATE vnodes SET node_id = ?{parent} WHERE cluster_id = ? AND node_id = ?", (spare, cluster, dead)
    )


def _is_used(life: Life, node_id: str) -> bool:
    return bool(
        life.store.value("SELECT count(*) FROM vnodes WHERE node_id = ?1 OR parent_vnode_id = ?1", node_id)
        or nodes.get(life.store, node_id)["state"] == "DEAD"  # type: ignore[index]
    )


def test_what_cannot_be_repaired_is_set_aside_and_told(tree: Life) -> None:
    tree.die()
    dead = victims(tree)["v1##b"][0]
    tree.kill(dead)
    foreign = next(n for n in tree.members("v2") if n.startswith("0-"))
    tree.store.db.execute(
        "UPDATE vnodes SET node_id = ? WHERE cluster_id = 'v1##b' AND node_id = ?", (foreign, dead)
    )
    reported = tree.replay(dry_run=True)
    assert reported[2] == []
    assert len(reported[3]) == 1
    assert "is not inside its parent" in reported[3][0]
    tree.replay()
    assert tree.replay() == [[]] * 6
    tree.turn()
    assert tree.job("b")["status"] == "RUNNING"


def test_a_chain_of_divisible_clusters_is_repaired_from_the_top(life: Life) -> None:
    life.nodes(4, "t")
    life.logical("org", {"t": 2}, divisible=True)
    life.logical("team", {"t": 2}, divisible=True, parent="org")
    life.run("j", cluster="team", spec={"replica_sets": {"t": 2}})
    life.die()
    dead, spare = "t-01", "t-02"
    life.kill(dead)
    life.store.db.execute(
        "UPDATE vnodes SET node_id = ? WHERE cluster_id = 'team##j' AND node_id = ?", (spare, dead)
    )
    reported = life.replay()[2]
    assert reported[:2] == [
        f"added node {spare} to org: team has it already",
        f"added node {spare} to team: team##j has it already",
    ]
    for cluster in ("org", "team", "team##j"):
        assert life.members(cluster) == ["t-00", spare]
    assert life.replay() == [[]] * 6
    life.turn()


@spec("17.one-daemon")
def test_a_scheduler_that_was_replaced_ends_at_its_next_look_although_nothing_is_to_be_done(
    life: Life,
) -> None:
    """Before it removes files of runs that it does not know."""
    old, life.scheduler = life.start(), None
    old.turn()
    life.start()
    old.observer.processes_at = 0
    with pytest.raises(Fenced):
        old.turn()
    old.close(orderly=False)
    old.store.close()


@spec("17.one-daemon")
def test_a_scheduler_that_was_replaced_ends_nothing_that_it_does_not_know(life: Life) -> None:
    """It was suspended before it looked for processes of no job: by then a newer one has started some."""
    old, life.scheduler = life.start(), None
    life.start()
    life.nodes(1, "4c")
    life.run("j")
    assert old.state is not None
    with pytest.raises(Fenced):
        old.carrier.begin(old.state)
    old.close(orderly=False)
    old.store.close()
    life.turn()
    assert life.job("j")["status"] == "RUNNING"
