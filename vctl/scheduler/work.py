"""Work in steps: a generator yields, at each possible pause, the steps up to the next one; a budget counts them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from vctl.core.jobs import PendingJob
from vctl.core.values import value

PASS, COUNT, SEARCH, PIECES = 1, 4, 15, 4
"""The steps of a look at a job, of counting and of searching its place, and the pieces of a gang that make one more."""
HEADS = 16
"""The heads that are lined up, or passed, in one step."""
START, VNODE, GROWTH = 15, 4, 8
"""The steps of writing and carrying out a start, of each virtual node of it, and of each one that grows for it."""

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


@value(slots=True)
class Budget:
    """The steps that are left of a piece of work, about 20 µs each; None: as many as it takes.

    Steps are counted, not timed, so that the same state gives the same piece on every machine.
    """

    remaining: int | None = None
    enough: int | None = None
    """With so many left, a round that has a start to commit ends; None: it goes on."""

    def spend(self, steps: int) -> None:
        """Note that these steps were done."""
        if self.remaining is not None:
            self.remaining -= steps

    @property
    def is_spent(self) -> bool:
        """Whether the piece ends here."""
        return self.remaining is not None and self.remaining <= 0

    @property
    def is_enough(self) -> bool:
        """Whether the piece ends here if anything came of it."""
        return self.remaining is not None and self.enough is not None and self.remaining <= self.enough


def search_steps(job: PendingJob) -> int:
    """The steps of searching a place for a job."""
    return SEARCH + len(job.spec.fixed) // PIECES
