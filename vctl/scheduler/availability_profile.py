"""What running jobs will give back, where and when, by their time limits."""

from __future__ import annotations

from operator import itemgetter

from vctl.core.jobs import RunningJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, Amounts
from vctl.scheduler.running import Running, allocations_of

Part = str | tuple[str, int]
"""A resource, or one numbered instance of it: what can run short on a virtual node by itself."""


def parts_of(allocation: Allocation) -> dict[Part, int]:
    """An allocation by parts, so that instances are counted one by one."""
    found: dict[Part, int] = {
        n: a for n, a in allocation.amounts.items() if a and n not in allocation.instances
    }
    for name, shares in allocation.instances.items():
        for index, share in shares.items():
            found[name, index] = share
    return found


class AvailabilityProfile:
    """The ends of the jobs that run in one cluster, soonest first; what is overdue is taken to end now."""

    def __init__(self, ledger: Ledger, parent_id: str, running: Running, now_ns: int) -> None:
        self.ledger = ledger
        self.now_ns = now_ns
        self._running = running
        self._jobs = running.of_parent.get(parent_id, {})
        if running.leaving:  # what these return may be kept for somebody already
            self._jobs = {n: job for n, job in self._jobs.items() if n not in running.leaving}
        timed = [(job.ends_at_ns, n) for n, job in self._jobs.items() if job.ends_at_ns is not None]
        self.ends = [(max(at_ns, now_ns), self._jobs[n]) for at_ns, n in sorted(timed)]
        self.endless = [job for _, job in sorted(self._jobs.items()) if job.ends_at_ns is None]
        """Jobs without a limit, the oldest first."""
        self._held: dict[int, tuple[tuple[str, Allocation], ...]] = {}
        self._returned: dict[str, list[tuple[int, dict[Part, int]]]] = {}
        self._sharing: dict[str, list[RunningJob]] | None = None

    def held_by(self, job: RunningJob) -> tuple[tuple[str, Allocation], ...]:
        """What a job holds of the cluster: (virtual node, holding)."""
        held = self._held.get(job.job_id)
        if held is None:
            held = self._held[job.job_id] = tuple(allocations_of(self.ledger, job))
        return held

    def amounts_of(self, job: RunningJob) -> Amounts:
        """What a job returns at its end, all together."""
        return self._running.amounts_of(self.ledger, job)

    def returned_on(self, vnode_id: str) -> list[tuple[int, dict[Part, int]]]:
        """What comes free on one virtual node by time limits: (when, how much), soonest first."""
        known = self._returned.get(vnode_id)
        if known is None:
            known = self._returned[vnode_id] = self._look_at(vnode_id)
        return known

    def _look_at(self, vnode_id: str) -> list[tuple[int, dict[Part, int]]]:
        ledger = self.ledger
        found: list[tuple[int, dict[Part, int]]] = []
        for child_id in ledger.children.get(vnode_id, ()):
            child = ledger.vnodes[child_id]
            number = ledger.clusters[child.cluster_id].job
            job = None if number is None else self._jobs.get(int(number))
            if job is not None and job.ends_at_ns is not None:
                found.append((max(job.ends_at_ns, self.now_ns), parts_of(child.allocation)))
        if ledger.homes.get(vnode_id):
            for job in self._sharing_on(vnode_id):
                if job.ends_at_ns is not None:
                    _, allocation = ledger.charges[job.run_id]
                    found.append((max(job.ends_at_ns, self.now_ns), parts_of(allocation)))
        found.sort(key=itemgetter(0))
        return found

    def _sharing_on(self, vnode_id: str) -> list[RunningJob]:
        """Jobs that run in the cluster itself, by their virtual node."""
        if self._sharing is None:
            self._sharing = {}
            for job in self._jobs.values():
                if job.cluster_id == job.parent_id and (charge := self.ledger.charges.get(job.run_id)):
                    self._sharing.setdefault(charge[0], []).append(job)
        return self._sharing.get(vnode_id, [])
