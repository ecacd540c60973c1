"""The clusters that are below their minimum, from the tables: for status, doctor and the reasons of waiting jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.clusters import JOB
from vctl.core.nodes import DEAD, DRAINING
from vctl.store import clusters, rows
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vctl.scheduler.minimum import BelowMinimum


def all_below_minimum(store: Store) -> dict[str, BelowMinimum]:
    """The logical clusters that are below their minimum, by id; the cost does not depend on the queues.

    A cluster gets there only when a node dies or drains on which it, or a sibling to which it lent, has something.
    """
    there = clusters.on_nodes(store, (DEAD, DRAINING))
    states = {row["node_id"]: row["node_state"] for row in there}
    named = {row["cluster_id"]: None for row in there}
    named.update(
        {row["cluster_id"]: None for row in clusters.logical_rows(store) if "lending" in row["settings"]}
    )
    if not named:
        return {}
    from vctl.scheduler.minimum import (
        below_minimum,
    )  # not loaded by each `vctl status`, nor are leases and runs
    from vctl.store import leases

    used = _used(store, there)
    by_id: dict[str, BelowMinimum] = {}
    for cluster_id in sorted(named):
        row = clusters.get(store, cluster_id)
        if row is not None:
            cluster, vnodes = rows.cluster(row), map(rows.vnode, clusters.vnode_rows(store, cluster_id))
            below = below_minimum(cluster, vnodes, states, used, leases.lent(store, cluster))
            if below is not None:
                by_id[cluster_id] = below
    return by_id


def _used(store: Store, there: Sequence[Row]) -> set[str]:
    """The virtual nodes on draining nodes in which a process runs, or a job has something, at any depth."""
    draining = {row["vnode_id"]: row for row in there if row["node_state"] == DRAINING}
    if not draining:
        return set()
    from vctl.store import runs

    busy = [row["vnode_id"] for row in runs.live_rows(store)]
    busy += [vnode_id for vnode_id, row in draining.items() if row["cluster_kind"] == JOB]
    used: set[str] = set()
    for vnode_id in busy:  # the loop appends to the list
        if vnode_id in draining and vnode_id not in used:
            used.add(vnode_id)
            busy.append(draining[vnode_id]["parent_vnode_id"])
    return used
