"""The trial of a preemption: a copy of a cluster, and of those from which it grows, less some running jobs.

``Emptied.fits`` tells whether a waiting job has a place then, ``Emptied.claim`` returns that place. All work
is done in steps and can pause. A step costs as much as filing one virtual node, about 30 µs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vctl.core.clusters import FLEXIBLE
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.resources import EMPTY, Allocation, Amounts, FreeCapacity, merged, subtract, total, within
from vctl.core.values import value
from vctl.scheduler.elasticity import Grow, allowance, growing, revert_growth, suppliers
from vctl.scheduler.gang_growth import find_growth, growth_for
from vctl.scheduler.growth_candidates import GrowthCandidates
from vctl.scheduler.nominations import Growth, Nomination, Part, by_vnode
from vctl.scheduler.placement import Placed, Unplaced, place
from vctl.scheduler.running import Running, returned_by
from vctl.scheduler.upper_bound import UpperBound
from vctl.scheduler.victims import Victim, loss_of
from vctl.scheduler.work import Work

BUDGET = 2_000
"""The step budget of one search for a place."""
QUESTION, PER_PIECE = 8, 1
"""The price of a question "does it fit?" in steps, and the price of each piece of the gang."""
COPIED = 12
"""The number of virtual nodes that are copied in one step."""
JOBS = 64
"""The number of jobs that are read between two pauses."""
PER_JOBS = 16
"""The price of ``JOBS`` jobs in steps."""


@value(frozen=True, slots=True)
class Claim:
    """A place, and what it takes of the present virtual nodes, with those of the clusters above."""

    placed: Placed
    parts: tuple[Part, ...]


class Emptied:
    """A copy of a cluster, and of the clusters from which it grows, as if some running jobs had gone."""

    def __init__(self, ledger: Ledger, running: Running, parent_id: str, jobs: Iterable[RunningJob]) -> None:
        self.ledger = ledger.part(suppliers(ledger, parent_id))
        self.parent_id = parent_id
        self.grows = len(growing(ledger, parent_id)) > 0
        self.jobs = {job.job_id: job for job in jobs}
        self.parts: dict[int, list[Part]] = {
            n: returned_by(ledger, running, job) if job.cluster_id == parent_id else []
            for n, job in self.jobs.items()
        }
        """Job -> what it returns at its end; complete after ``collect``."""
        self.victims: list[Victim] = []
        """The jobs that hold resources, with the work that they would lose; complete after ``collect``."""
        self.cost = len(self.ledger.capacities) // COPIED + 1
        """The price of the copy in steps."""
        self.is_filled = False
        self._bare = dict(self.ledger.capacities)
        self._reserved: dict[str, list[Allocation]] = {}
        self._promised: list[Growth] = []
        self._ended: frozenset[int] = frozenset()
        self._returned: dict[str, dict[int, list[Allocation]]] = {}
        self._filed: dict[str, tuple[int, ...] | None] = {}
        """Virtual node -> the jobs without which its free capacity is filed; None: it must be filed again."""
        self._stale: dict[str, None] = {}
        self._free = {vnode_id: dict(capacity.free) for vnode_id, capacity in self._bare.items()}
        self._tally: _Tally | None = None

    def collect(self, now_ns: int = 0) -> Work[None]:
        """List what the jobs hold and would lose, once."""
        if self.is_filled:
            return
        self.is_filled = True
        job_of = {job.cluster_id: n for n, job in self.jobs.items() if job.cluster_id != self.parent_id}
        seen = 0
        for slot_id in self.ledger.members[self.parent_id]:
            for child_id in self.ledger.children[slot_id]:
                child = self.ledger.vnodes[child_id]
                if (job_id := job_of.get(child.cluster_id)) is not None:
                    self.parts[job_id].append((slot_id, child.allocation))
                    seen += 1
            if seen >= JOBS:
                seen = 0
                yield PER_JOBS
        whole = self.ledger.total(self.parent_id)
        for number, (job_id, job) in enumerate(self.jobs.items(), 1):
            if held := self.parts[job_id]:
                lost = loss_of(now_ns - job.started_at_ns, (part.amounts for _, part in held), whole)
                self.victims.append(Victim(job, lost, min(vnode_id for vnode_id, _ in held)))
            if number % JOBS == 0:
                yield PER_JOBS

    def reserve(self, nominations: Iterable[Nomination], others: Iterable[Part]) -> Work[None]:
        """From now on, hide these nominations and parts, and no others."""
        before, parts, inside = self._reserved, list(others), self.ledger.members[self.parent_id]
        for promised in self._promised:
            promised.promise(self.ledger, -1)
        self._promised = []
        for nomination in nominations:
            parts += nomination.pieces
            if any(v in self._bare and v not in inside for v, _ in nomination.pieces):
                if nomination.is_valid(self.ledger) and (growth := nomination.growth(self.ledger)):
                    growth.promise(self.ledger)
                    self._promised.append(growth)
        self._reserved = by_vnode(part for part in parts if part[0] in self._bare)
        changed = dict.fromkeys([*before, *self._reserved])
        self._filed |= changed
        self._stale |= changed
        self._tally = None
        yield 1

    def fits(self, job: PendingJob, ended: frozenset[int]) -> Work[bool]:
        """Whether a job has a place, with or without growth, when these jobs have gone."""
        yield from self._end(ended)
        tally = self._tally
        if tally is None or tally.job_id != job.job_id:
            yield len(self._free) // COPIED
            tally = self._tally = _Tally(job, self)
        if tally.is_exact or not tally.is_met():
            return tally.is_met()
        answer = yield from self._find(job)
        return isinstance(answer, Placed | tuple)

    def claim(self, job: PendingJob, ended: frozenset[int]) -> Work[Claim | None]:
        """The place of a job when these jobs have gone."""
        yield from self._end(ended)
        answer = yield from self._find(job)
        if isinstance(answer, Placed):
            return Claim(answer, answer.parts)
        if not isinstance(answer, tuple):
            return None
        yield _price(job)
        steps, placed = growth_for(*answer, job.entry)
        return Claim(placed, self._claimed(steps, placed))

    def _find(self, job: PendingJob) -> Work[Placed | tuple[GrowthCandidates, Placed] | Unplaced]:
        """A place in the cluster without the jobs that have gone, else with growth."""
        yield from self._sync()
        yield QUESTION + _price(job)
        answer = place(self.ledger, self.parent_id, job.spec, job.entry, budget=BUDGET)
        if isinstance(answer, Placed) or not self.grows:
            return answer
        return (yield from find_growth(self.ledger, self.parent_id, job.spec, job.entry, budget=BUDGET))

    def _claimed(self, steps: Sequence[Grow], placed: Placed) -> tuple[Part, ...]:
        """What a place and its growth take of the virtual nodes that existed before; reverts the growth."""
        capacities = self.ledger.capacities
        for piece in placed.pieces:
            capacities[piece.parent_vnode_id].take_exactly(piece.allocation)
        slots = {piece.parent_vnode_id for piece in placed.pieces}
        slots |= {v for step in steps for v in (step.after.vnode_id, step.after.parent_id or "")}
        slots -= {step.after.vnode_id for step in steps if step.before is None}
        after = {vnode_id: capacities[vnode_id].copy() for vnode_id in sorted(slots)}
        for piece in placed.pieces:
            capacities[piece.parent_vnode_id].give_back(piece.allocation)
        for step in reversed(steps):
            revert_growth(self.ledger, step)
        parts = ((vnode_id, capacities[vnode_id].more_than(capacity)) for vnode_id, capacity in after.items())
        return tuple(part for part in parts if any(part[1].amounts.values()))

    def needed(self, claim: Claim, chosen: Sequence[Victim]) -> Work[list[Victim]]:
        """The victims that must go for exactly this place.

        Jobs are spared in the order of priority, the highest first, then of loss, the largest first.
        """
        parts_of = by_vnode(claim.parts)
        requests = {v: [allocation.amounts for allocation in parts] for v, parts in parts_of.items()}
        whole = {piece.parent_vnode_id for piece in claim.placed.pieces if piece.whole}
        capacities = {vnode_id: self.ledger.capacities[vnode_id] for vnode_id in requests}
        spare = {vnode_id: _spare_in(capacities[vnode_id], some) for vnode_id, some in requests.items()}
        needed: list[Victim] = []
        for victim in sorted(chosen, key=lambda v: (-v.job.priority, -v.loss, v.job.job_id)):
            yield 1
            held: dict[str, Allocation] = {}
            for vnode_id, allocation in self.parts[victim.job.job_id]:
                if vnode_id in requests:
                    held[vnode_id] = merged(held.get(vnode_id, EMPTY), allocation)
            beside = {
                vnode_id: capacity
                for vnode_id, allocation in held.items()
                if vnode_id not in whole
                and within(allocation.amounts, spare[vnode_id])
                and (capacity := _with(capacities[vnode_id], allocation, requests[vnode_id])) is not None
            }
            if len(beside) < len(held):
                needed.append(victim)
                continue
            for vnode_id, capacity in beside.items():
                capacities[vnode_id] = capacity
                spare[vnode_id] = _spare_in(capacity, requests[vnode_id])
        return needed

    def could_be_free(self, vnode_id: str) -> Amounts:
        """An upper bound of the free amounts of a virtual node; exact for resources without instances."""
        free, capacity = self._free[vnode_id], self._bare[vnode_id]
        if not (reserved := self._reserved.get(vnode_id)) or capacity.is_overdrawn():
            return free
        hidden = total(allocation.amounts for allocation in reserved)
        return subtract(free, {n: a for n, a in hidden.items() if n not in capacity.instances})

    def _end(self, ended: frozenset[int]) -> Work[None]:
        """Set the jobs that have gone, in amounts only; ``_sync`` computes the free capacities."""
        changed: dict[str, None] = {}
        before, self._ended = self._ended, ended
        for number, job_id in enumerate(before ^ ended):
            sign = 1 if job_id in ended else -1
            for vnode_id, allocation in self.parts[job_id]:
                free, there = self._free[vnode_id], self._returned.setdefault(vnode_id, {})
                for name, amount in allocation.amounts.items():
                    free[name] = free.get(name, 0) + sign * amount
                if sign > 0:
                    there.setdefault(job_id, []).append(allocation)
                else:
                    there.pop(job_id, None)
                changed[vnode_id] = None
            if number % JOBS == 0:
                yield PER_JOBS // 4
        self._stale |= changed
        if self._tally is not None:
            yield len(changed) // COPIED
            self._tally.count(self, changed)

    def _sync(self) -> Work[None]:
        """File the free capacities of the virtual nodes that have changed."""
        for vnode_id in list(self._stale):
            state = tuple(sorted(self._returned.get(vnode_id, ())))
            if self._filed.get(vnode_id, ()) != state:
                yield 1
                self._refile(vnode_id)
                self._filed[vnode_id] = state
        self._stale.clear()

    def _refile(self, vnode_id: str) -> None:
        capacity = self._bare[vnode_id].copy()
        for allocations in self._returned.get(vnode_id, {}).values():
            for allocation in allocations:
                capacity.give_back(allocation)
        if not capacity.is_overdrawn():
            for allocation in self._reserved.get(vnode_id, ()):
                capacity.take_most(allocation)
        self.ledger.set_capacity(vnode_id, capacity)


class _Tally:
    """An upper bound on the pieces of a gang that fit, updated when jobs go and come back.

    If the cluster can grow, the free capacity of all clusters from which it grows counts, added up by node.
    """

    def __init__(self, job: PendingJob, emptied: Emptied) -> None:
        self.job_id = job.job_id
        self._gang = UpperBound(job.spec)
        self._is_spread = [group.policy for group in job.spec.groups] == ["STRICT_SPREAD"]
        self._totals = [0] * len(self._gang.kinds)
        self._on: dict[str, list[int]] = {}
        self._slots: dict[str, list[str]] = {}
        self._bin_of: dict[str, str] = {}
        ledger = emptied.ledger
        for vnode_id in ledger.capacities if emptied.grows else ledger.members[emptied.parent_id]:
            node_id = ledger.vnodes[vnode_id].node_id
            if ledger.nodes[node_id].schedulable:
                bin_id = node_id if emptied.grows else vnode_id
                self._bin_of[vnode_id] = bin_id
                self._slots.setdefault(bin_id, []).append(vnode_id)
                self._on[bin_id] = [0] * len(self._totals)
        self.is_exact = (
            self._gang.is_exact(job.entry)
            and not any(ledger.capacities[vnode_id].is_overdrawn() for vnode_id in self._bin_of)
            and (not emptied.grows or self._is_free_to_grow(emptied))
        )
        """Whether ``is_met`` proves that there is a place."""
        self.count(emptied, self._bin_of)

    def _is_free_to_grow(self, emptied: Emptied) -> bool:
        """Whether only free capacity limits growth.

        That is: no maximum, no lender, only flexible virtual nodes that grow, one per cluster and node.
        """
        ledger = emptied.ledger
        chain = growing(ledger, emptied.parent_id)
        limited = (allowance(ledger, ledger.clusters[cluster_id]) for cluster_id in chain)
        if len(ledger.members) > len(chain) + 1 or any(
            not self._gang.total.keys().isdisjoint(n) for n in limited
        ):
            return False
        vnodes = [ledger.vnodes[v] for members in ledger.members.values() for v in members]
        flexible = all(vnode.kind == FLEXIBLE for vnode in vnodes if vnode.cluster_id in chain)
        return flexible and len({(vnode.cluster_id, vnode.node_id) for vnode in vnodes}) == len(vnodes)

    def count(self, emptied: Emptied, vnode_ids: Iterable[str]) -> None:
        """Count these virtual nodes again."""
        totals = self._totals
        for bin_id in {self._bin_of[slot_id]: None for slot_id in vnode_ids if slot_id in self._bin_of}:
            free = emptied.could_be_free(self._slots[bin_id][0])
            if len(self._slots[bin_id]) > 1:
                many = [emptied.could_be_free(slot_id) for slot_id in self._slots[bin_id]]
                free = total({name: max(amount, 0) for name, amount in each.items()} for each in many)
            now = self._gang.of(free)
            if self._is_spread:
                now = [min(fit, 1) for fit in now]
            before, self._on[bin_id] = self._on[bin_id], now
            for i, fit in enumerate(now):
                totals[i] += fit - before[i]

    def is_met(self) -> bool:
        """Whether there may be a place."""
        return self._gang.is_met(self._totals)


def _price(job: PendingJob) -> int:
    return PER_PIECE * sum(len(group.nodes) for group in job.spec.groups)


def _spare_in(capacity: FreeCapacity, requests: Iterable[Amounts]) -> dict[str, int]:
    """The free amounts less these."""
    return subtract(capacity.free, total(requests))


def _with(capacity: FreeCapacity, allocation: Allocation, requests: Sequence[Amounts]) -> FreeCapacity | None:
    """The free capacity less this allocation, if the wanted requests still fit then; else None."""
    if not capacity.fits_exactly(allocation):
        return None
    rest = capacity.copy()
    rest.take_exactly(allocation)
    trial = rest.copy()
    for amounts in requests:
        if not trial.fits(amounts):
            return None
        trial.take(amounts)
    return rest
