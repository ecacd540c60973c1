"""The forms of ``--notify``."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.errors import BadSpec
from vctl.spec import notify

pytestmark = spec("13.notices")

KINDS = {
    "./hook 'two words'": notify.COMMAND,
    "/usr/bin/env X=1 hook": notify.COMMAND,
    "python -c print(1)": notify.COMMAND,
    "https://hooks.example.org/T0?key=words": notify.URL,
    "HTTP://[::1]:8080": notify.URL,
    "mailto:ann@example.org": notify.MAIL,
    "mailto:root, bob@example.org": notify.MAIL,
}


@pytest.mark.parametrize("text", KINDS)
def test_forms(text: str) -> None:
    notify.check_notify(text, "--notify")
    assert notify.kind_of(text) == KINDS[text]


BAD = {
    "": "names nobody",
    "  ": "names nobody",
    "a\nb": "names nobody",
    "ftp://host/x": "not sent by ftp",
    "http:///path": "not a URL with a host",
    "http://host:words/": "not a URL",
    "http://host/a b": "not a URL with a host",
    "https://ann:secret@host/": "with a user or a password",
    "mailto:": "no mail address",
    "mailto:ann@a b": "not a mail address",
    "mailto:-oQ/tmp@host": "not a mail address",
    "mailto:ann,,bob": "no mail address",
    "'' x": "names no command",
    "sh -c 'x": "no closing quotation",
}


@pytest.mark.parametrize("text", BAD)
def test_refusals_have_a_fix(text: str) -> None:
    with pytest.raises(BadSpec, match=BAD[text]) as caught:
        notify.check_notify(text, "--notify")
    assert caught.value.fix
    assert "secret" not in str(caught.value.problem)


def test_quotes_are_read_as_a_shell_reads_them() -> None:
    assert notify.words_of("sh -c 'echo \"$VCTL_STATUS\"' | x") == [
        "sh",
        "-c",
        'echo "$VCTL_STATUS"',
        "|",
        "x",
    ]
