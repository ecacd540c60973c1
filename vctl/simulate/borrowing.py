"""What clusters borrow so that a job fits, and how it returns: the daemon's leases without their clock."""

from __future__ import annotations

from dataclasses import replace

from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.scheduler.elasticity import Grow, apply_growth
from vctl.scheduler.leasing import above_minimum, free_part, give_back, newest_first, restore


class Loans:
    """Leases of the clusters of a ledger; every one returns as soon as nobody uses it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.leases: dict[int, Lease] = {}
        self._number = 0

    def grow(self, step: Grow, now_ns: int) -> None:
        """Let a cluster grow; what it then has above its minimum is lent."""
        apply_growth(self.ledger, step)
        over = above_minimum(self.ledger, step)
        cluster = self.ledger.clusters[step.after.cluster_id]
        if not over or cluster.parent_id is None:
            return
        loan = {n: min(a, step.lent.get(n, 0)) for n, a in over.items() if step.lent.get(n, 0)}
        rest = {n: a - loan.get(n, 0) for n, a in over.items() if a > loan.get(n, 0)}
        for lender_id, lent in ((step.lender_id, loan), (cluster.parent_id, rest)):
            if lender_id is not None and lent:
                self._number += 1
                self.leases[self._number] = Lease(
                    self._number, cluster.cluster_id, lender_id, step.after.vnode_id, step.after.node_id, lent, now_ns
                )  # fmt: skip

    def settle(self) -> None:
        """Give back what is free, level by level: what a child returns its parent may have borrowed too."""
        waiting = list(newest_first(list(self.leases.values())))
        while waiting:
            lease = waiting.pop(0)
            if self.leases.get(lease.lease_id) != lease or not (part := free_part(self.ledger, lease)):
                continue
            above = self.ledger.vnodes[lease.vnode_id].parent_id
            done = give_back(self.ledger, lease, part)
            restore(self.ledger, lease, done)
            if done.left:
                self.leases[lease.lease_id] = replace(lease, amounts=done.left)
            else:
                del self.leases[lease.lease_id]
            waiting += newest_first([up for up in self.leases.values() if up.vnode_id == above])
