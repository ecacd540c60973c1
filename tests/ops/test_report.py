"""``vctl report``: what was held, how it ended, how long it waited, and what is left of that when jobs are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World, amounts
from vctl.core.identity import Identity
from vctl.core.wording import timestamp
from vctl.errors import BadSpec
from vctl.ops import clusters, jobs, report, submitting
from vctl.ops import nodes as node_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest

pytestmark = spec("19.accounting")

CPU = 10_000
H = 3_600
DAY = 24 * H


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "state") as made:
        node_ops.add(made.store, resources=amounts(4, 2), template="t")
        made.sleep(10 * DAY)
        yield made


def submit(world: World, name: str, cpus: int = 1, **more: Any) -> None:
    request = JobRequest(argv=("sleep", "9"), submission_id=name, entry={"CPU": cpus * CPU}, **more)
    submitting.submit(world.store, request, environment={"PATH": "/bin"})
    world.turn()


def end(world: World, name: str, code: int = 0) -> None:
    (run,) = world.store.column(
        "SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE submission_id = ?", name
    )
    world.processes.end(run, code)
    world.turn()


def lines(
    world: World, by: str = "user", since: float | None = None, until: float | None = None
) -> dict[str, Any]:
    """The lines of a report, with the times in seconds of the world."""
    field = {"user": "user", "cluster": "cluster_id", "job": "submission_id"}[by]
    found = report.report(
        world.store, since="9d" if since is None else timestamp(int(since * 1e9)),
        until=None if until is None else timestamp(int(until * 1e9)), by=by,
    )  # fmt: skip
    return {str(line[field]): line for line in found}  # type: ignore[literal-required]


def test_hours_states_and_waits(world: World) -> None:
    submit(world, "first", 4)
    submit(world, "second", 2)  # waits for the first
    world.sleep(H)
    end(world, "first")
    world.sleep(H / 2)
    end(world, "second", code=3)
    submit(world, "third", 1)
    world.sleep(2 * H)
    (line,) = lines(world).values()
    assert (line["cpu_hours"], line["lost_cpu_hours"], line["attempts"]) == (4 + 1 + 2, 1.0, 3)
    assert (line["succeeded"], line["failed"], line["stopped"], line["running"]) == (1, 1, 0, 1)
    assert (line["started"], line["wait_longest_s"]) == (3, H)
    assert (line["wait_mean_s"], line["wait_median_s"]) == (H / 3, 0)
    by_job = lines(world, "job")
    assert {name: one["cpu_hours"] for name, one in by_job.items()} == {"first": 4, "third": 2, "second": 1}
    assert by_job["second"]["wait_median_s"] == H


def test_a_time_cuts_what_runs_beyond_its_edges(world: World) -> None:
    began = world.elapsed_s
    submit(world, "long", 2)
    world.sleep(4 * H)
    end(world, "long")
    assert lines(world, since=began + H, until=began + 3 * H)["root"]["cpu_hours"] == 4
    cut = lines(world, since=began + H, until=began + 3 * H)["root"]
    assert (cut["succeeded"], cut["started"], cut["wait_mean_s"]) == (0, 0, None)
    assert lines(world, since=began - H, until=began) == {}
    assert lines(world, since=began + 4 * H, until=began + 5 * H)["root"]["succeeded"] == 1
    assert lines(world, since=began + 4 * H, until=began + 5 * H)["root"]["cpu_hours"] == 0


def test_attempts_before_the_last_are_lost_hours(world: World) -> None:
    submit(world, "tried", 1, max_retries=1, retry_on=("ExitCode",), backoff_s=0.0)
    world.sleep(H)
    end(world, "tried", code=1)
    world.turn()
    world.sleep(2 * H)
    end(world, "tried")
    (line,) = lines(world).values()
    assert (line["cpu_hours"], line["lost_cpu_hours"], line["attempts"]) == (3, 1, 2)
    assert (line["started"], line["succeeded"], line["failed"]) == (1, 1, 0)
    jobs.delete(world.store, "tried")
    world.turn()
    (line,) = lines(world).values()
    assert (line["cpu_hours"], line["lost_cpu_hours"], line["attempts"]) == (3, 1, 0)


def test_what_was_pruned_counts_by_days(world: World) -> None:
    """Each day has its part, and adjoining times add up to the whole."""
    noon = 10 * DAY + 12 * H
    world.sleep(noon - world.elapsed_s)
    submit(world, "night", 2)
    world.sleep(DAY + 6 * H)
    end(world, "night")
    submit(world, "evening", 1)
    world.sleep(H)
    end(world, "evening")
    world.sleep(120)
    whole = lines(world)["root"]["cpu_hours"]
    assert whole == 61
    jobs.prune(world.store, 0)
    assert lines(world)["root"]["cpu_hours"] == whole
    days = [lines(world, since=d * DAY, until=(d + 1) * DAY) for d in (9, 10, 11, 12)]
    assert [day.get("root", {}).get("cpu_hours", 0) for day in days] == [0, 24, 37, 0]
    assert lines(world, "cluster")["kPrimaryClusterID"]["cpu_hours"] == whole
    assert lines(world, "job") == {}


def test_who_has_jobs_in_a_private_queue_is_not_reported_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ana", "bob"):
        monkeypatch.setattr(node_ops, "author", lambda *_, name=name: name)
        submit(world, f"of-{name}", 1)
    world.sleep(H)
    end(world, "of-ana")
    world.sleep(2)
    assert lines(world).keys() == {"ana", "bob"}
    clusters.update(world.store, "primary", ClusterChange(private_queue=True))
    world.store.identity = Identity(20_001, "ana")
    try:
        assert lines(world).keys() == {"ana"}
        assert lines(world, "job").keys() == {"of-ana"}
        assert lines(world, "cluster")["kPrimaryClusterID"]["attempts"] == 2
        world.store.identity = Identity(0, "root", is_admin=True)
        assert lines(world).keys() == {"ana", "bob"}
    finally:
        world.store.identity = None


def test_times_that_make_no_sense_are_refused(world: World) -> None:
    with pytest.raises(BadSpec, match="since is not before until"):
        report.report(world.store, since="1h", until="2h")
    with pytest.raises(BadSpec, match="is not a time"):
        report.report(world.store, since="soon")
