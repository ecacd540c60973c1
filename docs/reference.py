"""The page of the command line, from the declarations: docs/generate.py writes it."""

from __future__ import annotations

from collections.abc import Iterator

from vctl.cli import catalog, common
from vctl.cli.declare import Command
from vctl.spec.params import Param

INTRO = """# Command line

<!-- Written by docs/generate.py; do not edit. -->

Bare `vctl` is `vctl status`. Results go to stdout, everything else to stderr. Every command has `--help`.
`--output`, `--color` and `--home` may also stand in front of the command: `vctl -o json job list`.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | error |
| 2 | wrong usage, or a value that cannot be read |
| 3 | could never run |
| 4 | not found |
| 5 | conflict: stale revision, in use, exists already, no capacity for a logical cluster |
| 6 | scheduler or server not reachable |
| 7 | timeout |
| 8 | not permitted |
| 130 | interrupted |

Commands that wait for a job exit with the job's own code: 128+N after signal N, 143 when it was stopped, 124
at its time limit. With `-o json` an error is `{"error": {"code", "exit_code", "message", "hint", "details"}}`
on stdout.

Environment: `VCTL_HOME` (state directory), `VCTL_CLUSTER` (where jobs go), `VCTL_OUTPUT`, `VCTL_COLOR`,
`NO_COLOR`, `VCTL_LOCAL_NODE=0` (this machine does not become a node), `VCTL_DEBUG=1` (traceback of internal
errors); the rest is in `vctl config show`."""


def reference() -> str:
    """The whole page."""
    commands = [command for command in catalog.load_all().values() if not command.hidden]
    lines = [INTRO, "", "## Shared options", "", *_options(common.LISTS), ""]
    lines += [
        "Commands that change something have `--output`, `--color` and `--home`; those that read have",
        "`--watch` and `--no-header` too; lists also have `--filter` and `--limit`.",
        "",
    ]
    for command in commands:
        lines += [*_section(command), ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(command: Command) -> Iterator[str]:
    yield f"## vctl {command.path}"
    yield ""
    yield command.help + (f" {command.details}" if command.details else "")
    yield ""
    yield f"`{usage(command)}`"
    yield ""
    if word := next((word for word, path in catalog.SHORT.items() if path == command.path), None):
        yield f"Short: `vctl {word}`."
        yield ""
    everywhere = {shared.name for shared in common.LISTS}
    if own := [param for param in command.params if param.name not in everywhere]:
        yield from _options(own)
        yield ""
    if shared := [f"`{param.spelled}`" for param in command.params if param.name in everywhere]:
        yield f"Shared: {', '.join(shared)}"
        yield ""
    yield "```sh"
    yield from command.examples
    yield "```"


def usage(command: Command) -> str:
    """``vctl job submit [OPTIONS] -- CMD...``."""
    words = [f"vctl {command.path}", "[OPTIONS]"]
    for param in command.params:
        if param.is_argument:
            word = param.metavar + ("..." if param.many else "")
            word = f"-- {word}" if command.own_words else word
            words.append(word if param.required else f"[{word}]")
    return " ".join(words)


def _options(params: list[Param] | tuple[Param, ...]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "| --- | --- |"
    for param in params:
        if param.is_argument:
            names = f"`{param.metavar}`"
        else:
            value = "" if param.is_flag else f" [{param.metavar}]" if param.info.bare else f" {param.metavar}"
            spelled = [*param.info.names, *([param.info.off] if param.info.off else [])]
            names = f"`{', '.join(spelled)}{value}`"
        yield f"| {names.replace('|', chr(92) + '|')} | {param.info.help.replace('|', chr(92) + '|')} |"
