"""Who is told of the start and the end of a job (``--notify``): a command, a URL or a mail address."""

from __future__ import annotations

import re
import shlex
from urllib.parse import urlsplit

from vctl.spec.fields import refuse, show

NOBODY = "none"
URL, MAIL, COMMAND = "url", "mail", "command"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_ADDRESS = re.compile(r"[^\s,<>@-][^\s,<>@]*(@[^\s,<>@]+)?")
_FIX = "write a command, https://HOST/PATH, or mailto:NAME@HOST"


def kind_of(notify: str) -> str:
    """``url``, ``mail`` or ``command``."""
    scheme = _SCHEME.match(notify)
    word = scheme[1].lower() if scheme else ""
    return URL if word in ("http", "https") else MAIL if word == "mailto" else COMMAND


def check_notify(notify: str, path: str) -> None:
    """Raise BadSpec unless a notice can be sent there, as far as the form shows."""
    if not notify.strip() or not notify.isprintable():
        raise refuse(path, f"{show(notify)} names nobody", _FIX)
    kind = kind_of(notify)
    if kind == URL:
        _check_url(notify, path)
    elif kind == MAIL:
        addresses_of(notify, path)
    elif (scheme := _SCHEME.match(notify)) and notify[scheme.end() :].startswith("//"):
        raise refuse(path, f"notices are not sent by {scheme[1]}", _FIX)
    elif not words_of(notify, path)[0]:
        raise refuse(path, f"{show(notify)} names no command", _FIX)


def words_of(notify: str, path: str = "notify") -> list[str]:
    """The words of a command. Quotes and backslashes are read as a shell reads them; nothing else is."""
    try:
        return shlex.split(notify)
    except ValueError as error:
        fix = "close the quotes; for pipes and variables: sh -c '…'"
        raise refuse(path, f"{show(notify)}: {str(error).lower()}", fix) from None


def addresses_of(notify: str, path: str = "notify") -> list[str]:
    """The addresses behind ``mailto:``, separated by commas."""
    addresses = [one.strip() for one in notify.partition(":")[2].split(",")]
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            problem = f"{show(address)} is not a mail address" if address else "there is no mail address"
            raise refuse(path, problem, "write mailto:NAME@HOST")
    return addresses


def _check_url(url: str, path: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise refuse(path, f"{show(url)} is not a URL: {error}", _FIX) from None
    if not host or not url.isascii() or " " in url:
        raise refuse(path, f"{show(url)} is not a URL with a host", _FIX)
    if parts.username is not None:
        fix = "leave them out: a secret belongs into the path or the query"
        raise refuse(path, "a URL with a user or a password in front of the host", fix)
