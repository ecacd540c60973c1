"""Growing and giving back, with real processes: the walk-through, five levels in one transaction, tasks and owners."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life, cpu
from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.core.nodes import Template
from vctl.core.resources import SCALE
from vctl.engine.settings import LeaseTerms
from vctl.errors import BadSpec, Conflict
from vctl.http import metrics
from vctl.ops import cluster_views, clusters, forms, jobs, leases, nodes, overview, tasks
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.provider_spec import ProviderSpec
from vctl.spec.quantities import parse_resources
from vctl.spec.task_request import TaskRequest

pytestmark = spec("9.growth", "9.return")

IDLE_S = 0.3
GANG = {"flexible_resource_min": {"CPU": 1}}
TWO_CPUS = Template("2c", {"CPU": 2 * SCALE}, most=2)
PATH = {"PATH": "/usr/bin:/bin"}


class Elastic:
    """What the tests ask of a life: tasks by name, totals, leases."""

    def __init__(self, life: Life, *, idle_s: float = IDLE_S, provider: ProviderSpec | None = None) -> None:
        self.life, self.store = life, life.store
        self.idle_s, self.provider = idle_s, provider
        self.start()

    def start(self) -> None:
        scheduler = self.life.start()
        scheduler.lease_terms = LeaseTerms(idle_s=self.idle_s, cooldown_s=0.0)
        if self.provider is not None:
            scheduler.provider.spec = self.provider
            scheduler.provider.announce()

    def die_and_start(self) -> None:
        """kill -9, and another scheduler."""
        self.life.die()
        self.start()

    def task(
        self,
        job: str,
        cpus: float = 1,
        *,
        argv: tuple[str, ...] = SLEEP,
        inside: Mapping[str, str] | None = None,
        running: bool = True,
        **more: Any,
    ) -> str:
        request = TaskRequest(argv=argv, job=job, request=cpu(cpus), grace_s=0.1, **more)
        around = {**PATH, "VCTL_SUBMISSION_ID": job, **(inside or {})}
        task_id = str(tasks.run(self.store, request, environment=around)["task_id"])
        if running:
            self.life.until(lambda: self.has_started(task_id))
        return task_id

    def has_started(self, task_id: str) -> bool:
        sql = "SELECT count(*) FROM runs WHERE task_id = ? AND state = 'RUNNING'"
        return bool(self.store.value(sql, task_id))

    def state(self, task_id: str) -> str:
        return str(tasks.get_task(self.store, task_id)["state"])

    def reason(self, task_id: str) -> str | None:
        found: str | None = tasks.get_task(self.store, task_id)["state_reason"]
        return found

    def cancel(self, *task_ids: str) -> None:
        for task_id in task_ids:
            tasks.cancel(self.store, task_id, grace_s=0)
        self.life.until(lambda: all(self.state(one) in ("FINISHED", "FAILED") for one in task_ids))

    def cluster(self, cluster_id: str) -> tuple[float, float]:
        """CPUs in total and free."""
        form = cluster_views.get_cluster(self.store, cluster_id)
        return form["total_resources"].get("CPU", 0), form["available_resources"].get("CPU", 0)

    def exists(self, cluster_id: str) -> bool:
        return bool(self.store.value("SELECT 1 FROM clusters WHERE cluster_id = ?", cluster_id))

    def node(self, node_id: str) -> tuple[float, float]:
        form = nodes.get_node(self.store, node_id)
        return form["resources"]["CPU"], form["available"]["CPU"]

    def node_ids(self) -> list[str]:
        return [form["node_id"] for form in nodes.list_nodes(self.store)]

    def leases(self) -> list[tuple[str, str, float]]:
        """(borrower, lender, CPUs)."""
        return [
            (x["borrower_id"], x["lender_id"], x["resources"]["CPU"]) for x in leases.list_leases(self.store)
        ]

    def transactions(self, kind: str) -> int:
        """How many transactions wrote events of a kind: those of one transaction follow each other in the feed."""
        kinds = [row[0] for row in self.store.rows("SELECT kind FROM events WHERE kind <> '' ORDER BY seq")]
        return sum(1 for before, now in zip(["", *kinds], kinds, strict=False) if now == kind != before)


@pytest.fixture
def elastic(life: Life) -> Elastic:
    return Elastic(life)


# ---- the walk-through of the issue ----


def test_the_elastic_walk_through(life: Life) -> None:
    elastic = Elastic(life, provider=ProviderSpec("simulated", (TWO_CPUS,), idle_s=IDLE_S))
    life.node("n0", "2c", cpus=2)
    job = "kPrimaryClusterID##walk"

    life.submit("walk", spec=GANG, entry={})
    life.until(lambda: life.job("walk")["status"] == "RUNNING")
    assert elastic.cluster(job) == (1, 1)  # a virtual node of 1
    assert elastic.node("n0") == (2, 1)

    first = elastic.task("walk")
    assert elastic.cluster(job) == (1, 0)
    assert elastic.leases() == []

    second = elastic.task("walk")
    assert elastic.cluster(job) == (2, 0)
    assert [row["node_id"] for row in life.store.rows("SELECT node_id FROM vnodes")] == ["n0"]  # the same one
    assert elastic.node("n0") == (2, 0)
    assert elastic.leases() == [(job, "kPrimaryClusterID", 1)]
    assert len({tasks.get_task(life.store, task)["vnode_id"] for task in (first, second)}) == 1

    third = elastic.task("walk")
    added = next(node_id for node_id in elastic.node_ids() if node_id != "n0")
    assert elastic.node(added) == (2, 1)
    assert elastic.cluster(job) == (3, 0)
    assert [vnode["node_id"] for vnode in clusters_vnodes(life, job)] == ["n0", added]
    assert elastic.leases() == [(job, "kPrimaryClusterID", 2)]

    life.end("walk")
    assert [elastic.state(task) for task in (first, second, third)] == ["FAILED"] * 3
    assert not elastic.exists(job)
    assert elastic.leases() == []
    assert elastic.node("n0") == (2, 2)
    if added in elastic.node_ids():
        assert elastic.node(added) == (2, 2)
    life.until(lambda: elastic.node_ids() == ["n0"])  # after its idle time


def clusters_vnodes(life: Life, cluster_id: str) -> list[Any]:
    return life.store.rows("SELECT * FROM vnodes WHERE cluster_id = ? ORDER BY rank", cluster_id)


def test_a_provider_node_stays_while_it_is_used_and_a_lease_on_it_returns_first(life: Life) -> None:
    elastic = Elastic(life, provider=ProviderSpec("simulated", (TWO_CPUS,), idle_s=IDLE_S))
    life.node("n0", "1c", cpus=1)
    life.run("j", spec=GANG)
    task = elastic.task("j", 2)
    added = next(node_id for node_id in elastic.node_ids() if node_id != "n0")
    elastic.cancel(task)
    life.until(lambda: elastic.leases() == [])
    life.until(lambda: elastic.node_ids() == ["n0"])
    assert life.job("j")["status"] == "RUNNING"
    assert "node.removed" in [
        row[0] for row in life.store.rows("SELECT kind FROM events WHERE object_id = ?", added)
    ]


def test_a_provider_makes_no_more_than_its_maximum(life: Life) -> None:
    elastic = Elastic(life, provider=ProviderSpec("simulated", (TWO_CPUS,), idle_s=60))
    life.node("n0", "1c", cpus=1)
    life.run("j", spec=GANG)
    made = [elastic.task("j", 2), elastic.task("j", 2)]
    third = elastic.task("j", 2, running=False)
    life.until(lambda: elastic.reason(third) == "InsufficientResources")
    assert len(elastic.node_ids()) == 3
    elastic.cancel(made[0])
    life.until(lambda: elastic.state(third) == "RUNNING")


# ---- five levels ----

LEVELS = ("org", "team", "team##job", "team##job##sub")


@pytest.fixture
def levels(elastic: Elastic) -> Elastic:
    """root > org > team > job > sub, each with a minimum of 1 CPU, the inner ones inside it; 8 CPUs below."""
    life = elastic.life
    life.node("n0", "8c", cpus=8)
    life.logical("org", divisible=True, spec=GANG)
    life.logical("team", divisible=True, spec=GANG, parent="org")
    life.submit("job", cluster="team", spec=GANG, entry={})
    life.until(lambda: life.job("job")["status"] == "RUNNING")
    clusters.create(life.store, "sub", ClusterChange(spec=parse_cluster_spec(GANG)), parent_id="team##job")
    assert [elastic.cluster(level)[0] for level in LEVELS] == [1, 1, 1, 1]
    return elastic


def in_sub(elastic: Elastic, cpus: float = 1) -> str:
    inside = {"VCTL_CLUSTER_ID": "team##job##sub"}
    return elastic.task("job", cpus, inside=inside)


def test_a_request_at_the_bottom_borrows_through_all_hops_in_one_transaction(levels: Elastic) -> None:
    before = levels.store.value("SELECT max(seq) FROM events")
    task = in_sub(levels, 3)
    assert levels.leases() == [
        ("org", "kPrimaryClusterID", 2),
        ("team", "org", 2),
        ("team##job", "team", 2),
        ("team##job##sub", "team##job", 2),
    ]
    assert [levels.cluster(level) for level in LEVELS] == [(3, 0)] * 4
    kinds = levels.store.rows("SELECT seq, kind FROM events WHERE seq > ? ORDER BY seq", before)
    reported = [(row[0] - kinds[0][0], row[1]) for row in kinds][:6]
    granted = [(number, "lease.granted") for number in range(2, 6)]
    expected = [(0, "task.submitted"), *granted, (6, "task.started")]
    assert reported == expected  # nothing in between but what grows (1): one transaction
    assert tasks.get_task(levels.store, task)["cluster_id"] == "team##job##sub"


def test_idle_it_returns_through_every_level_in_one_transaction(levels: Elastic) -> None:
    levels.cancel(in_sub(levels, 3))
    levels.life.until(lambda: levels.leases() == [])
    assert [levels.cluster(level)[0] for level in LEVELS] == [1, 1, 1, 1]
    assert levels.node("n0") == (8, 7)
    assert levels.transactions("lease.returned") == 1
    assert levels.store.value("SELECT count(*) FROM events WHERE kind = 'lease.returned'") == 4


def test_only_what_nobody_uses_returns(levels: Elastic) -> None:
    short, long = in_sub(levels, 3), in_sub(levels, 2)
    assert [levels.cluster(level)[0] for level in LEVELS] == [5] * 4
    levels.cancel(short)
    levels.life.until(lambda: levels.cluster("org")[0] == 2)
    assert [levels.cluster(level) for level in LEVELS] == [(2, 0)] * 4
    levels.cancel(long)
    levels.life.until(lambda: levels.leases() == [])


def test_the_maximum_of_a_level_above_holds(levels: Elastic) -> None:
    clusters.update(
        levels.store,
        "org",
        ClusterChange(
            spec=parse_cluster_spec(
                {"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 2}}, logical=True
            )
        ),
    )
    request = TaskRequest(argv=SLEEP, job="job", request=cpu(3))
    task = str(
        tasks.run(levels.store, request, environment={**PATH, "VCTL_CLUSTER_ID": "team##job##sub"})["task_id"]
    )
    levels.life.until(lambda: levels.reason(task) == "Infeasible")
    assert levels.leases() == []
    clusters.update(levels.store, "org", ClusterChange(spec=parse_cluster_spec(GANG, logical=True)))
    levels.life.until(lambda: levels.state(task) == "RUNNING")


def test_nothing_is_borrowed_when_the_top_cannot_give_it(levels: Elastic) -> None:
    inside = {"VCTL_CLUSTER_ID": "team##job##sub"}
    task = levels.task("job", 9, inside=inside, running=False)
    levels.life.until(lambda: levels.reason(task) == "Infeasible")
    assert levels.leases() == []
    assert [levels.cluster(level)[0] for level in LEVELS] == [1, 1, 1, 1]


def test_a_job_goes_with_everything_below_it_and_what_was_borrowed_for_it_returns(levels: Elastic) -> None:
    in_sub(levels, 8)
    levels.life.end("job")
    levels.life.until(lambda: levels.leases() == [])
    assert [levels.cluster(level)[0] for level in LEVELS[:2]] == [1, 1]
    assert [one["cluster_id"] for one in cluster_views.list_clusters(levels.store, all_kinds=False)] == [
        "org",
        "team",
    ]


def test_a_scheduler_that_is_killed_loses_no_lease_and_no_task(levels: Elastic) -> None:
    task = in_sub(levels, 3)
    held = levels.leases()
    levels.die_and_start()
    levels.life.turn()
    assert levels.leases() == held
    assert levels.state(task) == "RUNNING"
    assert levels.store.value("SELECT count(*) FROM runs WHERE task_id = ?", task) == 1
    levels.cancel(task)
    levels.life.until(lambda: levels.leases() == [])


# ---- tasks ----

FINISH = ("/bin/true",)
FAIL = ("/bin/false",)


@pytest.fixture
def work(elastic: Elastic) -> Elastic:
    """One node of 4 CPUs, and a job that reserved one of them and runs."""
    elastic.life.node("n0", "4c", cpus=4)
    elastic.life.run("j", spec=GANG)
    return elastic


def until_over(elastic: Elastic, *task_ids: str) -> list[tuple[str, str | None, int | None]]:
    elastic.life.until(lambda: all(elastic.state(one) in ("FINISHED", "FAILED") for one in task_ids))
    found = [tasks.get_task(elastic.store, one) for one in task_ids]
    return [(one["state"], one["state_reason"], one["exit_code"]) for one in found]


def test_a_task_ends_with_its_exit_code(work: Elastic) -> None:
    well, badly = work.task("j", argv=FINISH, running=False), work.task("j", argv=FAIL, running=False)
    assert until_over(work, well, badly) == [("FINISHED", None, 0), ("FAILED", "NonZeroExit", 1)]
    assert work.life.job("j")["status"] == "RUNNING"


def test_what_cannot_be_started_fails_its_task_only(work: Elastic) -> None:
    task = work.task("j", argv=("/no/such/program",), running=False)
    assert until_over(work, task) == [("FAILED", "LaunchFailed", 127)]
    assert work.life.job("j")["status"] == "RUNNING"


def test_a_failing_task_is_tried_again_as_often_as_it_asked(work: Elastic) -> None:
    task = work.task("j", argv=FAIL, max_retries=2, running=False)
    assert until_over(work, task) == [("FAILED", "NonZeroExit", 1)]
    assert tasks.get_task(work.store, task)["attempt"] == 3
    assert len(work.life.events("task.retried")) == 2


@spec("10.life")
def test_a_cancelled_task_is_not_tried_again(work: Elastic) -> None:
    task = work.task("j", max_retries=5)
    work.cancel(task)
    assert until_over(work, task) == [("FAILED", "Cancelled", 143)]
    assert tasks.get_task(work.store, task)["attempt"] == 1


@spec("10.life")
def test_a_waiting_task_is_cancelled_at_once(work: Elastic) -> None:
    task = work.task("j", 99, running=False)
    work.life.until(lambda: work.reason(task) == "Infeasible")
    tasks.cancel(work.store, task)
    assert (work.state(task), work.reason(task)) == ("FAILED", "Cancelled")
    assert forms.exit_code(tasks.get_task(work.store, task)) == 143  # who waits learns that it was stopped
    work.life.turn()


@spec("10.life")
def test_what_a_task_started_ends_with_it_but_for_what_is_detached(work: Elastic) -> None:
    owner = work.task("j")
    inside = {"VCTL_TASK_ID": owner}
    child, waiting = work.task("j", inside=inside), work.task("j", 99, inside=inside, running=False)
    grandchild = work.task("j", inside={"VCTL_TASK_ID": child})
    detached = work.task("j", inside=inside, detach=True)
    work.cancel(owner)
    ended = until_over(work, child, waiting, grandchild)
    assert [(state, reason) for state, reason, _ in ended] == [("FAILED", "OwnerEnded")] * 3
    assert forms.exit_code(tasks.get_task(work.store, waiting)) == 143
    assert work.state(detached) == "RUNNING"
    assert work.life.job("j")["status"] == "RUNNING"


@spec("10.life")
def test_owned_tasks_end_even_if_the_scheduler_dies_when_their_owner_has(work: Elastic) -> None:
    owner = work.task("j", argv=("/bin/sleep", "0.4"))
    child = work.task("j", inside={"VCTL_TASK_ID": owner})
    scheduler = work.life.scheduler
    assert scheduler is not None
    scheduler.runtime.stop = lambda *_, **__: None  # type: ignore[method-assign]  # it dies before that
    work.life.until(lambda: work.state(owner) == "FINISHED")
    work.die_and_start()
    assert until_over(work, child) == [("FAILED", "OwnerEnded", 143)]


def test_stopping_a_job_ends_its_tasks_waiting_and_running(work: Elastic) -> None:
    running, waiting = work.task("j", 2), work.task("j", 99, running=False)
    work.life.end("j")
    assert [state for state, _, _ in until_over(work, running, waiting)] == ["FAILED", "FAILED"]
    assert not work.exists("kPrimaryClusterID##j")
    assert work.leases() == []
    assert work.node("n0") == (4, 4)


@spec("10.life")
def test_a_detached_task_outlives_its_job_and_keeps_its_cluster_until_it_ends(work: Elastic) -> None:
    detached, attached = work.task("j", 2, detach=True), work.task("j")
    work.life.end("j")
    assert [one[0] for one in until_over(work, attached)] == ["FAILED"]
    assert work.state(detached) == "RUNNING"
    assert work.exists("kPrimaryClusterID##j")
    shown = overview.status(work.store)["clusters"]  # spec 11: nothing else there would tell who holds this
    assert [(one["cluster_id"], one["used"]["CPU"]) for one in shown[1:]] == [("kPrimaryClusterID##j", 3)]
    work.die_and_start()
    work.life.turn()
    assert work.state(detached) == "RUNNING"
    work.cancel(detached)
    work.life.until(lambda: not work.exists("kPrimaryClusterID##j"))
    assert (work.leases(), work.node("n0")) == ([], (4, 4))


@spec("7.delete")
def test_a_task_that_outlived_its_job_is_named_also_where_the_cluster_above_is_deleted(work: Elastic) -> None:
    work.life.logical("team", divisible=True, spec={"flexible_resource_min": {"CPU": 2}})
    work.life.run("k", cluster="team", spec={"flexible_resource_min": {"CPU": 1}})
    detached = work.task("k", detach=True)
    work.life.end("k")
    with pytest.raises(Conflict, match="still in use") as refused:
        clusters.delete(work.store, "team")
    assert refused.value.details["blockers"] == ["cluster team##k", f"task {detached}"]


@spec("10.life")
def test_a_job_is_not_forgotten_while_something_detached_of_it_lives(work: Elastic) -> None:
    detached = work.task("j", 2, detach=True)
    work.life.end("j")
    with pytest.raises(Conflict, match=f"task {detached} of job j is detached and not over"):
        jobs.delete(work.store, "j")
    work.life.skew_ns += 10**12
    work.store.clock = work.life.now
    assert jobs.prune(work.store, 60, dry_run=True)["jobs"] == []
    work.life.turn()
    assert work.state(detached) == "RUNNING"
    work.cancel(detached)
    assert until_over(work, detached) == [("FAILED", "Cancelled", 143)]
    jobs.delete(work.store, "j")
    work.life.turn()


@spec("9.growth", "14.api")
def test_what_is_lent_and_what_is_demanded_is_in_the_metrics(work: Elastic) -> None:
    """Spec 9: everything visible, in JSON and metrics."""
    work.task("j", 3)
    work.task("j", 99, running=False)
    shown = metrics.text(work.store).splitlines()
    assert f'vctl_resources_lent{{resource="CPU"}} {sum(cpus for *_, cpus in work.leases()):.1f}' in shown
    assert 'vctl_resources_demanded{resource="CPU"} 99.0' in shown


def detached_cluster(work: Elastic, name: str = "kept", parent: str = "kPrimaryClusterID##j") -> str:
    """A sub-cluster of 1 CPU that outlives its job."""
    made = clusters.create(
        work.store, name, ClusterChange(spec=ClusterSpec({"CPU": SCALE})), parent_id=parent, detach=True
    )
    return made["cluster_id"]


@spec("10.life", "12.maintenance")
def test_a_detached_sub_cluster_outlives_its_job_until_it_is_deleted(work: Elastic) -> None:
    """Spec 10: ``--detach`` also on ``vc create`` inside a job. Its job's cluster stays for it, and goes with it."""
    other = clusters.create(work.store, "other", ClusterChange(), parent_id="kPrimaryClusterID##j")[
        "cluster_id"
    ]
    inner = clusters.create(work.store, "inner", ClusterChange(), parent_id="kPrimaryClusterID##j")[
        "cluster_id"
    ]
    kept = detached_cluster(work, parent=inner)
    work.life.end("j")
    assert not work.exists(other)
    work.life.skew_ns += 10**12  # long enough for the maintenance round
    work.life.turn()
    work.die_and_start()
    work.life.turn()
    assert work.exists(kept)
    assert work.node("n0") == (4, 3)
    with pytest.raises(Conflict, match="still in use") as refused:
        clusters.delete(work.store, "primary##j")
    assert refused.value.details["blockers"][0] == f"cluster {inner}"
    with pytest.raises(Conflict, match="cluster primary##j##inner##kept is detached"):
        jobs.delete(work.store, "j")
    work.store.clock = work.life.now
    assert jobs.prune(work.store, 60, dry_run=True)["jobs"] == []
    clusters.delete(work.store, kept)
    assert not work.exists("kPrimaryClusterID##j")
    work.life.turn()
    assert (work.leases(), work.node("n0")) == ([], (4, 4))
    jobs.delete(work.store, "j")


