"""Somebody writes between a decision and its commit: what was decided beside it is decided again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World, amounts, loaded, picture_of, unlike
from vctl.core.values import replace
from vctl.daemon import turn as turn_module
from vctl.daemon.following import FollowedState
from vctl.ops import clusters, job_edits, nodes, tasks
from vctl.ops import jobs as job_ops
from vctl.ops.submitting import submit
from vctl.scheduler.cycle import decide
from vctl.scheduler.plan import Plan
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.task_request import TaskRequest
from vctl.store.store import Store

pytestmark = spec("17.one-daemon", "6.gang")

AROUND = {"PATH": "/usr/bin:/bin"}


class Crossroads(World):
    """One node of four CPUs. What ``meanwhile`` does happens after the next decision and before its commit."""

    meanwhile: Callable[[], object] | None = None

    def prepare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nodes.add(self.store, resources=amounts(4), node_id="n", template="4c")

        def deciding(*given: Any, **options: Any) -> Plan:
            plan = decide(*given, **options)
            if (plan.starts or plan.task_starts) and self.meanwhile is not None:
                act, self.meanwhile = self.meanwhile, None
                act()
            return plan

        monkeypatch.setattr(turn_module, "decide", deciding)

    def submit(self, name: str, cpus: float, **options: Any) -> None:
        spec = parse_cluster_spec({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": cpus}}]}]})
        submit(
            self.store, JobRequest(argv=("x",), submission_id=name, spec=spec, **options), environment=AROUND
        )

    def state(self, name: str) -> str:
        return str(job_ops.get_job(self.store, name)["status"])


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crossroads]:
    with Crossroads(tmp_path / "state") as world:
        world.prepare(monkeypatch)
        yield world


@pytest.mark.parametrize("how", ["stop", "hold", "edit"])
def test_a_start_that_is_not_written_leaves_its_room_to_others(there: Crossroads, how: str) -> None:
    there.submit("first", 4)
    there.submit("second", 3)
    act = {
        "stop": lambda: job_ops.stop(there.store, "first"),
        "hold": lambda: job_edits.hold(there.store, "first"),
        "edit": lambda: job_edits.edit(there.store, "first", {"priority": -1}),
    }[how]
    there.meanwhile = act
    there.turn()
    assert there.state("second") == "RUNNING"
    assert there.state("first") in ("STOPPED", "PENDING")


def test_the_room_of_a_start_that_is_not_written_is_there_for_other_queues(there: Crossroads) -> None:
    clusters.create(
        there.store,
        "v",
        ClusterChange(spec=parse_cluster_spec({"flexible_resource_min": {}}, logical=True), divisible=True),
    )
    there.submit("first", 4)
    there.submit("second", 3, cluster="v")
    there.meanwhile = lambda: job_ops.stop(there.store, "first")
    there.turn()
    assert there.state("second") == "RUNNING"


def test_nobody_is_ended_beside_a_start_that_is_not_written(there: Crossroads) -> None:
    clusters.update(there.store, "primary", ClusterChange(queue={"preemption": "requeue"}))
    there.submit("low", 2)
    there.turn()
    there.submit("first", 2, priority=9)
    there.submit("second", 2, priority=5)
    there.meanwhile = lambda: job_ops.stop(there.store, "first")
    there.turn()
    assert there.state("second") == "RUNNING"
    assert there.store.value("SELECT count(*) FROM events WHERE kind = 'job.preempting'") == 0


def test_a_task_that_is_not_started_leaves_its_room_to_others(there: Crossroads) -> None:
    there.submit("job", 4)
    there.turn()
    first, second = (
        tasks.run(
            there.store, TaskRequest(argv=("x",), job="job", cwd="/", request=amounts(cpus), strategy="HYBRID"),
            environment={},
        )["task_id"]
        for cpus in (4, 3)
    )  # fmt: skip
    there.meanwhile = lambda: tasks.cancel(there.store, first)
    there.turn()
    assert tasks.get_task(there.store, second)["state"] == "RUNNING"


def test_rounds_without_end_keep_nothing_else_from_its_turn(
    there: Crossroads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round may take long and leave more to the next: a stop is carried out in between."""
    there.submit("job", 4)
    there.turn()

    def slow(*given: Any, **options: Any) -> Plan:
        there.sleep(0.2)
        return replace(decide(*given, **options), unsearched=True)

    monkeypatch.setattr(turn_module, "decide", slow)
    there.submit("another", 4)
    assert there.scheduler is not None
    began = there.elapsed_s
    there.scheduler.turn()
    assert there.elapsed_s - began < 1
    assert there.scheduler.sleep_s() == 0
    job_ops.stop(there.store, "job")
    there.scheduler.turn()
    assert there.processes.told_to_stop


def test_search_and_commit_that_disagree_keep_no_cpu_busy(
    there: Crossroads, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is known that makes them disagree; it did happen, and then a scheduler searched without a pause."""
    there.submit("job", 4)
    searches = 0

    def counted(*given: Any, **options: Any) -> Plan:
        nonlocal searches
        searches += 1
        assert searches < 100
        return decide(*given, **options)

    def refuse(_: object, state: FollowedState, *__: object) -> int:
        state.end_trial()
        state.forget_verdicts()
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(turn_module, "decide", counted)
        patch.setattr(turn_module, "commit", refuse)
        scheduler = there.start()
        scheduler.turn()  # without the check that nothing that fits is overlooked
        assert scheduler.sleep_s() > 0
        assert "refused again" in capfd.readouterr().err
        scheduler.turn()
    assert capfd.readouterr().err == ""
    assert there.state("job") == "PENDING"
    there.turn()
    assert there.state("job") == "RUNNING"


class Overtaken(Store):
    """A store after whose first commit somebody else is quicker."""

    meanwhile: Callable[[], object] | None = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        joins = self._joins
        with super().transaction():
            yield
        if not joins and self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()


def test_what_is_written_while_a_scheduler_loads_is_followed(tmp_path: Path) -> None:
    """Spec 17: it was neither in what had been read of the tree, nor after the number that was read later."""
    with Store.open(tmp_path / "state") as other, Overtaken.open(tmp_path / "state") as store:
        nodes.add(other, resources=amounts(4), node_id="n", template="4c")
        clusters.create(
            other,
            "v",
            ClusterChange(divisible=True, spec=parse_cluster_spec({"flexible_resource_min": {"CPU": 1}})),
        )
        assert isinstance(store, Overtaken)
        store.meanwhile = lambda: clusters.stop(other, "v")
        state = FollowedState.load(store)
        assert store.meanwhile is None
        state.follow(store)
        assert unlike(picture_of(state), picture_of(loaded(other))) == []
        assert state.ledger.clusters["v"].state == "STOPPED"
