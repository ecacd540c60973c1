"""The documented JSON form of every object, as ``-o json``, HTTP and the Python client show it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from vctl.core import jobs as jb
from vctl.core import wording
from vctl.core.jobs import NON_ZERO_EXIT, cluster_of
from vctl.core.listed import Alike, Listed, Values, mapped
from vctl.core.tasks import CANCELLED, FAILED, FINISHED, OWNER_ENDED
from vctl.errors import param
from vctl.ops.logs import log_path
from vctl.store import filters
from vctl.store.filters import Filter, passes
from vctl.store.rows import loads
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import EventForm, ExpectedForm, JobForm

Form = dict[str, Any]


@overload
def timestamp(ns: int) -> str: ...
@overload
def timestamp(ns: None) -> None: ...
def timestamp(ns: int | None) -> str | None:
    """Nanoseconds since the epoch as ISO 8601 UTC of fixed width, microseconds."""
    return None if ns is None else wording.timestamp(ns)


moment = filters.moment
amounts = wording.in_units


JOB = (
    "job_id", "submission_id", "name", "exit_code", "shares_parent", "priority", "entrypoint", "submitted_at",
    "started_at", "ended_at", "resources", "node_ids", "time_limit_s", "metadata", "array_id", "array_index",
    "status", "parent_cluster_id", "attempt", "user",
)  # fmt: skip
"""The columns of ``jobs`` that the JSON form of a job needs."""


NEW: ExpectedForm = {
    "expected_start": None,
    "expected_start_basis": "unknown: the scheduler has not considered it yet",
}
"""The expected start of a job that was just submitted."""
NONE: ExpectedForm = {"expected_start": None, "expected_start_basis": None}
Shown = tuple[str | None, str | None]
"""The reason token and the message."""


def job(
    store: Store, row: Row, position: int | None, shown: Shown, expected: ExpectedForm | None = None
) -> JobForm:
    """The JSON form of a job, with its position in the queue, its reason and its expected start."""
    form = jobs(store, {name: (row[name],) for name in JOB}, (position,), (shown,))[0]
    return form if expected is None else {**form, **expected}


def jobs(
    store: Store,
    columns: Mapping[str, Values],
    positions: Values,
    shown: Values,
    expected: tuple[Values, Values] | None = None,
) -> Listed[JobForm]:
    """The JSON forms of jobs, from the columns ``JOB``, their positions, what is ``Shown``, and their starts."""
    starts, bases = expected or (Alike(None, len(shown)),) * 2
    submitted, started, ended = columns["submitted_at"], columns["started_at"], columns["ended_at"]
    now, home, parents = store.clock(), os.fspath(store.home), columns["parent_cluster_id"]

    def waited(sent: int, start: int | None, end: int | None) -> float:
        return ((end or now) - sent if start is None else start - sent) / 1e9

    def ran(start: int | None, end: int | None) -> float | None:
        return None if start is None else ((end or now) - start) / 1e9

    return Listed(
        len(shown),
        {
            "job_id": columns["job_id"],
            "submission_id": columns["submission_id"],
            "name": columns["name"],
            "status": columns["status"],
            "state_reason": mapped(lambda pair: pair[0], shown),
            "message": mapped(lambda pair: pair[1], shown),
            "exit_code": columns["exit_code"],
            "cluster_id": lambda: list(
                map(cluster_of, parents, columns["submission_id"], columns["shares_parent"])
            ),
            "parent_cluster_id": parents,
            "priority": columns["priority"],
            "queue_position": positions,
            "expected_start": starts,
            "expected_start_basis": bases,
            "entrypoint": columns["entrypoint"],
            "attempt": columns["attempt"],
            "user": columns["user"],
            "submitted_at": mapped(timestamp, submitted),
            "started_at": mapped(timestamp, started),
            "ended_at": mapped(timestamp, ended),
            "resources": mapped(lambda text: amounts(loads(text)) if text else {}, columns["resources"]),
            "node_ids": mapped(lambda text: loads(text) if text else [], columns["node_ids"]),
            "wait_s": lambda: mapped(waited, submitted, started, ended),
            "run_s": lambda: mapped(ran, started, ended),
            "time_limit_s": columns["time_limit_s"],
            "log_path": lambda: [log_path(home, submission_id) for submission_id in columns["submission_id"]],
            "metadata": mapped(loads, columns["metadata"]),
            "array_id": columns["array_id"],
            "array_index": columns["array_index"],
        },
    )


def exit_code(ended: Row | Mapping[str, Any] | None) -> int:
    """The exit code of a command that waited for a job or task: that of the job or task, if it has one.

    1 if it was deleted (None).
    """
    if ended is None:
        return 1
    if ended["exit_code"] is not None:
        return int(ended["exit_code"])
    state = ended["status"] if "status" in ended.keys() else ended["state"]  # noqa: SIM118  # a Row is no map
    if state == jb.STOPPED or ended["state_reason"] in (CANCELLED, OWNER_ENDED):
        return jb.EXIT_STOPPED
    if state in (jb.SUCCEEDED, FINISHED):
        return 0
    return jb.EXIT_NEVER_RAN if ended["started_at"] is None else 1


def failure_of(task: Mapping[str, Any]) -> str | None:
    """One line about a failed task whose output does not tell why it failed; None for any other task."""
    if task["state"] != FAILED or task["state_reason"] == NON_ZERO_EXIT:
        return None
    return f"Task {task['task_id']} FAILED: {task['state_reason']}: {task['message']}"


def event(row: Row) -> EventForm:
    """An event in its JSON form."""
    return {
        "seq": row["seq"],
        "at": timestamp(row["at"]),
        "kind": row["kind"],
        "object": row["object"],
        "object_id": row["object_id"],
        "cluster_id": row["cluster_id"],
        "job_id": row["job_id"],
        "data": loads(row["data"]),
    }


def matches(form: Mapping[str, Any], filters: list[tuple[str, str, str]]) -> bool:
    """Whether an object passes all filters ``(key, mark, value)``; case is ignored.

    A filter by state may name several states: ``status=FAILED,STOPPED``.
    """
    return all(passes(key, form.get(key), mark, expected) for key, mark, expected in filters)


F = TypeVar("F", bound=Mapping[str, Any])
_OF_CLUSTERS = ("cluster_id", "parent_cluster_id", "parent_id", "vnode_id", "borrower_id", "lender_id")
"""Fields with the id of a cluster, or of a virtual node, which begins with one: ``primary##train/0``."""


