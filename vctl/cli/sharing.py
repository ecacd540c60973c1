"""``vctl daemon --shared``: checks what a shared service needs, then becomes its keeper.

The keeper is a small program of its own (``vctl/privileged/keeper.py``), as it stays root: nothing that was imported
here is in it.
"""

import os
import sys
from typing import NoReturn

from vctl.cli.service_units import ServiceWords
from vctl.config import Config
from vctl.errors import Conflict, NotFound, NotPermitted, VctlError
from vctl.ops.background import SETTINGS, small_environment
from vctl.privileged import keeper, places

_KINDS = {kind.exit_code: kind for kind in (NotFound, Conflict, NotPermitted)}
CONFIG = "/etc"
"""Where the processes of a service have their settings file: /etc/vctl/config.toml."""


def words_of(config: Config, account: str | None) -> ServiceWords:
    """What the service of this machine is started with."""
    home, path = _given(config, "home", places.HOME), _given(config, "socket", places.SOCKET)
    return ServiceWords(home, path, account or places.ACCOUNT)


def serve_users(config: Config, service: ServiceWords) -> NoReturn:
    """Become the keeper of the service of this machine. Raises what prevents it."""
    if os.geteuid() != 0:
        raise NotPermitted(
            "--shared: only root can start processes of other users",
            fix="sudo vctl daemon --shared; or without --shared a scheduler of your own",
        )
    try:
        places.prepare(service.home, places.account_of(service.account))
    except places.Refused as error:
        raise _KINDS.get(error.code, VctlError)(error.problem, fix=error.fix) from None
    words = [sys.executable, "-I", "-S", keeper.__file__, service.home, service.socket, service.account]
    os.execve(words[0], words, _environment(config))


def _given(config: Config, name: str, default: str) -> str:
    """A setting of the service: of an option or a variable, not of a file, which may be any user's."""
    return default if _is_of_a_file(config, name) else str(config.get(name))


def _is_of_a_file(config: Config, name: str) -> bool:
    return config.origins[name] != "flag" and not config.origins[name].startswith("environment")


def _environment(config: Config) -> dict[str, str]:
    """The variables of the keeper and of all that it starts: few, and none of a settings file of root's."""
    names = [name for name in SETTINGS if not _is_of_a_file(config, name)]
    env = small_environment(os.environ)
    for name in ("HOME", "USER", "LOGNAME", "TMPDIR"):
        env.pop(name, None)
    notify = {name: os.environ[name] for name in ("NOTIFY_SOCKET",) if name in os.environ}
    return {**env, **config.handed_on(names), "XDG_CONFIG_HOME": CONFIG, **notify}
