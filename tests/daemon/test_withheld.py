"""A cluster whose own work waits lends nothing more, and calls nothing back for work that this cannot help."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import Life
from tests.daemon.test_reclaiming import TERMS, loans
from tests.specification import spec
from vctl.core.values import replace
from vctl.errors import BadSpec
from vctl.ops import clusters, job_edits, jobs
from vctl.ops.why import why
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.quantities import parse_resources

pytestmark = spec("9.lending")

TWO = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]}
JOBS = [f"job{n}" for n in range(8)]


@pytest.fixture(params=["a", "z"])
def lender(request: pytest.FixtureRequest) -> str:
    """Its queue has its turn before that of the borrower, or after it."""
    return str(request.param)


@pytest.fixture
def shared(life: Life, lender: str) -> Life:
    """One node of 8 CPU: the lender has 6 and lends up to 4; the borrower b has 2, and uses all of the loan of 4."""
    life.node("n1", "8c", cpus=8)
    for name, minimum, lends in ((lender, 6, 4), ("b", 2, 0)):
        least = parse_cluster_spec({"flexible_resource_min": {"CPU": minimum}}, logical=True)
        limit = parse_resources({"CPU": lends}, "limit")
        clusters.create(life.store, name, ClusterChange(divisible=True, spec=least, lending_limit=limit))
    life.start().lease_terms = TERMS
    for name in JOBS:
        life.submit(name, cluster="b", spec=TWO)
    life.until(lambda: running(life) == 3)
    assert loans(life) == [("b", lender, 4.0)]
    return life


def states(shared: Life) -> list[str]:
    return [shared.job(name)["status"] for name in JOBS]


def running(shared: Life) -> int:
    return states(shared).count("RUNNING")


def submit(shared: Life, lender: str, cpus: int, job: str = "own") -> None:
    shared.submit(job, cluster=lender, spec={"flexible_resource_min": {"CPU": cpus}})


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_called_back_is_not_lent_again(shared: Life, lender: str, restarts: bool) -> None:
    """Each loan that came back went to the next job of the borrower, and the lender waited for ever."""
    submit(shared, lender, 6)
    if restarts:
        shared.until(lambda: "STOPPED" in states(shared))
        shared.die()
        shared.start().lease_terms = TERMS
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    assert sorted(states(shared)[:3]) == ["RUNNING", "STOPPED", "STOPPED"]
    assert states(shared)[3:] == ["PENDING"] * 5


def test_it_lends_again_when_its_work_is_gone(shared: Life, lender: str) -> None:
    submit(shared, lender, 6)
    shared.until(lambda: "STOPPED" in states(shared))
    assert why(shared.store, "job3")["state_reason"] == "InsufficientResources"
    jobs.stop(shared.store, "own")
    shared.until(lambda: running(shared) == 3)


def test_it_lends_again_what_its_job_has_left_when_that_has_started(shared: Life, lender: str) -> None:
    submit(shared, lender, 3)
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    assert running(shared) == 2
    shared.end("own")
    shared.until(lambda: running(shared) == 3)


def test_nothing_is_called_back_where_that_is_not_enough(shared: Life, lender: str) -> None:
    """Jobs of the borrower were ended for it, and it could not start all the same."""
    submit(shared, lender, 2)
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    submit(shared, lender, 5, "second")
    for _ in range(5):
        shared.turn()
    assert (shared.events("lease.called_in"), running(shared)) == ([], 3)
    shared.end("own")
    shared.until(lambda: shared.job("second")["status"] == "RUNNING")


def test_the_clusters_of_a_job_lend_nothing(shared: Life) -> None:
    """Only a logical cluster may lend: the option was accepted there, and did nothing."""
    (job, *_) = (name for name in JOBS if shared.job(name)["status"] == "RUNNING")
    limit = parse_resources({"CPU": 1}, "limit")
    with pytest.raises(BadSpec, match="only a logical cluster lends"):
        clusters.update(shared.store, f"b##{job}", ClusterChange(lending_limit=limit))
    with pytest.raises(BadSpec, match="only a logical cluster lends"):
        clusters.create(shared.store, "sub", ClusterChange(lending_limit=limit), parent_id=f"b##{job}")
    clusters.update(shared.store, f"b##{job}", ClusterChange(lending_limit={}))


@pytest.mark.parametrize("obstacle", ["closed", "held", "infeasible"])
def test_nothing_is_called_back_for_a_job_that_waits_for_something_else(
    shared: Life, lender: str, obstacle: str
) -> None:
    submit(shared, lender, 6 if obstacle != "infeasible" else 8)
    if obstacle == "closed":
        clusters.stop(shared.store, lender)
    elif obstacle == "held":
        job_edits.hold(shared.store, "own")
    else:
        clusters.update(
            shared.store, lender, ClusterChange(borrow_limit=parse_resources({"CPU": 0}, "limit"))
        )
    for _ in range(5):
        shared.turn()
    assert (shared.events("lease.called_in"), running(shared)) == ([], 3)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_loan_that_is_needed_no_more_is_left_to_its_borrower(
    shared: Life, lender: str, restarts: bool
) -> None:
    """Its job had notice and was ended at the end of the grace, although nobody waited any more."""
    assert shared.scheduler is not None
    shared.scheduler.lease_terms = replace(TERMS, reclaim_grace_s=60.0)
    submit(shared, lender, 6)
    shared.until(lambda: list((shared.home / "notices").iterdir()))
    jobs.stop(shared.store, "own")
    if restarts:
        shared.die()
        shared.start().lease_terms = TERMS
    shared.until(lambda: shared.events("lease.spared") and not list((shared.home / "notices").iterdir()))
    assert running(shared) == 3
    assert shared.store.column("SELECT state FROM leases WHERE lender_id = ?", lender) == ["GRANTED"]
    shared.scheduler.lease_terms = TERMS
    submit(shared, lender, 6, "again")
    shared.until(lambda: shared.job("again")["status"] == "RUNNING")
