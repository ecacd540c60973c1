"""A cluster lends what it does not use of its minimum to a sibling, and calls it back when its own work waits."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life, loans, total
from tests.specification import spec
from vctl.cli import columns
from vctl.core.leases import CALLED
from vctl.core.values import replace
from vctl.daemon import turn as turn_module
from vctl.daemon.following import FollowedState
from vctl.engine.rules.revocation import to_call
from vctl.engine.settings import LeaseTerms
from vctl.engine.turn import follows
from vctl.errors import Conflict
from vctl.ops import clusters, health, leases, nodes, tasks, views
from vctl.ops.why import why
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.options import parse_warning_signal
from vctl.spec.quantities import parse_resources
from vctl.spec.task_request import TaskRequest
from vctl.store import leases as table

pytestmark = spec("9.lending")

TERMS = LeaseTerms(idle_s=0.2, cooldown_s=0.0, reclaim_grace_s=0.2)
GANG = {"flexible_resource_min": {"CPU": 1}}


@pytest.fixture
def shared(life: Life) -> Life:
    """One node of 8 CPU: a has 6 of them and lends up to 4, b has 2."""
    life.node("n1", "8c", cpus=8)
    for name, minimum, lends in (("a", 6, 4), ("b", 2, 0)):
        spec = parse_cluster_spec({"flexible_resource_min": {"CPU": minimum}}, logical=True)
        limit = parse_resources({"CPU": lends}, "limit")
        clusters.create(life.store, name, ClusterChange(divisible=True, spec=spec, lending_limit=limit))
    scheduler = life.start()
    scheduler.lease_terms = TERMS
    return life


def start_task(life: Life, job: str, cpus: int) -> str:
    request = TaskRequest(argv=SLEEP, job=job, request=parse_resources({"CPU": cpus}, "r"), grace_s=0.1)
    return str(tasks.run(life.store, request, environment={"PATH": "/usr/bin:/bin"})["task_id"])


def task_state(life: Life, task_id: str) -> tuple[str, str | None]:
    task = tasks.get_task(life.store, task_id)
    return task["state"], task["state_reason"]


def test_an_unused_minimum_is_lent_up_to_the_limit_and_no_further(shared: Life) -> None:
    shared.run("train", cluster="b", spec=GANG)
    *running, waiting = [start_task(shared, "train", 2) for _ in range(4)]
    shared.until(lambda: task_state(shared, waiting)[1] == "InsufficientResources")
    assert [task_state(shared, task)[0] for task in running] == ["RUNNING"] * 3
    assert task_state(shared, waiting)[0] == "PENDING_NODE_ASSIGNMENT"
    assert loans(shared, of_jobs=False) == [("b", "a", 4.0)]
    assert (total(shared, "a"), total(shared, "b")) == (2.0, 6.0)


def test_nothing_below_the_minimum_is_lent_by_default(shared: Life) -> None:
    clusters.update(shared.store, "a", ClusterChange(lending_limit={}))
    shared.run("train", cluster="b", spec=GANG)
    task = start_task(shared, "train", 3)
    shared.until(lambda: task_state(shared, task)[1] == "InsufficientResources")
    assert loans(shared, of_jobs=False) == []
    assert total(shared, "a") == 6.0


def test_the_newest_loan_is_called_back_and_the_borrower_keeps_its_minimum(shared: Life) -> None:
    shared.run("train", cluster="b", spec=GANG)
    tasks_ = [start_task(shared, "train", 2), start_task(shared, "train", 1), start_task(shared, "train", 1)]
    for task in tasks_:
        shared.until(lambda task=task: task_state(shared, task)[0] == "RUNNING")
    assert loans(shared, of_jobs=False) == [("b", "a", 2.0)]
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 5}})
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    assert task_state(shared, tasks_[2]) == ("FAILED", "Preempted")
    assert [task_state(shared, task)[0] for task in tasks_[:2]] == ["RUNNING", "RUNNING"]
    assert loans(shared, of_jobs=False) == [("b", "a", 1.0)]
    assert shared.job("train")["status"] == "RUNNING"
    assert total(shared, "b") >= 2.0


def test_a_job_that_holds_only_its_gang_ends_alone(shared: Life) -> None:
    """Its entrypoint holds nothing itself: what comes free with the job are its virtual nodes."""
    two = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]}
    for name in ("one", "two", "three"):
        shared.run(name, cluster="b", spec=two)
    assert loans(shared, of_jobs=False) == [("b", "a", 4.0)]
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 4}})
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    assert [shared.job(name)["state_reason"] for name in ("one", "two", "three")] == [None, None, "Preempted"]
    assert loans(shared, of_jobs=False) == [("b", "a", 2.0)]


def leased(life: Life) -> list[tuple[float, str]]:
    """The leases of cluster b: (CPUs, state)."""
    return sorted(
        (one["resources"]["CPU"], one["state"])
        for one in leases.list_leases(life.store)
        if one["borrower_id"] == "b"
    )


def test_only_a_part_of_a_loan_is_called_back_and_whoever_does_not_use_it_hears_nothing(shared: Life) -> None:
    """Spec 9: of one account no more than the lender lacks. What is called is a lease of its own until it is home."""
    for name in ("older", "newer"):
        shared.run(name, cluster="b", spec={"flexible_resource_min": {"CPU": 3}})
    assert leased(shared) == [(4.0, "GRANTED")]
    assert shared.scheduler is not None
    shared.scheduler.lease_terms = replace(TERMS, reclaim_grace_s=60.0)
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 5}})
    shared.until(lambda: shared.events("lease.called_in"))
    assert leased(shared) == [(1.0, "GRANTED"), (3.0, "CALLED")]
    shared.turn()
    assert [path.name for path in (shared.home / "notices").iterdir()] == ["newer.json"]
    shared.end("newer")
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    assert (leased(shared), shared.job("older")["status"]) == ([(1.0, "GRANTED")], "RUNNING")


def test_a_part_that_is_called_back_in_vain_is_a_part_of_the_loan_again(shared: Life) -> None:
    for name in ("older", "newer"):
        shared.run(name, cluster="b", spec={"flexible_resource_min": {"CPU": 3}})
    assert shared.scheduler is not None
    shared.scheduler.lease_terms = replace(TERMS, reclaim_grace_s=60.0)
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 5}})
    shared.until(lambda: leased(shared) == [(1.0, "GRANTED"), (3.0, "CALLED")])
    shared.end("own")
    shared.until(lambda: leased(shared) == [(4.0, "GRANTED")])
    shared.turn()
    assert list((shared.home / "notices").iterdir()) == []
    assert shared.job("newer")["status"] == "RUNNING"


def test_a_split_lease_is_the_same_for_the_next_scheduler(shared: Life) -> None:
    """It is told again, and ends what the called part needs; the rest stays."""
    for name in ("older", "newer"):
        shared.run(name, cluster="b", spec={"flexible_resource_min": {"CPU": 3}})
    assert shared.scheduler is not None
    shared.scheduler.lease_terms = replace(TERMS, reclaim_grace_s=60.0)
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 5}})
    shared.until(lambda: leased(shared) == [(1.0, "GRANTED"), (3.0, "CALLED")])
    shared.die()
    shared.start().lease_terms = TERMS
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    assert leased(shared) == [(1.0, "GRANTED")]
    assert [shared.job(name)["state_reason"] for name in ("older", "newer")] == [None, "Preempted"]


def lend_and_call_in(shared: Life) -> str:
    """A task of a borrower runs on what it borrowed, and the lender asks for that."""
    shared.run("train", cluster="b", spec=GANG)
    task = start_task(shared, "train", 3)
    shared.until(lambda: task_state(shared, task)[0] == "RUNNING")
    assert shared.scheduler is not None
    shared.scheduler.lease_terms = replace(TERMS, reclaim_grace_s=60.0)
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 6}})
    shared.until(lambda: shared.events("lease.called_in"))
    return task


def test_events_of_leases_show_amounts_and_times_as_other_documents_do(shared: Life) -> None:
    """Not in the units of the scheduler: 0.5 CPU is no 5000, and a time is no number of nanoseconds."""
    task = lend_and_call_in(shared)
    (lease,) = (one for one in leases.list_leases(shared.store) if one["borrower_id"] == "b")
    tasks.cancel(shared.store, task)
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    found, _ = views.list_events(shared.store, filters=["object=lease", "cluster_id=b"])
    assert [(event["kind"], event["data"]) for event in found] == [
        ("lease.granted", {"lender": "a", "amounts": {"CPU": 1.0}}),
        ("lease.called_in", {"lender": "a", "amounts": {"CPU": 1.0}, "ends_at": lease["expires_at"]}),
        ("lease.returned", {"lender": "a", "left": {}}),
    ]
    (details,) = (column for column in columns.EVENTS if column.heading == "DETAILS")
    assert "amounts CPU 1" in details.show(found[0])


def test_the_borrowers_job_is_told_before_it_is_cut(shared: Life) -> None:
    task = lend_and_call_in(shared)
    notice = json.loads((shared.home / "notices" / "train.json").read_text())
    assert notice["lender_id"] == "a"
    assert notice["amounts"] == {"CPU": 10_000}
    shared.turn()
    assert task_state(shared, task)[0] == "RUNNING"
    tasks.cancel(
        shared.store, task
    )  # the job listens and ends its task by itself: nothing waits for the grace
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    assert total(shared, "a") == 6.0
    assert shared.job("train")["status"] == "RUNNING"
    assert list((shared.home / "notices").iterdir()) == [], "it has given back, and goes on"


def test_while_a_lease_is_called_back_both_sides_are_told_when_it_ends(shared: Life) -> None:
    """Waiting is enough, and who looks must see that (spec 8: a job never waits without a reason)."""
    lend_and_call_in(shared)
    (ends,) = (one["expires_at"] for one in leases.list_leases(shared.store) if one["lender_id"] == "a")
    waiting, running = why(shared.store, "own"), why(shared.store, "train")
    assert waiting["message"] is not None and running["message"] is not None
    said = f"; b gives 1 CPU back to a by {ends}, and what uses it then is ended"
    assert said in waiting["message"]
    assert shared.job("own")["message"] == waiting["message"]
    assert running["message"].endswith(said)


def test_after_the_grace_nobody_is_told_a_time_that_is_over(shared: Life) -> None:
    """What uses it still ends, or has its minimum runtime."""
    lent(shared, min_runtime_s=3600)
    shared.until(lambda: shared.events("lease.called_in"))
    time.sleep(TERMS.reclaim_grace_s)
    shared.turn()
    said = "; b gives 2 CPU back to a as soon as what uses it has ended"
    for job in ("own", "big"):
        assert str(why(shared.store, job)["message"]).endswith(said)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_notice_goes_with_its_job(shared: Life, restarts: bool) -> None:
    """Else the next job of this name would read it; also where the scheduler was not there at that moment."""
    lend_and_call_in(shared)
    if restarts:
        shared.die()
        (shared.home / "notices" / "train.json.99").touch()  # half written
        (shared.home / "notices" / "nobody.json").write_text("{}")
    shared.end("train")
    shared.until(lambda: list((shared.home / "notices").iterdir()) == [])


def test_a_notice_that_cannot_be_written_ends_nobody(shared: Life) -> None:
    """Its job has put something else in its place; it is told by its signal, and has its grace (spec 12)."""
    (shared.home / "notices").write_text("mine")
    task = lend_and_call_in(shared)
    assert shared.scheduler is not None
    shared.until(lambda: shared.scheduler.work.memo.notified)
    assert task_state(shared, task)[0] == "RUNNING"
    assert (shared.home / "notices").read_text() == "mine"


def test_the_borrowers_job_gets_the_signal_that_it_asked_for(shared: Life) -> None:
    log = shared.home / "told"
    script = f"trap 'echo told >> {log}' USR1; : > {log}; while :; do sleep 0.02; done"
    shared.submit(
        "train",
        cluster="b",
        argv=("bash", "-c", script),
        spec={"flexible_resource_min": {"CPU": 5}},
        signal=parse_warning_signal("USR1@1"),
    )
    shared.until(log.exists)
    assert shared.scheduler is not None
    shared.scheduler.lease_terms = replace(TERMS, reclaim_grace_s=60.0)
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 6}})
    shared.until(lambda: log.read_text() == "told\n")
    assert shared.job("train")["status"] == "RUNNING"


def test_the_next_scheduler_knows_that_a_lease_is_called_in_and_tells_the_job_again(shared: Life) -> None:
    task = lend_and_call_in(shared)
    assert shared.store.value("SELECT state FROM leases") == "CALLED"
    notice = shared.home / "notices" / "train.json"
    shared.die()
    notice.unlink()
    scheduler = shared.start()
    scheduler.lease_terms = TERMS
    shared.until(notice.exists)
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    assert task_state(shared, task) == ("FAILED", "Preempted")
    assert len(shared.events("lease.called_in")) == 1


def test_an_idle_loan_goes_back_to_the_lender_itself(shared: Life) -> None:
    shared.run("train", cluster="b", spec=GANG)
    task = start_task(shared, "train", 3)
    shared.until(lambda: loans(shared, of_jobs=False))
    assert total(shared, "a") == 5.0
    tasks.cancel(shared.store, task)
    shared.until(lambda: not loans(shared, of_jobs=False))
    assert (total(shared, "a"), total(shared, "b")) == (6.0, 2.0)


GANGS: dict[str, dict[str, Any]] = {
    "flexible": {"flexible_resource_min": {"CPU": 3}},
    "fixed": {
        "fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 3}}]}],
        "flexible_resource_min": {"CPU": 0},
    },
}


@pytest.mark.parametrize("drained", [False, True], ids=["at once", "when it is empty"])
@pytest.mark.parametrize("gang", GANGS)
def test_a_loan_to_a_gang_ends_with_its_lender_and_what_a_job_grew_by_goes_over_to_its_parent(
    shared: Life, gang: str, drained: bool
) -> None:
    """The gang is the job's own, as if its parent had had room for it from the start."""
    shared.run("train", spec=GANGS[gang])
    start_task(shared, "train", 3)
    more = start_task(shared, "train", 1)
    shared.until(lambda: task_state(shared, more)[0] == "RUNNING")
    borrower = "kPrimaryClusterID##train"
    assert loans(shared) == [(borrower, "a", 4.0)]
    if drained:
        shared.run("own", cluster="a", spec={"flexible_resource_min": {"CPU": 2}})
    clusters.delete(shared.store, "a", drain=drained)
    if drained:
        assert loans(shared) == [(borrower, "a", 4.0)]
        shared.end("own")
    shared.until(lambda: loans(shared) == [(borrower, "kPrimaryClusterID", 1.0)])
    assert health.doctor(shared.store, prove=True)["findings"] == []
    tasks.cancel(shared.store, more)
    shared.until(lambda: loans(shared) == [])
    assert total(shared, borrower) == 3.0


