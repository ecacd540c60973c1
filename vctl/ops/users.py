"""Who asks over a unix socket: the kernel names the process that has connected, the host's database its user.

Nothing that the other side says about itself is read.
"""

from __future__ import annotations

import grp
import os
import pwd
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from vctl.core.access import GROUP
from vctl.core.identity import Identity
from vctl.errors import NotPermitted
from vctl.spec.fields import refuse

_SOL_SOCKET, _SO_PEERCRED, _SO_PEERGROUPS = 1, 17, 59
_CREDENTIALS = struct.Struct("iII")
_GROUPS_BYTES = 1024
"""The longest answer that Python takes for an option of a socket: 256 groups."""
_UNMAPPED = 65534
"""The uid of whoever has none in this user namespace; no account may have it, so it is nobody's."""
KNOWN_S = 30.0
"""How long the names of a user are remembered: a login or a group may be removed."""


class UnixSocket(Protocol):
    """A connected unix socket, of any of the modules that have them."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """An option of the socket."""


class Peer(NamedTuple):
    """The user of the process at the other end, as it was when it connected."""

    pid: int
    uid: int
    gids: frozenset[int]


def peer_of(line: UnixSocket) -> Peer:
    """The process at the other end of a connection. Raises NotPermitted for one with no user of this host."""
    pid, uid, gid = _CREDENTIALS.unpack(line.getsockopt(_SOL_SOCKET, _SO_PEERCRED, _CREDENTIALS.size))
    if uid == _UNMAPPED or uid >= (1 << 32) - 1:
        raise NotPermitted(
            "the process that asks has a user of another namespace",
            fix="run it outside of the container, as a user of this machine",
        )
    try:
        groups = line.getsockopt(_SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        raise NotPermitted(
            f"the process that asks (uid {uid}) is in more than {_GROUPS_BYTES // 4} groups",
            fix="ask with fewer groups",
        ) from None
    return Peer(pid, uid, frozenset((gid, *struct.unpack(f"{len(groups) // 4}I", groups))))


class Users:
    """The users of a service that runs under the account of this process."""

    def __init__(self) -> None:
        self.uid, self.gid = os.geteuid(), os.getegid()
        self._known: dict[tuple[int, frozenset[int]], tuple[float, Identity]] = {}

    def known(self, peer: Peer) -> Identity | None:
        """The identity of a peer, if it was looked up a short time ago."""
        at, identity = self._known.get((peer.uid, peer.gids), (0.0, None))
        return identity if time.monotonic() - at < KNOWN_S else None

    def identity(self, peer: Peer) -> Identity:
        """The identity of a peer; the database of the host may be elsewhere. Raises NotPermitted."""
        if (identity := self.known(peer)) is not None:
            return identity
        if len(self._known) > 1000:
            self._known.clear()
        identity = self._made(peer.uid, peer.gids)
        self._known[peer.uid, peer.gids] = time.monotonic(), identity
        return identity

    def of_uid(self, uid: int) -> Identity:
        """The identity of a user with the groups of the host's database. Raises NotPermitted."""
        account = _account(uid)
        return self._made(uid, frozenset(os.getgrouplist(account.pw_name, account.pw_gid)))

    def own(self) -> Identity:
        """The identity of the service itself, for what it does when nobody has asked."""
        return self._made(self.uid, frozenset((self.gid,)))

    def _made(self, uid: int, gids: frozenset[int]) -> Identity:
        names = frozenset(name for name in map(_group, gids) if name)
        return Identity(uid, _account(uid).pw_name, names, uid in (0, self.uid) or self.gid in gids)


def check_names(people: Iterable[str], path: str) -> None:
    """Refuse a name that no user, or with ``@`` no group, of this machine has: it would let nobody in."""
    for name in people:
        try:
            _named(name)
        except KeyError:
            kind, plain = ("group", name[1:]) if name.startswith(GROUP) else ("user", name)
            other = (
                "a group has @ in front"
                if kind == "user" and _is_group(plain)
                else f"see `getent {_DATABASE[kind]}`"
            )
            raise refuse(path, f"there is no {kind} {plain} on this machine", other) from None


_DATABASE = {"group": "group", "user": "passwd"}


def _named(name: str) -> object:
    return grp.getgrnam(name[1:]) if name.startswith(GROUP) else pwd.getpwnam(name)


def _is_group(name: str) -> bool:
    try:
        return bool(grp.getgrnam(name))
    except KeyError:
        return False


def _account(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise NotPermitted(
            f"uid {uid} has no account on this machine", fix="ask as a user that `getent passwd` names"
        ) from None


def _group(gid: int) -> str:
    """The name of a group; empty for one without a name, which no rule can name either."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""
