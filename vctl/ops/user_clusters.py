"""A cluster for each user, made from a template at the first submit: ``vc create --user-template``.

A divisible cluster with a template takes no jobs itself: a job goes to the user's own cluster in it, ``lab.ana`` in
``lab``. The transaction of the first job makes that cluster. The user submits to it and administers what is in it; its
limits are changed by who administers the cluster above. ``vctl prune`` deletes those of which no job is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from vctl.core.access import Access
from vctl.engine.changes import AccessChanged
from vctl.errors import Conflict
from vctl.ops import cluster_changes, nodes, rights
from vctl.ops.cluster_views import NoUserCluster, blockers_of
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.ids import check_new_cluster_id
from vctl.store import clusters, rows
from vctl.store.store import Row, Store

T = TypeVar("T")
_NOT_IN_IDS = r"[^A-Za-z0-9._-]"


def of(store: Store, above: Row) -> str:
    """The cluster of the caller in one with a template. Raises NoUserCluster, and NotPermitted for no submitter."""
    rights.check_submitter(store, above["cluster_id"])
    user = nodes.author(store)
    name = f"{above['cluster_id']}.{re.sub(_NOT_IN_IDS, '-', user)}"
    row = clusters.get(store, name)
    if row is None:
        raise NoUserCluster(above, name)
    if (row["parent_id"], rows.cluster(row).of_user) != (above["cluster_id"], user):
        raise Conflict(
            f"{name} is not the cluster of {user} in {above['cluster_id']}, and has its name",
            fix=f"delete it (`vctl vc delete {name}`), or submit to another cluster",
        )
    return name


def made(store: Store, missing: NoUserCluster, do: Callable[[], T]) -> T:
    """What ``do`` returns, which submits jobs, and the clusters that their user lacks, in one transaction."""
    with store.together():
        while True:
            if (
                clusters.get(store, missing.name) is None
            ):  # else another job of the user has made it meanwhile
                _make(store, missing)
            try:
                return do()
            except NoUserCluster as another:
                missing = another


def _make(store: Store, missing: NoUserCluster) -> None:
    template, user = rows.cluster(missing.above).user_template, nodes.author(store)
    check_new_cluster_id(missing.name)
    cluster_changes.create(
        store, missing.name, ClusterChange(divisible=True, spec=template),
        parent_id=missing.above["cluster_id"], owner=user, of_user=user,
    )  # fmt: skip
    if store.identity is not None:
        store.emit(AccessChanged(missing.name, Access((user,), (user,)).given))


def prune(store: Store, before_ns: int, *, dry_run: bool) -> list[str]:
    """Delete the clusters that were made for users before a moment and of which nothing is left; their ids."""
    with store.transaction():
        unused = [name for name in clusters.unused_of_users(store, before_ns) if not blockers_of(store, name)]
        for name in unused if not dry_run else ():
            cluster_changes.delete(store, name)
    return unused
