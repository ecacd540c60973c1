"""A shared service without its keeper: this process is its scheduler, under the account; launcher and supervisors are root."""

from __future__ import annotations

import pwd
from pathlib import Path

from tests.accounts import as_root
from tests.runtime.conftest import Ground
from vctl.runtime.protocol import LaunchRequest


class SharedGround(Ground):
    """One service with its users ana and ben. Everything but what is ``as_root`` is done with the rights of the account."""

    def __init__(self, top: Path, users: dict[str, pwd.struct_passwd]) -> None:
        self.top, self.users = top, users
        self.ana, self.ben, self.account = users["ana"], users["ben"], users["svc"]
        super().__init__(top / "state")

    def request(self, run_id: str, *argv: str, **fields: object) -> LaunchRequest:
        return super().request(run_id, *argv, **({"uid": self.ana.pw_uid, "cwd": self.ana.pw_dir} | fields))

    def errors(self) -> str:
        with as_root():
            return (self.top / "launcher.log").read_text()
