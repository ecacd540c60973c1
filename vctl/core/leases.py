"""Leases: the resources that a cluster borrows above its minimum. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.values import value

GRANTED, CALLED = "GRANTED", "CALLED"


@value(frozen=True, slots=True)
class Lease:
    """The account of what a cluster has borrowed above its minimum from one other cluster, its parent or a sibling.

    It is an amount, wherever the borrower has it. ``since``: when it was last made larger. Times are in ns since
    the epoch; ``expires_at`` None: as long as it is used.
    """

    lease_id: int
    borrower_id: str
    lender_id: str
    amounts: Mapping[str, int]
    since: int
    expires_at: int | None = None
    job_id: int | None = None
    state: str = GRANTED
    """CALLED since its lender asked for it back."""

    def is_same_account(self, other: Lease) -> bool:
        """Whether both are between the same clusters, for as long, for the same job and in the same state."""
        return (self.borrower_id, self.lender_id, self.expires_at, self.job_id, self.state) == (
            other.borrower_id, other.lender_id, other.expires_at, other.job_id, other.state
        )  # fmt: skip
