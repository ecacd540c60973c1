"""How changes of what a node provider is asked for change the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.store.rows import dumps
from vctl.store.write.table import insert, writes

_REQUEST = (
    "provider_requests (request_id, kind, action, template, amounts, labels, nodes, created_at, attempts,"
    " message)"
)


@writes(ch.MachinesAsked)
def _asked(db: sqlite3.Connection, asked: Sequence[ch.MachinesAsked]) -> None:
    rows = [
        (
            one.request_id, one.kind, one.action, one.template, dumps(dict(one.amounts)), dumps(dict(one.labels)),
            dumps(list(one.nodes)), one.created_at, one.attempts, one.message,
        )
        for one in (change.request for change in asked)
    ]  # fmt: skip
    insert(db, _REQUEST, rows)


@writes(ch.MachinesFailed)
def _failed(db: sqlite3.Connection, failed: Sequence[ch.MachinesFailed]) -> None:
    db.executemany(
        "UPDATE provider_requests SET attempts = ?, message = ? WHERE request_id = ?",
        [(one.request.attempts, one.request.message, one.request.request_id) for one in failed],
    )


@writes(ch.MachinesDone)
def _done(db: sqlite3.Connection, done: Sequence[ch.MachinesDone]) -> None:
    db.executemany(
        "DELETE FROM provider_requests WHERE request_id = ?", [(one.request.request_id,) for one in done]
    )
