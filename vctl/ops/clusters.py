"""Logical clusters: create, update, delete. The checks, their order and their words are documented."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core import labels as lb
from vctl.core.clusters import FIXED, LOGICAL, PRIMARY, PRIMARY_ALIAS, Cluster, ClusterSpec, VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import SCALE
from vctl.errors import BadSpec, Conflict, Infeasible, VctlError
from vctl.ops import forms
from vctl.ops.cluster_views import cluster_form, cluster_row, get_cluster, list_clusters, tree
from vctl.scheduler.feasibility import ever
from vctl.scheduler.membership import Exchange, Shortage, exchange
from vctl.scheduler.placement import Unplaced
from vctl.scheduler.reshape import InUse, reshape
from vctl.store import clusters as table
from vctl.store import jobs, rows
from vctl.store.partial import load_for_exchange
from vctl.store.store import Store

__all__ = [
    "blockers_of",
    "create",
    "delete",
    "get_cluster",
    "list_clusters",
    "sweep_removing",
    "tree",
    "update",
]

_SHORT = (
    "No enough nodes to {verb} the virtual cluster. The replica sets that gcs can {what} at most are shown below. "
    "Use it as a suggestion to adjust your request or cluster."
)


def create(
    store: Store,
    cluster_id: str,
    *,
    divisible: bool = False,
    spec: ClusterSpec | None = None,
    replica_sets: Mapping[str, int] | None = None,
    parent_id: str | None = None,
) -> forms.Form:
    """Make a logical cluster of whole nodes (``replica_sets``) or of slices (``spec``) below a divisible one."""
    from vctl.spec.ids import check_new_cluster_id

    check_new_cluster_id(cluster_id)
    _check_counts(cluster_id, replica_sets)
    parent = PRIMARY if parent_id is None or parent_id == PRIMARY_ALIAS else parent_id
    with store.transaction():
        if table.get(store, cluster_id) is not None:
            raise Conflict(
                f"virtual cluster {cluster_id} exists already", fix=f"vctl vc update {cluster_id} …"
            )
        _check_parent(store, parent)
        wanted = _wanted(spec, replica_sets)
        cluster = Cluster(cluster_id, parent, LOGICAL, wanted, divisible, store.next_revision())
        ledger = _ledger(store, cluster)
        table.insert(store, cluster, owner=_author())
        _fulfil(store, ledger, cluster, ClusterSpec(flexible=False))
    return get_cluster(store, cluster_id)


def update(
    store: Store,
    cluster_id: str,
    *,
    divisible: bool | None = None,
    spec: ClusterSpec | None = None,
    replica_sets: Mapping[str, int] | None = None,
    revision: int | None = None,
) -> forms.Form:
    """Bring a cluster to a wanted state: all of it or nothing. ``revision`` None takes the latest."""
    from vctl.spec.ids import check_new_cluster_id

    check_new_cluster_id(cluster_id)
    _check_counts(cluster_id, replica_sets)
    with store.transaction():
        row = cluster_row(store, cluster_id)
        if row["kind"] != LOGICAL:
            raise BadSpec(
                f"{cluster_id} is a {row['kind']} cluster", fix="only logical clusters are updated by hand"
            )
        old = rows.cluster(row)
        _check_update(old, divisible, revision)
        _check_form(old, spec, replica_sets)
        wanted = _wanted(spec, replica_sets)
        assert old.parent_id is not None
        cluster = Cluster(
            cluster_id, old.parent_id, LOGICAL, wanted, old.divisible, store.next_revision(), old.state
        )
        ledger = _ledger(store, cluster)
        table.update(store, cluster_id, spec=wanted, revision=cluster.revision)
        _fulfil(store, ledger, cluster, old.spec)
    return get_cluster(store, cluster_id)


def delete(store: Store, cluster_id: str, *, drain: bool = False, force: bool = False) -> forms.Form:
    """Remove an unused logical cluster. ``drain``: admit nothing, remove when empty; ``force``: stop the blockers."""
    from vctl.spec.ids import check_new_cluster_id

    check_new_cluster_id(cluster_id, action="removed")
    with store.transaction():
        row = cluster_row(store, cluster_id)
        if row["kind"] != LOGICAL:
            raise BadSpec(f"{cluster_id} is a {row['kind']} cluster", fix="stop its job: it goes with it")
        form = cluster_form(store, row)
        blockers = blockers_of(store, cluster_id)
        if not blockers:
            table.delete(store, cluster_id)
            return {**form, "state": "REMOVED", "blockers": []}
        if not (drain or force):
            raise Conflict(
                f"The virtual cluster {cluster_id} can not be removed as it is still in use.",
                fix=f"in use by {', '.join(blockers[:5])}; --drain waits for them, --force stops them",
                details={"blockers": blockers},
            )
        for below in [cluster_id, *table.subtree(store, cluster_id)]:
            child = table.get(store, below)
            if child is not None and child["kind"] == LOGICAL:
                table.set_state(store, below, "REMOVING")
    if force:
        _stop_everything(store, cluster_id)
    if table.get(store, cluster_id) is None:
        return {**form, "state": "REMOVED", "blockers": blockers}
    return {**get_cluster(store, cluster_id), "blockers": blockers}


def sweep_removing(store: Store) -> list[str]:
    """Remove clusters that are to go and have become empty, children first; inside a transaction."""
    removed = []
    for row in reversed(table.parents_first(table.removing_rows(store))):
        if row["state"] == "REMOVING" and not blockers_of(store, row["cluster_id"]):
            table.delete(store, row["cluster_id"])
            removed.append(str(row["cluster_id"]))
    return removed


def blockers_of(store: Store, cluster_id: str) -> list[str]:
    """What keeps a cluster from being removed, by name: child clusters, pending and running jobs."""
    found = [
        f"cluster {row['cluster_id']}" for row in table.children(store, cluster_id) if row["kind"] == LOGICAL
    ]
    unfinished = jobs.views(
        store, "j.parent_cluster_id = ? AND j.status IN ('PENDING', 'RUNNING')", [cluster_id]
    )
    return found + [f"job {row['submission_id']}" for row in unfinished]


def _stop_everything(store: Store, cluster_id: str) -> None:
    from vctl.ops.jobs import stop

    for below in [cluster_id, *table.subtree(store, cluster_id)]:
        for row in jobs.views(
            store, "j.parent_cluster_id = ? AND j.status IN ('PENDING', 'RUNNING')", [below]
        ):
            stop(store, str(row["job_id"]))
    with store.transaction():
        sweep_removing(store)


def _check_counts(cluster_id: str, replica_sets: Mapping[str, int] | None) -> None:
    for template, count in (replica_sets or {}).items():
        if count < 0:
            raise BadSpec(
                f"Invalid request, replicas({count}) must >= 0, virtual_cluster_id: {cluster_id}",
                fix="write 0 or more",
            )
        if not template:
            raise BadSpec(
                f"Invalid request, template_id is empty, virtual_cluster_id: {cluster_id}",
                fix="name a template; `vctl node list` shows them",
            )


def _check_parent(store: Store, parent_id: str) -> None:
    if parent_id == PRIMARY:
        return
    row = cluster_row(store, parent_id)
    if row["kind"] != LOGICAL or not row["divisible"]:
        what = "indivisible" if row["kind"] == LOGICAL else f"a {row['kind']} cluster"
        raise BadSpec(
            f"--parent: {parent_id} is {what} and holds no clusters",
            fix="choose the primary or a divisible cluster",
        )
    if row["state"] == "REMOVING":
        raise Conflict(f"cluster {parent_id} is being removed", fix="choose another parent")


def _check_update(old: Cluster, divisible: bool | None, revision: int | None) -> None:
    if revision is not None and revision != old.revision:
        raise Conflict(
            f"The revision ({revision}) is expired, the latest revision of the virtual cluster {old.cluster_id} is"
            f" {old.revision}",
            fix="look at it again, then repeat the update with its revision",
            details={"revision": str(old.revision)},
        )
    if divisible is not None and divisible != old.divisible:
        raise Conflict(
            f"The requested attributes are incompatible with virtual cluster {old.cluster_id}. expect:"
            f" ({str(old.divisible).lower()}), actual: ({str(divisible).lower()}).",
            fix="a cluster keeps its kind; make another one",
        )


def _check_form(old: Cluster, spec: ClusterSpec | None, replica_sets: Mapping[str, int] | None) -> None:
    """A cluster of whole nodes stays one, and so does a cluster of slices."""
    if spec is None and replica_sets is None:
        raise BadSpec("nothing to update", fix="give --replica-sets or --spec")
    slices = old.spec.flexible or bool(old.spec.groups)
    if slices and (replica_sets is not None or (spec is not None and spec.replica_sets)):
        raise Conflict(f"{old.cluster_id} was made from a resource spec and keeps to that", fix="give --spec")
    if any(old.spec.replica_sets.values()) and spec is not None and not spec.replica_sets:
        raise Conflict(
            f"{old.cluster_id} was made from replica sets and keeps to that", fix="give --replica-sets"
        )


def _wanted(spec: ClusterSpec | None, replica_sets: Mapping[str, int] | None) -> ClusterSpec:
    if replica_sets is not None:
        return ClusterSpec(flexible=False, replica_sets=dict(replica_sets))
    return spec if spec is not None else ClusterSpec(flexible=False)


def _of_whole_nodes(spec: ClusterSpec) -> bool:
    return not spec.flexible and not spec.groups


def _ledger(store: Store, cluster: Cluster) -> Ledger:
    """The tree with the cluster as it is to be; of it only what matters when whole nodes change hands."""
    if _of_whole_nodes(cluster.spec):
        return load_for_exchange(store, cluster, cluster.spec.replica_sets)
    ledger = table.load_ledger(store)
    ledger.put_cluster(cluster)
    return ledger


def _fulfil(store: Store, ledger: Ledger, cluster: Cluster, old: ClusterSpec) -> None:
    """Change the cluster's virtual nodes to what its spec wants and write the difference; raise to change nothing."""
    before = {v: ledger.vnodes[v] for v in ledger.members[cluster.cluster_id]}
    assert cluster.parent_id is not None
    if _of_whole_nodes(cluster.spec):
        answer = exchange(ledger, cluster.parent_id, cluster.cluster_id, cluster.spec.replica_sets)
        if isinstance(answer, Shortage):
            raise _short(answer)
        swap(ledger, cluster.cluster_id, answer)
    else:
        refusal = reshape(ledger, cluster.parent_id, cluster.cluster_id, old, cluster.spec)
        if refusal is not None:
            raise _refused(ledger, cluster, refusal)
    after = {v: ledger.vnodes[v] for v in ledger.members[cluster.cluster_id]}
    for vnode_id, vnode in before.items():
        if after.get(vnode_id) != vnode:
            table.delete_vnode(store, vnode_id)
    for vnode_id, vnode in after.items():
        if before.get(vnode_id) != vnode:
            table.insert_vnode(store, vnode)


