"""Remembers the numbers of contents that a connection has looked up, so that the same text needs no SQL again."""

from __future__ import annotations

from collections.abc import Sequence

Content = tuple[str | bytes | int | None, ...]
MOST, MOST_CHARACTERS = 256, 1 << 24


class KnownContents:
    """The numbers of the contents that were used last. They hold while nothing is deleted or rolled back."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, Content], int] = {}
        self._characters = 0
        self._stamp: int | None = None

    def clear(self) -> None:
        """Forget all."""
        self._numbers.clear()
        self._characters = 0

    def hold_at(self, stamp: int) -> None:
        """Forget all if contents were deleted since; ``stamp`` is that of the head."""
        if stamp != self._stamp:
            self.clear()
            self._stamp = stamp

    def number(self, table: str, content: Content) -> int | None:
        """The number of a content; None if it is not known."""
        key = table, content
        if (found := self._numbers.pop(key, None)) is not None:
            self._numbers[key] = found  # the last one is forgotten last
        return found

    def note(self, table: str, content: Content, number: int) -> None:
        """Remember a number."""
        self._numbers[table, content] = number
        self._characters += _length(content)
        while len(self._numbers) > MOST or self._characters > MOST_CHARACTERS:
            oldest = next(iter(self._numbers))
            del self._numbers[oldest]
            self._characters -= _length(oldest[1])


def _length(content: Sequence[object]) -> int:
    return sum(len(text) for text in content if isinstance(text, str | bytes))
