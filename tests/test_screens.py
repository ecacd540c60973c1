"""The pictures of docs/screens.md are those that the commands draw now (spec 13)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.specification import spec

pytestmark = spec("13.screen")

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_pictures_are_current() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "docs.screens", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
