"""Says in one sentence what a request needs and what is free for it, by free amounts alone, without a search.

Input: the parts of a request, and the virtual nodes of its cluster and of the clusters from which that can
grow. ``Shortage.fits`` is exact for most requests with one kind of piece; else it may be unknown (None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import nsmallest
from itertools import chain

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import ClusterSpec
from vctl.core.labels import Labels, Selector
from vctl.core.resources import SCALE, Allocation, Amounts, FreeCapacity
from vctl.core.values import field, value
from vctl.core.wording import amounts_text, counted, number_text

MOST_NODES = 4
"""The number of nodes that are named with their free amounts; the others only give their largest amount."""
MOST_PARTS = 3
UNBOUNDED = 1 << 60


@value(frozen=True, slots=True)
class Slot:
    """One virtual node with its free capacity; ``labels`` is called only when a selector needs it."""

    node_id: str
    capacity: FreeCapacity
    labels: Callable[[], Labels]
    template_id: str = ""
    """The template of a whole node, empty for a slice."""
    untouched: bool = False
    slot_id: str = ""


class Slots:
    """The virtual nodes of one cluster in groups of equal free capacity, so that each group is read once."""

    def __init__(self, groups: Iterable[Sequence[Slot]]) -> None:
        self.groups = list(groups)
        self.nothing = "no node takes work now"
        """The text about a cluster without virtual nodes."""
        self._joined: tuple[Sequence[Above], Slots] | None = None

    @cached_property
    def all(self) -> list[Slot]:
        """All of them."""
        return list(chain.from_iterable(self.groups))

    @cached_property
    def crowded(self) -> bool:
        """Whether a physical node has several of these virtual nodes."""
        return len({slot.node_id for slot in self.all}) < len(self.all)

    def joined(self, above: Sequence[Above]) -> Slots:
        """The physical nodes with what is free on each, in these virtual nodes and in those of the clusters above it.

        Of the top cluster, which has most nodes, those on which the others have nothing stay in their groups.
        """
        if self._joined is None or self._joined[0] is not above:
            *lower, top = self, *(level.slots for level in above)
            several = [slot for slots in lower for slot in slots.all]
            node_ids = {slot.node_id for slot in (*several, *(top.all if top.crowded else ()))}
            groups = [[slot for slot in group if slot.node_id not in node_ids] for group in top.groups]
            sums: dict[str, FreeCapacity] = {}
            for slot in (*several, *(slot for slot in top.all if slot.node_id in node_ids)):
                known = sums.get(slot.node_id)
                sums[slot.node_id] = slot.capacity if known is None else _joined(known, slot.capacity)
            groups += [[Slot(node_id, capacity, dict)] for node_id, capacity in sums.items()]
            self._joined = above, Slots(group for group in groups if group)
            self._joined[1].crowded = False
        return self._joined[1]

    @cached_property
    def free(self) -> dict[str, int]:
        """What is free in all of them together."""
        return rs.total(
            {name: max(amount, 0) * len(group) for name, amount in group[0].capacity.free.items()}
            for group in self.groups
        )


@value(frozen=True, slots=True)
class Above:
    """A cluster from which one below it (``grower``) may grow: its virtual nodes, the grower's limits."""

    cluster: str
    slots: Slots
    grower: str
    allowance: Mapping[str, int]
    """The amounts that its limits leave the grower; a missing name is not limited."""
    lends: bool = False
    """Whether siblings may lend to the grower as well."""


@value(frozen=True, slots=True)
class Part:
    """Equal pieces of a request. ``how``: ``one`` (each in one virtual node), ``distinct`` (each on a node of
    its own), ``pack`` (all on one node), ``split`` (may be divided over nodes), ``whole`` (whole nodes of a
    template).
    """

    how: str
    request: Amounts
    count: int = 1
    selector: Selector = ()
    template: str = ""

    def text(self) -> str:
        """The need in words, such as ``8 CPU on each of 2 nodes``."""
        if self.how == "whole":
            return f"{counted(self.count, 'whole node')} of template {self.template}"
        amounts = amounts_text(self.request)
        conditions = ", ".join(f"{condition.key}: {condition}" for condition in self.selector)
        which = f" with {conditions}" if conditions else ""
        if self.how == "split":
            return f"{amounts} in total"
        if self.count == 1:
            return f"{amounts} on one node{which}"
        if self.how == "distinct":
            return f"{amounts} on each of {self.count} nodes{which}"
        where = f" on nodes{which}" if which else ""
        return f"{self.count} times {amounts}{where}"


