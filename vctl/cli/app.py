"""Runs a command line: find the command, read its arguments, run it, write the answer, return the exit code.

No other module of the command line turns errors into messages and exit codes.
"""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from vctl import cli, spec
from vctl.cli import catalog, declare
from vctl.cli.call import Call, tell
from vctl.cli.command_client import INTERRUPTED, NOT_HERE
from vctl.cli.common import HOISTED
from vctl.cli.declare import Command
from vctl.config import COLORS
from vctl.core.text import harmless
from vctl.errors import BadSpec, VctlError, known
from vctl.spec.params import Param


class Served(Protocol):
    """The fork of a command server in which a command runs."""

    def takes(self, call: Call, values: Mapping[str, Any], *, lasts: bool, waits: bool) -> bool:
        """Whether it carries a command out; prepares for it."""


def run(words: Sequence[str], served: Served | None = None) -> int:
    """Run one command line; returns the exit code.

    ``served``: the fork of a command server that runs it. Then the answer may be NOT_HERE.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # a command must not fail because of bytes that are not text
            try:
                stream.reconfigure(errors="backslashreplace")
            except MemoryError:  # half of it may be done, and what is written would be lost
                again = open(stream.fileno(), "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
                setattr(sys, name, again)
    try:
        command, rest = _find(list(words))
        if command is None:
            return 0  # help was shown
        words = [*command.path.split(), *declare.spelled_out(command, rest)]
        values = _read(command, rest)
        return 0 if values is None else _execute(command, values, served)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - reported, and raised again with VCTL_DEBUG=1
        return failed(error, words)


def failed(error: Exception, words: Sequence[str]) -> int:
    """Report the error that ended a command line; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        return _unread()
    if os.environ.get("VCTL_DEBUG") == "1" and not isinstance(error, VctlError):
        raise error
    return _report(_explained(error), as_json=wants_json(words))


def _explained(error: Exception) -> VctlError:
    """The error to report."""
    if (trouble := error if isinstance(error, VctlError) else known(error)) is not None:
        return trouble
    detail = f"{type(error).__name__}: {error}".splitlines()[0]
    internal = VctlError(
        f"internal error: {detail}",
        fix="run it again with VCTL_DEBUG=1 to see the traceback, and report the error",
    )
    internal.is_refusal = False
    return internal


def not_loaded(error: ImportError) -> VctlError:
    """The error for a module that could not be imported: its file could not be opened or read."""
    return VctlError(
        f"a module of vctl could not be loaded: {error}",
        fix="look whether open files, memory or the disk are used up, then try again; else install vctl again",
    )


def wants_json(words: Sequence[str]) -> bool:
    """Whether errors go to stdout as JSON; decided before the words are parsed, as they may be wrong."""
    chosen = os.environ.get("VCTL_OUTPUT", "")
    names_objects = ["task", "run"] in (list(words[i : i + 2]) for i in range(len(words)))
    for index, word in enumerate(words):
        if word == "--":
            break
        if (word == "-o" or (word == "--output" and not names_objects)) and index + 1 < len(words):
            chosen = words[index + 1]
        elif word.startswith("--output=") and not names_objects:
            chosen = word.partition("=")[2]
        elif word.startswith("-o") and word != "-o":
            chosen = word[2:]
    return chosen == "json"


def _find(words: list[str]) -> tuple[Command | None, list[str]]:
    """The command and its words. Shared options in front of it move behind it; no command means status."""
    front, words = _hoisted(words)
    if words and words[0] in catalog.GROUPS:
        more, rest = _hoisted(words[1:])
        front, words = front + more, [words[0], *rest]
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        _check_order(words)
        words = ["status", *words]
    if words[0] in ("-h", "--help", "help") or (
        words[0] in catalog.GROUPS and words[1:2] in (["-h"], ["--help"], ["help"])
    ):
        if words[0] == "help" and words[1:] and not words[1].startswith("-"):
            return _find([*words[1:], "--help"])
        _show_help("" if words[0] not in catalog.GROUPS else words[0], _color([*front, *words]))
        return None, []
    command, rest = catalog.find(words)
    return command, front + rest


def _hoisted(words: list[str]) -> tuple[list[str], list[str]]:
    """The shared options in front, and the words behind them."""
    front: list[str] = []
    names = {name for param in HOISTED for name in param.info.names}
    while words and (name := _name_of(words[0])) in names:
        count = 1 if words[0] != name else 2
        given, words = words[:count], words[count:]
        if name == "--output":  # behind the command, the long name may be something else
            given = ["-o", given[0].partition("=")[2] if count == 1 else "".join(given[1:])]
        front += given
    return front, words


