"""``vctl completion``: print a completion script. Hidden: packages install the files of ``completions/``."""

import sys
from typing import Annotated

from vctl import cli
from vctl.cli.call import Call
from vctl.cli.common import CHANGES
from vctl.cli.declare import command
from vctl.operations.declare import Arg


@command(
    "completion",
    "vctl completion bash > ~/.local/share/bash-completion/completions/vctl",
    common=CHANGES,
    hidden=True,
)
def completion(
    _: Call, shell: Annotated[str, Arg("SHELL", choices=("bash", "zsh", "fish"), help="Which.")]
) -> int:
    """Print the completion script for a shell."""
    sys.stdout.write(cli.completion.SCRIPTS[shell])
    return 0