def test_a_job_without_a_spec_keeps_no_lease_for_its_command_when_the_lender_goes(shared: Life) -> None:
    shared.run("plain")
    assert loans(shared) == [("kPrimaryClusterID##plain", "a", 1.0)]
    clusters.delete(shared.store, "a")
    assert loans(shared) == []


def lent(shared: Life, **queue: object) -> None:
    """b serves its queue like this; a job of b holds all of b, and so much of a that a's own job has to wait."""
    if queue:
        clusters.update(shared.store, "b", ClusterChange(queue=queue))
    shared.run("big", cluster="b", spec={"flexible_resource_min": {"CPU": 4}})
    assert loans(shared, of_jobs=False) == [("b", "a", 2.0)]
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 6}})


def test_a_cluster_can_be_changed_while_it_lends(shared: Life) -> None:
    """What it lent is its own: a change of its maximum does not ask for that again."""
    shared.run("big", cluster="b", spec={"flexible_resource_min": {"CPU": 4}})
    assert (loans(shared, of_jobs=False), total(shared, "a")) == ([("b", "a", 2.0)], 4.0)

    def changed(least: int) -> None:
        spec = {"flexible_resource_min": {"CPU": least}, "flexible_resource_max": {"CPU": 7}}
        clusters.update(shared.store, "a", ClusterChange(spec=parse_cluster_spec(spec, logical=True)))

    changed(6)
    assert (loans(shared, of_jobs=False), total(shared, "a")) == ([("b", "a", 2.0)], 4.0)
    with pytest.raises(Conflict, match="needs 1 CPU in total, 0 CPU free"):
        changed(7)
    shared.end("big")
    shared.until(lambda: total(shared, "a") == 6.0)


