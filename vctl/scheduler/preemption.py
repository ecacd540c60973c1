"""Preemption by priority: whom to end for a job that does not fit, and what to keep for it until they are gone.

Only base priorities count, never aged ones: a victim has a strictly lower one than the job it is ended for, so it can
never take its room back, and there are no cycles. Work is done when something has changed, a bounded amount a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Holding, Room
from vctl.scheduler.backfill import Reservation
from vctl.scheduler.earmarks import Earmark, Holds, Part, parts_of
from vctl.scheduler.placement import Placed, place_on
from vctl.scheduler.placement_ground import Ground
from vctl.scheduler.queueing import Lane, Queue
from vctl.scheduler.running import Running, returned_by
from vctl.scheduler.victims import Victim, choose, loss_of

BUDGET = 2_000
"""Steps of one look for a place."""
MOST_SEARCHES = 8
"""Jobs for which victims are looked for in one round; the next round goes on."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Running jobs that are to end for one that waits, and what is kept for it meanwhile."""

    job: PendingJob
    victims: tuple[Victim, ...]
    earmark: Earmark


class Preemptor:
    """The preemptions of one round. ``begun`` are jobs that started in it: these are nobody's victims."""

    def __init__(
        self, ledger: Ledger, running: Running, holds: Holds, now_ns: int, *, active: bool = True
    ) -> None:
        self.ledger = ledger
        self.running = running
        self.holds = holds
        self.now_ns = now_ns
        self.begun: set[int] = set()
        self.found: list[Preempt] = []
        self.lapsed: list[tuple[str, int]] = []
        """(parent, job) of earmarks whose victims are over, and with which the job still does not fit."""
        self.unsearched = False
        """Whether something is left for the next round."""
        self._active = active
        self._left = MOST_SEARCHES

    def count(self, job: PendingJob) -> None:
        """A job starts in this round: nothing is kept for it any more, and it is nobody's victim."""
        self.begun.add(job.job_id)
        self.holds.drop(job.job_id)

    def consider(
        self, queue: Queue, lane: Lane, job: PendingJob, reserved: Callable[[], Sequence[Reservation]]
    ) -> bool:
        """Look for victims for a job that does not fit, unless that was in vain before and nothing has changed."""
        if not self._active:
            return False
        own = self.holds.earmarks.get(job.job_id)
        if own is not None:
            if own.awaited or any(one.job.job_id == job.job_id for one in self.found):
                return False
            self.lapse(job)
        if not queue.policy.preempts or not self.running.any_below(job.parent_id, job.priority):
            return False
        stamp = self._stamp(queue)
        if lane.futile is not None and lane.futile[0] == stamp:
            until_ns = lane.futile[1]
            if until_ns is None or self.now_ns < until_ns:
                queue.note_again(until_ns)
                return False
        if not self._left:
            self.unsearched = True
            return False
        self._left -= 1
        with self.holds.lifted(list(self.holds.earmarks)):
            walls = [one for one in reserved() if one.job_id not in self.holds.earmarks]
            kept = [*self.holds.out_of_reach(job), *(part for one in walls for part in parts_of(one.placed))]
            found = self._search(queue, job, kept)
        if found is None:
            young_ns = self._next_eligible_ns(queue, job)
            lane.futile = (stamp, young_ns)
            queue.note_again(young_ns)
            return False
        self.found.append(found)
        self.holds.put(found.earmark)
        return True

    def lapse(self, job: PendingJob) -> None:
        """What is kept for a job ends if nobody is awaited for it: it does not fit all the same."""
        own = self.holds.earmarks.get(job.job_id)
        if self._active and own is not None and not own.awaited:
            self.holds.drop(job.job_id)
            self.lapsed.append((job.parent_id, job.job_id))

    def _stamp(self, queue: Queue) -> tuple[int, ...]:
        parent_id = queue.parent_id
        return (
            self.running.version(parent_id), self.ledger.versions.get(parent_id, 0), queue.growths, queue.earmarkings,
        )  # fmt: skip

    def _search(self, queue: Queue, job: PendingJob, kept: Sequence[Part]) -> Preempt | None:
        taken = {victim.job.job_id for one in self.found for victim in one.victims}
        below = [
            one
            for one in self.running.of_parent.get(job.parent_id, {}).values()
            if one.priority < job.priority and one.job_id not in self.begun
        ]
        leaving = [
            one
            for one in self.running.of_parent.get(job.parent_id, {}).values()
            if one.job_id in self.running.leaving or one.job_id in taken
        ]
        gone = {one.job_id for one in leaving}
        total = self.ledger.total(job.parent_id)
        parts = {one.job_id: returned_by(self.ledger, self.running, one) for one in (*below, *leaving)}
        candidates = [
            Victim(one, self._loss(one, parts[one.job_id], total), min(part[0] for part in parts[one.job_id]))
            for one in below
            if one.job_id not in gone
            and parts[one.job_id]
            and one.started_at_ns + queue.policy.min_runtime_ns <= self.now_ns
        ]
        if not candidates:
            return None
        ground = Emptied(self.ledger, job.parent_id, parts, kept)
        always = frozenset(gone)
        chosen = choose(candidates, lambda some: ground.place(job, some | always) is not None)
        if not chosen:
            return None
        placed = ground.place(job, frozenset(one.job.job_id for one in chosen) | always)
        if placed is None:
            return None
        pieces = parts_of(placed)
        spots = {piece[0] for piece in pieces}
        awaited = always | {one.job.job_id for one in chosen}
        earmark = Earmark(
            job.job_id, job.submission_id, job.priority, job.parent_id, pieces,
            frozenset(n for n in awaited if not spots.isdisjoint(part[0] for part in parts[n])),
        )  # fmt: skip
        return Preempt(job, tuple(sorted(chosen, key=lambda one: one.job.job_id)), earmark)

    def _loss(self, job: RunningJob, parts: Sequence[tuple[str, Holding]], total: dict[str, int]) -> int:
        return loss_of(self.now_ns - job.started_at_ns, (holding.amounts for _, holding in parts), total)

    def _next_eligible_ns(self, queue: Queue, job: PendingJob) -> int | None:
        """When the next job of lower priority will have run long enough."""
        least = queue.policy.min_runtime_ns
        return min(
            (
                due
                for one in self.running.of_parent.get(job.parent_id, {}).values()
                if one.priority < job.priority and (due := one.started_at_ns + least) > self.now_ns
            ),
            default=None,
        )


