"""What vctl moved aside because it was no record or no log: listed by doctor, deleted by prune."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.cli.conftest import Cli
from tests.specification import spec
from vctl.runtime.local import LocalRuntime
from vctl.runtime.logfile import open_for_writing
from vctl.runtime.protocol import RunState

pytestmark = spec("17.retention")


def move_aside(home: Path) -> None:
    """A record that is none, and a folder in the place of a log, as they are met."""
    for name in ("runs/r", "exits"):  # the records of the versions before, which are still read
        (home / name).mkdir(parents=True, exist_ok=True)
    runtime = LocalRuntime(home)
    runtime.prepare()
    (home / "exits" / "r.exit").write_text("garbage")
    assert runtime.observe("r").state is RunState.LOST
    runtime.close()
    (home / "logs" / "x.log").mkdir()
    (home / "logs" / "x.log" / "inside").write_text("")
    os.close(open_for_writing(os.fsencode(home / "logs" / "x.log")))


def test_doctor_lists_and_prune_deletes_what_was_moved_aside(nodes: Cli) -> None:
    move_aside(nodes.home)
    (nodes.home / "copied-1").mkdir()
    aside = sorted(str(path.relative_to(nodes.home)) for path in nodes.home.glob("*/.*aside-*"))
    assert [name.partition("/")[0] for name in aside] == ["exits", "logs"]
    notes = "\n".join(nodes("doctor -o json").json["notes"])
    for name in ("copied-1", *aside):
        assert name in notes
    assert nodes("prune --older-than 1h").out == "0 jobs deleted\n"
    time.sleep(0.01)
    assert nodes("prune --older-than 0s --dry-run").out == "0 jobs and 3 files moved aside would be deleted\n"
    pruned = nodes("prune --older-than 0s -o json").json
    assert sorted(pruned["files"]) == ["copied-1", *aside]
    assert not list(nodes.home.glob("*/.*aside-*"))
    assert (nodes.home / "logs" / "x.log").exists()
    assert "no records or logs" not in nodes("doctor").out
