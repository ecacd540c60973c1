"""Reads a document: inline JSON, ``@file``, or ``-`` for standard input.

Numbers stay exact (``Decimal``). Duplicate keys and NaN, which JSON parsers accept, are refused. This module
does not know the meaning of a document.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from decimal import Decimal
from typing import Any

from vctl.errors import BadSpec
from vctl.spec.fields import refuse, show
from vctl.spec.text import check_document

MAX_BYTES = 16 * 2**20
MAX_YAML = 2**20
"""The most characters of YAML, which takes fifty times as long to parse as JSON."""
MAX_BATCH_BYTES = 64 * 2**20
"""The most bytes of a file with a document on each line, or of a request with as many."""
MAX_LINE_BYTES = 8 * 2**20
MAX_DEPTH = 100
YAML = (".yaml", ".yml")
MAX_ITEMS = 1_000_000
"""The most values of a document: with aliases, a small YAML file can be a huge document."""


class NotReadHere(BaseException):
    """A file that only the process of the caller may read."""


read_here = True
"""Whether files are read here: not in a service, where whoever names them is somebody else."""


def read_document(ref: str, what: str, path: str, amounts: str = "{}") -> object:
    """Read the JSON (or YAML) that an option names; every failure is a BadSpec that starts with ``path``.

    Standard input may be JSON or YAML. ``what`` names the expected document, such as "a cluster spec".
    Decimals in the result are ``Decimal``. ``amounts`` is a template for the fix of an error: for a text
    such as ``CPU=4``, the fix shows ``amounts`` with ``{}`` replaced by these amounts as JSON.
    """
    if ref != "-" and not ref.startswith("@"):
        return parse_text(ref, what, path, inline=amounts)
    name = None if ref == "-" else os.path.expanduser(ref[1:])
    if name == "":
        raise refuse(path, "a file name is missing after @", "write @spec.json, or - for standard input")
    text, where = _text(name, path)
    is_yaml = not text.lstrip().startswith(("{", "[")) if name is None else name.endswith(YAML)
    return parse_text(text, what, where, yaml=is_yaml)


def read_file(name: str, what: str, path: str) -> object:
    """Read a document from a file or from standard input (``-``): JSON if it begins with ``{``, else YAML."""
    text, where = _text(None if name == "-" else os.path.expanduser(name), path)
    return parse_text(text, what, where, yaml=name.endswith(YAML) or not text.lstrip().startswith("{"))


def read_lines(name: str, what: str, path: str) -> list[object]:
    """Read one JSON document from each line of a file, or of standard input (``-``); numbers are plain ones.

    Empty lines are allowed at the end only, so that the n-th document is that of line n.
    """
    data = _content(None if name == "-" else os.path.expanduser(name), path, MAX_BATCH_BYTES)
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        where = "standard input" if name == "-" else name
        raise refuse(path, f"{where} is empty", f"write {what} on each line, as JSON")
    documents: list[object] = []
    for number, line in enumerate(lines, 1):
        try:
            documents.append(_parse_line(line, what))
        except BadSpec as error:
            raise error.in_line(number) from None
    return documents


def _parse_line(line: bytes, what: str) -> object:
    if len(line) > MAX_LINE_BYTES:
        raise BadSpec(f"{len(line)} bytes are too many", fix=f"write at most {MAX_LINE_BYTES >> 20} MiB")
    if b"\0" in line:
        raise BadSpec("it contains a NUL byte", fix="save the file as UTF-8, without NUL bytes")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadSpec(f"it is not UTF-8 text (byte {error.start})", fix="save the file as UTF-8") from None
    if not text.strip():
        raise BadSpec("it is empty", fix=f"remove it, or write {what} on it")
    try:
        document = _load_json(text, exact=False)
    except RecursionError:
        raise _too_deep("") from None
    except json.JSONDecodeError as error:
        fix = f"write {what} on each line, as JSON" if text.strip() in ("[", "{") else _json_fix(text, "")
        raise BadSpec(f"this is not JSON: {error.msg} at column {error.colno}", fix=fix) from None
    except ValueError:  # Python limits the digits of an int
        raise BadSpec("a number has too many digits", fix="write a smaller number") from None
    if text.count("{") + text.count("[") > MAX_DEPTH:
        _check_extent(document, "")
    return document


def _content(name: str | None, path: str, limit: int) -> bytes:
    """The bytes of a file, or of standard input (None)."""
    if not read_here:
        raise NotReadHere
    shown = name or "standard input"
    try:
        with nullcontext(sys.stdin.buffer) if name is None else open(name, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise refuse(
            path, f"cannot read {shown}: {error.strerror}", "name a file that you can read"
        ) from None
    except ValueError:  # a NUL in the name
        raise refuse(path, f"{show(name)} is not a file name", "name a file that you can read") from None
    if len(data) > limit:
        raise refuse(path, f"{shown} is larger than {limit} bytes", "split it, or give another file")
    return data


def _text(name: str | None, path: str) -> tuple[str, str]:
    """The text of a file, or of standard input (None), and the path for errors in it."""
    shown = name or "standard input"
    try:
        return _content(name, path, MAX_BYTES).decode("utf-8-sig"), f"{path} ({shown})"
    except UnicodeDecodeError as error:
        raise refuse(path, f"{shown} is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None


def parse_text(text: str, what: str, path: str, *, yaml: bool = False, inline: str = "") -> object:
    """Parse a text as one document of plain values, with exact numbers and no duplicate keys.

    ``inline``: the ``amounts`` of ``read_document`` if the text is an argument of the command line, else
    empty.
    """
    if not text.strip():
        raise refuse(
            path, f"{what} is expected, but it is empty", "write {} for the defaults, or leave the option out"
        )
    try:
        document = _load_yaml(text, path) if yaml else _load_json(text)
    except RecursionError:
        raise _too_deep(path) from None
    except json.JSONDecodeError as error:
        where = f"{error.msg} at line {error.lineno} column {error.colno}"
        raise refuse(
            path, f"{what} is expected, but this is not JSON: {where}", _json_fix(text, inline)
        ) from None
    except _Refused as error:
        raise refuse(path, error.problem, error.fix) from None
    except ValueError:  # Python limits the digits of an int
        raise refuse(path, "a number has too many digits", "write a smaller number") from None
    if yaml or text.count("{") + text.count("[") > MAX_DEPTH:
        _check_extent(document, path)
    if "\\" in text or not text.isascii():
        check_document(document, path)
    return document


class _Refused(BadSpec):
    """An error inside a parser, without the path, which the caller adds."""


def _load_json(text: str, *, exact: bool = True) -> object:
    return json.loads(
        text,
        parse_float=Decimal if exact else None,
        parse_constant=_refuse_constant,
        object_pairs_hook=unique_keys,
    )


def _refuse_constant(name: str) -> object:
    raise _Refused(f"{name} is not a JSON number", fix="write a number; leave a limit out for infinite")


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these pairs, for ``json.loads``; refuses duplicate keys."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _duplicate(key)
            seen.add(key)
    return result


def _duplicate(key: object) -> _Refused:
    return _Refused(f"the key {show(key)} appears twice in one object", fix="keep one of them")


MAX_MENDED = 10_000
"""The longest text whose mistakes are looked for."""
MAX_SHOWN = 300
"""The longest corrected JSON that a fix shows whole."""
_TOKEN = r"""\s+|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|[][{}:,]|(?P<word>[^][{}:,"'\s]+)"""
_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSING = {"{": "}", "[": "]"}
_QUOTE = "put names and strings in double quotes"


def _mended(text: str) -> tuple[str, list[str]] | None:
    """JSON with its usual mistakes mended, and what to do about each of them; None if that does not make it JSON.

    The usual ones are a comma before a closing bracket, other quotes or none, words of Python, and an end that is
    missing.
    """
    tokens: list[str] = []
    todo: dict[str, None] = {}
    at = 0
    while at < len(text):
        if (match := re.compile(_TOKEN).match(text, at)) is None:
            return None
        at, token = match.end(), match[0]
        if match["text"] and token[0] == "'":
            todo[_QUOTE] = None
            token = json.dumps(re.sub(r"\\(.)", r"\1", token[1:-1]), ensure_ascii=False)
        elif token in _WORDS:
            todo[f"write {_WORDS[token]}"] = None
            token = _WORDS[token]
        elif match["word"] and token not in _WORDS.values():
            is_name = text[at:].lstrip().startswith(":")
            if is_name or re.search("[A-DF-Za-df-z]", token):  # else it is a number
                todo[_QUOTE] = None
                token = json.dumps(token, ensure_ascii=False)
        elif token in _CLOSING.values() and "".join(tokens).rstrip().endswith(","):
            todo[f"remove the comma before {token}"] = None
            del tokens[len(tokens) - 1 - tokens[::-1].index(",") :]
        tokens.append(token)
    if missing := _unclosed(tokens):
        todo[f"write {missing} at its end"] = None
    mended = "".join([*tokens, missing])
    try:
        _load_json(mended)
    except (ValueError, RecursionError, BadSpec):
        return None
    return mended, list(todo)


def _unclosed(tokens: list[str]) -> str:
    """The brackets that are missing at the end."""
    missing: list[str] = []
    for token in tokens:
        if token in _CLOSING:
            missing.insert(0, _CLOSING[token])
        elif token in _CLOSING.values() and missing:
            missing.pop(0)
    return "".join(missing)


def _json_fix(text: str, inline: str) -> str:
    start = text.lstrip()[:1]
    mended = _mended(text) if start in ("{", "[") and len(text) <= MAX_MENDED else None
    if inline and start not in '{["':
        pairs = [pair.partition("=")[::2] for pair in text.split(",")]
        if all(name and value for name, value in pairs):
            amounts = (
                f'"{name}": {value if value.isdigit() else json.dumps(value)}' for name, value in pairs
            )
            document = inline.replace("{}", f"{{{', '.join(amounts)}}}")
            return f"write it as JSON: '{document}'"
        return f"write JSON such as {{...}}, or @{text[:80]} to read a file"
    shown = (
        f": '{mended[0]}'"
        if inline and mended and len(mended[0]) <= MAX_SHOWN and "'" not in mended[0]
        else ""
    )
    if inline and '"' not in text and "'" not in text and any(letter.isalpha() for letter in text):
        return f"the shell took its quotes away: put the whole JSON in single quotes{shown}, or write @FILE"
    if mended and mended[1]:
        return f"{' and '.join(mended[1])}{shown}"
    if "'" in text:
        return "JSON needs double quotes around names and strings"
    return "correct the text at that position"


def _load_yaml(text: str, path: str) -> object:
    if len(text) > MAX_YAML:
        raise refuse(
            path,
            f"{len(text)} characters of YAML, at most {MAX_YAML} are read",
            "write it as JSON, or split it",
        )
    try:
        import yaml
    except ImportError:
        raise refuse(
            path, "PyYAML is not installed, so YAML cannot be read", "pip install PyYAML, or write JSON"
        ) from None

    class Loader(yaml.SafeLoader):
        """A safe loader with the rules of the JSON reader: exact numbers, no duplicate keys."""

    def number(loader: Any, node: Any) -> Decimal:
        text = str(loader.construct_scalar(node)).replace("_", "").lower()
        try:
            return Decimal(text.replace(".inf", "inf").replace(".nan", "nan"))
        except ArithmeticError:
            raise _Refused(f"{text} is not a number", fix="write a decimal number such as 0.5") from None

    def mapping(loader: Any, node: Any) -> dict[object, object]:
        own: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _Refused("a key is not a string", fix="put the key in quotes")
            if key_node.value in own:
                raise _duplicate(key_node.value)
            own.add(key_node.value)
        loader.flatten_mapping(node)  # merge key "<<": keys of this map replace merged keys
        return {
            loader.construct_object(k, deep=True): loader.construct_object(v, deep=True)
            for k, v in node.value
        }

    Loader.add_constructor("tag:yaml.org,2002:float", number)
    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        return Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise refuse(path, f"not YAML: {problem}{where}", "correct the text at that position") from None


def _check_extent(document: object, path: str) -> None:
    """Refuse documents that are too deep or, through YAML aliases, too large."""
    stack, items = [(document, 0)], 0
    while stack:
        value, depth = stack.pop()
        items += 1
        if depth > MAX_DEPTH:
            raise _too_deep(path)
        if items > MAX_ITEMS:
            raise refuse(path, f"the document holds more than {MAX_ITEMS} values", "make it smaller")
        if isinstance(value, Mapping):
            stack.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, (list, tuple)):
            stack.extend((inner, depth + 1) for inner in value)


def _too_deep(path: str) -> BadSpec:
    return refuse(path, f"nested more than {MAX_DEPTH} levels deep", "flatten it; a cluster spec needs five")


def plain(value: object) -> Any:
    """A document for ``json.dumps``: exact numbers become int or float."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and abs(value) < 2**53 else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value
