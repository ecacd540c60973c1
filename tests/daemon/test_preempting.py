"""Preemption while a scheduler follows, on a hand-cranked clock: told, ended, waiting again; and every way to die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import Killed, World, amounts
from vctl.core.resources import Amounts
from vctl.errors import BadSpec
from vctl.ops import cluster_views, clusters, job_edits, submitting, tasks, why
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_warning_signal
from vctl.spec.task_request import TaskRequest

pytestmark = spec("8.preemption")

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


class Contest(World):
    """Two nodes of two CPUs; the primary requeues, with a grace of 30 s."""

    def prepare(self, **queue: object) -> None:
        node_ops.add(self.store, resources=amounts(2), count=2, template="2c")
        self.settle(preemption="requeue", preemption_grace_s=30, **queue)
        self.sent: list[tuple[str, int]] = []
        reported = self.processes.signal_run

        def signal_run(run_id: str, signo: int, *, tree: bool = False) -> bool:
            self.sent.append((run_id.partition(".")[0], signo))
            return reported(run_id, signo, tree=tree)

        self.processes.signal_run = signal_run  # type: ignore[method-assign]

    def settle(self, **queue: object) -> None:
        clusters.update(self.store, "primary", ClusterChange(queue=queue))

    def submit(self, name: str, cpus: float, priority: int = 0, **options: Any) -> None:
        spec = options.pop("spec", None)
        parsed = None if spec is None else parse_cluster_spec(spec)
        entry: Amounts | None = None if spec is not None else amounts(cpus)
        request = JobRequest(
            argv=("x",), submission_id=name, priority=priority, entry=entry, spec=parsed, **options
        )
        submitting.submit(self.store, request, environment=ENVIRONMENT)

    def state(self, name: str) -> tuple[str, str | None]:
        job = job_ops.get_job(self.store, name)
        return job["status"], job["state_reason"]

    def job(self, name: str) -> dict[str, Any]:
        return job_ops.get_job(self.store, name)

    def data(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        rows = self.store.rows("SELECT object_id, data FROM events WHERE kind = ? ORDER BY seq", kind)
        return [(row[0], json.loads(row[1])) for row in rows]

    def run_of(self, name: str) -> str:
        return next(
            str(row[0])
            for row in self.store.rows(
                "SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE submission_id = ?", name
            )
        )  # fmt: skip

    def later(self, seconds: float) -> None:
        self.sleep(seconds)
        self.turn()

    def dies_at(self, commit: int, between: Callable[[], None] | None = None, *, after_it: bool) -> bool:
        """Whether the scheduler dies at a commit of the next turns. ``between`` is done after the first of them."""
        assert self.scheduler is not None
        store: Any = self.scheduler.store
        store.dies_at, store.after_it = commit, after_it
        died = False
        for number in range(3):
            try:
                self.turn()
                if between is not None and number == 0:
                    between()
                self.sleep(31)
                self.turn()
                self.processes.obey()
            except Killed:
                died = True
                self.die()
                self.turn()
        return died

    def is_at_rest(self) -> bool:
        counts = [self.store.value(f"SELECT count(*) FROM {name}") for name in ("preemptions", "nominations")]
        return counts == [0, 0]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Contest]:
    with Contest(tmp_path / "state") as world:
        world.prepare()
        yield world


def full(there: Contest, **options: Any) -> None:
    """Low jobs on all CPUs; a is older by 100 s. Then one of high priority comes."""
    there.submit("a", 2, **options)
    there.turn()
    there.later(100)
    there.submit("b", 2, **options)
    there.turn()
    there.later(50)
    there.submit("w", 2, 5)
    there.turn()


def test_without_a_signal_it_is_ended_at_once_with_the_grace_and_waits_again(there: Contest) -> None:
    full(there)
    assert there.processes.told_to_stop == {there.run_of("b")}
    assert there.state("b") == ("RUNNING", None)
    assert there.state("w") == ("PENDING", "WaitingForPreemption")
    assert there.job("w")["message"].startswith("preempts b, by ")
    notice = json.loads((there.home / "notices" / "b.json").read_text())
    assert (notice["preempted_for"], notice["rule"]) == ("w", "requeue")
    there.processes.obey()
    there.turn()
    assert there.state("b") == ("PENDING", "Preempted")
    assert there.job("b")["message"].startswith("preempted by w, which has a higher priority")
    assert there.state("w") == ("RUNNING", None)
    (name, lost), = there.data("job.preempted")  # fmt: skip
    assert (name, lost["winner"], lost["rule"], lost["lost_s"]) == ("b", "w", "requeue", 50.0)
    assert lost["lost_resource_seconds"] == {"CPU": 100.0}
    assert there.is_at_rest()
    assert not (there.home / "notices" / "b.json").exists()
    there.processes.end(there.run_of("w"), 0)
    there.turn()
    assert there.state("b") == ("RUNNING", None)
    assert there.job("b")["attempt"] == 2


def test_a_warned_one_has_the_grace_and_then_its_own(there: Contest) -> None:
    full(there, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    assert there.sent == [("2", 10)]
    assert there.processes.told_to_stop == set()
    assert "is preempted by w, which has a higher priority" in why.why(there.store, "b")["message"]
    there.later(29)
    assert there.processes.told_to_stop == set()
    assert "at the latest" in why.why(there.store, "b")["message"]
    there.later(2)
    assert there.processes.told_to_stop == {there.run_of("b")}
    assert why.why(there.store, "b")["message"].endswith("as soon as its processes have ended")
    there.processes.obey()
    there.turn()
    assert there.state("b") == ("PENDING", "Preempted")
    assert there.state("w") == ("RUNNING", None)
    assert there.sent == [("2", 10)]


def test_the_scheduler_sleeps_no_longer_than_the_grace(there: Contest) -> None:
    there.settle(preemption_grace_s=2)
    full(there, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    assert there.scheduler is not None
    assert 1.9 < there.scheduler.sleep_s() <= 2.0


def test_a_warned_one_that_ends_well_has_succeeded(there: Contest) -> None:
    full(there, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    there.processes.end(there.run_of("b"), 0)
    there.turn()
    assert there.state("b") == ("SUCCEEDED", None)
    assert there.state("w") == ("RUNNING", None)
    assert there.is_at_rest()


def test_a_warned_one_that_ends_badly_was_preempted(there: Contest) -> None:
    full(there, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    there.processes.end(there.run_of("b"), 138)
    there.turn()
    assert there.state("b") == ("PENDING", "Preempted")
    assert there.state("w") == ("RUNNING", None)


def test_stop_is_for_good(there: Contest) -> None:
    there.settle(preemption="stop")
    full(there)
    there.processes.obey()
    there.turn()
    assert there.state("b") == ("STOPPED", "Preempted")
    assert there.job("b")["exit_code"] == 143
    assert there.data("job.preempted")[0][1]["rule"] == "stop"
    assert there.is_at_rest()


def test_stopped_by_the_user_it_is_never_queued_again(there: Contest) -> None:
    full(there)
    job_ops.stop(there.store, "b")
    there.turn()
    there.processes.obey()
    there.turn()
    assert there.state("b") == ("STOPPED", "StoppedByUser")
    assert there.state("w") == ("RUNNING", None)
    assert there.is_at_rest()


@pytest.mark.parametrize("how", ["stop", "hold", "edit"])
def test_when_the_winner_goes_its_warned_victim_is_spared(there: Contest, how: str) -> None:
    full(there, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    match how:
        case "stop":
            job_ops.stop(there.store, "w")
        case "hold":
            job_edits.hold(there.store, "w")
        case "edit":
            job_edits.edit(there.store, "w", {"priority": 0})
    there.turn()
    assert there.is_at_rest()
    assert [name for name, _ in there.data("job.spared")] == ["b"]
    assert not (there.home / "notices" / "b.json").exists()
    there.later(60)
    assert there.processes.told_to_stop == set()
    assert there.state("b") == ("RUNNING", None)
    assert there.state("w")[1] in ("StoppedByUser", "Held", "InsufficientResources")


def test_a_winner_that_asks_for_something_else_has_nothing_reserved(there: Contest) -> None:
    full(there, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    assert there.state("w") == ("PENDING", "WaitingForPreemption")
    job_edits.edit(there.store, "w", {"entrypoint_num_cpus": 1, "priority": 0})
    assert there.store.value("SELECT count(*) FROM nominations") == 0
    assert [name for name, _ in there.data("job.spared")] == ["b"]
    there.turn()
    assert there.is_at_rest()
    assert there.state("w") == ("PENDING", "InsufficientResources")
    assert there.state("b") == ("RUNNING", None)


def test_who_was_told_to_end_already_is_not_spared(there: Contest) -> None:
    full(there)
    job_ops.stop(there.store, "w")
    there.turn()
    there.processes.obey()
    there.turn()
    assert there.data("job.spared") == []
    assert there.state("b") == ("RUNNING", None), "it waits at its old place, and there is room"
    assert there.job("b")["attempt"] == 2
    assert there.is_at_rest()


def test_turned_off_in_the_grace(there: Contest) -> None:
    full(there, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    there.settle(preemption="off")
    there.turn()
    assert there.is_at_rest()
    assert there.state("w") == ("PENDING", "InsufficientResources")


def test_a_minimum_runtime_is_waited_for(there: Contest) -> None:
    there.settle(min_runtime_s=200)
    full(there)
    assert there.state("w") == ("PENDING", "InsufficientResources")
    assert there.scheduler is not None
    there.later(46)
    assert there.scheduler.sleep_s() == pytest.approx(4.0)
    there.later(5)
    assert there.processes.told_to_stop == {there.run_of("a")}


@pytest.mark.parametrize("how", ["stop", "hold"])
def test_nobody_is_woken_for_a_minimum_runtime_that_nobody_waits_for(there: Contest, how: str) -> None:
    there.settle(min_runtime_s=200)
    full(there)
    job_ops.stop(there.store, "w") if how == "stop" else job_edits.hold(there.store, "w")
    there.turn()
    there.later(100)
    assert there.scheduler is not None
    assert there.scheduler.sleep_s() > 0


def test_a_warned_one_that_is_stopped_is_neither_waited_for_nor_spared(there: Contest) -> None:
    full(there, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    job_ops.stop(there.store, "b", grace_s=500)
    there.turn()
    there.later(100)
    assert there.scheduler is not None
    assert there.scheduler.sleep_s() > 0
    job_ops.stop(there.store, "w")
    there.turn()
    assert there.data("job.spared") == []
    there.processes.obey()
    there.turn()
    assert there.state("b") == ("STOPPED", "StoppedByUser")


def test_what_comes_free_is_not_taken_by_who_comes_later(there: Contest) -> None:
    there.submit("a", 1)
    there.submit("b", 1)
    there.submit("c", 2)
    there.turn()
    there.submit("w", 2, 5, spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}] * 2}]})
    there.turn()
    assert len(there.processes.told_to_stop) == 3
    first = there.run_of("a")
    there.processes.told_to_stop.discard(first)
    there.processes.end(first, 143, stopped=True)
    there.submit("small", 1, 4)
    there.turn()
    assert there.state("small") == ("PENDING", "InsufficientResources")
    assert there.state("a") == ("PENDING", "Preempted")
    there.processes.obey()
    there.turn()
    assert there.state("w") == ("RUNNING", None)
    assert there.is_at_rest()


def test_nor_by_a_task_that_grows(there: Contest) -> None:
    there.settle(min_runtime_s=1)
    there.submit("host", 1, 9, spec={"flexible_resource_min": {"CPU": 1}})
    there.submit("a", 1)
    there.submit("b", 2)
    there.turn()
    there.later(10)
    there.submit("w", 3, 5, spec={"flexible_resource_min": {"CPU": 3}})
    there.turn()
    first = there.run_of("a")
    there.processes.told_to_stop.discard(first)
    there.processes.end(first, 143, stopped=True)
    tasks.run(there.store, TaskRequest(argv=("x",), job="host", request=amounts(2)), environment=ENVIRONMENT)
    there.turn()
    assert there.store.value("SELECT state FROM tasks") == "PENDING_NODE_ASSIGNMENT"
    there.processes.obey()
    there.turn()
    assert there.state("w") == ("RUNNING", None)


def test_a_gang_and_its_tasks_end_whole(there: Contest) -> None:
    pair = {
        "fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}] * 2, "scheduling_policy": "STRICT_SPREAD"}]
    }
    there.submit("gang", 0, spec=pair, per_node=True)
    there.turn()
    for detach in (False, True):
        request = TaskRequest(argv=("x",), job="gang", request=amounts(1), detach=detach)
        tasks.run(there.store, request, environment=ENVIRONMENT)
    there.turn()
    assert len(there.processes.running()) == 4
    there.submit("w", 1, 5)
    there.turn()
    for _ in range(3):
        there.processes.obey()
        there.turn()
    assert there.state("gang") == ("PENDING", "Preempted")
    assert there.state("w") == ("RUNNING", None)
    assert len(there.processes.running()) == 1
    ended = there.store.rows("SELECT state, state_reason FROM tasks")
    assert [row[0] for row in ended] == ["FAILED", "FAILED"]


def test_it_is_no_failed_attempt(there: Contest) -> None:
    full(there, max_retries=1, retry_on=("ExitCode",), backoff_s=0)
    there.processes.obey()
    there.turn()
    there.processes.end(there.run_of("w"), 0)
    there.turn()
    assert there.job("b")["attempt"] == 2
    there.processes.end(there.run_of("b"), 1)
    there.turn()
    assert there.job("b")["attempt"] == 3
    there.processes.end(there.run_of("b"), 1)
    there.turn()
    assert there.state("b") == ("FAILED", "NonZeroExit")


def test_members_of_an_array_keep_its_limit(there: Contest) -> None:
    from vctl.spec.options import parse_array

    there.submit("arr", 1, array=parse_array("0-5%2"))
    there.turn()
    there.submit("c", 2)
    there.turn()
    there.submit("w", 2, 5, spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}] * 2}]})
    there.turn()
    there.processes.obey()
    there.turn()
    assert there.state("w") == ("RUNNING", None)
    assert there.store.value("SELECT count(*) FROM jobs WHERE state_reason = 'Preempted'") == 3
    there.processes.end(there.run_of("w"), 0)
    there.turn()
    assert there.store.value("SELECT count(*) FROM jobs WHERE array_id = 'arr' AND status = 'RUNNING'") == 2


DEATHS = [(commit, after) for commit in range(5) for after in (False, True)]


@pytest.mark.parametrize("warned", [False, True], ids=["ended", "warned"])
@pytest.mark.parametrize(("commit", "after_it"), DEATHS)
def test_a_scheduler_that_dies_anywhere(there: Contest, commit: int, *, after_it: bool, warned: bool) -> None:
    """Whichever commit of the preemption it dies before or after: another one carries it on to the same end."""
    options = {"signal": parse_warning_signal("USR1@60"), "time_limit_s": 10_000} if warned else {}
    there.submit("a", 2, **options)
    there.turn()
    there.later(100)
    there.submit("b", 2, **options)
    there.turn()
    there.later(50)
    there.submit("w", 2, 5)
    died = there.dies_at(commit, after_it=after_it)
    there.turn()
    assert died or commit > 2
    assert there.state("w") == ("RUNNING", None)
    assert there.state("b") == ("PENDING", "Preempted")
    assert there.state("a") == ("RUNNING", None)
    assert len(there.data("job.preempted")) == 1
    assert there.is_at_rest()
    if warned:
        assert there.sent.count(("2", 10)) in (1, 2), "sent again, never not"


def test_settings_are_read_shown_and_taken_back(there: Contest) -> None:
    there.settle(preemption="stop", min_runtime_s="10m", preemption_grace_s=0)
    shown = cluster_views.get_cluster(there.store, "primary")["queue"]
    assert (shown["preemption"], shown["min_runtime_s"], shown["preemption_grace_s"]) == ("stop", 600, 0)
    there.settle(preemption=None, min_runtime_s=None, preemption_grace_s=None)
    shown = cluster_views.get_cluster(there.store, "primary")["queue"]
    assert (shown["preemption"], shown["min_runtime_s"], shown["preemption_grace_s"]) == ("off", 0, 30)
    with pytest.raises(BadSpec, match=r"preemption: .maybe. is not one of off, requeue, stop"):
        there.settle(preemption="maybe")
    with pytest.raises(BadSpec, match="min_runtime_s"):
        there.settle(min_runtime_s="-1s")
