"""Queue positions of waiting jobs; computed for each question, never stored.

In the default order SQL counts along an index. In other orders the jobs of a cluster are sorted by the same
function that the scheduler uses. In the order ``fair``, the next place goes to the user with the smallest
share, counting what this user holds and the places before. In the order ``makespan``, the plan of the
scheduler is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.clusters import ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.listed import Alike, Values, runs
from vctl.core.queue_policy import FAIR, MAKESPAN, PRIORITY, QueuePolicy
from vctl.ops.capacity import totals_of
from vctl.store import job_views, queues, rows, settings
from vctl.store.store import Row, Store

FEW = 500
"""Above this number of jobs, one pass over their queues is cheaper than one query for each job."""
_NO_SPEC = ClusterSpec()


def position(store: Store, row: Row) -> int | None:
    """The position of one job in its queue, from 1; None when it does not wait."""
    if row["status"] != jb.PENDING:
        return None
    policy = settings.queue_of(store, row["parent_cluster_id"])
    if is_plain(policy):
        return queues.position(store, row["parent_cluster_id"], row["priority"], row["job_id"])
    return _places(store, row["parent_cluster_id"], policy)[row["job_id"]]


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
    if len(kinds) == 1 and not special:
        _, cluster_id, priority = kinds[0][0]
        last, first = (queues.position(store, cluster_id, priority, one) for one in (numbers[0], numbers[-1]))
        if last - first == len(numbers) - 1:  # no other job is between them
            return range(last, first - 1, -1)
    plain = [
        (job_id, cluster_id, priority)
        for (status, cluster_id, priority), at in kinds
        for job_id in numbers[at.start : at.stop]
        if status == jb.PENDING and cluster_id not in special
    ]
    found: dict[int, int] = {}
    if len(plain) > FEW:
        for cluster_id in clusters.difference(special):
            found |= queues.positions(store, cluster_id)
    else:
        found = {
            job_id: queues.position(store, cluster_id, priority, job_id)
            for job_id, cluster_id, priority in plain
        }
    for cluster_id, policy in special.items():
        found |= _places(store, cluster_id, policy)
    return list(map(found.get, numbers))


def ahead(store: Store, row: Row, limit: int) -> list[Row]:
    """The first rows of ``job_views`` of the jobs ahead of a job in its queue, in queue order."""
    parent_id = row["parent_cluster_id"]
    policy = settings.queue_of(store, parent_id)
    if is_plain(policy):
        return job_views.queue_before(store, parent_id, row["priority"], row["job_id"], limit)
    places = _places(store, parent_id, policy)
    before = sorted((place, job_id) for job_id, place in places.items() if place < places[row["job_id"]])
    found = (job_views.get(store, job_id) for _, job_id in before[:limit])
    return [one for one in found if one is not None]


def is_plain(policy: QueuePolicy) -> bool:
    """Whether the order of a queue is that of an index: priority, then arrival."""
    return policy.order == PRIORITY and policy.ageing_ns is None


def _places(store: Store, cluster_id: str, policy: QueuePolicy) -> dict[int, int]:
    from vctl.scheduler.orders import order_key

    waiting = queues.waiting_rows(store, cluster_id)
    waiting.sort(key=lambda row: order_key(_job_of(row), policy))
    if policy.order == MAKESPAN:
        waiting = _as_planned(store, cluster_id, waiting)
    if policy.order == FAIR:
        waiting = _by_turns(store, cluster_id, waiting)
    return {row["job_id"]: place for place, row in enumerate(waiting, 1)}


def _as_planned(store: Store, cluster_id: str, waiting: list[Row]) -> list[Row]:
    """The jobs in the order of the scheduler's plan; jobs that are not in the queue yet come last."""
    from vctl.ops import situations  # here, because a list of jobs does not need the whole scheduler
    from vctl.scheduler.foresight import in_plan
    from vctl.scheduler.whatif import running_of

    now = situations.load(store)
    queued = [job for job in now.pending if job.parent_id == cluster_id]
    planned = in_plan(now.ledger, cluster_id, queued, running_of(now), now.now_ns)
    place = {job.job_id: number for number, job in enumerate(planned)}
    return sorted(waiting, key=lambda row: place.get(row["job_id"], len(place)))


def _job_of(row: Row) -> PendingJob:
    return PendingJob(
        row["job_id"], "", "", "", _NO_SPEC, {}, row["priority"], submitted_at_ns=row["submitted_at"],
        time_limit_ns=rows.in_ns(row["time_limit_s"]),
    )  # fmt: skip


def _by_turns(store: Store, cluster_id: str, waiting: list[Row]) -> list[Row]:
    """The jobs in the order of fair share: again and again the next job of the user with the least share."""
    from heapq import heapify, heappop, heapreplace

    total, _ = totals_of(store, cluster_id)
    lines: dict[str, list[Row]] = {}
    for row in reversed(waiting):
        lines.setdefault(row["user"], []).append(row)
    held: dict[str, dict[str, int]] = {}
    for user, resources in queues.held_by_users(store, cluster_id):
        held[user] = rs.add(held.get(user, {}), rows.loads(resources or "{}"))

    def turn(user: str) -> tuple[float, int, int, str]:
        share = max((a / total[n] for n, a in held.get(user, {}).items() if total.get(n)), default=0.0)
        first = lines[user][-1]
        return (share, -first["priority"], first["job_id"], user)

    heap = [turn(user) for user in lines]
    heapify(heap)
    served: list[Row] = []
    while heap:
        user = heap[0][-1]
        row = lines[user].pop()
        served.append(row)
        held[user] = rs.add(held.get(user, {}), rows.loads(row["resources"] or "{}"))
        if lines[user]:
            heapreplace(heap, turn(user))
        else:
            heappop(heap)
    return served
