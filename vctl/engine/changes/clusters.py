"""Changes of clusters."""

from __future__ import annotations

from dataclasses import dataclass

from vctl.engine.changes.told import Told


@dataclass(frozen=True, slots=True)
class ClusterRemoved:
    """A cluster is gone with its virtual nodes and leases; what it lent is lent by its parent from now on."""

    cluster_id: str
    returned: tuple[int, ...] = ()
    """Leases that end with it."""
    lent: tuple[int, ...] = ()
    """Leases of which it was the lender."""
    lender_id: str | None = None
    """The lender of these now."""
    silent: bool = False
    """Whether the event of a job says it already."""

    def told(self) -> Told:
        """The public event, unless it is silent."""
        return Told("" if self.silent else "cluster.removed", "cluster", self.cluster_id, self.cluster_id)