class Shortage:
    """What a request needs, and what is free for it in its cluster and in those from which that can grow.

    ``need`` and ``free`` are phrases; ``fits`` is None when only a search can tell. Each is worked out when it is
    asked for.
    """

    def __init__(self, parts: Sequence[Part], slots: Slots, above: Sequence[Above] = ()) -> None:
        self._parts, self._slots, self._above, self._request = parts, slots, above, _Request(parts)

    @property
    def text(self) -> str:
        """Need and free amounts in one sentence."""
        return f"needs {self.need}; free: {self.free}"

    @cached_property
    def need(self) -> str:
        """The need of all parts in one phrase."""
        return need_text(self._parts)

    @cached_property
    def fits(self) -> bool | None:
        """Whether all parts fit."""
        if not self._above:
            return self._request.fits(self._slots)
        return self._request.fits_with(self._slots, self._above)

    @cached_property
    def free(self) -> str:
        """The free amounts by node, of each cluster that counts."""
        request, texts = self._request, [self._request.free_text(self._slots)]
        for level in self._above:
            full = sorted(name for name in request.names if not level.allowance.get(name, UNBOUNDED))
            if full:
                texts.append(f"{level.grower} may not grow beyond its limit of {' and '.join(full)}")
                break
            free = request.free_text(level.slots)
            texts.append(f"in {level.cluster}, from which {level.grower} can grow: {free}")
            limits = {name: level.allowance[name] for name in request.names if name in level.allowance}
            if limits:
                texts[-1] += f" ({level.grower} may take {amounts_text(limits)} more)"
        return "; ".join(texts)


def parts_of(spec: ClusterSpec, entry: Amounts) -> list[Part]:
    """The parts of a job's request, including the entrypoint's own request."""
    parts: list[Part] = []
    for group in spec.groups:
        kinds: dict[tuple[tuple[tuple[str, int], ...], Selector], int] = {}
        for node in group.nodes:
            key = tuple(sorted((n, a) for n, a in node.resources.items() if a)), node.selector
            kinds[key] = kinds.get(key, 0) + 1
        if group.policy == "STRICT_PACK" and len(group.nodes) > 1:
            selectors = {condition: None for _, selector in kinds for condition in selector}
            together = rs.total(node.resources for node in group.nodes)
            parts.append(Part("pack", together, 1, tuple(selectors)))
            continue
        how = "distinct" if group.policy == "STRICT_SPREAD" and len(group.nodes) > 1 else "one"
        parts += [Part(how, dict(amounts), n, selector) for (amounts, selector), n in kinds.items()]
    parts += [Part("whole", {}, n, template=t) for t, n in sorted(spec.replica_sets.items()) if n]
    if spec.flexible:
        requested = {name: amount for name, amount in entry.items() if amount}
        if any(part.how == "whole" or rs.within(requested, part.request) for part in parts):
            requested = {}
        minimum = {name: amount for name, amount in spec.flexible_min.items() if amount}
        if requested:
            parts.append(Part("one", requested))
        beyond = rs.maximum(minimum, requested)
        if minimum and beyond != requested:
            parts.append(Part("split", beyond))
    return parts


def need_text(parts: Sequence[Part]) -> str:
    """The need of all parts in one phrase."""
    if not parts:
        return "a node that takes work"
    texts = [part.text() for part in parts[:MOST_PARTS]]
    if len(parts) > MOST_PARTS:
        texts.append(counted(sum(part.count for part in parts[MOST_PARTS:]), "more node"))
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


