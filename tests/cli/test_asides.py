"""What vctl moved aside because it was no record or no log: listed by doctor, deleted by prune."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.specification import spec
from vctl.cli.progress import Progress
from vctl.runtime.logfile import open_for_writing

pytestmark = spec("17.retention")


def move_aside(home: Path) -> None:
    """A folder in the place of a log, as it is met."""
    (home / "logs" / "x.log").mkdir(parents=True)
    (home / "logs" / "x.log" / "inside").write_text("")
    os.close(open_for_writing(os.fsencode(home / "logs" / "x.log")))


def test_doctor_lists_and_prune_deletes_what_was_moved_aside(nodes: Cli) -> None:
    move_aside(nodes.home)
    (nodes.home / "copied-1").mkdir()
    aside = sorted(str(path.relative_to(nodes.home)) for path in nodes.home.glob("*/.*aside-*"))
    assert [name.partition("/")[0] for name in aside] == ["logs"]
    notes = "\n".join(nodes("doctor -o json").json["notes"])
    for name in ("copied-1", *aside):
        assert name in notes
    assert nodes("prune --older-than 1h").out == "0 jobs deleted\n"
    time.sleep(0.01)
    assert nodes("prune --older-than 0s --dry-run").out == "0 jobs and 2 files moved aside would be deleted\n"
    pruned = nodes("prune --older-than 0s -o json").json
    assert sorted(pruned["files"]) == ["copied-1", *aside]
    assert not list(nodes.home.glob("*/.*aside-*"))
    assert (nodes.home / "logs" / "x.log").exists()
    assert "no records or logs" not in nodes("doctor").out


def test_doctor_names_the_records_of_a_build_before_the_first_release_and_nothing_deletes_them(
    nodes: Cli,
) -> None:
    assert "before the first release" not in nodes("doctor").out
    (nodes.home / "runs" / "r").mkdir(parents=True)
    (nodes.home / "exits").mkdir()
    (nodes.home / "exits" / "r.exit").write_text("exit_code=0\n")
    (note,) = (one for one in nodes("doctor -o json").json["notes"] if "before the first release" in one)
    assert note.startswith("runs, exits: records of a build") and note.endswith(
        "no process of that build is left"
    )
    nodes("prune --older-than 0s")
    assert (nodes.home / "exits" / "r.exit").read_text() == "exit_code=0\n"
    assert (nodes.home / "runs" / "r").is_dir()


def test_a_long_prune_shows_how_far_it_is(nodes: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr: stdout has the result and nothing else. A short one is silent."""
    for _ in range(2):
        nodes("job submit --no-wait --submission-id x -- true")
        nodes("job stop x")
        ran = nodes("prune --older-than 0 -o json")
        assert ran.json["jobs"] == ["x"]
        assert ran.err == ("" if Progress.LINES_EVERY_S else "1 of 1 jobs deleted\n")
        monkeypatch.setattr(Progress, "LINES_EVERY_S", 0)
        monkeypatch.setattr("vctl.cli.progress.FIRST_S", 0)
