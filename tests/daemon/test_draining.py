"""``vc delete --drain``: new jobs are refused, queued and running ones end, then the cluster goes (spec 7)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life
from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.errors import Conflict, NotFound
from vctl.ops import cluster_views, clusters, job_edits, jobs, submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest

pytestmark = spec("7.delete")

ALL = {"CPU": 40_000}
"""All that the node has: a second job has to wait."""


def submit(life: Life, name: str, *words: str, cluster: str = "c", **fields: Any) -> str:
    request = JobRequest(
        argv=words or SLEEP, submission_id=name, grace_s=0.1, cluster=cluster, entry=ALL, **fields
    )
    submitting.submit(life.store, request, environment={"PATH": "/usr/bin:/bin"})
    return name


def is_gone(life: Life, cluster_id: str) -> bool:
    try:
        cluster_views.get_cluster(life.store, cluster_id)
    except NotFound:
        return True
    return False


KINDS = {
    "whole nodes, indivisible": {"replica_sets": {"t": 1}},
    "whole nodes, divisible": {"replica_sets": {"t": 1}, "divisible": True},
    "slices": {"spec": ClusterSpec(flexible_min=ALL), "divisible": True},
    "elastic": {"spec": ClusterSpec(), "divisible": True},
}


@pytest.fixture(params=KINDS, ids=lambda name: name.replace(" ", "-"))
def draining(life: Life, request: pytest.FixtureRequest) -> Life:
    """One job runs in ``c``, another waits, and ``c`` is to go."""
    life.nodes(1, "t")
    clusters.create(life.store, "c", ClusterChange(**KINDS[request.param]))
    submit(life, "first", "sh", "-c", f"until [ -e {life.home}/go ]; do sleep 0.02; done")
    life.until(lambda: life.job("first")["status"] == "RUNNING")
    submit(life, "second", "true")
    life.turn()
    assert life.job("second")["status"] == "PENDING"
    done = clusters.delete(life.store, "c", drain=True)
    assert (done["state"], sorted(done["blockers"])) == ("REMOVING", ["job first", "job second"])
    (life.home / "go").touch()
    return life


def test_what_is_queued_still_runs_and_then_the_cluster_goes(draining: Life) -> None:
    draining.until(lambda: is_gone(draining, "c"))
    assert [draining.job(name)["status"] for name in ("first", "second")] == ["SUCCEEDED", "SUCCEEDED"]


def test_new_jobs_are_refused(draining: Life) -> None:
    with pytest.raises(Conflict, match="being removed"):
        submit(draining, "third")


def test_a_new_scheduler_goes_on_with_it(draining: Life) -> None:
    draining.die()
    draining.until(lambda: is_gone(draining, "c"))
    assert draining.job("second")["status"] == "SUCCEEDED"


def test_a_stopped_cluster_empties_its_queue_when_it_is_drained(life: Life) -> None:
    life.nodes(1, "t")
    clusters.create(life.store, "c", ClusterChange(replica_sets={"t": 1}))
    clusters.stop(life.store, "c")
    submit(life, "waits", "true")
    life.turn()
    assert life.job("waits")["state_reason"] == "ClusterStopped"
    clusters.delete(life.store, "c", drain=True)
    life.until(lambda: is_gone(life, "c"))
    assert life.job("waits")["status"] == "SUCCEEDED"


def test_clusters_inside_are_drained_too(life: Life) -> None:
    life.nodes(1, "t")
    clusters.create(life.store, "outer", ClusterChange(replica_sets={"t": 1}, divisible=True))
    clusters.create(
        life.store, "c", ClusterChange(spec=ClusterSpec(flexible_min=ALL), divisible=True), parent_id="outer"
    )
    submit(life, "first", "sleep", "0.3")
    submit(life, "second", "true")
    life.turn()
    clusters.delete(life.store, "outer", drain=True)
    with pytest.raises(Conflict, match="being removed"):
        submit(life, "third")
    life.until(lambda: is_gone(life, "outer"))
    assert is_gone(life, "c")
    assert life.job("second")["status"] == "SUCCEEDED"


def test_a_held_job_keeps_it_until_it_is_released_or_stopped(life: Life) -> None:
    life.nodes(1, "t")
    clusters.create(life.store, "c", ClusterChange(replica_sets={"t": 1}))
    submit(life, "held", "true", hold=True)
    submit(life, "also", "true", hold=True)
    assert clusters.delete(life.store, "c", drain=True)["blockers"] == ["job also", "job held"]
    for _ in range(3):
        life.turn()
    assert not is_gone(life, "c")
    job_edits.release(life.store, "held")
    jobs.stop(life.store, "also")
    life.until(lambda: is_gone(life, "c"))
    assert [life.job(name)["status"] for name in ("held", "also")] == ["SUCCEEDED", "STOPPED"]


def test_the_cluster_of_a_job_goes_with_its_job(life: Life) -> None:
    life.nodes(1, "t")
    submit(life, "j", cluster="primary")
    life.until(lambda: life.job("j")["status"] == "RUNNING")
    own = life.job("j")["cluster_id"]
    with pytest.raises(Conflict, match="still in use") as refused:
        clusters.delete(life.store, own)
    assert refused.value.details["blockers"] == ["job j"]
    drained = clusters.delete(life.store, own, drain=True)
    assert drained["state"] == "ACTIVE"  # the job goes on as if nothing had been said
    clusters.delete(life.store, own, force=True)
    life.until(lambda: is_gone(life, own))
    assert (life.job("j")["status"], life.job("j")["state_reason"]) == ("STOPPED", "StoppedByUser")


def test_the_words_of_who_stops_a_job_are_its_message_never_its_reason(life: Life) -> None:
    """Spec 8: the reason is a fixed token."""
    life.nodes(1, "t")
    submit(life, "runs", cluster="primary")
    life.until(lambda: life.job("runs")["status"] == "RUNNING")
    submit(life, "waits", cluster="primary")
    for name in ("runs", "waits"):
        jobs.stop(life.store, name, grace_s=0, message="TimeLimit")
    life.until(lambda: life.job("runs")["status"] == "STOPPED")
    for name in ("runs", "waits"):
        job = life.job(name)
        assert (job["status"], job["state_reason"], job["message"]) == (
            "STOPPED",
            "StoppedByUser",
            "TimeLimit",
        )
