"""A whole tree of logical clusters from one file: what would change, all of it at once, and the file of what there is.

The plan carries everything out and takes it back again, so it knows what stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY, Cluster, ClusterSpec
from vctl.core.ledger import Ledger
from vctl.errors import Conflict, VctlError
from vctl.ops import cluster_changes as changes
from vctl.ops import forms
from vctl.ops.cluster_changes import Wanted
from vctl.ops.cluster_views import cluster_row, resolve
from vctl.spec.tree_file import TreeCluster, cluster_document, tree_document
from vctl.store import clusters as table
from vctl.store import rows
from vctl.store.store import Store

CREATE, UPDATE, DELETE = "create", "update", "delete"


@dataclass(slots=True)
class Change:
    """One cluster that is not as the file wants it. ``after`` is None for one to delete, ``before`` for a new one."""

    before: TreeCluster | None
    after: TreeCluster | None
    blockers: list[str] = field(default_factory=list)
    shrunk: ClusterSpec | None = None
    """What an update was shrunk to before anything grew."""

    @property
    def cluster(self) -> TreeCluster:
        """The cluster as it is to be, or as it was."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def action(self) -> str:
        """What happens to the cluster."""
        if self.before is None:
            return CREATE
        return UPDATE if self.after else DELETE


@dataclass(slots=True)
class Diff:
    """What is to be changed, parents first, and what is as it should be."""

    revision: str
    changes: list[Change]
    unchanged: list[str]


class _DryRun(Exception):
    """Rolls back what a plan has done."""


def plan(store: Store, wanted: Sequence[TreeCluster], *, prune: bool = False) -> forms.Form:
    """What ``apply`` would change, and what stands in its way. Changes nothing."""
    try:
        with store.transaction():
            diff = _diff(store, wanted, prune=prune)
            if diff.changes:
                _Work(store, diff, go_on=True).carry_out()
            raise _DryRun
    except _DryRun:
        return _form(diff)


def apply(
    store: Store, wanted: Sequence[TreeCluster], *, prune: bool = False, expect_revision: str | None = None
) -> forms.Form:
    """Make the tree what the file wants, in one transaction: all of it or nothing."""
    with store.transaction():
        diff = _diff(store, wanted, prune=prune)
        if expect_revision is not None and expect_revision != diff.revision:
            raise Conflict(
                f"the clusters have changed since the plan: expected revision {expect_revision}, it is {diff.revision}",
                fix="look at `vctl vc plan` again",
                details={"revision": diff.revision},
            )
        if diff.changes:
            _Work(store, diff).carry_out()
            diff.revision = revision(_present(store))
    return _form(diff)


def export(store: Store, cluster_id: str | None = None) -> dict[str, object]:
    """The file of the logical clusters there are, or of one with all inside it; a plan of it is empty."""
    with store.snapshot():
        present = _present(store)
        wanted = resolve(cluster_id)
        if wanted != PRIMARY:
            changes.changeable(store, wanted)
            inside = {wanted, *table.subtree(store, wanted)}
            present = {name: cluster for name, cluster in present.items() if name in inside}
    staying = [_described(cluster) for cluster in present.values() if cluster.state != "REMOVING"]
    return tree_document(staying)


def revision(present: dict[str, Cluster]) -> str:
    """Changes with every creation, update and removal of a logical cluster, and with nothing else."""
    text = "".join(f"{name} {present[name].revision}\n" for name in sorted(present))
    return sha256(text.encode()).hexdigest()[:16]


def _present(store: Store) -> dict[str, Cluster]:
    found = table.parents_first(table.logical_rows(store))
    return {row["cluster_id"]: rows.cluster(row) for row in found}


def _described(cluster: Cluster, path: str = "") -> TreeCluster:
    """A cluster as a file would say it."""
    assert cluster.parent_id is not None
    return TreeCluster(
        cluster.cluster_id, cluster.parent_id, cluster.divisible, cluster.spec, cluster.borrow_limit or None,
        cluster.lending_limit, path,
    )  # fmt: skip


# ---- the difference ----


def _diff(store: Store, wanted: Sequence[TreeCluster], *, prune: bool) -> Diff:
    present = _present(store)
    found = Diff(revision(present), [], [])
    for cluster in wanted:
        _check_place(store, cluster, present, {other.cluster_id for other in wanted})
        old = present.get(cluster.cluster_id)
        if old is None:
            found.changes.append(Change(None, cluster))
        elif _same(before := _described(old, cluster.path), cluster):
            found.unchanged.append(cluster.cluster_id)
        else:
            found.changes.append(Change(before, cluster))
    if prune:
        for name in _surplus(present, wanted):
            found.changes.append(Change(_described(present[name]), None))
    return found


def _check_place(store: Store, cluster: TreeCluster, present: dict[str, Cluster], named: set[str]) -> None:
    """Refuse what no change of size can bring about: another parent, a parent that is not there."""
    with _at(cluster):
        if cluster.parent_id not in {PRIMARY, *named}:
            cluster_row(store, cluster.parent_id)
        old = present.get(cluster.cluster_id)
        if old is None:
            return
        if old.parent_id != cluster.parent_id:
            raise Conflict(
                f"{cluster.cluster_id} lies in {old.parent_id}, and a cluster stays where it was made",
                fix="describe it there, or delete it first",
            )
        if old.state == "REMOVING":
            raise Conflict(f"cluster {cluster.cluster_id} is being removed", fix="wait until it is gone")


def _same(left: TreeCluster, right: TreeCluster) -> bool:
    return _comparable(left) == _comparable(right)