def test_a_job_that_has_to_give_back_waits_again_where_its_cluster_requeues(shared: Life) -> None:
    lent(shared, preemption="requeue")
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    job = shared.job("big")
    assert (job["status"], job["state_reason"], job["attempt"]) == ("PENDING", "Preempted", 1)
    assert shared.events("job.preempted") == ["big"]
    shared.end("own")
    shared.until(lambda: shared.job("big")["status"] == "RUNNING")
    assert shared.job("big")["attempt"] == 2


def test_else_it_is_over(shared: Life) -> None:
    lent(shared)
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")
    job = shared.job("big")
    assert (job["status"], job["state_reason"], job["exit_code"]) == ("STOPPED", "Preempted", 143)
    [text] = shared.store.rows("SELECT data FROM events WHERE kind = 'job.preempted'")
    assert [json.loads(text[0])[name] for name in ("winner", "rule")] == [None, "stop"]


def test_not_before_its_minimum_runtime(shared: Life) -> None:
    lent(shared, min_runtime_s=3600)
    shared.until(lambda: shared.events("lease.called_in"))
    for _ in range(3):
        time.sleep(TERMS.reclaim_grace_s)
        shared.turn()
    assert shared.job("big")["status"] == "RUNNING"
    shared.skew_ns = 3601 * 10**9
    shared.until(lambda: shared.job("own")["status"] == "RUNNING")


