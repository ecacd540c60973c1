"""SQL about the node provider: one row for each request that is not done."""

from __future__ import annotations

from vctl import engine
from vctl.core.nodes import DOWN, UP, NodeRequest
from vctl.store.rows import loads
from vctl.store.store import Row, Store


def drop(store: Store, node_id: str) -> None:
    """Withdraw the requests that release a machine."""
    for row in rows(store):
        if row["action"] == DOWN and node_id in loads(row["nodes"]):
            store.emit(engine.changes.MachinesDone(request(row)))


def rows(store: Store) -> list[Row]:
    """Every request that is not done, oldest first."""
    return store.rows("SELECT * FROM provider_requests ORDER BY created_at, request_id")


def request(row: Row) -> NodeRequest:
    """A row as a value; raises ValueError if the row is not valid."""
    amounts, labels, nodes = loads(row["amounts"]), loads(row["labels"]), loads(row["nodes"])
    if row["action"] not in (UP, DOWN) or not isinstance(nodes, list) or not nodes:
        raise ValueError(f"{row['action']!r} of {row['nodes']!r} is no request for nodes")
    if not all(isinstance(amount, int) for amount in amounts.values()):
        raise ValueError(f"{row['amounts']!r} are no amounts")
    return NodeRequest(
        row["request_id"], row["kind"], row["action"], row["template"], amounts, labels,
        tuple(map(str, nodes)), row["created_at"], row["attempts"], row["message"],
    )  # fmt: skip
