"""Availability profiles: what running jobs will give back by their time limits, where and when.

``AvailabilityProfile`` describes one cluster. ``Availability`` describes a level, with all clusters below
that may grow up to it. The level of a cluster is the nearest cluster, from itself upward, that cannot grow
(``elasticity.level_above``).
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from vctl.core.clusters import FLEXIBLE, JOB
from vctl.core.jobs import RunningJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, Amounts, Part, parts_of, total
from vctl.core.values import replace
from vctl.scheduler.running import Running

IDLE = RunningJob(-1, "", "", "", "", 0)
"""A placeholder job for idle borrowed capacity, which comes back now."""


def amounts_of(parts: dict[Part, int]) -> dict[str, int]:
    """Amounts by part, added up by resource."""
    amounts: dict[str, int] = {}
    for part, amount in parts.items():
        name = part[0] if isinstance(part, tuple) else part
        amounts[name] = amounts.get(name, 0) + amount
    return amounts


class AvailabilityProfile:
    """The ends of the jobs that run in one cluster, soonest first. An overdue job counts as ending now."""

    def __init__(self, ledger: Ledger, parent_id: str, running: Running, now_ns: int) -> None:
        self.ledger = ledger
        self.now_ns = now_ns
        self._running = running
        self._jobs = running.of_parent.get(parent_id, {})
        if running.leaving:  # a nomination may hold already what these jobs return
            self._jobs = {n: job for n, job in self._jobs.items() if n not in running.leaving}
        timed = [(job.ends_at_ns, n) for n, job in self._jobs.items() if job.ends_at_ns is not None]
        self.ends = [(max(at_ns, now_ns), self._jobs[n]) for at_ns, n in sorted(timed)]
        self.endless = [job for _, job in sorted(self._jobs.items()) if job.ends_at_ns is None]
        """Jobs without a time limit, the oldest first."""
        self._returned: dict[str, list[tuple[int, dict[Part, int]]]] = {}
        self._sharing: dict[str, list[RunningJob]] | None = None

    def held_by(self, job: RunningJob) -> tuple[tuple[str, Allocation], ...]:
        """The allocations of a job in the cluster: (virtual node, allocation)."""
        return self._running.held_by(self.ledger, job)

    def amounts_of(self, job: RunningJob) -> Amounts:
        """The amounts that a job returns at its end."""
        return self._running.amounts_of(self.ledger, job)

    def returned_on(self, vnode_id: str) -> list[tuple[int, dict[Part, int]]]:
        """The returns on a virtual node by time limits: (when, amounts by part), soonest first."""
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
        """The jobs on a virtual node that have no cluster of their own."""
        if self._sharing is None:
            self._sharing = {}
            for job in self._jobs.values():
                if job.cluster_id == job.parent_id and (charge := self.ledger.charges.get(job.run_id)):
                    self._sharing.setdefault(charge[0], []).append(job)
        return self._sharing.get(vnode_id, [])


def has_elastic(ledger: Ledger, level: str) -> bool:
    """Whether ``elastic_below`` finds a cluster; it is asked often, and a level may have many clusters of jobs."""
    children = map(ledger.clusters.__getitem__, ledger.subclusters.get(level, ()))
    return any(child.kind != JOB and child.spec.flexible for child in children)


def elastic_below(ledger: Ledger, level: str) -> Iterator[str]:
    """The clusters below a level that may grow up to it, parents first, without those of jobs."""
    for child_id in sorted(ledger.subclusters.get(level, ())):
        child = ledger.clusters[child_id]
        if child.kind != JOB and child.spec.flexible:
            yield child_id
            yield from elastic_below(ledger, child_id)


class Availability(AvailabilityProfile):
    """The capacity that comes free on the virtual nodes of a level: by time limits, and idle loans at once.

    ``own``: the clusters whose free capacity the waiting job may use, that is its parent and the clusters
    above it. All other clusters below the level keep their minimum.
    """

    def __init__(
        self, ledger: Ledger, level: str, running: Running, now_ns: int, own: frozenset[str]
    ) -> None:
        self.ledger = ledger
        self.now_ns = now_ns
        self.level = level
        self._running = running
        self._held: dict[int, tuple[tuple[str, Allocation], ...]] = {}
        self._returned: dict[str, list[tuple[int, dict[Part, int]]]] = {}
        self._returns: dict[str, list[tuple[int, Allocation]]] = {}
        """Virtual node of the level -> what comes back there, and when."""
        below = list(elastic_below(ledger, level))
        self._above_min = {
            cluster_id: _above_minimum(ledger, cluster_id) for cluster_id in below if cluster_id not in own
        }
        jobs = [
            job
            for parent_id in (level, *below)
            for job_id, job in running.of_parent.get(parent_id, {}).items()
            if job_id not in running.leaving
        ]
        idle = [part for cluster_id in below for part in self._idle_parts(cluster_id)]
        self._held[IDLE.job_id] = tuple(idle)
        timed = sorted((job for job in jobs if job.ends_at_ns is not None), key=_end)
        endless = sorted((job for job in jobs if job.ends_at_ns is None), key=lambda job: job.job_id)
        self.ends = [(now_ns, replace(IDLE, ends_at_ns=now_ns))] if idle else []
        self.ends += [(max(_end(job)[0], now_ns), job) for job in timed if self._comes_back(job)]
        self.endless = [job for job in endless if self._comes_back(job)]
        for at_ns, job in self.ends:
            for slot_id, allocation in self.held_by(job):
                self._returns.setdefault(slot_id, []).append((at_ns, allocation))

    def held_by(self, job: RunningJob) -> tuple[tuple[str, Allocation], ...]:
        """The allocations of a job: (virtual node of the level, allocation)."""
        held = self._held.get(job.job_id)
        if held is None:
            parts = [
                (self.slot_of(vnode_id), allocation)
                for vnode_id, allocation in self._running.held_by(self.ledger, job)
            ]
            held = self._held[job.job_id] = tuple(parts)
        return held

    def amounts_of(self, job: RunningJob) -> Amounts:
        """The amounts that a job returns at its end."""
        return total(allocation.amounts for _, allocation in self.held_by(job))

    def _look_at(self, vnode_id: str) -> list[tuple[int, dict[Part, int]]]:
        return [(at_ns, parts_of(allocation)) for at_ns, allocation in self._returns.get(vnode_id, ())]

    def slot_of(self, vnode_id: str) -> str:
        """The virtual node of the level in which a virtual node lies."""
        vnode = self.ledger.vnodes[vnode_id]
        while vnode.cluster_id != self.level and vnode.parent_id is not None:
            vnode = self.ledger.vnodes[vnode.parent_id]
        return vnode.vnode_id

    def _idle_parts(self, cluster_id: str) -> Iterator[tuple[str, Allocation]]:
        for vnode_id, allocation in idle_parts(self.ledger, cluster_id):
            if self._take(cluster_id, allocation.amounts):
                yield self.slot_of(vnode_id), allocation

    def _comes_back(self, job: RunningJob) -> bool:
        """Count the returns of a job at its end. True: all of them reach the level.

        A cluster gives back no part of its minimum, so a return stops there if it exceeds the surplus.
        """
        if self._take(job.parent_id, self._running.amounts_of(self.ledger, job)):
            return True
        held = self._running.held_by(self.ledger, job)
        counted = [self._take(job.parent_id, allocation.amounts) for _, allocation in held]
        return all(counted)

    def _take(self, cluster_id: str, amounts: Amounts) -> bool:
        """Subtract a return from the surplus over the minimum of each cluster on the way up to the level.

        False, and nothing is subtracted: the return exceeds the surplus of one of them.
        """
        path: list[dict[str, int]] = []
        while cluster_id != self.level:
            if (left := self._above_min.get(cluster_id)) is not None:
                path.append(left)
            cluster_id = self.ledger.clusters[cluster_id].parent_id or self.level
        if any(amount > left.get(name, 0) for left in path for name, amount in amounts.items()):
            return False
        for left in path:
            for name, amount in amounts.items():
                left[name] = left.get(name, 0) - amount
        return True


def _end(job: RunningJob) -> tuple[int, int]:
    return (job.ends_at_ns or 0, job.job_id)


def idle_parts(ledger: Ledger, cluster_id: str) -> Iterator[tuple[str, Allocation]]:
    """The free part of each flexible virtual node of a cluster, by id.

    It may be cores alone: requests for a fraction of a CPU take no cores.
    """
    for vnode_id in sorted(ledger.with_free(cluster_id)):
        capacity = ledger.capacities[vnode_id]
        if ledger.vnodes[vnode_id].kind == FLEXIBLE and not capacity.is_overdrawn():
            yield vnode_id, capacity.all_free()


def _above_minimum(ledger: Ledger, cluster_id: str) -> dict[str, int]:
    least = ledger.clusters[cluster_id].spec.flexible_min
    has = ledger.total(cluster_id)
    return {name: amount - least.get(name, 0) for name, amount in has.items()}