def test_a_borrower_is_told_also_when_its_lease_changes_while_it_is_called_in(
    shared: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 9: the borrower is told first, then has its grace, whatever others do to the lease at that moment."""
    shared.run("train", cluster="b", spec=GANG)
    task = start_task(shared, "train", 3)
    shared.until(lambda: task_state(shared, task)[0] == "RUNNING")
    assert loans(shared, of_jobs=False) == [("b", "a", 1.0)]
    scheduler = shared.scheduler
    assert scheduler is not None
    scheduler.lease_terms = replace(TERMS, reclaim_grace_s=60.0)
    halved: list[bool] = []

    def looked(state: FollowedState, *rest: Any) -> bool:
        """Somebody else, after the scheduler looked and before it has the lock, makes half of the lease b's own."""
        found = follows(state, *rest)
        if to_call(state, time.time_ns()) and not halved:
            halved.append(True)
            least = parse_cluster_spec({"flexible_resource_min": {"CPU": 2.5}}, logical=True)
            clusters.update(shared.store, "b", ClusterChange(spec=least))
        return found

    monkeypatch.setattr(turn_module, "follows", looked)
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 6}})
    shared.until(lambda: shared.events("lease.called_in"))
    assert halved
    (lease,) = table.of_borrower(shared.store, "b")
    assert (lease.state, dict(lease.amounts)) == (CALLED, {"CPU": 5000})
    assert (shared.home / "notices" / "train.json").exists()
    ((ends,),) = [of_lease.values() for of_lease in scheduler.work.memo.notified.values()]
    assert 50 < (ends - scheduler.clock.uptime_ns()) / 1e9 <= 60
    shared.turn()
    assert len(shared.events("lease.called_in")) == 1
    assert task_state(shared, task)[0] == "RUNNING"


