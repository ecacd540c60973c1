"""Which raylets a Ray lacks: what of its pending demand fits no raylet, as nodes that it could have. Pure."""

import math

MYPY = False
if MYPY:
    from collections.abc import Iterable

    Amounts = dict[str, float]
    Where = dict[str, str]
    Place = tuple[Amounts, Where]
    """What a raylet has free, and its labels."""
    Node = tuple[Amounts, Where, bool]
    """What a node that is lacking is to have, the label selectors that it has to match, and whether less would do."""

SPREAD, PACK = "STRICT_SPREAD", "STRICT_PACK"
_WHOLE = ("CPU", "GPU", "memory", "object_store_memory")


def lacking(
    free: "Iterable[Place]",
    requests: "Iterable[tuple[Amounts, Where, int]]",
    gangs: "Iterable[tuple[str, list[Amounts]]]",
    most: "Amounts",
    scale: int,
) -> "list[Node]":
    """The nodes by which a Ray has to grow, as few as possible; none for what no node can ever hold.

    ``free``: what each raylet has free, that of the raylets that are to come included (in place of their labels, the
    selectors with which they were asked for). ``requests``: shape, label selectors, count. ``gangs``: strategy and
    bundles of placement groups. ``most``: what a new node has at most; a resource that is missing there has no limit.
    ``scale``: by how much a node is smaller than it could be.
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
    """How often a request fits a node of that size."""
    fits = [
        math.floor(most[name] / amount + 1e-9) for name, amount in shape.items() if amount and name in most
    ]
    return max(min(fits, default=1 << 30), 0)


def whole(amounts: "Amounts") -> "Amounts":
    """Amounts that a node of Ray can have."""
    return {name: math.ceil(a - 1e-9) if name in _WHOLE else a for name, a in amounts.items() if a}


def total(bundles: "Iterable[Amounts]") -> "Amounts":
    """The sum of amounts."""
    found: Amounts = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            found[name] = found.get(name, 0) + amount
    return found


def less(amounts: "Amounts", part: "Amounts") -> "Amounts":
    """What is left of amounts, never below 0."""
    return {name: max(amount - part.get(name, 0), 0) for name, amount in amounts.items()}


def matches(where: "Where", labels: "Where") -> bool:
    """Whether labels are as the selectors want them, or are those selectors."""
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
