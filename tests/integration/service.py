"""A shared service with real users of this machine, for tests that are root."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import PATIENCE_S, ROOT, Ran, eventually, is_gone

_OWN = f"vctlt{os.getpid() % 100000}"
ACCOUNT, ANA, BEN = f"{_OWN}s", f"{_OWN}a", f"{_OWN}b"
"""The account of the service and two users; names of this process alone, as several may run at once."""


def python() -> str | None:
    """This Python, or one of the same version that every user can run; None without one."""
    for path in (sys.executable, f"/usr/bin/python3.{sys.version_info[1]}"):
        if os.path.exists(path) and _can_be_run(path):
            return path
    return None


def _can_be_run(path: str) -> bool:
    words = [path, "-P", "-c", "import vctl, pydantic, fastapi"]
    try:
        done = subprocess.run(
            words, env=variables(), user=65534, group=65534, extra_groups=[], cwd="/", check=False,
            capture_output=True,
        )  # fmt: skip
    except PermissionError:
        return False
    return done.returncode == 0


def variables() -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), *site.getsitepackages()]),
        "LANG": "C.UTF-8",
    }


def make_user(name: str, *words: str) -> None:
    subprocess.run(["useradd", *words, name], check=True, capture_output=True)


def remove_user(name: str) -> None:
    subprocess.run(["userdel", "-rf", name], check=False, capture_output=True)


class Service:
    """A running service, and its users."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.python = folder, python
        self.home, self.socket = folder / "home", folder / "run" / "vctl.sock"
        self.log = folder / "log"
        self.more: dict[str, str] = {}
        self.keeper: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> Path:
        return self.home / "state"

    def words(self) -> list[str]:
        """The command line of the keeper."""
        more = ["--account", ACCOUNT, "--home", str(self.home), "--socket", str(self.socket)]
        return [self.python, "-P", "-m", "vctl", "daemon", "--shared", *more]

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.keeper = subprocess.Popen(
                self.words(), env={**variables(), **self.more}, cwd="/",
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
            )  # fmt: skip

        def serves() -> bool:
            assert self.keeper is not None and self.keeper.poll() is None, self.log.read_text()
            return "serves users at" in self.log.read_text()

        eventually(serves, "the service")

    def pid_of(self, name: str) -> int | None:
        """The pid of one of the processes that the keeper has started."""
        marks = {
            "scheduler": f"vctl.cli.service\0scheduler\0{self.home}\0",
            "server": f"vctl.cli.service\0server\0{self.home}\0",
            "launcher": f"launcher.py\0{self.state}\0",
        }
        assert self.keeper is not None
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    words = Path("/proc", entry, "cmdline").read_bytes().decode("utf-8", "replace")
                    parent = re.search(r"PPid:\t(\d+)", Path("/proc", entry, "status").read_text())
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if marks[name] in words and parent is not None and int(parent[1]) == self.keeper.pid:
                    return int(entry)
        return None

    def run(self, user: str, *words: str, within_s: float = PATIENCE_S, **env: str) -> Ran:
        """A command of a user."""
        done = subprocess.run(
            [self.python, "-P", "-m", "vctl", *words], cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
            check=False, timeout=within_s, **self.of(user, env),
        )  # type: ignore[call-overload]  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr, 0.0)

    def of(self, user: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What makes a process one of a user, for subprocess."""
        entry = pwd.getpwnam(user)
        own = {
            **variables(),
            "HOME": entry.pw_dir,
            "USER": user,
            "VCTL_SOCKET": str(self.socket),
            **(env or {}),
        }
        groups = os.getgrouplist(user, entry.pw_gid)
        return {"env": own, "user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}

    def ok(self, user: str, *words: str, **env: str) -> str:
        done = self.run(user, *words, **env)
        assert done.code == 0, (words, done, self.log.read_text()[-3000:])
        return done.out

    def read(self, user: str, *words: str) -> Any:
        return json.loads(self.ok(user, *words, "-o", "json"))

    def end(self) -> None:
        """End the service and every job."""
        if self.keeper is not None and self.keeper.poll() is None:
            self.keeper.send_signal(signal.SIGTERM)
            self.keeper.wait(PATIENCE_S)
        for pid in self._supervised():
            for one in (pid, *children_of(pid)):
                with_signal(one, signal.SIGKILL)
            eventually(lambda pid=pid: is_gone(pid), "the end of a supervisor")

    def _supervised(self) -> list[int]:
        """The supervisors of the service."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if os.fsencode(self.state) in words and any(word.endswith(b"launcher.py") for word in words):
                    found.append(int(entry))
        return found


def children_of(pid: int) -> list[int]:
    from vctl.runtime import processes

    return processes.descendants(pid)


def with_signal(pid: int, signo: int) -> None:
    try:
        os.kill(pid, signo)
    except ProcessLookupError:
        return


@contextmanager
def users_of_the_host() -> Iterator[None]:
    """The account of the service, and two users."""
    try:
        for name in (ANA, BEN):
            make_user(name, "--create-home", "--user-group", "--shell", "/bin/bash", "-K", "UID_MIN=20000")
        make_user(ACCOUNT, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin")
        yield
    finally:
        for name in (ANA, BEN, ACCOUNT):
            remove_user(name)


@contextmanager
def running_service() -> Iterator[Service]:
    """A service of its own, which has ended at the end."""
    if (path := python()) is None:
        pytest.skip("no user but root can run this Python: it lies where others cannot read")
    folder = Path(tempfile.mkdtemp(prefix="vctlt-"))
    folder.chmod(0o755)
    service = Service(folder, path)
    try:
        service.start()
        yield service
    finally:
        service.end()
        shutil.rmtree(folder)
