"""Checks of the command, directory, name and environment of jobs and tasks."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.errors import param
from vctl.spec.fields import child, refuse, show
from vctl.spec.text import check_kernel_text

MAX_RETRIES = 1000
LONGEST_NAME = 256
COMMAND = '["python", "train.py"]'
"""The example of a command in the fix of an error; the command line shows ``COMMAND_LINE`` instead."""
COMMAND_FIX = f'write it as {COMMAND}, or for a line of a shell ["sh", "-c", "LINE"]'
COMMAND_LINE = "-- python train.py"


def check_command(argv: tuple[str, ...], cwd: str | None) -> None:
    """Refuse commands and directories with which no process can be started."""
    if not argv or not argv[0]:
        raise refuse(
            param("entrypoint"),
            "there is no command to run",
            f"give the program and its arguments, such as {param(COMMAND)}",
        )
    for word in argv:
        check_kernel_text(word, param("entrypoint"))
    if cwd is not None and not check_kernel_text(cwd, param("cwd")).startswith("/"):
        raise refuse(param("cwd"), f"{show(cwd)} is not an absolute path", "start it with /")


def check_name(name: str) -> None:
    """Check a display name, which may be empty."""
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise refuse(
            param("name"), f"{show(name)} is not a name", f"use at most {LONGEST_NAME} printable characters"
        )


def check_environment(env: Mapping[str, str]) -> None:
    """Check an environment. It may come from a process, so it may have names that ``--env`` refuses."""
    for key, value in env.items():
        if not key or "=" in check_kernel_text(key, param("env")):
            raise refuse(param("env"), f"{show(key)} is not a variable name", "write NAME=value")
        check_kernel_text(value, child(param("env"), key))
