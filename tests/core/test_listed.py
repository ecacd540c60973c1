"""Lists kept field by field: what is asked for of them is what a list of dicts would answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specification import spec
from vctl.core.listed import (
    BLOCK,
    Alike,
    Listed,
    Values,
    field_of,
    filled,
    joined,
    mapped,
    ordered,
    runs,
    together,
)

pytestmark = spec("18.budgets")
ROWS: list[dict[str, Any]] = [
    {"name": "a", "size": {"CPU": 1}, "at": 10},
    {"name": "b", "size": {"CPU": 1}, "at": 20},
]


def listed() -> Listed[dict[str, Any]]:
    size = {"CPU": 1}  # shared, as equal ones are made once
    return Listed(2, {"name": ("a", "b"), "size": [size, size], "at": lambda: [10, 20]})


def test_it_is_what_a_list_of_its_objects_is() -> None:
    found = listed()
    assert found == ROWS
    assert list(found) == ROWS
    assert len(found) == 2
    assert [found[0], found[-1]] == ROWS
    assert found[1:] == ROWS[1:]
    assert found[5:] == []
    assert found != [*ROWS, ROWS[0]]
    with pytest.raises(IndexError):
        found[2]


def test_no_two_objects_share_what_can_be_changed() -> None:
    found = listed()
    first, second = found
    first["size"]["CPU"] = 7
    found[0]["size"]["CPU"] = 8
    assert second["size"] == {"CPU": 1}
    assert found == ROWS


def test_fields_are_the_same_of_both() -> None:
    for name in ("name", "size", "at", "missing"):
        assert list(field_of(listed(), name)) == list(field_of(ROWS, name))


def test_in_another_order_and_one_behind_the_other_columns_stay_columns() -> None:
    more = Listed[dict[str, Any]](1, {"name": ("c",), "size": [{"CPU": 2}], "at": Alike(20, 1)})
    back = ordered(listed(), [1, 0])
    assert isinstance(back, Listed)
    assert back == [ROWS[1], ROWS[0]] == ordered(ROWS, [1, 0])
    assert ordered(listed(), []) == ordered(Listed(0, {}), []) == []
    both = together([listed()[:0], back, more])
    assert isinstance(both, Listed)
    assert both == [ROWS[1], ROWS[0], more[0]] == together([list(back), more])
    assert together([]) == together([more[:0]]) == []
    same = ordered(Listed[dict[str, Any]](3, {"state": Alike("x", 3)}), [2, 0])
    other = Listed[dict[str, Any]](1, {"state": Alike("y", 1)})
    assert isinstance(together([same, same]).field("state"), Alike)  # type: ignore[attr-defined]
    assert [form["state"] for form in together([same, other])] == ["x", "x", "y"]


def test_what_is_alike_is_a_sequence_like_any_other() -> None:
    alike = Alike("x", 3)
    assert list(alike) == [alike[0], alike[-1], "x"] == ["x"] * 3
    assert list(alike[1:]) == ["x"] * 2
    assert len(alike[5:]) == 0
    with pytest.raises(IndexError):
        alike[3]
    assert list(joined(["x", "x"])) == ["x", "x"]
    assert isinstance(joined(["x", "x"]), Alike)
    for values in ([], ["x", "y"], ["x", "y", "x"]):
        assert joined(values) is values


def test_what_is_alike_is_made_once_and_what_is_another_text_is_not_alike() -> None:
    made = []

    def make(*values: object) -> str:
        made.append(values)
        return str(values[0])

    assert list(mapped(make, [1, True, 1.0, None, 1])) == ["1", "True", "1.0", "None", "1"]
    assert list(mapped(make, [])) == []
    made.clear()
    assert list(mapped(make, ["a", "b", "a", "a"], Alike(7, 4), [1, 1, 1, 2])) == ["a", "b", "a", "a"]
    assert made == [("a", 7, 1), ("b", 7, 1), ("a", 7, 2)]
    made.clear()
    assert list(mapped(make, Alike("a", 9), Alike(None, 9))) == ["a"] * 9
    assert made == [("a", None)]


def test_neighbours_that_are_alike_are_a_run() -> None:
    fields: list[Values] = [["a", "a", "b", "a"], [1, 1, 1, 1]]
    found = [(("a", 1), range(2)), (("b", 1), range(2, 3)), (("a", 1), range(3, 4))]
    assert list(runs(*fields)) == found
    assert list(runs(Alike("a", 4), Alike(1, 4))) == [(("a", 1), range(4))]
    assert list(runs(Alike("a", 0))) == list(runs([])) == []


@pytest.mark.parametrize("count", [0, 1, BLOCK])
def test_places_are_filled_with_the_values_of_each_object(count: int) -> None:
    places = [("%s%% ", range(count)), ("<%5s", Alike("%s", count)), (">\n", Alike((), count))]
    blocks = list(filled(places, count))
    assert "".join(blocks) == "".join(f"{at}% <   %s>\n" for at in range(count))
    assert all(len(block) < 2 * BLOCK for block in blocks)
