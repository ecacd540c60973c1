"""Writes the changes of nodes, and of requests to a node provider, to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.engine.lifecycle import NODE
from vctl.store import moves, rows
from vctl.store.rows import dumps
from vctl.store.write.table import insert, writes


@writes(ch.NodeAdded)
def _nodes_added(db: sqlite3.Connection, added: Sequence[ch.NodeAdded]) -> None:
    for change in added:
        node, beats = change.node, change.heartbeat_timeout_s is not None
        amounts, instances, cores = rows.allocation_columns(node.total)
        db.execute(
            "INSERT INTO nodes (node_id, hostname, template_id, source, state, state_since, amounts, instances, cores,"
            " labels, boot_id, heartbeat_timeout_s, last_heartbeat, created_at, devices)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                node.node_id, node.hostname, node.template_id, node.source, node.state, change.at, amounts, instances,
                cores, dumps(dict(node.labels)), node.boot_id, change.heartbeat_timeout_s, change.at if beats else None,
                change.at, change.devices,
            ),
        )  # fmt: skip


@writes(ch.NodeMoved)
def _nodes_moved(db: sqlite3.Connection, moved: Sequence[ch.NodeMoved]) -> None:
    for change in moved:
        moves.update(
            db, NODE, change.move, change.node_id, "state = ?, reason = ?, author = ?, state_since = ?",
            (change.state, change.reason, change.author, change.at),
        )  # fmt: skip


@writes(ch.NodeChanged)
def _nodes_changed(db: sqlite3.Connection, changed: Sequence[ch.NodeChanged]) -> None:
    for change in changed:
        node = change.node
        amounts, instances, cores = rows.allocation_columns(node.total)
        db.execute(
            "UPDATE nodes SET amounts = ?, instances = ?, cores = ?, labels = ?, template_id = ?, shrunk = ?"
            " WHERE node_id = ?",
            (
                amounts, instances, cores, dumps(dict(node.labels)), node.template_id, node.shrunk, node.node_id,
            ),
        )  # fmt: skip


@writes(ch.DeviceFenced)
def _devices_fenced(db: sqlite3.Connection, fenced: Sequence[ch.DeviceFenced]) -> None:
    db.executemany(
        "UPDATE nodes SET fences = ? WHERE node_id = ?",
        [(rows.fences_text(change.node.fences), change.node.node_id) for change in fenced],
    )


@writes(ch.NodeRemoved)
def _nodes_removed(db: sqlite3.Connection, removed: Sequence[ch.NodeRemoved]) -> None:
    for change in removed:
        moves.delete(db, NODE, "forget", change.node_id)


_REQUEST = (
    "provider_requests (request_id, kind, action, template, amounts, labels, nodes, created_at, attempts,"
    " message)"
)


@writes(ch.MachinesAsked)
def _requests_made(db: sqlite3.Connection, requested: Sequence[ch.MachinesAsked]) -> None:
    rows = [
        (
            request.request_id, request.kind, request.action, request.template, dumps(dict(request.amounts)),
            dumps(dict(request.labels)), dumps(list(request.nodes)), request.created_at, request.attempts,
            request.message,
        )
        for request in (change.request for change in requested)
    ]  # fmt: skip
    insert(db, _REQUEST, rows)


@writes(ch.MachinesFailed)
def _requests_failed(db: sqlite3.Connection, failed: Sequence[ch.MachinesFailed]) -> None:
    db.executemany(
        "UPDATE provider_requests SET attempts = ?, message = ? WHERE request_id = ?",
        [(change.request.attempts, change.request.message, change.request.request_id) for change in failed],
    )


@writes(ch.MachinesDone)
def _requests_done(db: sqlite3.Connection, done: Sequence[ch.MachinesDone]) -> None:
    db.executemany(
        "DELETE FROM provider_requests WHERE request_id = ?",
        [(change.request.request_id,) for change in done],
    )
