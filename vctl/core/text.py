"""Makes foreign text safe to show. Pure."""

from __future__ import annotations

import codecs


def visible(text: str) -> str:
    """The text on one line, with everything that a terminal would act on or hide shown as an escape.

    That is: control characters (C0, DEL, C1), line and paragraph separators, changes of the writing
    direction, zero-width characters, lone surrogates, and bytes that are not UTF-8 (``\\xff``). Every table,
    page, message and echoed argument goes through this function. Logs of one's own jobs do not: they are shown byte
    for byte.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def harmless(json: str) -> str:
    """JSON of the same value, with everything that a terminal would act on or hide as an escape."""
    if json.isascii() and "\x7f" not in json:
        return json  # JSON escapes all other control characters itself
    if json.isprintable() or json.replace("\n", "").isprintable():
        return json
    return "".join(char if char == "\n" or char.isprintable() else _units(char) for char in json)


def _units(char: str) -> str:
    """The JSON escape of a character: one or two units of UTF-16."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # Python's surrogate escape of a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


class VisibleLines:
    """Output that comes in blocks of bytes, line by line as text that a terminal only shows; tabs and ends stay."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape")

    def shown(self, block: bytes, *, final: bool = False) -> bytes:
        """The next block; a letter that is cut at its end comes with the next one."""
        text = self._decoder.decode(block, final)
        lines = ("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))
        return "\n".join(lines).encode(errors="backslashreplace")
