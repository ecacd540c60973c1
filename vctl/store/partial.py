"""Loads the part of the tree that a change of a cluster, or the judgement of a request, needs.

Virtual nodes that are equal in their free resources, labels and template are interchangeable, and the lowest of them
are taken first. So of the equal ones a part needs only as many as the request has pieces: the answer is that of the
whole tree, at a cost that hardly grows with it.
"""

from __future__ import annotations

from _sqlite3 import Row
from collections.abc import Iterable, Mapping
from heapq import nsmallest

from vctl.core.clusters import PRIMARY, Cluster, ClusterSpec
from vctl.core.demand import Demand
from vctl.core.labels import OWN
from vctl.core.ledger import Ledger
from vctl.core.node_kinds import NodeKind
from vctl.core.resources import SCALE, FreeCapacity
from vctl.scheduler.elasticity import can_grow
from vctl.store import clusters, leases, nodes, rows, settings
from vctl.store.free import COMMON, alike
from vctl.store.queues import FIRST_QUEUED
from vctl.store.rows import dumps, loads
from vctl.store.store import Store

_UNDIVIDED = (
    "n.template_id = ? AND n.state = 'ALIVE' AND NOT EXISTS (SELECT 1 FROM vnodes c WHERE c.parent_vnode_id = {slot})"
    " AND {slot} NOT IN (SELECT vnode_id FROM runs) AND {slot} NOT IN (SELECT json_extract(part.value, '$.in')"
    " FROM clusters b, json_each(b.settings, '$.booking.parts') part WHERE b.state = 'BOOKED')"
    " ORDER BY {rank}{slot} LIMIT ?"
)
_RANK = "(SELECT value FROM json_each(?) WHERE key = n.labels || n.amounts), "
SELECTS = '"selector":[['
"""The part of the text of a spec with a selector."""


def load_for_exchange(store: Store, cluster: Cluster, requested: Mapping[str, int]) -> Ledger:
    """A ledger with the cluster's virtual nodes, their content, and the nodes of its parent that it may take.

    The ledger has only as many nodes of the parent as the cluster lacks, those that others need last. If some
    template has too few, the ledger has all candidates, so that they can be counted.
    """
    assert cluster.parent_id is not None
    own = clusters.vnode_rows(store, cluster.cluster_id)
    missing = _missing(store, cluster.cluster_id, requested)
    candidates = {t: _undivided(store, cluster.parent_id, t, count) for t, count in missing.items()}
    if any(len(candidates[template]) < count for template, count in missing.items()):
        candidates = {t: _undivided(store, cluster.parent_id, t, -1) for t in missing}
    ledger = Ledger()
    slots = {slot for found in candidates.values() for slot in found} | {
        row["parent_vnode_id"] for row in own
    }
    _load_with_ancestors(store, ledger, slots)
    _load_own(store, ledger, cluster, own)
    _put_booked(store, ledger)
    return ledger


def load_for_pieces(store: Store, cluster: Cluster) -> Ledger | None:
    """A ledger with a cluster, and as much of its parent as further pieces of the cluster may need.

    None where only the whole tree decides: the parent can grow, its nodes differ, so that the demand of others counts,
    several of its virtual nodes lie on one node, the spec names one by its id, or something is booked.
    """
    if clusters.booked(store):
        return None
    parent_id = cluster.parent_id or PRIMARY
    parent = None if parent_id == PRIMARY else clusters.get(store, parent_id)
    if parent is not None and can_grow(rows.cluster(parent)):
        return None
    if any(one.key in OWN for node in cluster.spec.fixed for one in node.selector):
        return None
    there = [one for one in alike(store, parent_id) if one.takes_work]
    on_nodes = [node_id for one in there for node_id, _ in one.slots]
    if len({(*one.static[3:], one.static[1]) for one in there}) > 1 or len(set(on_nodes)) < len(on_nodes):
        return None
    own = clusters.vnode_rows(store, cluster.cluster_id)
    chosen = {row["parent_vnode_id"] for row in own}
    for one in there:
        chosen.update(
            slot_id for _, slot_id in nsmallest(_most_pieces(cluster.spec, one.capacity), one.slots)
        )
    ledger = Ledger()
    _load_with_ancestors(store, ledger, chosen)
    _put_cluster(store, ledger, parent_id)
    _charge_others(store, ledger, chosen, cluster)
    _load_own(store, ledger, cluster, own)
    return ledger


