"""Checks text from outside: valid Unicode, or any bytes for the kernel (arguments, paths, variables).

Python keeps a byte that is not UTF-8 as a surrogate from U+DC80 to U+DCFF. Such text can be neither stored
nor sent as text, so it is refused here for all interfaces, with the name of its field.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from vctl.spec.fields import child, refuse, show

KERNEL_FIELDS = frozenset({"entrypoint", "env", "environment", "cwd"})
"""Fields of requests whose text goes to the kernel."""
MAX_STORED, MIN_STORED = 2**63 - 1, -(2**63)
"""The bounds of numbers that can be stored: SQLite's integers have 64 bits."""


def is_words(text: str) -> bool:
    """Whether a text is valid Unicode without NUL."""
    if text.isascii():
        return "\0" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def check_words(text: str, path: str) -> str:
    """Check text for people: valid Unicode without NUL."""
    if not is_words(text):
        raise refuse(path, f"{show(text)} is not valid UTF-8 text", "write it in UTF-8, without NUL bytes")
    return text


def check_line(text: str, path: str) -> str:
    """Check a line of text for people: only printable characters."""
    check_words(text, path)
    if not text.isprintable():
        raise refuse(
            path, f"{show(text)} has characters that cannot be printed", "write one line of plain text"
        )
    return text


def check_kernel_text(text: str, path: str) -> str:
    """Check text for the kernel: any bytes but NUL."""
    try:
        if not text.isascii():
            text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise refuse(path, f"{show(text)} has half a surrogate pair", "write a whole character") from None
    if "\0" in text:
        raise refuse(path, f"{show(text)} contains a NUL byte", "remove it")
    return text


def check_document(value: object, path: str = "", kernel: Collection[str] = ()) -> None:
    """Check all texts and keys of a document. In the top-level fields ``kernel``, any bytes are valid."""
    stack = [(value, path, False)]
    while stack:
        value, value_path, to_kernel = stack.pop()
        match value:
            case str():
                check_kernel_text(value, value_path) if to_kernel else check_words(value, value_path)
            case Mapping():
                for key, inner in value.items():
                    name = str(key)
                    check_kernel_text(name, value_path) if to_kernel else check_words(name, value_path)
                    below = child(value_path, name)
                    stack.append((inner, below, to_kernel or (value_path == path and name in kernel)))
            case list() | tuple():
                stack += [(inner, f"{value_path}[{number}]", to_kernel) for number, inner in enumerate(value)]


def stored_path(path: str) -> str | bytes:
    """A path as a column value: text, or bytes if it is not valid text."""
    return path if is_words(path) else os.fsencode(path)


def shown(text: str) -> str:
    """Any text as valid Unicode: a byte that is not UTF-8 is shown as ``\\xff``."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
