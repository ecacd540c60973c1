"""Settings, completion scripts and the HTTP server: vctl config, completion and serve."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

from vctl import cli, ops
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, NO_LOCAL_NODE, READS
from vctl.cli.declare import command
from vctl.cli.output import Answer, Data, listing, single
from vctl.cli.table import Column, matters
from vctl.config import OF_THE_SCHEDULER
from vctl.spec.params import Arg, Opt
from vctl.store.locks import scheduler_is_running


@command(
    "serve",
    "vctl serve",
    "vctl serve --host 0.0.0.0 --port 8265 --token-file ~/vctl.token",
    "vctl serve --uds /run/user/1000/vctl.sock",
    common=(NO_LOCAL_NODE, *CHANGES),
    lasts=True,
)
def serve(
    call: Call,
    host: Annotated[
        str | None, Opt("--host", metavar="ADDR", help="Address to listen on (127.0.0.1).")
    ] = None,
    port: Annotated[int | None, Opt("--port", help="Port (8265); 0 takes a free one.")] = None,
    uds: Annotated[
        str | None,
        Opt(
            "--uds",
            metavar="PATH",
            complete="file",
            help="Listen on a unix socket of your own instead of a port.",
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        Opt(
            "--token-file",
            metavar="FILE",
            complete="file",
            help="The token (default: the file token in the state).",
        ),
    ] = None,
    no_token: Annotated[bool, Opt("--no-token", help="Require no token; allowed on loopback only.")] = False,
) -> int:
    """Run the HTTP server until it is stopped.

    Clients send the token, which is made at the first start. VCTL_ADDRESS and VCTL_TOKEN send every vctl command
    to this server.
    """
    from vctl.http.listen import serve as answer_requests

    return answer_requests(
        call.config, host=host, port=port, uds=uds, token_file=token_file, no_token=no_token, say=call.note
    )


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


@command("config show", "vctl config show --origin", "vctl config show -o json", common=READS)
def show(
    call: Call, origin: Annotated[bool, Opt("--origin", help="Also show the origin of each value.")] = False
) -> Answer:
    """Show every setting with its value, and what is in force.

    A scheduler reads its settings when it starts: IN FORCE shows the value that the running one has, and nothing where
    none runs. All other settings hold for each command by itself.
    """
    has = _in_force(call)
    items: Sequence[Data] = [
        {
            "name": setting.name,
            "value": _plain(value),
            "in_force": _plain(has.get(setting.name) if setting.name in OF_THE_SCHEDULER else value),
            "origin": where,
            "env": setting.env,
            "help": setting.help,
        }
        for setting, value, where in call.config.rows()
    ]
    values = matters("VALUE", lambda item: cli.words.value(item["name"], item["value"]))
    in_force = Column("IN FORCE", lambda item: cli.words.value(item["name"], item["in_force"]))
    columns = [Column("SETTING", "name"), values, in_force]
    if origin:
        columns.append(Column("ORIGIN", "origin"))
    columns.append(Column("VARIABLE", "env"))
    return listing("SettingList", items, len(items), "name", columns, "")


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else value


def _in_force(call: Call) -> Mapping[str, object]:
    """The settings of the running scheduler; none where none runs, or on the machine of a server. Creates nothing."""
    if call.is_remote or not scheduler_is_running(call.home):
        return {}
    return ops.background.in_force(call.store) or {}


@command("config path", "vctl config path", common=READS)
def path(call: Call) -> Answer:
    """Print where the state is and which files are read."""
    from vctl.config import PROJECT_FILE, USER_FILE

    base = call.config.env.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    data: Data = {
        "home": str(call.home),
        "project_file": os.path.join(call.config.cwd, PROJECT_FILE),
        "user_file": os.path.join(base, USER_FILE),
    }
    if call.config.is_shared:
        data = {**data, "service": call.config.get("address")}
    return single(
        data, call.home, lambda screen: screen.pairs([(name, str(value)) for name, value in data.items()])
    )