class Emptied:
    """A cluster as if some of its running jobs had gone; what is kept for others stays out of sight."""

    def __init__(
        self,
        ledger: Ledger,
        parent_id: str,
        parts: dict[int, list[tuple[str, Holding]]],
        kept: Sequence[Part],
    ) -> None:
        self.ledger = ledger
        self.parts = parts
        self.kept: dict[str, list[Part]] = {}
        for part in kept:
            if part[0] in ledger.rooms:
                self.kept.setdefault(part[0], []).append(part)
        self.rooms: dict[str, Room] = {}
        self.gone: frozenset[int] = frozenset()
        self.returned: dict[str, dict[int, list[Holding]]] = {}
        self.index = ledger.index(parent_id).copy()
        for vnode_id in self.kept:
            self._refile(vnode_id)

    def place(self, job: PendingJob, gone: frozenset[int]) -> Placed | None:
        """Where a job would go when those have gone."""
        for vnode_id in self._let_go(gone):
            self._refile(vnode_id)
        vnodes = self.ledger.vnodes
        classes = sorted(
            self.index.classes.values(), key=lambda group: (vnodes[group.ids[0]].node_id, group.ids[0])
        )
        ground = Ground(
            self.ledger, tuple(classes), self.index.crowded, self.index.class_of,
            lambda slot_id: self.rooms.get(slot_id) or self.ledger.rooms[slot_id],
        )  # fmt: skip
        found = place_on(ground, job.spec, job.entry, budget=BUDGET)
        return found if isinstance(found, Placed) else None

    def _let_go(self, gone: frozenset[int]) -> dict[str, None]:
        """Take over who has gone; the virtual nodes where that makes a difference."""
        changed: dict[str, None] = {}
        for job_id in sorted(self.gone ^ gone):
            for vnode_id, holding in self.parts[job_id]:
                there = self.returned.setdefault(vnode_id, {})
                if job_id in gone:
                    there.setdefault(job_id, []).append(holding)
                else:
                    there.pop(job_id, None)
                changed[vnode_id] = None
        self.gone = gone
        return changed

    def _refile(self, vnode_id: str) -> None:
        room = self.ledger.rooms[vnode_id].copy()
        for holdings in self.returned.get(vnode_id, {}).values():
            for holding in holdings:
                room.give_back(holding)
        if not room.is_overdrawn():
            for part in self.kept.get(vnode_id, ()):
                room.take_most(part[1])
        self.rooms[vnode_id] = room
        self.ledger.file(self.index, vnode_id, room)
