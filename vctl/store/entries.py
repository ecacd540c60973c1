"""Entries of the journal: those of an open transaction, and what the tables keep of each.

``changes`` has every entry until each scheduler has read it; ``events`` has those that people read. Most of them are
of jobs that were submitted, started and ended in their own clusters, so these parts are short there: a number for a
kind, nothing for a cluster that the object names, an exit code for what a job ended with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl.core import jobs as jb
from vctl.core.clusters import PRIMARY
from vctl.core.compact import dumps
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
    data: Mapping[str, Any]


@value(frozen=True, slots=True)
class Emitted:
    """A change, and when it was emitted."""

    at: int
    change: Change


Entry = Event | Emitted
NEWEST = "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'changes'), 0)"
"""SQL for the number of the newest entry."""

_OF_JOBS, _OF_PRIMARY = "##", f"{PRIMARY}##"
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
    if cluster_id == _OF_PRIMARY + object_id:
        return 1
    return cluster_id.removesuffix(object_id) if cluster_id.endswith(_OF_JOBS + object_id) else cluster_id


_COMMON = ("job.submitted", "job.started", "job.ended")
"""The kinds of most events; their numbers here are their codes."""
_CODES = {kind: number for number, kind in enumerate(_COMMON)}
_, _STARTED, _ENDED = _COMMON
_SPACE = "instr(code, ' ')"
_NAMED = f"iif({_SPACE}, substr(code, 1, {_SPACE} - 1), code)"
_NUMBERED = " ".join(f"WHEN {number} THEN '{kind}'" for number, kind in enumerate(_COMMON))
KIND = f"CASE code {_NUMBERED} ELSE {_NAMED} END"
"""SQL for the kind of an event, from ``code_of``."""
OBJECT = (
    f"CASE WHEN code < {len(_COMMON)} THEN 'job' WHEN {_SPACE} THEN substr(code, {_SPACE} + 1)"
    " ELSE substr(code, 1, instr(code, '.') - 1) END"
)
"""SQL for the kind of object that an event is about."""
DATA = (
    'CASE WHEN content IS NULL THEN \'{}\' WHEN content = 0 THEN \'{"status":"SUCCEEDED","exit_code":0}\''
    " WHEN typeof(content) = 'integer' THEN"
    f' \'{{"status":"FAILED","exit_code":\' || content || \',"reason":"{jb.NON_ZERO_EXIT}"}}\''
    " WHEN substr(content, 1, 1) = '{' THEN content"
    ' ELSE \'{"attempt":1,"nodes":["\' || content || \'"]}\' END'
)
"""SQL for the data of an event, from ``content_of``."""


def code_of(kind: str, object_kind: str) -> int | str:
    """The kind of an event, with the kind of its object where the former does not begin with it."""
    if (number := _CODES.get(kind)) is not None:
        return number
    return kind if kind.partition(".")[0] == object_kind else f"{kind} {object_kind}"


def content_of(kind: str, data: Mapping[str, Any]) -> int | str | None:
    """The data of an event: of a usual end the exit code, of a usual start the node, else JSON."""
    if not data:
        return None
    if kind == _ENDED and type(code := data["exit_code"]) is int:
        usual = {"status": jb.FAILED, "exit_code": code, "reason": jb.NON_ZERO_EXIT}
        if data == (usual if code else {"status": jb.SUCCEEDED, "exit_code": 0}):
            return code
    text = dumps(data)
    if kind == _STARTED and len(data["nodes"]) == 1:
        node = str(data["nodes"][0])
        if node[:1] != "{" and text == f'{{"attempt":1,"nodes":["{node}"]}}':
            return node
    return text
