"""What clusters have, what of it is reserved and what jobs use: numbers that add up along the tree.

*total* is what lies on nodes that live, whoever holds it now. *reserved* is what the clusters directly below hold.
*used* is what jobs and tasks hold: the whole cluster of a job, whether or not a process has it, and in an indivisible
cluster what its processes have. So a parent's *reserved* is the sum of its children's totals, and its *used* the sum
of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vctl.core.clusters import LOGICAL, PRIMARY
from vctl.core.nodes import DEAD
from vctl.ops import forms
from vctl.store import clusters, nodes
from vctl.store.rows import loads
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import ClusterUse


Sums = dict[str, int]


@dataclass(slots=True)
class Capacity:
    """The three sums of one cluster."""

    total: Sums = field(default_factory=dict)
    reserved: Sums = field(default_factory=dict)
    used: Sums = field(default_factory=dict)

    def form(self) -> ClusterUse:
        """The documented form; every resource that the cluster has is in each of them."""
        none = dict.fromkeys(self.total, 0)
        return {
            "total": forms.amounts({**none, **self.total}),
            "reserved": forms.amounts({**none, **self.reserved}),
            "used": forms.amounts({**none, **self.used}),
        }


def capacities(store: Store) -> dict[str, Capacity]:
    """Every cluster's sums, in one pass over what exists; queues do not matter."""
    lives: dict[str, bool] = {}
    found: dict[str, Capacity] = {PRIMARY: Capacity()}
    for node in nodes.all_rows(store):
        lives[node["node_id"]] = node["state"] != DEAD
        if lives[node["node_id"]]:
            _add(found[PRIMARY].total, loads(node["amounts"]))
    rows = clusters.parents_first(clusters.all_rows(store))
    for row in rows:
        found[row["cluster_id"]] = Capacity()
    for vnode in clusters.all_vnode_rows(store):
        if lives.get(vnode["node_id"]) and vnode["cluster_id"] in found:
            _add(found[vnode["cluster_id"]].total, loads(vnode["amounts"]))
    for row in reversed(rows):  # children first
        own, parent = found[row["cluster_id"]], found.get(row["parent_id"], Capacity())
        if row["kind"] == LOGICAL:
            for run in clusters.run_allocations(store, row["cluster_id"]):
                if lives.get(run["node_id"]):
                    _add(own.used, loads(run["amounts"]))
        else:
            own.used = dict(own.total)
        _add(parent.reserved, own.total)
        _add(parent.used, own.used)
    return found


def _add(sums: Sums, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount
