"""``vctl status``: total, reserved and used agree with each other, whatever kinds of clusters there are (spec 11)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import specification
from tests.world import World
from vctl.core.resources import CPU, GPU, SCALE
from vctl.errors import Conflict
from vctl.http import metrics
from vctl.ops import cluster_views, clusters, forms, job_edits, jobs, nodes, overview, submitting, views
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest, shortcut_spec
from vctl.spec.options import parse_array
from vctl.store import locks
from vctl.store.store import Store

pytestmark = specification.spec("11.status")

UNITS = frozenset({GPU})
KINDS = ("total", "reserved", "used", "lent", "idle")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    here = World(tmp_path / "state")
    nodes.add(here.store, resources={CPU: 8 * SCALE}, count=4, template="8c", node_id="n")
    yield here
    here.close()


def spec(**minimum: float) -> Any:
    return parse_cluster_spec({"flexible_resource_min": minimum}, units=UNITS, logical=True)


def submit(
    world: World, name: str, cpus: int | None = None, *, cluster: str | None = None, **more: Any
) -> None:
    reserved = (
        None if cpus is None else shortcut_spec(str(cpus), None, None, 1, units=UNITS, beside_spec=False)
    )
    request = JobRequest(argv=("true",), submission_id=name, cluster=cluster, spec=reserved, cwd="/", **more)
    submitting.submit(world.store, request, environment={})


def cpus(world: World, cluster: str | None = None) -> tuple[float, float, float]:
    """Total, reserved and used CPUs; on the way all lines of the tree are added up, and the metrics say the same."""
    data = overview.status(world.store, cluster)
    lines = data["clusters"]
    for line in lines:
        below = [one for one in lines if one["parent_id"] == line["cluster_id"]]
        for kind in ("total", "reserved", "used", "idle"):
            assert line["total"].get("CPU", 0) >= line[kind].get("CPU", 0) >= 0
        assert sum(one["total"].get("CPU", 0) for one in below) <= line["reserved"].get("CPU", 0)
        assert sum(one["used"].get("CPU", 0) for one in below) <= line["used"].get("CPU", 0)
    assert lines[0]["cluster_id"] == data["cluster_id"]
    amounts = data["resources"]["CPU"]
    assert amounts == {kind: lines[0][kind]["CPU"] for kind in KINDS}
    tree = cluster_views.tree(world.store, data["cluster_id"])
    assert amounts == {kind: tree[kind]["CPU"] for kind in KINDS}
    if cluster is None:
        shown = metrics.text(world.store).splitlines()
        for kind, amount in list(amounts.items())[:3]:
            assert f'vctl_resources_{kind}{{resource="CPU"}} {amount}' in shown
    return amounts["total"], amounts["reserved"], amounts["used"]


@specification.spec("5.whole-nodes")
def test_whole_nodes_of_clusters_stay_in_the_physical_total(world: World) -> None:
    assert cpus(world) == (32, 0, 0)
    clusters.create(world.store, "team", ClusterChange(divisible=True, replica_sets={"8c": 2}))
    assert cpus(world) == (32, 16, 0)  # nothing runs: nothing is used
    clusters.create(
        world.store, "inner", ClusterChange(divisible=True, replica_sets={"8c": 1}), parent_id="team"
    )
    assert (cpus(world), cpus(world, "team"), cpus(world, "inner")) == ((32, 16, 0), (16, 8, 0), (8, 0, 0))
    submit(world, "j", 3, cluster="inner")
    world.turn()
    assert (cpus(world), cpus(world, "team"), cpus(world, "inner")) == ((32, 16, 3), (16, 8, 3), (8, 3, 3))


def test_spec_clusters_reserve_and_their_jobs_use(world: World) -> None:
    clusters.create(world.store, "divided", ClusterChange(divisible=True, spec=spec(CPU=6)))
    clusters.create(world.store, "shared", ClusterChange(divisible=False, spec=spec(CPU=4)))
    assert cpus(world) == (32, 10, 0)
    submit(world, "a", 2, cluster="divided")
    submit(world, "b", cluster="shared")  # its process holds 1 CPU
    submit(world, "c", 5)  # a job of the primary: its cluster is below it too
    world.turn()
    assert cpus(world) == (32, 15, 8)
    assert cpus(world, "shared") == (4, 0, 1)


def test_dead_nodes_are_in_no_number(world: World) -> None:
    clusters.create(world.store, "team", ClusterChange(divisible=True, replica_sets={"8c": 4}))
    submit(world, "j", 8, cluster="team")
    world.turn()
    assert cpus(world) == (32, 32, 8)
    nodes.kill(world.store, "n-03")
    total, reserved, used = cpus(world)
    assert (total, reserved) == (24, 24)
    assert used in (0, 8)
    assert overview.status(world.store)["nodes"] == {"ALIVE": 3, "DEAD": 1}


def test_running_jobs_the_head_of_the_queue_and_failures_of_a_day(world: World) -> None:
    submit(world, "old", 1)
    world.turn()
    world.processes.end(world.processes.running()[0], 2)
    world.turn()
    world.sleep(25 * 3600)
    submit(world, "runs", 8, time_limit_s=100)
    submit(world, "fails", 1)
    world.turn()
    (failing,) = (
        row[0]
        for row in world.store.rows(
            "SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE submission_id = 'fails'"
        )
    )
    world.processes.end(failing, 3)
    for name, priority in (("waits", 0), ("first", 5)):
        submit(world, name, 8, priority=priority)
    for name in "xyz":
        submit(world, name, 8)
    world.turn()
    world.sleep(30)
    data = overview.status(world.store)
    (running,) = (one for one in data["running_jobs"] if one["submission_id"] == "runs")
    assert (running["run_s"], running["time_left_s"], running["parent_cluster_id"]) == (
        30,
        70,
        "kPrimaryClusterID",
    )
    assert running["node_ids"][0].startswith("n-0")
    assert data["queue"]["pending"] == len(data["queue"]["head"])
    assert [job["submission_id"] for job in data["recent_failures"]] == [
        "fails"
    ]  # the other is older than a day
    assert set(data["scheduler"]) >= {"running", "last_beat", "last_round_ms", "rounds"}


def test_an_array_takes_one_line_of_the_queue(world: World) -> None:
    """Its members wait for the same reason: line by line they would hide the jobs behind them."""
    for name in "abcd":
        submit(world, name, 8)
    world.turn()
    submit(world, "one", 8)
    submit(world, "many", 1, array=parse_array("0-99%2"), priority=1)
    submit(world, "other", 1, array=parse_array("0-9"))
    for name in "xyz":
        submit(world, name, 8)
    job_edits.edit(world.store, "other_3", {"priority": 2})
    world.turn()
    queue = overview.status(world.store)["queue"]
    assert [(one["submission_id"], one["members"], one["queue_position"]) for one in queue["head"]] == [
        ("other_3", 1, 1), ("many_0", 100, 2), ("one", 1, 102), ("other_0", 9, 103), ("x", 1, 112),
    ]  # fmt: skip
    assert jobs.get_job(world.store, "x")["queue_position"] == 112
    assert queue["pending"] == 114


LOCKED = {
    "a scheduler of a moment ago, which has yet to beat": (locks.BACKGROUND, 0, 0, True),
    "the same, after an earlier one has beaten": (locks.FOREGROUND, 0, 60, True),
    "one that has beaten since": (locks.BACKGROUND, 2, 1, False),
    "one that has given no sign of life for long": (locks.BACKGROUND, 60, 0, False),
    "a replay by hand": ("replay", 0, 0, False),
    "no scheduler": (None, 0, 0, False),
}
"""Who holds the scheduler lock; the seconds since it took it and since the last heartbeat (0: there was none)."""


@pytest.mark.parametrize(("kind", "taken_s", "beat_s", "starting"), LOCKED.values(), ids=list(LOCKED))
def test_a_scheduler_that_reads_the_state_is_starting(
    tmp_path: Path, kind: str | None, taken_s: int, beat_s: int, starting: bool
) -> None:
    """It has its lock then and has left no heartbeat: commands said that no scheduler was running."""
    with Store.open(tmp_path / "state") as store:
        now, lock = store.clock(), locks.SchedulerLock(store.home)
        if beat_s:
            at = now - beat_s * 10**9
            beater = 1 if beat_s <= taken_s else 2  # the holder of the lock, or an earlier scheduler
            beat = {"pid": beater, "kind": "background", "last_beat": forms.timestamp(at), "last_beat_ns": at}
            store.write_heartbeat({**beat, "last_round_ms": 1.0, "rounds": 1})
        if kind is not None:
            assert lock.acquire(kind)
            holder = {"kind": kind, "pid": 1, "since_ns": now - taken_s * 10**9}
            lock.path.write_text(json.dumps(holder))
        found = views.scheduler(store)["starting"]
        lock.release()
        assert found is starting


def test_inside_a_job_it_is_about_its_cluster(world: World) -> None:
    submit(world, "mine", 4)
    submit(world, "other", 2)
    world.turn()
    data = overview.status(world.store, "kPrimaryClusterID##mine")
    assert data["resources"]["CPU"] == {
        "total": 4, "reserved": 0, "used": 4, "lent": 0, "idle": 0
    }  # fmt: skip
    assert [line["cluster_id"] for line in data["clusters"]] == ["kPrimaryClusterID##mine"]
    assert "other" not in [job["submission_id"] for job in data["running_jobs"]]
    assert overview.status(world.store, "primary##mine") == data  # the name on the screens


def test_a_job_that_is_over_says_where_it_ran(world: World) -> None:
    """spec 13: node_ids, log_path, wait_s, run_s; also of a job that failed or never ran."""
    submit(world, "fails", 1)
    submit(world, "never", 1, hold=True)
    world.sleep(5)
    world.turn()
    ran = jobs.get_job(world.store, "fails")
    assert (ran["wait_s"], ran["run_s"]) == (5, 0)
    world.sleep(7)
    world.processes.end(world.processes.running()[0], 1)
    world.turn()
    world.sleep(100)
    over = jobs.get_job(world.store, "fails")
    assert (over["status"], over["node_ids"], over["wait_s"], over["run_s"]) == (
        "FAILED",
        ran["node_ids"],
        5,
        7,
    )
    assert len(over["node_ids"]) == 1
    assert over["log_path"] == str(world.home / "logs" / "fails.log")
    jobs.stop(world.store, "never")
    world.sleep(100)
    never = jobs.get_job(world.store, "never")
    assert (never["node_ids"], never["run_s"], never["wait_s"]) == ([], None, 112)


@specification.spec("5.conservation", "3.totals")
def test_a_node_that_shrank_below_its_use_takes_nothing_from_what_the_others_have_free(world: World) -> None:
    clusters.create(world.store, "team", ClusterChange(spec=spec(CPU=6)))
    nodes.update(world.store, "n-00", resources={CPU: 2 * SCALE})
    assert views.cluster_resources(world.store) == {"CPU": 26.0}
    assert views.available_resources(world.store) == {"CPU": 24.0}
    assert cluster_views.get_cluster(world.store, "primary")["available_resources"] == {"CPU": 24.0}
    assert views.nodes(world.store)[0]["Available"] == nodes.get_node(world.store, "n-00")["available"]
    assert views.current_node(world.store, "n-00")["available"] == {"CPU": 0.0}
    assert views.current_node(world.store, "n-00")["used"] == {"CPU": 6.0}


@specification.spec("3.totals")
def test_what_a_node_has_no_more_is_shown_while_something_holds_it(world: World) -> None:
    nodes.update(world.store, "n-00", resources={GPU: 2 * SCALE, "licence": SCALE})
    held = parse_cluster_spec({"flexible_resource_min": {"GPU": 2, "licence": 1}}, logical=True)
    clusters.create(world.store, "team", ClusterChange(spec=held))
    nodes.update(world.store, "n-00", resources={GPU: 0, "licence": 0})
    node = nodes.get_node(world.store, "n-00")
    assert node["resources"] == {"CPU": 8.0, "GPU": 0.0, "licence": 0.0}
    assert node["used"] == {"CPU": 0.0, "GPU": 2.0, "licence": 1.0}
    assert node["available"] == {"CPU": 8.0, "GPU": 0.0, "licence": 0.0}
    assert views.nodes(world.store)[0]["Used"] == node["used"]
    assert views.cluster_resources(world.store) == {"CPU": 32.0, "GPU": 0.0, "licence": 0.0}
    gpus = {"total": 0.0, "reserved": 2.0, "used": 0.0, "lent": 0.0, "idle": 2.0}
    assert overview.status(world.store)["resources"]["GPU"] == gpus
    clusters.delete(world.store, "team")
    assert nodes.get_node(world.store, "n-00")["used"] == {"CPU": 0.0}
    assert overview.status(world.store)["resources"].keys() == {"CPU"}


@specification.spec("13.errors")
def test_refusals_name_the_cluster_of_a_job_as_the_screens_do(world: World) -> None:
    submit(world, "job", 2)
    submit(world, "more", 8)
    world.turn()
    store, inside = world.store, "kPrimaryClusterID##job"
    clusters.create(store, "sub", ClusterChange(spec=spec(CPU=1)), parent_id=inside)
    refused = {
        "virtual cluster primary##job##sub exists already": lambda: clusters.create(
            store, "sub", ClusterChange(), parent_id=inside
        ),
        "for cluster primary##job##two now": lambda: clusters.create(
            store, "two", ClusterChange(spec=spec(CPU=2)), parent_id=inside
        ),
        "virtual node primary##job/0 on n-00 is in use": lambda: clusters.update(
            store, inside, ClusterChange(spec=spec(CPU=1))
        ),
        "^primary##job was made from a resource spec": lambda: clusters.update(
            store, inside, ClusterChange(spec=parse_cluster_spec({"replica_sets": {"8c": 1}}))
        ),
    }
    for words, change in refused.items():
        with pytest.raises(Conflict, match=words):
            change()


def test_what_is_lent_and_idle_is_shown_apart_from_what_is_used(world: World) -> None:
    """A job has ended in a cluster that borrowed for it; a minimum that nobody uses is idle, too."""
    clusters.create(world.store, "own", ClusterChange(spec=spec(CPU=4), divisible=True))
    clusters.create(world.store, "fast", ClusterChange(spec=spec(), divisible=True))
    submit(world, "once", 8, cluster="fast")
    submit(world, "stays", 6, cluster="fast")
    world.turn()
    (run_id,) = world.store.column(
        "SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE submission_id = 'once'"
    )
    world.processes.end(run_id, 0)
    world.turn()
    data = overview.status(world.store)
    assert data["resources"]["CPU"] == {"total": 32, "reserved": 18, "used": 6, "lent": 14, "idle": 12}
    lines = {line["cluster_id"]: line for line in data["clusters"]}
    figures = {
        name: [line[kind]["CPU"] for kind in ("borrowed", "lent", "idle")] for name, line in lines.items()
    }
    assert figures == {"kPrimaryClusterID": [0, 14, 12], "own": [0, 0, 4], "fast": [14, 0, 8]}
