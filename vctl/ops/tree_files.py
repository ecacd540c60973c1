"""Tree files: the plan of the changes for a file, its application in one transaction, and the export of a file.

The plan makes all changes and takes them back, so it knows the blockers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vctl import ops
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY, Cluster, ClusterSpec
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import DEFAULT
from vctl.core.values import replace
from vctl.engine.changes import QueueChanged
from vctl.errors import Conflict, VctlError
from vctl.ops import cluster_changes as changes
from vctl.ops import feasible, nodes
from vctl.ops.cluster_changes import Wanted
from vctl.ops.cluster_views import resolve
from vctl.ops.tree_diff import (
    CREATE,
    DELETE,
    UPDATE,
    Change,
    Diff,
    at,
    described,
    diff_of,
    form_of,
    logical_row,
    present_clusters,
    revision,
)
from vctl.scheduler.membership import of_whole_nodes
from vctl.spec.tree_file import TreeCluster, tree_document
from vctl.store import clusters as table
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.reports import TreeDiff


def plan(store: Store, wanted: Sequence[TreeCluster], *, prune: bool = False) -> TreeDiff:
    """The changes that ``apply`` would make, and their blockers. Changes nothing."""
    with nodes.as_if_joined(store), nodes.taken_back(store):
        diff = diff_of(store, wanted, prune=prune)
        if diff.changes:
            _Work(store, diff, go_on=True).carry_out()
    return form_of(diff)


def apply(
    store: Store, wanted: Sequence[TreeCluster], *, prune: bool = False, expect_revision: str | None = None
) -> TreeDiff:
    """Change the clusters to match the file, in one transaction: all changes or none."""
    nodes.join(store)
    with store.transaction():
        diff = diff_of(store, wanted, prune=prune)
        if expect_revision is not None and expect_revision != diff.revision:
            raise Conflict(
                f"the clusters have changed since the plan: expected revision {expect_revision}, it is {diff.revision}",
                fix="look at `vctl vc plan` again",
                details={"revision": diff.revision},
            )
        if diff.changes:
            _Work(store, diff).carry_out()
            diff.revision = revision(present_clusters(store))
    return form_of(diff)


def export(store: Store, cluster_id: str | None = None) -> dict[str, object]:
    """The tree file of all logical clusters, or of one cluster with its sub-tree; its plan has no changes."""
    with store.snapshot():
        present = present_clusters(store)
        wanted = resolve(cluster_id)
        if wanted != PRIMARY:
            logical_row(store, wanted)
            inside = {wanted, *table.subtree(store, wanted)}
            present = {name: cluster for name, cluster in present.items() if name in inside}
    staying = [described(cluster) for cluster in present.values() if cluster.state != "REMOVING"]
    return tree_document(staying)


class _Work:
    """Makes the changes of a diff inside a transaction. With ``go_on`` a change that fails becomes a blocker."""

    def __init__(self, store: Store, diff: Diff, *, go_on: bool = False) -> None:
        self.store = store
        self.changes = diff.changes
        self.go_on = go_on
        self.ledger = feasible.whole_tree(store)
        self.author = ops.nodes.author()

    def carry_out(self) -> None:
        """First delete and shrink clusters from the leaves up, then grow and create clusters from the root down."""
        for change in reversed(self.changes):
            if change.action == DELETE:
                with self.step(change):
                    changes.delete(self.store, change.cluster.cluster_id, ledger=self.ledger)
        for change in reversed(self.changes):
            if change.action == UPDATE:
                with self.step(change):
                    self.shrink(change)
        for change in self.changes:
            if change.after is None or change.blockers:
                continue
            if change.cluster.parent_id in self.missing():
                change.blockers.append(f"cluster {change.cluster.parent_id} is blocked")
                continue
            with self.step(change):
                self.grow(change, change.after)

    def missing(self) -> set[str]:
        """The ids of clusters whose creation failed."""
        return {c.cluster.cluster_id for c in self.changes if c.action == CREATE and c.blockers}

    @contextmanager
    def step(self, change: Change) -> Iterator[None]:
        """One step of a change, which is undone after an error; the error names the path in the file."""
        if not self.go_on:
            with at(change.cluster):
                yield
            return
        try:
            with self.store.savepoint():
                yield
        except VctlError as error:
            change.blockers += error.details.get("blockers") or [f"{error.problem} ({error.fix})"]
            self.ledger = feasible.whole_tree(self.store)

    def shrink(self, change: Change) -> None:
        """Give back resources that the wanted state does not have, and take none yet."""
        old = changes.changeable(self.store, change.cluster.cluster_id)
        assert change.after is not None
        changes.check_update(old, _wanted(change.after))
        change.shrunk = _common(self.ledger, old, change.after.spec)
        shrunk = replace(old, spec=change.shrunk)
        self.ledger.put_cluster(shrunk)
        changes.fulfil(self.store, self.ledger, shrunk, old.spec)

    def grow(self, change: Change, after: TreeCluster) -> None:
        """Bring a cluster to its wanted state, or create it."""
        if change.action == CREATE:
            changes.create(
                self.store, after.cluster_id, _wanted(after), parent_id=after.parent_id, owner=self.author,
                ledger=self.ledger,
            )  # fmt: skip
        else:
            changes.update(
                self.store, after.cluster_id, _wanted(after), ledger=self.ledger, has=change.shrunk
            )
        if after.queue != (DEFAULT if change.before is None else change.before.queue):
            self.store.emit(QueueChanged(after.cluster_id, after.queue))


def _wanted(cluster: TreeCluster) -> Wanted:
    return Wanted(cluster.divisible, cluster.spec, cluster.borrow_limit or {}, cluster.lending_limit)


def _common(ledger: Ledger, old: Cluster, new: ClusterSpec) -> ClusterSpec:
    """The spec of the resources that a cluster has and keeps."""
    members = [ledger.vnodes[vnode_id] for vnode_id in ledger.members[old.cluster_id]]
    if of_whole_nodes(new):
        counts: dict[str, int] = {}
        for vnode in members:
            template = ledger.nodes[vnode.node_id].template_id
            counts[template] = min(counts.get(template, 0) + 1, new.replica_sets.get(template, 0))
        return replace(changes.NOTHING, replica_sets=counts)
    has = rs.total(vnode.allocation.amounts for vnode in members if vnode.kind == FLEXIBLE)
    least = {name: min(amount, new.flexible_min.get(name, 0)) for name, amount in has.items()}
    kept, _ = changes.common_groups(old.spec, new)
    return ClusterSpec(least, new.flexible_max, kept, {}, flexible=True)
