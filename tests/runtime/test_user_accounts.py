"""Whom root's half of a service starts a process as: the host's own files say it, not the scheduler that asks."""

from __future__ import annotations

import grp
import os
import pwd
import time
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.privileged import accounts

pytestmark = spec("19.start")
TODAY = int(time.time()) // 86400
SHADOW = {
    "a password": ("$y$hash:19000:0:99999:7:::", None),
    "none, as for people with a key": ("!:19000:0:99999:7:::", None),
    "none, as a cloud image has it": ("*:19000:0:99999:7:::", None),
    "one that was locked": ("!$y$hash:19000:0:99999:7:::", "the account ana is locked: usermod --unlock ana"),
    "an account that has expired": (f"!:19000:0:99999:7::{TODAY}:", "the account ana has expired: "),
    "one that expires tomorrow": (f"!:19000:0:99999:7::{TODAY + 1}:", None),
    "a password that is too old": (f"$y$h:{TODAY - 50}:0:30:7:10::", "the password of ana is too old, "),
    "one that is too old, and may be changed yet": (f"$y$h:{TODAY - 50}:0:30:7:30::", None),
}
GROUPS = {20001: "ana", 20100: "lab"}


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with the user ana, of the group lab."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/login.defs").write_text("# UID_MIN 5\nUID_MIN   2000\nUMASK\t027\n")
    entry = pwd.struct_passwd(("ana", "x", 20001, 20001, "", "/home/ana", "/bin/zsh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {20001: entry}[uid])
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [20001, 20100, 0, 20101])
    named = {number: grp.struct_group((name, "x", number, [])) for number, name in GROUPS.items()}
    monkeypatch.setattr(grp, "getgrgid", named.__getitem__)
    return tmp_path / "etc"


@pytest.mark.parametrize("what", SHADOW)
def test_an_account_that_is_locked_or_over_has_no_processes(etc: Path, what: str) -> None:
    fields, problem = SHADOW[what]
    (etc / "shadow").write_text(f"root:*:1::::::\nana:{fields}\n")
    users = accounts.Accounts(999, root=str(etc.parent))
    if problem is None:
        assert users.account(20001).name == "ana"
    else:
        with pytest.raises(accounts.UserRefused, match=problem):
            users.account(20001)


def test_an_account_is_read_again_when_it_was_locked_meanwhile(etc: Path) -> None:
    users = accounts.Accounts(999, root=str(etc.parent))
    (etc / "shadow").write_text("ana:!:19000:0:99999:7:::\n")
    assert users.account(20001).umask == 0o027
    (etc / "shadow").write_text("ana:!:19000:0:99999:7::1:\n")
    with pytest.raises(accounts.UserRefused, match="expired"):
        users.account(20001)


@pytest.mark.parametrize("uid", [0, 1, 999, 1999, 65534])
def test_numbers_of_the_system_are_nobodys(etc: Path, uid: int) -> None:
    users = accounts.Accounts(999, root=str(etc.parent))
    assert not users.is_of_a_person(uid)
    with pytest.raises(accounts.UserRefused):
        users.account(uid)


def test_only_members_of_the_groups_in_roots_file_are_allowed(etc: Path) -> None:
    file = etc / "allow_groups"
    assert accounts.allowed_groups(str(file)) == ()
    file.write_text("# the lab\nlab  # and nobody else\n\n")
    assert accounts.allowed_groups(str(file)) == ("lab",)
    assert accounts.Accounts(999, ("lab",), str(etc.parent)).account(20001).groups == (20001, 20100, 20101)
    with pytest.raises(accounts.UserRefused, match="ana is in none of the allowed groups: profs"):
        accounts.Accounts(999, ("profs",), str(etc.parent)).account(20001)
    file.write_text("# nobody yet\n")
    with pytest.raises(accounts.UserRefused, match="none of the allowed groups"):
        accounts.Accounts(999, accounts.allowed_groups(str(file)), str(etc.parent)).account(20001)
