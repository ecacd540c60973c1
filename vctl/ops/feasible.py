"""Whether a job could ever run in its cluster, with every node empty and every cluster grown to its maximum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vctl.core import resources as rs
from vctl.core.clusters import ACTIVE, BOOKED, FIXED, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.nodes import ALIVE, DRAINED, DRAINING, MADE_BY, Template, possible
from vctl.core.resources import SCALE, Amounts
from vctl.core.values import replace
from vctl.core.wording import amount_text, cluster_text
from vctl.errors import Infeasible
from vctl.store import clusters, nodes, queues, rows
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.core.ledger import Ledger
    from vctl.scheduler.placement import Unplaced

TEMPLATES = "provider_templates"
"""The key under which the scheduler stores the nodes that its provider could make."""


def whole_tree(store: Store) -> Ledger:
    """The ledger of the whole tree, which knows what the waiting jobs ask of nodes."""
    ledger = clusters.load_ledger(store)
    for job in queues.asked(store):
        ledger.demand.ask((job.parent_id, job.shape), job.spec, job.entry, whole=True)
    return ledger


def requested(spec: ClusterSpec, entry: Amounts) -> dict[str, int]:
    """The sum of the resources that a job needs to start, without its whole nodes by template."""
    fixed = rs.total(node.resources for group in spec.groups for node in group.nodes)
    return rs.add(fixed, rs.maximum(spec.flexible_min, {} if fixed else entry))


def check_feasible(store: Store, parent_id: str, spec: ClusterSpec, entry: Amounts) -> None:
    """Refuse a job that could never run. A few of the equal nodes of the cluster that limits it are tried first."""
    from vctl.scheduler.feasibility import ever
    from vctl.store.partial import load_some

    check_maximum(store, parent_id, requested(spec, entry))
    chain = _growing(store, parent_id)
    judge = (chain[-1].parent_id or PRIMARY) if chain else parent_id
    limit = sum(len(group.nodes) for group in spec.groups) + sum(spec.replica_sets.values()) + 2
    row = None if judge == PRIMARY else clusters.get(store, judge)
    if row is not None and row["state"] == BOOKED:
        few = _opened(store, rows.cluster(row))
    else:
        few = _primary_of(nodes.samples(store, limit)) if row is None else load_some(store, judge, limit)
    for cluster in reversed(chain):
        few.put_cluster(_with_nothing(cluster))
    if ever(few, parent_id, spec, entry) is None:
        return
    if row is not None and row["state"] == BOOKED:
        ledger = few
    elif parent_id == PRIMARY:
        ledger = _primary_of(nodes.samples(store, 1 << 40))
    else:
        ledger = clusters.load_ledger(store)
    add_possible(store, ledger)
    never = ever(ledger, parent_id, spec, entry)
    if never is not None and not never.exhausted:
        above = None if judge == parent_id else ever(ledger, judge, spec, entry)
        # name the nodes of the limiting cluster, unless the limits of a cluster on the way leave less
        if above is None or (
            above.refusal.subject == never.refusal.subject and above.refusal.have > never.refusal.have
        ):
            where = parent_id
        else:
            where, never = judge, above
        raise Infeasible(
            f"the job can never run: it exceeds the capacity of {cluster_text(where)}: {never.capacity}",
            fix=fix_for(store, where, never),
            details=numbers_of(never, "largest"),
        )


def _opened(store: Store, cluster: Cluster) -> Ledger:
    """A ledger with a booked cluster alone, as it will be at its begin, on empty nodes."""
    assert cluster.booking is not None
    parts = cluster.booking.parts
    found = [row for node_id in dict.fromkeys(p.node_id for p in parts) if (row := nodes.get(store, node_id))]
    ledger = _primary_of(found)
    ledger.put_cluster(replace(cluster, parent_id=PRIMARY, state=ACTIVE))
    for rank, part in enumerate(parts):
        if part.node_id in ledger.nodes:
            node, vnode_id = ledger.nodes[part.node_id], f"{cluster.cluster_id}/{rank}"
            place = VNode(
                vnode_id,
                cluster.cluster_id,
                part.node_id,
                part.node_id,
                FIXED,
                part.allocation,
                node.labels,
                rank=rank,
            )
            ledger.assign(place)
    return ledger


def numbers_of(unplaced: Unplaced, have: str) -> dict[str, Any]:
    """The details of an error: the resource, what was asked of it, and what there is, by the name ``have``."""
    refusal = unplaced.refusal
    return {"resource": refusal.subject, "need": refusal.requested / SCALE, have: refusal.have / SCALE}


def fix_for(store: Store, cluster_id: str, never: Unplaced) -> str:
    """The fix for a request that exceeds the capacity of a cluster."""
    if not never.refusal.have and not nodes.states(store):  # there is no node at all
        return f"{to_enlarge(store, cluster_id)}, or let this machine be one: VCTL_LOCAL_NODE=1"
    return f"ask for less, or {to_enlarge(store, cluster_id)}"


def judge_of(store: Store, parent_id: str) -> str:
    """The cluster whose nodes limit a job: the nearest one, from the parent up, that cannot grow."""
    chain = _growing(store, parent_id)
    return (chain[-1].parent_id or PRIMARY) if chain else parent_id


def to_enlarge(store: Store, cluster_id: str) -> str:
    """The fix of an error: how a cluster gets more nodes or resources."""
    row = None if cluster_id == PRIMARY else clusters.get(store, cluster_id)
    if row is None:
        drained = DRAINED in nodes.states(store)
        return "add a node with `vctl node add`" + (" or `vctl node undrain`" if drained else "")
    from vctl.scheduler.membership import of_whole_nodes

    update = f"`vctl vc update {cluster_text(cluster_id)}"
    if of_whole_nodes(rows.spec(row["spec"])):
        return f"give {cluster_text(cluster_id)} more nodes with {update} --replica-sets JSON`"
    return f"make {cluster_text(cluster_id)} larger with {update} --spec JSON`"


def _growing(store: Store, parent_id: str) -> list[Cluster]:
    """The clusters from the parent up, as far as they can grow."""
    chain: list[Cluster] = []
    while parent_id != PRIMARY:
        row = clusters.get(store, parent_id)
        if row is None or not rows.spec(row["spec"]).flexible:
            break
        chain.append(rows.cluster(row))
        parent_id = row["parent_id"]
    return chain


def _with_nothing(cluster: Cluster) -> Cluster:
    """A cluster without its minimum, which lies on other nodes; its maximum is reduced by the minimum."""
    spec, maximum = cluster.spec, cluster.spec.flexible_max
    if maximum is not None:
        maximum = {name: amount - spec.flexible_min.get(name, 0) for name, amount in maximum.items()}
    return replace(cluster, spec=ClusterSpec(flexible_max=maximum))


def check_maximum(store: Store, parent_id: str, need: Amounts, what: str = "the job can never run") -> None:
    """Refuse a need that exceeds the maximum of the parent or of a cluster above it."""
    while parent_id != PRIMARY:
        row = clusters.get(store, parent_id)
        if row is None:
            return
        spec = rows.spec(row["spec"])
        limit = spec.flexible_max
        if spec.flexible and limit is not None:
            fixed = rs.total(node.resources for group in spec.groups for node in group.nodes)
            for name, amount in need.items():
                allowed = fixed.get(name, 0) + limit.get(name, amount)
                if amount > allowed:
                    raise Infeasible(
                        f"{what}: it exceeds the maximum of {cluster_text(parent_id)}:"
                        f" {amount_text(name, amount)} asked, at most {amount_text(name, allowed)} allowed",
                        fix="ask for less, or raise the maximum with `vctl vc update`",
                        details={"resource": name, "need": amount / SCALE, "largest": allowed / SCALE},
                    )
        parent_id = row["parent_id"]


def templates(store: Store) -> tuple[Template, ...]:
    """The kinds of nodes that a provider can make: stored by the scheduler, else from the own settings."""
    announced: list[dict[str, Any]] | None = store.recall(TEMPLATES)
    return tuple(
        Template(
            template["name"], template["resources"], template["most"], template["labels"],
            frozenset(template.get("units", rs.DEFAULT_UNITS)),
        )
        for template in announced or store.could_make(announced)
    )  # fmt: skip


def add_possible(store: Store, ledger: Ledger) -> None:
    """Add all nodes that the provider could still make to a ledger: those that it has made count in its maximum.

    Of its nodes, those are capacity that are alive or draining; it can replace the others.
    """
    if kinds := templates(store):
        made = Counter(
            row["template_id"]
            for row in nodes.all_rows(store)
            if row["state"] in (ALIVE, DRAINING) and MADE_BY in rows.loads(row["labels"])
        )
        for node in possible(kinds, made):
            ledger.put_node(node)


def _primary_of(node_rows: Sequence[Row]) -> Ledger:
    from vctl.core.ledger import Ledger

    ledger = Ledger()
    for row in node_rows:
        ledger.put_node(rows.node(row))
    return ledger
