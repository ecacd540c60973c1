"""SQL about reservations: what the queues keep for their first jobs until the next round.

Which reservations there are depends on what was there before, so they cannot be found anew. The scheduler writes them
whenever they change. So who reads them knows what the next round will start from: a new scheduler, and ``vctl why``.

A row counts only while its job waits as it did, and while the policy of its queue is the one under which the
reservation was made: what an edit or another policy makes void is void before any scheduler has seen it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.jobs import PendingJob
from vctl.core.queue_policy import DEFAULT, QueuePolicy
from vctl.engine.codec import text_of, value_of
from vctl.scheduler.placement_result import Placed
from vctl.scheduler.reservations import Reservation, Shared
from vctl.scheduler.shared_reservations import Kept
from vctl.store import settings
from vctl.store.gates import in_queue
from vctl.store.rows import dumps, in_ns, loads
from vctl.store.store import Row, Store

_VALID = (
    "SELECT r.*, j.time_limit_s FROM reservations r CROSS JOIN jobs j USING (job_id, parent_cluster_id, priority)"
    " JOIN commands USING (command_id) JOIN requests USING (request_id, shape)"
    f" WHERE j.status = 'PENDING' AND {in_queue('j.')} ORDER BY job_id"
)  # CROSS: the few reservations first, not all that waits


def rows(store: Store) -> list[Row]:
    """All rows, by job."""
    return store.rows("SELECT * FROM reservations ORDER BY job_id")


def load(store: Store) -> dict[str, dict[int, Kept]]:
    """Cluster -> job -> what its queue keeps for it."""
    by_cluster: dict[str, dict[int, Kept]] = {}
    policies: dict[str, str] | None = None
    for row in store.rows(_VALID):
        policies = policies or {
            cluster_id: text_of(policy) for cluster_id, policy in settings.queues(store).items()
        }
        is_same = row["policy"] == policies.get(row["parent_cluster_id"], text_of(DEFAULT))
        if is_same and row["time_limit_ns"] == in_ns(row["time_limit_s"]):
            by_cluster.setdefault(row["parent_cluster_id"], {})[row["job_id"]] = kept(row)
    return by_cluster


def check(row: Row) -> Row:
    """The row itself, if it is valid; raises an error for an unreadable row otherwise."""
    kept(row)
    return row


def kept(row: Row) -> Kept:
    """A row as a value."""
    job_id, own, shared = row["job_id"], row["own"], row["shared"]
    return Kept(
        None if own is None else _reservation(job_id, loads(own)),
        None if shared is None else _shared(job_id, loads(shared)),
    )


def columns(job: PendingJob, policy: QueuePolicy, one: Kept) -> tuple[object, ...]:
    """All columns of the row for a job."""
    own = None if one.own is None else _text(one.own)
    shared = None if one.shared is None else _text(one.shared.reservation)
    if one.shared is not None:
        more = {
            "level": one.shared.level, "scope": one.shared.scope, "own": sorted(one.shared.own),
            "is_turn": one.shared.is_turn, "behind": sorted(one.shared.behind, key=lambda found: found[0]),
        }  # fmt: skip
        shared = f'{dumps(more)[:-1]},"reservation":{shared}}}'
    limit_ns = job.time_limit_ns
    return job.job_id, job.parent_id, job.priority, job.shape, limit_ns, text_of(policy), own, shared


def _text(reservation: Reservation) -> str:
    times = f'"start":{dumps(reservation.start_ns)},"end":{dumps(reservation.end_ns)}'
    times = f'"name":{dumps(reservation.submission_id)},{times}'
    return f'{{{times},"placed":{text_of(reservation.placed)}}}'


def _reservation(job_id: int, data: Mapping[str, object]) -> Reservation:
    name, start_ns, end_ns = data["name"], data["start"], data["end"]
    if (
        not isinstance(name, str)
        or not isinstance(start_ns, int | None)
        or not isinstance(end_ns, int | None)
    ):
        raise ValueError(f"{data!r} is no reservation")
    return Reservation.at(job_id, name, start_ns, end_ns, value_of(Placed, data["placed"]))


def _shared(job_id: int, data: Mapping[str, object]) -> Shared:
    reservation, level, scope, own, is_turn, behind = (
        data[name] for name in ("reservation", "level", "scope", "own", "is_turn", "behind")
    )
    if not isinstance(level, str) or not isinstance(scope, str) or not isinstance(is_turn, bool):
        raise ValueError(f"{data!r} is no shared reservation")
    if not isinstance(reservation, dict) or not isinstance(own, list) or not isinstance(behind, list):
        raise ValueError(f"{data!r} is no shared reservation")
    others = frozenset((other, start_ns) for other, start_ns in behind)
    return Shared(_reservation(job_id, reservation), level, scope, frozenset(own), is_turn, others)
