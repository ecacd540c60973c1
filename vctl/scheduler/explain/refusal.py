"""The value that a step of the scheduler returns for what it refuses; ``words`` puts it into words."""

from __future__ import annotations

from vctl.core.values import value


@value(frozen=True, slots=True)
class Refusal:
    """A rule that keeps work back: how much was asked of its subject, and how much there is.

    ``subject``: a limit of a queue policy by the name of its setting; then the numbers are jobs that run at a time,
    the refused one included.
    """

    rule: str
    subject: str
    asked: int
    have: int
