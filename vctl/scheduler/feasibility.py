"""Feasibility of a gang: whether it could ever run (``ever``), and whether a change of some virtual nodes could help
it (``could_help``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY, Cluster, ClusterSpec, FixedNode, VNode
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING, MADE_BY, possible
from vctl.core.resources import CPU, EMPTY, SCALE, Allocation, Amounts, FreeCapacity, difference, within
from vctl.core.slots import template_of
from vctl.core.values import replace
from vctl.core.wording import cluster_text
from vctl.scheduler.candidate_nodes import CandidateNodes, candidates_when_empty
from vctl.scheduler.elasticity import allowance, growing, revert_growth
from vctl.scheduler.upper_bound import PLAIN, UpperBound

if TYPE_CHECKING:
    from vctl.scheduler.placement import Unplaced


def ever(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts, *,
    bare: Callable[[], Ledger] | None = None,
) -> Unplaced | None:  # fmt: skip
    """Why a gang can never run: it has no place even on empty nodes, with a parent that has grown.

    Alive and draining nodes count. None: it may run; also if the search ended at its budget, which proves
    nothing. ``bare``, for callers that ask about many gangs, returns the ``emptied`` ledger of a parent that can grow.
    The ledger is left as it was.
    """
    candidates, count = None, UpperBound(spec)
    if not ledger.clusters[parent_id].spec.flexible:
        candidates = empty_nodes(ledger, parent_id)
        if _surely_fits(candidates, spec, count, entry):
            return None
    elif _surely_grows_when_empty(ledger, parent_id, spec, count, entry):
        return None
    return _searched(ledger, parent_id, spec, entry, candidates, bare)


def _searched(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts,
    candidates: CandidateNodes | None, bare: Callable[[], Ledger] | None,
) -> Unplaced | None:  # fmt: skip
    """What counting does not tell; only then a command loads the search."""
    from vctl.scheduler.gang_growth import place_with_growth
    from vctl.scheduler.placement import Placed, Unplaced, place, place_on

    if isinstance(place(ledger, parent_id, spec, entry, budget=0), Placed):
        return None
    if candidates is not None:
        answer = place_on(candidates, spec, entry)
        return None if isinstance(answer, Placed) or answer.exhausted else answer
    alone = emptied(ledger, parent_id) if bare is None else bare()
    answer = place(alone, parent_id, spec, entry)
    if isinstance(answer, Placed) or answer.exhausted:
        return None
    grown = place_with_growth(alone, parent_id, spec, entry)
    if isinstance(grown, Unplaced):
        return None if grown.exhausted else grown
    for step in reversed(grown[0]):
        revert_growth(alone, step)
    return None


def empty_nodes(ledger: Ledger, cluster_id: str) -> CandidateNodes:
    """The candidate nodes of a cluster if nothing ran; made again only after its virtual nodes or any node changed."""
    state, known = ledger.capacity(cluster_id), ledger.derived.get(key := ("empty", cluster_id))
    if isinstance(known, tuple) and known[0] == state:
        candidates: CandidateNodes = known[1]
        return candidates
    candidates = candidates_when_empty(ledger, cluster_id)
    ledger.derived[key] = (state, candidates)
    return candidates


def _surely_fits(candidates: CandidateNodes, spec: ClusterSpec, count: UpperBound, entry: Amounts) -> bool:
    """Whether counting shows a place, or one candidate holds all of a gang that is a flexible part only.

    False proves nothing.
    """
    if count.is_exact(entry):
        return count.is_met(count.within(candidates.classes))
    needed, maximum = rs.maximum(spec.flexible_min, entry), spec.flexible_max or {}
    if not spec.flexible or spec.groups or spec.replica_sets or not PLAIN.issuperset(needed):
        return False
    return all(amount <= maximum.get(name, amount) for name, amount in needed.items()) and any(
        within(needed, group.capacity.free) for group in candidates.classes
    )


def _surely_grows_when_empty(
    ledger: Ledger, cluster_id: str, spec: ClusterSpec, count: UpperBound, entry: Amounts
) -> bool:
    """Whether growth certainly makes a place on empty nodes: ``surely_grows`` by what clusters beside it share.

    False proves nothing.
    """
    chain, cluster = growing(ledger, cluster_id), ledger.clusters[cluster_id]
    above = ledger.clusters[cluster.parent_id or cluster_id]
    if len(chain) != 1 or above.spec.flexible or allowance(ledger, cluster):
        return False
    empty = empty_nodes(ledger, above.cluster_id)
    return not empty.crowded and _surely_fits(empty, spec, count, entry)


def with_machines(ledger: Ledger) -> Ledger:
    """A copy of the ledger with all machines that its node provider can still make.

    Without a template in ``ledger.templates`` the result is the ledger itself.
    """
    if not ledger.templates:
        return ledger
    larger = ledger.copy()
    made = Counter(
        node.template_id
        for node in ledger.nodes.values()
        if node.state in (ALIVE, DRAINING) and MADE_BY in node.labels
    )
    for node in possible(ledger.templates, made):
        larger.put_node(node)
    return larger


def could_help(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts, changed: Iterable[str]
) -> bool:
    """Whether a gang that had no place may have one after capacity came free in ``changed`` virtual nodes.

    False is certain, provided the earlier answer was not ``exhausted``: a plan that was impossible before
    must use a changed slot, so some part of the gang must fit in one. True proves nothing.
    """
    nodes: list[FixedNode] = []
    for group in spec.groups:
        for node in group.nodes:
            last = nodes[-1] if nodes else None
            if last is None or (node.resources, node.selector) != (last.resources, last.selector):
                nodes.append(node)  # bundles of a group are mostly alike
    return any(
        ledger.vnodes[vnode_id].cluster_id == parent_id
        and ledger.nodes[ledger.vnodes[vnode_id].node_id].schedulable
        and _takes_something(ledger, vnode_id, nodes, spec, entry)
        for vnode_id in changed
        if vnode_id in ledger.vnodes
    )


def _takes_something(
    ledger: Ledger, vnode_id: str, nodes: list[FixedNode], spec: ClusterSpec, entry: Amounts
) -> bool:
    vnode, capacity = ledger.vnodes[vnode_id], ledger.capacities[vnode_id]
    if any(lb.matches(n.selector, vnode.labels) and capacity.fits(n.resources) for n in nodes):
        return True
    template = template_of(vnode, ledger.nodes[vnode.node_id])
    if template and spec.replica_sets.get(template, 0) > 0 and capacity.is_untouched():
        return True
    if not spec.flexible:
        return False
    amounts = [*spec.flexible_min.items(), *entry.items()]
    if not any(amount for _, amount in amounts):
        return not nodes and not any(spec.replica_sets.values())
    # a piece may be one unit of one resource or a fraction, so whatever is free may be what was missing
    return any(amount and capacity.free.get(name, 0) > 0 for name, amount in amounts)


# ---- a cluster and those above it with nothing running ----


def emptied(ledger: Ledger, cluster_id: str) -> Ledger:
    """A ledger with only a cluster and those above it, on all alive or draining nodes, and nothing in use."""
    empty = Ledger()
    for node in ledger.nodes.values():
        if node.state in (ALIVE, DRAINING):
            empty.put_node(replace(node, state=ALIVE))
    chain = ledger.upward(cluster_id)
    parts = idle_parts(ledger, chain)
    for cluster in reversed(chain):
        empty.put_cluster(replace(cluster, state="ACTIVE"))
        for vnode_id, allocation in parts[cluster.cluster_id].items():
            vnode = ledger.vnodes[vnode_id]
            if vnode.parent_id in empty.vnodes:
                empty.assign(replace(vnode, allocation=allocation))
    for node in [
        node for node in empty.nodes.values() if node.shrunk and not is_overdrawn(empty, node.node_id)
    ]:
        empty.put_node(replace(node, shrunk=False))
    return empty


def is_overdrawn(ledger: Ledger, node_id: str) -> bool:
    """Whether more is held on a node, or in a virtual node on it, than it has, because the node shrank."""
    vnode_ids = [node_id]
    for vnode_id in vnode_ids:  # the loop appends to the list
        vnode_ids += ledger.children[vnode_id]
    return any(ledger.capacities[slot_id].is_overdrawn() for slot_id in vnode_ids)


def idle_parts(ledger: Ledger, chain: list[Cluster]) -> dict[str, dict[str, Allocation]]:
    """Per cluster of a chain: virtual node id -> its allocation once nothing runs.

    Each cluster has then given back what it has above its minimum, from its newest virtual nodes first.
    Flexible virtual nodes that become empty are left out.
    """
    parts: dict[str, dict[str, Allocation]] = {}
    inside: dict[str, list[Allocation]] = {}
    for cluster in chain:
        mine = ledger.ranked(cluster.cluster_id)
        flexible = [vnode for vnode in mine if vnode.kind == FLEXIBLE]
        has = rs.total(vnode.allocation.amounts for vnode in flexible)
        surplus = rs.beyond(has, cluster.spec.flexible_min)
        allocations = {vnode.vnode_id: vnode.allocation for vnode in mine}
        for vnode in reversed(flexible):
            if vnode.vnode_id in inside or any(cluster.spec.flexible_min.values()):
                rest = _without(vnode, inside.get(vnode.vnode_id, ()), surplus)
            else:
                rest = EMPTY  # nothing in it stays
            allocations[vnode.vnode_id] = rest
        dropped = {v.vnode_id for v in flexible if not any(allocations[v.vnode_id].amounts.values())}
        dropped -= set(inside)
        parts[cluster.cluster_id] = {
            v: allocation for v, allocation in allocations.items() if v not in dropped
        }
        for vnode_id, allocation in parts[cluster.cluster_id].items():
            inside.setdefault(ledger.vnodes[vnode_id].parent_id or "", []).append(allocation)
    return parts


def _without(vnode: VNode, inside: Sequence[Allocation], surplus: dict[str, int]) -> Allocation:
    """The allocation of a flexible virtual node less its part of ``surplus``; subtracts it from that."""
    capacity = FreeCapacity(vnode.allocation)
    for allocation in inside:
        capacity.take_beyond(allocation)
    amounts: dict[str, int] = {}
    instances: dict[str, Mapping[int, int]] = {}
    for name, limit in surplus.items():
        remaining = amount = max(min(limit, capacity.free.get(name, 0)), 0)
        if name in capacity.instances:
            back: dict[int, int] = {}
            for index, share in sorted(capacity.instances[name].items(), reverse=True):
                if part := max(min(share, remaining), 0):
                    back[index], remaining = part, remaining - part
            instances[name], amount = back, amount - remaining
        if amount:
            amounts[name] = amount
            surplus[name] = limit - amount
    rest = vnode.allocation.amounts.get(CPU, 0) - amounts.get(CPU, 0)
    cores = sorted(capacity.cores)[: max(len(vnode.allocation.cores) - rest // SCALE, 0)]
    less = difference(vnode.allocation, Allocation(amounts, instances, tuple(cores)))
    return replace(less, instances={name: shares for name, shares in less.instances.items() if shares})


# ---- the answers that a queue remembers ----

Larger = tuple[Ledger, Callable[[], Ledger]]

MOST_JUDGED = 10_000
"""The number of shapes for which ``why_never`` is remembered."""


class FeasibilityJudge:
    """Judges why jobs of one parent cluster can never run, and remembers the answers."""

    def __init__(self, parent_id: str) -> None:
        self.parent_id = parent_id
        self.never: dict[str, tuple[object, str | None]] = {}
        """Shape -> (capacity of the parent, the reason or None). The answer holds only for that capacity."""
        self._seen: tuple[object, object] | None = None
        """Versions of the parent and the clusters above it, and the capacity for them."""
        self._bare: tuple[object, Ledger] | None = None
        self._larger: tuple[object, Ledger, Larger] | None = None

    def why_never(self, ledger: Ledger, job: PendingJob) -> str | None:
        """Why a job can never run, even on empty nodes and all machines of the provider; None: it may."""
        capacity = self.capacity(ledger)
        known = self.never.get(job.shape)
        if known is None or known[0] != capacity:
            if len(self.never) >= MOST_JUDGED:
                self.never.clear()
            bare: Callable[[], Ledger] = partial(self._emptied, ledger, capacity)
            never = ever(ledger, self.parent_id, job.spec, job.entry, bare=bare)
            if never is not None and ledger.templates:
                larger, bare = self._with_machines(ledger, capacity)
                never = ever(larger, self.parent_id, job.spec, job.entry, bare=bare)
            known = self.never[job.shape] = (
                capacity,
                None
                if never is None
                else f"exceeds the capacity of {cluster_text(self.parent_id)}: {never.capacity}",
            )
        return known[1]

    def capacity(self, ledger: Ledger) -> object:
        """A value that changes whenever the feasibility of jobs may change; not with borrowed capacity."""
        return self._of_tree(ledger), ledger.templates

    def _of_tree(self, ledger: Ledger) -> object:
        parent = ledger.clusters[self.parent_id]
        if not parent.spec.flexible:
            return ledger.capacity(self.parent_id)
        chain = ledger.upward(self.parent_id)
        rows = [(cluster, ledger.versions.get(cluster.cluster_id, 0)) for cluster in chain]
        versions = (ledger.capacity(self.parent_id), *rows)
        if self._seen is None or self._seen[0] != versions:
            limits = [(cluster.spec, cluster.borrow_limit) for cluster in chain]
            self._seen = (versions, (ledger.versions.get(PRIMARY, 0), limits, idle_parts(ledger, chain)))
        return self._seen[1]

    def _emptied(self, ledger: Ledger, capacity: object) -> Ledger:
        """The parent and the clusters above it if nothing ran, made once per capacity."""
        if self._bare is None or self._bare[0] != capacity:
            self._bare = (capacity, emptied(ledger, self.parent_id))
        return self._bare[1]

    def _with_machines(self, ledger: Ledger, capacity: object) -> Larger:
        """The ledger with the machines of its provider, and it without work; once per capacity."""
        if self._larger is None or self._larger[0] != capacity or self._larger[1] is not ledger:
            larger = with_machines(ledger)
            bare = cache(partial(emptied, larger, self.parent_id))
            self._larger = (capacity, ledger, (larger, bare))
        return self._larger[2]
