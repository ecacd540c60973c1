"""The answers of a placement: the pieces of a gang (``Placed``), or why it has no place (``Unplaced``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vctl.core import labels as lb
from vctl.core.clusters import VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, EMPTY, Allocation, Amounts, FreeCapacity
from vctl.core.values import replace, value
from vctl.scheduler.explain import words
from vctl.scheduler.explain.refusal import Refusal


@value(frozen=True, slots=True)
class Piece:
    """One virtual node to assign out of ``parent_vnode_id``.

    ``rank`` follows the spec: the nodes of the fixed groups in order, then whole nodes (templates by name),
    then flexible parts (by node id). ``group`` is the index of the fixed group, else -1. ``labels`` are the
    bundle's own.
    """

    kind: str
    rank: int
    group: int
    parent_vnode_id: str
    node_id: str
    allocation: Allocation
    labels: Mapping[str, str]
    whole: bool


@value(frozen=True, slots=True)
class Placed:
    """The place of a whole gang: every piece, and the rank and the allocation of the entrypoint's piece.

    ``entry``: the part of that piece that the entrypoint holds. ``exact``: the search had to take back a
    choice; otherwise the heuristic alone found the place.
    """

    pieces: tuple[Piece, ...]
    entry_rank: int
    entry: Allocation
    exact: bool

    @property
    def parts(self) -> tuple[tuple[str, Allocation], ...]:
        """Per piece the parent's virtual node in which it lies, and its allocation."""
        return tuple((piece.parent_vnode_id, piece.allocation) for piece in self.pieces)


@value(frozen=True, slots=True)
class Unplaced:
    """Why a gang has no place. ``exhausted``: the search ended at its step budget, so this is not a proof."""

    refusal: Refusal
    exhausted: bool = False

    @property
    def message(self) -> str:
        """Why it does not fit now, in words."""
        return words.lack(self.refusal)

    @property
    def capacity(self) -> str:
        """Why it does not even fit when everything is free, in words."""
        return words.lack_when_empty(self.refusal)

    def doubted_with(self, other: Unplaced) -> Unplaced:
        """The same, but no proof if another search for the same gang was none."""
        return replace(self, exhausted=self.exhausted or other.exhausted)


def vnodes_of(ledger: Ledger, cluster_id: str, pieces: Sequence[Piece]) -> tuple[VNode, ...]:
    """The virtual nodes for placed pieces, with the labels of the parent, their own, and the system's."""
    made = []
    for piece in pieces:
        vnode_id = f"{cluster_id}/{piece.rank}"
        inherited = ledger.vnodes[piece.parent_vnode_id].labels
        labels = {**inherited, **piece.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
        location = piece.node_id, piece.parent_vnode_id
        made.append(
            VNode(
                vnode_id, cluster_id, *location, piece.kind, piece.allocation, labels, piece.whole, piece.rank
            )
        )
    return tuple(made)


def seated(
    ledger: Ledger, placed: Placed, entry: Amounts, slots: Mapping[str, str] | None = None
) -> Placed | None:
    """The same place with cores that are free now; None when a piece does not fit any more.

    ``slots``: for some virtual nodes in which pieces were placed, the virtual nodes that take their place.
    """
    capacities: dict[str, FreeCapacity] = {}
    pieces: list[Piece] = []
    for piece in placed.pieces:
        slot_id = (slots or {}).get(piece.parent_vnode_id, piece.parent_vnode_id)
        if slot_id not in ledger.capacities:
            return None
        if (capacity := capacities.get(slot_id)) is None:
            capacity = capacities[slot_id] = ledger.capacities[slot_id].copy()
        cpu = piece.allocation.amounts.get(CPU, 0)
        cores = capacity.total.cores if piece.whole else capacity.pick_cores(cpu)
        allocation = replace(piece.allocation, cores=cores)
        if (piece.whole and not capacity.is_untouched()) or not capacity.fits_exactly(allocation):
            return None
        capacity.take_exactly(allocation)
        pieces.append(replace(piece, parent_vnode_id=slot_id, allocation=allocation))
    request = {name: amount for name, amount in entry.items() if amount}
    home = next((piece for piece in pieces if piece.rank == placed.entry_rank), None)
    held = FreeCapacity(home.allocation).take(request) if home is not None and request else EMPTY
    return replace(placed, pieces=tuple(pieces), entry=held)
