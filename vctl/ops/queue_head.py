"""The first waiting jobs, with positions and reasons: the head of the queue of ``vctl status``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from vctl.core.jobs import PENDING
from vctl.ops import expected
from vctl.ops.positions import head as head_of
from vctl.ops.positions import position
from vctl.ops.reasons import Reasons
from vctl.simulate.forecast import UNREAD
from vctl.store import job_views
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import ExpectedForm
    from vctl.spec.reports import ClusterLine, WaitingLine

HEAD = 5
"""The most jobs where nobody asks for more."""


def head(
    store: Store, jobs: Mapping[str, Mapping[str, int]], lines: Sequence[ClusterLine], most: int
) -> list[WaitingLine]:
    """The first waiting jobs of several clusters by priority, each with its position in its own queue."""
    heads = [
        head_of(store, cluster_id, most)
        for cluster_id in (line["cluster_id"] for line in lines)
        if jobs.get(cluster_id, {}).get("pending")
    ]
    first = merge(*heads, key=lambda one: (-one[0]["priority"], one[0]["job_id"]))  # each keeps its own order
    reasons = Reasons(store)
    return _lines(store, [*islice(first, most)], reasons)


def within(store: Store, where: str, values: Sequence[object], most: int) -> list[WaitingLine]:
    """The newest waiting jobs of a job's own cluster, by a condition on ``jobs j``."""
    found = job_views.matching(store, f"{where} AND j.status = ?", [*values, PENDING], most)
    reasons = Reasons(store)
    return _lines(store, [(row, row["members"], position(store, row)) for row in found], reasons)


def _lines(store: Store, found: Sequence[tuple[Row, int, int | None]], reasons: Reasons) -> list[WaitingLine]:
    starts = expected.of(
        store, [row["job_id"] for row, *_ in found], {row["parent_cluster_id"] for row, *_ in found}
    )
    return [
        _waiting(row, members, place, reasons, expected.form(starts.get(row["job_id"], UNREAD)))
        for row, members, place in found
    ]


def _waiting(row: Row, members: int, place: int | None, reasons: Reasons, start: ExpectedForm) -> WaitingLine:
    reason, message = reasons.of(row)
    return {
        "job_id": row["job_id"],
        "submission_id": row["submission_id"],
        "name": row["name"],
        "user": row["user"],
        "priority": row["priority"],
        "parent_cluster_id": row["parent_cluster_id"],
        "state_reason": reason,
        "message": message,
        "queue_position": place,
        "members": members,
        **start,
    }
