"""Clusters: create, update, delete, stop, resume. The order and the messages of the checks are documented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl import ops
from vctl.core.clusters import (
    ACTIVE,
    BOOKED,
    JOB,
    LOGICAL,
    PRIMARY,
    REMOVING,
    STOPPED,
    SUB,
    Cluster,
    ClusterSpec,
)
from vctl.core.nodes import DEAD
from vctl.core.values import replace
from vctl.core.wording import cluster_text
from vctl.engine.changes import AccessChanged, ClusterChanged, ClusterMoved, QueueChanged, VNodesChanged
from vctl.engine.rules import clusters as rule
from vctl.errors import BadSpec, Conflict, param
from vctl.ops import cluster_changes as changes
from vctl.ops import forms, nodes, rights
from vctl.ops.cluster_views import (
    blockers_of,
    check_revision,
    cluster_form,
    cluster_row,
    get_cluster,
    in_use,
    logical_row,
    not_due,
    removable_row,
    resolve,
)
from vctl.scheduler.membership import of_whole_nodes
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.fields import refuse
from vctl.spec.ids import JOB_MARK, check_new_cluster_id, full_cluster_id, resolve_cluster_id
from vctl.store import clusters as table
from vctl.store import job_views, jobs, rows, settings, tasks
from vctl.store.partial import load_for_exchange
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import ClusterForm, RemovedCluster


def create(
    store: Store,
    cluster_id: str,
    change: ClusterChange,
    *,
    parent_id: str | None = None,
    detach: bool = False,
) -> ClusterForm:
    """Create a cluster of whole nodes or of slices in a divisible parent.

    ``detach``: in the cluster of a job, let it outlive the job.
    """
    check_new_cluster_id(cluster_id)
    queue = _queue_changes(change.queue)
    parent = resolve(parent_id)
    normalized = _with_contents(cluster_id, change)
    rights.check_cluster(store, parent, "create clusters in")
    nodes.join(store)
    with store.transaction():
        made = changes.create(
            store, cluster_id, normalized, parent_id=parent, owner=nodes.author(store), detach=detach
        )
        _set_queue(store, made, queue)
        set_access(store, made, change.access)
        return get_cluster(store, made.cluster_id)


def update(
    store: Store, cluster_id: str, change: ClusterChange, *, revision: int | None = None
) -> ClusterForm:
    """Bring a cluster to a wanted state, completely or not at all. ``revision`` None means the current revision."""
    queue = _queue_changes(change.queue)
    change = replace(change, queue=queue or None)
    access = change.access
    of_primary = (queue or access) and change == ClusterChange(queue=change.queue, **access)  # type: ignore[arg-type]
    if full_cluster_id(cluster_id) == PRIMARY and of_primary:
        return _update_primary(store, queue, access, revision)
    _check_changed_id(cluster_id, "created or updated")
    normalized = _with_contents(cluster_id, change)
    rights.check_cluster(store, cluster_id, above=_is_of_user(store, cluster_id))
    if queue:
        _check_has_queue(rows.cluster(cluster_row(store, cluster_id)))
    nodes.join(store)
    if JOB_MARK in cluster_id:
        from vctl.ray.ops import draining

        draining.drain_first(
            store, cluster_id, lambda: changes.update(store, cluster_id, normalized, revision=revision)
        )
    with store.transaction():
        updated = changes.update(store, cluster_id, normalized, revision=revision)
        _set_queue(store, updated, queue)
        set_access(store, updated, access)
        return get_cluster(store, cluster_id)


def _is_of_user(store: Store, cluster_id: str) -> bool:
    """Whether a cluster was made for a user, who does not change its limits himself."""
    row = table.get(store, cluster_id) if store.identity is not None else None
    return row is not None and bool(rows.cluster(row).of_user)


def _update_primary(
    store: Store, queue: Mapping[str, object], access: Mapping[str, object], revision: int | None
) -> ClusterForm:
    """Change the queue settings and the rights of the primary, of which nothing else can change."""
    rights.check_cluster(store, PRIMARY)
    with store.transaction():
        check_revision(PRIMARY, settings.primary_revision(store), revision)
        revision = store.next_revision()
        if queue:
            policy = replace(settings.queue_of(store, PRIMARY), **queue)  # type: ignore[arg-type]
            store.emit(QueueChanged(PRIMARY, policy, revision))
        if access:
            check_people(store, access)
            said = replace(settings.access_of(store, PRIMARY), **access)  # type: ignore[arg-type]
            store.emit(AccessChanged(PRIMARY, said.given, revision))
        return get_cluster(store, PRIMARY)


def _queue_changes(queue: Mapping[str, object] | None) -> Mapping[str, object]:
    if not queue:
        return {}
    from vctl.spec.queue_settings import parse_queue

    return parse_queue(queue)


def _set_queue(store: Store, cluster: Cluster, queue: Mapping[str, object]) -> None:
    if queue:
        _check_has_queue(cluster)
        policy = replace(settings.queue_of(store, cluster.cluster_id), **queue)  # type: ignore[arg-type]
        store.emit(QueueChanged(cluster.cluster_id, policy))


def check_people(store: Store, access: Mapping[str, object]) -> None:
    """In a shared service: refuse names that nobody on this machine has."""
    if store.identity is None:
        return
    from vctl.ops import users

    for name in ("submitters", "admins"):
        people = access.get(name)
        if isinstance(people, tuple):
            users.check_names(people, param(name))


def set_access(store: Store, cluster: Cluster, changes: Mapping[str, object]) -> None:
    """Change who may submit to a cluster, who administers it and whether it shows names; inside a transaction."""
    if not changes:
        return
    if cluster.kind != LOGICAL:
        raise BadSpec(
            f"{cluster_text(cluster.cluster_id)} is a {cluster.kind} cluster: it has the rights of its job",
            fix="name a logical one",
        )
    check_people(store, changes)
    said = replace(settings.access_of(store, cluster.cluster_id), **changes)  # type: ignore[arg-type]
    store.emit(AccessChanged(cluster.cluster_id, said.given))


def _check_has_queue(cluster: Cluster) -> None:
    if cluster.kind != LOGICAL:
        raise BadSpec(
            f"{cluster_text(cluster.cluster_id)} is a {cluster.kind} cluster: it has no queue",
            fix="name a logical one",
        )


def delete(store: Store, cluster_id: str, *, drain: bool = False, force: bool = False) -> RemovedCluster:
    """Delete an unused cluster.

    ``drain``: refuse new jobs, let queued and running jobs end, and delete the cluster when it is empty; the cluster
    of a job is deleted with its job. ``force``: stop the blockers.
    """
    cluster_id = full_cluster_id(cluster_id)
    _check_changed_id(cluster_id, "removed")
    with store.transaction():
        row = removable_row(store, cluster_id)
        # who has booked a cluster may cancel that
        rights.check_cluster(store, cluster_id, "delete", above=rows.cluster(row).booking is None)
        form = cluster_form(store, row)
        blockers = blockers_of(store, cluster_id)
        if not blockers:
            for removed in rule.upward(table.InTables(store), rows.cluster(row)):
                changes.emit_removal(store, removed)
            return {**form, "state": "REMOVED", "blockers": [], "kept_by": []}
        if not (drain or force):
            raise in_use(cluster_id, blockers)
        # the job of a job cluster may still start tasks until it ends
        is_over = row["kind"] == JOB and (force or not jobs.is_running(store, int(row["job_id"])))
        if row["kind"] != JOB or is_over:
            for below in [cluster_id, *table.subtree(store, cluster_id)]:
                child = table.get(store, below)
                if child is not None and (
                    is_over
                    or row["kind"] in (SUB, child["kind"])
                    or not jobs.is_running(store, int(child["job_id"]))  # it only stays for what is detached
                ):
                    store.emit(ClusterMoved(store.clock(), below, "remove", REMOVING))
    if force:
        _stop_everything(store, cluster_id, attached_too=row["kind"] == SUB)
    with store.snapshot():
        if table.get(store, cluster_id) is None:
            return {**form, "state": "REMOVED", "blockers": blockers, "kept_by": []}
        kept_by = not_due(store, cluster_id)
        return {**get_cluster(store, cluster_id), "blockers": blockers, "kept_by": kept_by}


def sweep(store: Store) -> None:
    """Remove the deleted clusters that are empty; inside a transaction. A scheduler does so by the same rule."""
    for removed in rule.removed(table.InTables(store)):
        changes.emit_removal(store, removed)


def _stop_everything(store: Store, cluster_id: str, *, attached_too: bool) -> None:
    """Stop all jobs and tasks in a cluster and below it.

    ``attached_too``: also tasks that are not detached; else they end with their jobs.
    """
    clusters_inside = [cluster_id, *table.subtree(store, cluster_id)]
    for below in clusters_inside:
        for row in job_views.unfinished_in(store, below):
            ops.jobs.stop(store, int(row["job_id"]) if row["members"] == 1 else str(row["array_id"]))
    for below in clusters_inside:  # detached tasks outlive their jobs
        for row in tasks.unfinished_in(store, below):
            if attached_too or row["detached"]:
                ops.tasks.cancel(store, str(row["task_id"]))
    with store.transaction():
        sweep(store)


def _with_contents(cluster_id: str, change: ClusterChange) -> ClusterChange:
    """The change with a spec in place of the counts of whole nodes."""
    if change.replica_sets is None:
        return change
    from vctl.spec.cluster_spec import parse_replica_sets

    counts = parse_replica_sets(change.replica_sets, param("replica_sets"), cluster_id=cluster_id)
    return replace(change, replica_sets=None, spec=replace(changes.NOTHING, replica_sets=counts))


def _check_changed_id(cluster_id: str, action: str) -> None:
    """Refuse an id that no cluster can have; ids of job clusters and sub-clusters contain ##."""
    if JOB_MARK in cluster_id:
        resolve_cluster_id(cluster_id, "virtual cluster id")
    else:
        check_new_cluster_id(cluster_id, action=action)


