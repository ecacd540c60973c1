"""Loads the part of the tree that an exchange of whole nodes needs. The cost depends on the cluster alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sqlite3 import Row

from vctl.core.clusters import PRIMARY, Cluster
from vctl.core.demand import Demand
from vctl.core.ledger import Ledger
from vctl.core.node_kinds import NodeKind
from vctl.store import clusters, leases, rows
from vctl.store.queues import FIRST_QUEUED
from vctl.store.rows import dumps, loads
from vctl.store.store import Store

_UNDIVIDED = (
    "n.template_id = ? AND n.state = 'ALIVE' AND NOT EXISTS (SELECT 1 FROM vnodes c WHERE c.parent_vnode_id = {slot})"
    " AND {slot} NOT IN (SELECT vnode_id FROM runs WHERE state <> 'ENDED') ORDER BY {rank}{slot} LIMIT ?"
)
_RANK = "(SELECT value FROM json_each(?) WHERE key = n.labels || n.amounts), "
SELECTS = '"selector":[['
"""The part of the text of a spec with a selector."""


def load_for_exchange(store: Store, cluster: Cluster, wanted: Mapping[str, int]) -> Ledger:
    """A ledger with the cluster's virtual nodes, their content, and the nodes of its parent that it may take.

    The ledger has only as many nodes of the parent as the cluster lacks, those that others need last. If some
    template has too few, the ledger has all candidates, so that they can be counted.
    """
    assert cluster.parent_id is not None
    own = clusters.vnode_rows(store, cluster.cluster_id)
    missing = _missing(store, cluster.cluster_id, wanted)
    candidates = {t: _undivided(store, cluster.parent_id, t, count) for t, count in missing.items()}
    if any(len(candidates[template]) < count for template, count in missing.items()):
        candidates = {t: _undivided(store, cluster.parent_id, t, -1) for t in missing}
    ledger = Ledger()
    slots = {slot for found in candidates.values() for slot in found} | {
        row["parent_vnode_id"] for row in own
    }
    _load_with_ancestors(store, ledger, slots)
    ledger.put_cluster(cluster)
    for row in own:
        ledger.assign(rows.vnode(row))
    _load_use(store, ledger, cluster.cluster_id)
    for lease in leases.of_borrower(store, cluster.cluster_id):
        ledger.put_lease(lease)
    return ledger


def _missing(store: Store, cluster_id: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """How many whole nodes of each template the cluster lacks."""
    there = store.mapping(
        "SELECT n.template_id, count(*) FROM vnodes v JOIN nodes n USING (node_id)"
        " WHERE v.cluster_id = ? AND v.whole GROUP BY 1",
        cluster_id,
    )
    return {t: count - there.get(t, 0) for t, count in wanted.items() if count > there.get(t, 0)}


def _undivided(store: Store, parent_id: str, template: str, most: int) -> list[str]:
    """Ids of a cluster's alive whole nodes that hold nothing, in order, at most ``most`` (-1: all)."""
    most = min(most, 1 << 60)
    ranks = _scarcity(store, template)
    rank, last = (_RANK, [dumps(ranks), most]) if ranks else ("", [most])
    if parent_id == PRIMARY:
        sql = "SELECT n.node_id FROM nodes n WHERE " + _UNDIVIDED.format(slot="n.node_id", rank=rank)
        return store.column(sql, template, *last)
    sql = (
        "SELECT v.vnode_id FROM vnodes v JOIN nodes n USING (node_id) WHERE v.cluster_id = ? AND v.whole AND "
        + _UNDIVIDED.format(slot="v.vnode_id", rank=rank)
    )
    return store.column(sql, parent_id, template, *last)


def _scarcity(store: Store, template: str) -> dict[str, int]:
    """Labels and amounts of the nodes of a template -> how scarce they are, by what clusters and jobs select."""
    specs = store.column(
        "SELECT spec FROM clusters WHERE instr(spec, ?1)"
        f" UNION SELECT spec FROM ({FIRST_QUEUED}) WHERE instr(spec, ?1)",
        SELECTS,
    )
    demand = Demand()
    for number, text in enumerate(specs):
        demand.ask(number, rows.spec(text))
    kinds: dict[NodeKind, tuple[str, int]] = {}
    sql = (
        "SELECT labels, amounts, count(*) FROM nodes WHERE template_id = ? AND state = 'ALIVE' GROUP BY 1, 2"
    )
    for labels, amounts, count in store.rows(sql, template) if specs else ():
        kind = NodeKind(len(kinds), loads(labels), template, loads(amounts))
        kinds[kind] = (labels + amounts, count)
    known = demand.scarcity((kind, count) for kind, (_, count) in kinds.items())
    return {} if known is None else {key: known.of(kind) for kind, (key, _) in kinds.items()}


def _load_with_ancestors(store: Store, ledger: Ledger, slots: Iterable[str]) -> None:
    """Put virtual nodes and all that contain them, down to the physical nodes, into an empty ledger."""
    levels: list[list[Row]] = []
    node_ids, left = set(slots), set(slots)
    while left:
        found = store.rows(
            "SELECT * FROM vnodes WHERE vnode_id IN (SELECT value FROM json_each(?))", _list(left)
        )
        node_ids.difference_update(row["vnode_id"] for row in found)
        levels.append(found)
        left = {row["parent_vnode_id"] for row in found}
        node_ids |= left
    for row in store.rows(
        "SELECT * FROM nodes WHERE node_id IN (SELECT value FROM json_each(?))", _list(node_ids)
    ):
        ledger.put_node(rows.node(row))
    for level in reversed(levels):
        for row in level:
            _put_cluster(store, ledger, row["cluster_id"])
            ledger.assign(rows.vnode(row))


def _load_use(store: Store, ledger: Ledger, cluster_id: str) -> None:
    """Put the virtual nodes of the children of a cluster, and its processes, into the ledger."""
    own = _list(ledger.members[cluster_id])
    for row in store.rows(
        "SELECT v.* FROM vnodes v WHERE v.parent_vnode_id IN (SELECT value FROM json_each(?))", own
    ):
        _put_cluster(store, ledger, row["cluster_id"])
        ledger.assign(rows.vnode(row))
    for row in store.rows("SELECT * FROM runs WHERE state <> 'ENDED' AND cluster_id = ?", cluster_id):
        run = rows.run(row)
        ledger.charge(run.run_id, run.vnode_id, run.allocation)


def _put_cluster(store: Store, ledger: Ledger, cluster_id: str) -> None:
    if cluster_id not in ledger.clusters:
        row = clusters.get(store, cluster_id)
        assert row is not None, cluster_id
        ledger.put_cluster(rows.cluster(row))


def _list(ids: Iterable[str]) -> str:
    return dumps(sorted(ids))
