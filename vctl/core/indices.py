"""The indices of the members of an array: ranges, in ascending order and without common indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vctl.core.spans import spans_of
from vctl.core.values import value

Parts = tuple[tuple[int, int, int], ...]
"""Start, stop and step of each range."""


@value(frozen=True, slots=True)
class Indices:
    """The indices in some ranges, each above those before it."""

    parts: Parts

    @classmethod
    def of(cls, indices: Iterable[int]) -> Indices:
        """Ascending indices."""
        return cls(tuple((first, last + 1, 1) for first, last in spans_of(indices)))

    def __len__(self) -> int:
        return sum(len(range(*part)) for part in self.parts)

    def __iter__(self) -> Iterator[int]:
        for part in self.parts:
            yield from range(*part)

    def __contains__(self, index: object) -> bool:
        return any(index in range(*part) for part in self.parts)

    @property
    def last(self) -> int:
        """The highest index."""
        return range(*self.parts[-1])[-1]

    def __str__(self) -> str:
        """As the command line reads them: ``1,5,7-9``, ``0-98:2``."""
        return ",".join(_text(range(*part)) for part in self.parts)


def _text(part: range) -> str:
    if len(part) == 1:
        return str(part[0])
    return f"{part[0]}-{part[-1]}" + (f":{part.step}" if part.step > 1 else "")
