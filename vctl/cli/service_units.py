"""``vctl daemon --install-service``: the units by which systemd runs a shared service.

There are two: the service, and the anchor of the cgroups of jobs. The anchor is never started again, so that a new
version of the service finds the cgroups of running jobs where they were.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from vctl.core.values import value
from vctl.errors import NotPermitted, VctlError
from vctl.ops.background import small_environment
from vctl.privileged import places

UNITS = Path("/etc/systemd/system")
SERVICE, ANCHOR = "vctl.service", "vctl-jobs.service"
_ALIVE = Path("/run/systemd/system")
"""Exists where systemd is the first process of the machine."""


@value(frozen=True, slots=True)
class ServiceWords:
    """What the service is started with."""

    home: str
    socket: str
    account: str

    def command(self) -> list[str]:
        """Its command line."""
        words = [sys.executable, "-P", "-m", "vctl", "daemon", "--shared"]
        return [*words, "--home", self.home, "--socket", self.socket, "--account", self.account]


def units_of(words: ServiceWords) -> dict[str, str]:
    """The texts of the units, by their names."""
    paths = small_environment(os.environ).get("PYTHONPATH")
    environment = f"Environment={_quoted(f'PYTHONPATH={paths}')}\n" if paths else ""
    service = f"""\
# Written by `vctl daemon --install-service`. Settings of the service: /etc/vctl/config.toml.
[Unit]
Description=vctl: one queue for all users of this machine
Wants={ANCHOR}
After=network.target nss-user-lookup.target {ANCHOR}

[Service]
Type=notify
NotifyAccess=main
{environment}ExecStart={" ".join(map(_quoted, words.command()))}
Restart=always
RestartSec=1
KillMode=process
TimeoutStopSec=45
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""
    anchor = f"""\
# Written by `vctl daemon --install-service`. The cgroups of jobs are below this unit, which only waits.
[Unit]
Description=vctl: the cgroups of jobs

[Service]
ExecStart={_quoted(shutil.which("sleep") or "/bin/sleep")} infinity
Delegate=yes
DelegateSubgroup=anchor
KillMode=process
OOMPolicy=continue
TasksMax=infinity
Restart=always

[Install]
WantedBy=multi-user.target
"""
    return {SERVICE: service, ANCHOR: anchor}


def _quoted(word: str) -> str:
    """A word as systemd reads it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = all(letter.isalnum() or letter in "/._-+:=@" for letter in word)
    return escaped if plain and word else f'"{escaped}"'


def run(words: Sequence[str]) -> None:
    """Run a command of the system. Raises VctlError with what it said."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise VctlError(
            f"cannot run {words[0]}: {error.strerror}", fix="install it, or add its directory to PATH"
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise VctlError(
            f"`{' '.join(words)}` failed: {said[-1] if said else f'exit code {done.returncode}'}",
            fix="correct that, then run this command again: it goes on where it was",
        )


class Installation:
    """What is done on a machine, with a sentence for each step."""

    def __init__(
        self,
        words: ServiceWords,
        *,
        folder: Path = UNITS,
        execute: Callable[[Sequence[str]], None] = run,
        has_systemd: bool | None = None,
    ) -> None:
        self.words, self.folder, self._execute = words, folder, execute
        self._has_systemd = _ALIVE.is_dir() if has_systemd is None else has_systemd
        self.done: list[str] = []

    def check(self) -> None:
        """Raise NotPermitted or VctlError where a service cannot be installed."""
        if os.geteuid() != 0:
            raise NotPermitted("only root can install a service", fix="sudo vctl daemon --install-service")
        if not self._has_systemd:
            how = " ".join(self.words.command()[1:]).replace("-P -m vctl", "vctl")
            raise VctlError(
                "systemd does not run this machine, so there is nobody to install a service with",
                fix=f"start it from what does, such as: setsid -f {how} 2>>/var/log/vctl.log",
            )

    def install(self) -> None:
        """Write and start the units; what is there already is left as it is."""
        self.check()
        self._make_account()
        changed = [name for name, text in units_of(self.words).items() if self._write(name, text)]
        if changed:
            self._do("systemctl", "daemon-reload")
        self._do("systemctl", "enable", "--now", ANCHOR, SERVICE)
        if SERVICE in changed:
            self._do("systemctl", "restart", SERVICE)
        self.done.append(f"users reach the service at {self.words.socket}; `vctl status` shows it")

    def uninstall(self) -> None:
        """Stop and remove the units; the state stays."""
        self.check()
        there = [name for name in (SERVICE, ANCHOR) if (self.folder / name).exists()]
        if not there:
            self.done.append("no service is installed")
            return
        self._do("systemctl", "disable", "--now", *there)
        for name in there:
            (self.folder / name).unlink()
            self.done.append(f"removed {self.folder / name}")
        self._do("systemctl", "daemon-reload")
        self.done.append(
            f"kept the account {self.words.account} and all that is in {self.words.home}; running jobs go on"
        )

    def _make_account(self) -> None:
        name = self.words.account
        try:
            places.account_of(name)
        except places.Refused as error:
            if error.code != places.NO_ACCOUNT:
                raise NotPermitted(error.problem, fix=error.fix) from None
            self._do(*places.MAKE_ACCOUNT.split(), name)

    def _write(self, name: str, text: str) -> bool:
        """Write a unit; False if it is there as it would be written."""
        path = self.folder / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return False
        new = path.with_name(f".{name}.new")
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(path)
        self.done.append(f"wrote {path}")
        return True

    def _do(self, *words: str) -> None:
        self._execute(words)
        self.done.append(f"ran {' '.join(words)}")