def _name_of(word: str) -> str:
    """The option that a word is, with or without its value: ``-o``, ``-ojson``, ``--output=json``."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def _check_order(words: list[str]) -> None:
    """Refuse options in front of a command, which would be read as those of ``vctl status``."""
    own = words[: words.index("--")] if "--" in words else words
    known = {*catalog.GROUPS, *catalog.WORDS, *catalog.SHORT}
    at = next((index for index, word in enumerate(own) if word in known), None)
    if at is None:
        return
    status, _ = catalog.find(["status"])
    if declare.read(status, words) is None:
        meant = " ".join(own[at : at + (2 if own[at] in catalog.GROUPS else 1)])
        raise catalog.too_early(words[0], meant)


def _color(words: Sequence[str]) -> str | None:
    """The value of ``--color`` for a help page, which is shown whatever else the words say."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--":
            break
        if word.startswith("--color="):
            found = word.partition("=")[2]
        elif word == "--color":
            found = following
    return found if found in COLORS else None


def _show_help(group: str, color: str | None) -> None:
    if not group:
        pages = {
            section: [(word, catalog.line_of(word)) for word in words]
            for section, words in catalog.SECTIONS.items()
        }
        cli.help.show_group("", catalog.ABOUT, pages, catalog.EXAMPLES, color)
        return
    commands = catalog.members(group)
    lines = [(command.path.split()[1], command.help) for command in commands]
    examples = [commands[0].examples[0]]
    cli.help.show_group(group, catalog.GROUPS[group][0], {"Commands": lines}, examples, color)


def _read(command: Command, words: list[str]) -> dict[str, Any] | None:
    values = declare.read(command, words)
    if values is None and declare.asks_for_help(command, words):
        cli.help.show_command(command, _color(words))
        return None
    if values is None:
        values = cli.bridge.read(command, declare.spelled_out(command, words))
    if values is not None:
        _check_choices(command, values)
        for param in command.params:
            given = values[param.name]
            for value in given if param.many and given else [given]:
                _check_value(param, value)
    return values


def _check_value(param: Param, value: Any) -> None:
    """Refuse texts that are not Unicode, except paths, arguments and variables, and numbers that cannot be stored."""
    if isinstance(value, str) and not (value.isascii() or param.to_kernel or value.startswith("@")):
        spec.text.check_words(value, param.spelled)
    elif isinstance(value, (int, float)) and not -(2**63) <= value < 2**63:  # NaN too
        raise BadSpec(f"{param.spelled}: {value} is out of range", fix="write a smaller number")


def _check_choices(command: Command, values: dict[str, Any]) -> None:
    for param in command.params:
        value = values[param.name]
        if param.info.choices and value is not None and value not in param.info.choices:
            from vctl.spec.fields import nearest

            other = catalog.OTHER_KINDS.get(str(value).lower())
            guess = other if other in param.info.choices else nearest(value, param.info.choices)
            fix = f"did you mean {guess}? " if guess else ""
            fix += f"possible: {', '.join(param.info.choices)}"
            raise BadSpec(f"{param.spelled}: {value!r} is not one of the choices", fix=fix)


def _execute(command: Command, values: dict[str, Any], served: Served | None) -> int:
    lasts, waits = command.lasts_with(values), command.waits_with(values)
    given = dict(values)
    shared = {name: values.pop(name) for name in command.common}
    call = Call(command, shared, lasts=lasts or waits)
    try:
        with call:
            if served is not None and not served.takes(call, given, lasts=lasts, waits=waits):
                return NOT_HERE
            call.written = values
            return _answer(call, command.arguments(values))
    except VctlError as error:
        return _report(error.after(call.effect).spelled(_options(command)), as_json=call.output == "json")
    except Exception as error:
        if not call.effect or isinstance(error, BrokenPipeError) or os.environ.get("VCTL_DEBUG") == "1":
            raise
        raise _explained(error).after(call.effect) from error


def _options(command: Command) -> dict[str, str]:
    """How messages spell the parameters of a command, the flags that are set to false, and a command as an example."""
    spellings = {f"{param.name}=false": param.info.off for param in command.params if param.info.off}
    spellings[spec.launch.COMMAND] = spec.launch.COMMAND_LINE
    return spellings | {name: param.spelled for param in command.params for name in param.references}


def _answer(call: Call, values: dict[str, Any]) -> int:
    """Run the command and write its answer, again and again when it is watched."""
    while True:
        answer = call.command.run(call, **values)
        code = answer if isinstance(answer, int) else 0
        if answer is not None and not isinstance(answer, int):
            code = call.write(answer)
            if "watch" in call.command.common:  # the shown state may be old if no scheduler runs
                call.warn_if_nothing_schedules()
        sys.stdout.flush()
        if not call.watch_s or not call.pause():
            return code


def _unread() -> int:
    """Drop the output, whose reader has ended; returns the exit code of a process that SIGPIPE ended."""
    cli.output.drop(sys.stdout)
    return 141


def _report(error: VctlError, *, as_json: bool) -> int:
    try:
        sys.stdout.flush()
        if as_json:
            import json

            text = json.dumps(error.document(), indent=2, ensure_ascii=False, default=str)
            sys.stdout.write(harmless(text) + "\n")
            sys.stdout.flush()
            return error.exit_code
    except BrokenPipeError:
        return _unread()
    except OSError:  # the disk of the output is full: write the error as text to stderr
        cli.output.drop(sys.stdout)
    tell(f"Error: {error.problem}")
    if error.fix:
        tell(f"Fix: {error.fix}")
    return error.exit_code
