"""The verbs by which users of a shared service sign in to its HTTP API, and out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from vctl import ops
from vctl.operations.declare import Context, operation
from vctl.spec.params import Arg, Opt

if TYPE_CHECKING:
    from vctl.spec.documents import LoginForm, TokenForm

_DAY_S = 86400


@operation("login", "POST /tokens", right="sign")
def login(
    context: Context,
    *,
    for_s: Annotated[
        float,
        Opt(
            "--for",
            metavar="TIME",
            reads="positive duration",
            above=0,
            maximum=366 * _DAY_S,
            help="How long it is good for (default: 30d, at most 366d).",
        ),
    ] = 30 * _DAY_S,
    name: Annotated[
        str, Opt("--name", metavar="TEXT", longest=100, help="What it is for, shown by `vctl token list`.")
    ] = "",
) -> "LoginForm":
    """Get a token for the HTTP API of a shared service: it acts as you.

    It is shown once. Whoever has it is you until it ends, or until `vctl logout` or `vctl token revoke`.
    """
    return ops.tokens.login(context.store, for_s, name)


@operation("logout", "DELETE /tokens", right="sign", items="TokenList")
def logout(context: Context) -> "list[TokenForm]":
    """End the token that you use; at the socket of the service, all of yours."""
    return ops.tokens.logout(context.store)


@operation("token list", "GET /tokens", right="sign", items="TokenList")
def list_tokens(
    context: Context,
    *,
    all: Annotated[bool, Opt("--all", "-a", help="Those of all users, for admins of the service.")] = False,  # noqa: A002
) -> "list[TokenForm]":
    """List your tokens: what each is for, and when it ends."""
    return ops.tokens.list_tokens(context.store, all_users=all)


@operation("token revoke", "POST /tokens/revoke", right="sign", items="TokenList")
def revoke(
    context: Context,
    tokens: Annotated[
        Sequence[str],
        Arg(
            "ID",
            longest=1000,
            help="Numbers of tokens, as `vctl token list` shows them.",
        ),
    ],
) -> "list[TokenForm]":
    """End tokens at once: all of them or none."""
    return ops.tokens.revoke(context.store, tokens)
