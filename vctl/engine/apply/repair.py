"""What the state is after a change that mends the tables."""

from __future__ import annotations

from dataclasses import replace

from vctl.core.resources import EMPTY
from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.RowSetAside)
def _row_set_aside(_: SchedulerState, change: ch.RowSetAside) -> None:
    """Tables were edited by hand: with them a new base begins. Whoever loads does not find the row any more."""
    raise ValueError(f"{change.table} {change.key} was set aside: the tables are to be read again")


@applies(ch.RunStripped)
def _run_stripped(state: SchedulerState, change: ch.RunStripped) -> None:
    if (run := state.runs.get(change.run_id)) is not None:
        state.ledger.discharge(run.run_id)
        state.runs[run.run_id] = replace(run, allocation=EMPTY)
