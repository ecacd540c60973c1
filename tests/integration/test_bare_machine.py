"""Few open files, no /proc, something odd in the state directory: a sentence, no traceback (spec 17)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Place
from tests.specification import spec

pytestmark = spec("17.durable", "13.errors")

COMMANDS = ("run -- true", "daemon --background", "daemon", "status", "ps", "why j", "doctor")


def said(place: Place, shell: str, words: str) -> subprocess.CompletedProcess[str]:
    """A command under a shell's limits; a daemon that begins is ended."""
    return subprocess.run(
        ["sh", "-c", f'{shell}; exec timeout 5 "$0" -m vctl {words}', sys.executable],
        env=place.environment({"VCTL_IDLE_EXIT": "1"}), cwd=place.folder, stdin=subprocess.DEVNULL, text=True,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip


def assert_plain(place: Place, text: str) -> None:
    log = place.home / "daemon.log"
    for out in (text, log.read_text() if log.exists() else ""):
        assert "Traceback" not in out, out
        assert "internal error" not in out, out


@pytest.mark.parametrize("files", [12, 16, 20])
def test_few_open_files(place: Place, files: int) -> None:
    place.add_nodes(1)
    place.submit("--submission-id", "j", "--", "true")
    for words in COMMANDS:
        ran = said(place, f"ulimit -n {files}", words)
        assert_plain(place, ran.stdout + ran.stderr)
        if ran.returncode not in (0, 124):
            assert "open file" in ran.stderr, (words, ran)
    place.ok("daemon", "--background")
    for job in place.jobs():  # what a command could submit before it ran out of files is there, too
        place.reach(job, "SUCCEEDED")
    assert "j" in place.jobs()  # nothing is lost, and no run was started twice
    place.assert_sound()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide /proc")
def test_no_proc(place: Place) -> None:
    place.add_nodes(1)
    hidden = 'unshare -m sh -c "mount -t tmpfs none /proc; exec \\"\\$0\\" -m vctl {}" "$0" #'
    for words in ("run -- true", "daemon --background", "daemon"):
        ran = said(place, hidden.format(words), "")
        if "unshare" in ran.stderr:
            pytest.skip(ran.stderr)
        assert ran.returncode in (1, 6), ran
        assert "/proc is not mounted" in ran.stderr, ran
        assert_plain(place, ran.stdout + ran.stderr)


@pytest.mark.parametrize("name", [".place.new", ".place"])
def test_a_folder_in_the_place_of_the_mark_keeps_no_scheduler_from_starting(place: Place, name: str) -> None:
    """A job can make it; writing the mark failed with IsADirectoryError at every start."""
    place.add_nodes(1)
    records = place.home / "records"
    records.mkdir(mode=0o700, exist_ok=True)
    odd = records / name
    if odd.exists():
        odd.unlink()
    (odd / "full").mkdir(parents=True)
    assert place.ok("run", "--", "echo", "works") == "works\n"
    place.assert_sound()


def test_the_name_of_the_mark_can_be_a_link(place: Place, tmp_path: Path) -> None:
    place.add_nodes(1)
    records, other = place.home / "records", tmp_path / "other"
    records.mkdir(mode=0o700, exist_ok=True)
    other.write_text("kept")
    (records / ".place").symlink_to(other)
    (records / ".place.new").symlink_to(other)
    assert place.ok("run", "--", "echo", "works") == "works\n"
    assert other.read_text() == "kept"
