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


def parts_of(first: int, count: int, own: Spans) -> list[tuple[int, int]]:
    """The parts (first, count) of consecutive numbers of which those in ``own`` are parts by themselves."""
    parts, at = list[tuple[int, int]](), first
    for number in numbers_of(own):
        if number > at:
            parts.append((at, number - at))
        parts.append((number, 1))
        at = number + 1
    if at < first + count:
        parts.append((at, first + count - at))
    return parts
