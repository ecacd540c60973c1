"""Writes the changes of clusters, their virtual nodes and their leases to the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vctl.core.clusters import PRIMARY, Cluster, VNode
from vctl.core.leases import Lease
from vctl.engine import changes as ch
from vctl.engine.lifecycle import CLUSTER, LEASE
from vctl.store import moves, rows
from vctl.store.rows import BORROW, LENDING, PRIMARY_QUEUE, PRIMARY_REVISION, QUEUE, STOPPED, dumps
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
        _settings("{}", _limits(cluster)) if cluster.borrow_limit or cluster.lending_limit else "{}",
    )  # fmt: skip


def _limits(cluster: Cluster) -> dict[str, Any]:
    return {BORROW: dict(cluster.borrow_limit or {}), LENDING: dict(cluster.lending_limit)}


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
    insert(db, CLUSTER_COLUMNS, [cluster_row(one.cluster, one.at, one.owner) for one in added])


@writes(ch.ClusterChanged)
def _changed(db: sqlite3.Connection, changed: Sequence[ch.ClusterChanged]) -> None:
    for one in changed:
        cluster = one.cluster
        db.execute(
            "UPDATE clusters SET spec = ?, revision = ?, updated_at = ? WHERE cluster_id = ?",
            (rows.spec_text(cluster.spec), cluster.revision, one.at, cluster.cluster_id),
        )
        _change_settings(db, cluster.cluster_id, _limits(cluster))


@writes(ch.ClusterMoved)
def _moved(db: sqlite3.Connection, moved: Sequence[ch.ClusterMoved]) -> None:
    for one in moved:
        moves.update(db, CLUSTER, one.move, one.cluster_id, "state = ?, updated_at = ?", (one.state, one.at))
        _change_settings(db, one.cluster_id, {STOPPED: one.stopped})


@writes(ch.QueueChanged)
def _queues_changed(db: sqlite3.Connection, changed: Sequence[ch.QueueChanged]) -> None:
    for one in changed:
        if one.cluster_id == PRIMARY:
            kept = ((PRIMARY_QUEUE, dumps(one.given)), (PRIMARY_REVISION, dumps(one.revision)))
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", kept)
        else:
            _change_settings(db, one.cluster_id, {QUEUE: one.given})


@writes(ch.ClusterDetached)
def _detached(db: sqlite3.Connection, detached: Sequence[ch.ClusterDetached]) -> None:
    found = [(one.cluster_id,) for one in detached]
    db.executemany("UPDATE clusters SET detached = 1 WHERE cluster_id = ?", found)


@writes(ch.VNodesChanged)
def _vnodes_changed(db: sqlite3.Connection, changed: Sequence[ch.VNodesChanged]) -> None:
    for one in changed:
        db.executemany("DELETE FROM vnodes WHERE vnode_id = ?", [(vnode_id,) for vnode_id in one.removed])
        db.executemany(_PUT_VNODE, [vnode_row(vnode) for vnode in one.placed])


@writes(ch.NodesPublished)
def _published(db: sqlite3.Connection, published: Sequence[ch.NodesPublished]) -> None:
    columns = [(dumps(list(one.nodes)), one.job_id) for one in published if one.job_id is not None]
    db.executemany("UPDATE jobs SET node_ids = ? WHERE job_id = ?", columns)


@writes(ch.NodeReplaced, ch.ClusterRepaired)
def _only_published(db: sqlite3.Connection, changes: Sequence[object]) -> None:
    """Write nothing: only the journal has these changes."""


@writes(ch.ClusterRemoved)
def remove(db: sqlite3.Connection, removed: Sequence[ch.ClusterRemoved]) -> None:
    """Delete clusters with their virtual nodes and leases."""
    for one in removed:
        if one.returned or one.lent:
            db.executemany(
                "DELETE FROM leases WHERE lease_id = ?", [(lease_id,) for lease_id in one.returned]
            )
            db.executemany(
                "UPDATE leases SET lender_id = ? WHERE lease_id = ?",
                [(one.lender_id, lease_id) for lease_id in one.lent],
            )
    ids = [one.cluster_id for one in removed]
    db.execute("DELETE FROM vnodes WHERE cluster_id IN (SELECT value FROM json_each(?))", (dumps(ids),))
    moves.delete_all(db, CLUSTER, "forget", ids)


_LEASE = (
    "INSERT INTO leases (lease_id, borrower_id, lender_id, amounts, since, expires_at, job_id, state)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (lease_id) DO UPDATE SET amounts = excluded.amounts, since = excluded.since"
)


@writes(ch.LeaseGranted)
def _leases_granted(db: sqlite3.Connection, granted: Sequence[ch.LeaseGranted]) -> None:
    _put(db, [one.lease for one in granted])


def _put(db: sqlite3.Connection, leases: Iterable[Lease]) -> None:
    db.executemany(
        _LEASE,
        [
            (
                one.lease_id, one.borrower_id, one.lender_id, dumps(dict(one.amounts)), one.since, one.expires_at,
                one.job_id, one.state,
            )
            for one in leases
        ],
    )  # fmt: skip


@writes(ch.LeaseCalled)
def _leases_called(db: sqlite3.Connection, called: Sequence[ch.LeaseCalled]) -> None:
    for one in called:
        values = (one.lease.state, one.lease.expires_at)
        if one.rest is None:
            moves.update(db, LEASE, "call", one.lease.lease_id, "state = ?, expires_at = ?", values)
        else:
            _cut(db, one.rest, "split")
            _put(db, [one.lease])


@writes(ch.LeaseSpared)
def _leases_spared(db: sqlite3.Connection, spared: Sequence[ch.LeaseSpared]) -> None:
    for one in spared:
        values = (one.lease.state, one.lease.expires_at)
        if one.account is None:
            moves.update(db, LEASE, "spare", one.lease.lease_id, "state = ?, expires_at = ?", values)
        else:
            moves.delete(db, LEASE, "merge", one.lease.lease_id)
            _put(db, [one.account])


@writes(ch.LeaseReturned)
def _leases_returned(db: sqlite3.Connection, returned: Sequence[ch.LeaseReturned]) -> None:
    for one in returned:
        lease = one.lease
        if lease.amounts:
            _cut(db, lease, "cut")
        else:
            moves.delete(db, LEASE, "return", lease.lease_id)


def _cut(db: sqlite3.Connection, lease: Lease, move: str) -> None:
    moves.update(db, LEASE, move, lease.lease_id, "amounts = ?", (dumps(dict(lease.amounts)),))
