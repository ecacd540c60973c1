"""Declared commands for typer: help pages, and the errors of command lines that ``declare.read`` cannot read."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Optional, cast

import typer

from vctl.cli.catalog import GROUPS, answers_to, members
from vctl.cli.declare import Command
from vctl.errors import BadSpec
from vctl.spec.fields import nearest
from vctl.spec.params import Param

UsageError = cast(type[Exception], typer.BadParameter.__base__)
"""The usage error of click, or of the click inside newer versions of typer."""


class _Named:
    """Help with plain metavars: newer versions of typer write ``<bool>``, ``<list[str]>`` and ``{JOB}...``."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, ``--help`` too."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of typer's classes
        for param in found:
            word = param.metavar
            if param.param_type_name == "argument":
                many = word + "..." if param.nargs == -1 else word
                usage = [many if param.required else f"[{many}]"]
                param.get_usage_pieces = lambda ctx, usage=usage: usage  # noqa: ARG005  # typer gives a context
                word = None
            elif param.is_flag:
                word = None
            param.display_type_rich = lambda ctx, word=word: word  # noqa: ARG005
        return found


class _Command(_Named, typer.core.TyperCommand):
    """A command of vctl."""


class _Group(_Named, typer.core.TyperGroup):
    """A group of commands of vctl."""


def read(command: Command, words: Sequence[str]) -> dict[str, Any] | None:
    """The values of all parameters, read by typer; None when help was shown. Raises BadSpec for mistakes."""
    app = _app()
    settings = {"help_option_names": ["-h", "--help"], "allow_interspersed_args": not command.own_words}
    help = _plain(f"{command.help}\n\n{command.details}".strip())
    app.command(help=help, context_settings=settings, cls=_Command)(_callback(command))
    return _ask(app, words, f"vctl {command.path}", command.examples, command.params)


def show_group(
    name: str, help: str, members: Mapping[str, Iterable[tuple[str, str]]], examples: Sequence[str]
) -> None:
    """The help page of a group, or of vctl itself when the name is empty; ``members`` by section."""
    app = _app()

    @app.callback(cls=_Group, help=_plain(help), context_settings={"help_option_names": ["-h", "--help"]})
    def group(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", hidden=bool(name))
        ] = False,
    ) -> None: ...

    for section, lines in members.items():
        for word, line in lines:
            app.command(word, help=_plain(line), rich_help_panel=section)(lambda: None)
    _ask(app, ["--help"], f"vctl {name}".strip(), examples)


def _app() -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


def _ask(
    app: typer.Typer, words: Sequence[str], name: str, examples: Sequence[str], params: Sequence[Param] = ()
) -> dict[str, Any] | None:
    entry = typer.main.get_command(app)
    try:
        found = entry.main(args=list(words), prog_name=name, standalone_mode=False)
    except UsageError as error:
        raise _mistake(error, name, examples[0], params) from None
    except SystemExit:  # the reader of the help has ended: click then ends the program with an error
        raise BrokenPipeError from None
    if isinstance(found, dict):
        return found
    # not as typer's epilog, which would break the lines that users copy
    typer.echo("\n".join(["Examples:", *(f"  {example}" for example in examples), ""]))
    return None


def _is_json(text: str) -> bool:
    """Whether a text is JSON; what a shell has split without quotes is not, because it takes the quotes inside away."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _mistake(error: Any, name: str, example: str, params: Sequence[Param]) -> BadSpec:
    message = str(error.format_message())
    message = message.partition(" (Possible options")[0].partition(" Did you mean")[0].rstrip(". ")
    if hasattr(error, "possibilities") and (advice := _advice(error.option_name, params)):
        return BadSpec(message, fix=advice)
    if message.startswith("Got unexpected extra argument"):
        extra = message.partition("(")[2].removeprefix("s) (").rstrip(")")
        fix = f"see `{name} --help`"
        if "}" in extra:
            option = f"JSON needs its option, for example `{example}`"
            fix = option if _is_json(extra) else "put JSON in single quotes, or the shell splits it"
        group = name.removeprefix("vctl ").removesuffix("s")
        meant = f"{group} {extra.partition(' ')[0]}"
        if group in GROUPS and meant in (command.path for command in members(group)):  # nodes list
            fix = f"did you mean `vctl {meant}`?"
        return BadSpec(f"too many arguments: {extra}", fix=fix)
    if message.startswith("Missing"):
        return BadSpec(message, fix=f"for example `{example}`; see `{name} --help`")
    wrong = getattr(error, "param", None)
    for param in params:
        if wrong is not None and param.name == wrong.name and param.type in (int, float):
            kind = "a whole number" if param.type is int else "a number"
            return BadSpec(f"{param.spelled}: {kind} is expected", fix=f"write for example {param.spelled} 5")
    return BadSpec(message, fix=f"see `{name} --help`")


def _advice(option: str, params: Sequence[Param]) -> str | None:
    """The option to write in place of an unknown one. Guesses of typer count the dashes: --qos would be --nodes."""
    own = [name for param in params for name in (*param.info.names, param.info.off) if name]
    long = [name for name in (*own, "--help") if name.startswith("--")]
    answers = answers_to(option, long)
    answer = answers[0] if answers else nearest(option, long)
    return f"did you mean {answer}?" if answer and answer.startswith("--") else answer


def _callback(command: Command) -> Callable[..., dict[str, Any]]:
    """A function with the signature that typer needs; it returns the values that typer read."""

    def callback(**values: Any) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    params = [
        inspect.Parameter(
            param.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if param.required else param.absent,
            annotation=_annotation(param),
        )
        for param in command.params
    ]
    callback.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]  # read by typer
    callback.__annotations__ = {param.name: param.annotation for param in params}
    return callback


def _annotation(param: Param) -> Any:
    kind: Any = list[param.type] if param.many else param.type  # type: ignore[name-defined]  # a value, not a type
    if not param.required and not param.is_flag:
        kind = Optional[kind]  # noqa: UP045  # older typers do not know X | None
    info = param.info
    help, metavar = _plain(info.help), param.metavar
    if param.is_argument:
        return Annotated[kind, typer.Argument(metavar=metavar, help=help, show_default=False)]
    names = list(info.names)
    if param.is_flag:
        if info.off:
            names[-1] = f"{names[-1]}/{info.off}"
            kind = Optional[bool] if param.default is None else bool  # noqa: UP045  # as above
        return Annotated[kind, typer.Option(*names, help=help, show_default=False)]
    return Annotated[kind, typer.Option(*names, help=help, metavar=metavar, show_default=False)]


def _plain(text: str) -> str:
    """The text with escaped brackets, which rich would read as markup."""
    return text.replace("[", "\\[")
