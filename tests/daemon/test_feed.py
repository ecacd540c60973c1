"""What a suspended scheduler has not read when it is pruned is not lost to it (spec 12, 17)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from tests.daemon.conftest import Life
from tests.specification import spec
from vctl.ops import clusters, jobs
from vctl.spec.cluster_change import ClusterChange

pytestmark = spec("17.retention", "17.one-daemon")

MINUTES_10 = 600 * 10**9


def test_events_that_were_pruned_unread_lead_to_a_fresh_load(life: Life) -> None:
    life.nodes(1, "t")
    life.turn()
    scheduler = life.scheduler
    assert scheduler is not None
    assert scheduler.state is not None
    seen, epoch = scheduler.state.seen, scheduler.store.epoch
    life.submit("unread")  # the scheduler is suspended from here on
    life.skew_ns += MINUTES_10
    life.store.clock = life.now
    life.submit("young")
    jobs.prune(life.store, 0)
    assert life.store.value("SELECT min(seq) FROM events") > seen + 1
    life.turn()  # it goes on
    life.until(
        lambda: {job["status"] for job in jobs.list_jobs(life.store, all=True)[0]} <= {"RUNNING", "SUCCEEDED"}
    )
    assert life.scheduler is scheduler
    assert scheduler.store.epoch == epoch


def calls_for_one_change(life: Life, count: int) -> int:
    """Calls of vctl's own functions in the turn that follows a change of one of so many clusters."""
    life.nodes(count + 1, "t")
    for number in range(count):
        life.logical(f"c{number}", {"t": 1}, divisible=True)
    life.logical("last", spec={"flexible_resource_min": {"CPU": 1}}, divisible=True)
    life.turn()
    clusters.update(life.store, "c0", ClusterChange(borrow_limit={"CPU": 10000}))
    clusters.update(life.store, "c1", ClusterChange(replica_sets={}))
    scheduler = life.scheduler
    assert scheduler is not None
    found = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call" and "/vctl/" in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        scheduler.turn()
    finally:
        sys.setprofile(None)
    life.check()
    assert scheduler.state is not None
    assert scheduler.state.ledger.clusters["c0"].borrow_limit == {"CPU": 10000}
    assert not scheduler.state.ledger.members["c1"]
    return found


def test_a_turn_costs_what_changed_and_not_what_there_is(tmp_path: Path) -> None:
    found = []
    for count in (3, 60):
        life = Life(tmp_path / str(count))
        found.append(calls_for_one_change(life, count))
        life.close()
    assert found[1] < found[0] * 1.2, found


def test_only_what_waits_below_a_changed_cluster_is_judged_anew(life: Life) -> None:
    life.nodes(2, "t")
    for name in ("a", "b"):
        life.logical(name, {"t": 1}, divisible=True)
        life.submit(f"too-much-{name}", cluster=name, spec={"flexible_resource_min": {"CPU": 4}})
        life.submit(f"waits-{name}", cluster=name, spec={"flexible_resource_min": {"CPU": 4}})
    life.turn()
    scheduler = life.scheduler
    assert scheduler is not None
    state = scheduler.state
    assert state is not None
    before = {name: state.queues[name].growths for name in ("a", "b")}
    clusters.update(life.store, "a", ClusterChange(borrow_limit={"CPU": 10000}))
    life.turn()
    assert scheduler.state is state  # nothing was read again
    assert state.queues["a"].growths > before["a"]
    assert state.queues["b"].growths == before["b"]
    clusters.update(life.store, "a", ClusterChange(lending_limit={"CPU": 10000}))
    life.turn()
    assert state.queues["b"].growths > before["b"]