def test_a_job_that_begins_to_use_a_lease_after_it_was_called_in_has_its_grace_too(shared: Life) -> None:
    """Spec 9: nobody is ended unwarned; the newest is still the first to go."""
    scheduler = shared.scheduler
    assert scheduler is not None
    scheduler.lease_terms = LeaseTerms(idle_s=3600, cooldown_s=0.0, reclaim_grace_s=60.0)
    shared.run("train", cluster="b", spec=GANG)
    first = start_task(shared, "train", 3)
    shared.until(lambda: task_state(shared, first)[0] == "RUNNING")
    shared.submit("own", cluster="a", spec={"flexible_resource_min": {"CPU": 6}})
    notice = shared.home / "notices" / "train.json"
    shared.until(notice.exists)
    shared.turn()
    told = scheduler.work.memo.notified
    ((job_id,),) = told.values()
    told.clear()  # as if it had begun a moment later
    notice.unlink()

    shared.turn()
    assert scheduler.state is not None
    (run,) = [run for run in scheduler.state.runs.values() if run.task_id == first]
    assert (run.stop_reason, notice.exists()) == (None, True)
    ((ends,),) = [of_lease.values() for of_lease in told.values()]
    assert ends > scheduler.clock.uptime_ns() + 50 * 10**9
    for of_lease in told.values():
        of_lease[job_id] = 0
    shared.until(lambda: task_state(shared, first) == ("FAILED", "Preempted"))


def test_a_gpu_that_was_lent_in_halves_returns_though_free_halves_lie_on_two(life: Life) -> None:
    """Spec 9 and 2: half of one GPU and half of another are not the whole one that the lender waits for."""
    nodes.add(life.store, resources=parse_resources({"CPU": 4, "GPU": 2}, "r"), node_id="n1", template="4c2g")
    for name, lends in (("a", 1), ("b", 0)):
        least = parse_cluster_spec({"flexible_resource_min": {"GPU": 1}}, logical=True)
        limit = parse_resources({"GPU": lends}, "limit")
        clusters.create(life.store, name, ClusterChange(divisible=True, spec=least, lending_limit=limit))
    life.start().lease_terms = TERMS
    life.submit("train", cluster="b", spec={}, entry={})
    life.until(lambda: life.job("train")["status"] == "RUNNING")
    half = parse_resources({"GPU": 0.5}, "r")
    running = []
    for _ in range(4):
        request = TaskRequest(argv=SLEEP, job="train", request=half, grace_s=0.1)
        running.append(str(tasks.run(life.store, request, environment={"PATH": "/usr/bin:/bin"})["task_id"]))
        life.until(lambda: task_state(life, running[-1])[0] == "RUNNING")
    tasks.cancel(life.store, running[0], grace_s=0)
    life.submit("own", cluster="a", spec={"flexible_resource_min": {"GPU": 1}})
    life.until(lambda: life.job("own")["status"] == "RUNNING")
    assert life.job("train")["status"] == "RUNNING"
