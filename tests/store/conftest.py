"""A real state directory with a clock that only moves when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vctl.store.store import Store


class Clock:
    """Nanoseconds, set by hand."""

    def __init__(self, now: int = 1_700_000_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        opened.clock = clock
        yield opened
