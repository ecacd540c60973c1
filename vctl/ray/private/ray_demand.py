"""Computes the raylets that a Ray lacks: nodes for the pending demand that fits no present raylet. Pure."""

import math

MYPY = False
if MYPY:
    from collections.abc import Iterable

    Amounts = dict[str, float]
    Where = dict[str, str]
    Raylet = tuple[Amounts, Where]
    """The free resources of a raylet, and its labels."""
    Node = tuple[Amounts, Where, bool]
    """A lacking node: its resources, its label selectors, and whether a smaller node would help too."""

SPREAD, PACK = "STRICT_SPREAD", "STRICT_PACK"
_WHOLE = ("CPU", "GPU", "memory", "object_store_memory")


def lacking(
    free: "Iterable[Raylet]",
    requests: "Iterable[tuple[Amounts, Where, int]]",
    gangs: "Iterable[tuple[str, list[Amounts]]]",
    limit: "Amounts",
    scale: int,
) -> "list[Node]":
    """The nodes by which a Ray has to grow; none for demand that no new node can hold.

    Places the demand first-fit, the largest requests first: first the gangs, then the requests. A shape that
    does not fit becomes one node for as many of its requests as fit there. The bundles of a gang that do not
    fit become one node; for STRICT_SPREAD, one node each.

    ``free``: the free resources and labels of each raylet. A raylet that has not joined yet counts too, with
    the label selectors of its task instead of labels. ``requests``: shape, label selectors, count.
    ``gangs``: strategy and bundles of placement groups. ``limit``: the largest new node; a resource that is
    missing there has no limit. ``scale``: a new node for requests holds only one ``scale``-th of the
    requests that would fit.
    """
    raylets = [(dict(amounts), labels) for amounts, labels in free]
    nodes: list[Node] = []
    for strategy, bundles in gangs:
        in_use: set[int] = set()
        rest = []
        for bundle in sorted([total(bundles)] if strategy == PACK else bundles, key=_size, reverse=True):
            number = _fit(raylets, bundle, {}, in_use)
            if number is None:
                rest.append(bundle)
            elif strategy == SPREAD:
                in_use.add(number)
        apart = rest if strategy == SPREAD else [total(rest)] if rest else []
        if all(times(bundle, limit) for bundle in apart):
            nodes += [(whole(bundle), {}, False) for bundle in apart]
    for shape, where, count in sorted(requests, key=lambda request: _size(request[0]), reverse=True):
        if not any(shape.values()):
            continue
        remaining = count
        while remaining and _fit(raylets, shape, where, set()) is not None:
            remaining -= 1
        if fits := min(remaining, times(shape, limit)):
            times_one = max(fits // scale, 1)
            node = whole({name: amount * times_one for name, amount in shape.items()})
            nodes.append((node, where, times_one > 1))
    return nodes


def times(shape: "Amounts", limit: "Amounts") -> int:
    """How often a shape fits a node of the size ``limit``; a shape without limits fits 2**30 times."""
    fits = [
        math.floor(limit[name] / amount + 1e-9) for name, amount in shape.items() if amount and name in limit
    ]
    return max(min(fits, default=1 << 30), 0)


def whole(amounts: "Amounts") -> "Amounts":
    """Round the standard resources up, because a Ray node has whole amounts of them; drops zero amounts."""
    return {name: math.ceil(a - 1e-9) if name in _WHOLE else a for name, a in amounts.items() if a}


def total(bundles: "Iterable[Amounts]") -> "Amounts":
    """The sum of bundles."""
    amounts: Amounts = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            amounts[name] = amounts.get(name, 0) + amount
    return amounts


def less(amounts: "Amounts", part: "Amounts") -> "Amounts":
    """``amounts`` minus ``part``, never below 0."""
    return {name: max(amount - part.get(name, 0), 0) for name, amount in amounts.items()}


def matches(where: "Where", labels: "Where") -> bool:
    """Whether labels match selectors. Equal ``labels`` match: they may be selectors (see ``lacking``)."""
    return where == labels or all(_selects(text, labels.get(key)) for key, text in where.items())


def _selects(text: str, label: str | None) -> bool:
    if text.startswith("!"):
        return not _selects(text[1:], label)
    return label in (text[3:-1].split(",") if text.startswith("in(") else [text])


def _fit(raylets: "list[Raylet]", bundle: "Amounts", where: "Where", in_use: set[int]) -> int | None:
    """The number of the first raylet that holds a bundle, which is taken from its free resources."""
    for number, (free, labels) in enumerate(raylets):
        fits = all(free.get(name, 0) >= amount - 1e-9 for name, amount in bundle.items() if amount)
        if number not in in_use and fits and matches(where, labels):
            for name, amount in bundle.items():
                free[name] = free.get(name, 0) - amount
            return number
    return None


def _size(amounts: "Amounts") -> "tuple[float, ...]":
    return (amounts.get("GPU", 0), amounts.get("CPU", 0), amounts.get("memory", 0), sum(amounts.values()))
