"""Demand: what clusters, running and waiting jobs ask of nodes. By it some nodes are scarce.

A request is one piece: its selector and amounts, or a template. Nodes that hold the same requests have the
same trait. The scarcity of a node is the number of requests that would come to it if each went evenly to all
nodes that could ever hold it. Requests that the same nodes hold count once, so the number of jobs does not
matter; a request that all nodes hold, or none, says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from vctl.core import labels as lb
from vctl.core.clusters import ClusterSpec
from vctl.core.labels import Selector
from vctl.core.node_kinds import NodeKind
from vctl.core.resources import SCALE, Amounts, shape_of, within

NOTHING: Amounts = {}
MOST_KNOWN = 1_000
"""The number of specs and of node counts for which answers are remembered."""
EVENLY = 10**9
"""The weight of a request, of which each node that could hold it gets an equal part."""


class Request(NamedTuple):
    """What one piece asks of its node: labels and amounts, or the template of a whole node."""

    selector: Selector
    amounts: tuple[tuple[str, int], ...]
    template: str = ""


class _Traits:
    """The traits by number, with an example of each. ``keys``: the label keys that some selector names."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = tuple(sorted(keys))
        self.numbers: dict[object, int] = {}
        self.examples: list[NodeKind] = []

    def of(self, kind: NodeKind) -> int:
        if kind.trait[0] is not self:
            labels = tuple(map(kind.labels.get, self.keys))
            amounts = tuple(sorted(kind.amounts.items()))
            number = self.numbers.setdefault((labels, kind.template_id, amounts), len(self.examples))
            if number == len(self.examples):
                self.examples.append(kind)
            kind.trait = (self, number)
        return kind.trait[1]

    def hold(self, request: Request, first: int = 0) -> int:
        """The traits from ``first`` on whose empty nodes hold a request, a bit for each."""
        amounts, matching = dict(request.amounts), 0
        for number in range(first, len(self.examples)):
            kind = self.examples[number]
            if request.template in ("", kind.template_id) and within(amounts, kind.amounts):
                matching |= lb.matches(request.selector, kind.labels) << number
        return matching


