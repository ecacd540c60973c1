"""How a command is declared: a function whose signature carries its options, as in typer.

The one declaration is read by ``quick`` (fast), ``bridge`` (typer: help and usage errors), ``completion`` and
``reference``. Own small types stand in for typer's, because importing typer costs more than answering.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import UnionType
from typing import Any, get_args, get_origin


class Opt:
    """One option of a command: ``cluster: Annotated[str | None, Opt("-c", "--cluster", help="…")] = None``.

    ``off`` names the opposite of a flag, ``bare`` is the value meant when the option stands alone, and
    ``complete`` says what the shell offers: jobs, clusters, nodes, file or dir.
    """

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        choices: Sequence[str] = (),
        complete: str | None = None,
        off: str | None = None,
        bare: str | None = None,
    ) -> None:
        self.names = names
        self.help = help
        self.metavar = metavar
        self.choices = tuple(choices)
        self.complete = complete
        self.off = off
        self.bare = bare


class Arg(Opt):
    """One positional argument; ``Arg("JOB", help="…")``."""

    def __init__(
        self, metavar: str, *, help: str, choices: Sequence[str] = (), complete: str | None = None
    ) -> None:
        super().__init__(help=help, metavar=metavar, choices=choices, complete=complete)


class Together:
    """Options that several commands share; the function gets those that were given, as one map by these names.

    ``queue: Annotated[Given, Together(order=Order, weight=Weight)] = None``
    """

    def __init__(self, **options: Any) -> None:
        self.params = [Param(name, annotation, default=None) for name, annotation in options.items()]


Given = Mapping[str, Any] | None
"""What a function gets for options that stand together."""


class Param:
    """An option or argument together with its type and default."""

    def __init__(self, name: str, annotation: Any, *, default: Any, required: bool = False) -> None:
        self.name = name
        self.annotation = annotation
        self.info: Opt = annotation.__metadata__[0]
        self.default = default
        self.required = required
        self.is_argument = isinstance(self.info, Arg)
        kind = annotation.__origin__
        if get_origin(kind) is UnionType:
            kind = next(part for part in get_args(kind) if part is not type(None))
        self.many = get_origin(kind) is list
        self.type: type = get_args(kind)[0] if self.many else kind
        self.is_flag = self.type is bool
        self.to_kernel = self.info.complete in ("file", "dir", "command") or "--env" in self.info.names
        """Whether the value is bytes to the kernel (a path, an argument, a variable), not words to people."""

    @property
    def metavar(self) -> str:
        """The word that stands for the value in help: the choices, the given word, or the type."""
        if self.info.metavar:
            return self.info.metavar
        return "|".join(self.info.choices) or {int: "N", float: "NUMBER"}.get(self.type, "TEXT")

    @property
    def spelled(self) -> str:
        """How messages call it: the longest option name, or the argument's word."""
        return max(self.info.names, key=len) if self.info.names else self.metavar


class Command:
    """One command: its words, its function, what it asks for and its examples."""

    def __init__(
        self, path: str, run: Callable[..., Any], examples: Sequence[str], common: Sequence[Param]
    ) -> None:
        self.path = path
        self.run = run
        self.examples = tuple(examples)
        self.common = {param.name: param for param in common}
        self.hidden = False
        self.own_words = False
        """True when everything from the first positional word on belongs to the user's own command."""
        text = (run.__doc__ or "").strip()
        self.help, _, rest = text.partition("\n")
        self.details = " ".join(rest.split())

    def called(self, word: str) -> "Command":
        """The same command under a shorter word; its examples too."""
        twin = copy(self)
        twin.path = word
        twin.examples = tuple(
            example.replace(f"vctl {self.path}", f"vctl {word}") for example in self.examples
        )
        return twin

    @property
    def params(self) -> list[Param]:
        """Its own options and arguments, then those it shares with others."""
        own = [one.params if isinstance(one, Together) else [one] for one in _own_params(self.run).values()]
        return [*(param for group in own for param in group), *self.common.values()]

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of its own parameters as the function takes them."""
        found: dict[str, Any] = {}
        for name, param in _own_params(self.run).items():
            if isinstance(param, Together):
                given = {one.name: values[one.name] for one in param.params}
                found[name] = {key: value for key, value in given.items() if value is not None}
            else:
                found[name] = values[name]
        return found


def _own_params(run: Callable[..., Any]) -> dict[str, Param | Together]:
    code, defaults = run.__code__, run.__defaults__ or ()
    names = code.co_varnames[1 : code.co_argcount]  # the first is the Call
    first_default = len(names) - len(defaults)
    found: dict[str, Param | Together] = {}
    for index, name in enumerate(names):
        required = index < first_default
        default = None if required else defaults[index - first_default]
        annotation = run.__annotations__[name]
        together = annotation.__metadata__[0]
        if isinstance(together, Together):
            found[name] = together
        else:
            found[name] = Param(name, annotation, default=default, required=required)
    return found


COMMANDS: dict[str, Command] = {}
"""Every command of the modules loaded so far, by its words: ``job submit``."""


def command(
    path: str,
    *examples: str,
    common: Sequence[Param] = (),
    hidden: bool = False,
    own_words: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the command with these words. The docstring's first line is its one-line help."""

    def declare(run: Callable[..., Any]) -> Callable[..., Any]:
        made = Command(path, run, examples, common)
        made.hidden, made.own_words = hidden, own_words
        COMMANDS[path] = made
        return run

    return declare