@spec("10.life", "7.delete")
@pytest.mark.parametrize("ends_first", [True, False], ids=["its job is over", "its job runs"])
def test_force_deletes_the_cluster_of_a_job_with_its_detached_sub_cluster(
    work: Elastic, ends_first: bool
) -> None:
    """Spec 7: --force stops the blockers first."""
    kept = detached_cluster(work)
    task = work.task("j", detach=True, inside={"VCTL_CLUSTER_ID": kept})
    if ends_first:
        work.life.end("j")
    clusters.delete(work.store, "primary##j", force=True)
    work.life.until(lambda: not work.exists("kPrimaryClusterID##j"))
    assert until_over(work, task)[0][0] == "FAILED"
    assert work.node("n0") == (4, 4)


@spec("10.life", "7.delete")
@pytest.mark.parametrize("how", ["drain", "force"])
@pytest.mark.parametrize("ends_first", [True, False], ids=["its job is over", "its job runs"])
def test_an_empty_detached_sub_cluster_goes_at_once_with_the_cluster_above(
    work: Elastic, ends_first: bool, how: str
) -> None:
    """Nobody waits for the maintenance round."""
    work.life.logical("team", divisible=True, spec={"flexible_resource_min": {"CPU": 2}})
    work.life.run("k", cluster="team", spec={"flexible_resource_min": {"CPU": 1}})
    kept = detached_cluster(work, parent="team##k")
    if ends_first:
        work.life.end("k")
    clusters.delete(work.store, "team", drain=how == "drain", force=how == "force")
    if not ends_first and how == "drain":
        assert work.exists(kept)
        work.life.end("k")
    work.life.until(lambda: work.life.job("k")["status"] == "STOPPED")
    work.life.turn(maintain=False)
    assert [one for one in (kept, "team##k", "team") if work.exists(one)] == []


