"""Work that can be interrupted: a generator that yields, wherever it may pause, the number of steps that come next."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Answer = TypeVar("Answer")
Work = Generator[int, None, Answer]
"""Yields the number of steps before the next pause, and returns the answer."""


def finished(work: Work[Answer]) -> Answer:
    """The answer of the work, done without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
