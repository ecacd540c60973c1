"""Changing a job that is not over: hold it, release it, edit what may still change."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core import jobs as jb
from vctl.errors import BadSpec, Conflict
from vctl.ops import forms, gates
from vctl.ops.jobs import get_job, resolve
from vctl.store import gating
from vctl.store import jobs as table
from vctl.store.store import Row, Store

EDITABLE = {
    jb.PENDING: ("priority", "name", "time_limit_s"),
    jb.RUNNING: ("time_limit_s",),
}
"""What may be changed of a job in a state; of one that is over, nothing."""
OPTIONS = {"priority": "--priority", "name": "--name", "time_limit_s": "--time-limit"}


def hold(store: Store, ref: str | int) -> forms.Form:
    """Keep a pending job from starting until it is released."""
    return _put_on_hold(store, ref, held=True)


def release(store: Store, ref: str | int) -> forms.Form:
    """Let a held job go back to its place in the queue; nothing happens when it is not held."""
    return _put_on_hold(store, ref, held=False)


def _put_on_hold(store: Store, ref: str | int, *, held: bool) -> forms.Form:
    word = "hold" if held else "release"
    with store.transaction():
        row = _row(store, ref)
        if row["status"] != jb.PENDING:
            raise Conflict(
                f"job {row['submission_id']} is {row['status']}, and only a pending job can be put on hold",
                fix=f"vctl job stop {row['submission_id']}"
                if row["status"] == jb.RUNNING
                else "submit it again",
                details={"status": row["status"], "wanted": word},
            )
        if bool(row["held"]) != held:
            gating.set_held(store, row["job_id"], held=held)
            gates.refresh(store, row["job_id"])
            table.tell(store, row, "job.held" if held else "job.released")
    return get_job(store, int(row["job_id"]))


def edit(store: Store, ref: str | int, changes: Mapping[str, object]) -> forms.Form:
    """Change priority, name or time limit of a pending job, the time limit (None: no limit) of a running one."""
    check(changes)
    with store.transaction():
        row = _row(store, ref)
        refuse_what_is_fixed(row, changes)
        values = {name: (value or None) if name == "name" else value for name, value in changes.items()}
        gating.change(store, row["job_id"], values)
        table.tell(store, row, "job.edited", values)
    return get_job(store, int(row["job_id"]))


def check(changes: Mapping[str, object]) -> None:
    """Refuse values that no job can have."""
    from vctl.spec.job_request import LEAST_PRIORITY, MOST_PRIORITY
    from vctl.spec.launch import check_name, check_range, check_seconds

    if not changes:
        raise BadSpec("nothing is to be changed", fix=f"give one of {', '.join(OPTIONS.values())}")
    for name, value in changes.items():
        if name == "priority" and isinstance(value, int):
            check_range(value, "priority", LEAST_PRIORITY, MOST_PRIORITY)
        elif name == "name" and isinstance(value, str):
            check_name(value)
        elif name == "time_limit_s" and (value is None or isinstance(value, (int, float))):
            check_seconds(value, "time_limit")
            if value == 0:
                raise BadSpec("time_limit: the job would end at once", fix="write at least 1s, or none")
        else:
            raise BadSpec(
                f"{name}: cannot be changed to {value!r}", fix=f"one of {', '.join(OPTIONS.values())}"
            )


def refuse_what_is_fixed(row: Row, changes: Mapping[str, object]) -> None:
    """Raises Conflict, naming what may be changed in the job's state."""
    allowed = EDITABLE.get(row["status"], ())
    fixed = [OPTIONS[name] for name in changes if name not in allowed]
    if not fixed:
        return
    fix = (
        f"of a {row['status'].lower()} job, {' and '.join(OPTIONS[name] for name in allowed)} may be changed"
    )
    raise Conflict(
        f"job {row['submission_id']} is {row['status']}: {', '.join(fixed)} cannot be changed any more",
        fix=fix if allowed else "submit it again",
        details={"status": row["status"], "allowed": list(allowed)},
    )


def _row(store: Store, ref: str | int) -> Row:
    row = table.get(store, resolve(store, ref))
    assert row is not None
    return row
