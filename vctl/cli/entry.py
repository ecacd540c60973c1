"""Carries a command line out in this process: the completions of the shell, or a command."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vctl.cli.app import Served


def carry_out(words: list[str], served: Served | None = None) -> int:
    """The exit code of a command line. ``served``: the fork of a command server that it runs in."""
    if words[:1] == ["__complete"]:
        from vctl.cli.completion import offer

        return offer(words[1:])
    from vctl.cli.app import run

    return run(words, served)
