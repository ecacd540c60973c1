"""Change a job that is not over: hold it, release it, edit its priority, name or time limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vctl import spec
from vctl.core import jobs as jb
from vctl.core.spans import spans_of
from vctl.engine.changes import JobsEdited, JobsHeld, Members
from vctl.errors import BadSpec, Conflict, param
from vctl.ops import arrays, rights
from vctl.ops.jobs import get_job, resolve
from vctl.store import arrays as arrays_table
from vctl.store import jobs as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm


EDITABLE = {jb.PENDING: ("priority", "name", "time_limit_s"), jb.RUNNING: ("time_limit_s",)}
"""The editable fields of a job by its status; a finished job has none."""
_EDITS = f"give {param('priority')}=N, {param('name')}=TEXT or {param('time_limit')}=TIME"


def hold(store: Store, ref: str | int) -> JobForm:
    """Keep a pending job, or the pending members of an array, from starting until it is released."""
    return _put_on_hold(store, ref, held=True)


def release(store: Store, ref: str | int) -> JobForm:
    """Let a held job go back to its place in the queue; a job that is not held stays as it is."""
    return _put_on_hold(store, ref, held=False)


def _put_on_hold(store: Store, ref: str | int, *, held: bool) -> JobForm:
    with store.transaction():
        array, rows = _rows(store, ref)
        pending = [row for row in rows if row["status"] == jb.PENDING]
        if array is not None:  # members that are being started wait no more
            pending = [row for row in pending if row["job_id"] not in store.being_started] or pending
        if not pending:
            name, status = rows[0]["submission_id"], rows[0]["status"]
            done = "put on hold" if held else "released"
            raise Conflict(
                f"job {name} is {status}, and only a pending job can be {done}",
                fix=f"vctl job stop {name}" if status == jb.RUNNING else _submit_again(name),
                details={"status": status},
            )
        if spans := spans_of(row["job_id"] for row in pending if bool(row["held"]) != held):
            array_id = rows[0]["array_id"]
            is_limited = array_id is not None and arrays_table.at_once(store, array_id) is not None
            # in an array with a limit, another member may start in its place
            store.emit(JobsHeld(_members(array, rows[0]), spans, held, is_limited))
        return get_job(store, ref)


def edit(store: Store, ref: str | int, changes: Mapping[str, object]) -> JobForm:
    """Change priority, name or time limit of a pending job, the time limit (None: no limit) of a running one."""
    check(changes)
    with store.transaction():
        array, rows = _rows(store, ref)
        if array is not None:
            rows = [row for row in rows if row["status"] not in jb.FINAL] or rows[:1]
        values = {name: (value or None) if name == "name" else value for name, value in changes.items()}
        for row in rows:
            refuse_fixed_fields(row, changes)
        spans = spans_of(row["job_id"] for row in rows)
        store.emit(JobsEdited(_members(array, rows[0]), spans, values))
        return get_job(store, ref)


def _members(array: Row | None, row: Row) -> Members:
    if array is None:
        return Members(row["submission_id"], row["job_id"], row["job_id"], row["parent_cluster_id"])
    return Members(array["array_id"], array["first_job_id"], array["last_job_id"], is_array=True)


def _rows(store: Store, ref: str | int) -> tuple[Row | None, list[Row]]:
    """The array of this id and its members; else None and the one job of this id."""
    array = arrays.named(store, ref)
    if array is not None:
        rights.check_array(store, array)
        return array, arrays_table.members(store, array)
    row = table.get(store, resolve(store, ref))
    assert row is not None
    rights.check_job(store, row)
    arrays.give_rows(store, [row["job_id"]])
    return None, [row]


def check(changes: Mapping[str, object]) -> None:
    """Refuse an empty edit and values that no job can have; the verb has checked types and ranges."""
    from vctl.spec.launch import check_name

    if not changes:
        raise BadSpec("nothing is to be changed", fix=_EDITS)
    for name, value in changes.items():
        if value is None and name != "time_limit_s":
            raise BadSpec(f"{_spelled(name)}: cannot be changed to {value!r}", fix=_EDITS)
        if name == "name":
            check_name(str(value))
        if name == "time_limit_s" and value == 0:
            raise spec.fields.refuse(
                param("time_limit"), "the job would end at once", "write at least 1s, or none"
            )


def refuse_fixed_fields(row: Row, changes: Mapping[str, object]) -> None:
    """Raise Conflict for a field that cannot be edited in the present status of the job."""
    allowed = EDITABLE.get(row["status"], ())
    if not (fixed := [name for name in changes if name not in allowed]):
        return
    from vctl.spec.fields import show

    given = ", ".join(f"{_spelled(name)}={show(changes[name])}" for name in fixed)
    fix = f"of a {row['status'].lower()} job, {' and '.join(map(_spelled, allowed))} may be changed"
    raise Conflict(
        f"job {row['submission_id']} is {row['status']}: {given} cannot be set any more",
        fix=fix if allowed else _submit_again(row["submission_id"]),
        details={"status": row["status"], "allowed": list(allowed)},
    )


def _spelled(field: str) -> str:
    """A field as it is called in messages: a number of seconds is written as a duration."""
    return param(field.removesuffix("_s"))


def _submit_again(name: str) -> str:
    return f"`vctl job rerun {name}` submits it again"
