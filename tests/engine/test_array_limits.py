"""Which members of an array get rows of their own next, and which get the free places."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.values import replace
from vctl.engine import array_limits
from vctl.engine.array_limits import ArrayLimits

pytestmark = spec("8.arrays")

REST = PendingJob(10, "a_18", "p", "s", ClusterSpec(), {}, array_id="a", members=100, step=2)


@pytest.fixture(autouse=True)
def window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_limits, "WINDOW", 4)


def limits(at_once: int | None, *jobs: PendingJob) -> ArrayLimits:
    found = ArrayLimits()
    found.limit("a", at_once)
    for job in jobs:
        found.put(job)
    return found


def own(number: int, **fields: object) -> PendingJob:
    return replace(REST.member(number), **fields)


def test_members_are_numbered_from_the_job_that_stands_for_them() -> None:
    assert (own(12).submission_id, own(12).members, own(12).step) == ("a_22", 1, 1)
    behind = REST.member(13, 97)
    assert (behind.submission_id, behind.members, behind.step) == ("a_24", 97, 2)


def test_rows_are_made_when_fewer_than_half_a_window_are_left() -> None:
    rest = REST.member(13, 97)
    assert limits(None, own(10), own(11), rest).to_unfold() == []
    assert limits(None, own(10), rest).to_unfold() == [(rest, 3)]
    assert limits(None, REST.member(108, 2)).to_unfold() == [(REST.member(108, 2), 2)]


@pytest.mark.parametrize(
    "other",
    [{"held": True}, {"waits_for": 1}, {"attempt": 1}, {"priority": -1}, {"time_limit_ns": 9}],
    ids=str,
)
def test_only_members_like_the_rest_count_as_left(other: dict[str, object]) -> None:
    """Else the rest would wait behind members that are on hold, wait for their next try, or come after it."""
    rest = REST.member(14, 96)
    members = [own(number, **other) for number in range(10, 14)]
    assert limits(None, *members, rest).to_unfold() == [(rest, 4)]
    assert limits(4, *members, rest).to_unfold() == [(rest, 4)]


@pytest.mark.parametrize("gate", [{"held": True}, {"waits_for": 1}], ids=str)
def test_no_rows_are_made_for_what_may_not_start(gate: dict[str, object]) -> None:
    assert limits(None, replace(REST, **gate)).to_unfold() == []


def test_a_free_place_is_for_one_member() -> None:
    found = limits(2, replace(REST, closed=True))
    assert found.due() == {}
    found.put(own(10, closed=True))
    assert found.due() == {"a": [10]}


def test_what_runs_or_is_over_is_not_left() -> None:
    rest = REST.member(12, 98)
    found = limits(None, own(10), own(11), rest)
    assert found.to_unfold() == []
    found.run("a", 10)
    assert found.to_unfold() == [(rest, 3)]
    found.put(own(11))  # the same again
    found.leave("a", 11)
    assert found.to_unfold() == [(rest, 4)]
    found.leave("a", 12)
    assert found.array_limits == {}
    assert found.to_unfold() == []


def test_without_a_limit_a_window_made_by_a_rerun_is_the_one_that_the_tables_give() -> None:
    """The window goes with the last row for several members; those that still run are not asked when it comes back."""
    rest = REST.member(13, 2)
    followed = limits(None, own(10), rest)
    followed.run("a", 10)
    followed.leave("a", 13)
    assert "a" not in followed.array_limits
    followed.limit("a", None)
    followed.put(rest)
    loaded = limits(None, rest)
    loaded.run("a", 10)
    assert followed.array_limits == loaded.array_limits
