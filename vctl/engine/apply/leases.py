"""What leases are after a change of theirs."""

from __future__ import annotations

from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.LeaseGranted, ch.LeaseCalled, ch.LeaseReturned)
def _put(state: SchedulerState, change: ch.LeaseGranted | ch.LeaseCalled | ch.LeaseReturned) -> None:
    lease = change.lease
    if lease.amounts:
        state.leases[lease.lease_id] = lease
    else:
        state.leases.pop(lease.lease_id, None)
