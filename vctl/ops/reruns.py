"""Submitting a job once more: as a new job, or in place, as the next attempts of what did not succeed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl import ops
from vctl.core import jobs as jb
from vctl.core.values import replace
from vctl.engine.changes import JobsRerun, Members
from vctl.errors import BadSpec, Conflict, param
from vctl.ops import arrays, jobs, nodes, rights, submitting
from vctl.ops.job_edits import all_to_change
from vctl.spec.fields import refuse
from vctl.store import arrays as arrays_table
from vctl.store import jobs as table
from vctl.store import observed, rows
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm
    from vctl.spec.job_request import JobRequest
    from vctl.spec.overrides import Overrides

_TIES = {"terminal": "its terminal", "stdin": "its standard input", "hold": "its allocation"}
_FIXED = {
    "array": "the members keep their indices",
    "submission_id": "what failed runs again under its own id",
}
"""What cannot be changed of a job that runs again in place, and why."""
_ALIKE = (
    "command_id", "name", "priority", "metadata", "time_limit_s", "grace_s", "parent_cluster_id", "shares_parent",
    "per_node", "user", "uid", "submitted_at", "submitted_by",
)  # fmt: skip
"""The columns in which members of an array are equal that have one request."""


def rerun(
    store: Store, ref: str | int, changes: Overrides[JobRequest] | None = None, *, failed: bool = False
) -> JobForm:
    """Queue a job, or all of an array, again, with ``changes``. One member of an array sees the index that it had.

    ``failed``: in place, only what did not succeed: a job, or those members of an array. Raises Conflict if that is
    nothing.
    """
    if failed:
        return _in_place(store, ref, changes)
    with store.snapshot():
        array = arrays.named(store, ref)
        job_id = arrays_table.first(store, array) if array is not None else jobs.resolve(store, ref)
        row = table.get(store, job_id)
        assert row is not None
        rights.check_job(store, row, "run")
        request = _changed(_request(store, row, array), changes)
    return submitting.submit(store, request, environment=_around(request))


def _request(store: Store, row: Row, array: Row | None) -> JobRequest:
    """The request of a job, or of an array. Raises BadSpec for a job that cannot run without its submitter."""
    launch = table.launch(store, row["job_id"])
    assert launch is not None
    if (relay := rows.loads(launch["options"]).get("relay")) is not None and relay[0] != "label":
        raise BadSpec(
            f"job {row['submission_id']} depended on the program that submitted it: {_TIES[relay[0]]}",
            fix="run that program again",
        )
    return submitting.request_of(row, launch, array)


def _changed(request: JobRequest, changes: Overrides[JobRequest] | None) -> JobRequest:
    if changes is None or not changes.values:
        return request
    if changes.values.get("clean_env"):
        request = replace(request, env={name: request.env[name] for name in ("PATH",) if name in request.env})
    request = changes.of(request)
    return replace(request, clean_env=True, metadata={**request.metadata, **request.labels}, labels={})


def _around(request: JobRequest) -> Mapping[str, str]:
    return {"PATH": request.env.get("PATH", os.defpath)}


# ---- in place ----


def _in_place(store: Store, ref: str | int, changes: Overrides[JobRequest] | None) -> JobForm:
    for name in (name for name in changes.values if name in _FIXED) if changes is not None else ():
        raise refuse(
            param(name), f"it cannot be changed with {param('failed')}: {_FIXED[name]}", "leave it out"
        )
    nodes.join(store)
    with store.transaction():
        _, each, members = all_to_change(store, ref)
        found = [row for row in each if row["status"] in jb.NOT_SUCCEEDED]
        if not found:
            raise _nothing_failed(store, ref)
        for row in found:
            jobs.refuse_while_used(store, (row["job_id"], row["job_id"] + row["members"] - 1), "run it again")
        alike: dict[tuple[object, ...], list[Row]] = {}
        for row in found:
            alike.setdefault(tuple(row[name] for name in _ALIKE), []).append(row)
        for some in alike.values():
            _emit(store, members, some, changes)
        return jobs.get_job(store, ref)


def _nothing_failed(store: Store, ref: str | int) -> Conflict:
    form: Mapping[str, Any] = jobs.get_job(store, ref)
    name, about = form["submission_id"], form.get("array")
    if about is None:
        return Conflict(
            f"job {name} is {form['status']}: nothing of it has failed",
            fix=f"vctl job rerun {name} submits it again under a new id",
            details={"status": form["status"]},
        )
    states = ", ".join(f"{count} {state}" for state, count in about["states"].items())
    return Conflict(
        f"no member of {name} has failed: {states}",
        fix=f"vctl job rerun {name} submits all of it again under a new id",
        details={"states": about["states"]},
    )


def _emit(store: Store, members: Members, some: Sequence[Row], changes: Overrides[JobRequest] | None) -> None:
    """Queue jobs with one request again."""
    first = table.get(store, some[0]["job_id"])
    assert first is not None
    if changes is not None and not rights.COMMAND_FIELDS.isdisjoint(changes.values):
        rights.check_own(store, first, "run something else in")
    array = None if first["array_id"] is None else arrays_table.get(store, first["array_id"])
    request = replace(_changed(_request(store, first, array), changes), array=None)
    preparation, around = submitting.Preparation(store), _around(request)
    wanted = preparation.of(request, around)
    job, details, launch = preparation.columns(request, wanted, around)
    after: tuple[tuple[str, str], ...] = ()
    lost: list[str] = []
    if request.after:
        awaited = submitting.resolved(store, request.after)
        ops.dependencies.refuse_circle(store, [row["submission_id"] for row in some], awaited)
        after, lost = ops.dependencies.unmet(store, awaited)
    if job.parent_id != first["parent_cluster_id"]:
        submitting.open_cluster(store, job.parent_id)
    at_once = None if array is None else array["at_once"]
    job = replace(
        submitting.timed(job, first["job_id"], store.clock()), submission_id=first["submission_id"],
        array_id=first["array_id"], user=first["user"], submitted_at_ns=first["submitted_at"], waits_for=len(after),
        closed=at_once is not None,
    )  # fmt: skip
    store.emit(JobsRerun(
        members, job, replace(details, submitted_by=first["submitted_by"], uid=first["uid"]),
        tuple(_row(row) for row in some), at_once, after, launch,
    ))  # fmt: skip
    if lost:
        ops.dependencies.settle(store, lost)
    if wanted.judged_at is not None:
        observed.set_feasible(store, job.parent_id, wanted.shape, wanted.judged_at)


def _row(row: Row) -> tuple[int, str, int, int, int]:
    return row["job_id"], row["submission_id"], row["attempt"], row["members"], row["step"]