LONGEST_MESSAGE = 1000


def stop(store: Store, cluster_id: str, *, message: str | None = None) -> ClusterForm:
    """Stop admitting jobs to a cluster; for a stopped cluster, change the message."""
    if message is not None and (len(message) > LONGEST_MESSAGE or not message.isprintable()):
        raise refuse(
            param("message"),
            "it is too long, or has control characters",
            f"use at most {LONGEST_MESSAGE} printable characters",
        )
    with store.transaction():
        _admitting(store, cluster_id, "stopped")
        by = ops.nodes.author(store)
        stopped = {"by": by, "message": message} if message else {"by": by}
        store.emit(ClusterMoved(store.clock(), cluster_id, "stop", STOPPED, stopped))
        return get_cluster(store, cluster_id)


def resume(store: Store, cluster_id: str) -> ClusterForm:
    """Admit jobs to a cluster again; its waiting jobs are considered at once."""
    with store.transaction():
        cluster = _admitting(store, cluster_id, "resumed")
        if cluster.state != ACTIVE:
            store.emit(ClusterMoved(store.clock(), cluster_id, "resume", ACTIVE))
        return get_cluster(store, cluster_id)


def _admitting(store: Store, cluster_id: str, action: str) -> Cluster:
    """The logical cluster with this id. Refuses other kinds, and a cluster that is being removed."""
    if resolve(cluster_id) == PRIMARY:
        raise BadSpec(
            f"Invalid request, {PRIMARY} can not be {action}.",
            fix="stop the clusters in it one by one; `vctl node drain` keeps new work off a node",
        )
    row = cluster_row(store, cluster_id)
    if row["kind"] != LOGICAL:
        raise BadSpec(
            f"{cluster_text(cluster_id)} is a {row['kind']} cluster and admits no jobs from outside",
            fix="`vctl job stop` ends its job",
        )
    rights.check_cluster(store, cluster_id)
    cluster = rows.cluster(row)
    if cluster.state == BOOKED:
        raise changes.not_open(cluster)
    if cluster.state not in (ACTIVE, STOPPED):
        raise Conflict(
            f"cluster {cluster_text(cluster_id)} is being removed",
            fix="submit to another cluster; this one is deleted when it is empty",
        )
    return cluster


