"""Writes the changes of clusters, their virtual nodes and their leases to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vctl.core.clusters import PRIMARY, Cluster, VNode
from vctl.core.leases import Lease
from vctl.engine import changes as ch
from vctl.engine.lifecycle import CLUSTER, LEASE
from vctl.store import moves, rows
from vctl.store.rows import (
    ACCESS,
    BOOKING,
    BORROW,
    LENDING,
    OF_USER,
    PRIMARY_ACCESS,
    PRIMARY_QUEUE,
    PRIMARY_REVISION,
    PRIVATE,
    QUEUE,
    STOPPED,
    USER_TEMPLATE,
    dumps,
)
from vctl.store.write.table import insert, writes

CLUSTER_COLUMNS = (
    "clusters (cluster_id, parent_id, kind, divisible, revision, spec, state, job_id, created_at, updated_at,"
    " owner, settings)"
)
_VNODE = (
    "vnode_id", "cluster_id", "node_id", "parent_vnode_id", "kind", "whole", "rank", "amounts", "instances", "cores",
    "labels",
)  # fmt: skip
VNODE_COLUMNS = f"vnodes ({', '.join(_VNODE)})"
_PUT_VNODE = (
    f"INSERT INTO {VNODE_COLUMNS} VALUES ({', '.join('?' * len(_VNODE))}) ON CONFLICT (vnode_id) DO UPDATE SET"
    f" {', '.join(f'{name} = excluded.{name}' for name in _VNODE[1:])}"
)


def cluster_row(cluster: Cluster, at: int, owner: str | None = None) -> tuple[object, ...]:
    """A cluster as a row."""
    return (
        cluster.cluster_id, cluster.parent_id, cluster.kind, cluster.divisible, cluster.revision,
        rows.spec_text(cluster.spec), cluster.state, cluster.job, at, at, owner,
        _settings("{}", its) if any((its := _settings_of(cluster)).values()) else "{}",
    )  # fmt: skip


def _settings_of(cluster: Cluster) -> dict[str, Any]:
    limits = {BORROW: dict(cluster.borrow_limit or {}), LENDING: dict(cluster.lending_limit)}
    template = "" if cluster.user_template is None else rows.spec_text(cluster.user_template)
    return {
        **limits, PRIVATE: list(cluster.private), BOOKING: rows.booking_settings(cluster.booking),
        USER_TEMPLATE: template, OF_USER: cluster.of_user,
    }  # fmt: skip


def _settings(text: str, changes: Mapping[str, Any]) -> str:
    """The text of the column after some settings have changed; a setting with an empty value is removed."""
    return dumps({name: value for name, value in (rows.loads(text) | dict(changes)).items() if value})


def _change_settings(db: sqlite3.Connection, cluster_id: str, changes: Mapping[str, Any]) -> None:
    (text,) = db.execute("SELECT settings FROM clusters WHERE cluster_id = ?", (cluster_id,)).fetchone()
    db.execute(
        "UPDATE clusters SET settings = ? WHERE cluster_id = ?", (_settings(text, changes), cluster_id)
    )


def vnode_row(vnode: VNode) -> tuple[object, ...]:
    """A virtual node as a row."""
    amounts, instances, cores = rows.allocation_columns(vnode.allocation)
    return (
        vnode.vnode_id, vnode.cluster_id, vnode.node_id, vnode.parent_id, vnode.kind, vnode.whole, vnode.rank,
        amounts, instances, cores, dumps(dict(vnode.labels)),
    )  # fmt: skip


@writes(ch.ClusterAdded)
def _added(db: sqlite3.Connection, added: Sequence[ch.ClusterAdded]) -> None:
    insert(db, CLUSTER_COLUMNS, [cluster_row(change.cluster, change.at, change.owner) for change in added])


@writes(ch.ClusterChanged)
def _changed(db: sqlite3.Connection, changed: Sequence[ch.ClusterChanged]) -> None:
    for change in changed:
        cluster = change.cluster
        db.execute(
            "UPDATE clusters SET spec = ?, revision = ?, updated_at = ? WHERE cluster_id = ?",
            (rows.spec_text(cluster.spec), cluster.revision, change.at, cluster.cluster_id),
        )
        _change_settings(db, cluster.cluster_id, _settings_of(cluster))


@writes(ch.ClusterMoved)
def _moved(db: sqlite3.Connection, moved: Sequence[ch.ClusterMoved]) -> None:
    for change in moved:
        moves.update(
            db,
            CLUSTER,
            change.move,
            change.cluster_id,
            "state = ?, updated_at = ?",
            (change.state, change.at),
        )
        _change_settings(db, change.cluster_id, {STOPPED: change.stopped})


def _set(
    db: sqlite3.Connection, change: ch.QueueChanged | ch.AccessChanged, key: str, of_primary: str
) -> None:
    if change.cluster_id == PRIMARY:
        settings = ((of_primary, dumps(dict(change.given))), (PRIMARY_REVISION, dumps(change.revision)))
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", settings)
    else:
        _change_settings(db, change.cluster_id, {key: dict(change.given)})


@writes(ch.QueueChanged)
def _queues_changed(db: sqlite3.Connection, changed: Sequence[ch.QueueChanged]) -> None:
    for change in changed:
        _set(db, change, QUEUE, PRIMARY_QUEUE)


@writes(ch.AccessChanged)
def _accesses_changed(db: sqlite3.Connection, changed: Sequence[ch.AccessChanged]) -> None:
    for change in changed:
        _set(db, change, ACCESS, PRIMARY_ACCESS)


@writes(ch.ClusterDetached)
def _detached(db: sqlite3.Connection, detached: Sequence[ch.ClusterDetached]) -> None:
    ids = [(change.cluster_id,) for change in detached]
    db.executemany("UPDATE clusters SET detached = 1 WHERE cluster_id = ?", ids)


@writes(ch.VNodesChanged)
def _vnodes_changed(db: sqlite3.Connection, changed: Sequence[ch.VNodesChanged]) -> None:
    for change in changed:
        db.executemany("DELETE FROM vnodes WHERE vnode_id = ?", [(vnode_id,) for vnode_id in change.removed])
        db.executemany(_PUT_VNODE, [vnode_row(vnode) for vnode in change.placed])


@writes(ch.NodesPublished)
def _published(db: sqlite3.Connection, published: Sequence[ch.NodesPublished]) -> None:
    columns = [
        (dumps(list(change.nodes)), change.job_id) for change in published if change.job_id is not None
    ]
    db.executemany("UPDATE jobs SET node_ids = ? WHERE job_id = ?", columns)


@writes(ch.NodeReplaced)
def only_published(db: sqlite3.Connection, changes: Sequence[object]) -> None:
    """Write nothing: only the journal has these changes."""


@writes(ch.ClusterRemoved)
def remove(db: sqlite3.Connection, removed: Sequence[ch.ClusterRemoved]) -> None:
    """Delete clusters with their virtual nodes and leases."""
    for change in removed:
        if change.returned or change.lent:
            db.executemany(
                "DELETE FROM leases WHERE lease_id = ?", [(lease_id,) for lease_id in change.returned]
            )
            db.executemany(
                "UPDATE leases SET lender_id = ? WHERE lease_id = ?",
                [(change.lender_id, lease_id) for lease_id in change.lent],
            )
    ids = [change.cluster_id for change in removed]
    db.execute("DELETE FROM vnodes WHERE cluster_id IN (SELECT value FROM json_each(?))", (dumps(ids),))
    moves.delete_all(db, CLUSTER, "forget", ids)


_LEASE = (
    "INSERT INTO leases (lease_id, borrower_id, lender_id, amounts, since, expires_at, job_id, state)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (lease_id) DO UPDATE SET amounts = excluded.amounts, since = excluded.since"
)


@writes(ch.LeaseGranted)
def _leases_granted(db: sqlite3.Connection, granted: Sequence[ch.LeaseGranted]) -> None:
    _put(db, [change.lease for change in granted])


def _put(db: sqlite3.Connection, leases: Iterable[Lease]) -> None:
    db.executemany(
        _LEASE,
        [
            (
                lease.lease_id, lease.borrower_id, lease.lender_id, dumps(dict(lease.amounts)), lease.since,
                lease.expires_at, lease.job_id, lease.state,
            )
            for lease in leases
        ],
    )  # fmt: skip


@writes(ch.LeaseCalled)
def _leases_called(db: sqlite3.Connection, called: Sequence[ch.LeaseCalled]) -> None:
    for change in called:
        values = (change.lease.state, change.lease.expires_at)
        if change.rest is None:
            moves.update(db, LEASE, "call", change.lease.lease_id, "state = ?, expires_at = ?", values)
        else:
            _cut(db, change.rest, "split")
            _put(db, [change.lease])


@writes(ch.LeaseSpared)
def _leases_spared(db: sqlite3.Connection, spared: Sequence[ch.LeaseSpared]) -> None:
    for change in spared:
        values = (change.lease.state, change.lease.expires_at)
        if change.account is None:
            moves.update(db, LEASE, "spare", change.lease.lease_id, "state = ?, expires_at = ?", values)
        else:
            moves.delete(db, LEASE, "merge", change.lease.lease_id)
            _put(db, [change.account])


@writes(ch.LeaseReturned)
def _leases_returned(db: sqlite3.Connection, returned: Sequence[ch.LeaseReturned]) -> None:
    for change in returned:
        lease = change.lease
        if lease.amounts:
            _cut(db, lease, "cut")
        else:
            moves.delete(db, LEASE, "return", lease.lease_id)


def _cut(db: sqlite3.Connection, lease: Lease, move: str) -> None:
    moves.update(db, LEASE, move, lease.lease_id, "amounts = ?", (dumps(dict(lease.amounts)),))