@value(slots=True)
class _Request:
    """Words and counts for one request; a free capacity that many virtual nodes share is counted once."""

    parts: Sequence[Part]
    names: list[str] = field(default_factory=list)
    _copies: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = sorted({n for part in self.parts for n, amount in part.request.items() if amount})

    # ---- words ----

    def free_text(self, slots: Slots) -> str:
        """The free amounts by node, the nodes with most first."""
        if self.parts and all(part.how == "whole" for part in self.parts):
            return " and ".join(self._whole_text(part, slots) for part in self.parts)
        selectors = {part.selector for part in self.parts if part.how != "whole"}
        select = selectors if all(selectors) else set()
        by_free: dict[tuple[int, ...], list[list[str]]] = {}
        best: dict[str, tuple[int, ...]] = {}
        for group in slots.groups:
            free = tuple(self._figure(group[0].capacity, name) for name in self.names)
            names = [
                slot.node_id
                for slot in group
                if not select or any(_matches(slot, selector) for selector in select)
            ]
            if slots.crowded:
                for name in names:
                    best[name] = self._on_node(best[name], free) if name in best else free
            elif names:
                by_free.setdefault(free, []).append(names)
        for name, free in best.items():
            by_free.setdefault(free, []).append([name])
        if not by_free:
            return "no node of the cluster matches" if slots.all and select else slots.nothing
        return self._listed(by_free)

    def _on_node(self, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
        """The free amounts of two slots of a node: the sum, if a part of one unit or more may lie in both."""
        if any(part.how not in ("split", "pack") for part in self.parts):
            return max(first, second)
        whole = [any(part.request.get(name, 0) >= SCALE for part in self.parts) for name in self.names]
        return tuple(a + b if w else max(a, b) for a, b, w in zip(first, second, whole, strict=True))

    def _listed(self, by_free: Mapping[tuple[int, ...], list[list[str]]]) -> str:
        """The nodes with most first, by name among equals; of the others only the largest amounts."""
        texts: list[str] = []
        rest, largest = 0, [0] * len(self.names)
        for free in sorted(by_free, reverse=True):
            kinds = by_free[free]
            count = sum(map(len, kinds))
            shown = nsmallest(MOST_NODES - len(texts), chain.from_iterable(kinds))
            texts += [self._node_text(name, free) for name in shown]
            if count > len(shown):
                rest += count - len(shown)
                largest = [max(pair) for pair in zip(largest, free, strict=True)]
        if rest:
            what = f"at most {self._amounts(tuple(largest))}" if any(largest) else "nothing"
            texts.append(f"{counted(rest, 'more node')} with {what}")
        return ", ".join(texts)

    def _node_text(self, node_id: str, free: tuple[int, ...]) -> str:
        if len(self.names) == 1:
            return f"{node_id} {number_text(self.names[0], free[0])}"
        return f"{node_id} ({self._amounts(free)})" if self.names else node_id

    def _amounts(self, free: tuple[int, ...]) -> str:
        if len(self.names) == 1:
            return number_text(self.names[0], free[0])
        return ", ".join(f"{number_text(n, a)} {n}" for n, a in zip(self.names, free, strict=True))

    def _figure(self, capacity: FreeCapacity, name: str) -> int:
        """The amount of a resource for one piece; of instances, the whole ones or the largest share."""
        free = max(capacity.free.get(name, 0), 0)
        if name not in capacity.instances:
            return free
        shares = capacity.instances[name].values()
        if all(part.request.get(name, 0) < SCALE for part in self.parts):
            return max(shares, default=0)
        return sum(share for share in shares if share == SCALE)

    def _whole_text(self, part: Part, slots: Slots) -> str:
        free = sorted({slot.node_id for slot in slots.all if self._copies_on(part, slot)})
        named = f" ({', '.join(free[:MOST_NODES])}{' …' if len(free) > MOST_NODES else ''})" if free else ""
        return f"{counted(len(free), 'node')} of template {part.template}{named}"

    # ---- counting ----

    def fits(self, slots: Slots) -> bool | None:
        """Whether all parts fit; None: unknown, for several kinds of pieces, a pack, and most split parts."""
        if not self.parts:
            return bool(slots.all)
        if not all(self._met(part, slots) for part in self.parts) or not self._in_total(slots):
            return False
        part = self.parts[0]
        if len(self.parts) > 1 or part.how == "pack":
            return None
        odd = any(amount % SCALE for amount in part.request.values())  # a fraction must lie in one piece
        return None if part.how == "split" and (len(part.request) > 1 or odd) else True

    def fits_with(self, slots: Slots, above: Sequence[Above]) -> bool | None:
        """Whether all parts fit if the cluster grows: on a node, the free capacity of all clusters counts."""
        if self.fits(slots) is True:
            return True
        if any(level.lends for level in above):
            return None
        requested = rs.total(
            {name: amount * part.count for name, amount in part.request.items()} for part in self.parts
        )
        for level in above:
            if any(
                requested.get(name, 0) - slots.free.get(name, 0) > level.allowance[name]
                for name in self.names
                if name in level.allowance
            ):
                return False
        nodes = slots.joined(above)
        pieces = [part for part in self.parts if part.how != "whole" and not part.selector]
        bound = _Request(pieces)
        return None if all(bound._met(part, nodes) for part in pieces) else False

    def _met(self, part: Part, slots: Slots) -> bool:
        if part.how == "split":
            return all(
                sum(self._obtainable(group[0].capacity, name, amount) * len(group) for group in slots.groups)
                >= amount
                for name, amount in part.request.items()
            )
        if part.how == "pack":
            free: dict[str, dict[str, int]] = {}
            for slot in slots.all:
                free[slot.node_id] = rs.add(free.get(slot.node_id, {}), slot.capacity.free)
            return any(rs.within(part.request, have) for have in free.values())
        by_node = part.how in ("distinct", "whole")
        if not (part.selector or slots.crowded):
            limit = 1 if by_node else part.count
            fitting = (min(self._copies_on(part, group[0]), limit) * len(group) for group in slots.groups)
        elif by_node:
            fitting = (1 for _ in {slot.node_id for slot in slots.all if self._copies_on(part, slot)})
        else:
            fitting = (min(self._copies_on(part, slot), part.count) for slot in slots.all)
        return sum(fitting) >= part.count

    def _copies_on(self, part: Part, slot: Slot) -> int:
        if part.how == "whole":
            return int(slot.template_id == part.template and slot.untouched)
        if not _matches(slot, part.selector):
            return 0
        key = (id(part), id(slot.capacity))
        known = self._copies.get(key)
        if known is None:
            known = self._copies[key] = copies(slot.capacity, part.request)
        return known

    def _obtainable(self, capacity: FreeCapacity, name: str, amount: int) -> int:
        """The most that a minimum could get of a resource here; of instances, whole ones or a share."""
        free = max(capacity.free.get(name, 0), 0)
        if name in capacity.instances:
            if amount < SCALE:
                return amount if any(share >= amount for share in capacity.instances[name].values()) else 0
            return capacity.whole_units(name) * SCALE
        return min(amount, free)

    def _in_total(self, slots: Slots) -> bool:
        if len(self.parts) == 1:
            return True
        first, last = self.parts[0], self.parts[-1]
        outside = [
            part
            for part in self.parts
            if part is first or part.how != "one" or last.how != "split"  # else the entrypoint in the minimum
        ]
        need = rs.total({n: a * part.count for n, a in part.request.items()} for part in outside)
        return rs.within(need, slots.free)


def copies(capacity: FreeCapacity, request: Amounts) -> int:
    """The number of copies of a request that fit."""
    count = UNBOUNDED
    for name, amount in request.items():
        if not amount:
            continue
        if name in capacity.instances:
            shares = capacity.instances[name].values()
            if amount >= SCALE:
                in_units = sum(share == SCALE for share in shares) // (amount // SCALE)
            else:
                in_units = sum(share // amount for share in shares)
            count = min(count, in_units)
        count = min(count, max(capacity.free.get(name, 0), 0) // amount)
    return count


def _matches(slot: Slot, selector: Selector) -> bool:
    return not selector or lb.matches(selector, slot.labels())


def _joined(left: FreeCapacity, right: FreeCapacity) -> FreeCapacity:
    """The sum of two free capacities: an upper bound of what growth on a node could give."""
    joined = left.copy()
    both = rs.merged(Allocation(left.free, left.instances), Allocation(right.free, right.instances))
    joined.free, joined.instances = both.amounts, both.instances
    return joined
