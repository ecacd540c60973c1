"""Real users of this machine, made for a test and removed after it. Only root can."""

from __future__ import annotations

import os
import pwd
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FIRST_UID, LAST_UID = 20000, 29999
_BUSY = "cannot lock"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="it makes users of this machine: only root can")


class HostUsers:
    """Users and groups whose names begin with ``vctlt``; ``remove`` removes them."""

    def __init__(self) -> None:
        self.dice = random.SystemRandom()
        self.mark = f"vctlt{self.dice.randrange(16**6):06x}"
        self.users: list[str] = []
        self.groups: list[str] = []

    def add(self, name: str, *options: str, groups: tuple[str, ...] = ()) -> pwd.struct_passwd:
        """A user with a home; ``options``: of useradd. ``groups``: made if they do not exist."""
        login = f"{self.mark}{name}"
        for group in groups:
            if f"{self.mark}{group}" not in self.groups:
                carry_out("groupadd", f"{self.mark}{group}")
                self.groups.append(f"{self.mark}{group}")
        more = ("--groups", ",".join(f"{self.mark}{group}" for group in groups)) if groups else ()
        carry_out(
            "useradd", "--create-home", "--user-group", "--uid", str(self.free_uid()), *more, *options, login
        )
        self.users.append(login)
        return pwd.getpwnam(login)

    def free_uid(self) -> int:
        used = {entry.pw_uid for entry in pwd.getpwall()}
        return self.dice.choice([uid for uid in range(FIRST_UID, LAST_UID) if uid not in used])

    def remove(self) -> None:
        for name in self.users:
            carry_out("userdel", "--remove", "--force", name)
        for name in self.groups:
            carry_out("groupdel", name)


def carry_out(*words: str) -> None:
    """A command of the host's database of users, which only one at a time may change."""
    give_up = time.monotonic() + 60
    while True:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if _BUSY not in done.stderr or time.monotonic() > give_up:
            break
        time.sleep(0.05)
    assert done.returncode == 0, f"{words}: {done.stderr}"


@contextmanager
def acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """Be another user, as far as the kernel judges what is done; root inside of ``as_root``."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@contextmanager
def as_root() -> Iterator[None]:
    uid, gid = os.geteuid(), os.getegid()
    os.seteuid(0)
    os.setegid(0)
    try:
        yield
    finally:
        os.setegid(gid)
        os.seteuid(uid)
