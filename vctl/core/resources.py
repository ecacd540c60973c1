"""Exact resource amounts, numbered unit instances, and what is free on a virtual node.

Amounts are integers of 1/10000 (as in Ray's fixed-point resources); floats never reach a comparison.
The module knows nothing of nodes, clusters or jobs: it answers "does this fit here?" and "which instances?".
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter, is_
from typing import Any

from vctl.core.values import field, value

SCALE = 10_000
"""Internal units per whole resource: 1 CPU is 10000."""

Amounts = Mapping[str, int]
"""Resource name -> amount in 1/10000; a missing name means 0."""

CPU, GPU, MEMORY, OBJECT_STORE_MEMORY = "CPU", "GPU", "memory", "object_store_memory"
DEFAULT_UNITS = frozenset({GPU})
"""Resources that consist of numbered instances, unless the configuration lists more."""


@value(frozen=True, slots=True)
class Allocation:
    """The resources of one holder on one virtual node: amounts, numbered instances and core ids.

    ``instances[name][index]`` is the share of that instance in 1/10000 (10000 is the whole of it); for a unit
    resource the shares sum to ``amounts[name]``. ``cores`` are core ids, booked when the CPU amount is whole.
    """

    amounts: Amounts
    instances: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    cores: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.amounts.items())), self.cores))

    @property
    def bound_cores(self) -> tuple[int, ...] | None:
        """The cores to which processes are bound; None if they are not as many as the CPUs."""
        whole = bool(self.cores) and len(self.cores) * SCALE == self.amounts.get(CPU, 0)
        return self.cores if whole else None


EMPTY = Allocation({})
NO_FENCES: Mapping[str, Mapping[int, int]] = {}


def add(left: Amounts, right: Amounts) -> dict[str, int]:
    """Sum per resource."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtract(left: Amounts, right: Amounts) -> dict[str, int]:
    """Difference per resource; may be negative."""
    rest = dict(left)
    for name, amount in right.items():
        rest[name] = rest.get(name, 0) - amount
    return rest


def beyond(amounts: Amounts, less: Amounts) -> dict[str, int]:
    """What of these amounts exceeds others."""
    return {name: a - less.get(name, 0) for name, a in amounts.items() if a > less.get(name, 0)}


def least_of(one: Amounts, other: Amounts) -> dict[str, int]:
    """What is in both amounts."""
    return {name: least for name, a in one.items() if (least := min(a, other.get(name, 0))) > 0}


def maximum(left: Amounts, right: Amounts) -> dict[str, int]:
    """The larger amount per resource."""
    largest = dict(left)
    for name, amount in right.items():
        if amount > largest.get(name, 0):
            largest[name] = amount
    return largest


def total(many: Iterable[Amounts]) -> dict[str, int]:
    """Sum of many amounts per resource."""
    result: dict[str, int] = {}
    for amounts in many:
        for name, amount in amounts.items():
            result[name] = result.get(name, 0) + amount
    return result


def within(small: Amounts, large: Amounts) -> bool:
    """True when every amount of ``small`` is at most that of ``large``."""
    return all(amount <= large.get(name, 0) for name, amount in small.items())


def shape_of(amounts: Amounts) -> tuple[tuple[str, int], ...]:
    """A canonical, hashable form without zeros: equal shapes fit the same places."""
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def is_unit_request(amount: int) -> bool:
    """Whether a unit resource can be requested in this amount: a whole number, or a share of one instance."""
    return amount < SCALE or amount % SCALE == 0


