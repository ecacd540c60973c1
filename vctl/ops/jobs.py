"""Submitted jobs: show, list, stop, delete and prune them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, takewhile
from typing import TYPE_CHECKING, TypeVar

from vctl import engine, ops
from vctl.core import jobs as jb
from vctl.core.listed import Alike, Values, field_of, joined, runs
from vctl.core.spans import spans_of
from vctl.core.wording import cluster_text
from vctl.errors import BadSpec, Conflict, NotFound, VctlError
from vctl.ops import arrays, forms, late_starts, logs, rights, scope
from vctl.ops.forms import Shown, parse_filters
from vctl.spec.ids import LAST
from vctl.store import ahead, clusters, feed, folded, job_views, observed, tasks
from vctl.store import arrays as arrays_table
from vctl.store import jobs as table
from vctl.store.filters import Condition, Filter
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.ops.reasons import Reasons
    from vctl.spec.documents import JobForm, Pruned


STARTS_S = 30.0
"""How long a stop of an array waits until the last starts of members are recorded; all others are stopped by then."""
SLICE_S = 0.03
"""Seconds for which a prune writes without a pause."""
PAUSE_S = 0.006
"""The pause in seconds: longer than between two tries of a writer that waits (``locks.taken``)."""
T = TypeVar("T")
ALIKE = (
    "status", "state_reason", "message", "parent_cluster_id", "attempt", "user", "held", "waits_for", "closed",
    "begin_at", "shape",
)  # fmt: skip
"""The columns on which the reason of a job depends."""
COLUMNS = tuple(dict.fromkeys((*forms.JOB, *ALIKE)))
"""The columns that a list of jobs reads."""
FILTER_KEYS = tuple(job_views.FILTERED)


def resolve(store: Store, ref: str | int) -> int:
    """The number of a job from its submission id, number, unique prefix, or ``last``. Raises NotFound."""
    if isinstance(ref, int):
        if table.get(store, ref) is None:
            raise ops.matching.no_job(store, str(ref))
        return ref
    if ref == LAST:
        number = table.last_number(store)
        if number is None:
            raise NotFound("there is no job yet", fix="vctl job submit -- COMMAND")
        return number
    number = table.number_of(store, ref) if ref else None
    if number is not None:
        return number
    if ref.isascii() and ref.isdigit() and len(ref) < 19 and table.get(store, int(ref)) is not None:
        return int(ref)
    if isinstance(match := ops.matching.the_one(store, ref) if ref else None, int):
        return match
    if (array := arrays_table.get(store, ref if match is None else match)) is not None:
        first = "".join(takewhile(str.isdigit, array["range"]))
        raise BadSpec(f"{ref} is an array of jobs", fix=f"name one of its members, such as {ref}_{first}")
    like = table.numbers_like(store, ref) if ref else []
    if len(like) == 1:
        return like[0][0]
    if like:
        shown = ", ".join(name for _, name in like[:4])
        raise BadSpec(
            f"job {ref} is ambiguous: {shown}{' …' if len(like) > 4 else ''}", fix="write more of the id"
        )
    raise ops.matching.no_job(store, ref)


def resolve_named(store: Store, ref: str | int, path: str) -> int:
    """Like ``resolve``, for a job that the parameter ``path`` names; an error names the parameter."""
    try:
        return resolve(store, ref)
    except VctlError as error:
        error.add_path(path)
        raise


def one_to_change(store: Store, ref: str | int, to: str = "change") -> Row:
    """The job of this id, inside a transaction that changes it: it has a row of its own from now on."""
    row = table.get(store, resolve(store, ref))
    assert row is not None
    rights.check_job(store, row, to)
    arrays.give_rows(store, [row["job_id"]])
    return row


def get_job(store: Store, ref: str | int, *, forecast: bool = True) -> JobForm:
    """One job, or an array of them. ``forecast``: with the expected start of what waits."""
    with store.snapshot():
        if (array := arrays.named(store, ref)) is not None:
            form: JobForm = arrays.form(store, array)
            return form if not forecast else _forecast([form], store)[0]
        row = job_views.get(store, resolve(store, ref))
        assert row is not None
        form = _form(store, row)
        return form if not forecast else _forecast([form], store)[0]


def _forecast(forms_: Sequence[JobForm], store: Store) -> list[JobForm]:
    """Forms of jobs and arrays with their expected starts: for an array, that of its next member."""
    numbers: dict[int, int] = {}
    for form in forms_:
        if "array" in form:
            array = arrays_table.get(store, form["submission_id"])
            assert array is not None
            if (number := arrays_table.example(store, array, "'PENDING'")) is not None:
                numbers[form["job_id"]] = number
        elif form["status"] == jb.PENDING:
            numbers[form["job_id"]] = form["job_id"]
    if not numbers:
        return list(forms_)
    from vctl.ops import expected  # where nothing waits, nothing is played forward
    from vctl.simulate.forecast import UNREAD

    waiting = [form["parent_cluster_id"] for form in forms_ if form["job_id"] in numbers]
    found = expected.of(store, set(numbers.values()), set(waiting))
    starts = {job_id: found.get(number, UNREAD) for job_id, number in numbers.items()}
    return [{**form, **expected.form(starts.get(form["job_id"]))} for form in forms_]


def _form(store: Store, row: Row, *, is_new: bool = False) -> JobForm:
    from vctl.ops.positions import position  # a list in which nothing waits loads neither
    from vctl.ops.reasons import Reasons

    reasons = Reasons(store)
    shown = reasons.fresh(row) if is_new else reasons.of(row)
    return forms.job(store, row, position(store, row), shown, forms.NEW if is_new else None)


def just_submitted(store: Store, submission_id: str) -> JobForm:
    """The form of a new job or array, which no scheduler has considered: needed and free resources are not counted."""
    with store.snapshot():
        if (row := job_views.named(store, submission_id)) is not None:
            return _form(store, row, is_new=True)
        array = arrays_table.get(store, submission_id)
        assert array is not None
        return arrays.form(store, array, submitted=True)


def list_jobs(
    store: Store,
    *,
    all: bool = False,  # noqa: A002  # the option's name
    filters: Sequence[str] = (),
    limit: int | None = None,
    cluster: str | None = None,
    members: bool = True,
    forecast: bool = True,
    by_turn: bool = False,
    named: Sequence[str] = (),
) -> tuple[Sequence[JobForm], int]:
    """Jobs, newest first, and their number without the limit. Without ``all`` only unfinished jobs.

    Without ``members`` each array is one entry. ``forecast``: with the expected starts of those that wait.
    ``by_turn``: running ones first, then the queues in their order, then finished ones.
    ``named``: only the jobs with these ids, patterns and ranges. Raises NotFound for one that names none.
    """
    parsed = parse_filters(filters, FILTER_KEYS)
    states = {
        state
        for state in (jb.STATES if all else (jb.PENDING, jb.RUNNING))
        if forms.matches({"status": state}, [condition for condition in parsed if condition[0] == "status"])
    }
    derived = [condition for condition in parsed if condition[0] == "state_reason"]
    own = [condition for condition in parsed if condition[0] in job_views.OWN_FILTERS]
    inside = scope.of_jobs(store, cluster)
    if store.identity is not None:
        inside = ops.privacy.narrowed(store, inside, parsed)
    within, values = inside[0], [*inside[1]]
    with store.snapshot():
        common = [one for one in parsed if one[0] not in ("status", "state_reason", *job_views.OWN_FILTERS)]
        narrowed, its_values = job_views.condition(store, common)
        parts = [within, narrowed, "1" if members or named else job_views.SINGLE]
        values += its_values
        numbers: list[int] | None = None
        its_arrays: list[str] | None = None
        if named:
            numbers, its_arrays = _named(store, named, members=members)
            among, its_values = job_views.with_numbers(folded.rows_of(store, numbers))
            parts.append(among)
            values += its_values
        where = " AND ".join(part for part in parts if part != "1") or "1"
        only = None if numbers is None else {*numbers}
        within_ = (where, values)
        read = partial(_listed, store, within=within_, derived=derived, own=own, only=only, forecast=forecast)
        listed: Sequence[JobForm]
        if by_turn:
            queued = partial(ops.turns.queued, store, within_, own, partial(_forms, store, forecast=forecast))
            listed, total = ops.turns.in_turn(read, None if derived or named else queued, states, limit)
        else:
            listed, total = read(states, limit=limit)
        if not members:
            entries, count = arrays.list_(
                store, all=all, within=inside, limit=None if parsed else limit,
                named=its_arrays, by_turn=by_turn,
            )  # fmt: skip
            if parsed:
                entries = [form for form in entries if forms.matches(form, parsed)]
                count = len(entries)
            total += count
            if entries:
                if forecast:
                    entries = _forecast(entries, store)  # type: ignore[assignment]
                sort = ops.turns.merged if by_turn else _merged
                listed = sort([*listed, *entries], limit)
    return listed, total


def _named(store: Store, refs: Sequence[str], *, members: bool) -> tuple[list[int], list[str]]:
    """The numbers of the named jobs, and the ids of the named arrays; with ``members`` their members in their place."""
    numbers, array_ids = dict[int, None](), dict[str, None]()
    for ref in _each(store, refs):
        if (array := arrays.named(store, ref)) is None:
            numbers[resolve(store, ref)] = None
        elif members:
            numbers |= {job_id: None for job_id, _ in arrays_table.numbered(store, array)}
        else:
            array_ids[array["array_id"]] = None
    return list(numbers), list(array_ids)


def _listed(
    store: Store,
    states: set[str],
    within: Condition,
    limit: int | None,
    derived: list[Filter],
    own: list[Filter],
    only: Collection[int] | None = None,
    *,
    forecast: bool,
) -> tuple[Sequence[JobForm], int]:
    """The newest jobs in some states that match, and how many match.

    The filters ``derived`` are about the reason, which the tables have only for jobs that do not wait: those that wait
    are read and judged. The filters ``own`` are about what differs among members of an array that share a row.
    ``only``: the numbers of the jobs that may be listed, whose rows ``within`` names.
    """
    where, values = within
    if derived:
        waiting, _ = _listed(store, states & {jb.PENDING}, within, None, [], own, only, forecast=forecast)
        judged = zip(field_of(waiting, "job_id"), field_of(waiting, "state_reason"), strict=True)
        at = [n for n, (_, reason) in enumerate(judged) if forms.matches({"state_reason": reason}, derived)]
        more, its_values = job_views.condition(store, derived)
        rest = f"{where} AND {more}", [*values, *its_values]
        others, total = _listed(store, states - {jb.PENDING}, rest, limit, [], own, only, forecast=False)
        return _merged([*(waiting[n] for n in at[:limit]), *others], limit), total + len(at)
    shared = folded.among(store, f"{job_views.in_states(states)} AND {where}", values) if states else []
    narrowed, its_values = job_views.condition(store, own)
    where = " AND ".join(part for part in (where, narrowed) if part != "1") or "1"
    values = [*values, *its_values]
    if shared:
        return _with_shared(store, states, (where, values), limit, {
            row["job_id"]: numbers for row in shared
            if (numbers := _among(job_views.passing(row, own), only))
        }, forecast=forecast)  # fmt: skip
    if limit is None and jb.FINAL & states:  # all are read, and most jobs are over
        condition = where if len(states) == len(jb.STATES) else f"{job_views.in_states(states)} AND {where}"
        listed = _forms(store, condition, values, forecast=forecast)
        return listed, len(listed)
    numbers = job_views.newest(store, states, where, values, limit)
    total = len(numbers)
    if total == limit:
        total = job_views.count(store, states, where, values)
    return _forms(store, *job_views.with_numbers(numbers), forecast=forecast), total


def _among(numbers: Sequence[int], only: Collection[int] | None) -> Sequence[int]:
    return numbers if only is None else [number for number in numbers if number in only]


def _with_shared(
    store: Store,
    states: set[str],
    within: Condition,
    limit: int | None,
    shared: dict[int, Sequence[int]],
    *,
    forecast: bool,
) -> tuple[Sequence[JobForm], int]:
    """Like ``_listed``; ``shared``: rows that stand for several members of an array -> those that match."""
    where, values = within
    single = job_views.OWN_ROW if where == "1" else f"{where} AND {job_views.OWN_ROW}"
    numbers = job_views.newest(store, states, single, values, limit)
    total = job_views.count(store, states, where, values, sum(map(len, shared.values())))
    chosen = numbers + [one for its in shared.values() for one in (its if limit is None else its[-limit:])]
    least = min(sorted(chosen, reverse=True)[:limit], default=0)
    if shared:
        from bisect import bisect_left

        shared = {row: its[bisect_left(its, least) :] for row, its in shared.items() if its[-1] >= least}
    row_numbers = sorted([*(one for one in numbers if one >= least), *shared], reverse=True)
    return _forms(store, *job_views.with_numbers(row_numbers), shared, forecast=forecast), total


def _merged(listed: list[JobForm], limit: int | None) -> Sequence[JobForm]:
    return sorted(listed, key=lambda form: -form["job_id"])[:limit]


def _forms(
    store: Store,
    where: str,
    values: Sequence[object],
    members: Mapping[int, Sequence[int]] = {},
    *,
    forecast: bool,
) -> Sequence[JobForm]:
    columns = job_views.listed(store, COLUMNS, where, values, members)
    if jb.PENDING not in columns["status"] and not late_starts.among(store, columns["status"]):
        shown = joined([*zip(columns["state_reason"], columns["message"], strict=True)])
        return forms.jobs(store, columns, Alike(None, len(shown)), shown)
    from vctl.ops.positions import positions

    starts = None
    if forecast:
        from vctl.ops import expected  # which loads the scheduler

        starts = expected.of_listed(store, columns)
    return forms.jobs(store, columns, positions(store, columns), _reasons(store, columns), starts)


def _reasons(store: Store, columns: Mapping[str, Values]) -> Values:
    """The ``Shown`` of each listed job; jobs that are equal in the columns ``ALIKE`` are judged once."""
    from vctl.ops.reasons import Reasons

    reasons, known, shown = Reasons(store), dict[Values, Shown](), list[Values]()
    winners: Collection[int] = ()
    for kind, neighbours in runs(*(columns[name] for name in ALIKE), _held_by_array(columns)):
        numbers = columns["job_id"][neighbours.start : neighbours.stop]
        if kind[0] != jb.PENDING:
            shown.append(late_starts.shown(reasons, kind[0], numbers, kind[1:3]))
            continue
        waits_for = kind[ALIKE.index("waits_for")]
        if not winners and not waits_for and kind not in known:
            row = job_views.get(store, numbers[0])
            assert row is not None
            if reasons.gate(row) is None:
                winners = reasons.winners
        own = set(numbers) if waits_for else set(winners) and set(winners).intersection(numbers)
        if kind not in known and (common := next((job_id for job_id in numbers if job_id not in own), None)):
            known[kind] = _reason(store, reasons, common)
        if own:  # these reasons depend on the job itself
            first = {one: one for one in own}
            for its in folded.among(
                store, "j.status = 'PENDING' AND j.waits_for", ()
            ):  # they wait for the same
                first |= dict.fromkeys(
                    own.intersection(range(its["job_id"], its["job_id"] + its["members"])), its["job_id"]
                )
            judged = {one: _reason(store, reasons, one) for one in set(first.values())}
            shown.append([judged[first[one]] if one in own else known[kind] for one in numbers])
        else:
            shown.append(Alike(known[kind], len(numbers)))
    return shown[0] if len(shown) == 1 else list(chain(*shown))


def _held_by_array(columns: Mapping[str, Values]) -> Values:
    """For each listed job: the id of its array if the running limit of the array holds it back, else None."""
    closed, array_ids = columns["closed"], columns["array_id"]
    if isinstance(array_ids, Alike) or (isinstance(closed, Alike) and closed[0]):
        return array_ids
    if isinstance(closed, Alike):
        return Alike(None, len(closed))
    return [array_id if is_closed else None for is_closed, array_id in zip(closed, array_ids, strict=True)]


def _reason(store: Store, reasons: Reasons, job_id: int) -> Shown:
    row = job_views.get(store, job_id)
    assert row is not None
    return reasons.of(row)


def log(store: Store, ref: str) -> logs.Log:
    """The output of a job, or of the members of an array."""
    if (array := arrays.named(store, ref)) is not None:
        from vctl.ops.array_logs import ArrayLog
        from vctl.spec.options import parse_array

        rights.check_read_number(store, arrays_table.first(store, array))
        return ArrayLog(store.home, array["array_id"], parse_array(array["range"]).indices)
    row = table.get(store, resolve(store, ref))
    assert row is not None
    rights.check_read(store, row)
    return logs.Log(logs.log_of(store.home, row["submission_id"]))


def stop(
    store: Store, ref: str | int, *, grace_s: float | None = None, message: str | None = None
) -> JobForm:
    """Stop a job: a pending job at once; the processes of a running job are ended by the scheduler.

    ``message`` is a text of the user; the reason is always StoppedByUser.
    """

    def stop_job(row: Row) -> None:
        if row["status"] == jb.PENDING:
            store.emit(arrays.stopped(store, row, message=message))
        elif row["status"] == jb.RUNNING:
            store.emit(arrays.stop_requested(store, row, grace_s=grace_s, message=message))

    def stop_rest() -> JobForm:
        assert array is not None
        with store.transaction():
            for row in filter(None, (table.get(store, job_id) for job_id in starting)):
                if row["job_id"] in store.being_started:
                    raise ahead.BeingStarted(row["job_id"])
                stop_job(row)
            return arrays.form(store, array)

    with store.transaction():
        if (array := arrays.named(store, ref)) is None:
            row = one_to_change(store, ref, "stop")
            stop_job(row)
            return get_job(store, row["job_id"], forecast=False)
        rights.check_array(store, array, "stop")
        starting = arrays.stop(store, array, grace_s=grace_s, message=message)
        if not starting:
            return arrays.form(store, array)
    if store.head is not None:  # all that is done together is done again
        raise ahead.BeingStarted(starting[0])
    return store.settled(stop_rest, STARTS_S)


def delete(store: Store, *refs: str | int) -> list[JobForm]:
    """Delete finished jobs with their logs: all of them or none."""
    with store.transaction():
        deleted = [get_job(store, one, forecast=False) for one in dict.fromkeys(_each(store, refs))]
        removed: list[str] = []
        for form in deleted:
            rights.check_number(store, form["job_id"], "delete")
            if form["status"] not in jb.FINAL:
                raise Conflict(
                    f"job {form['submission_id']} is {form['status']}",
                    fix=f"vctl job stop {form['submission_id']}, then delete it",
                )
            array = arrays.named(store, form["submission_id"]) if "array" in form else None
            reach = (form["job_id"],) * 2 if array is None else (array["first_job_id"], array["last_job_id"])
            removed += refuse_while_used(store, reach, "delete the job")
            if "array" in form:
                removed += arrays.delete(store, form["submission_id"])
            else:
                arrays.give_rows(store, [form["job_id"]])
                store.emit(engine.changes.JobForgotten(form["job_id"], form["submission_id"]))
                removed.append(form["submission_id"])
        arrays.forget_empty(store, (form["array_id"] for form in deleted))
    _forget_logs(store, removed)
    return deleted


def _each(store: Store, refs: Sequence[str | int]) -> Iterator[str | int]:
    """The references, with the jobs that a pattern or a range names in its place."""
    for ref in refs:
        found = None
        if isinstance(ref, str) and not table.taken(store, [ref]):
            found = ops.matching.matches(store, ref)
        if found == []:
            raise ops.matching.nothing(str(ref))
        yield from [ref] if found is None else found


def refuse_while_used(store: Store, reach: tuple[int, int], then: str) -> list[str]:
    """The ids of the tasks of finished jobs. Raises Conflict while something detached of these jobs is left.

    ``then``: what may be done with them when nothing is.
    """
    task = tasks.unfinished_among(store, *reach)
    if task is not None:
        raise Conflict(
            f"task {task['task_id']} of job {task['submission_id']} is detached and not over",
            fix=f"vctl task cancel {task['task_id']}, or wait for it, then {then}",
            details={"task_id": task["task_id"]},
        )
    if (cluster_id := clusters.detached_among(store, *reach)) is not None:
        raise Conflict(
            f"cluster {cluster_text(cluster_id)} is detached and still there",
            fix=f"vctl vc delete '{cluster_text(cluster_id)}', then {then}",
            details={"cluster_id": cluster_id},
        )
    return tasks.ids_among(store, [reach])


def prune(store: Store, older_than_s: float, *, dry_run: bool = False) -> Pruned:
    """Delete jobs that ended ``older_than_s`` ago or earlier, their logs, and events and files of that age.

    It works in slices, each in a transaction of its own with a pause after it, so that others can write. If
    it is interrupted, some jobs are deleted and the others are complete. ``store.progress`` hears of each slice.
    """
    from vctl.runtime import records_mark, trees

    before = store.clock() - int(older_than_s * 1e9)
    old: list[tuple[int, str]] = []
    events = 0
    if dry_run:
        numbers = table.numbers_ended(store, before)
        ended = table.ended_before(store, before, numbers)
        old = [member for row in ended for member in folded.members(row)]
    else:
        try:
            for forgotten in _forgotten(store, before):
                old += forgotten
            events = _forgotten_events(store, before)
        finally:
            store.progress("")
        with store.transaction():
            observed.tidy(store)
    files = [path for path in records_mark.asides(store.home) if path.lstat().st_ctime_ns < before]
    for path in files if not dry_run else ():
        trees.remove(path)
    return {
        "jobs": [submission_id for _, submission_id in old],
        "events": events,
        "files": [str(path.relative_to(store.home)) for path in files],
        "clusters": ops.user_clusters.prune(store, before, dry_run=dry_run),
        "dry_run": dry_run,
    }


def _forgotten(store: Store, before_ns: int) -> Iterator[list[tuple[int, str]]]:
    """Delete the jobs that ended before a moment; yields their numbers and ids."""
    numbers, have_logs = sorted(table.numbers_ended(store, before_ns)), logs.names(store.home)

    def forget(first: int, end: int) -> list[tuple[int, str]]:
        return _forget(store, before_ns, numbers[first:end], have_logs)

    for end, forgotten in _slices(store, list(accumulate(table.rows_of(store, numbers))), forget):
        store.progress(f"{end} of {len(numbers)} jobs deleted")
        yield forgotten


def _forgotten_events(store: Store, before_ns: int) -> int:
    """Delete the events before a moment, but none that a scheduler may not have read; returns how many."""
    lowest, highest = feed.span_before(store, min(before_ns, store.clock() - feed.UNREAD_NS))
    count, deleted = feed.count(store, "seq <= ?", [highest]), 0
    each = range(1, highest + 2 - lowest)
    for _, events in _slices(store, each, lambda _, end: feed.delete_until(store, lowest + end - 1)):
        deleted += events
        store.progress(f"{deleted} of {count} entries of the history deleted")
    return deleted


def _forget(
    store: Store, before_ns: int, numbers: Sequence[int], have_logs: set[str]
) -> list[tuple[int, str]]:
    """Delete those of some jobs that ended before a moment and have nothing left; returns their numbers and ids."""
    with store.transaction():
        ended = table.ended_before(store, before_ns, numbers)
        if not ended:
            return []
        spans = spans_of(row["job_id"] for row in ended)
        names = [row["submission_id"] for row in ended] + tasks.ids_among(store, spans)
        removed = [member for row in ended for member in folded.members(row)]
        store.emit(engine.changes.JobsPruned(spans, len(removed) - len(ended)))
        arrays.forget_empty(store, (row["array_id"] for row in ended))
    _forget_logs(store, [name for name in names if name in have_logs])
    return removed


def _forget_logs(store: Store, names: Sequence[str]) -> None:
    """Remove the logs of deleted jobs and tasks, except of ids that a new job has by now."""
    if not names:
        return
    with store.transaction():
        for name in set(names).difference(table.named(store, names)):
            logs.forget_log(store.home, name)


def _slices(store: Store, rows: Sequence[int], do: Callable[[int, int], T]) -> Iterator[tuple[int, T]]:
    """Call ``do(first, end)`` for slices of items that take ``SLICE_S`` each, with pauses between them.

    ``rows``: for each item, how many rows it and those before it have. A slice is sized in rows by the cost of those
    before it: one sized in items would be as long as the next items are dear.
    Writers that wait try more often than a pause is long, so that each of them gets through behind one slice. Yields
    the end of each slice and what was returned.
    """
    from bisect import bisect_right

    done, before, size = 0, 0, 50
    with store.checkpoints_aside():
        while done < len(rows):
            began = time.monotonic()
            end = max(done + 1, bisect_right(rows, before + size))
            result = do(done, end)
            done, took = end, time.monotonic() - began
            yield done, result
            before, deleted = rows[end - 1], rows[end - 1] - before
            size = max(10, min(5000, int(deleted * min(2.0, SLICE_S / took))))
            store.checkpoint()
            time.sleep(PAUSE_S)
