"""Changes that mend the tables after a crash, after a restore, or after rows were edited by hand."""

from __future__ import annotations

from typing import Any

from vctl.engine.changes.told import Told, change, untold


@change
class RowSetAside:
    """A row that cannot be used was moved out of its table. Its content may hold secrets, and is not in the journal."""

    at: int
    table: str
    key: tuple[Any, ...]
    problem: str

    def told(self) -> Told:
        """The public event."""
        name = " ".join(map(str, self.key))
        return Told("row.set_aside", self.table, name, data={"problem": self.problem})


@change
class RunStripped:
    """A process goes on without its reservation, which its virtual node does not have."""

    run_id: str

    told = untold("run", "run_id")


@change
class ClusterRepaired:
    """A divisible cluster has the nodes now which its job clusters had already."""

    cluster_id: str

    def told(self) -> Told:
        """The public event."""
        return Told("cluster.repaired", "cluster", self.cluster_id, self.cluster_id)
