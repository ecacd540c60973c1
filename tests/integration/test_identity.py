"""What has begun is never begun again: not after a restore, in a copy, or without its records (spec 12, 17)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Place, eventually, is_gone
from tests.specification import spec

pytestmark = spec("17.migration", "12.daemon-death")


def tallied(place: Place, name: str, *, seconds: float = 1000) -> Path:
    """A job that writes one line when it starts; the file that has the lines."""
    tally = place.folder / "tally"
    place.submit("--submission-id", name, "--", "sh", "-c", f"echo x >> {tally}; exec sleep {seconds}")
    place.running_process(name)
    eventually(tally.exists)
    return tally


def lost(place: Place, name: str) -> str:
    job = place.reach(name, "FAILED")
    assert (job["state_reason"], job["exit_code"]) == ("ProcessLost", None)
    return str(job["message"])


def test_what_ended_after_the_backup_is_not_started_again_by_a_restore(one: Place) -> None:
    daemon = one.daemon()
    tally = tallied(one, "once")
    copy = one.folder / "copy.db"
    one.ok("backup", str(copy))
    one.ok("job", "stop", "once")
    one.reach("once", "STOPPED")
    one.term(daemon)
    one.ok("restore", str(copy))
    one.daemon()
    assert "not started again" in lost(one, "once")
    assert tally.read_text() == "x\n"
    one.assert_sound()


def test_what_was_about_to_start_at_the_backup_is_not_started_by_a_restore(one: Place) -> None:
    """The original may have started it since."""
    one.term(one.daemon())  # so that tables and records know each other
    copy = one.folder / "copy.db"
    tally = one.folder / "tally"
    go = one.folder / "go"
    waits = f"until [ -e {go} ]; do sleep 0.05; done"
    one.submit("--submission-id", "once", "--", "sh", "-c", f"echo x >> {tally}; {waits}")
    daemon = one.daemon()
    one.running_process("once")
    with one.sql() as db:
        (run,) = db.execute("SELECT * FROM runs").fetchall()
    go.touch()
    one.reach("once", "SUCCEEDED")
    one.term(daemon)
    with one.sql() as db:  # as if the backup had been made between the commit and the start
        db.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(run))})", tuple(run))
        db.execute(
            "UPDATE runs SET state = 'ASSIGNED', pid = NULL, pid_start = NULL, boot_id = NULL, started_at = NULL"
        )
        db.execute("UPDATE jobs SET status = 'RUNNING', ended_at = NULL, exit_code = NULL")
    one.ok("backup", str(copy))
    one.ok("restore", str(copy))
    one.daemon()
    lost(one, "once")
    assert tally.read_text() == "x\n"


@pytest.mark.parametrize("gone", [("records",), ("records", "stops")], ids=" ".join)
def test_a_run_whose_records_are_gone_is_lost_and_its_processes_end(
    one: Place, gone: tuple[str, ...]
) -> None:
    daemon = one.daemon()
    tally = tallied(one, "once")
    pid = one.running_process("once")
    one.kill(daemon)
    for name in gone:
        shutil.rmtree(one.home / name)
    daemon = one.daemon()
    lost(one, "once")
    assert is_gone(pid)
    assert tally.read_text() == "x\n"
    assert one.ok("job", "submit", "--", "echo", "still works") == "still works\n"


def test_records_that_go_under_a_running_scheduler(one: Place) -> None:
    daemon = one.daemon()
    tally = tallied(one, "once")
    pid = one.running_process("once")
    shutil.rmtree(one.home / "records")
    (one.home / "records").mkdir()
    one.ok("job", "stop", "once")
    eventually(lambda: is_gone(pid))
    assert daemon.poll() is None
    assert tally.read_text() == "x\n"


@pytest.mark.parametrize("how", ["a backup", "a copy of the directory"])
def test_a_state_that_is_opened_in_a_second_place_leaves_the_first_alone(
    one: Place, tmp_path: Path, how: str
) -> None:
    """Nothing runs twice, nothing is adopted there, nothing is killed here."""
    first = one.daemon()
    tally = tallied(one, "once")
    pid = one.running_process("once")
    other = Place(tmp_path / "other", tmp_path / "other-work")
    if how == "a backup":
        copy = one.folder / "copy.db"
        one.ok("backup", str(copy))
        other.ok("restore", str(copy))
    else:
        one.term(first)
        shutil.copytree(one.home, other.home)
        first = one.daemon()
    second = other.daemon()
    try:
        assert "not started again" in lost(other, "once")
        assert one.job("once")["status"] == "RUNNING"
        assert not is_gone(pid)
        assert tally.read_text() == "x\n"
        assert other.ok("job", "submit", "--", "echo", "here") == "here\n"
        one.ok("job", "stop", "once")
        one.reach("once", "STOPPED")
    finally:
        other.term(second)
        other.end()