def parse_filters(given: Iterable[str], keys: Sequence[str]) -> list[Filter]:
    """Read filters; the refusal of an unknown key names the nearest known key."""
    from vctl.spec.fields import did_you_mean, refuse
    from vctl.spec.ids import full_cluster_id

    parsed: list[Filter] = []
    for text in given:
        key, mark, value = text.partition("=")
        if mark and key.endswith(("!", ">")):
            key, mark = key[:-1], key[-1] + mark
        key = key.strip()
        if key == "state" and "state" not in keys and "status" in keys:  # of a job; all else has a state
            key = "status"
        if not mark or not key:
            raise refuse(
                param("filter"), f"{text!r} is not a filter", "write key=value, key!=value or key>=value"
            )
        if key not in keys:
            raise refuse(param("filter"), f"unknown key {key!r}", did_you_mean(key, keys))
        value = value.strip()
        if key in _OF_CLUSTERS:  # tables show the alias
            value = full_cluster_id(value)
        parsed.append((key, mark, value))
    return parsed


def fields_of(form: str) -> list[str]:
    """The field names of a form of ``vctl.spec.documents``, such as ``JobForm``."""
    from vctl.spec import documents

    return list(getattr(documents, form).__annotations__)


def choose(items: Sequence[F], filters: Sequence[str], form: str = "") -> list[F]:
    """The items that pass the filters. Keys are the fields of ``form``, else of the first item, else any."""
    if not filters:
        return list(items)
    keys = fields_of(form) if form else list(items[0]) if items else [key_of(text) for text in filters]
    parsed = parse_filters(filters, keys)
    return [item for item in items if matches(item, parsed)]


def key_of(text: str) -> str:
    """The field that a filter compares."""
    return text.partition("=")[0].rstrip("!>").strip()
