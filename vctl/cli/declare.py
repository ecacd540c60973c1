"""Declarations of commands: a function whose signature carries the options, as in typer, or a verb and its drawing.

A declaration is read by ``read`` (fast), ``help``, ``bridge`` (typer: usage errors), ``completion`` and the generator
of ``docs/cli.md``. It has types of its own, because the import of typer takes longer than most commands.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vctl import spec
from vctl.errors import BadSpec
from vctl.operations.declare import Operation, P, R
from vctl.spec.params import NOTHING, Opt, Param, Together, params_of

if TYPE_CHECKING:
    from vctl.cli.output import Answer


class Command:
    """One command: its words, its function, its parameters and its examples."""

    def __init__(
        self,
        path: str,
        run: Callable[..., Any],
        examples: Sequence[str],
        common: Sequence[Param],
        declared: Callable[..., Any] | None = None,
    ) -> None:
        self.path = path
        self.run = run
        self.declared = declared or run
        """The function whose parameters and docstring the command has."""
        self.examples = tuple(examples)
        self.common = {param.name: param for param in common}
        self.hidden = False
        self.own_words = False
        """True when everything from the first positional word on belongs to the user's own command."""
        self.waits = False
        """True when it waits for something and shows it, unless an option says otherwise (``Opt.waits``)."""
        self.lasts = False
        """True when it is about this machine and may take long: then it has a process of its own."""
        text = (self.declared.__doc__ or "").strip()
        self.help, _, rest = text.partition("\n")
        self.details = " ".join(rest.split())

    def called(self, word: str) -> "Command":
        """The same command under a shorter word, also in its examples."""
        examples = [example.replace(f"vctl {self.path}", f"vctl {word}") for example in self.examples]
        copy = Command(word, self.run, examples, list(self.common.values()), self.declared)
        copy.hidden, copy.own_words = self.hidden, self.own_words
        copy.waits, copy.lasts = self.waits, self.lasts
        return copy

    def lasts_with(self, values: Mapping[str, Any]) -> bool:
        """Whether it has a process of its own with these values, because it uses the terminal or this machine."""
        return self.lasts or any(info.lasts for info in self._given(values))

    def waits_with(self, values: Mapping[str, Any]) -> bool:
        """Whether it waits with these values; a command server carries it out, but not in a fork that serves others."""
        given = {info.waits for info in self._given(values)}
        return True in given or (self.waits and False not in given)

    def _given(self, values: Mapping[str, Any]) -> list[Opt]:
        return [param.info for param in self.params if values[param.name] not in (None, False)]

    @cached_property
    def params(self) -> Sequence[Param]:
        """Its own options and arguments, then the shared options."""
        declared = params_of(self.declared).values()
        own = [part.params if isinstance(part, Together) else [part] for part in declared]
        return [*(param for group in own for param in group), *self.common.values()]

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the function from the values of the parameters."""
        result: dict[str, Any] = {}
        for name, param in params_of(self.declared).items():
            if isinstance(param, Together):
                given = {part: _read(part, values[part.name]) for part in param.params}
                result[name] = {
                    part.name: value
                    for part, value in given.items()
                    if value is not None or (part.takes_away and values[part.name] is not None)
                }
            else:
                result[name] = _read(param, values[name])
        return result


def _read(param: Param, text: Any) -> Any:
    """The value of an option from its text; where it may be taken away, ``none`` is None, or no elements."""
    if param.takes_away and text in (*NOTHING, [NOTHING[0]]):
        return [] if param.many else None
    if not param.info.reads or not isinstance(text, str):
        return text
    try:
        value = READERS[param.info.reads](text, param.spelled)
    except BadSpec as error:
        if param.takes_away:
            raise BadSpec(
                error.problem, fix=f"{error.fix}; {NOTHING[0]} takes it away", details=error.details
            ) from None
        raise
    if value is None:
        param.check(value)
    return value


def _whole_number(text: str, path: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadSpec(
            f"{path}: a whole number is expected, not {spec.fields.show(text)}",
            fix=f"write for example {path} 5",
        )
    return int(text)


def _begin(text: str, path: str) -> float:
    import time

    return spec.options.parse_begin(text, time.time(), path)


def _cluster_id(text: str) -> str:
    if not text:  # elsewhere no id means the primary
        spec.ids.check_new_cluster_id(text)
    return spec.ids.full_cluster_id(text)


def _document(what: str, amounts: str = "{}") -> Callable[[str, str], object]:
    return lambda text, path: spec.source.read_document(text, what, path, amounts)


READERS: dict[str, Callable[[str, str], object]] = {
    "text": lambda text, _: text,
    "whole number": _whole_number,
    "words": lambda text, _: [word.strip() for word in text.split(",") if word.strip()],
    "duration": lambda text, path: spec.quantities.parse_duration(text, path),  # noqa: PLW0108 - loads it late
    "positive duration": lambda text, path: spec.quantities.parse_duration(text, path, positive=True),
    "begin": _begin,
    "cluster id": lambda text, _: _cluster_id(text),
    "cluster spec": _document("a cluster spec", '{"flexible_resource_min": {}}'),
    "labels": _document("a map of labels"),
    "resources": _document("a map of resources"),
    "templates": _document("a map of templates"),
    "label selector": _document("a label selector"),
}
"""The readers that turn the text of an option into its value, by their names in declarations."""

HELP = ("-h", "--help")
COMMANDS: dict[str, Command] = {}
"""Every command of the modules loaded so far, by its words: ``job submit``."""


def command(
    path: str,
    *examples: str,
    common: Sequence[Param] = (),
    hidden: bool = False,
    own_words: bool = False,
    waits: bool = False,
    lasts: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the command with these words. The docstring's first line is its one-line help."""

    def declare(run: Callable[..., Any]) -> Callable[..., Any]:
        made = Command(path, run, examples, common)
        made.hidden, made.own_words, made.waits, made.lasts = hidden, own_words, waits, lasts
        COMMANDS[path] = made
        return run

    return declare


