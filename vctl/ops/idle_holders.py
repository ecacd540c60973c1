"""Who holds something idle while a job waits, and why it does not start with it: for every command that says so.

What is borrowed and idle goes home by itself when a start needs it (``vctl/scheduler/recall.py``). What stays idle is
a minimum that its cluster does not lend, or keeps for its own waiting work, or something that is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

from vctl.core import resources as rs
from vctl.core.clusters import LOGICAL, Cluster
from vctl.core.resources import Amounts
from vctl.core.wording import amounts_text, cluster_text, listed
from vctl.ops.reachable import Reachable
from vctl.store import clusters, rows
from vctl.store.store import Row, Store

MAX_READ = 32
"""The most clusters that are read for one cluster with waiting work."""
MOST_NAMED = 3


class IdleHolders:
    """What logical clusters hold idle, as of one snapshot. ``withheld``: what lenders keep for their own work."""

    def __init__(
        self, store: Store, capacity: Reachable, withheld: Callable[[str], Mapping[str, object]]
    ) -> None:
        self.store, self.capacity, self.withheld = store, capacity, withheld
        self._texts: dict[tuple[str, frozenset[tuple[str, int]]], str] = {}

    def text(self, cluster_id: str, amounts: Amounts) -> str:
        """The end of a message about work of a cluster that needs these amounts; empty if nobody holds any idle."""
        key = cluster_id, frozenset(amounts.items())
        if key not in self._texts:
            phrases = [
                say for cluster in self._beside(cluster_id, amounts) for say in self._of(cluster, amounts)
            ]
            self._texts[key] = f"; {listed(phrases, MOST_NAMED)}" if phrases else ""
        return self._texts[key]

    def _beside(self, cluster_id: str, amounts: Amounts) -> Iterator[Cluster]:
        """The logical clusters that share with this one what it can have, except those around it.

        A cluster that may not grow by as much as is wanted can have nothing from outside.
        """
        chain = [cluster_id]
        while (cluster := self.capacity.cluster(chain[-1])) is not None and cluster.parent_id is not None:
            chain.append(cluster.parent_id)
        top, free = cluster_id, dict[str, int]()
        for level, above in zip(self.capacity.above(cluster_id), chain[1:], strict=False):
            free = rs.add(free, self._free(top, amounts))
            if any(free[n] + level.allowance.get(n, amount) < amount for n, amount in amounts.items()):
                break
            top = above
        below, read = {top}, 0
        for row in self._logical:
            if row["parent_id"] in below:
                below.add(row["cluster_id"])
                if row["cluster_id"] not in chain and read < MAX_READ:
                    read += 1
                    yield rows.cluster(row)

    @cached_property
    def _logical(self) -> list[Row]:
        return clusters.parents_first(clusters.logical_rows(self.store))

    def _free(self, cluster_id: str, names: Collection[str]) -> dict[str, int]:
        free = self.capacity.slots(cluster_id).free
        return {n: free.get(n, 0) for n in names}

    def _of(self, cluster: Cluster, names: Collection[str]) -> Iterator[str]:
        """What a cluster holds idle of these resources: of its own, then of what it has borrowed."""
        name, least = cluster_text(cluster.cluster_id), cluster.spec.flexible_min
        free = self._free(cluster.cluster_id, names)
        has = self.capacity.flexible(cluster.cluster_id)
        over = {n: min(free[n], max(has.get(n, 0) - least.get(n, 0), 0)) for n in free}
        own = {n: free[n] - over[n] for n in free if free[n] > over[n]}
        if own:
            yield f"{name} {self._why(cluster, own, has)}"
        if borrowed := {n: amount for n, amount in over.items() if amount > 0}:
            yield f"{name} has borrowed {amounts_text(borrowed)} that lies idle, which is not enough for it"

    def _why(self, cluster: Cluster, own: Mapping[str, int], has: Mapping[str, int]) -> str:
        """Why the idle part of what a cluster has for itself stays with it."""
        what, limits = amounts_text(own), cluster.lending_limit
        if cluster.kind == LOGICAL and any(limits.get(n, 0) for n in own):
            if cluster.cluster_id in self.withheld(cluster.cluster_id):
                return f"keeps {what} for its own waiting work"
            lent = {n: max(cluster.spec.flexible_min.get(n, 0) - has.get(n, 0), 0) for n in own}
            if all(lent[n] >= limits.get(n, 0) for n in own):
                limit = amounts_text({n: limits.get(n, 0) for n in own})
                return f"holds {what} of its minimum idle and lends at most {limit} (--lending-limit)"
            return f"holds {what} of its minimum idle, and what it lends of it is not enough"
        if any(cluster.spec.flexible_min.get(n, 0) for n in own):
            return f"holds {what} of its minimum idle and lends nothing (--lending-limit)"
        return f"holds {what} idle on nodes of its own"