@spec("10.life")
def test_only_a_cluster_inside_a_job_can_be_detached(work: Elastic) -> None:
    """Spec 10."""
    with pytest.raises(BadSpec, match="detach: team is not inside the cluster of a job"):
        clusters.create(work.store, "team", ClusterChange(), detach=True)


@spec("10.life")
def test_what_a_detached_task_started_outlives_the_job_with_it(work: Elastic) -> None:
    detached = work.task("j", detach=True)
    child = work.task("j", inside={"VCTL_TASK_ID": detached})
    work.life.end("j")
    assert (work.state(detached), work.state(child)) == ("RUNNING", "RUNNING")
    work.die_and_start()
    work.life.turn()
    work.cancel(detached)
    assert until_over(work, child) == [("FAILED", "OwnerEnded", 143)]
    assert not work.exists("kPrimaryClusterID##j")


@spec("10.life")
@pytest.mark.parametrize("by_death", [False, True], ids=["a bad exit code", "the death of its node"])
def test_a_detached_task_is_tried_again_after_the_end_of_its_job(work: Elastic, by_death: bool) -> None:
    """Spec 10: retries of a detached task go on after its job's end; also across schedulers, and those it started."""
    line = "test $VCTL_ATTEMPT -ge 3 && exit 0; sleep 1000"
    task = work.task("j", 2, argv=("/bin/sh", "-c", line), max_retries=2, detach=True)
    child = work.task(
        "j", argv=("/bin/sh", "-c", "sleep 0.2; exit 1"), inside={"VCTL_TASK_ID": task}, max_retries=1
    )
    work.life.end("j")
    assert until_over(work, child) == [("FAILED", "NonZeroExit", 1)]
    assert tasks.get_task(work.store, child)["attempt"] == 2
    for attempt in (1, 2):
        work.life.until(lambda attempt=attempt: work.has_started(task))
        assert tasks.get_task(work.store, task)["attempt"] == attempt
        if by_death:
            node_id = tasks.get_task(work.store, task)["node_id"]
            work.life.node(f"more-{attempt}", "4c")
            work.life.kill(node_id)
        else:
            (pid,) = (row[0] for row in work.store.rows(
                "SELECT pid FROM runs WHERE task_id = ? AND state = 'RUNNING'", task
            ))  # fmt: skip
            os.kill(pid, signal.SIGKILL)
        work.life.until(lambda attempt=attempt: tasks.get_task(work.store, task)["attempt"] > attempt)
        if attempt == 1:
            work.die_and_start()
    assert until_over(work, task) == [("FINISHED", None, 0)]
    work.life.until(lambda: not work.exists("kPrimaryClusterID##j"))
    assert work.leases() == []


