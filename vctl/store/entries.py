"""The part of the journal that an open transaction holds: the head, and entries that are not written yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.values import value

if TYPE_CHECKING:
    from vctl.engine.changes import Change


@value(slots=True)
class Head:
    """The row of ``head``, which every transaction checks and may change, with the newest event's number."""

    seq: int
    term: int
    format: int
    revision: int
    capacity: int
    contents: int
    """A stamp that changes whenever contents are deleted."""
    lease: int | None = None
    """The number of the newest lease; None until a transaction needs it."""
    read: tuple[int, int, int] = (0, 0, 0)
    """Revision, capacity and term as the transaction has read them."""


@value(frozen=True, slots=True)
class Event:
    """A journal entry about rows that its writer has changed in the tables itself."""

    at: int
    kind: str
    object: str
    object_id: str
    cluster_id: str | None
    job_id: int | None
    data: str


@value(frozen=True, slots=True)
class Emitted:
    """A change, and when it was emitted."""

    at: int
    change: Change


Entry = Event | Emitted
