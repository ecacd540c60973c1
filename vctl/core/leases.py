"""Leases: the resources that a cluster borrows above its minimum. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.values import value

GRANTED, CALLED = "GRANTED", "CALLED"


@value(frozen=True, slots=True)
class Lease:
    """Resources that a cluster borrowed above its minimum from its parent or a sibling.

    ``vnode_id`` is the virtual node of the borrower that has them. Times are in ns since the epoch;
    ``expires_at`` None: as long as they are used.
    """

    lease_id: int
    borrower_id: str
    lender_id: str
    vnode_id: str
    node_id: str
    amounts: Mapping[str, int]
    since: int
    expires_at: int | None = None
    job_id: int | None = None
    state: str = GRANTED
    """CALLED since its lender asked for it back."""
