"""The border for text (spec 13, 14): words are Unicode, what goes to the kernel is any bytes."""

from __future__ import annotations

import os

import pytest

from tests.specification import spec
from vctl.errors import BadSpec
from vctl.spec.job_request import JobRequest
from vctl.spec.source import parse_text
from vctl.spec.task_request import TaskRequest
from vctl.spec.text import check_document, check_line, shown, stored_path

pytestmark = spec("17.private")

BYTE = "\udcff"  # how Python hands on a byte that is not UTF-8
HALF = "\ud800"


@pytest.mark.parametrize("text", [BYTE, HALF, "a\0b"])
def test_words_are_unicode(text: str) -> None:
    for document, path in (
        ({"a": text}, "m.a"), ({"a": [1, {"b": text}]}, "m.a[1].b"), ({text: 1}, "m"), ([text], "m[0]"),
    ):  # fmt: skip
        with pytest.raises(BadSpec, match="not valid UTF-8") as refused:
            check_document(document, "m")
        assert refused.value.details["path"] == path
        assert refused.value.fix
    check_document({"a": ["ö", "\U0001f600", 1, None, True]}, "m")


def test_requests_from_python() -> None:
    """spec 15: what the command line refuses is refused of Python, too."""
    for request in (
        lambda: JobRequest(argv=("true",), metadata={"a": BYTE}),
        lambda: JobRequest(argv=("true",), metadata={HALF: "a"}),
        lambda: JobRequest(argv=("true",), name=BYTE),
        lambda: JobRequest(argv=("true", HALF)),
        lambda: JobRequest(argv=("true",), env={"A": HALF}),
        lambda: JobRequest(argv=("true",), cwd="/" + HALF),
        lambda: TaskRequest(argv=("true",), strategy=f"NODE:{BYTE}"),
        lambda: TaskRequest(argv=("true",), job=BYTE),
    ):
        with pytest.raises(BadSpec) as refused:
            request()
        assert refused.value.fix
    kept = JobRequest(argv=("echo", BYTE), env={"A": BYTE}, cwd="/" + BYTE)
    assert os.fsencode(kept.argv[1]) == b"\xff"


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"a\\udcff": 1}', '["\\u0000"]'])
def test_documents_are_unicode(text: str) -> None:
    with pytest.raises(BadSpec, match="--file"):
        parse_text(text, "a document", "--file")
    assert parse_text('{"a": "\\ud83d\\ude00"}', "a document", "--file") == {"a": "\U0001f600"}


def test_a_line_has_no_control_characters() -> None:
    assert check_line("gute Gründe", "reason") == "gute Gründe"
    for text in ("a\nb", "\x1b[31m", "\x9b31m", "a\u202eb"):
        with pytest.raises(BadSpec, match="cannot be printed"):
            check_line(text, "reason")


def test_what_is_stored_and_shown_of_bytes() -> None:
    assert stored_path("/tmp/ö") == "/tmp/ö"
    assert stored_path("/tmp/" + BYTE) == b"/tmp/\xff"
    assert shown("echo 'ö" + BYTE + "'") == "echo 'ö\\xff'"