def shows(
    operation: Operation[P, R],
    show: "Callable[[R], Answer]",
    *examples: str,
    common: Sequence[Param],
    path: str = "",
    lasts: bool = False,
) -> None:
    """Declare the command of a verb: its options are the parameters of the verb, ``show`` draws the reply.

    ``path``: the words of the command, where they are not the name of the verb.
    """

    def run(call: Any, **values: Any) -> "Answer":
        return show(call.backend.call(operation, **values))

    path = path or operation.name
    made = Command(path, run, examples, common, operation.run)
    made.lasts = lasts
    COMMANDS[path] = made


def spelled_out(command: Command, words: Sequence[str]) -> list[str]:
    """The words with one option in each: ``-aw`` is ``-a -w 2``, ``-n5`` is ``-n 5``, ``--watch`` is ``--watch 2``.

    Typer knows no options whose value may be missing. The value of such an option is a number, in its word or
    the next one; anything else behind it is another option or argument.
    """
    options = {name: param for param in command.params for name in param.info.names}
    result: list[str] = []
    remaining = list(reversed(words))
    while remaining:
        word = remaining.pop()
        if word.startswith("-") and word not in ("-", "--"):
            _spell_out(word, options, remaining, result)
            continue
        result.append(word)
        if word == "--" or command.own_words:
            break
    return [*result, *reversed(remaining)]


def _spell_out(word: str, options: Mapping[str, Param], remaining: list[str], result: list[str]) -> None:
    """Move one word of options to the result, with the word behind it if that is the value of an option."""
    name, rest = (word, "") if word.startswith("--") else (word[:2], word[2:])
    while (param := options.get(name)) is not None and param.is_flag and rest:
        result.append(name)
        name, rest = f"-{rest[0]}", rest[1:]
    if param is None or param.is_flag:
        result.append(name + rest)  # also --option=value, and what typer has to refuse
    elif not (bare := param.info.bare):
        result += [name, rest] if rest else [name, *([remaining.pop()] if remaining else [])]
    elif _is_number(rest or (remaining[-1] if remaining else ""), whole=False):
        result += [name, rest or remaining.pop()]
    else:
        result += [name, bare]
        if rest:
            _spell_out(f"-{rest}", options, remaining, result)


def read(command: Command, words: Sequence[str]) -> dict[str, Any] | None:
    """The value of every parameter; None for help, and where typer must read the words, because of a mistake."""
    params = command.params
    options = {name: (param, True) for param in params for name in param.info.names}
    options.update({param.info.off: (param, False) for param in params if param.info.off})
    values: dict[str, Any] = {param.name: param.absent for param in params}
    loose: list[str] = []
    rest = iter(spelled_out(command, words))
    for word in rest:
        if word == "--":
            loose.extend(rest)
            continue
        if not word.startswith("-") or word == "-":
            loose.append(word)
            if command.own_words:
                loose.extend(rest)
            continue
        name, equals, text = word.partition("=")
        if name not in options or (equals and not name.startswith("--")):
            return None
        param, on = options[name]
        if param.is_flag:
            if equals:
                return None
            values[param.name] = on
        elif (given := text if equals else next(rest, None)) is None:
            return None
        elif not equals and (given == "--" or given in options):
            raise BadSpec(
                f"{name}: its value is missing before {given}",
                fix=f"write `{name} {param.metavar} {given} …`, or leave {name} out",
            )
        elif not _take(param, given, values):
            return None
    if any(param.required and values[param.name] is None for param in params if not param.is_argument):
        return None
    return values if _arguments(params, loose, values) else None


def asks_for_help(command: Command, words: Sequence[str]) -> bool:
    """Whether a command line that ``read`` cannot read asks for help, before any mistake."""
    options = {
        name: param for param in command.params for name in (*param.info.names, param.info.off) if name
    }
    rest = iter(spelled_out(command, words))
    for word in rest:
        if word in HELP:
            return True
        is_option = word.startswith("-") and word != "-"
        if word == "--" or (command.own_words and not is_option):
            return False
        if not is_option:
            continue
        name, equals, _ = word.partition("=")
        if (param := options.get(name)) is None:
            return False
        if not (param.is_flag or equals):
            next(rest, None)
    return False


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
    """Whether a text is a plain decimal number; other forms are left to typer."""
    digits = given.removeprefix("-")
    if not whole:
        digits = digits.replace(".", "", 1)
    return digits.isascii() and digits.isdigit() and len(digits) < 100


def _arguments(params: Sequence[Param], loose: list[str], values: dict[str, Any]) -> bool:
    """Assign the positional words to the arguments in order; at most the last argument takes several."""
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
