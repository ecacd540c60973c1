"""What fair shares remember outlives the scheduler, also when it is killed."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import Life, cpu
from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.daemon import usage_checkpoint
from vctl.ops import clusters as cluster_ops
from vctl.ops import nodes as node_ops
from vctl.store import usage

pytestmark = spec("8.orders")

HOUR_NS = 3600 * 10**9


def used(life: Life) -> float:
    """What the only user is remembered for, in CPUs."""
    scheduler = life.scheduler or life.start()
    assert scheduler.state is not None
    found = [use for member, use in scheduler.state.usage.past.items() if member[:2] == (PRIMARY, "")]
    return sum(use.get("CPU", 0.0) for use in found) / 10_000


@pytest.fixture
def hour(life: Life, monkeypatch: pytest.MonkeyPatch) -> Life:
    """A job has held four CPUs for an hour, which is one half-life; the memory is written at every turn."""
    monkeypatch.setattr(usage_checkpoint, "EVERY_NS", 0)
    life.nodes(1, "t", 4)
    cluster_ops.update(life.store, "primary", queue={"order": "fair", "half_life_s": 3600})
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
    cluster_ops.update(life.store, "primary", queue={"order": "fair"})
    for user, name in (("ann", "first"), ("ann", "second"), ("bob", "third")):
        monkeypatch.setattr(node_ops, "author", lambda user=user: user)
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