def _comparable(cluster: TreeCluster) -> TreeCluster:
    """Without what makes no difference: names with 0, the order of groups, the place in the file."""
    spec = cluster.spec
    plain = replace(
        spec,
        flexible_min={name: amount for name, amount in spec.flexible_min.items() if amount},
        flexible_max=dict(spec.flexible_max or {}),
        groups=tuple(sorted(spec.groups, key=repr)),
        replica_sets={name: count for name, count in spec.replica_sets.items() if count},
    )
    lending = {name: amount for name, amount in cluster.lending_limit.items() if amount}
    return replace(cluster, spec=plain, lending_limit=lending, path="")


def _surplus(present: dict[str, Cluster], wanted: Sequence[TreeCluster]) -> list[str]:
    """Clusters that the file does not name, below those it begins with, parents first; what holds a named one stays."""
    named = {cluster.cluster_id for cluster in wanted}
    tops = {cluster.parent_id for cluster in wanted} - named or {PRIMARY}
    kept = set(named)
    for cluster in wanted:
        above: str | None = cluster.parent_id
        while above in present:
            kept.add(above)
            above = present[above].parent_id
    below = set(tops)
    found = []
    for name, cluster in present.items():
        if cluster.parent_id in below:
            below.add(name)
            if name not in kept and cluster.state != "REMOVING":
                found.append(name)
    return found


# ---- carrying it out ----


class _Work:
    """Brings about a difference inside a transaction. With ``go_on`` what fails is noted and left as it was."""

    def __init__(self, store: Store, diff: Diff, *, go_on: bool = False) -> None:
        from vctl.ops.nodes import author

        self.store = store
        self.changes = diff.changes
        self.go_on = go_on
        self.ledger = table.load_ledger(store)
        self.author = author()

    def carry_out(self) -> None:
        """Free first, take then: removals and shrinks from the leaves up, growth and creations from the root down."""
        for change in reversed(self.changes):
            if change.action == DELETE:
                with self.step(change):
                    changes.delete(self.store, change.cluster.cluster_id, ledger=self.ledger)
        for change in reversed(self.changes):
            if change.action == UPDATE:
                with self.step(change):
                    self.shrink(change)
        for change in self.changes:
            if not change.blockers and change.after is not None:
                with self.step(change):
                    self.grow(change, change.after)

    @contextmanager
    def step(self, change: Change) -> Iterator[None]:
        """One part of a change: it fails whole, with its place in the file."""
        if not self.go_on:
            with _at(change.cluster):
                yield
            return
        try:
            with self.store.savepoint():
                yield
        except VctlError as error:
            change.blockers += error.details.get("blockers") or [f"{error.problem} ({error.fix})"]
            self.ledger = table.load_ledger(self.store)

    def shrink(self, change: Change) -> None:
        """Give back what the wanted state has no more, and take nothing yet."""
        old = changes.changeable(self.store, change.cluster.cluster_id)
        assert change.after is not None
        changes.check_update(old, _wanted(change.after))
        change.shrunk = _common(self.ledger, old, change.after.spec)
        shrunk = replace(old, spec=change.shrunk)
        self.ledger.put_cluster(shrunk)
        changes.fulfil(self.store, self.ledger, shrunk, old.spec)

    def grow(self, change: Change, after: TreeCluster) -> None:
        """Bring a cluster to its wanted state, or make it."""
        if change.action == CREATE:
            changes.create(
                self.store, after.cluster_id, _wanted(after), parent_id=after.parent_id, owner=self.author,
                ledger=self.ledger,
            )  # fmt: skip
        else:
            changes.update(
                self.store, after.cluster_id, _wanted(after), ledger=self.ledger, has=change.shrunk
            )


def _wanted(cluster: TreeCluster) -> Wanted:
    return Wanted(cluster.divisible, cluster.spec, cluster.borrow_limit or {}, cluster.lending_limit)


def _common(ledger: Ledger, old: Cluster, new: ClusterSpec) -> ClusterSpec:
    """What a cluster has and is to keep."""
    members = [ledger.vnodes[vnode_id] for vnode_id in ledger.members[old.cluster_id]]
    if changes.of_whole_nodes(new):
        counts: dict[str, int] = {}
        for vnode in members:
            template = ledger.nodes[vnode.node_id].template_id
            counts[template] = min(counts.get(template, 0) + 1, new.replica_sets.get(template, 0))
        return replace(changes.NOTHING, replica_sets=counts)
    has = rs.total(vnode.holding.amounts for vnode in members if vnode.kind == FLEXIBLE)
    least = {name: min(amount, new.flexible_min.get(name, 0)) for name, amount in has.items()}
    kept = changes.kept_first(old.spec, new).groups
    staying = tuple(group for group in old.spec.groups if group in kept)
    return ClusterSpec(least, new.flexible_max, staying, {}, flexible=True)


@contextmanager
def _at(cluster: TreeCluster) -> Iterator[None]:
    """Let an error name the place in the file, unless it does so already."""
    try:
        yield
    except VctlError as error:
        if cluster.path and "path" not in error.details:
            error.problem = f"{cluster.path} ({cluster.cluster_id}): {error.problem}"
            error.args = (error.problem,)
            error.details["path"] = cluster.path
        raise


# ---- the answer ----


def _form(diff: Diff) -> forms.Form:
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


def _change_form(change: Change) -> forms.Form:
    return {
        "action": change.action,
        "cluster_id": change.cluster.cluster_id,
        "parent_id": change.cluster.parent_id,
        "path": change.cluster.path or None,
        "before": None if change.before is None else cluster_document(change.before),
        "after": None if change.after is None else cluster_document(change.after),
        "blockers": change.blockers,
    }
