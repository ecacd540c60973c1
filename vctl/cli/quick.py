"""Reads the arguments of a command without typer, which would cost more than most commands do.

It accepts exactly what typer would read the same way and gives up on everything else (None): help, mistakes
and rare spellings such as ``-ojson`` are typer's, reached through ``bridge``. A test holds the two together.
"""

from collections.abc import Sequence
from typing import Any

from vctl.cli.declare import Command
from vctl.operations.declare import Param


def read(command: Command, words: Sequence[str]) -> dict[str, Any] | None:
    """The value of every parameter, or None when typer should look at it."""
    params = command.params
    options = {name: (param, True) for param in params for name in param.info.names}
    options.update({param.info.off: (param, False) for param in params if param.info.off})
    values: dict[str, Any] = {param.name: param.absent for param in params}
    loose: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            loose.extend(reversed(left))
            break
        if not word.startswith("-") or word == "-":
            loose.append(word)
            if command.own_words:
                loose.extend(reversed(left))
                break
            continue
        name, equals, given = word.partition("=")
        if name not in options or (equals and not name.startswith("--")):
            return None
        param, on = options[name]
        if param.is_flag:
            if equals:
                return None
            values[param.name] = on
            continue
        if not equals:
            if not left:
                return None
            given = left.pop()
        if not _take(param, given, values):
            return None
    if any(param.required and values[param.name] is None for param in params if not param.is_argument):
        return None
    return values if _arguments(params, loose, values) else None


def _take(param: Param, given: str, values: dict[str, Any]) -> bool:
    if param.type is not str and not _is_number(given, whole=param.type is int):
        return False
    value = param.type(given)
    if param.many:
        values[param.name] = [*(values[param.name] or ()), value]
    else:
        values[param.name] = value
    return True


def _is_number(given: str, *, whole: bool) -> bool:
    """A plain decimal; whatever else Python or typer may accept is left to typer."""
    digits = given.removeprefix("-")
    if not whole:
        digits = digits.replace(".", "", 1)
    return digits.isascii() and digits.isdigit()


def _arguments(params: Sequence[Param], loose: list[str], values: dict[str, Any]) -> bool:
    """Hand the positional words out in order; at most the last argument takes many."""
    for param in params:
        if not param.is_argument:
            continue
        if param.many:
            if param.required and not loose:
                return False
            if loose:
                values[param.name], loose = loose, []
        elif loose:
            if not _take(param, loose.pop(0), values):
                return False
        elif param.required:
            return False
    return not loose
