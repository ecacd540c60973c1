"""What fair shares remember, and what is reserved, outlives the scheduler, also when it is killed."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import Life, cpu
from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.daemon import checkpoint
from vctl.ops import clusters as cluster_ops
from vctl.ops import job_edits
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.scheduler.reservations import Reservation
from vctl.spec.cluster_change import ClusterChange
from vctl.store import reservations, usage

pytestmark = spec("8.orders")

HOUR_NS = 3600 * 10**9


def used(life: Life) -> float:
    """What the only user is remembered for, in CPUs."""
    scheduler = life.scheduler or life.start()
    assert scheduler.state is not None
    scheduler.state.usage.advance(scheduler.state.ledger, life.now())  # as the next search does
    found = [use for member, use in scheduler.state.usage.past.items() if member[:2] == (PRIMARY, "")]
    return sum(use.get("CPU", 0.0) for use in found) / 10_000


@pytest.fixture
def hour(life: Life, monkeypatch: pytest.MonkeyPatch) -> Life:
    """A job has held four CPUs for an hour, which is one half-life; the memory is written at every turn."""
    monkeypatch.setattr(checkpoint, "EVERY_NS", 0)
    life.nodes(1, "t", 4)
    cluster_ops.update(life.store, "primary", ClusterChange(queue={"order": "fair", "half_life_s": 3600}))
    life.submit("job", entry=cpu(4))
    life.until(lambda: life.job("job")["status"] == "RUNNING")
    life.turn()
    life.skew_ns += HOUR_NS
    life.turn()
    return life


def restart(life: Life, *, orderly: bool) -> None:
    scheduler = life.scheduler
    assert scheduler is not None
    if orderly:
        scheduler.close()
        scheduler.store.close()
        life.scheduler = None
    else:
        life.die()


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
def test_past_use_is_remembered(hour: Life, orderly: bool) -> None:
    assert used(hour) == pytest.approx(2, rel=0.01)  # half of what was held
    restart(hour, orderly=orderly)
    hour.turn()
    assert used(hour) == pytest.approx(2, rel=0.01)


def test_what_runs_while_nobody_rules_counts(hour: Life) -> None:
    restart(hour, orderly=False)
    hour.skew_ns += HOUR_NS
    hour.turn()
    assert used(hour) == pytest.approx(3, rel=0.01)  # half of a half, and half of what is held


def test_what_only_fades_is_not_written_again(hour: Life) -> None:
    hour.end("job")
    hour.turn()
    hour.turn()
    written = [part.at_ns for part in usage.load(hour.store)]
    hour.skew_ns += HOUR_NS
    hour.turn()
    assert [part.at_ns for part in usage.load(hour.store)] == written
    assert used(hour) == pytest.approx(1, rel=0.01)


def lags(life: Life) -> dict[str, float]:
    scheduler = life.scheduler or life.start()
    assert scheduler.state is not None
    return {user: lag for (_, _, user), lag in scheduler.state.usage.lag.items()}


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
def test_what_somebody_got_beyond_the_due_is_remembered(
    life: Life, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """Two users compete, and one of them has the whole cluster: the other one is ahead, also after a restart."""
    life.nodes(1, "t", 4)
    cluster_ops.update(life.store, "primary", ClusterChange(queue={"order": "fair"}))
    for user, name in (("ann", "first"), ("ann", "second"), ("bob", "third")):
        monkeypatch.setattr(node_ops, "author", lambda _store, user=user: user)
        life.submit(name, entry=cpu(4))
    life.until(lambda: life.job("first")["status"] == "RUNNING")
    life.turn()
    restart(life, orderly=orderly)
    life.skew_ns += 60 * 10**9
    life.turn()
    assert lags(life) == {"ann": pytest.approx(0.5, rel=0.1), "bob": pytest.approx(-0.5, rel=0.1)}
    life.end("first")
    life.until(lambda: life.job("third")["status"] == "RUNNING")
    assert life.job("second")["status"] == "PENDING"


@pytest.fixture
def reserved(life: Life) -> Life:
    """A job has a reserved start: the one before it gives back four CPUs within an hour."""
    life.nodes(1, "t", 4)
    cluster_ops.update(
        life.store, "primary", ClusterChange(queue={"order": "priority", "discipline": "backfill"})
    )
    life.submit("runs", entry=cpu(2), time_limit_s=3600)
    life.until(lambda: life.job("runs")["status"] == "RUNNING")
    life.submit("waits", entry=cpu(4))
    life.turn()
    return life


def kept(life: Life) -> dict[int, Reservation]:
    scheduler = life.scheduler or life.start()
    assert scheduler.state is not None
    return scheduler.state.queues[PRIMARY].kept


@spec("8.disciplines", "12.replay")
@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
def test_a_reserved_start_is_remembered(reserved: Life, orderly: bool) -> None:
    """Before the first round of the new scheduler, and with its place; when the job starts it is forgotten."""
    (before,) = kept(reserved).values()
    restart(reserved, orderly=orderly)
    (after,) = kept(reserved).values()
    assert (after, after.placed, after.claims) == (before, before.placed, before.claims)
    reserved.turn()
    reserved.end("runs")
    reserved.until(lambda: reserved.job("waits")["status"] == "RUNNING")
    reserved.turn()
    assert reservations.rows(reserved.store) == []


@spec("8.disciplines", "11.why")
@pytest.mark.parametrize("change", ["policy", "priority", "time limit", "hold", "stop"])
def test_a_reservation_is_void_as_soon_as_a_command_has_changed_what_it_was_for(
    reserved: Life, change: str
) -> None:
    """No scheduler has seen the change yet: neither the next one nor ``why`` takes the reservation over."""
    assert list(reservations.load(reserved.store)[PRIMARY]) == [2]
    restart(reserved, orderly=False)
    match change:
        case "policy":
            cluster_ops.update(reserved.store, "primary", ClusterChange(queue={"order": "fifo"}))
        case "priority":
            job_edits.edit(reserved.store, "waits", {"priority": 5})
        case "time limit":
            job_edits.edit(reserved.store, "waits", {"time_limit_s": 60.0})
        case "hold":
            job_edits.hold(reserved.store, "waits")
        case "stop":
            job_ops.stop(reserved.store, "waits")
    assert reservations.load(reserved.store) == {}


@spec("8.disciplines", "11.why")
def test_a_reservation_that_is_made_again_after_an_edit_is_written_although_it_is_the_same(
    reserved: Life,
) -> None:
    before = reservations.load(reserved.store)
    job_edits.edit(reserved.store, "waits", {"priority": 5})
    assert reservations.load(reserved.store) == {}
    reserved.turn()
    assert reservations.load(reserved.store) == before


@spec("12.odd-rows")
@pytest.mark.parametrize(
    "text", ["x", "[]", "{}", '{"name": "x", "start": "now", "end": null, "placed": {}}']
)
@pytest.mark.parametrize("column", ["own", "shared"])
def test_a_reservation_that_cannot_be_read_is_set_aside(reserved: Life, column: str, text: str) -> None:
    restart(reserved, orderly=False)
    reserved.store.db.execute(f"UPDATE reservations SET {column} = ?", (text,))
    reserved.turn()
    assert [row[0] for row in reserved.store.rows("SELECT source FROM set_aside")] == ["reservations"]
    assert list(kept(reserved)) == [2]  # found anew
