"""Reservations: when and where a job that does not fit now could start, from the time limits of what runs.

A reservation keeps its pieces: until its start they may be used only by what ends before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import SCALE, Amounts, Holding, Room, add, maximum, subtract
from vctl.scheduler.placement import Placed, place_on
from vctl.scheduler.placement_ground import Ground
from vctl.scheduler.running import Running, holdings_of

BUDGET = 2_000
"""Steps of one search for a place in the future."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept for a job. ``start_ns`` None: not before something without a time limit has ended."""

    job_id: int
    submission_id: str
    start_ns: int | None
    end_ns: int | None
    pieces: tuple[tuple[str, Amounts, bool], ...]
    """(virtual node of the parent, amounts, whole)."""

    def binds(self, end_ns: int | None) -> bool:
        """Whether a job that runs until then (None: for ever) must keep off the pieces."""
        return self.start_ns is None or end_ns is None or end_ns > self.start_ns

    def clashes(self, other: Reservation) -> bool:
        """Whether both may want the same virtual node at the same time."""
        if self.start_ns is not None and not other.binds(self.end_ns):
            return False
        if other.start_ns is not None and not self.binds(other.end_ns):
            return False
        return not {piece[0] for piece in self.pieces}.isdisjoint(piece[0] for piece in other.pieces)

    def stands(self, ledger: Ledger, parent_id: str) -> bool:
        """Whether its pieces are still there."""
        for vnode_id, amounts, _ in self.pieces:
            vnode = ledger.vnodes.get(vnode_id)
            if vnode is None or vnode.cluster_id != parent_id or not ledger.nodes[vnode.node_id].schedulable:
                return False
            if any(amount > vnode.holding.amounts.get(name, 0) for name, amount in amounts.items()):
                return False
        return True


Event = tuple[int | None, tuple[tuple[str, Holding], ...]]
"""When something ends (None: nobody knows), and what it returns where."""


def reserve(
    ledger: Ledger, job: PendingJob, running: Running, others: Sequence[Reservation], now_ns: int
) -> Reservation | None:
    """The earliest start of a job: the fewest ends that must pass until it fits. None: it would not fit even then.

    Others' reservations are kept until the end of the jobs they are for. More room never hurts, so the number of
    ends is found by doubling and halving, not one by one.
    """
    moments = _moments(ledger, job.parent_id, running, others, now_ns)
    fits = {}

    def at(count: int) -> Placed | None:
        if count not in fits:
            fits[count] = _place_after(ledger, job, moments[:count], others)
        return fits[count]

    high = 1
    while high < len(moments) and at(high) is None:
        high = min(high * 2, len(moments))
    if not moments or at(high) is None:
        return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) is not None else (middle, high)
    placed, start_ns = at(high), moments[high - 1][0]
    assert placed is not None
    end_ns = None if start_ns is None or job.time_limit_ns is None else start_ns + job.time_limit_ns
    pieces = tuple((piece.parent_vnode_id, piece.holding.amounts, piece.whole) for piece in placed.pieces)
    if not pieces:
        return None
    return Reservation(job.job_id, job.submission_id, start_ns, end_ns, pieces)


def _moments(
    ledger: Ledger, parent_id: str, running: Running, others: Iterable[Reservation], now_ns: int
) -> list[Event]:
    """When room comes free, soonest first; what is overdue is taken to end at once, what has no limit last.

    Of those without a limit each is a moment of its own, the oldest job first, so that few are waited for.
    """
    timed: list[tuple[int, tuple[tuple[str, Holding], ...]]] = [
        (other.end_ns, ()) for other in others if other.end_ns is not None
    ]
    endless: list[Event] = []
    for _, job in sorted(running.of_parent.get(parent_id, {}).items()):
        parts = tuple(holdings_of(ledger, job))
        if job.ends_at_ns is None:
            endless.append((None, parts))
        else:
            timed.append((max(job.ends_at_ns, now_ns), parts))
    timed.sort(key=itemgetter(0))
    moments: list[Event] = [
        (at_ns, tuple(part for _, parts in same for part in parts))
        for at_ns, same in groupby(timed, key=itemgetter(0))
    ]
    return moments + endless


