"""Reads the fields of untyped documents; each error names the field, the problem and the fix.

Documents are JSON, YAML, TOML or Python objects. This module knows nothing of specs or jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import cast

from vctl.core.text import visible
from vctl.errors import BadSpec

_PLAIN_KEY = r"[A-Za-z0-9_-]+\Z"
_SHOWN = 60


def refuse(path: str, problem: str, fix: str = "") -> BadSpec:
    """The error to raise for the field at ``path``; an empty path means the whole document."""
    return BadSpec(
        f"{path}: {problem}" if path else problem, fix=fix, details={"path": path} if path else None
    )


def child(path: str, key: str) -> str:
    """The path of a key inside an object: ``a.b``, or ``a["x.y/z"]`` if the key is long or no plain word."""
    if len(key) > 3 * _SHOWN or not re.match(_PLAIN_KEY, key):
        return f"{path}[{show(key)}]"
    return f"{path}.{key}" if path else key


def show(value: object) -> str:
    """A value as short text for a message."""
    from decimal import Decimal

    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            text = visible(value[: _SHOWN + 1])
            return f'"{text[:_SHOWN]}…"' if len(text) > _SHOWN else f'"{text}"'
        case int():
            # str() of an int beyond 4300 digits raises
            return str(value) if value.bit_length() < 128 else "a number with too many digits"
        case float() | Decimal():
            return str(value)[:_SHOWN]
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
    return f"a value of type {type(value).__name__}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to a word; None if no name is similar."""
    names = sorted(known)
    folded = {_folded(name): name for name in names}
    if exact := folded.get(_folded(word)):
        return exact
    from difflib import get_close_matches

    close = get_close_matches(_folded(word), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def _folded(word: str) -> str:
    return word[:100].casefold().replace("_", "").replace("-", "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The fix for an unknown name: the most similar valid name, else all valid names."""
    names = sorted(known)
    guess = nearest(word, names)
    return f"did you mean {guess}?" if guess else f"valid names: {', '.join(names)}"


def as_mapping(value: object, path: str, what: str, example: str) -> Mapping[str, object]:
    """The value as an object whose keys are all strings."""
    if not isinstance(value, Mapping):
        raise refuse(path, f"{what} must be an object, not {show(value)}", f"write it as {example}")
    for key in value:
        if not isinstance(key, str):
            raise refuse(path, f"the key {show(key)} is not a string", "put the key in quotes")
    return cast("Mapping[str, object]", value)


def as_list(value: object, path: str, what: str, example: str) -> list[object]:
    """The value as a list."""
    if not isinstance(value, (list, tuple)):
        raise refuse(path, f"{what} must be a list, not {show(value)}", f"write it as {example}")
    return list(value)


def as_text(value: object, path: str, what: str) -> str:
    """The value as a string; numbers are not converted, as a YAML parser has already lost their spelling."""
    if not isinstance(value, str):
        quotes = "put it in quotes" if isinstance(value, (bool, int, float)) else "write a string"
        raise refuse(path, f"{what} must be a string, not {show(value)}", quotes)
    return value


def as_count(value: object, path: str, what: str, *, maximum: int) -> int:
    """The value as a whole number from 0 to ``maximum``."""
    if value is None:
        raise refuse(
            path, f"{what} must be a whole number, not null", "write a number, or leave the name out"
        )
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(path, f"{what} must be a whole number, not {show(value)}", "write a number such as 1")
    if value < 0:
        raise refuse(path, f"{what} must be at least 0, not {show(value)}", "write 0 or more")
    if value > maximum:
        raise refuse(path, f"{what} is {show(value)}, at most {maximum} are accepted", "ask for fewer")
    return value
