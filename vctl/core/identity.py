"""Who asks: a user of the host, as the kernel or a token says. Pure."""

from __future__ import annotations

from vctl.core.values import value


@value(frozen=True, slots=True)
class Identity:
    """A user of a shared service. In personal mode there is none (None): every caller is the one user.

    ``name`` is the login name, ``groups`` the names of all groups of the user. ``is_admin``: root, the account of the
    service, or a member of its group.
    """

    uid: int
    name: str
    groups: frozenset[str] = frozenset()
    is_admin: bool = False
    token: int | None = None
    """The number of the token that named him; None: the kernel did."""