@spec("10.life")
def test_a_detached_task_that_is_to_end_is_not_tried_again(work: Elastic) -> None:
    """Spec 10."""
    task = work.task("j", detach=True, max_retries=5)
    work.life.end("j")
    work.cancel(task)
    assert until_over(work, task) == [("FAILED", "Cancelled", 143)]
    assert tasks.get_task(work.store, task)["attempt"] == 1


def test_what_a_try_started_ends_before_the_next_try(work: Elastic) -> None:
    """The first try lasts until its child runs, however busy the machine is."""
    go = work.life.home / "go"
    script = f"until [ -e {go} ]; do sleep 0.02; done; exit 1"
    owner = work.task("j", argv=("/bin/sh", "-c", script), max_retries=1)
    child = work.task("j", inside={"VCTL_TASK_ID": owner})
    go.touch()
    assert until_over(work, child, owner) == [("FAILED", "OwnerEnded", 143), ("FAILED", "NonZeroExit", 1)]
    assert tasks.get_task(work.store, owner)["attempt"] == 2


def test_a_task_waits_for_room_and_starts_when_another_ends(work: Elastic) -> None:
    tasks_ = [work.task("j", 2), work.task("j", 2)]
    third = work.task("j", 2, running=False)
    work.life.until(lambda: work.reason(third) == "InsufficientResources")
    assert work.cluster("kPrimaryClusterID##j") == (4, 0)
    work.cancel(tasks_[0])
    work.life.until(lambda: work.state(third) == "RUNNING")


