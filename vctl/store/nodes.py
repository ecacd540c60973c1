"""SQL about physical nodes."""

from __future__ import annotations

from _sqlite3 import Row

from vctl import engine
from vctl.core.nodes import DEAD, LOCAL, Node
from vctl.store import rows
from vctl.store.store import Store


def insert(
    store: Store, node: Node, *, devices: object = None, heartbeat_timeout_s: float | None = None
) -> None:
    """Add a node."""
    store.emit(engine.changes.NodeAdded(store.clock(), node, heartbeat_timeout_s, rows.dumps(devices or {})))


def move(
    store: Store, node_id: str, move: str, *, reason: str | None = None, author: str | None = None
) -> None:
    """Move a node to another state, and record the author, the reason and the time."""
    (state,) = engine.lifecycle.NODE.targets(move)
    store.emit(engine.changes.NodeMoved(store.clock(), node_id, move, state, reason, author))


def all_rows(store: Store) -> list[Row]:
    """Every node, by id."""
    return store.rows("SELECT * FROM nodes ORDER BY node_id")


def owned_by_primary(store: Store) -> list[Row]:
    """Nodes that no logical cluster owns whole, by id."""
    return store.rows(
        "SELECT * FROM nodes n WHERE NOT EXISTS (SELECT 1 FROM vnodes v JOIN clusters c USING (cluster_id)"
        " WHERE v.parent_vnode_id = n.node_id AND v.whole AND c.kind = 'logical') ORDER BY node_id"
    )


def get(store: Store, node_id: str) -> Row | None:
    """One node."""
    return store.row("SELECT * FROM nodes WHERE node_id = ?", node_id)


def ids_like(store: Store, prefix: str) -> list[str]:
    """Node ids that start with a prefix."""
    return store.column("SELECT node_id FROM nodes WHERE substr(node_id, 1, ?) = ?", len(prefix), prefix)


def local(store: Store) -> list[Row]:
    """Rows of this machine that are not dead: one per boot."""
    return store.rows("SELECT * FROM nodes WHERE source = ? AND state <> ?", LOCAL, DEAD)


def exist(store: Store) -> bool:
    """Whether there is any node."""
    return store.row("SELECT 1 FROM nodes LIMIT 1") is not None


def only_others(store: Store) -> bool:
    """Whether there are nodes, and this machine never was one of them."""
    is_local = store.value("SELECT max(source = ?) FROM nodes", LOCAL)
    return is_local is not None and not is_local


def is_registered(store: Store, boot_id: str) -> bool:
    """Whether this machine has a row since it started, in whatever state."""
    node = store.row("SELECT 1 FROM nodes WHERE source = ? AND boot_id = ?", LOCAL, boot_id)
    return node is not None


def samples(store: Store, per_class: int) -> list[Row]:
    """Alive or draining nodes that no logical cluster owns whole, at most ``per_class`` of each distinct kind.

    Enough to answer "could it ever fit" without reading thousands of equal machines.
    """
    return store.rows(
        "SELECT * FROM (SELECT n.*,"
        " row_number() OVER (PARTITION BY amounts, labels, template_id ORDER BY node_id) AS nth"
        " FROM nodes n WHERE state NOT IN ('DEAD', 'RELEASING') AND NOT EXISTS"
        " (SELECT 1 FROM vnodes v JOIN clusters c USING (cluster_id)"
        "  WHERE v.parent_vnode_id = n.node_id AND v.whole AND c.kind = 'logical')) WHERE nth <= ?",
        per_class,
    )


def examples(store: Store) -> list[Row]:
    """The first node of each kind, of the lost ones and of the others."""
    return store.rows(
        "SELECT *, min(node_id) FROM nodes GROUP BY template_id, amounts, instances, labels, source, shrunk,"
        " state IN ('DEAD', 'RELEASING')"
    )


def templates_in(store: Store) -> list[str]:
    """The templates of the nodes."""
    return store.column("SELECT DISTINCT template_id FROM nodes ORDER BY 1")


def states(store: Store) -> dict[str, int]:
    """How many nodes are in each state."""
    return store.mapping("SELECT state, count(*) FROM nodes GROUP BY state ORDER BY state")


def numbers_in_use(store: Store, node_id: str) -> dict[str, set[int]]:
    """Unit resource -> the instance numbers that are held on a node."""
    used: dict[str, set[int]] = {}
    for row in store.rows(
        "SELECT instances FROM vnodes WHERE node_id = ? AND NOT whole"
        " UNION ALL SELECT instances FROM runs WHERE node_id = ?",
        node_id, node_id,
    ):  # fmt: skip
        for name, shares in rows.loads(row["instances"]).items():
            used.setdefault(name, set()).update(map(int, shares))
    return used


def amounts_of(store: Store, template: str, count: int) -> dict[str, int]:
    """The amounts of so many nodes of a template."""
    text = store.value("SELECT amounts FROM nodes WHERE template_id = ? LIMIT 1", template)
    return {name: amount * count for name, amount in rows.loads(text or "{}").items()}
