"""Amounts and times in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tests.specification import spec
from vctl.core.wording import timestamp

pytestmark = spec("18.budgets")

DAY_NS = 86_400 * 10**9


def expected(ns: int) -> str:
    """The timestamp by the library, which commands do not import."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.mark.parametrize(
    "year", [1, 1600, 1677, 1899, 1900, 1970, 1999, 2000, 2024, 2026, 2100, 2262, 2400, 9996]
)
def test_every_day_of_a_year_and_of_the_next_has_its_date(year: int) -> None:
    first = (datetime(year, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
    for day in range(first, first + 800):
        for ns in (day * DAY_NS, (day + 1) * DAY_NS - 1):
            assert timestamp(ns) == expected(ns)


def test_any_time_of_the_tables_is_written_as_the_library_writes_it() -> None:
    choose = Random(7)
    for ns in (
        0,
        -1,
        1,
        999,
        1000,
        -1000,
        2**63 - 1,
        -(2**63),
        *(choose.randint(-(2**63), 2**63 - 1) for _ in range(3000)),
    ):
        assert timestamp(ns) == expected(ns)
