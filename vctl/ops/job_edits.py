"""Change a job that is not over: hold it, release it, edit what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl import ops
from vctl.core import jobs as jb
from vctl.core.resources import DEFAULT_UNITS
from vctl.core.spans import spans_of
from vctl.core.values import fields, replace
from vctl.engine.changes import (
    ArrayLimited,
    JobsEdited,
    JobsHeld,
    JobSpared,
    Launch,
    Members,
    NominationDropped,
)
from vctl.engine.codec import encode
from vctl.errors import BadSpec, Conflict, param
from vctl.ops import arrays, rights, submitting
from vctl.ops.arrays import Pairs
from vctl.ops.jobs import get_job, one_to_change
from vctl.spec.job_request import JobRequest
from vctl.spec.overrides import Overrides
from vctl.spec.params import NOT_GIVEN, Reading, declared, document_of
from vctl.store import arrays as arrays_table
from vctl.store import jobs as table
from vctl.store import observed, preemptions
from vctl.store import rows as rows_
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm
    from vctl.spec.options import Dependency

_WHILE_RUNNING = ("time_limit_s",)
"""The parameters of a running job that may change."""
_JUDGED = ("cluster", "spec", "entry", "per_node", "ray")
"""The fields on which depends where a job can run, and whether it ever can."""
_REQUEST = (
    "command_id", "parent_cluster_id", "shares_parent", "priority", "name", "metadata", "time_limit_s", "grace_s",
    "per_node", "begin_at",
)  # fmt: skip
"""The columns of a job that come from its request: members of an array that agree in them ask for the same."""
_EXAMPLE = f"give for example {param('priority')}=N, {param('num_cpus')}=N or {param('time_limit')}=TIME"


def hold(store: Store, ref: str | int) -> JobForm:
    """Keep a pending job, or the pending members of an array, from starting until it is released."""
    return _put_on_hold(store, ref, held=True)


def release(store: Store, ref: str | int) -> JobForm:
    """Let a held job go back to its place in the queue; a job that is not held stays as it is."""
    return _put_on_hold(store, ref, held=False)


def _put_on_hold(store: Store, ref: str | int, *, held: bool) -> JobForm:
    with store.transaction():
        array, rows, members = all_to_change(store, ref)
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
            store.emit(JobsHeld(members, spans, held, is_limited))
        return get_job(store, ref)


def edit(
    store: Store,
    ref: str | int,
    changes: Mapping[str, object] | Overrides[JobRequest],
    *,
    max_running: int | None = NOT_GIVEN,
) -> JobForm:
    """Let a job, or what waits of an array, ask for something else: judged as a new submit, all of it or nothing.

    ``changes``: values of parameters of a submit, None for its default. Of a running job only the time limit changes.
    ``max_running``: how many members of the array may run at once; None: all.
    """
    if isinstance(changes, Mapping):
        changes = Overrides(declared(JobRequest), Reading(DEFAULT_UNITS, changes), changes)
    if not changes.values and max_running is NOT_GIVEN:
        raise BadSpec("nothing is to be changed", fix=_EXAMPLE)
    with store.transaction():
        awaited = _awaited(store, changes)
        array, rows, members = all_to_change(store, ref)
        if max_running is not NOT_GIVEN:
            _limit(store, array, rows, max_running)
        if changes.values:
            is_longer = "time_limit_s" in changes.values and any(row["status"] == jb.RUNNING for row in rows)
            booked = ops.bookings.kept_now(store) if is_longer else set()
            _change(store, array, rows, members, changes, awaited)
            if booked:
                ops.bookings.check_kept(store, booked)
        return get_job(store, ref)


def _change(
    store: Store,
    array: Row | None,
    rows: list[Row],
    members: Members,
    changes: Overrides[JobRequest],
    awaited: list[Dependency] | None,
) -> None:
    concerned = _editable(array, rows, changes.values, set(store.being_started))
    after = None if awaited is None else _conditions(store, array, [row for row, _ in concerned], awaited)
    found: dict[tuple[str, Launch | None], tuple[JobsEdited, list[int]]] = {}
    for alike, names in _alike(concerned):
        row = table.get(store, alike[0])
        assert row is not None
        one = _edited(store, members, row, changes, names, after)
        if one is not None:
            key = (
                encode(replace(one, job=replace(one.job, job_id=0, submission_id="", members=1, step=1))),
                one.launch,
            )
            found.setdefault(key, (one, []))[1].extend(alike)
    for one, numbers in found.values():
        _drop_nominations(store, one, numbers)
        store.emit(replace(one, spans=spans_of(sorted(numbers))))


def _limit(store: Store, array: Row | None, rows: list[Row], at_once: int | None) -> None:
    """Let another number of members of an array run at once. What runs goes on; the last members lose their places."""
    if array is None:
        name, whole = rows[0]["submission_id"], rows[0]["array_id"]
        fix = f"name the array: {whole}" if whole else f"leave out {param('max_running')}"
        raise BadSpec(f"{param('max_running')}: {name} is one job, not an array", fix=fix)
    left = [row for row in rows if row["status"] not in jb.FINAL]
    if not left:
        raise Conflict(f"array {array['array_id']} is over", fix=_submit_again(array["array_id"]))
    waiting = [r for r in left if r["status"] == jb.PENDING and r["job_id"] not in store.being_started]
    closed: list[int] = []
    if at_once is not None:
        alone = [
            row for row in waiting if row["members"] == 1
        ]  # where a row stands for many, none has a place
        with_place = [row["job_id"] for row in alone if not (row["closed"] or row["held"])]
        keep = set(with_place[: max(0, at_once - (len(left) - len(waiting)))])
        closed = [row["job_id"] for row in waiting if not row["closed"] and row["job_id"] not in keep]
    opened = [row["job_id"] for row in waiting if row["closed"]] if at_once is None else []
    shown = array["range"].partition("%")[0] + ("" if at_once is None else f"%{at_once}")
    reach = array["first_job_id"], array["last_job_id"]
    store.emit(ArrayLimited(array["array_id"], *reach, at_once, shown, spans_of(closed), spans_of(opened)))


def _editable(
    array: Row | None, rows: list[Row], given: Mapping[str, object], starting: set[int]
) -> list[tuple[Row, list[str]]]:
    """The jobs that an edit is about, each with what changes in it. Raises Conflict if there is none."""
    if array is not None:
        waiting = [r for r in rows if r["status"] == jb.PENDING and r["job_id"] not in starting]
        running = [r for r in rows if r["status"] not in jb.FINAL and r not in waiting]
        also = [name for name in given if name in _WHILE_RUNNING]
        if waiting or (running and len(also) == len(given)):
            return [*((row, [*given]) for row in waiting), *((row, also) for row in running if also)]
        rows = running[:1] or rows[:1]
    for row in rows:
        refuse_fixed_fields(row, given)
    return [(row, [*given]) for row in rows]


def _alike(concerned: list[tuple[Row, list[str]]]) -> list[tuple[list[int], list[str]]]:
    """The numbers of jobs that ask for the same and of which the same changes, with what changes."""
    groups: dict[tuple[object, ...], tuple[list[int], list[str]]] = {}
    for row, names in concerned:
        key = (*(row[name] for name in _REQUEST), row["status"] == jb.PENDING)
        groups.setdefault(key, ([], names))[0].append(row["job_id"])
    return list(groups.values())


def _edited(
    store: Store,
    members: Members,
    row: Row,
    changes: Overrides[JobRequest],
    names: list[str],
    after: Pairs | None,
) -> JobsEdited | None:
    """The edit of a job; None if it asks for all this already. Raises if a submit of this request would."""
    launch = table.launch(store, row["job_id"])
    assert launch is not None
    old = _request_of(row, launch)
    new = changes.of(old, names)
    if new.labels:  # in the table, labels are metadata
        said = changes.values.get("metadata") or {}
        new = replace(new, metadata={**old.metadata, **new.labels, **said}, labels={})
    pending, preparation = rows_.pending(row), submitting.Preparation(store)
    before = submitting.Prepared(
        pending.parent_id, pending.shares_parent, pending.spec, dict(pending.entry), pending.shape, None
    )
    now = before
    if any(getattr(old, name) != getattr(new, name) for name in _JUDGED):
        now = preparation.of(new, {})
    was, be = (preparation.columns(one, found, {}) for one, found in ((old, before), (new, now)))
    job = be[0]
    if job.begin_at_ns is not None and job.begin_at_ns <= store.clock():
        job = replace(job, begin_at_ns=None)
    edited = [f.name for f in fields(job) if getattr(job, f.name) != getattr(was[0], f.name)]
    if after is not None and "after" in names:
        job, edited = replace(job, waits_for=len(after)), [*edited, "waits_for"]
    columns = {
        f.name: column for f in fields(be[1]) if (column := getattr(be[1], f.name)) != getattr(was[1], f.name)
    }
    has_command = be[2] != was[2] or not {"shape", "spec", "entry", "rules"}.isdisjoint(edited)
    if not (edited or columns or has_command):
        return None
    if not rights.COMMAND_FIELDS.isdisjoint(names):
        rights.check_own(store, row, "run something else in")
    if now.judged_at is not None:
        observed.set_feasible(store, now.parent_id, now.shape, now.judged_at)
    job = replace(pending, **{name: getattr(job, name) for name in edited})
    shown = {name: _shown(changes.values[name]) for name in names}
    return JobsEdited(
        members, (), job, tuple(edited), columns, shown, after if "waits_for" in edited else None,
        be[2] if has_command else None,
    )  # fmt: skip


def _request_of(row: Row, launch: Row) -> JobRequest:
    """The request of a job as it would be submitted now, with the environment that is stored, under its own id."""
    relay = rows_.loads(launch["options"]).get("relay", ["label"])
    return replace(
        submitting.request_of(row, launch),
        submission_id=row["submission_id"],
        env=dict(rows_.loads(launch["env"])),
        begin_at=None if row["begin_at"] is None else row["begin_at"] / 1e9,
        attach=None if relay[0] == "label" else tuple(relay),
    )


def _awaited(store: Store, changes: Overrides[JobRequest]) -> list[Dependency] | None:
    """What is to be waited for, each with a row of its own, as one that stands for others cannot be awaited."""
    if "after" not in changes.values:
        return None
    awaited = submitting.resolved(store, changes.of(JobRequest(argv=("true",)), ["after"]).after)
    arrays.give_rows(store, (table.number_of(store, one.job) for one in awaited))
    return awaited


def _conditions(store: Store, array: Row | None, rows: list[Row], awaited: list[Dependency]) -> Pairs:
    """What the jobs wait for from now on. Refuses what can no longer happen, and circles."""
    pairs, lost = ops.dependencies.unmet(store, awaited)
    if lost:
        wish = next(f"{condition}:{name}" for condition, name in pairs if name in lost)
        raise Conflict(
            f"{param('after')}: {wish} can no longer happen, {lost[0]} is over",
            fix="wait for another job, or for none",
        )
    own = {row["submission_id"] for row in rows}
    ops.dependencies.refuse_circle(store, own if array is None else own | {array["array_id"]}, awaited)
    return pairs


def _drop_nominations(store: Store, one: JobsEdited, numbers: list[int]) -> None:
    """Drop what is reserved for jobs that ask for something else now. The jobs that were to end for them go on."""
    if {"shape", "spec", "entry", "parent_id"}.isdisjoint(one.edited):
        return
    nominations = preemptions.nominations(store)
    for job_id in {nomination.job_id for nomination in nominations}.intersection(numbers):
        store.emit(NominationDropped(job_id))
        others = {v for nomination in nominations if nomination.job_id != job_id for v in nomination.awaited}
        for row in preemptions.all_rows(store):
            if row["winner_id"] == job_id and not row["ending"] and row["victim_id"] not in others:
                store.emit(JobSpared(row["victim_id"], row["submission_id"], row["winner"], "it was edited"))


def _shown(value: Any) -> Any:
    """A value for the event; of variables only the names, as their values may be secrets."""
    return sorted(value) if isinstance(value, Mapping) and _is_texts(value) else document_of(value)


def _is_texts(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(one, str) for one in value.values())


def all_to_change(store: Store, ref: str | int) -> tuple[Row | None, list[Row], Members]:
    """The array of this id, its members, and how a change names them; of a job None, the job, and how."""
    if (array := arrays.named(store, ref)) is not None:
        rights.check_array(store, array)
        reach = array["first_job_id"], array["last_job_id"]
        return array, arrays_table.members(store, array), Members(array["array_id"], *reach, is_array=True)
    row = one_to_change(store, ref)
    its = Members(row["submission_id"], row["job_id"], row["job_id"], row["parent_cluster_id"])
    return None, [row], its


def refuse_fixed_fields(row: Row, changes: Mapping[str, object]) -> None:
    """Raise Conflict for a parameter that cannot be edited in the present status of the job."""
    if row["status"] == jb.PENDING:
        return
    allowed = _WHILE_RUNNING if row["status"] == jb.RUNNING else ()
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
