"""Changes that repair the tables after a crash, after a restore, or after rows were edited by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vctl.core.resources import EMPTY
from vctl.core.values import replace
from vctl.engine.changes.change import Change, PublicEvent, change, internal, unread

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class RowSetAside(Change):
    """An unusable row was moved out of its table. Its content may be secret, so it is not in the journal."""

    at: int
    table: str
    key: tuple[Any, ...]
    problem: str

    def public_event(self) -> PublicEvent:
        name = " ".join(map(str, self.key))
        return PublicEvent("row.set_aside", self.table, name, data={"problem": self.problem})

    def apply(self, _: SchedulerState) -> None:
        """Raise ValueError: the tables were edited by hand and have to be loaded anew, without this row."""
        raise ValueError(f"{self.table} {self.key} was set aside: the tables are to be read again")


@change
class RunStripped(Change):
    """A process goes on without its allocation, for which its virtual node has no capacity."""

    run_id: str

    public_event = internal("run", "run_id")

    def apply(self, state: SchedulerState) -> None:
        if (run := state.runs.get(self.run_id)) is not None:
            state.ledger.discharge(run.run_id)
            state.runs[run.run_id] = replace(run, allocation=EMPTY)


@change
class ClusterRepaired(Change):
    """A divisible cluster now has the nodes that its job clusters already had."""

    cluster_id: str

    def public_event(self) -> PublicEvent:
        return PublicEvent("cluster.repaired", "cluster", self.cluster_id, self.cluster_id)

    apply = unread