def test_nothing_runs_twice_or_is_lost_over_restarts_of_the_scheduler(work: Elastic) -> None:
    running = work.task("j", 2)
    queued = [work.task("j", 1, argv=FINISH, running=False) for _ in range(3)]
    work.die_and_start()
    assert [one[0] for one in until_over(work, *queued)] == ["FINISHED"] * 3
    work.die_and_start()
    work.life.turn()
    assert work.state(running) == "RUNNING"
    starts = "SELECT count(*) FROM events WHERE kind = 'task.started' GROUP BY object_id"
    assert work.store.column(starts) == [1] * 4
    assert jobs.get_job(work.store, "j")["status"] == "RUNNING"


def test_idle_borrowed_capacity_comes_back_before_a_machine_is_started(life: Life) -> None:
    """Spec 9: it would have stayed for an hour, and a machine could be had at once; but not before its cool-down."""
    life.node("n1", "4c")
    elastic = Elastic(life, provider=ProviderSpec("simulated", (TWO_CPUS,), idle_s=3600), idle_s=3600)
    assert life.scheduler is not None
    life.run("j", spec=GANG)
    elastic.cancel(elastic.task("j", 4))
    assert elastic.leases() == [("kPrimaryClusterID##j", "kPrimaryClusterID", 3.0)]
    life.scheduler.lease_terms = LeaseTerms(idle_s=3600, cooldown_s=2.0)
    life.run("k", spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]})
    assert elastic.node_ids() == ["n1"]
    assert elastic.leases() == []
    life.run("l", spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]})
    assert sorted(elastic.node_ids()) == ["2c-p1", "n1"]


