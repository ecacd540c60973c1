"""``vctl serve``: the sockets of the server, its token, and its run."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vctl.errors import BadSpec, Conflict, NotPermitted, VctlError

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.http.context import Server
    from vctl.runtime.keeper import KeeperLine

TOKEN_FILE = "token"
MIN_TOKEN = 16
GRACE_S = 3
ACCEPTED = 64
"""The most connections that the event loop accepts in one step."""
HOST, PORT = "127.0.0.1", 8265


def serve(
    config: Config,
    *,
    host: str | None,
    port: int | None,
    uds: str | None,
    token_file: str | None,
    no_token: bool,
    say: Callable[[str], None],
) -> int:
    """Answer requests until SIGINT or SIGTERM. Refuses to listen without a token where other users could connect."""
    options = {"--host": host, "--port": port, "--uds": uds, "--token-file": token_file}
    _check_options(options, no_token=no_token)
    import_server()
    from vctl.http.context import Server
    from vctl.http.guard import is_loopback
    from vctl.ops.users import Users
    from vctl.store import settings
    from vctl.store.database import prepare_home
    from vctl.store.store import Store

    host, port = HOST if host is None else host, PORT if port is None else port
    loopback = uds is None and is_loopback(host)
    if no_token and uds is None and not loopback:
        raise NotPermitted(
            f"--no-token: anybody who reaches {host} could run commands here",
            fix="leave --no-token out, or listen on 127.0.0.1",
        )
    home = config.home()
    prepare_home(home)
    with Store.open(home) as store:  # fail now if the state cannot be opened
        users = Users() if settings.is_shared(store) else None
    if users is not None and no_token:
        raise NotPermitted(
            "--no-token: a server of a state that users share must know who asks",
            fix="leave it out: users get tokens by `vctl login`",
        )
    token = None if no_token or uds is not None else read_token(config, token_file)
    listening = _unix(uds) if uds is not None else _tcp(host, port)
    server = Server(home, config, token, loopback=loopback, users=users)
    where = f"unix:{uds}" if uds is not None else _url(host, listening)
    said = f"vctl serve {os.getpid()} answers at {where}" + ("" if token else ", without a token")
    try:
        _answer(server, listening, lambda: say(said))
    finally:
        listening.close()
        if uds is not None:
            Path(uds).unlink(missing_ok=True)
    return 0


def serve_users(config: Config, listening: socket.socket, keeper: KeeperLine) -> None:
    """Answer the users of this host at a socket of the keeper, until it ends or SIGTERM; tokens are not asked for."""
    import_server()
    from vctl.http.context import Server
    from vctl.ops.users import Users
    from vctl.store.store import Store

    home = config.home()
    Store.open(home).close()
    address = f"unix:{listening.getsockname()}"
    server = Server(home, config, None, loopback=False, users=Users(), address=address)
    _answer(server, listening, lambda: None, keeper)


def import_server() -> None:
    """Import the packages that only a server needs. Raises the error that says which one is missing."""
    try:
        import uvicorn  # noqa: F401

        from vctl.http import app  # noqa: F401
    except ImportError as error:
        raise VctlError(
            f"the server needs a package that is not installed: {error.name}",
            fix=f"{sys.executable} -m pip install fastapi uvicorn wsproto",
        ) from None


def _answer(
    server: Server, listening: socket.socket, begun: Callable[[], None], keeper: KeeperLine | None = None
) -> None:
    """Answer requests until a signal, or until the keeper ends; ``begun`` is called when signals are handled."""
    import uvicorn

    from vctl.http.app import create_app
    from vctl.http.protocol import Ending, limited

    websockets: Literal["none", "wsproto"] = (
        "none" if find_spec("wsproto") is None else "wsproto"
    )  # for Ray's clients
    names_peers = server.users is not None and listening.family == socket.AF_UNIX
    settings = uvicorn.Config(
        create_app(server), http=limited(names_peers=names_peers), ws=websockets, backlog=ACCEPTED,
        log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S,
        proxy_headers=False, lifespan="on",
    )  # fmt: skip
    ending = Ending(settings, server.changes, keeper)
    # before uvicorn handles them, and when it raises them again
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ending.leave)
    begun()
    ending.run(sockets=[listening])


def _check_options(given: Mapping[str, object], *, no_token: bool) -> None:
    """Refuse an option that is empty, or that would have no effect beside another one."""
    for name, value in given.items():
        if value == "":  # an empty path of a socket is an abstract one, which all users can connect to
            raise BadSpec(f"{name}: it is empty", fix=f"give it a value, or leave {name} out")
    unused = {"--token-file": "--no-token"} if no_token else {}
    if given["--uds"] is not None:
        unused = dict.fromkeys(("--host", "--port", "--token-file"), "--uds")
    for name, other in unused.items():
        if given[name] is not None:
            raise BadSpec(f"{name}: it cannot be combined with {other}", fix=f"leave out {name} or {other}")


def read_token(config: Config, token_file: str | None) -> str:
    """The token: ``VCTL_TOKEN``, else that of the named file, else of the file in the state, which is created."""
    if token_file is None and (given := config.env.get("VCTL_TOKEN")):
        return _good(given.strip(), "VCTL_TOKEN")
    named = token_file or config.get("token_file")
    path = Path(named) if named else config.home() / TOKEN_FILE
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise NotPermitted(
            f"cannot write the token to {path}: {error.strerror}", fix="name another file with --token-file"
        ) from None
    else:
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    try:
        if path.stat().st_uid != os.geteuid():
            raise NotPermitted(
                f"the token in {path} was made by somebody else, who knows it",
                fix="remove the file to get a new one, or name another with --token-file",
            )
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise NotPermitted(
                f"others can read the token in {path}", fix=f"chmod 600 {path}, and make a new token"
            )
        return _good(path.read_text(encoding="utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError):
        raise NotPermitted(
            f"cannot read the token in {path}", fix="name another file with --token-file"
        ) from None


def _good(token: str, where: str) -> str:
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise BadSpec(
            f"{where} holds no token",
            fix=f"{MIN_TOKEN} characters or more, no spaces; remove it to get a new one",
        )
    return token


def _tcp(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise BadSpec(f"--port: {port} is not a port", fix="write a number from 0 (any) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise _elsewhere(host) from None
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _elsewhere(host) from None
        raise Conflict(
            f"cannot listen on {host}:{port}: {error.strerror}", fix="choose another --port"
        ) from None
    return listening


def _elsewhere(host: str) -> BadSpec:
    return BadSpec(f"--host: {host} is not an address of this machine", fix="write for example 127.0.0.1")


def _unix(path: str) -> socket.socket:
    """A unix socket to which only its owner can connect, from its creation on."""
    address = Path(path)
    if address.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                raise Conflict(
                    f"a server answers at {path} already", fix="use that one, or choose another --uds"
                )
        address.unlink()
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listening.bind(path)
        listening.listen()
    except OSError as error:
        listening.close()
        problem = "the path is too long" if error.errno is None else error.strerror
        raise Conflict(f"--uds: cannot listen at {path}: {problem}", fix="choose another path") from None
    finally:
        os.umask(before)
    return listening


def _url(host: str, listening: socket.socket) -> str:
    name = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"