def instances(store: Store, *, job_clusters: bool = False) -> list[forms.Form]:
    """Every logical cluster with its nodes, with ``job_clusters`` also the clusters of jobs; two queries."""
    with store.snapshot():
        clusters = table.all_rows(store) if job_clusters else table.logical_rows(store)
        nodes_of: dict[str, dict[str, Any]] = {row["cluster_id"]: {} for row in clusters}
        for cluster_id, node_id, hostname, template_id in table.members(store):
            if (members := nodes_of.get(cluster_id)) is not None:
                members[node_id] = {"hostname": hostname, "template_id": template_id}
    return [
        {
            "cluster_id": row["cluster_id"],
            "kind": row["kind"],
            "divisible": bool(row["divisible"]),
            "revision": row["revision"],
            "state": row["state"],
            "node_instances": nodes_of[row["cluster_id"]],
        }
        for row in clusters
    ]


def remove_nodes(store: Store, cluster_id: str, node_ids: Sequence[str]) -> ClusterForm:
    """Give named nodes of a logical cluster back to its parent: all, or none if one is in use or not in the cluster.

    The revision stays: it counts changes of the wanted state only.
    """
    if resolve(cluster_id) == PRIMARY and cluster_id:
        raise BadSpec(
            f"Invalid request, {PRIMARY} should not be updated via this API.",
            fix="`vctl node remove` takes a node out of the primary cluster",
        )
    check_new_cluster_id(cluster_id)
    requested = list(dict.fromkeys(node_ids))
    with store.transaction():
        row = logical_row(store, cluster_id)
        rights.check_cluster(store, cluster_id)
        if not requested:
            return get_cluster(store, cluster_id)
        cluster = rows.cluster(row)
        if not of_whole_nodes(cluster.spec):
            raise Conflict(
                f"The virtual cluster {cluster_id} was made from a resource spec and has no whole nodes to remove.",
                fix=f"`vctl vc update {cluster_id} --spec …` makes it smaller",
                details={"nodesWithFailure": requested},
            )
        leaving = _idle_members(store, cluster_id, requested)
        if offenders := [node_id for node_id in requested if node_id not in leaving]:
            raise Conflict(
                "Failed to remove some of the nodes because they are not idle nor found in the virtual cluster."
                " These nodes with failure are shown below.",
                fix=f"leave these out, or wait until nothing uses them: {', '.join(offenders)}",
                details={"nodesWithFailure": offenders},
            )
        counts = dict(cluster.spec.replica_sets)
        for template_id in leaving.values():
            counts[template_id] = max(counts.get(template_id, 0) - 1, 0)
        removed = [v["vnode_id"] for v in table.vnode_rows(store, cluster_id) if v["node_id"] in leaving]
        store.emit(VNodesChanged(tuple(removed)))
        spec = ClusterSpec(flexible=False, replica_sets=counts)
        store.emit(ClusterChanged(store.clock(), replace(cluster, spec=spec)))
        return get_cluster(store, cluster_id)


def _idle_members(store: Store, cluster_id: str, requested: Sequence[str]) -> dict[str, str]:
    """The unused whole nodes of the cluster among ``requested``: node id -> template."""
    from vctl.scheduler.membership import is_undivided

    ledger = load_for_exchange(store, rows.cluster(cluster_row(store, cluster_id)), {})
    idle: dict[str, str] = {}
    for vnode in ledger.slots(cluster_id):
        if vnode.node_id in requested and vnode.whole:
            node = ledger.nodes[vnode.node_id]
            if node.state == DEAD or is_undivided(ledger, vnode):
                idle[vnode.node_id] = node.template_id
    return idle
