"""Arrays: one submit, many jobs. Members are ordinary jobs with ids ``<array id>_<index>``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl import engine, ops
from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.core.spans import spans_of
from vctl.ops import forms
from vctl.spec.ids import LAST
from vctl.store import arrays as table
from vctl.store import folded, job_views, jobs
from vctl.store.dependencies import awaited_members
from vctl.store.rows import loads
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from vctl.engine.changes import ArraySubmitted, JobEnded, Launch, StopAsked, SubmitDetails
    from vctl.spec.documents import ArrayFailures, ArrayForm
    from vctl.spec.options import ArrayRange

MAX_SHOWN = 120
"""Characters of a list of indices that a line shows."""
NEVER_STARTED, AGAIN = "stopped before it started", "stopped before its next attempt"
Pairs = tuple[tuple[str, str], ...]
"""Pairs of a condition and the id of the job or array that is awaited."""


def submitted(
    store: Store,
    array_range: ArrayRange,
    template: PendingJob,
    details: SubmitDetails,
    after: Pairs,
    launch: Launch,
) -> ArraySubmitted:
    """The change that queues all members. ``template`` is the first member, under the id of the array."""
    from vctl.engine.array_limits import WINDOW

    indices, array_id = array_range.indices, template.submission_id
    if in_use := [name for name in table.taken(store, array_id) if jb.member_of(name)[1] in indices]:
        raise ops.matching.exists(min(in_use))
    shown = str(indices) if array_range.at_once is None else f"{indices}%{array_range.at_once}"
    made = len(indices) if len(indices) <= WINDOW + 1 else WINDOW
    return engine.changes.ArraySubmitted(
        template, details, indices.parts, shown, array_range.at_once, made, after, launch
    )


def give_rows(store: Store, numbers: Iterable[int | None]) -> None:
    """Give rows of their own to those of some jobs that have none, inside a transaction that changes or awaits them."""
    own: dict[int, list[int]] = {}
    for number in sorted({number for number in numbers if number is not None}):
        if (first := folded.row_of(store, number)) is not None:
            own.setdefault(first, []).append(number)
    for row in folded.numbered(store, own):
        spans = spans_of(own[row["job_id"]])
        store.emit(engine.changes.MembersUnfolded(row["array_id"], row["job_id"], row["members"], spans))


def named(store: Store, ref: str | int) -> Row | None:
    """The array with this id or unique prefix; for ``last`` the newest submission, if it is an array; else None."""
    if isinstance(ref, int) or not ref:
        return None
    if ref == LAST:
        newest = jobs.last_number(store)
        return None if newest is None else table.of_job(store, newest)
    exact = table.get(store, ref)
    if exact is not None or jobs.number_of(store, ref) is not None:
        return exact
    if (match := ops.matching.the_one(store, ref)) is not None:
        return table.get(store, match) if isinstance(match, str) else None
    like = table.like(store, ref)
    if len(like) == 1 and not table.strangers_like(store, ref, like[0]["array_id"]):
        return like[0]
    return None


def form(store: Store, array: Row, *, submitted: bool = False) -> ArrayForm:
    """An array as one JSON object: the fields of a job for all members together, and the counts of states."""
    from vctl.ops.reasons import Reasons  # a list without arrays does not load it

    counts = table.counts(store, array)
    example = next(
        job_id
        for states in ("'RUNNING'", "'PENDING'", "'FAILED'", "'STOPPED'", "'SUCCEEDED'")
        if (job_id := table.example(store, array, states)) is not None
    )
    row = job_views.get(store, example)
    assert row is not None
    over = not (counts.get(jb.PENDING) or counts.get(jb.RUNNING))
    span = table.span(store, array)
    reasons = Reasons(store)
    return {
        **forms.job(store, row, None, reasons.fresh(row) if submitted else reasons.of(row)),
        "job_id": array["first_job_id"],
        "submission_id": array["array_id"],
        "status": _status(counts),
        "exit_code": code(store, array) if over else None,
        "cluster_id": row["parent_cluster_id"],
        "started_at": forms.timestamp(span["started_at"]),
        "ended_at": forms.timestamp(span["ended_at"]) if over else None,
        "node_ids": [],
        "wait_s": None,
        "run_s": None,
        "log_path": None,
        "array_id": array["array_id"],
        "array_index": None,
        "array": {
            "indices": array["range"], "count": sum(counts.values()), "at_once": array["at_once"],
            "states": counts, "done": sum(counts.get(state, 0) for state in jb.FINAL),
            "failures": _failures(store, array) if counts.keys() & {*jb.NOT_SUCCEEDED} else [],
        },
    }  # fmt: skip


def _failures(store: Store, array: Row) -> list[ArrayFailures]:
    from vctl.core.indices import Indices  # a list without such an array needs no indices

    return [
        {
            "status": row["status"], "state_reason": row["state_reason"], "exit_code": row["exit_code"],
            "message": row["message"], "count": row["count"],
            "indices": str(Indices.of(sorted(_indices(loads(row["indices"]))))),
        }
        for row in table.failures(store, array)
    ]  # fmt: skip


def _indices(rows: Iterable[tuple[int, int, int]]) -> Iterator[int]:
    for first, members, step in rows:
        yield from range(first, first + members * step, step)


def failed(array: Mapping[str, Any]) -> list[str]:
    """Which members of an array did not succeed, and why, as lines, from its JSON form; none if all did."""
    about, name = array["array"], array["submission_id"]
    groups = about["failures"]
    if not groups:
        return []
    count = sum(group["count"] for group in groups)
    reasons = (f"  {group['status']}: {why_failed(group)}" for group in groups)
    head = f"{name}: {count} of {about['count']} did not succeed"
    return [head, *reasons, f"Run them again with: vctl job rerun {name} --failed"]


def why_failed(group: Mapping[str, Any]) -> str:
    """How many members of an array did not succeed for one reason, the reason, and their indices."""
    why = ": ".join(word for word in (group["state_reason"], group["message"]) if word)
    return f"{group['count']} {why}: {_short(group['indices'])}"


def _short(indices: str) -> str:
    """A list of indices without its end, if it is long."""
    if len(indices) <= MAX_SHOWN:
        return indices
    return indices[:MAX_SHOWN].rpartition(",")[0] + ",…"


def list_(
    store: Store,
    *,
    all: bool,  # noqa: A002  # the option's name
    within: tuple[str, Sequence[object]],
    limit: int | None,
    named: Collection[str] | None = None,
    by_turn: bool = False,
) -> tuple[list[ArrayForm], int]:
    """The newest arrays, and how many there are; without ``all`` only arrays with a member that is not over.

    ``within``: an SQL condition on their jobs ``j`` and its values. ``named``: only these. ``by_turn``: those that run
    first, then those that wait, the oldest first.
    """
    rows = table.matching(store, *within)
    if named is not None:
        rows = [row for row in rows if row["array_id"] in named]
    if by_turn or not all:
        unfinished = table.unfinished(store, rows)
        if by_turn:
            run, known = table.with_running(store), {row["array_id"] for row in unfinished}
            rest = [row for row in rows if row["array_id"] not in known] if all else []
            running = [row for row in unfinished if row["array_id"] in run]
            rows = [*running, *(row for row in reversed(unfinished) if row["array_id"] not in run), *rest]
        else:
            rows = unfinished
    return [form(store, row) for row in rows[:limit]], len(rows)


def progress(array: Mapping[str, Any]) -> str:
    """The progress of an array as one line, from its JSON form."""
    about = array["array"]
    parts = [f"{array['submission_id']}: {about['done']} of {about['count']} done"]
    for state, word in ((jb.RUNNING, "running"), (jb.FAILED, "failed"), (jb.STOPPED, "stopped")):
        if about["states"].get(state):
            parts.append(f"{about['states'][state]} {word}")
    return ", ".join(parts)


def _status(counts: Mapping[str, int]) -> str:
    if counts.get(jb.RUNNING) or (counts.get(jb.PENDING) and len(counts) > 1):
        return jb.RUNNING
    return next(state for state in (jb.PENDING, jb.FAILED, jb.STOPPED, jb.SUCCEEDED) if counts.get(state))


def code(store: Store, array: Row) -> int:
    """The exit code of the first member, by index, that failed or was stopped; 0 if there is none."""
    bad = table.example(store, array, "'FAILED', 'STOPPED'")
    return 0 if bad is None else forms.exit_code(jobs.get(store, bad))


def state(store: Store, array: Row) -> str:
    """RUNNING while a member waits or runs, else the final state of the array."""
    return jb.RUNNING if table.is_unfinished(store, array) else _status(table.counts(store, array))


def delete(store: Store, array_id: str) -> list[str]:
    """Forget an array whose members are all over; returns the ids of the members."""
    array = table.get(store, array_id)
    assert array is not None
    members = table.members(store, array)
    spans = spans_of(row["job_id"] for row in members)
    store.emit(engine.changes.ArrayForgotten(array_id, array["first_job_id"], array["last_job_id"], spans))
    return [row["submission_id"] for row in members]


def forget_empty(store: Store, candidates: Iterable[str | None]) -> None:
    """Forget those of some arrays that have no members any more; None is no array."""
    named = {array_id for array_id in candidates if array_id is not None}
    if named and (array_ids := table.emptied(store, named)):
        store.emit(engine.changes.ArraysEmptied(tuple(array_ids)))


def stop(store: Store, array: Row, *, grace_s: float | None, message: str | None) -> list[int]:
    """Stop the members, inside a transaction: waiting members end at once, running members are asked to end.

    Returns those that are being started: they can be stopped when their start is recorded. Of a long array that runs,
    there is such a member at nearly every moment, so the others do not wait for it.
    """
    span = array["first_job_id"], array["last_job_id"]
    starting = sorted(job_id for job_id in store.being_started if span[0] <= job_id <= span[1])
    for row in job_views.retrying(store, span):
        if row["job_id"] not in starting:
            store.emit(stopped(store, row, message=message))
    store.emit(engine.changes.JobsStopped(
        store.clock(), array["array_id"], *span,
        table.waiting_spans(store, array, starting), tuple(awaited_members(store, array)), jb.STOPPED_BY_USER,
        message or NEVER_STARTED,
    ))  # fmt: skip
    for row in table.running(store, array):
        store.emit(stop_requested(store, row, grace_s=grace_s, message=message, silent=True))
    return starting


def stopped(store: Store, row: Row, *, message: str | None) -> JobEnded:
    """The change that ends a waiting job; it has an exit code if the job waits for its next attempt."""
    said, code = (AGAIN, jb.EXIT_STOPPED) if row["attempt"] else (NEVER_STARTED, None)
    return engine.changes.JobEnded(
        store.clock(), row["job_id"], row["submission_id"], row["array_id"], row["parent_cluster_id"], "stop",
        jb.STOPPED, jb.STOPPED_BY_USER, message or said, code,
    )  # fmt: skip


def stop_requested(
    store: Store, row: Row, *, grace_s: float | None, message: str | None, silent: bool = False
) -> StopAsked:
    """The change that asks a running job to end; the time and the reason of an earlier request stay."""
    return engine.changes.StopAsked(
        row["stop_requested_at"] or store.clock(), row["job_id"], row["submission_id"],
        row["stop_reason"] or jb.STOPPED_BY_USER, row["stop_grace_s"] if grace_s is None else grace_s,
        message or row["message"], silent,
    )  # fmt: skip
