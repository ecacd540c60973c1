"""Writes JSON values as YAML in block style. ``spec.source`` reads YAML, with a library."""

import json
import re
from collections.abc import Iterator
from typing import Any

from vctl.core.listed import Listed

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./()=-]+)*\Z")
_WORDS_WITH_A_MEANING = frozenset("y n yes no on off true false null nan inf".split())


def dump(value: Any) -> str:
    """The text of a document."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            head = f"{_scalar(str(key))}:"
            if isinstance(inner, (dict, list, Listed)) and inner:
                yield head
                yield from (f"  {line}" for line in _lines(inner))
            else:
                yield f"{head} {_scalar(inner)}"
    elif isinstance(value, (list, Listed)) and value:
        for inner in value:
            head, *rest = _lines(inner)
            yield f"- {head}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _WORDS_WITH_A_MEANING:
        return value
    if isinstance(value, Listed):  # an empty one
        return "[]"
    # every other JSON scalar, quoted strings included, is YAML as it stands; DEL and C1 controls are not
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))
