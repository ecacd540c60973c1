"""Changes of leases. Each has the whole lease as it is afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vctl.core.leases import Lease
from vctl.engine.changes.change import PublicEvent, change


@change
class LeaseGranted:
    """A cluster has borrowed something."""

    lease: Lease

    def public_event(self) -> PublicEvent:
        data = {"vnode": self.lease.vnode_id, "amounts": dict(self.lease.amounts)}
        return _of("lease.granted", self.lease, data)


@change
class LeaseCalled:
    """The lender wants a lease back; it ends at ``lease.expires_at``, at the latest."""

    lease: Lease

    def public_event(self) -> PublicEvent:
        return _of("lease.called_in", self.lease, {"ends_at": self.lease.expires_at})


@change
class LeaseReturned:
    """A lease was given back, down to its amounts now; without any it is over."""

    lease: Lease

    def public_event(self) -> PublicEvent:
        return _of("lease.returned", self.lease, {"left": dict(self.lease.amounts)})


def _of(kind: str, lease: Lease, data: Mapping[str, Any]) -> PublicEvent:
    data = {"lender": lease.lender_id, **data}
    return PublicEvent(kind, "lease", str(lease.lease_id), lease.borrower_id, lease.job_id, data)
