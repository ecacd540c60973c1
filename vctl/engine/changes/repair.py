"""Changes that mend the tables after a crash, after a restore, or after rows were edited by hand."""

from __future__ import annotations

from typing import Any

from vctl.engine.changes.change import PublicEvent, change, internal


@change
class RowSetAside:
    """A row that cannot be used was moved out of its table. Its content may hold secrets, and is not in the journal."""

    at: int
    table: str
    key: tuple[Any, ...]
    problem: str

    def public_event(self) -> PublicEvent:
        name = " ".join(map(str, self.key))
        return PublicEvent("row.set_aside", self.table, name, data={"problem": self.problem})


@change
class RunStripped:
    """A process goes on without its reservation, which its virtual node does not have."""

    run_id: str

    public_event = internal("run", "run_id")


@change
class ClusterRepaired:
    """A divisible cluster has the nodes now which its job clusters had already."""

    cluster_id: str

    def public_event(self) -> PublicEvent:
        return PublicEvent("cluster.repaired", "cluster", self.cluster_id, self.cluster_id)
