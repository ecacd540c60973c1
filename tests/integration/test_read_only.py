"""A state directory on a read-only filesystem: said as that, and no backup is asked for (spec 17)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Place
from tests.specification import spec

pytestmark = spec("17.durable", "13.errors")


@pytest.fixture
def view(tmp_path: Path, mount: Callable[..., Path]) -> Place:
    """A state directory with a job that is over, seen through a mount that is read-only; no scheduler runs."""
    place = Place(tmp_path / "state", tmp_path / "work")
    place.add_nodes(1)
    daemon = place.daemon()
    place.submit("--submission-id", "over", "--", "sh", "-c", "exit 3")
    place.reach("over", "FAILED")
    place.term(daemon)
    place.end()
    assert not list(place.home.glob("cluster.db-*")), "else the tables could be read"
    folder = mount("--bind", str(place.home))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
    return Place(folder, tmp_path / "work")


def test_commands_say_that_it_is_not_permitted(view: Place) -> None:
    commands = "ps -a", "status", "doctor", "run -d -- true", "daemon", "vc create x"
    for words in commands:
        done = view.fork(*words.split())
        assert (done.code, done.stdout) == (8, b""), (words, done)
        assert "writable" in done.err or "Read-only file system" in done.err, (words, done)
        assert "restore" not in done.err
