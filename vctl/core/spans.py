"""Spans (first, last) of consecutive numbers, with which changes name the members of an array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Spans = tuple[tuple[int, int], ...]


def spans_of(numbers: Iterable[int]) -> Spans:
    """The spans of ascending numbers."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return tuple(spans)


def numbers_of(spans: Spans) -> Iterator[int]:
    """The numbers in spans."""
    for first, last in spans:
        yield from range(first, last + 1)