# ---- shares of one GPU ----


@pytest.fixture
def halves(life: Life) -> Callable[[], str]:
    """One node with a GPU; a job whose tasks take half of it each."""
    nodes.add(life.store, resources=parse_resources({"CPU": 4, "GPU": 1}, "r"), node_id="n1", template="4c1g")
    elastic = Elastic(life)
    life.run("train", spec=GANG)

    def task() -> str:
        half = parse_resources({"GPU": 0.5}, "r")
        request = TaskRequest(argv=SLEEP, job="train", request=half, grace_s=0.1)
        task_id = str(tasks.run(life.store, request, environment=PATH)["task_id"])
        life.until(lambda: elastic.has_started(task_id))
        return task_id

    return task


def gpus(life: Life) -> tuple[float, list[float]]:
    """What of the GPU is free, and the leases of it."""
    lent = [one["resources"]["GPU"] for one in leases.list_leases(life.store)]
    return nodes.get_node(life.store, "n1")["available"]["GPU"], lent


def test_a_gpu_that_was_lent_in_two_halves_returns(life: Life, halves: Callable[[], str]) -> None:
    """Spec 9: what was lent is given back as soon as nothing uses it."""
    running = [halves(), halves()]
    assert gpus(life) == (0.0, [0.5, 0.5])
    for one in running:
        tasks.cancel(life.store, one, grace_s=0)
    life.until(lambda: gpus(life) == (1.0, []))


def test_half_of_a_gpu_returns_while_the_other_half_is_used(life: Life, halves: Callable[[], str]) -> None:
    """Spec 9: and it never shrinks below use; a scheduler that starts meanwhile knows it, too."""
    first, second = halves(), halves()
    tasks.cancel(life.store, first, grace_s=0)
    life.until(lambda: gpus(life) == (0.5, [0.5]))
    assert life.replay(dry_run=True) == [[]] * 6
    tasks.cancel(life.store, second, grace_s=0)
    life.until(lambda: gpus(life) == (1.0, []))
