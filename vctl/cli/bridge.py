"""Declared commands for typer, which reads the command lines that ``declare.read`` cannot read, and names mistakes."""

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Optional, cast

import typer

from vctl.cli.catalog import GROUPS, answers_to, members
from vctl.cli.declare import Command
from vctl.errors import BadSpec
from vctl.spec.fields import nearest
from vctl.spec.params import Param

UsageError = cast(type[Exception], typer.BadParameter.__base__)
"""The usage error of click, or of the click inside newer versions of typer."""


def read(command: Command, words: Sequence[str]) -> dict[str, Any]:
    """The values of all parameters, read by typer. Raises BadSpec for mistakes."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"help_option_names": [], "allow_interspersed_args": not command.own_words}
    app.command(context_settings=settings)(_callback(command))
    name = f"vctl {command.path}"
    entry = typer.main.get_command(app)
    try:
        values: dict[str, Any] = entry.main(args=list(words), prog_name=name, standalone_mode=False)
    except UsageError as error:
        raise _mistake(error, name, command.examples[0], command.params) from None
    return values


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
    if hasattr(error, "possibilities"):
        takes_jobs = any(param.many and param.info.complete == "jobs" for param in params)
        if error.option_name == "--all" and takes_jobs:
            return BadSpec(message, fix=f"a pattern names all jobs: `{name} '*'`")
        if advice := _advice(error.option_name, params):
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
        own = {name for param in params for name in param.info.names}
        if (flag := f"--{extra.partition(' ')[0]}") in own:  # daemon status
            fix = f"did you mean `{name} {flag}`?"
        elif "--job" in own and "}" not in extra and not extra.startswith("-"):  # events train
            fix = f"only those of one job: `{name} --job {extra.partition(' ')[0]}`"
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
    info, metavar = param.info, param.metavar
    if param.is_argument:
        return Annotated[kind, typer.Argument(metavar=metavar)]
    names = list(info.names)
    if param.is_flag:
        if info.off:
            names[-1] = f"{names[-1]}/{info.off}"
            kind = Optional[bool] if param.default is None else bool  # noqa: UP045  # as above
        return Annotated[kind, typer.Option(*names)]
    return Annotated[kind, typer.Option(*names, metavar=metavar)]