def in_requests(amounts: Amounts, units: Container[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Amounts as what can be requested: the first with whole instances of unit resources, and the shares beside them.

    Of a unit resource a cluster may have one and a half, and so a remainder may be that; a request may not.
    """
    shares = {n: a % SCALE for n, a in amounts.items() if n in units and not is_unit_request(a)}
    return subtract(amounts, shares), shares


@lru_cache(maxsize=1024)
def _core_set(cores: tuple[int, ...]) -> frozenset[int]:
    """The core ids as a set; equal tuples share one set."""
    return frozenset(cores)


class FreeCapacity:
    """The free capacity of one virtual node. Decisions and commits use the same predicate ``fits``.

    Whole unit instances are taken lowest index first. A share is taken from the fullest shared instance in
    which it fits; only without such an instance it splits a whole one.

    ``free``, ``instances`` and ``cores`` are never changed in place: every change replaces them. So equal
    virtual nodes share them, a copy is cheap, and the same change of many of them is computed once.

    Of a fenced instance nothing is free: what nobody holds of it lies in ``fenced`` until the fence is lifted, also
    what its holders give back meanwhile.
    """

    __slots__ = ("all_cores", "cores", "fenced", "free", "instances", "missing_cores", "total")

    free: Amounts
    instances: Mapping[str, Mapping[int, int]]
    cores: frozenset[int]
    missing_cores: frozenset[int]
    """Cores that are held although the node no longer has them."""
    fenced: Mapping[str, Mapping[int, int]]
    """Unit resource -> fenced instance -> the share of it that nobody holds, and that nobody gets."""

    def __init__(self, allocation: Allocation) -> None:
        self.total = allocation
        self.free, self.instances = allocation.amounts, allocation.instances
        self.all_cores = self.cores = _core_set(allocation.cores)
        self.missing_cores, self.fenced = _core_set(()), NO_FENCES

    def copy(self) -> FreeCapacity:
        """An independent copy, for trials."""
        copy = FreeCapacity.__new__(FreeCapacity)
        copy.total, copy.all_cores = self.total, self.all_cores
        copy.free, copy.instances = self.free, self.instances
        copy.cores, copy.missing_cores, copy.fenced = self.cores, self.missing_cores, self.fenced
        return copy

    def fence(self, numbers: Mapping[str, Collection[int]]) -> None:
        """Fence exactly these instances of unit resources, those of them that are in this virtual node."""
        free, instances = dict(self.free), {name: dict(shares) for name, shares in self.instances.items()}
        for name, shares in self.fenced.items():
            for index, share in shares.items():
                free[name] += share
                instances[name][index] += share
        fenced: dict[str, dict[int, int]] = {}
        for name in numbers.keys() & instances.keys():
            have = instances[name]
            for index in have.keys() & set(numbers[name]):
                fenced.setdefault(name, {})[index] = share = max(have[index], 0)
                free[name] -= share
                have[index] -= share
        self.free, self.instances, self.fenced = free, instances, fenced or NO_FENCES
        self._share_if_untouched()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Inside, nothing is fenced: for changes of what is held, which ask for no room."""
        fenced = self.fenced
        self.fence({})
        try:
            yield
        finally:
            self.fence(fenced)

    def fits(self, request: Amounts) -> bool:
        """Whether the request can be taken now, its instances included."""
        free = self.free
        for name, amount in request.items():
            if amount and amount > free.get(name, 0):
                return False
        if self.instances:
            for name, amount in request.items():
                if amount and name in self.instances and self.pick(name, amount) is None:
                    return False
        return True

    def pick(self, name: str, amount: int) -> dict[int, int] | None:
        """The instances of a unit resource that a request would get, or None if it does not fit."""
        shares = self.instances[name]
        if amount >= SCALE:
            if amount % SCALE:
                return None
            whole = [index for index in sorted(shares) if shares[index] == SCALE][: amount // SCALE]
            return dict.fromkeys(whole, SCALE) if len(whole) * SCALE == amount else None
        fitting = [(free, index) for index, free in shares.items() if free >= amount]
        return {min(fitting)[1]: amount} if fitting else None

    def whole_units(self, name: str) -> int:
        """The number of whole units of a resource that one flexible part could take."""
        free = max(self.free.get(name, 0), 0) // SCALE
        if name in self.instances:
            return min(free, sum(1 for share in self.instances[name].values() if share == SCALE))
        return free

    def take(self, request: Amounts) -> Allocation:
        """Take a request, which must fit; returns exactly what was taken."""
        assert self.fits(request), (request, self.free)
        allocation = self.choice(request)
        self.take_exactly(allocation)
        return allocation

    def choice(self, request: Amounts) -> Allocation:
        """The allocation that a fitting request would get."""
        instances = {
            name: self.pick(name, amount) or {}
            for name, amount in request.items()
            if amount and name in self.instances
        }
        return Allocation(dict(request), instances, self.pick_cores(request.get(CPU, 0)))

    def pick_cores(self, cpu: int) -> tuple[int, ...]:
        """The core ids for this amount of CPU: none if it is a fraction, or if too few cores are free."""
        is_whole = cpu % SCALE == 0 and len(self.cores) * SCALE >= cpu
        return tuple(sorted(self.cores)[: cpu // SCALE]) if is_whole else ()

    def has_free(self) -> bool:
        """Whether any amount is free."""
        return any(amount > 0 for amount in self.free.values())

    def all_free(self) -> Allocation:
        """Everything that is free, as one allocation."""
        shares = {n: {i: s for i, s in have.items() if s > 0} for n, have in self.instances.items()}
        amounts = {name: amount for name, amount in self.free.items() if amount > 0}
        return Allocation(amounts, {n: some for n, some in shares.items() if some}, tuple(sorted(self.cores)))

    def more_than(self, other: FreeCapacity) -> Allocation:
        """What this capacity has free and the other one has not."""
        instances: dict[str, dict[int, int]] = {}
        for name, have in self.instances.items():
            rest = other.instances.get(name, {})
            if more := {i: s - rest.get(i, 0) for i, s in have.items() if s > rest.get(i, 0)}:
                instances[name] = more
        cores = tuple(sorted(self.cores - other.cores))
        return Allocation(beyond(self.free, other.free), instances, cores)

    def take_most(self, requested: Allocation) -> Allocation:
        """Take the part of an allocation that is free, of the same instances but of any cores; returns it."""
        amounts: dict[str, int] = {}
        instances: dict[str, dict[int, int]] = {}
        for name, amount in requested.amounts.items():
            if name in self.instances:
                have = self.instances[name]
                parts = {i: min(s, have.get(i, 0)) for i, s in requested.instances.get(name, {}).items()}
                if parts := {index: share for index, share in parts.items() if share > 0}:
                    instances[name], amounts[name] = parts, sum(parts.values())
            else:
                amounts[name] = max(0, min(amount, self.free.get(name, 0)))
        cores = tuple(sorted(self.cores)[: amounts.get(CPU, 0) // SCALE])
        allocation = Allocation(
            {name: amount for name, amount in amounts.items() if amount}, instances, cores
        )
        self.take_exactly(allocation)
        return allocation

    def fits_exactly(self, allocation: Allocation) -> bool:
        """Whether this allocation, with its instances and cores, is free."""
        if any(amount > self.free.get(name, 0) for name, amount in allocation.amounts.items() if amount):
            return False
        for name, shares in allocation.instances.items():
            have = self.instances.get(name, {})
            if any(share > have.get(index, 0) for index, share in shares.items()):
                return False
        return self.cores.issuperset(allocation.cores)

    def take_exactly(self, allocation: Allocation) -> None:
        """Take named instances and cores; the caller has checked ``fits_exactly``."""
        if not self._repeat(_last_taken, allocation):
            before, free = _state(self), dict(self.free)
            for name, amount in allocation.amounts.items():
                free[name] = free.get(name, 0) - amount
                assert free[name] >= 0, (name, free[name], allocation)
            instances = dict(self.instances)
            for name, shares in allocation.instances.items():
                have = instances[name] = dict(instances[name])
                for index, share in shares.items():
                    have[index] -= share
                    assert have[index] >= 0, (name, index, allocation)
            assert self.cores.issuperset(allocation.cores), (self.cores, allocation)
            self.free, self.cores = free, self.cores.difference(allocation.cores)
            if allocation.instances:
                self.instances = instances
            _last_taken[0] = allocation, before, _state(self)

    def _repeat(self, last: _Last, allocation: Allocation) -> bool:
        """Apply the result of the last change if allocation and state are the same objects; else False."""
        what, before, after = last[0]
        if what is not allocation or not all(map(is_, _state(self), before)):
            return False
        _, self.free, self.instances, self.cores, self.missing_cores = after
        return True

    def take_beyond(self, allocation: Allocation) -> None:
        """Take an allocation that was made before the total shrank: the free amounts may become negative."""
        if self.fenced and allocation.instances:
            with self._open():
                self.take_beyond(allocation)
            return
        self.free = subtract(self.free, allocation.amounts)
        instances = dict(self.instances)
        for name, shares in allocation.instances.items():
            have = instances[name] = dict(instances.get(name, {}))
            for index, share in shares.items():
                have[index] = have.get(index, 0) - share
        self.instances = instances
        self.missing_cores |= frozenset(allocation.cores) - self.cores
        self.cores -= frozenset(allocation.cores)

    def is_overdrawn(self) -> bool:
        """Whether more is held than the total."""
        if self.missing_cores or min(self.free.values(), default=0) < 0:
            return True
        return any(min(shares.values(), default=0) < 0 for shares in self.instances.values())

    def take_decided(self, allocation: Allocation) -> None:
        """Take what was decided before, also of instances that have been fenced since."""
        if self.fenced and allocation.instances:
            with self._open():
                self.take_exactly(allocation)
        else:
            self.take_exactly(allocation)

    def give_back(self, allocation: Allocation) -> None:
        """Give back what ``take`` or ``take_exactly`` took."""
        if self.fenced and allocation.instances:
            with self._open():
                self.give_back(allocation)
            return
        if self._repeat(_returned, allocation):
            return
        before, free = _state(self), dict(self.free)
        for name, amount in allocation.amounts.items():
            free[name] = free.get(name, 0) + amount
            assert free[name] <= self.total.amounts.get(name, 0), (name, allocation)
        instances = dict(self.instances)
        for name, shares in allocation.instances.items():
            have, whole = dict(instances[name]), self.total.instances.get(name, {})
            for index, share in shares.items():
                have[index] += share
                assert have[index] <= whole.get(index, 0), (name, index, allocation)
                if index not in whole and not have[index]:
                    del have[index]
            instances[name] = have
        self.free = free
        if allocation.instances:
            self.instances = instances
        if allocation.cores:
            self.cores |= frozenset(allocation.cores) - self.missing_cores
            self.missing_cores -= frozenset(allocation.cores)
        self._share_if_untouched()
        _returned[0] = allocation, before, _state(self)

    def _share_if_untouched(self) -> None:
        """Share the values of the total again where nothing is held, so that equal virtual nodes are quickly equal."""
        if self.is_untouched():
            self.free, self.instances = self.total.amounts, self.total.instances
            self.cores = self.all_cores

    def resize(self, allocation: Allocation) -> None:
        """Change the total in place (a flexible vnode or a node whose totals changed); what is held stays.

        The free amounts change by the difference. They become negative when a node shrinks below what is
        held; then nothing fits until enough of that was given back.
        """
        if self.fenced:
            with self._open():
                self.resize(allocation)
            return
        old, free = self.total, dict(self.free)
        for name in dict.fromkeys((*old.amounts, *allocation.amounts)):
            delta = allocation.amounts.get(name, 0) - old.amounts.get(name, 0)
            free[name] = free.get(name, 0) + delta
            if not free[name] and name not in allocation.amounts:
                del free[name]  # so that equal free capacities compare equal
        instances = dict(self.instances)
        for name in dict.fromkeys((*old.instances, *allocation.instances)):
            before, after = old.instances.get(name, {}), allocation.instances.get(name, {})
            have = instances[name] = dict(instances.get(name, {}))
            for index in {*before, *after}:
                have[index] = have.get(index, 0) + after.get(index, 0) - before.get(index, 0)
                if index not in after and have[index] == 0:
                    del have[index]
            if not have and name not in allocation.instances:
                del instances[name]
        held = (self.all_cores - self.cores) | self.missing_cores
        self.free, self.instances = free, instances
        self.total, self.all_cores = allocation, _core_set(allocation.cores)
        self.cores, self.missing_cores = self.all_cores - held, held - self.all_cores

    def is_unheld(self) -> bool:
        """Whether nobody holds anything here, even if a part of it is fenced."""
        if not self.fenced:
            return self.is_untouched()
        copy = self.copy()
        copy.fence({})
        return copy.is_untouched()

    def is_untouched(self) -> bool:
        """Whether all of it could be taken: nothing is held or fenced, no amount, no instance and no core."""
        total, free = self.total, self.free
        for name, amount in total.amounts.items():
            if free.get(name, 0) != amount:
                return False
        return (
            (len(free) == len(total.amounts) or shape_of(free) == shape_of(total.amounts))
            and self.instances == total.instances
            and self.cores == self.all_cores
            and not self.missing_cores
        )


_Last = list[tuple[Allocation, tuple[Any, ...], tuple[Any, ...]]]
_state = attrgetter("total", "free", "instances", "cores", "missing_cores")
_last_taken: _Last = [(EMPTY, (None,), ())]
"""The last allocation taken, the state before and after: a gang mostly takes equal pieces of equal nodes."""
_returned: _Last = [(EMPTY, (None,), ())]
"""The last allocation given back, the state before and after."""


def whole_node(
    amounts: Amounts, units: Iterable[str] = DEFAULT_UNITS, cores: Iterable[int] | None = None
) -> Allocation:
    """The allocation of a whole machine: unit resources get instances 0..n-1, CPUs get core ids.

    Core ids default to 0..floor(CPU)-1 (a simulated node).
    """
    instances = {
        name: dict.fromkeys(range(amounts[name] // SCALE), SCALE) for name in units if amounts.get(name)
    }
    ids = tuple(range(amounts.get(CPU, 0) // SCALE)) if cores is None else tuple(sorted(cores))
    return Allocation(dict(amounts), instances, ids)


Part = str | tuple[str, int]
"""A resource without instances (its name), or one numbered instance (name, index)."""


def parts_of(allocation: Allocation) -> dict[Part, int]:
    """The amounts of an allocation by part."""
    found: dict[Part, int] = {
        n: a for n, a in allocation.amounts.items() if a and n not in allocation.instances
    }
    for name, shares in allocation.instances.items():
        for index, share in shares.items():
            found[name, index] = share
    return found


def level(taken: Iterable[Mapping[Part, int]], back: Iterable[Mapping[Part, int]]) -> dict[Part, int]:
    """What is taken, less what comes back of that."""
    left: dict[Part, int] = {}
    for parts in taken:
        for part, amount in parts.items():
            left[part] = left.get(part, 0) + amount
    for parts in back:
        for part, amount in parts.items():
            if part in left:
                left[part] -= amount
    return left


def merged(left: Allocation, right: Allocation) -> Allocation:
    """The sum of two allocations of one holder on one virtual node."""
    instances = {name: dict(shares) for name, shares in left.instances.items()}
    for name, shares in right.instances.items():
        mine = instances.setdefault(name, {})
        for index, share in shares.items():
            mine[index] = mine.get(index, 0) + share
    return Allocation(add(left.amounts, right.amounts), instances, tuple(sorted({*left.cores, *right.cores})))


def difference(large: Allocation, small: Allocation) -> Allocation:
    """What an allocation has beyond another one inside it."""
    instances: dict[str, dict[int, int]] = {}
    for name, shares in large.instances.items():
        had = small.instances.get(name, {})
        more = {
            index: share - had.get(index, 0) for index, share in shares.items() if share != had.get(index, 0)
        }
        if more:
            instances[name] = more
    amounts = {n: a for n, a in subtract(large.amounts, small.amounts).items() if a}
    return Allocation(amounts, instances, tuple(sorted(set(large.cores) - set(small.cores))))
