"""What a suspended scheduler has not read when it is pruned is not lost to it (spec 12, 17)."""

from __future__ import annotations

from tests.daemon.conftest import Life
from tests.specification import spec
from vctl.ops import jobs

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
