"""The subjects of which each point fails once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.faults.submit import Submit
from tests.faults.supervised import Supervised
from tests.faults.turns import Turns


class Subject(Protocol):
    """Something that is played again and again, each time with another point that fails."""

    def counted(self, kind: str) -> list[str]:
        """The points of a kind."""

    def fails(self, kind: str, at: int, turn: int) -> list[str]:
        """What does not hold when the point of a number fails. ``turn``: with which of its errors."""


SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "submit": Submit,
    "first-submit": partial(Submit, first=True),
    "turns": Turns,
    "cold-turns": partial(Turns, cold=True),
    "supervisor": Supervised,
    "cold-submit": partial(Submit, cold=True),
}
