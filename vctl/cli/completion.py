"""Completion scripts, generated from the declarations: what each shell must know of every command.

``completions/`` holds the result; a test compares. Ids are asked for when TAB is pressed (``live``).
"""

from collections.abc import Mapping, Sequence

from vctl.cli import catalog
from vctl.cli.declare import Command, Param

FILES = {"bash": "vctl.bash", "zsh": "_vctl", "fish": "vctl.fish"}
LIVE = ("jobs", "tasks", "clusters", "nodes", "vnodes", "objects")


class Tree:
    """Every command that is offered, with the words that lead to it."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self.commands = {path: command for path, command in commands.items() if not command.hidden}
        self.commands.update({word: catalog.short(word) for word in catalog.SHORT})
        self.top = {word: catalog.line_of(word) for words in catalog.SECTIONS.values() for word in words}
        self.groups = {
            group: {path.split()[1]: c.help for path, c in self.commands.items() if path.split()[0] == group}
            for group in catalog.GROUPS
        }


def source(param: Param) -> str:
    """What a value may be, a word and its arguments: ``choice a b``, ``live jobs``, ``file``, or nothing."""
    if param.info.choices:
        return "choice " + " ".join(param.info.choices)
    if param.info.complete in LIVE:
        return f"live {param.info.complete}"
    return param.info.complete or ""


def options(command: Command) -> list[tuple[Param, tuple[str, ...]]]:
    """The options of a command with all their spellings."""
    return [
        (param, (*param.info.names, *((param.info.off,) if param.info.off else ())))
        for param in command.params
        if not param.is_argument
    ]


def arguments(command: Command) -> Sequence[Param]:
    """The positional arguments of a command."""
    return [param for param in command.params if param.is_argument]


def script(shell: str) -> str:
    """The completion script for a shell."""
    from vctl.cli import completion_bash, completion_fish, completion_zsh

    write = {"bash": completion_bash.write, "zsh": completion_zsh.write, "fish": completion_fish.write}[shell]
    return write(Tree(catalog.load_all()))
