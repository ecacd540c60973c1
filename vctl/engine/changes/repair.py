"""Changes that mend the tables after a crash, after a restore, or after rows were edited by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vctl.core.resources import EMPTY
from vctl.core.values import replace
from vctl.engine.changes.change import Change, PublicEvent, change, internal, unread

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class RowSetAside(Change):
    """A row that cannot be used was moved out of its table. Its content may hold secrets, and is not in the journal."""

    at: int
    table: str
    key: tuple[Any, ...]
    problem: str

    def public_event(self) -> PublicEvent:
        name = " ".join(map(str, self.key))
        return PublicEvent("row.set_aside", self.table, name, data={"problem": self.problem})

    def apply(self, _: SchedulerState) -> None:
        """Tables were edited by hand: with them a new base begins. Whoever loads does not find the row any more."""
        raise ValueError(f"{self.table} {self.key} was set aside: the tables are to be read again")


@change
class RunStripped(Change):
    """A process goes on without its reservation, which its virtual node does not have."""

    run_id: str

    public_event = internal("run", "run_id")

    def apply(self, state: SchedulerState) -> None:
        if (run := state.runs.get(self.run_id)) is not None:
            state.ledger.discharge(run.run_id)
            state.runs[run.run_id] = replace(run, allocation=EMPTY)


@change
class ClusterRepaired(Change):
    """A divisible cluster has the nodes now which its job clusters had already."""

    cluster_id: str

    def public_event(self) -> PublicEvent:
        return PublicEvent("cluster.repaired", "cluster", self.cluster_id, self.cluster_id)

    apply = unread
