"""The log of another user's job is text on a terminal; one's own, and any log in a pipe, is byte for byte (spec 13)."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.test_terminal import environment, home, terminal  # noqa: F401  # a fixture
from tests.specification import spec
from vctl.core.text import VisibleLines

pytestmark = spec("13.screen")

EVIL = b"\x1b]0;pwned\x07one\ttwo \xff \xc3\xa4 \x1b[2J\r\n"
SHOWN = "\\x1b]0;pwned\\x07one\ttwo \\xff ä \\x1b[2J\\r\n"


@pytest.fixture
def log(home: Path) -> Path:  # noqa: F811
    """The log of a finished job of carla."""
    path = home / "logs" / "data-preparation.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(EVIL)
    with closing(sqlite3.connect(home / "cluster.db")) as db, db:
        db.execute("UPDATE jobs SET user = 'somebody-else' WHERE submission_id = 'data-preparation'")
    return path


@pytest.mark.parametrize(
    "words", ["job logs data-preparation", "logs -n 5 data-preparation", "logs -f data-preparation"]
)
def test_control_sequences_of_another_user_are_shown(home: Path, log: Path, words: str) -> None:  # noqa: F811
    shown = terminal(home, (80, 24), *words.split(), codes=(0, 3))
    assert SHOWN.rstrip("\n") in shown, words
    assert "\x1b" not in shown


def test_they_act_with_raw_and_stay_in_pipes(home: Path, log: Path) -> None:  # noqa: F811
    raw = terminal(home, (80, 24), "job", "logs", "--raw", "data-preparation")
    assert raw.startswith("\x1b]0;pwned\x07one")
    ran = subprocess.run(
        [sys.executable, "-m", "vctl", "job", "logs", "data-preparation"], capture_output=True, env=environment(home),
        check=True,
    )  # fmt: skip
    assert ran.stdout == EVIL


def test_a_letter_that_is_cut_between_blocks_is_one_letter() -> None:
    lines = VisibleLines()
    blocks = [EVIL[at : at + 1] for at in range(len(EVIL))]
    assert b"".join(map(lines.shown, blocks)).decode() == SHOWN
    assert VisibleLines().shown("häß\t\u202e\n".encode()).decode() == "häß\t\\u202e\n"
