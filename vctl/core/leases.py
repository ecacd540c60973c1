"""What a cluster borrows above its minimum. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.values import value

GRANTED, CALLED = "GRANTED", "CALLED"


@value(frozen=True, slots=True)
class Lease:
    """What a cluster borrowed above its minimum: on which virtual node, from its parent, since and until when (ns)."""

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
    """CALLED once its lender wants it back."""
