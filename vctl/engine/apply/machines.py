"""What a node provider is asked for after a change of that."""

from __future__ import annotations

from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.MachinesAsked, ch.MachinesFailed)
def _put(state: SchedulerState, change: ch.MachinesAsked | ch.MachinesFailed) -> None:
    state.node_requests[change.request.request_id] = change.request


@applies(ch.MachinesDone)
def _done(state: SchedulerState, change: ch.MachinesDone) -> None:
    state.node_requests.pop(change.request.request_id, None)
