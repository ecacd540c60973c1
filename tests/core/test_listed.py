"""Lists kept field by field: what is asked for of them is what a list of dicts would answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specification import spec
from vctl.core.listed import Listed, field_of, keyed

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


def test_keys_tell_apart_what_is_another_text() -> None:
    values = [1, True, 1.0, None, 1]
    keys, found = keyed(values)
    assert [str(found[key]) for key in keys] == ["1", "True", "1.0", "None", "1"]
    assert keyed(["x"] * 3) == (["x"] * 3, {"x": "x"})
    assert keyed([]) == ([], {})
