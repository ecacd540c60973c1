"""The differences between the logical clusters and a tree file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec, Group
from vctl.core.values import replace
from vctl.core.wording import cluster_text
from vctl.errors import BadSpec, Conflict, VctlError
from vctl.ops.cluster_views import cluster_row
from vctl.spec.cluster_spec import spec_to_document
from vctl.spec.tree_file import TreeCluster, cluster_document
from vctl.store import clusters as table
from vctl.store import rows
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.reports import TreeChange, TreeDiff

CREATE, UPDATE, DELETE = "create", "update", "delete"


@dataclass(slots=True)
class Change:
    """A cluster that differs from the file. ``after`` is None for a deletion, ``before`` for a creation."""

    before: TreeCluster | None
    after: TreeCluster | None
    blockers: list[str] = field(default_factory=list)
    shrunk: ClusterSpec | None = None
    """The spec to which an update was shrunk before the growth of other clusters."""

    @property
    def cluster(self) -> TreeCluster:
        """The wanted cluster, or the present cluster of a deletion."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def action(self) -> str:
        """The action: create, update or delete."""
        if self.before is None:
            return CREATE
        return UPDATE if self.after else DELETE


@dataclass(slots=True)
class Diff:
    """The changes, parents first, and the ids of the unchanged clusters."""

    revision: str
    changes: list[Change]
    unchanged: list[str]


def revision(present: dict[str, Cluster]) -> str:
    """A digest that changes with every creation, update and deletion of a logical cluster, and only then."""
    text = "".join(f"{name} {present[name].revision}\n" for name in sorted(present))
    return sha256(text.encode()).hexdigest()[:16]


def present_clusters(store: Store) -> dict[str, Cluster]:
    """The logical clusters by id, parents first."""
    found = table.parents_first(table.logical_rows(store))
    return {row["cluster_id"]: rows.cluster(row) for row in found}


def logical_row(store: Store, cluster_id: str) -> Row:
    """The row of a logical cluster; a file may not name clusters of jobs."""
    row = cluster_row(store, cluster_id)
    if row["kind"] != LOGICAL:
        raise BadSpec(
            f"{cluster_id} is a {row['kind']} cluster, and files describe those made by name",
            fix="see `vctl vc list --filter kind=logical`",
        )
    return row


def described(cluster: Cluster, path: str = "") -> TreeCluster:
    """A cluster in the form of a tree file."""
    assert cluster.parent_id is not None
    return TreeCluster(
        cluster.cluster_id, cluster.parent_id, cluster.divisible, cluster.spec, cluster.borrow_limit or None,
        cluster.lending_limit, path, cluster.queue,
    )  # fmt: skip


def diff_of(store: Store, wanted: Sequence[TreeCluster], *, prune: bool) -> Diff:
    """The necessary changes. Refuses impossible ones. ``prune`` deletes the clusters that the file does not name."""
    present = present_clusters(store)
    named = {cluster.cluster_id for cluster in wanted}
    found = Diff(revision(present), [], [])
    for cluster in wanted:
        _check_place(store, cluster, present, named)
        old = present.get(cluster.cluster_id)
        if old is None:
            found.changes.append(Change(None, cluster))
        elif _same(before := described(old, cluster.path), cluster):
            found.unchanged.append(cluster.cluster_id)
        else:
            found.changes.append(Change(before, cluster))
    if prune:
        for name in _surplus(present, wanted):
            found.changes.append(Change(described(present[name]), None))
    return found


def _check_place(store: Store, cluster: TreeCluster, present: dict[str, Cluster], named: set[str]) -> None:
    """Refuse another parent, an unknown parent, and a cluster that is being removed."""
    with at(cluster):
        if cluster.parent_id not in {PRIMARY, *named}:
            logical_row(store, cluster.parent_id)
        old = present.get(cluster.cluster_id)
        if old is None:
            return
        if old.parent_id != cluster.parent_id:
            place = cluster_text(old.parent_id or PRIMARY)
            raise Conflict(
                f"{cluster.cluster_id} is in {place}, and a cluster cannot move to another parent",
                fix="put it there in the file, or delete the cluster first",
            )
        if old.state == "REMOVING":
            raise Conflict(f"cluster {cluster.cluster_id} is being removed", fix="wait until it is gone")


def _same(left: TreeCluster, right: TreeCluster) -> bool:
    return _comparable(left) == _comparable(right)


def _comparable(cluster: TreeCluster) -> TreeCluster:
    """A cluster without irrelevant details: amounts of 0, the order of groups, the path in the file."""
    spec = cluster.spec
    plain = replace(
        spec,
        flexible_min={name: amount for name, amount in spec.flexible_min.items() if amount},
        flexible_max=dict(spec.flexible_max or {}),
        groups=tuple(sorted(spec.groups, key=_canonical)),
        replica_sets=spec.replica_sets,
    )
    lending = {name: amount for name, amount in cluster.lending_limit.items() if amount}
    return replace(cluster, spec=plain, lending_limit=lending, path="")


def _canonical(group: Group) -> str:
    return json.dumps(spec_to_document(ClusterSpec(groups=(group,))), sort_keys=True)


def _surplus(present: dict[str, Cluster], wanted: Sequence[TreeCluster]) -> list[str]:
    """The clusters that the file does not name, below the parents of its top clusters, parents first.

    The ancestors of named clusters are not among them.
    """
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
    for name, old in present.items():
        if old.parent_id in below:
            below.add(name)
            if name not in kept and old.state != "REMOVING":
                found.append(name)
    return found


@contextmanager
def at(cluster: TreeCluster) -> Iterator[None]:
    """Add the path in the file to an error without a path."""
    try:
        yield
    except VctlError as error:
        if cluster.path and "path" not in error.details:
            error.place(cluster.path, cluster.cluster_id)
        raise


def form_of(diff: Diff) -> TreeDiff:
    """The documented JSON form of a plan and of an apply."""
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


def _change_form(change: Change) -> TreeChange:
    return {
        "action": change.action,
        "cluster_id": change.cluster.cluster_id,
        "parent_id": change.cluster.parent_id,
        "path": change.cluster.path or None,
        "before": None if change.before is None else cluster_document(change.before),
        "after": None if change.after is None else cluster_document(change.after),
        "blockers": change.blockers,
    }
