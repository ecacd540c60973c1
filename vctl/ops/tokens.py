"""Tokens: who has signed in at a shared service carries one to its HTTP API, where the kernel does not say who asks.

A token is ``vctl-NUMBER.SECRET``. It is shown once; the state has a digest of it, the uid for which it stands, and its
end. It stands for what the user may do at each request, not for what he could when it was made.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from vctl.core.identity import Identity
from vctl.errors import Conflict, NotFound, NotPermitted
from vctl.ops import forms, rights
from vctl.store import tokens as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import LoginForm, TokenForm

PREFIX = "vctl-"
DAY_S = 86400
USUAL_S, LONGEST_S = 30 * DAY_S, 366 * DAY_S
MOST = 100
"""The most tokens of one user."""
WHERE = "http://127.0.0.1:8265"
"""Where ``vctl serve`` answers by default."""


def login(store: Store, for_s: float = USUAL_S, name: str = "") -> LoginForm:
    """A new token of the user who asks. Raises NotPermitted for one who has signed in by a token."""
    identity = _user(store, "vctl login")
    if identity.token is not None:
        raise NotPermitted(
            "a token makes no other token: it would have no end",
            fix="run `vctl login` on the machine of the service, without VCTL_TOKEN and VCTL_ADDRESS",
        )
    secret = os.urandom(32).hex()
    with store.transaction():
        if len(table.listed(store, identity.uid)) >= MOST:
            raise Conflict(
                f"{identity.name} has {MOST} tokens", fix="`vctl token list`, `vctl token revoke ID`"
            )
        ends_at = store.clock() + int(for_s * 1e9)
        number = table.add(store, _digest(secret), identity.uid, identity.name, name, ends_at)
        row = table.get(store, number)
    assert row is not None
    token = f"{PREFIX}{number}.{secret}"
    return {**_form(row), "token": token, "link": f"{WHERE}/#token={token}"}


def logout(store: Store) -> list[TokenForm]:
    """End the token by which the user came; for one whom the kernel names, all of his."""
    identity = _user(store, "vctl logout")
    with store.transaction():
        rows = table.listed(store, identity.uid)
        ended = [row for row in rows if identity.token in (None, row["token_id"])]
        table.remove(store, [row["token_id"] for row in ended])
    return [_form(row) for row in ended]


def list_tokens(store: Store, *, all_users: bool = False) -> list[TokenForm]:
    """The tokens of the user, or those of all."""
    identity = _user(store, "vctl token list")
    if all_users:
        _check_admin(identity, "see the tokens of all users")
    return [_form(row) for row in table.listed(store, None if all_users else identity.uid)]


def revoke(store: Store, refs: Sequence[str]) -> list[TokenForm]:
    """End tokens of the user; an admin of the service may end those of others. All of them or none."""
    identity = _user(store, "vctl token revoke")
    with store.transaction():
        found = []
        for ref in dict.fromkeys(refs):
            row = table.get(store, int(ref)) if ref.isascii() and ref.isdigit() and len(ref) < 19 else None
            if row is None or not (row["uid"] == identity.uid or identity.is_admin):
                # nobody learns which tokens others have
                raise NotFound(
                    f"you have no token {ref}", fix="see `vctl token list`", details={"token": ref}
                )
            found.append(row)
        table.remove(store, [row["token_id"] for row in found])
    return [_form(row) for row in found]


def presented(store: Store, token: str) -> Row | None:
    """The row of a token that a request carries, also of one that has ended; None if it is none."""
    number, dot, secret = token.removeprefix(PREFIX).partition(".")
    if not (token.startswith(PREFIX) and dot and number.isascii() and number.isdigit() and len(number) < 19):
        return None
    row = table.get(store, int(number))
    return row if row is not None and hmac.compare_digest(row["digest"], _digest(secret)) else None


def _digest(secret: str) -> str:
    """What is kept of a token. It has 256 bits of chance, so no slow hash is needed."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _user(store: Store, command: str) -> Identity:
    if store.identity is None:
        raise rights.personal(command)
    return store.identity


def _check_admin(identity: Identity, to: str) -> None:
    if not identity.is_admin:
        raise NotPermitted(f"{rights.SERVICE_ADMINS} may {to}", fix="leave out --all for your own")


def _form(row: Row) -> TokenForm:
    return {
        "token_id": row["token_id"],
        "name": row["name"] or None,
        "user": row["user"],
        "created_at": forms.timestamp(row["created_at"]),
        "ends_at": forms.timestamp(row["ends_at"]),
    }
