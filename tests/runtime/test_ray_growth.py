"""What Ray's autoscaler is asked for: it counts busy nodes as idle ones, so they are asked for, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.candidates import amounts
from tests.specification import spec
from vctl.ray.on_ray.growth import RayGrowth, constraint
from vctl.ray.on_ray.wire import RayNode

pytestmark = spec("9.provider")

# wanted and nodes as "amounts @zone", bundles as "amounts @zone"; a node that ends in + is dead
CASES = {
    "nothing": ([], ["4c"], []),
    "what is wanted": (["4c"], [], ["4c"]),
    "a node that could be taken for it": (["4c"], ["4c"], ["4c", "4c"]),
    "a larger one is asked for whole": (["4c"], ["8c 2g"], ["4c", "8c"]),
    "a smaller one is not": (["4c"], ["2c"], ["4c"]),
    "a dead one is not": (["4c"], ["4c+"], ["4c"]),
    "one that has all of the labels": (["4c @a"], ["4c @a", "4c @b", "4c"], ["4c @a", "4c @a"]),
    "as the rarest kind that it is": (["4c", "4c 1g"], ["4c 1g"], ["4c", "4c 1g", "4c 1g"]),
    "each once": (["1c", "1c"], ["4c"], ["1c", "1c", "4c"]),
}


def parsed(text: str) -> tuple[dict[str, int], dict[str, str]]:
    size, _, zone = text.rstrip("+").partition(" @")
    return amounts(size), {"zone": zone} if zone else {}


def bundles(texts: Sequence[str]) -> list[tuple[dict[str, float], dict[str, str]]]:
    return [
        ({name: amount / 10000 for name, amount in one.items()}, labels) for one, labels in map(parsed, texts)
    ]


@pytest.mark.parametrize(("wanted", "nodes", "asked"), CASES.values(), ids=CASES)
def test_bundles(wanted: list[str], nodes: list[str], asked: list[str]) -> None:
    there = [RayNode(one, "", *parsed(one), "gone" if one.endswith("+") else "") for one in nodes]
    assert constraint(map(parsed, wanted), there) == bundles(asked)


def test_a_request_is_withdrawn_by_whoever_comes_next(tmp_path: Path) -> None:
    """It is in Ray until another one replaces it, so the file outlives the process; of others' requests none is."""
    reported: list[Any] = []

    def growth(*wanted: str) -> RayGrowth:
        made = RayGrowth(tmp_path, lambda *words: reported.append(words))
        made.target = [parsed(one) for one in wanted]
        made.ask({})
        return made

    growth()
    assert reported == []
    first = growth("4c")
    assert reported.pop() == ("want", bundles(["4c"]))
    first.confirm(bundles(["4c"]))
    first.ask({})
    assert reported == []
    first.begin()
    first.ask({})
    assert reported.pop() == ("want", bundles(["4c"]))  # another link
    second = growth()
    assert reported.pop() == ("want", [])
    growth()
    assert reported.pop() == ("want", [])  # nobody has said that it was done
    second.confirm([])
    growth()
    assert reported == []
