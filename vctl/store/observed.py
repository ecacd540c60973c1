"""Writes rows that may be lost, as they are observed or judged again: no changes, and not in the journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vctl.core import tasks as tk
from vctl.store.contents import JOBS
from vctl.store.rows import dumps
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.scheduler.fairness import Usage


def set_task_waits(store: Store, waits: Iterable[tuple[str, str, str]]) -> None:
    """Record why tasks wait for a virtual node: (reason, message, task id)."""
    store.db.executemany(
        f"UPDATE tasks SET state_reason = ?, message = ? WHERE task_id = ? AND state = '{tk.PENDING_NODE}'",
        waits,
    )


def set_wait(store: Store, parent_id: str, shape: str, reason: str, message: str) -> None:
    """Record why jobs of a shape wait below a parent."""
    store.db.execute(
        "INSERT INTO waits VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET reason = excluded.reason,"
        " message = excluded.message",
        (parent_id, shape, reason, message, store.clock()),
    )


def waits(store: Store, cluster_ids: Iterable[str] | None = None) -> list[Row]:
    """Why jobs wait, by parent and shape: in these clusters, or in all."""
    sql = "SELECT parent_cluster_id, shape, reason, message FROM waits"
    if cluster_ids is None:
        return store.rows(sql)
    return store.rows(
        f"{sql} WHERE parent_cluster_id IN (SELECT value FROM json_each(?))", dumps(sorted(cluster_ids))
    )


def count_waits(store: Store, cluster_ids: Iterable[str] | None = None) -> int:
    """How many classes of jobs wait for some reason: in these clusters, or in all."""
    sql = "SELECT count(*) FROM waits"
    if cluster_ids is None:
        return int(store.value(sql))
    where = "WHERE parent_cluster_id IN (SELECT value FROM json_each(?))"
    return int(store.value(f"{sql} {where}", dumps(sorted(cluster_ids))))


def clear_wait(store: Store, parent_id: str, shape: str) -> None:
    """Delete the reason of a shape that has no waiting job any more."""
    store.db.execute("DELETE FROM waits WHERE parent_cluster_id = ? AND shape = ?", (parent_id, shape))


def capacity(store: Store) -> int:
    """A number that changes with every change of a node, or of a cluster that was created by name."""
    return int(store.value("SELECT capacity FROM head"))


def is_feasible(store: Store, parent_id: str, shape: str) -> bool:
    """Whether a shape was judged feasible below a parent, and the capacity has not changed since."""
    known = store.value(
        "SELECT 1 FROM feasible JOIN head ON version = capacity WHERE parent_cluster_id = ? AND shape = ?",
        parent_id,
        shape,
    )
    return known is not None


def set_feasible(store: Store, parent_id: str, shape: str, version: int) -> None:
    """Record that a shape is feasible at a capacity (``version``), for the next job of that shape."""
    store.db.execute("INSERT OR REPLACE INTO feasible VALUES (?, ?, ?)", (parent_id, shape, version))


def tidy(store: Store) -> None:
    """Delete rows that nothing reads any more, inside a transaction: verdicts for an earlier capacity, counts
    of zero, and the reasons of shapes that no waiting job has."""
    store.db.execute("DELETE FROM feasible WHERE version <> (SELECT capacity FROM head)")
    store.db.execute("DELETE FROM job_counts WHERE count = 0")
    store.db.execute(
        "DELETE FROM waits WHERE (parent_cluster_id, shape) NOT IN ("
        f"SELECT parent_cluster_id, shape FROM {JOBS} WHERE status = 'PENDING' UNION ALL"
        f" SELECT parent_cluster_id, shape || ';user=' || user FROM {JOBS} WHERE status = 'PENDING')"
    )


def save_usage(store: Store, usage: Usage, cluster_ids: Iterable[str]) -> None:
    """Replace the saved usage of these clusters by ``usage``, as of the time ``usage.at_ns``; inside a transaction."""
    ids = set(cluster_ids)
    for table in ("usage", "lags"):
        store.db.executemany(
            f"DELETE FROM {table} WHERE cluster_id = ?", [(cluster_id,) for cluster_id in ids]
        )
    store.db.executemany(
        "INSERT INTO usage (cluster_id, child_id, user, resource, amount, at) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (*member, resource, amount, usage.at_ns)
            for member, used in usage.past.items()
            if member[0] in ids
            for resource, amount in used.items()
        ],
    )
    store.db.executemany(
        "INSERT INTO lags (cluster_id, child_id, user, lag, waits, at) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (*member, usage.lag.get(member, 0.0), member in usage.waiting, usage.at_ns)
            for member in {*usage.lag, *usage.waiting}
            if member[0] in ids
        ],
    )


def save_reservations(store: Store, changed: Iterable[tuple[object, ...]], dropped: Iterable[int]) -> None:
    """Replace these rows, and delete those of the jobs ``dropped``; inside a transaction."""
    store.db.executemany("DELETE FROM reservations WHERE job_id = ?", [(job_id,) for job_id in dropped])
    store.db.executemany("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", changed)


def heartbeat(store: Store, node_id: str, timeout_s: float | None) -> None:
    """Record a heartbeat. A timeout gives the node a heartbeat lease; only a new timeout makes an event."""
    if timeout_s is not None and timeout_s != store.value(
        "SELECT heartbeat_timeout_s FROM nodes WHERE node_id = ?", node_id
    ):
        store.event("node.heartbeat", "node", node_id, data={"timeout_s": timeout_s})
    store.db.execute(
        "UPDATE nodes SET last_heartbeat = ?, heartbeat_timeout_s = coalesce(?, heartbeat_timeout_s) WHERE node_id = ?",
        (store.clock(), timeout_s, node_id),
    )


def remember(store: Store, key: str, value: object) -> None:
    """Keep a small value under a name, as JSON."""
    store.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, dumps(value)))


def remember_devices(store: Store, node_id: str, devices: object) -> None:
    """Write what is known of the devices of a node."""
    store.db.execute("UPDATE nodes SET devices = ? WHERE node_id = ?", (dumps(devices), node_id))
