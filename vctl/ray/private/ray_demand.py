"""Computes the raylets that a Ray lacks: nodes for the pending demand that fits no present raylet. Pure."""

import math

MYPY = False
if MYPY:
    from collections.abc import Iterable

    Amounts = dict[str, float]
    Where = dict[str, str]
    Place = tuple[Amounts, Where]
    """The free resources of a raylet, and its labels."""
    Node = tuple[Amounts, Where, bool]
    """A lacking node: its resources, its label selectors, and whether a smaller node would help too."""

SPREAD, PACK = "STRICT_SPREAD", "STRICT_PACK"
_WHOLE = ("CPU", "GPU", "memory", "object_store_memory")


def lacking(
    free: "Iterable[Place]",
    requests: "Iterable[tuple[Amounts, Where, int]]",
    gangs: "Iterable[tuple[str, list[Amounts]]]",
    most: "Amounts",
    scale: int,
) -> "list[Node]":
    """The nodes by which a Ray has to grow; none for demand that no new node can hold.

    Places the demand first-fit, the largest requests first: first the gangs, then the requests. A shape that
    does not fit becomes one node for as many of its requests as fit there. The bundles of a gang that do not
    fit become one node; for STRICT_SPREAD, one node each.

    ``free``: the free resources and labels of each raylet. A raylet that has not joined yet counts too, with
    the label selectors of its task instead of labels. ``requests``: shape, label selectors, count.
    ``gangs``: strategy and bundles of placement groups. ``most``: the largest new node; a resource that is
    missing there has no limit. ``scale``: a new node for requests holds only one ``scale``-th of the
    requests that would fit.
    """
    places = [(dict(amounts), labels) for amounts, labels in free]
    found: list[Node] = []
    for strategy, asked in gangs:
        bundles = [total(asked)] if strategy == PACK else asked
        taken: set[int] = set()
        rest = []
        for bundle in sorted(bundles, key=_size, reverse=True):
            place = _place(places, bundle, {}, taken)
            if place is None:
                rest.append(bundle)
            elif strategy == SPREAD:
                taken.add(place)
        apart = rest if strategy == SPREAD else [total(rest)] if rest else []
        if all(times(bundle, most) for bundle in apart):
            found += [(whole(bundle), {}, False) for bundle in apart]
    for shape, where, count in sorted(requests, key=lambda one: _size(one[0]), reverse=True):
        if not any(shape.values()):
            continue
        left = count
        while left and _place(places, shape, where, set()) is not None:
            left -= 1
        if fits := min(left, times(shape, most)):
            number = max(fits // scale, 1)
            found.append(
                (whole({name: amount * number for name, amount in shape.items()}), where, number > 1)
            )
    return found


def times(shape: "Amounts", most: "Amounts") -> int:
    """How often a shape fits a node of the size ``most``; a shape without limits fits 2**30 times."""
    fits = [
        math.floor(most[name] / amount + 1e-9) for name, amount in shape.items() if amount and name in most
    ]
    return max(min(fits, default=1 << 30), 0)


def whole(amounts: "Amounts") -> "Amounts":
    """Round the standard resources up, because a Ray node has whole amounts of them; drops zero amounts."""
    return {name: math.ceil(a - 1e-9) if name in _WHOLE else a for name, a in amounts.items() if a}


def total(bundles: "Iterable[Amounts]") -> "Amounts":
    """The sum of bundles."""
    found: Amounts = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            found[name] = found.get(name, 0) + amount
    return found


def less(amounts: "Amounts", part: "Amounts") -> "Amounts":
    """``amounts`` minus ``part``, never below 0."""
    return {name: max(amount - part.get(name, 0), 0) for name, amount in amounts.items()}


def matches(where: "Where", labels: "Where") -> bool:
    """Whether labels match selectors. Equal ``labels`` match: they may be selectors (see ``lacking``)."""
    return where == labels or all(_is_one(text, labels.get(key)) for key, text in where.items())


def _is_one(text: str, label: str | None) -> bool:
    if text.startswith("!"):
        return not _is_one(text[1:], label)
    return label in (text[3:-1].split(",") if text.startswith("in(") else [text])


def _place(places: "list[Place]", bundle: "Amounts", where: "Where", taken: set[int]) -> int | None:
    for number, (place, labels) in enumerate(places):
        fits = all(place.get(name, 0) >= amount - 1e-9 for name, amount in bundle.items() if amount)
        if number not in taken and fits and matches(where, labels):
            for name, amount in bundle.items():
                place[name] = place.get(name, 0) - amount
            return number
    return None


def _size(amounts: "Amounts") -> "tuple[float, ...]":
    return (amounts.get("GPU", 0), amounts.get("CPU", 0), amounts.get("memory", 0), sum(amounts.values()))
