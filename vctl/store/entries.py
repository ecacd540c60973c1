"""What an open transaction knows of the journal: its head, and entries that are not written yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.values import value

if TYPE_CHECKING:
    from vctl.engine.changes import Change


@value(slots=True)
class Head:
    """The one row that every transaction checks and moves on, with the number of the newest event."""

    seq: int
    term: int
    format: int
    revision: int
    capacity: int
    lease: int | None = None
    """The number of the newest lease, once it was asked for."""
    read: tuple[int, int, int] = (0, 0, 0)
    """The fields that a transaction can change, as they were read."""


@value(frozen=True, slots=True)
class Event:
    """A row of the journal that tells of a change which its writer made itself."""

    at: int
    kind: str
    object: str
    object_id: str
    cluster_id: str | None
    job_id: int | None
    data: str
    change: str | None = None


@value(frozen=True, slots=True)
class Emitted:
    """A change, and when it was emitted."""

    at: int
    change: Change


Entry = Event | Emitted