def _most_pieces(spec: ClusterSpec, capacity: FreeCapacity) -> int:
    """The most virtual nodes with this free capacity in which the pieces of a spec can lie.

    A part of the minimum takes all that a virtual node has free, of unit resources at least one whole unit.
    """
    free, units = capacity.free, capacity.total.instances
    pieces = sum(len(group.nodes) for group in spec.groups) + sum(spec.replica_sets.values())
    for name, need in spec.flexible_min.items():
        part = min(free.get(name, 0), SCALE) if name in units else free.get(name, 0)
        if part > 0:
            pieces += -(-need // part)
    return pieces


def _charge_others(store: Store, ledger: Ledger, slots: Iterable[str], cluster: Cluster) -> None:
    """Charge virtual nodes of the parent of a cluster with all that other clusters and processes hold in them."""
    for row in store.rows(
        "SELECT * FROM vnodes WHERE parent_vnode_id IN (SELECT value FROM json_each(?1)) AND cluster_id <> ?2",
        _list(slots), cluster.cluster_id,
    ):  # fmt: skip
        ledger.charge(row["vnode_id"], row["parent_vnode_id"], rows.allocation(row))
    for row in store.rows("SELECT * FROM runs WHERE cluster_id = ?", cluster.parent_id):
        if row["vnode_id"] in ledger.vnodes:
            ledger.charge(row["run_id"], row["vnode_id"], rows.allocation(row))


def load_some(store: Store, cluster_id: str, limit: int) -> Ledger:
    """A ledger with at most so many of the equal virtual nodes of a cluster, on nodes that are in service or being
    drained, with all that contains them, and with nothing in use."""
    found = store.column(
        "SELECT vnode_id FROM (SELECT v.vnode_id, row_number() OVER (PARTITION BY v.amounts, v.whole, n.template_id,"
        f" {COMMON} ORDER BY v.node_id) nth FROM vnodes v JOIN nodes n USING (node_id)"
        " WHERE v.cluster_id = ? AND n.state IN ('ALIVE', 'DRAINING')) WHERE nth <= ?",
        cluster_id, limit,
    )  # fmt: skip
    ledger = Ledger()
    _load_with_ancestors(store, ledger, found)
    _put_cluster(store, ledger, cluster_id)
    return ledger


def load_branch(store: Store, top_id: str, spare: int) -> Ledger:
    """A ledger with all that lies in a logical cluster that cannot grow: its own work has no other nodes.

    Of the clusters around it, it has what this one lies in, and for each up to ``spare`` undivided nodes of each
    template, which it could be given.
    """
    ids = [top_id, *clusters.subtree(store, top_id)]
    vnodes: dict[str, list[Row]] = {}
    row: Row | None
    for row in store.rows(
        "SELECT * FROM vnodes WHERE cluster_id IN (SELECT value FROM json_each(?)) ORDER BY cluster_id, rank, vnode_id",
        dumps(ids),
    ):  # fmt: skip
        vnodes.setdefault(row["cluster_id"], []).append(row)
    slots = {row["parent_vnode_id"] for row in vnodes.get(top_id, ())}
    above, row = list[str](), clusters.get(store, top_id)
    while row is not None:
        above.append(row["cluster_id"])
        for template in nodes.templates_in(store):
            slots.update(_undivided(store, row["parent_id"], template, spare))
        row = clusters.get(store, row["parent_id"])
    ledger = Ledger()
    ledger.set_primary_queue(settings.queue_of(store, PRIMARY))
    _load_with_ancestors(store, ledger, slots)
    for cluster_id in (*reversed(above[1:]), *ids):
        _put_cluster(store, ledger, cluster_id)
        for row in vnodes.get(cluster_id, ()):
            ledger.assign(rows.vnode(row))
    for row in store.rows(
        "SELECT * FROM runs WHERE cluster_id IN (SELECT value FROM json_each(?))",
        dumps(ids),
    ):
        run = rows.run(row)
        ledger.charge(run.run_id, run.vnode_id, run.allocation)
    _put_booked(store, ledger)
    for row in leases.all_rows(store):
        if row["borrower_id"] in ledger.clusters and row["lender_id"] in ledger.clusters:
            ledger.put_lease(rows.lease(row))
    return ledger


def _missing(store: Store, cluster_id: str, requested: Mapping[str, int]) -> dict[str, int]:
    """How many whole nodes of each template the cluster lacks."""
    there = store.mapping(
        "SELECT n.template_id, count(*) FROM vnodes v JOIN nodes n USING (node_id)"
        " WHERE v.cluster_id = ? AND v.whole GROUP BY 1",
        cluster_id,
    )
    return {t: count - there.get(t, 0) for t, count in requested.items() if count > there.get(t, 0)}


def _undivided(store: Store, parent_id: str, template: str, limit: int) -> list[str]:
    """Ids of a cluster's alive whole nodes that hold nothing, in order, at most ``most`` (-1: all)."""
    limit = min(limit, 1 << 60)
    ranks = _scarcity(store, template)
    rank, last = (_RANK, [dumps(ranks), limit]) if ranks else ("", [limit])
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


def _load_own(store: Store, ledger: Ledger, cluster: Cluster, own: Iterable[Row]) -> None:
    """Put a cluster with its virtual nodes, what lies in them, and its leases into the ledger."""
    ledger.put_cluster(cluster)
    for row in own:
        ledger.assign(rows.vnode(row))
    _load_use(store, ledger, cluster.cluster_id)
    for lease in leases.of_borrower(store, cluster.cluster_id):
        ledger.put_lease(lease)


def _load_use(store: Store, ledger: Ledger, cluster_id: str) -> None:
    """Put the virtual nodes of the children of a cluster, and its processes, into the ledger."""
    own = _list(ledger.members[cluster_id])
    for row in store.rows(
        "SELECT v.* FROM vnodes v WHERE v.parent_vnode_id IN (SELECT value FROM json_each(?))", own
    ):
        _put_cluster(store, ledger, row["cluster_id"])
        ledger.assign(rows.vnode(row))
    for row in store.rows("SELECT * FROM runs WHERE cluster_id = ?", cluster_id):
        run = rows.run(row)
        ledger.charge(run.run_id, run.vnode_id, run.allocation)


def _put_cluster(store: Store, ledger: Ledger, cluster_id: str) -> None:
    if cluster_id not in ledger.clusters:
        row = clusters.get(store, cluster_id)
        assert row is not None, cluster_id
        ledger.put_cluster(rows.cluster(row))


def _put_booked(store: Store, ledger: Ledger) -> None:
    """Keep the places of bookings on the virtual nodes of the ledger."""
    for row in clusters.booked(store):
        cluster = rows.cluster(row)
        if cluster.parent_id in ledger.clusters and cluster.cluster_id not in ledger.clusters:
            ledger.put_cluster(cluster)


def _list(ids: Iterable[str]) -> str:
    return dumps(sorted(ids))