def _place_after(
    ledger: Ledger, job: PendingJob, passed: Sequence[Event], others: Sequence[Reservation]
) -> Placed | None:
    rooms: dict[str, Room] = {}
    for _, parts in passed:
        for vnode_id, holding in parts:
            if vnode_id not in rooms:
                rooms[vnode_id] = ledger.rooms[vnode_id].copy()
            rooms[vnode_id].give_back(holding)
    moment = passed[-1][0]
    for other in others:
        if other.end_ns is None or (moment is not None and other.end_ns > moment):
            for piece in other.pieces:
                if piece[0] not in rooms and piece[0] in ledger.rooms:
                    rooms[piece[0]] = ledger.rooms[piece[0]].copy()
                if piece[0] in rooms:
                    _take_of(rooms[piece[0]], piece)
    index = ledger.index(job.parent_id).copy()
    for vnode_id, room in rooms.items():
        ledger.file(index, vnode_id, room)
    classes = sorted(
        index.classes.values(), key=lambda group: (ledger.vnodes[group.ids[0]].node_id, group.ids[0])
    )
    ground = Ground(
        ledger, tuple(classes), index.crowded, index.class_of,
        lambda slot_id: rooms.get(slot_id) or ledger.rooms[slot_id],
    )  # fmt: skip
    found = place_on(ground, job.spec, job.entry, budget=BUDGET)
    return found if isinstance(found, Placed) else None


def _take_of(room: Room, piece: tuple[str, Amounts, bool]) -> Holding:
    """Take as much of a reserved piece as is free."""
    _, wanted, whole = piece
    amounts = room.free if whole else {name: min(a, room.free.get(name, 0)) for name, a in wanted.items()}
    taken: dict[str, int] = {}
    for name, amount in amounts.items():
        most = amount
        if name in room.instances:
            if wanted.get(name, amount) >= SCALE:
                most = min(amount // SCALE, room.whole_units(name)) * SCALE
            elif room.pick(name, amount) is None:
                most = 0
        if most > 0:
            taken[name] = most
    return room.take(taken)


Returned = Mapping[str, Sequence[tuple[int, Amounts]]]
"""Virtual node of the parent -> what running jobs return there, and when at the latest."""


def returned(ledger: Ledger, parent_id: str, running: Running) -> Returned:
    """What comes free by time limits."""
    found: dict[str, list[tuple[int, Amounts]]] = {}
    for job in running.of_parent.get(parent_id, {}).values():
        if job.ends_at_ns is not None:
            for vnode_id, holding in holdings_of(ledger, job):
                found.setdefault(vnode_id, []).append((job.ends_at_ns, holding.amounts))
    return found


class Walls:
    """Keeps what reservations need of the free room out of sight while others are placed; undone at the end."""

    def __init__(self, ledger: Ledger, reservations: Sequence[Reservation], coming: Returned) -> None:
        self.ledger = ledger
        self.reservations = reservations
        self.coming = coming
        self._names: list[str] = []

    def __enter__(self) -> Walls:
        wanted: dict[str, list[tuple[Reservation, Amounts, bool]]] = {}
        for reservation in self.reservations:
            for vnode_id, amounts, whole in reservation.pieces:
                wanted.setdefault(vnode_id, []).append((reservation, amounts, whole))
        for vnode_id, parts in wanted.items():
            room = self.ledger.rooms.get(vnode_id)
            if room is None or room.is_overdrawn():
                continue
            whole = any(part[2] for part in parts)
            amounts = self._most_at_once(vnode_id, room, parts)
            holding = _take_of(room.copy(), (vnode_id, amounts, whole))
            if holding.amounts:
                self._names.append(f"reserved:{vnode_id}")
                self.ledger.charge(self._names[-1], vnode_id, holding)
        return self

    def _most_at_once(
        self, vnode_id: str, room: Room, parts: Sequence[tuple[Reservation, Amounts, bool]]
    ) -> Amounts:
        """What must stay free: at each reserved start, what is wanted then less what has come free until then.

        Numbered instances that will come free are not counted: which ones they are matters.
        """
        most: dict[str, int] = {}
        for start_ns in {part[0].start_ns for part in parts}:
            at_once: dict[str, int] = {}
            for reservation, amounts, _ in parts:
                if _lasts_at(reservation, start_ns):
                    at_once = add(at_once, amounts)
            if start_ns is not None:
                for ends_at, amounts in self.coming.get(vnode_id, ()):
                    if ends_at <= start_ns:
                        at_once = subtract(
                            at_once, {n: a for n, a in amounts.items() if n not in room.instances}
                        )
            most = maximum(most, at_once)
        return most

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._names):
            self.ledger.discharge(name)
        self._names.clear()


def _lasts_at(reservation: Reservation, moment_ns: int | None) -> bool:
    if moment_ns is None:
        return reservation.end_ns is None
    if reservation.start_ns is None or reservation.start_ns > moment_ns:
        return False
    return reservation.end_ns is None or reservation.end_ns > moment_ns
