"""A shared service without its keeper: the tests are its scheduler, with the rights of its account.

Launcher and supervisors are root's, as the keeper starts them.
"""

from __future__ import annotations

import os
import pwd
import socket
import sys
from pathlib import Path
from typing import cast

from tests.accounts import as_root
from tests.runtime.conftest import Ground
from vctl.runtime import forkserver
from vctl.runtime.keeper import KeeperLine
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import LaunchRequest

MARK = "VCTL_ADDRESS", "unix:/nowhere/vctl.sock"


class Starter:
    """Starts launchers as the keeper does."""

    def __init__(self, top: Path, account: pwd.struct_passwd) -> None:
        self.top, self.account = top, account
        self.pids: list[int] = []

    def launcher(self, channel: socket.socket) -> None:
        words = [
            sys.executable,
            "-I",
            "-S",
            forkserver._SCRIPT,
            f"{self.top}/state",
            "--shared",
            str(self.top),
        ]
        words += [str(self.account.pw_uid), str(self.account.pw_gid)]
        with as_root():
            files = [
                (os.POSIX_SPAWN_DUP2, channel.fileno(), 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                (
                    os.POSIX_SPAWN_OPEN,
                    2,
                    f"{self.top}/launcher.log",
                    os.O_WRONLY | os.O_APPEND | os.O_CREAT,
                    0o600,
                ),
            ]
            env = {"PATH": os.environ["PATH"]}
            self.pids.append(os.posix_spawn(words[0], words, env, file_actions=files, setsid=True))


class SharedGround(Ground):
    """A service and its users ana and ben. What is not ``as_root`` is done with the rights of the account."""

    def __init__(self, top: Path, users: dict[str, pwd.struct_passwd]) -> None:
        self.top, self.home = top, top / "state"
        self.ana, self.ben, self.account = users["ana"], users["ben"], users["svc"]
        self.starter = Starter(top, self.account)
        self.runtime = LocalRuntime(self.home, mark=MARK, keeper=cast(KeeperLine, self.starter))
        self.numbers: dict[str, int] = {}

    def request(self, run_id: str, *argv: str, **fields: object) -> LaunchRequest:
        given = {"uid": self.ana.pw_uid, "cwd": self.ana.pw_dir}
        return super().request(run_id, *argv, **(given | fields))

    def log(self, run_id: str) -> bytes:
        with as_root():
            return (self.top / "logs" / run_id).read_bytes()

    def errors(self) -> str:
        """What the launcher and the supervisors complained of, and no more of it."""
        with as_root():
            path = self.top / "launcher.log"
            said = path.read_text() if path.exists() else ""
            if said:
                path.write_text("")
            return said

    def end(self) -> None:
        super().end()
        assert self.errors() == ""


def make_places(top: Path, account: pwd.struct_passwd) -> None:
    """The directories of a service, as the keeper makes them."""
    for name, uid, gid, mode in (
        ("", 0, 0, 0o755), ("state", account.pw_uid, account.pw_gid, 0o700), ("logs", 0, account.pw_gid, 0o750),
        ("jobs", account.pw_uid, account.pw_gid, 0o711), ("jobs/objects", account.pw_uid, account.pw_gid, 0o711),
    ):  # fmt: skip
        path = top / name
        path.mkdir(exist_ok=True)
        os.chown(path, uid, gid)
        path.chmod(mode)
    os.symlink(top / "logs", top / "state" / "logs")
