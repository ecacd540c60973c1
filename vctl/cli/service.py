"""The processes of a shared service that run under its account: ``python -m vctl.cli.service WHAT HOME SOCKET``.

The keeper starts them (``vctl/privileged/keeper.py``): the scheduler and the server. Their settings are those of
``/etc/vctl/config.toml`` and of the environment that ``vctl daemon --shared`` was given.
"""

import fcntl
import os
import socket
import sys
from contextlib import suppress

from vctl.cli import app
from vctl.config import load
from vctl.http import listen
from vctl.ops import logs
from vctl.privileged.keeper import CHECK, FIRST, LINE, SCHEDULER, SERVER
from vctl.privileged.places import JOBS, LOGS, STATE
from vctl.runtime.keeper import KeeperLine

_HIGH = 100


def main() -> int:
    """Be one of the processes until the keeper ends it; returns the exit code."""
    what, home, path = sys.argv[1:4]
    try:
        line = os.dup(LINE)
        os.set_inheritable(line, False)  # noqa: FBT003
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, LINE)  # children must not get the line as their standard input
        os.close(nothing)
        keeper = KeeperLine(line)
        logs.remove_for_us = keeper.remove_log
        if what == CHECK:
            listen.import_server()
            load(cwd="/")  # a mistake in the settings is told to who starts the service
            return 0
        state = f"{home}/{STATE}"
        for name in (LOGS, JOBS):
            with suppress(FileExistsError):
                os.symlink(f"../{name}", f"{state}/{name}")
        config = load(cwd="/", flags={"home": state, "autostart": False})
        if what == SCHEDULER:
            make_job_folders(home)
            from vctl.daemon.loop import SharedService, run_daemon

            # above the descriptors that the command server gets
            words = socket.socket(fileno=fcntl.fcntl(FIRST, fcntl.F_DUPFD_CLOEXEC, _HIGH))
            os.close(FIRST)
            return run_daemon(config.home(), config, SharedService(keeper, f"unix:{path}", words))
        assert what == SERVER
        listen.serve_users(config, socket.socket(fileno=FIRST), keeper)
    except Exception as error:  # noqa: BLE001 - reported in the log of the service
        return app.failed(error, [])
    return 0


def make_job_folders(home: str) -> None:
    """Make the directories with the files of jobs: who knows a name in them may go there, and nobody can list them."""
    from vctl.daemon import gangs, notices
    from vctl.runtime import objects

    for name in (objects.ROOT, notices.FOLDER, gangs.FOLDER):
        folder = f"{home}/{JOBS}/{name}"
        with suppress(FileExistsError):
            os.mkdir(folder)
        os.chmod(folder, 0o711)


if __name__ == "__main__":
    sys.exit(main())
