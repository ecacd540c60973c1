"""Queue positions of waiting jobs; computed for each question, never stored.

The position of a job is 1 plus the number of jobs ahead of it: those that may start now (neither held, nor waiting
for a time or for other jobs) and that the scheduler takes before it. It is the order of the starts while everything
that it takes fits; where something does not fit, the discipline of the queue says who may pass. A job that may not
start yet has the position that it would get now.

In the default order SQL counts along an index. In other orders the jobs of a queue are sorted by the functions of the
scheduler: by key; in the order ``fair`` by the shares of the users as they are now, each start counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.clusters import ClusterSpec
from vctl.core.gates import opens_at
from vctl.core.jobs import PendingJob
from vctl.core.listed import Alike, Values, runs
from vctl.core.queue_policy import FAIR, PRIORITY, QueuePolicy
from vctl.core.resources import Amounts
from vctl.store import job_views, nodes, queues, rows, settings
from vctl.store.store import Row, Store

FEW = 500
"""Above this number of jobs, one pass over their queues is cheaper than one query for each job."""
_NO_SPEC = ClusterSpec()
_GATES = ("held", "waits_for", "begin_at")


def position(store: Store, row: Row) -> int | None:
    """The position of one job in its queue, from 1; None when it does not wait."""
    if row["status"] != jb.PENDING:
        return None
    policy = settings.queue_of(store, row["parent_cluster_id"])
    if is_plain(policy):
        return queues.position(store, row["parent_cluster_id"], row["priority"], row["job_id"])
    return _place(in_order(store, row["parent_cluster_id"], policy), row["job_id"])


def positions(store: Store, columns: Mapping[str, Values]) -> Values:
    """The queue positions of jobs, newest first; None for a job that does not wait."""
    numbers = columns["job_id"]
    kinds = list(runs(columns["status"], columns["parent_cluster_id"], columns["priority"]))
    clusters = {cluster_id for (status, cluster_id, _), _ in kinds if status == jb.PENDING}
    if not clusters:
        return Alike(None, len(numbers))
    special = {
        cluster_id: policy
        for cluster_id, policy in settings.queues(store).items()
        if not is_plain(policy) and cluster_id in clusters
    }
    if len(kinds) == 1 and not special and all(isinstance(columns[name], Alike) for name in _GATES):
        _, cluster_id, priority = kinds[0][0]
        last, first = (
            queues.position(store, cluster_id, priority, number) for number in (numbers[0], numbers[-1])
        )
        if opens_at(*(columns[name][0] for name in _GATES)) > store.clock():
            if last == first:
                return Alike(last, len(numbers))
        elif last - first == len(numbers) - 1:  # no other job that may start is between them
            return range(last, first - 1, -1)
    plain = [
        (job_id, cluster_id, priority)
        for (status, cluster_id, priority), at in kinds
        for job_id in numbers[at.start : at.stop]
        if status == jb.PENDING and cluster_id not in special
    ]
    known: dict[int, int] = {}
    if len(plain) > FEW:
        for cluster_id in clusters.difference(special):
            known |= queues.positions(store, cluster_id)
    else:
        known = {
            job_id: queues.position(store, cluster_id, priority, job_id)
            for job_id, cluster_id, priority in plain
        }
    listed = sorted(numbers) if special else []
    for cluster_id, policy in special.items():
        from bisect import bisect_left

        for (first, count, row), place in _places(in_order(store, cluster_id, policy)):
            its = listed[bisect_left(listed, first) : bisect_left(listed, first + count)]
            known |= {number: place + (number - first) * row["is_ready"] for number in its}
    return list(map(known.get, numbers))


def ahead(store: Store, row: Row) -> list[int]:
    """The jobs ahead of a waiting job, in the order of their turns; its position is one more than their number."""
    cluster_id = row["parent_cluster_id"]
    policy = settings.queue_of(store, cluster_id)
    if is_plain(policy):
        return queues.ids_before(store, cluster_id, row["priority"], row["job_id"])
    order = in_order(store, cluster_id, policy)
    ready = (
        number for first, count, one in order if one["is_ready"] for number in range(first, first + count)
    )
    return list(islice(ready, _place(order, row["job_id"]) - 1))


def head(store: Store, cluster_id: str, limit: int) -> list[tuple[Row, int, int]]:
    """The first jobs of a queue in order: (row of ``job_views``, waiting jobs that it stands for, position).

    A member of an array stands for the members behind it that have its priority.
    """
    policy = settings.queue_of(store, cluster_id)
    heads: list[tuple[Row, int, int]] = []
    if is_plain(policy):
        number = 1
        for row, members, ready in job_views.head(store, cluster_id, limit):
            heads.append((row, members, number))
            number += ready
        return heads
    order = in_order(store, cluster_id, policy)
    lines = dict[tuple[object, int], tuple[int, int, int]]()
    for (first, count, one), place in _places(order):
        line = (first if one["array_id"] is None else one["array_id"], one["priority"])
        head_, members, its_place = lines.get(line, (first, 0, place))
        lines[line] = head_, members + count, its_place
    for job_id, members, place in list(lines.values())[:limit]:
        if (shown := job_views.get(store, job_id)) is not None:
            heads.append((shown, members, place))
    return heads


def is_plain(policy: QueuePolicy) -> bool:
    """Whether the order of a queue is that of an index: priority, then arrival."""
    return policy.order == PRIORITY and policy.ageing_ns is None


Part = tuple[int, int, Row]
"""Jobs that follow each other in a queue: the number of the first one, how many they are, and their row."""


def _places(order: list[Part]) -> Iterator[tuple[Part, int]]:
    """Each part of a queue with the position of its first job."""
    place = 1
    for part in order:
        yield part, place
        place += part[1] * part[2]["is_ready"]


def _place(order: list[Part], job_id: int) -> int:
    """The position of a job."""
    return next(
        place + (job_id - first) * int(row["is_ready"])
        for (first, count, row), place in _places(order)
        if first <= job_id < first + count
    )


def in_order(store: Store, cluster_id: str, policy: QueuePolicy) -> list[Part]:
    """The waiting jobs of a queue in the order in which the scheduler takes them."""
    from vctl.scheduler.orders import order_key

    waiting = queues.waiting_rows(store, cluster_id)
    if policy.order == FAIR:
        return _by_turns(store, cluster_id, waiting)
    waiting.sort(key=lambda row: order_key(_job_of(row), policy))
    return [(row["job_id"], row["members"], row) for row in waiting]


def _by_turns(store: Store, cluster_id: str, waiting: list[Row]) -> list[Part]:
    """The jobs in the order of fair shares."""
    from vctl.scheduler.fairness import order_of_starts
    from vctl.store import usage

    held = {request: _held(store, *request) for request in {(row["spec"], row["entry"]) for row in waiting}}
    by_id = {row["job_id"]: row for row in waiting}
    given = [(_job_of(row), held[row["spec"], row["entry"]] if row["is_ready"] else None) for row in waiting]
    order, passed = list[Part](), Counter[int]()
    for job, count in order_of_starts(usage.shares(store, cluster_id), cluster_id, given):
        order.append((job.job_id + passed[job.job_id], count, by_id[job.job_id]))
        passed[job.job_id] += count
    return order


def _held(store: Store, spec_text: str, entry_text: str) -> Amounts:
    """What a job will hold when it starts."""
    from vctl.ops.feasible import requested

    spec = rows.spec(spec_text)
    whole = (nodes.amounts_of(store, name, count) for name, count in spec.replica_sets.items())
    return rs.total([requested(spec, rows.entry(entry_text)), *whole])


def _job_of(row: Row) -> PendingJob:
    return PendingJob(
        row["job_id"], "", "", "", _NO_SPEC, {}, row["priority"], user=row["user"],
        submitted_at_ns=row["submitted_at"], time_limit_ns=rows.in_ns(row["time_limit_s"]), members=row["members"],
    )  # fmt: skip
