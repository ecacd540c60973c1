"""Preemption by priority: whom to end for a job that does not fit, and what to keep for it until they are gone.

Only base priorities count, never aged ones: a victim has a strictly lower one than the job it is ended for, so it can
never take its room back, and there are no cycles. Work is done when something has changed, a bounded amount a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import EMPTY, Holding, Room, merged, subtract, total, within
from vctl.scheduler.earmarks import Earmark, Holds, Part, parts_of
from vctl.scheduler.placement import Placed, place_on
from vctl.scheduler.placement_ground import ground_with
from vctl.scheduler.placement_result import Piece
from vctl.scheduler.queueing import Lane, Queue
from vctl.scheduler.reservations import Reservation
from vctl.scheduler.running import Running, returned_by
from vctl.scheduler.victims import Victim, choose, loss_of

BUDGET = 2_000
"""Steps of one look for a place."""
MOST_STEPS = 1_500
"""Steps of one round to find victims, about 20 ms; the next round goes on. A single search has as many.

A step is a virtual node that is looked at. A search that has cost as much asks only what bisection of the levels asks,
and spares by the place that was found.
"""
QUESTION, PER_PIECE = 10, 5
"""The steps of a question "does it fit?", and more of them for each piece of the gang."""
RETRY_NS = 30 * 10**9
"""After so long it is looked again for what nobody tells: room that comes back from elsewhere."""

NOBODY, NOT_EVEN_ALL, LEAVING_DO = "nobody", "not even all", "leaving do"
"""Why nobody is ended: there is nobody; all would not be enough; those who leave anyway are."""
Futile = tuple[str, object, int, int | None]
"""Verdict, the state it holds in, until when it is believed, and when somebody will have run long enough."""


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
        self._left = MOST_STEPS
        self._looks: dict[str, _Look] = {}

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
        if lane.futile is not None and self._is_known(lane.futile, queue, job):
            return False
        if self._left <= 0:
            self.unsearched = True
            return False
        with self.holds.lifted(list(self.holds.earmarks)):
            walls = [one for one in reserved() if one.job_id not in self.holds.earmarks]
            kept = [*self.holds.out_of_reach(job), *(part for one in walls for part in parts_of(one.placed))]
            found = self._search(queue, job, kept)
        if not isinstance(found, Preempt):
            lane.futile = (found, *self._stamp(found, queue, job), self._young_ns(queue, job))
            queue.note_again(lane.futile[-1])
            return False
        self.found.append(found)
        self.holds.put(found.earmark)
        return True

    def lapse(self, job: PendingJob) -> None:
        """What is kept for a job ends if nobody is awaited for it: it still does not fit."""
        own = self.holds.earmarks.get(job.job_id)
        if self._active and own is not None and not own.awaited:
            self.holds.drop(job.job_id)
            self.lapsed.append((job.parent_id, job.job_id))

    def _is_known(self, futile: Futile, queue: Queue, job: PendingJob) -> bool:
        """Whether it would be in vain again: nothing has happened since that could make a difference."""
        found, stamp, retry_ns, young_ns = futile
        if self.now_ns >= min(at for at in (retry_ns, young_ns or retry_ns)):
            return False
        queue.note_again(young_ns)
        return stamp == self._stamp(found, queue, job)[0]

    def _stamp(self, found: str, queue: Queue, job: PendingJob) -> tuple[object, int]:
        """What a verdict depends on, and until when it is believed at most."""
        parent_id, running = queue.parent_id, self.running
        common = (self.ledger.versions.get(parent_id, 0), queue.earmarkings)
        if found == NOT_EVEN_ALL:  # who ends of lower priority was counted on
            return (*common, running.ends_from(parent_id, job.priority)), self.now_ns + RETRY_NS
        if found == LEAVING_DO:
            return (*common, running.leavings), self.now_ns + RETRY_NS
        return (*common, running.version(parent_id), queue.growths), self.now_ns + RETRY_NS

    def _search(self, queue: Queue, job: PendingJob, kept: Sequence[Part]) -> Preempt | str:
        """Whom to end for a job, or why nobody."""
        look = self._look_at(job.parent_id)
        taken = {victim.job.job_id for one in self.found for victim in one.victims}
        always = frozenset(n for n in look.parts if n in taken or n in self.running.leaving)
        latest_ns = self.now_ns - queue.policy.min_runtime_ns
        candidates = [
            one
            for one in look.victims
            if one.job.priority < job.priority
            and one.job.started_at_ns <= latest_ns
            and one.job.job_id not in always
        ]
        self._left -= 1
        if not candidates:
            return NOBODY
        emptied, before = look.emptied, look.emptied.steps
        emptied.keep(kept)

        def has_cost_enough() -> bool:
            return emptied.steps - before >= MOST_STEPS

        chosen = choose(
            candidates, lambda some: emptied.place(job, some | always) is not None, has_cost_enough
        )
        is_rough = has_cost_enough()
        gone = always | {one.job.job_id for one in chosen or ()}
        placed = emptied.place(job, gone) if chosen else None
        if chosen and placed is not None and is_rough:
            needed = emptied.needed(placed, chosen)
            fewer = always | {one.job.job_id for one in needed}
            if (again := emptied.place(job, fewer)) is not None:
                chosen, gone, placed = needed, fewer, again
        self._left -= emptied.steps - before
        if not chosen:
            return NOT_EVEN_ALL if chosen is None else LEAVING_DO
        if placed is None:
            return NOBODY
        pieces = parts_of(placed)
        spots = {vnode_id for vnode_id, _ in pieces}
        earmark = Earmark(
            job.job_id, job.submission_id, job.priority, job.parent_id, pieces,
            frozenset(n for n in gone if not spots.isdisjoint(part[0] for part in look.parts[n])),
        )  # fmt: skip
        return Preempt(job, tuple(sorted(chosen, key=lambda one: one.job.job_id)), earmark)

    def _look_at(self, parent_id: str) -> _Look:
        """Who runs in a cluster and what it would return; looked up once, and again after a start."""
        look = self._looks.get(parent_id)
        if look is None or look.begun != len(self.begun):
            jobs = [
                one
                for one in self.running.of_parent.get(parent_id, {}).values()
                if one.job_id not in self.begun
            ]
            total = self.ledger.total(parent_id)
            parts = {one.job_id: returned_by(self.ledger, self.running, one) for one in jobs}
            victims = [
                Victim(
                    one,
                    loss_of(self.now_ns - one.started_at_ns, (part.amounts for _, part in held), total),
                    min(vnode_id for vnode_id, _ in held),
                )
                for one in jobs
                if (held := parts[one.job_id])
            ]
            look = _Look(len(self.begun), parts, victims, Emptied(self.ledger, parent_id, parts))
            self._looks[parent_id] = look
        return look

    def _young_ns(self, queue: Queue, job: PendingJob) -> int | None:
        """When the next job of lower priority will have run long enough."""
        least = queue.policy.min_runtime_ns
        if not least:
            return None
        return min(
            (
                due
                for one in self.running.of_parent.get(job.parent_id, {}).values()
                if one.priority < job.priority and (due := one.started_at_ns + least) > self.now_ns
            ),
            default=None,
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """Who runs in a cluster: ``begun`` is how many jobs had started in the round when it was looked up."""

    begun: int
    parts: Mapping[int, Sequence[Part]]
    victims: Sequence[Victim]
    emptied: Emptied


class Emptied:
    """A cluster as if some of its running jobs had gone; what is kept for others stays out of sight."""

    def __init__(self, ledger: Ledger, parent_id: str, parts: Mapping[int, Sequence[Part]]) -> None:
        self.ledger = ledger
        self.parts = parts
        self.kept: dict[str, list[Holding]] = {}
        self.rooms: dict[str, Room] = {}
        self.gone: frozenset[int] = frozenset()
        self.returned: dict[str, dict[int, list[Holding]]] = {}
        self.index = ledger.index(parent_id).copy()
        self._last: tuple[int, frozenset[int], Placed | None] | None = None
        self.steps = 0
        """What the questions have cost; see ``MOST_STEPS``."""

    def keep(self, kept: Iterable[Part]) -> None:
        """From now on these, and no others, are out of sight."""
        before, self.kept, self._last = self.kept, {}, None
        for vnode_id, holding in kept:
            if vnode_id in self.ledger.rooms:
                self.kept.setdefault(vnode_id, []).append(holding)
        for vnode_id in {**before, **self.kept}:
            self._refile(vnode_id)

    def place(self, job: PendingJob, gone: frozenset[int]) -> Placed | None:
        """Where a job would go when those have gone."""
        if self._last is not None and self._last[:2] == (job.job_id, gone):
            return self._last[2]
        self.steps += QUESTION + PER_PIECE * sum(len(group.nodes) for group in job.spec.groups)
        for vnode_id in self._let_go(gone):
            self._refile(vnode_id)
        found = place_on(ground_with(self.ledger, self.index, self.rooms), job.spec, job.entry, budget=BUDGET)
        self._last = (job.job_id, gone, found if isinstance(found, Placed) else None)
        return self._last[2]

    def needed(self, placed: Placed, chosen: Sequence[Victim]) -> list[Victim]:
        """Those of them who have to go for this very place; the highest priority is spared first, then most work."""
        pieces: dict[str, list[Piece]] = {}
        for piece in placed.pieces:
            pieces.setdefault(piece.parent_vnode_id, []).append(piece)
        rooms = {vnode_id: self.rooms.get(vnode_id, self.ledger.rooms[vnode_id]) for vnode_id in pieces}
        left = {vnode_id: _left_by(rooms[vnode_id], some) for vnode_id, some in pieces.items()}
        found: list[Victim] = []
        for one in sorted(chosen, key=lambda one: (-one.job.priority, -one.loss, one.job.job_id)):
            held: dict[str, Holding] = {}
            for vnode_id, holding in self.parts[one.job.job_id]:
                if vnode_id in pieces:
                    held[vnode_id] = merged(held.get(vnode_id, EMPTY), holding)
            beside = {
                vnode_id: room
                for vnode_id, holding in held.items()
                if within(holding.amounts, left[vnode_id])
                and (room := _with(rooms[vnode_id], holding, pieces[vnode_id])) is not None
            }
            if len(beside) < len(held):
                found.append(one)
                continue
            for vnode_id, room in beside.items():
                rooms[vnode_id] = room
                left[vnode_id] = _left_by(room, pieces[vnode_id])
        return found

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
        self.steps += 1
        room = self.ledger.rooms[vnode_id].copy()
        for holdings in self.returned.get(vnode_id, {}).values():
            for holding in holdings:
                room.give_back(holding)
        if not room.is_overdrawn():
            for holding in self.kept.get(vnode_id, ()):
                room.take_most(holding)
        self.rooms[vnode_id] = room
        self.ledger.file(self.index, vnode_id, room)


def _left_by(room: Room, pieces: Iterable[Piece]) -> dict[str, int]:
    """What pieces leave free of a room."""
    return subtract(room.free, total(piece.holding.amounts for piece in pieces))


def _with(room: Room, holding: Holding, pieces: Sequence[Piece]) -> Room | None:
    """The room when somebody holds this in it, if the pieces find place beside that."""
    if not room.fits_exactly(holding) or any(piece.whole for piece in pieces):
        return None
    taken = room.copy()
    taken.take_exactly(holding)
    trial = taken.copy()
    for piece in pieces:
        if not trial.fits(piece.holding.amounts):
            return None
        trial.take(piece.holding.amounts)
    return taken
