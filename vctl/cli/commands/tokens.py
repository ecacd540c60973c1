"""``vctl login``, ``vctl logout`` and ``vctl token``: signing in to the HTTP API of a shared service."""

from typing import Annotated

from vctl import cli
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, COLOR, HOME, NO_HEADER, OUTPUT
from vctl.cli.declare import command
from vctl.cli.output import Answer, Data, done, each, listing
from vctl.operations import tokens
from vctl.spec.params import Given, Together


@command("login", "vctl login", "vctl login --for 8h --name laptop", "vctl login -o name", common=CHANGES)
def login(call: Call, options: Annotated[Given, Together.of(tokens.login)]) -> Answer:
    """Get a token for the HTTP API of a shared service: it acts as you.

    It is shown once. Whoever has it is you until it ends, or until `vctl logout` or `vctl token revoke`.
    """
    made = tokens.login(call.backend, **dict(options or {}))
    answer = done(made, made["token"], "")
    address = made["link"].partition("/#")[0]
    answer.sentences = [
        f"token {made['token_id']} of {made['user']}, until {cli.words.moment(made['ends_at'])}:",
        f"  {made['token']}",
        "where `vctl serve` answers:",
        f"  export VCTL_ADDRESS={address} VCTL_TOKEN={made['token']}",
        f"  {made['link']}",
    ]
    return answer


@command("logout", "vctl logout", common=CHANGES)
def logout(call: Call) -> Answer:
    """End the token that you use; at the socket of the service, all of yours."""
    ended = tokens.logout(call.backend)
    if not ended:
        answer = listing("TokenList", [], 0, "token_id", [], "")
        answer.draw, answer.sentences = None, ["you have no token"]
        return answer
    return each("TokenList", "token_id", ended, _ended)


@command(
    "token list", "vctl token list", "vctl token list --all -o json", common=(OUTPUT, NO_HEADER, COLOR, HOME)
)
def list_(call: Call, options: Annotated[Given, Together.of(tokens.list_tokens)]) -> Answer:
    """List your tokens: what each is for, and when it ends."""
    found = tokens.list_tokens(call.backend, **dict(options or {}))
    return listing(
        "TokenList", found, len(found), "token_id", cli.columns.TOKENS, "no tokens; `vctl login` makes one"
    )


@command("token revoke", "vctl token revoke 7", common=CHANGES)
def revoke(call: Call, options: Annotated[Given, Together.of(tokens.revoke)]) -> Answer:
    """End tokens at once: all of them or none."""
    return each("TokenList", "token_id", tokens.revoke(call.backend, **dict(options or {})), _ended)


def _ended(token: Data) -> str:
    named = f" ({token['name']})" if token["name"] else ""
    return f"token {token['token_id']}{named} of {token['user']} ended"
