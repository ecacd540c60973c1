"""The part of the journal that an open transaction holds: the head, and entries that are not written yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.clusters import PRIMARY
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

_OF_JOBS = "##"
"""Stands between the cluster to which a job was submitted and the job's id in the id of the job's own cluster."""
CLUSTER = (
    f"CASE place WHEN 0 THEN '{PRIMARY}' WHEN 1 THEN '{PRIMARY}{_OF_JOBS}' || object_id"
    f" ELSE iif(substr(place, -2) = '{_OF_JOBS}', place || object_id, place) END"
)
"""SQL for the cluster of an event, from ``place_of``."""


def place_of(cluster_id: str | None, object_id: str) -> str | int | None:
    """The cluster of an event without what its object says already: most events are of jobs in their own clusters."""
    if cluster_id is None or cluster_id == PRIMARY:
        return None if cluster_id is None else 0
    if not cluster_id.endswith(_OF_JOBS + object_id):
        return cluster_id
    parent = cluster_id[: len(cluster_id) - len(object_id)]
    return 1 if parent == PRIMARY + _OF_JOBS else parent
