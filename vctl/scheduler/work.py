"""Work that can be paused: a generator that yields, at each possible pause, the steps up to the next one."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Answer = TypeVar("Answer")
Work = Generator[int, None, Answer]
"""Yields the number of steps before the next pause, and returns the answer."""


def finished(work: Work[Answer]) -> Answer:
    """Do the work without a pause, and return its answer."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
