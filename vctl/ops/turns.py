"""Jobs in the order in which people look for them: running ones, then the queues in their order, then finished ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.listed import field_of, ordered, together
from vctl.ops import positions
from vctl.store import folded, job_views, queues, settings
from vctl.store.filters import Condition, Filter
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm

Part = tuple[int, int, Sequence[int]]
"""The priority of a row, its number, and the numbers of the jobs for which it stands."""


Read = Callable[..., tuple[Sequence["JobForm"], int]]
"""Reads the newest jobs in some states up to ``limit``, and how many there are."""


def in_turn(
    read: Read, first: Read | None, states: Collection[str], limit: int | None
) -> tuple[Sequence[JobForm], int]:
    """Jobs in that order, and how many there are. ``first`` reads the first waiting jobs; None: all are read."""
    parts: list[Sequence[JobForm]] = []
    total = 0
    for group in ({jb.RUNNING}, {jb.PENDING}, jb.FINAL):
        if not (chosen := group.intersection(states)):
            continue
        rest = None if limit is None else limit - sum(map(len, parts))
        if jb.PENDING not in chosen:
            least = None if rest is None else max(rest, 1)  # one, too, is enough to count them
            listed, count = read(chosen, limit=least)
        elif first is None:
            listed, count = read(chosen, limit=None)
            listed = ordered(listed, _by_position(listed))
        else:
            listed, count = first(rest)
        parts.append(listed if rest is None or rest >= len(listed) else listed[:rest])
        total += count
    return together(parts), total


def _by_position(listed: Sequence[JobForm]) -> list[int]:
    """The places of waiting jobs in a list, ordered by position, priority and number."""
    fields = (field_of(listed, name) for name in ("queue_position", "priority", "job_id"))
    keys = [(position or 0, -priority, number) for position, priority, number in zip(*fields, strict=True)]
    return sorted(range(len(keys)), key=keys.__getitem__)


def queued(
    store: Store,
    within: Condition,
    own: list[Filter],
    forms: Callable[..., Sequence[JobForm]],
    limit: int | None,
) -> tuple[Sequence[JobForm], int]:
    """The first waiting jobs that match, in the order of their queues, and how many match.

    The filters ``own`` are about what differs among members of an array that share a row. ``forms`` reads rows by a
    condition, with the members for which some of them stand.
    """
    where, values = within
    shared = {
        row["job_id"]: numbers
        for row in folded.among(store, f"{job_views.in_states({jb.PENDING})} AND {where}", values)
        if (numbers := job_views.passing(row, own))
    }
    narrowed, its_values = job_views.condition(store, own)
    rows_, row_values = f"({narrowed} AND {job_views.OWN_ROW})", its_values
    if shared:
        these, numbers_ = job_views.with_numbers(sorted(shared, reverse=True))
        rows_, row_values = f"({rows_} OR {these})", [*its_values, *numbers_]
    chosen = _waiting(store, f"{where} AND {rows_}", [*values, *row_values], shared, limit)
    counted = where if narrowed == "1" else f"{where} AND {narrowed}"
    total = job_views.count(
        store, {jb.PENDING}, counted, [*values, *its_values], sum(map(len, shared.values()))
    )
    members: dict[int, list[int]] = {row: [] for _, row in chosen if row in shared}
    for one, row in sorted(chosen):
        if row in members:
            members[row].append(one)
    if not chosen:
        return [], total
    present = sorted({row for _, row in chosen}, reverse=True)
    listed = forms(*job_views.with_numbers(present), members)
    places = {number: at for at, number in enumerate(field_of(listed, "job_id"))}
    return ordered(listed, [places[one] for one, _ in chosen]), total


def _waiting(
    store: Store, where: str, values: Sequence[object], shared: Mapping[int, Sequence[int]], limit: int | None
) -> list[tuple[int, int]]:
    """The first waiting jobs of all queues by priority and number: (job, its row); each queue keeps its own order.

    ``where``: a condition on rows; ``shared``: rows that stand for several members of an array -> those that match.
    """
    lines = [_line(store, cluster_id, where, values, shared, limit) for cluster_id in queues.with_jobs(store)]
    if not lines:
        return []
    from heapq import merge

    merged = merge(*lines, key=lambda part: (-part[0], part[1]))
    return list(islice(((number, row) for _, row, numbers in merged for number in numbers), limit))


def _line(
    store: Store,
    cluster_id: str,
    where: str,
    values: Sequence[object],
    shared: Mapping[int, Sequence[int]],
    limit: int | None,
) -> Iterator[Part]:
    policy = settings.queue_of(store, cluster_id)
    is_plain = positions.is_plain(policy)
    matching = queues.matching(store, cluster_id, where, values, limit if is_plain else None)
    if is_plain:
        for row in matching:
            yield row["priority"], row["job_id"], shared.get(row["job_id"], (row["job_id"],))
        return
    known = {row["job_id"] for row in matching}
    for first, count, row in positions.in_order(store, cluster_id, policy):
        if (number := row["job_id"]) in known:
            its = [
                one for one in range(first, first + count) if number not in shared or one in shared[number]
            ]
            yield row["priority"], number, its


def merged(listed: Iterable[JobForm], limit: int | None) -> Sequence[JobForm]:
    """Jobs in that order, and behind them arrays, as one list of that order: jobs keep their own order in a state."""
    from heapq import merge

    forms = list(listed)
    jobs = [form for form in forms if "array" not in form]
    arrays = sorted((form for form in forms if "array" in form), key=turn)
    return list(islice(merge(jobs, arrays, key=turn), limit))


def turn(form: JobForm) -> tuple[int, int, int]:
    """The place of an entry in that order, by the default order of queues."""
    if form["status"] == jb.PENDING:
        return 1, -form["priority"], form["job_id"]
    return (0 if form["status"] == jb.RUNNING else 2), 0, -form["job_id"]
