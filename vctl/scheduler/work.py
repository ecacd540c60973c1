"""Work that can be put off: a generator that says, wherever it may pause, how many steps come next."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Answer = TypeVar("Answer")
Work = Generator[int, None, Answer]
"""It yields the steps that come next. Its answer comes last."""


def finished(work: Work[Answer]) -> Answer:
    """All of the work at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
