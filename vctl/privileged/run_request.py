"""A request of a run on its way to a supervisor: one line of JSON, then the variables that runs share, as JSON.

A supervisor of a shared service is root, and the scheduler that asks is not. So what arrives is data, never code; it
has exactly the fields of ``_CHECKS``, and each is checked for type, size and form before anything is done with it.
Text is what the bytes of the operating system are in UTF-8 with ``surrogateescape``, escaped to ASCII: every path and
argument can travel, whatever the locale of either side.

Stand-alone, like vctl/runtime/processes.py. Imports only built-in modules: ``_json`` has the parser without the
milliseconds of importing ``json``.
"""

import _json

MYPY = False
if MYPY:
    from collections.abc import Callable
    from typing import Any

MAX_BYTES = 1 << 24
"""The largest request. The kernel takes 6 MiB of arguments and variables for a process at most."""
MAX_RUN_ID_BYTES = 200
_NOT_IN_NAMES, _NOT_IN_FOLDERS = frozenset("/\0\n "), frozenset("/\0\n")
_MAX_CLUSTERS = 64
_MAX_NUMBER = 1 << 62
_MAX_GRACE_MS = 1 << 42
_MAX_CPUS, _MAX_CPU = 1 << 14, 1 << 20
_MAX_UID = (1 << 32) - 2
_SHOWN = 60


class BadRequest(ValueError):
    """A request that is not carried out; the message says why."""


class RunRequest:
    """A request that has been checked. ``shared``: the variables that the runs of a command share, still as JSON."""

    __slots__ = (
        "argv", "confinement", "cpus", "cwd", "env", "follows", "grace_ms", "log", "log_bytes", "memory_bytes", "run",
        "shared", "uid",
    )  # fmt: skip
    run: bytes
    follows: bytes
    """The run that it follows at once; empty: none."""
    uid: "int | None"
    """The user whose process it is; None in personal mode."""
    grace_ms: int
    log_bytes: int
    """The largest log, 0: any; and so the memory."""
    memory_bytes: int
    argv: tuple[bytes, ...]
    env: dict[bytes, bytes]
    """Its own variables, over the shared ones."""
    cwd: bytes
    log: bytes
    cpus: "tuple[int, ...] | None"
    confinement: "tuple[int, int, tuple[tuple[bytes, tuple[int, int, int]], ...]] | None"
    """What the kernel is to enforce (vctl/runtime/cgroups.py); None: nothing."""
    shared: bytes


class _Rules:
    """How the parser reads JSON (the names are those that it asks for)."""

    strict, object_hook, object_pairs_hook, memo = True, None, None, dict[str, str]()
    parse_float, parse_int, parse_constant = float, int, float


_scan = _json.make_scanner(_Rules())  # type: ignore[arg-type]  # typeshed wants a parser of parsers


def parsed(text: bytes) -> "Any":
    """The value of a JSON text. Raises BadRequest."""
    try:
        value, end = _scan(text.decode("ascii"), 0)
    # SystemError: how Python 3.11 words a syntax error where ``json`` is not imported.
    except (ValueError, StopIteration, RecursionError, SystemError):
        raise BadRequest("it is no JSON") from None
    if end != len(text):
        raise BadRequest("something stands behind its JSON")
    return value


def checked(message: bytes) -> RunRequest:
    """The request in a message. Raises BadRequest."""
    if len(message) > MAX_BYTES:
        raise BadRequest(f"it has more than {MAX_BYTES} bytes")
    head, _, shared = message.partition(b"\n")
    fields = parsed(head)
    if type(fields) is not dict or fields.keys() != _CHECKS.keys():
        raise BadRequest(f"its fields must be {', '.join(_CHECKS)}")
    request = RunRequest()
    for name, check in _CHECKS.items():
        try:
            setattr(request, name, check(fields[name]))
        except (ValueError, TypeError, AttributeError):
            raise BadRequest(f"{name} cannot be {_shown(fields[name])}") from None
    request.shared = shared
    return request


def variables(packed: bytes) -> dict[bytes, bytes]:
    """The variables in a JSON text. Raises BadRequest."""
    try:
        return _environment(parsed(packed))
    except (TypeError, AttributeError, UnicodeError):
        raise BadRequest("the variables are no names with texts") from None


class Unpacked:
    """Unpacks the variables that runs of a command share, and keeps the last ones."""

    __slots__ = ("packed", "variables")

    def __init__(self) -> None:
        self.packed, self.variables = b"", dict[bytes, bytes]()

    def with_own(self, packed: bytes, own: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """All variables of a run: its own variables over the shared ones. ``packed``: these, as JSON."""
        if packed != self.packed:
            self.packed, self.variables = packed, variables(packed)
        return {**self.variables, **own}


def _shown(value: "Any") -> str:
    text = ascii(value) if not isinstance(value, (dict, list)) else f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def name(text: str) -> bytes:
    """A text that can be a file name and a word of a line."""
    encoded = _text(text)
    if not text or len(encoded) > MAX_RUN_ID_BYTES or text[0] == "." or not _NOT_IN_NAMES.isdisjoint(text):
        raise ValueError
    return encoded


def _name_or_none(text: str) -> bytes:
    return name(text) if text else b""


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _number(most: int) -> "Callable[[int], int]":
    def check(number: int) -> int:
        if type(number) is not int or not 0 <= number <= most:
            raise ValueError
        return number

    return check


def _uid(number: "int | None") -> "int | None":
    return None if number is None else _number(_MAX_UID)(number)


def _words(words: list[str]) -> tuple[bytes, ...]:
    if type(words) is not list:
        raise TypeError
    return tuple([word.encode("utf-8", "surrogateescape") for word in words])


def _environment(texts: dict[str, str]) -> dict[bytes, bytes]:
    return {
        name.encode("utf-8", "surrogateescape"): text.encode("utf-8", "surrogateescape")
        for name, text in texts.items()
    }


def _cpus(numbers: "list[int] | None") -> "tuple[int, ...] | None":
    if numbers is None:
        return None
    if type(numbers) is not list or len(numbers) > _MAX_CPUS:
        raise TypeError
    return tuple(map(_number(_MAX_CPU), numbers))


def _confinement(
    limits: "list[Any] | None",
) -> "tuple[int, int, tuple[tuple[bytes, tuple[int, int, int]], ...]] | None":
    if limits is None:
        return None
    processes, weight, clusters = limits
    if type(clusters) is not list or len(clusters) > _MAX_CLUSTERS:
        raise TypeError
    whole = _number(_MAX_NUMBER)
    return (
        whole(processes),
        whole(weight),
        tuple([(_folder(one), _bounds(bounds)) for one, bounds in clusters]),
    )


def _bounds(limits: "list[Any]") -> tuple[int, int, int]:
    memory, processes, weight = map(_number(_MAX_NUMBER), limits)
    return memory, processes, weight


def _folder(text: str) -> bytes:
    encoded = _text(text)
    if (
        text in (".", "..")
        or not 0 < len(encoded) <= MAX_RUN_ID_BYTES
        or not _NOT_IN_FOLDERS.isdisjoint(text)
    ):
        raise ValueError
    return encoded


_CHECKS: "dict[str, Callable[[Any], object]]" = {
    "run": name, "follows": _name_or_none, "uid": _uid, "grace_ms": _number(_MAX_GRACE_MS),
    "log_bytes": _number(_MAX_NUMBER), "memory_bytes": _number(_MAX_NUMBER), "argv": _words, "env": _environment,
    "cwd": _text, "log": _text, "cpus": _cpus, "confinement": _confinement,
}  # fmt: skip
