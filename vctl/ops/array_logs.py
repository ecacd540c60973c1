"""The output of an array: the lines of its members, each with the index of the member in front: ``7: epoch 3``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vctl.core.indices import Indices
from vctl.core.jobs import member_of
from vctl.errors import BadSpec
from vctl.ops import logs


class ArrayLog(logs.Log):
    """The output of the members of an array."""

    is_one_file = False

    def __init__(self, home: Path, array_id: str, indices: Indices) -> None:
        super().__init__(logs.log_of(home, array_id))
        self._home, self._array_id, self._indices = home, array_id, indices

    def members(self) -> Iterator[tuple[int, Path]]:
        """Index and log of the members that have written something, by index."""
        found = map(member_of, logs.names(self._home))
        for index in sorted(
            i for name, i in found if name == self._array_id and i in self._indices and i is not None
        ):
            yield index, logs.log_of(self._home, f"{self._array_id}_{index}")

    def read(self, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """The present output, member by member; ``tail``: the last lines of each."""
        for index, path in self.members():
            for block in _Lines(index).all_of(logs.read_log(path, tail=tail)):
                kept, offset = block[offset:], max(0, offset - len(block))
                if kept:
                    yield kept

    def growing(self, offset: int = 0) -> logs.Growing:
        """The output as it is written."""
        if offset:
            raise BadSpec(
                "offset: lines of an array come in the order in which they are written",
                fix="follow it again from its beginning",
            )
        return _GrowingArray(self)


class _Lines:
    """Puts an index before each line of a log that is read in blocks; the end of a block may be a part of a line."""

    def __init__(self, index: int) -> None:
        self._mark, self._part = f"{index}: ".encode(), b""

    def of(self, block: bytes) -> bytes:
        """The lines that a block ends."""
        *lines, self._part = (self._part + block).split(b"\n")
        return b"".join(self._mark + line + b"\n" for line in lines)

    def all_of(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The lines of a log, also the last one if it has no end."""
        yield from map(self.of, blocks)
        yield self.rest()

    def rest(self) -> bytes:
        """The last line, if it has no end."""
        part, self._part = self._part, b""
        return self._mark + part + b"\n" if part else b""


class _GrowingArray(logs.Growing):
    """The logs of an array that are being written: of each, the lines that were added since the last look."""

    def __init__(self, log: ArrayLog) -> None:
        super().__init__(log.path)
        self._log = log
        self._seen: dict[int, tuple[int, _Lines]] = {}
        """Index -> the bytes read of the log of that member, and its last line as far as it was written."""

    def new(self) -> Iterator[bytes]:
        """The lines that were added since the last call; no file stays open."""
        for index, path in self._log.members():
            read_to, lines = self._seen.get(index) or (0, _Lines(index))
            try:
                if path.stat().st_size == read_to:
                    continue
            except FileNotFoundError:  # the member was deleted meanwhile
                continue
            one = logs.Growing(path, read_to)
            try:
                for block in one.new():
                    if added := lines.of(block):
                        yield added
                self._seen[index] = one.read_to, lines
            finally:
                one.close()

    def rest(self) -> Iterator[bytes]:
        """The last lines that have no end."""
        for _, lines in self._seen.values():
            if part := lines.rest():
                yield part