def swap(ledger: Ledger, cluster_id: str, answer: Exchange) -> None:
    """Carry out an exchange of whole nodes in a ledger."""
    for vnode in answer.leave:
        ledger.release(vnode.vnode_id)
    rank = max((ledger.vnodes[v].rank for v in ledger.members[cluster_id]), default=-1) + 1
    for number, parent in enumerate(answer.join, rank):
        vnode_id = f"{cluster_id}/{number}"
        labels = {**parent.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
        ledger.carve(
            VNode(
                vnode_id,
                cluster_id,
                parent.node_id,
                parent.vnode_id,
                FIXED,
                parent.holding,
                labels,
                whole=True,
                rank=number,
            )
        )


def _short(answer: Shortage) -> Conflict:
    verb, what = ("add to", "add") if answer.adding else ("remove from", "remove")
    return Conflict(
        _SHORT.format(verb=verb, what=what),
        fix=f"at most: {rows.dumps(dict(answer.recommend))}",
        details={"replicaSetsToRecommend": dict(answer.recommend)},
    )


def _refused(ledger: Ledger, cluster: Cluster, answer: Unplaced | InUse) -> VctlError:
    assert cluster.parent_id is not None
    if isinstance(answer, InUse):
        return Conflict(
            f"virtual node {answer.vnode.vnode_id} on {answer.vnode.node_id} is in use and cannot be taken away",
            fix="stop what uses it, or keep its group in the spec",
        )
    never = ever(ledger, cluster.parent_id, cluster.spec, {})
    details = {"resource": answer.resource, "need": answer.need / SCALE, "have": answer.have / SCALE}
    if never is not None:
        return Infeasible(
            f"cluster {cluster.cluster_id} can never have that: {never.message}",
            fix="ask for less",
            details=details,
        )
    return Conflict(
        f"no room for cluster {cluster.cluster_id} now: {answer.message}",
        fix="free some resources first; `vctl status` shows who has them",
        details=details,
    )


def _author() -> str:
    from vctl.ops.nodes import author

    return author()
