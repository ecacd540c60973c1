"""SQL about the node provider: what it was asked for and has not been seen to finish, one row a request."""

from __future__ import annotations

from vctl.core.nodes import DOWN, UP, NodeRequest
from vctl.store.rows import dumps, loads
from vctl.store.store import Row, Store


def insert(store: Store, asked: NodeRequest) -> None:
    """Write the intent, with its event; it is carried out after the commit."""
    store.db.execute(
        "INSERT INTO provider_requests (request_id, kind, action, template, amounts, labels, nodes, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            asked.request_id, asked.kind, asked.action, asked.template, dumps(dict(asked.amounts)),
            dumps(dict(asked.labels)), dumps(list(asked.nodes)), asked.created_at,
        ),
    )  # fmt: skip
    store.event(f"provider.{asked.action}", "provider", asked.request_id, data=_told(asked))


def fail(store: Store, asked: NodeRequest, message: str) -> None:
    """One more attempt that did not succeed."""
    store.db.execute(
        "UPDATE provider_requests SET attempts = attempts + 1, message = ? WHERE request_id = ?",
        (message, asked.request_id),
    )
    data = {**_told(asked), "attempt": asked.attempts + 1, "message": message}
    store.event("provider.failed", "provider", asked.request_id, data=data)


def finish(store: Store, asked: NodeRequest, nodes: list[str]) -> None:
    """The request is done, with these nodes."""
    store.db.execute("DELETE FROM provider_requests WHERE request_id = ?", (asked.request_id,))
    store.event("provider.done", "provider", asked.request_id, data={**_told(asked), "nodes": nodes})


def _told(asked: NodeRequest) -> dict[str, object]:
    return {"action": asked.action, "template": asked.template, "nodes": list(asked.nodes)}


def drop(store: Store, node_id: str) -> None:
    """Give up the release of a machine."""
    for row in rows(store):
        if row["action"] == DOWN and node_id in loads(row["nodes"]):
            finish(store, request(row), [])


def rows(store: Store) -> list[Row]:
    """Every request that is not done, oldest first."""
    return store.rows("SELECT * FROM provider_requests ORDER BY created_at, request_id")


def request(row: Row) -> NodeRequest:
    """A row as a value; raises ValueError where it cannot be one."""
    amounts, labels, nodes = loads(row["amounts"]), loads(row["labels"]), loads(row["nodes"])
    if row["action"] not in (UP, DOWN) or not isinstance(nodes, list) or not nodes:
        raise ValueError(f"{row['action']!r} of {row['nodes']!r} is no request for nodes")
    if not all(isinstance(amount, int) for amount in amounts.values()):
        raise ValueError(f"{row['amounts']!r} are no amounts")
    return NodeRequest(
        row["request_id"], row["kind"], row["action"], row["template"], amounts, labels,
        tuple(map(str, nodes)), row["created_at"], row["attempts"], row["message"],
    )  # fmt: skip
