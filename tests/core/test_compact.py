"""Compact JSON is decoded as the standard library does it, whatever the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specification import spec
from vctl.core.compact import dumps, loads

pytestmark = spec("17.migration")

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(documents)
def test_a_document_comes_back_as_it_was(document: object) -> None:
    assert loads(dumps(document)) == document


@pytest.mark.parametrize(
    "text", ["", " ", " [1]", "[1]\n", "[1] 2", "nul", '{"a":1', b'{"a":1}', None, 7, "NaNs"]
)
def test_other_texts_are_read_or_refused_as_by_json(text: Any) -> None:
    def answer(decode: Any) -> object:
        try:
            return decode(text)
        except (TypeError, ValueError) as error:
            return type(error), str(error)

    assert answer(loads) == answer(json.loads)
