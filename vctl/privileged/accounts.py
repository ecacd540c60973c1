"""Which account a process may be started as: a person's, that exists and is neither locked nor over.

Root's half of a shared service decides this itself, from the files of the host: the scheduler that asks is less
privileged, and what it says of a user (a name, groups, a home) is not looked at. Only a number comes from it.
"""

import os
import time

FIRST_UID = 1000
"""Where /etc/login.defs has no UID_MIN."""
NOBODY = 65534
_UMASK = 0o022
_FRESH_S = 30.0
"""How long an account is believed where the files of the host have not changed: a directory server may know more."""
_FILES = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/login.defs")
_DAY_S = 86400
ALLOW_GROUPS = "/etc/vctl/allow_groups"
"""If there is this file, only members of the groups in it may have processes."""
_MAX_ACCOUNTS = 4096
_PASSWORD, _CHANGED, _LONGEST, _INACTIVE, _EXPIRES = 1, 2, 4, 6, 7


def allowed_groups(file: str = ALLOW_GROUPS) -> tuple[str, ...]:
    """The groups in root's own file, one a line; none where there is no such file: then everybody may."""
    try:
        with open(file, encoding="utf-8") as lines:
            names = [line.partition("#")[0].strip() for line in lines]
    except FileNotFoundError:
        return ()
    return tuple(name for name in names if name) or ("(nobody)",)


class UserRefused(ValueError):
    """An account that no process is started as; the message says why."""


class UserAccount:
    """A user as the host knows him."""

    __slots__ = ("gid", "groups", "home", "name", "shell", "uid", "umask")

    def __init__(
        self, uid: int, gid: int, name: str, home: str, shell: str, groups: tuple[int, ...], umask: int
    ) -> None:
        self.uid, self.gid, self.name, self.home, self.shell = uid, gid, name, home, shell
        self.groups, self.umask = groups, umask

    def variables(self) -> dict[bytes, bytes]:
        """The variables that a login would set."""
        name, home = os.fsencode(self.name), os.fsencode(self.home)
        return {
            b"HOME": home,
            b"USER": name,
            b"LOGNAME": name,
            b"SHELL": os.fsencode(self.shell or "/bin/sh"),
        }


class Accounts:
    """The accounts of the host. ``service``: the uid of the service, which is none of them."""

    def __init__(self, service: int, allow_groups: tuple[str, ...] = (), root: str = "") -> None:
        """``allow_groups``: only their members may be started; empty: everybody. ``root``: where /etc is, for tests."""
        self.service, self.allow_groups = service, allow_groups
        self._files = [root + file for file in _FILES]
        self._known: dict[int, UserAccount] = {}
        self._seen: tuple[object, ...] = ()
        self._until = 0.0

    def account(self, uid: int) -> UserAccount:
        """The account with a number. Raises UserRefused, OSError."""
        seen, now = tuple(map(_stamp, self._files)), time.monotonic()
        if seen != self._seen or now >= self._until or len(self._known) >= _MAX_ACCOUNTS:
            self._known.clear()
            self._seen, self._until = seen, now + _FRESH_S
        if (known := self._known.get(uid)) is None:
            known = self._known[uid] = self._read(uid)
        return known

    def is_of_a_person(self, uid: int) -> bool:
        """Whether a number is not one of the system's, whether or not there is such an account (any more)."""
        return uid >= self._first_uid() and uid not in (self.service, NOBODY)

    def _first_uid(self) -> int:
        return max(1, _whole(_login_defs(self._files[3]).get("UID_MIN"), FIRST_UID))

    def _read(self, uid: int) -> UserAccount:
        import grp
        import pwd

        settings = _login_defs(self._files[3])
        first = self._first_uid()
        if uid == 0:
            raise UserRefused("no job runs as root; submit it as an ordinary user")
        if uid == self.service:
            raise UserRefused("it is the account of the service itself")
        if uid < first:
            raise UserRefused(f"it is an account of the system: UID_MIN in /etc/login.defs is {first}")
        if uid == NOBODY:
            raise UserRefused("it is nobody's account")
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            raise UserRefused("there is no account with this uid") from None
        if entry.pw_uid != uid or entry.pw_gid == 0:
            raise UserRefused("its group is root's")
        self._check_shadow(entry.pw_name)
        groups = tuple(group for group in os.getgrouplist(entry.pw_name, entry.pw_gid) if group != 0)
        if self.allow_groups:
            names = {grp.getgrgid(group).gr_name for group in groups if _has_name(group)}
            if names.isdisjoint(self.allow_groups):
                raise UserRefused(
                    f"{entry.pw_name} is in none of the allowed groups: {', '.join(self.allow_groups)}"
                )
        umask = _octal(settings.get("UMASK"), _UMASK)
        return UserAccount(uid, entry.pw_gid, entry.pw_name, entry.pw_dir, entry.pw_shell, groups, umask)

    def _check_shadow(self, name: str) -> None:
        """Raise UserRefused for an account that is locked, or over. One without an entry is a directory server's.

        A password that was locked is a hash behind an exclamation mark. Without a hash there never was one: people who
        sign in with a key have such accounts.
        """
        fields = _shadow(self._files[2], name)
        if fields is None:
            return
        today = int(time.time()) // _DAY_S
        password = fields[_PASSWORD]
        if password.startswith("!") and password.strip("!*"):
            raise UserRefused(f"the account {name} is locked: usermod --unlock {name}")
        if 0 <= _whole(fields[_EXPIRES], -1) <= today:
            raise UserRefused(f"the account {name} has expired: usermod --expiredate '' {name}")
        changed, longest, inactive = (
            _whole(fields[number], -1) for number in (_CHANGED, _LONGEST, _INACTIVE)
        )
        if changed > 0 and longest >= 0 and inactive >= 0 and today > changed + longest + inactive:
            raise UserRefused(
                f"the password of {name} is too old, and the account inactive: chage --list {name}"
            )


def _stamp(file: str) -> "tuple[int, int, int] | None":
    try:
        info = os.stat(file)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino


def _login_defs(file: str) -> dict[str, str]:
    """The settings in /etc/login.defs; none if there is no such file."""
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:
            words = [
                line.split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#")
            ]
    except FileNotFoundError:
        return {}
    return {pair[0]: pair[1].strip() for pair in words if len(pair) == 2}


def _shadow(file: str, name: str) -> "list[str] | None":
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields = line.rstrip("\n").split(":")
                if fields[0] == name and len(fields) > _EXPIRES:
                    return fields
    except FileNotFoundError:
        pass  # a host without shadow passwords
    return None


def _has_name(group: int) -> bool:
    import grp

    try:
        grp.getgrgid(group)
    except KeyError:
        return False
    return True


def _whole(text: "str | None", otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else otherwise


def _octal(text: "str | None", otherwise: int) -> int:
    try:
        number = int(text or "", 8)
    except ValueError:
        return otherwise
    return number if 0 <= number <= 0o777 else otherwise