class Demand:
    """The different requests of all sources: clusters by id, scheduling classes of waiting work by queue."""

    def __init__(self) -> None:
        self._sources: dict[object, tuple[Request, ...]] = {}
        self._requests: dict[Request, int] = {}
        """Request -> the number of sources that have it."""
        self._keys: Counter[str] = Counter()
        self._traits = _Traits(())
        self._seen = 0
        """The number of traits that ``_masks`` knows."""
        self._masks: dict[Request, int] = {}
        """Request -> the traits that hold it, a bit for each."""
        self._patterns: Counter[int] = Counter()
        """Traits that hold a request together -> the number of such requests."""
        self._edition: object = None
        """The edition; None: to be made again."""
        self._known: dict[frozenset[tuple[int, int]], dict[int, int] | None] = {}
        self._of_spec: dict[int, tuple[ClusterSpec, tuple[Request, ...]]] = {}

    def copy(self) -> Demand:
        """An independent copy."""
        copy = Demand()
        copy._sources, copy._requests = dict(self._sources), dict(self._requests)
        copy._keys = self._keys.copy()
        copy._edition, copy._traits, copy._seen = self._edition, self._traits, self._seen
        copy._masks, copy._patterns, copy._known = dict(self._masks), self._patterns.copy(), dict(self._known)
        return copy

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def edition(self) -> object:
        """What the scarcity of given nodes depends on: where editions are equal, so is the scarcity of each node.

        A request that all nodes hold, or none, is no part of it: such jobs come and go all the time.
        """
        if self._edition is None:
            all_traits = (1 << len(self._traits.examples)) - 1
            self._edition = (self._traits, frozenset(self._patterns) - {0, all_traits})
        return self._edition

    def ask(
        self, source: object, spec: ClusterSpec, entry: Amounts = NOTHING, *, whole: bool = False
    ) -> None:
        """Set the requests of a source by a spec and the entrypoint; ``whole``: also those of its whole nodes."""
        requests = self._requests_of(spec) if spec.groups or spec.flexible_min else ()
        if entry and (key := shape_of(entry)):
            requests = tuple(dict.fromkeys((*requests, Request((), key))))
        if whole and spec.replica_sets:
            requests += tuple(Request((), (), template) for template in spec.replica_sets)
        self.put(source, requests)

    def _requests_of(self, spec: ClusterSpec) -> tuple[Request, ...]:
        """The requests of a spec; those of equal jobs are found once, as they mostly share their spec."""
        known = self._of_spec.get(id(spec))
        if known is None or known[0] is not spec:
            if len(self._of_spec) >= MOST_KNOWN:
                self._of_spec.clear()
            known = self._of_spec[id(spec)] = (spec, tuple(_requests(spec)))
        return known[1]

    def put(self, source: object, requests: tuple[Request, ...] = ()) -> None:
        """Set the requests of a source; without requests it is none any more."""
        if not requests and source not in self._sources:
            return  # most clusters of jobs ask for nothing
        old = self._sources.get(source, ())
        if old is requests or old == requests:
            return
        if requests:
            self._sources[source] = requests
        else:
            del self._sources[source]
        for request in requests:
            self._requests[request] = count = self._requests.get(request, 0) + 1
            if count == 1:
                self._come(request)
        for request in old:
            self._requests[request] -= 1
            if not self._requests[request]:
                del self._requests[request]
                self._go(request)

    def _come(self, request: Request) -> None:
        mask = self._masks[request] = self._traits.hold(request)
        self._patterns[mask] += 1
        if self._patterns[mask] == 1:
            self._note_change()
        for condition in request.selector:
            self._keys[condition.key] += 1
            if condition.key not in self._traits.keys:
                self._begin_again()

    def _go(self, request: Request) -> None:
        self._drop_pattern(self._masks.pop(request))
        for condition in request.selector:
            self._keys[condition.key] -= 1
            if not self._keys[condition.key]:
                del self._keys[condition.key]  # nodes may stay apart by it until another label is named

    def _drop_pattern(self, mask: int) -> None:
        self._patterns[mask] -= 1
        if not self._patterns[mask]:
            del self._patterns[mask]
            self._note_change()

    def _note_change(self) -> None:
        self._known.clear()
        self._edition = None

    def _begin_again(self) -> None:
        """Tell nodes apart by one more label."""
        self._traits, self._seen = _Traits(self._keys), 0
        self._masks = dict.fromkeys(self._masks, 0)
        self._patterns = Counter({0: len(self._masks)})
        self._note_change()

    def scarcity(self, nodes: Iterable[tuple[NodeKind, int]]) -> Scarcity | None:
        """The scarcity of the nodes of each kind among these (kind, number of nodes); None: all are alike."""
        if not self._requests:
            return None
        counts: dict[int, int] = {}
        for kind, count in nodes:
            trait = self._traits.of(kind)
            counts[trait] = counts.get(trait, 0) + count
        if len(counts) < 2:
            return None
        if self._seen < len(self._traits.examples):
            self._see_new_traits()
        key = frozenset(counts.items())
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._ranks(counts)
        ranks = self._known[key]
        return None if ranks is None else Scarcity(self._traits, ranks)

    def _see_new_traits(self) -> None:
        for request, mask in self._masks.items():
            if more := self._traits.hold(request, self._seen):
                self._drop_pattern(mask)
                self._masks[request] = mask | more
                self._patterns[mask | more] += 1
        self._seen = len(self._traits.examples)
        self._note_change()

    def _ranks(self, counts: Mapping[int, int]) -> dict[int, int] | None:
        present = sum(1 << trait for trait in counts)
        weights = dict.fromkeys(counts, 0)
        for mask in {pattern & present for pattern in self._patterns} - {0, present}:
            inside = list(_bits(mask))
            share = EVENLY // max(sum(counts[trait] for trait in inside), 1)
            for trait in inside:
                weights[trait] += share
        order = {weight: rank for rank, weight in enumerate(sorted(set(weights.values())))}
        return {trait: order[weight] for trait, weight in weights.items()} if len(order) > 1 else None


class Scarcity:
    """The rank of the scarcity of each kind of nodes: 0 for those that fewest requests need."""

    def __init__(self, traits: _Traits, ranks: Mapping[int, int]) -> None:
        self._traits, self._ranks = traits, ranks

    def of(self, kind: NodeKind) -> int:
        """The rank of a kind."""
        return self._ranks.get(self._traits.of(kind), 0)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _requests(spec: ClusterSpec) -> dict[Request, None]:
    """The different requests of a spec, without its whole nodes.

    A flexible minimum may be split, so it asks for no more than one unit of a resource on a node.
    """
    requests: dict[Request, None] = {}
    for group in spec.groups:
        last = None
        for node in group.nodes:
            if last is None or node.resources is not last.resources or node.selector != last.selector:
                last = node  # equal bundles mostly share their resources
                requests[Request(node.selector, shape_of(node.resources))] = None
    if key := shape_of({name: min(amount, SCALE) for name, amount in spec.flexible_min.items()}):
        requests[Request((), key)] = None
    return requests
