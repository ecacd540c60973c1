"""Tree files: the plan of the changes for a file, its application in one transaction, and the export of a file.

The plan makes all changes and takes them back, so it knows the blockers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from vctl import ops
from vctl.core import resources as rs
from vctl.core.access import Access
from vctl.core.clusters import FLEXIBLE, LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import DEFAULT
from vctl.core.values import field, replace, value
from vctl.core.wording import cluster_text
from vctl.engine.changes import AccessChanged, QueueChanged
from vctl.errors import BadSpec, Conflict, VctlError
from vctl.ops import cluster_changes as changes
from vctl.ops import feasible, nodes
from vctl.ops.cluster_views import cluster_row, resolve
from vctl.scheduler.membership import of_whole_nodes
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import spec_to_document
from vctl.spec.tree_file import TreeCluster, cluster_document, tree_document
from vctl.store import clusters as table
from vctl.store import rows, settings
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.reports import TreeChange, TreeDiff

CREATE, UPDATE, DELETE = "create", "update", "delete"


@value(slots=True)
class ChangedCluster:
    """A cluster that differs from the file. ``after`` is None for a deletion, ``before`` for a creation."""

    before: TreeCluster | None
    after: TreeCluster | None
    blockers: list[str] = field(default_factory=list)
    shrunk: ClusterSpec | None = None
    """The spec to which an update was shrunk before the growth of other clusters."""

    @property
    def cluster(self) -> TreeCluster:
        """The wanted cluster, or the present cluster of a deletion."""
        cluster = self.after or self.before
        assert cluster is not None
        return cluster

    @property
    def action(self) -> str:
        """The action: create, update or delete."""
        if self.before is None:
            return CREATE
        return UPDATE if self.after else DELETE


@value(slots=True)
class Diff:
    """The changes, parents first, and the ids of the unchanged clusters."""

    revision: str
    changes: list[ChangedCluster]
    unchanged: list[str]


def plan(store: Store, target: Sequence[TreeCluster], *, prune: bool = False) -> TreeDiff:
    """The changes that ``apply`` would make, and their blockers. Changes nothing."""
    with nodes.as_if_joined(store), nodes.rolled_back(store):
        diff = _diff_of(store, target, prune=prune)
        if diff.changes:
            _Work(store, diff, go_on=True).carry_out()
    return _form_of(diff)


def apply(
    store: Store, target: Sequence[TreeCluster], *, prune: bool = False, expect_revision: str | None = None
) -> TreeDiff:
    """Change the clusters to match the file, in one transaction: all changes or none."""
    nodes.join(store)
    with store.transaction():
        diff = _diff_of(store, target, prune=prune)
        if expect_revision is not None and expect_revision != diff.revision:
            raise Conflict(
                f"the clusters have changed since the plan: expected revision {expect_revision}, it is {diff.revision}",
                fix="look at `vctl vc plan` again",
                details={"revision": diff.revision},
            )
        if diff.changes:
            _Work(store, diff).carry_out()
            diff.revision = _revision(_present_clusters(store))
    return _form_of(diff)


def export(store: Store, cluster_id: str | None = None) -> dict[str, object]:
    """The tree file of all logical clusters, or of one cluster with its sub-tree; its plan has no changes."""
    with store.snapshot():
        present, accesses = _present_clusters(store), settings.accesses(store)
        top = resolve(cluster_id)
        if top != PRIMARY:
            _logical_row(store, top)
            inside = {top, *table.subtree(store, top)}
            present = {name: cluster for name, cluster in present.items() if name in inside}
    staying = [_described(cluster, accesses) for cluster in present.values() if cluster.state != "REMOVING"]
    return tree_document(staying)


# ---- what differs ----


def _revision(present: dict[str, Cluster]) -> str:
    """A digest that changes with every creation, update and deletion of a logical cluster, and only then."""
    text = "".join(f"{name} {present[name].revision}\n" for name in sorted(present))
    return sha256(text.encode()).hexdigest()[:16]


def _present_clusters(store: Store) -> dict[str, Cluster]:
    """The logical clusters by id, parents first; without booked ones, those made for users, and what is in these."""
    present: dict[str, Cluster] = {}
    left_out = set[str]()
    for row in table.parents_first(table.logical_rows(store)):
        cluster = rows.cluster(row)
        if cluster.booking is not None or cluster.of_user or cluster.parent_id in left_out:
            left_out.add(cluster.cluster_id)
        else:
            present[cluster.cluster_id] = cluster
    return present


def _logical_row(store: Store, cluster_id: str) -> Row:
    """The row of a logical cluster; a file may not name clusters of jobs."""
    row = cluster_row(store, cluster_id)
    if row["kind"] != LOGICAL:
        raise BadSpec(
            f"{cluster_id} is a {row['kind']} cluster, and files describe those made by name",
            fix="see `vctl vc list --filter kind=logical`",
        )
    return row


def _described(cluster: Cluster, accesses: Mapping[str, Access], path: str = "") -> TreeCluster:
    assert cluster.parent_id is not None
    return TreeCluster(
        cluster.cluster_id, cluster.parent_id, cluster.divisible, cluster.spec, cluster.borrow_limit or None,
        cluster.lending_limit, path, cluster.queue, cluster.private,
        accesses.get(cluster.cluster_id, Access()), cluster.user_template,
    )  # fmt: skip


def _diff_of(store: Store, target: Sequence[TreeCluster], *, prune: bool) -> Diff:
    """The necessary changes. Refuses impossible ones. ``prune`` deletes the clusters that the file does not name."""
    present, accesses = _present_clusters(store), settings.accesses(store)
    named = {cluster.cluster_id for cluster in target}
    diff = Diff(_revision(present), [], [])
    for cluster in target:
        _check_position(store, cluster, present, named)
        old = present.get(cluster.cluster_id)
        if old is None:
            diff.changes.append(ChangedCluster(None, cluster))
        elif _comparable(before := _described(old, accesses, cluster.path)) == _comparable(cluster):
            diff.unchanged.append(cluster.cluster_id)
        else:
            diff.changes.append(ChangedCluster(before, cluster))
    if prune:
        for name in _surplus(present, target):
            diff.changes.append(ChangedCluster(_described(present[name], accesses), None))
    return diff


def _check_position(store: Store, cluster: TreeCluster, present: dict[str, Cluster], named: set[str]) -> None:
    """Refuse another parent, an unknown parent, and a cluster that is being removed."""
    with _at(cluster):
        if cluster.parent_id not in {PRIMARY, *named}:
            _logical_row(store, cluster.parent_id)
        old = present.get(cluster.cluster_id)
        if old is None:
            return
        if old.parent_id != cluster.parent_id:
            parent = cluster_text(old.parent_id or PRIMARY)
            raise Conflict(
                f"{cluster.cluster_id} is in {parent}, and a cluster cannot move to another parent",
                fix="put it there in the file, or delete the cluster first",
            )
        if old.state == "REMOVING":
            raise Conflict(f"cluster {cluster.cluster_id} is being removed", fix="wait until it is gone")


def _comparable(cluster: TreeCluster) -> TreeCluster:
    """A cluster without irrelevant details: amounts of 0, the order of groups, the path in the file."""
    spec = cluster.spec
    plain = replace(
        spec,
        flexible_min={name: amount for name, amount in spec.flexible_min.items() if amount},
        flexible_max=dict(spec.flexible_max or {}),
        groups=tuple(
            sorted(spec.groups, key=lambda group: rows.dumps(spec_to_document(ClusterSpec(groups=(group,)))))
        ),
    )
    lending = {name: amount for name, amount in cluster.lending_limit.items() if amount}
    return replace(cluster, spec=plain, lending_limit=lending, path="")


def _surplus(present: dict[str, Cluster], target: Sequence[TreeCluster]) -> list[str]:
    """The clusters that the file does not name, below the parents of its top clusters, parents first.

    The ancestors of named clusters are not among them.
    """
    named = {cluster.cluster_id for cluster in target}
    tops = {cluster.parent_id for cluster in target} - named or {PRIMARY}
    spared = set(named)
    for cluster in target:
        above: str | None = cluster.parent_id
        while above in present:
            spared.add(above)
            above = present[above].parent_id
    below = set(tops)
    surplus = []
    for name, old in present.items():
        if old.parent_id in below:
            below.add(name)
            if name not in spared and old.state != "REMOVING":
                surplus.append(name)
    return surplus


@contextmanager
def _at(cluster: TreeCluster) -> Iterator[None]:
    """Add the path in the file to an error without a path."""
    try:
        yield
    except VctlError as error:
        if cluster.path and "path" not in error.details:
            error.add_path(cluster.path, cluster.cluster_id)
        raise


def _form_of(diff: Diff) -> TreeDiff:
    actions = [change.action for change in diff.changes]
    return {
        "revision": diff.revision,
        "changes": [_change_form(change) for change in diff.changes],
        "unchanged": diff.unchanged,
        "summary": {
            **{action: actions.count(action) for action in (CREATE, UPDATE, DELETE)},
            "unchanged": len(diff.unchanged),
            "blocked": sum(bool(change.blockers) for change in diff.changes),
        },
    }


def _change_form(change: ChangedCluster) -> TreeChange:
    return {
        "action": change.action,
        "cluster_id": change.cluster.cluster_id,
        "parent_id": change.cluster.parent_id,
        "path": change.cluster.path or None,
        "before": None if change.before is None else cluster_document(change.before),
        "after": None if change.after is None else cluster_document(change.after),
        "blockers": change.blockers,
    }


# ---- carrying it out ----


class _Work:
    """Makes the changes of a diff inside a transaction. With ``go_on`` a change that fails becomes a blocker."""

    def __init__(self, store: Store, diff: Diff, *, go_on: bool = False) -> None:
        self.store = store
        self.changes = diff.changes
        self.go_on = go_on
        self.ledger = feasible.whole_tree(store)
        self.author = ops.nodes.author(store)

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
    def step(self, change: ChangedCluster) -> Iterator[None]:
        """One step of a change, which is undone after an error; the error names the path in the file."""
        if not self.go_on:
            with _at(change.cluster):
                yield
            return
        try:
            with self.store.savepoint():
                yield
        except VctlError as error:
            change.blockers += error.details.get("blockers") or [f"{error.problem} ({error.fix})"]
            self.ledger = feasible.whole_tree(self.store)

    def shrink(self, change: ChangedCluster) -> None:
        """Give back resources that the wanted state does not have, and take none yet."""
        old = changes.changeable(self.store, change.cluster.cluster_id)
        assert change.after is not None
        changes.check_update(old, _as_change(change.after))
        change.shrunk = _common(self.ledger, old, change.after.spec)
        shrunk = replace(old, spec=change.shrunk)
        self.ledger.put_cluster(shrunk)
        changes.fulfil(self.store, self.ledger, shrunk, old.spec)

    def grow(self, change: ChangedCluster, after: TreeCluster) -> None:
        """Bring a cluster to its wanted state, or create it."""
        if change.action == CREATE:
            changes.create(
                self.store, after.cluster_id, _as_change(after), parent_id=after.parent_id, owner=self.author,
                ledger=self.ledger,
            )  # fmt: skip
        else:
            changes.update(
                self.store, after.cluster_id, _as_change(after), ledger=self.ledger, has=change.shrunk
            )
        if after.queue != (DEFAULT if change.before is None else change.before.queue):
            self.store.emit(QueueChanged(after.cluster_id, after.queue))
        if after.access != (Access() if change.before is None else change.before.access):
            ops.clusters.check_people(
                self.store, {"submitters": after.access.submitters, "admins": after.access.admins}
            )
            self.store.emit(AccessChanged(after.cluster_id, after.access.given))


def _as_change(cluster: TreeCluster) -> ClusterChange:
    return ClusterChange(
        divisible=cluster.divisible,
        spec=cluster.spec,
        borrow_limit=cluster.borrow_limit or {},
        lending_limit=cluster.lending_limit,
        private=cluster.private,
        user_template=() if cluster.user_template is None else (cluster.user_template,),
    )


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
    common, _ = changes.common_groups(old.spec, new)
    return ClusterSpec(least, new.flexible_max, common, {}, flexible=True)
