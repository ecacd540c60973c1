"""Earmarks: room that is kept for a job while running ones of lower priority are ended for it.

In a round what is free of it is out of sight for everybody: tasks, other queues, clusters that grow. It comes back
into sight only while the job itself is tried, or one of the same queue with a higher priority.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Holding, Room
from vctl.scheduler.placement import Placed, place_on
from vctl.scheduler.placement_ground import ground_of

Part = tuple[str, Holding]
"""A virtual node of the parent, and what is kept of it."""


def parts_of(placed: Placed) -> tuple[Part, ...]:
    """What a placement takes, and where."""
    return tuple((piece.parent_vnode_id, piece.holding) for piece in placed.pieces)


@dataclass(frozen=True, slots=True)
class Earmark:
    """What is kept for a job. ``priority`` is that of the job when it was given.

    ``awaited`` are jobs that are being ended, for it or for something else, and from which some of the room will come.
    """

    job_id: int
    submission_id: str
    priority: int
    parent_id: str
    pieces: tuple[Part, ...]
    awaited: frozenset[int] = frozenset()

    def stands(self, ledger: Ledger) -> bool:
        """Whether its pieces are still there, and large enough."""
        wanted: dict[str, dict[str, int]] = {}
        for vnode_id, holding in self.pieces:
            there = wanted.setdefault(vnode_id, {})
            for name, amount in holding.amounts.items():
                there[name] = there.get(name, 0) + amount
        for vnode_id, amounts in wanted.items():
            vnode = ledger.vnodes.get(vnode_id)
            if (
                vnode is None
                or vnode.cluster_id != self.parent_id
                or not ledger.nodes[vnode.node_id].schedulable
            ):
                return False
            if any(amount > vnode.holding.amounts.get(name, 0) for name, amount in amounts.items()):
                return False
        return True


class Holds:
    """The earmarks of a round, charged in the ledger; ``close`` takes everything back."""

    def __init__(self, ledger: Ledger, earmarks: Iterable[Earmark] = ()) -> None:
        self.ledger = ledger
        self.earmarks: dict[int, Earmark] = {one.job_id: one for one in earmarks}
        self._names: dict[int, list[str]] = {}
        self._charge(self.earmarks)

    def reach(self, job: PendingJob) -> frozenset[int]:
        """Whose earmarks a job may use: its own, if it has none those of lower priority in its queue."""
        if not self.earmarks:
            return frozenset()
        if job.job_id in self.earmarks:
            return frozenset({job.job_id})
        return frozenset(
            one.job_id
            for one in self.earmarks.values()
            if one.parent_id == job.parent_id and one.priority < job.priority
        )

    def out_of_reach(self, job: PendingJob) -> list[Part]:
        """What a job has to leave to others."""
        reach = self.reach(job)
        return [
            part for one in self._ordered(self.earmarks) if one.job_id not in reach for part in one.pieces
        ]

    def put(self, earmark: Earmark) -> None:
        """Keep this, too."""
        self.earmarks[earmark.job_id] = earmark
        self._keep_all()

    def drop(self, job_id: int) -> None:
        """Keep this no longer."""
        if self.earmarks.pop(job_id, None) is not None:
            self._keep_all()

    def seat(self, job: PendingJob) -> Placed | None:
        """A place in what is kept for a job itself, whatever others have reserved; its earmark is lifted."""
        earmark = self.earmarks.get(job.job_id)
        if earmark is None or earmark.awaited or not earmark.stands(self.ledger):
            return None
        kept: dict[str, list[Part]] = {}
        for part in earmark.pieces:
            kept.setdefault(part[0], []).append(part)
        rooms = {vnode_id: _only(self.ledger.rooms[vnode_id], parts) for vnode_id, parts in kept.items()}
        found = place_on(ground_of(self.ledger, rooms), job.spec, job.entry)
        return found if isinstance(found, Placed) else None

    @contextmanager
    def lifted(self, reach: Collection[int]) -> Iterator[None]:
        """These are in sight meanwhile, as far as nobody before them keeps the same; what is left is kept again."""
        if not reach:
            yield
            return
        for job_id in reach:
            self._discharge(job_id)
        try:
            yield
        finally:
            self._keep_all()

    def close(self) -> None:
        """Leave the ledger as it was."""
        for job_id in list(self._names):
            self._discharge(job_id)

    def _keep_all(self) -> None:
        self.close()
        self._charge(self.earmarks)

    def _discharge(self, job_id: int) -> None:
        for name in reversed(self._names.pop(job_id, [])):
            self.ledger.discharge(name)

    def _ordered(self, job_ids: Iterable[int]) -> list[Earmark]:
        """The higher priority first, then who was given it first: what is free now is theirs."""
        wanted = set(job_ids)
        found = [one for job_id, one in self.earmarks.items() if job_id in wanted]
        return sorted(found, key=lambda one: -one.priority)

    def _charge(self, job_ids: Iterable[int]) -> None:
        for one in self._ordered(job_ids):
            if not one.stands(self.ledger):
                continue
            for number, part in enumerate(one.pieces):
                room = self.ledger.rooms[part[0]]
                if room.is_overdrawn():
                    continue
                free = room.copy().take_most(part[1])
                if any(free.amounts.values()):
                    name = f"earmarked:{one.job_id}:{number}"
                    self.ledger.charge(name, part[0], free)
                    self._names.setdefault(one.job_id, []).append(name)


def _only(room: Room, parts: Iterable[Part]) -> Room:
    """A room in which nothing is free but these parts, as far as they are."""
    only = room.copy()
    kept = [only.take_most(holding) for _, holding in parts]
    only.take_most(only.total)
    for holding in kept:
        only.give_back(holding)
    return only
