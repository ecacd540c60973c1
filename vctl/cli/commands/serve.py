"""``vctl serve``: the HTTP server."""

from typing import Annotated

from vctl.cli.call import Call
from vctl.cli.common import CHANGES, NO_LOCAL_NODE
from vctl.cli.declare import command
from vctl.operations.declare import Opt


@command(
    "serve",
    "vctl serve",
    "vctl serve --host 0.0.0.0 --port 8265 --token-file ~/vctl.token",
    "vctl serve --uds /run/user/1000/vctl.sock",
    common=(NO_LOCAL_NODE, *CHANGES),
)
def serve(
    call: Call,
    host: Annotated[
        str, Opt("--host", metavar="ADDR", help="Address to listen on (127.0.0.1).")
    ] = "127.0.0.1",
    port: Annotated[int, Opt("--port", help="Port (8265); 0 takes a free one.")] = 8265,
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
