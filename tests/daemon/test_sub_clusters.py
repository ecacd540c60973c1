"""A sub-cluster ends with its job unless it was detached (spec 1), whatever else of the job goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.daemon.conftest import Life
from tests.daemon.test_elastic import GANG, Elastic, until_over
from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.core.resources import SCALE
from vctl.errors import BadSpec, Conflict
from vctl.ops import cluster_views, clusters, jobs
from vctl.spec.cluster_change import ClusterChange

pytestmark = spec("8.end", "10.life")

OWN = "kPrimaryClusterID##j"
ONE = ClusterSpec({"CPU": SCALE})


@pytest.fixture
def work(life: Life) -> Elastic:
    """Two nodes of 8 CPUs, and a job with one CPU on the first that runs."""
    elastic = Elastic(life)
    for name in ("n0", "n1"):
        elastic.life.node(name, "8c", cpus=8)
    elastic.life.run("j", spec=GANG)
    return elastic


def make(work: Elastic, name: str, parent: str = OWN, *, detach: bool = False) -> str:
    """A sub-cluster of 1 CPU."""
    made = clusters.create(work.store, name, ClusterChange(spec=ONE), parent_id=parent, detach=detach)
    return str(made["cluster_id"])


def inside(cluster_id: str) -> dict[str, str]:
    return {"VCTL_CLUSTER_ID": cluster_id}


def is_stopped(work: Elastic) -> None:
    work.life.end("j")


def fails(work: Elastic) -> None:
    (pid,) = work.store.rows("SELECT pid FROM runs WHERE task_id IS NULL AND state = 'RUNNING'")[0]
    os.kill(int(pid), signal.SIGKILL)
    work.life.until(lambda: work.life.job("j")["status"] == "FAILED")


def is_stopped_while_nobody_schedules(work: Elastic) -> None:
    jobs.stop(work.store, "j", grace_s=0)
    work.die_and_start()
    work.life.until(lambda: work.life.job("j")["status"] == "STOPPED")


ENDINGS = [is_stopped, fails, is_stopped_while_nobody_schedules]


def task_in_the_job(work: Elastic) -> Callable[[], None]:
    task = work.task("j", detach=True)
    return lambda: work.cancel(task)


def task_in_a_sub_cluster(work: Elastic) -> Callable[[], None]:
    task = work.task("j", detach=True, inside=inside(make(work, "lived-in")))
    return lambda: work.cancel(task)


def sub_cluster(work: Elastic) -> Callable[[], None]:
    kept = make(work, "kept", detach=True)
    return lambda: void(clusters.delete(work.store, kept))


def task_in_a_detached_sub_cluster(work: Elastic) -> Callable[[], None]:
    kept = make(work, "kept", detach=True)
    task = work.task("j", detach=True, inside=inside(kept))

    def end() -> None:
        work.cancel(task)
        work.life.turn()
        assert work.exists(kept)
        clusters.delete(work.store, kept)

    return end


def void(_: object) -> None:
    return


DETACHED = [task_in_the_job, task_in_a_sub_cluster, sub_cluster, task_in_a_detached_sub_cluster]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("detached", DETACHED, ids=lambda one: one.__name__)
def test_it_ends_with_its_job_while_something_else_goes_on(
    work: Elastic, detached: Callable[[Elastic], Callable[[], None]], ending: Callable[[Elastic], None]
) -> None:
    """Its resources come back at once, and a replay finds nothing; what was detached is left alone."""
    end_of_the_rest = detached(work)
    before = {row[0] for row in work.store.rows("SELECT cluster_id FROM clusters")}
    plain = make(work, "plain")
    deep = make(work, "deep", plain)
    attached = work.task("j", inside=inside(deep))
    ending(work)
    assert until_over(work, attached)[0][:2] in (("FAILED", "OwnerEnded"), ("FAILED", "Cancelled"))
    assert {row[0] for row in work.store.rows("SELECT cluster_id FROM clusters")} == before
    work.die_and_start()
    work.life.turn()
    assert work.life.replay() == [[]] * 6
    assert {row[0] for row in work.store.rows("SELECT cluster_id FROM clusters")} == before
    end_of_the_rest()
    work.life.turn()
    assert work.store.rows("SELECT cluster_id FROM clusters") == []
    assert (work.node("n0"), work.node("n1"), work.leases()) == ((8, 8), (8, 8), [])


def test_it_stays_for_a_detached_task_in_it_and_no_longer(work: Elastic) -> None:
    """Another detached task of the job goes on."""
    plain, other = make(work, "plain"), work.task("j", detach=True)
    task = work.task("j", detach=True, inside=inside(make(work, "deep", plain)))
    work.life.end("j")
    assert work.exists(f"{plain}##deep")
    work.cancel(task)
    work.life.turn(maintain=False)
    assert not work.exists(plain)
    assert work.exists(OWN)
    assert work.state(other) == "RUNNING"
    work.cancel(other)
    assert not work.exists(OWN)


def test_a_detached_one_keeps_those_around_it_but_not_those_in_it(work: Elastic) -> None:
    """The outer one contains it; the inner one was not detached, so it is of the job."""
    outer = make(work, "outer")
    kept = make(work, "kept", outer, detach=True)
    inner, beside = make(work, "inner", kept), make(work, "beside", outer)
    work.life.end("j")
    assert [work.exists(one) for one in (outer, kept, inner, beside)] == [True, True, False, False]
    work.die_and_start()
    work.life.turn()
    assert [work.exists(one) for one in (outer, kept)] == [True, True]
    clusters.delete(work.store, kept)
    assert not work.exists(OWN)


def test_one_that_is_to_be_removed_keeps_nothing(work: Elastic) -> None:
    outer, other = make(work, "outer"), work.task("j", detach=True)
    make(work, "kept", outer, detach=True)
    clusters.delete(work.store, outer, drain=True)
    work.life.end("j")
    assert not work.exists(outer)
    assert work.exists(OWN)
    work.cancel(other)
    assert not work.exists(OWN)


@spec("12.maintenance")
def test_a_waiting_task_that_is_cancelled_after_the_end_keeps_it_no_longer(work: Elastic) -> None:
    """The command ends it; the maintenance round removes the cluster."""
    plain, other = make(work, "plain"), work.task("j", detach=True)
    waits = work.task("j", 99, detach=True, running=False, inside=inside(plain))
    work.life.end("j")
    assert work.exists(plain)
    work.cancel(waits)
    work.life.skew_ns += 10**12
    work.life.turn()
    assert not work.exists(plain)
    assert work.state(other) == "RUNNING"


@spec("12.node-death")
def test_a_node_that_dies_ends_the_job_and_its_sub_clusters(work: Elastic) -> None:
    other = work.task("j", 7, detach=True)
    on = work.store.value("SELECT node_id FROM runs WHERE task_id IS NOT NULL AND state = 'RUNNING'")
    its = work.store.value("SELECT node_id FROM runs WHERE task_id IS NULL AND state = 'RUNNING'")
    plain = make(work, "plain")
    work.life.kill(str(its))
    work.life.until(lambda: work.life.job("j")["status"] == "FAILED", maintain=True)
    assert not work.exists(plain)
    assert work.state(other) == ("RUNNING" if on != its else "FAILED")


@spec("7.revision")
def test_a_cluster_of_a_job_has_no_queue(work: Elastic) -> None:
    """Its settings were accepted together with a spec, and did nothing."""
    sub = make(work, "sub")
    for cluster_id, kind in ((sub, "sub"), (OWN, "job")):
        before = cluster_views.get_cluster(work.store, cluster_id)
        for more in ({}, {"spec": ONE}):
            with pytest.raises(BadSpec, match=f"is a {kind} cluster: it has no queue"):
                clusters.update(work.store, cluster_id, ClusterChange(queue={"order": "fifo"}, **more))
        with pytest.raises(BadSpec, match="is a sub cluster: it has no queue"):
            clusters.create(work.store, "other", ClusterChange(queue={"weight": 2}), parent_id=cluster_id)
        assert cluster_views.get_cluster(work.store, cluster_id) == before


@spec("9.resize", "7.revision")
def test_a_cluster_of_a_job_has_revisions_too(work: Elastic) -> None:
    sub = make(work, "sub")
    for cluster_id in (OWN, sub):
        revision = cluster_views.get_cluster(work.store, cluster_id)["revision"]
        with pytest.raises(Conflict, match=r"The revision \(7\) is expired"):
            clusters.update(work.store, cluster_id, ClusterChange(spec=ONE), revision=7)
        after = clusters.update(work.store, cluster_id, ClusterChange(spec=ONE), revision=revision)[
            "revision"
        ]
        assert after > revision


def test_a_cluster_that_jobs_share_is_of_no_job(life: Life) -> None:
    """It was marked as kept for detached work when a job in it was over."""
    work = Elastic(life)
    life.node("n0", "8c", cpus=8)
    life.logical("shared", spec={"flexible_resource_min": {"CPU": 4}})
    life.run("k", cluster="shared")
    task = work.task("k", detach=True)
    life.end("k")
    assert work.store.value("SELECT detached FROM clusters WHERE cluster_id = 'shared'") == 0
    work.cancel(task)
    assert work.exists("shared")
