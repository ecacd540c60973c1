"""What ``vctl doctor`` notes about the machine."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.ops import clusters, health
from vctl.runtime import cgroup_trees
from vctl.runtime.cgroups import Groups
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec

pytestmark = spec("16.local")


@spec("19.limits")
@pytest.mark.parametrize(
    ("version", "controllers", "memory", "end"),
    [
        (2, (b"", b"memory", b"pids", b"cpu"), "memory: cgroup v2", "the end of a tree: cgroup v2"),
        (1, (b"memory", b"freezer"), "memory: cgroup v1", "the end of a tree: cgroup v1"),
        (1, (), "memory: a watchdog", "the end of a tree: signals to the processes"),
    ],
)
def test_doctor_says_which_limits_are_in_force(
    ground: Ground,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    controllers: tuple[bytes, ...],
    memory: str,
    end: str,
) -> None:
    """Spec 16: doctor says which limits are in force, and why there is no better one."""
    groups = Groups(version)
    groups.trees = dict.fromkeys(controllers, b"/nowhere")
    groups.reasons = {b"memory": "it was not delegated"}
    monkeypatch.setattr(cgroup_trees, "find", lambda *_, **__: groups)
    notes = health.doctor(ground.store)["notes"]
    (note,) = [one for one in notes if one.startswith("limits of jobs")]
    assert memory in note
    assert end in note
    assert ("processes: none" in note) == (b"pids" not in controllers)
    why = [one for one in notes if "no cgroup v2 for the memory of jobs: it was not delegated; " in one]
    assert bool(why) == (version == 1)


@spec("12.doctor")
def test_a_cluster_with_less_than_its_spec_reserves_is_found(ground: Ground) -> None:
    """Somebody edited the tables by hand; what a cluster has lent of its minimum is no fault."""
    two = parse_cluster_spec({"flexible_resource_min": {"CPU": 2}}, logical=True)
    one = parse_cluster_spec({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}, logical=True)
    clusters.create(ground.store, "elastic", ClusterChange(spec=two))
    clusters.create(ground.store, "fixed", ClusterChange(spec=one))
    clusters.create(ground.store, "whole", ClusterChange(replica_sets={"4c8g": 1}))
    assert health.doctor(ground.store, prove=True)["findings"] == []
    with ground.store.transaction():
        ground.store.db.execute("DELETE FROM vnodes")
    for prove in (False, True):
        assert health.doctor(ground.store, prove=prove)["findings"] == [
            "cluster elastic: it has a minimum and no flexible virtual node",
            "cluster fixed: its fixed virtual nodes have 0 CPU, and its spec reserves 1",
            "cluster whole: it has 0 whole nodes, and its replica sets are 1",
        ]


@spec("12.doctor")
def test_two_flexible_virtual_nodes_in_one_are_found(ground: Ground) -> None:
    """Spec 1: at most one per cluster and parent virtual node; one in each of two slices of a machine is right."""
    one = {"resources": {"CPU": 1}}
    slices = {"fixed_size_nodes": [{"nodes": [one, one], "scheduling_policy": "STRICT_PACK"}]}
    clusters.create(
        ground.store, "outer", ClusterChange(divisible=True, spec=parse_cluster_spec(slices, logical=True))
    )
    two = parse_cluster_spec({"flexible_resource_min": {"CPU": 2}}, logical=True)
    clusters.create(ground.store, "inner", ClusterChange(spec=two), parent_id="outer")
    assert health.doctor(ground.store, prove=True)["findings"] == []
    with ground.store.transaction():
        ground.store.db.execute("UPDATE vnodes SET parent_vnode_id = 'outer/0' WHERE cluster_id = 'inner'")
    findings = health.doctor(ground.store, prove=True)["findings"]
    assert "virtual nodes inner/0 and inner/1: two flexible ones of one cluster in outer/0" in findings


@spec("17.durable")
def test_a_full_disk_is_noted(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_files=9, f_favail=9))
    assert any("is full" in note for note in health.doctor(ground.store)["notes"])


@spec("12.doctor")
def test_an_entry_that_an_index_lacks_is_found_in_large_tables_by_a_proof(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of each entry reads the tables once more for each index: of a million jobs only on request."""
    ground.submit("a")
    db = ground.store.db
    row = db.execute(
        "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE name = 'jobs_running'"
    )
    index = tuple(row.fetchone())
    db.execute("PRAGMA writable_schema = ON")
    db.execute("DELETE FROM sqlite_master WHERE name = 'jobs_running'")
    db.execute("PRAGMA writable_schema = RESET")
    db.execute("UPDATE jobs SET exit_code = 3, status = 'RUNNING' WHERE submission_id = 'a'")
    db.execute("PRAGMA writable_schema = ON")
    db.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index)
    db.execute("PRAGMA writable_schema = RESET")

    def is_found(*, prove: bool = False) -> bool:
        return any("jobs_running" in one for one in health.doctor(ground.store, prove=prove)["findings"])

    assert is_found()
    monkeypatch.setattr(health, "LARGE_BYTES", 1)
    assert not is_found()
    assert is_found(prove=True)
    assert any("indexes were not compared" in one for one in health.doctor(ground.store)["notes"])
