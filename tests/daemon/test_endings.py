"""What the end of a process means for its job, and rows that somebody spoils under a running scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contents import JOURNAL, spoil
from tests.daemon.conftest import Life
from tests.specification import spec
from vctl.core.jobs import Run
from vctl.core.resources import EMPTY
from vctl.core.values import Exit
from vctl.engine.rules.outcomes import outcome_of
from vctl.engine.stimuli import ProcessOver

pytestmark = spec("8.end", "12.odd-rows")


def record(**fields: object) -> Exit:
    plain = {"exit_code": 0, "signal": None, "launch_errno": None, "stopped": False, "message": "",
             "ended_at": 1}  # fmt: skip
    return Exit(**{**plain, **fields})  # type: ignore[arg-type]


STOPPED, LIMIT, DEAD = "StoppedByUser", "TimeLimit", "NodeFailed"
ENDS = {
    "well": (None, record(), ("SUCCEEDED", None, 0)),
    "badly": (None, record(exit_code=7), ("FAILED", "NonZeroExit", 7)),
    "by a signal": (None, record(exit_code=139, signal=11), ("FAILED", "NonZeroExit", 139)),
    "no such program": (None, record(exit_code=127, launch_errno=2), ("FAILED", "LaunchFailed", 127)),
    "not executable": (None, record(exit_code=126, launch_errno=13), ("FAILED", "LaunchFailed", 126)),
    "stopped": (STOPPED, record(exit_code=143, signal=15, stopped=True), ("STOPPED", STOPPED, 143)),
    "stopped by SIGKILL": (STOPPED, record(exit_code=137, signal=9, stopped=True), ("STOPPED", STOPPED, 143)),
    "stopped, and ended with its own code": (STOPPED, record(exit_code=3, stopped=True), ("STOPPED", STOPPED, 143)),
    "ended before the stop reached it": (STOPPED, record(exit_code=3), ("FAILED", "NonZeroExit", 3)),
    "well before the stop reached it": (STOPPED, record(), ("SUCCEEDED", None, 0)),
    "out of time": (LIMIT, record(exit_code=143, signal=15, stopped=True), ("FAILED", LIMIT, 124)),
    "well just in time": (LIMIT, record(), ("SUCCEEDED", None, 0)),
    "its node died": (DEAD, record(exit_code=143, signal=15, stopped=True), ("FAILED", DEAD, None)),
    "its node died, nothing is known": (DEAD, None, ("FAILED", DEAD, None)),
    "lost": (None, None, ("FAILED", "ProcessLost", None)),
}  # fmt: skip


@pytest.mark.parametrize(("stop_reason", "seen", "expected"), ENDS.values(), ids=list(ENDS))
def test_outcomes(
    stop_reason: str | None, seen: Exit | None, expected: tuple[str, str | None, int | None]
) -> None:
    run = Run("1.1.0.x", 1, 1, 0, "c", "v", "n", EMPTY, stop_reason=stop_reason)
    outcome = outcome_of(run, ProcessOver(run, seen, "lost its supervisor"))
    assert (outcome.status, outcome.reason, outcome.exit_code) == expected
    assert (outcome.message is None) == (outcome.status == "SUCCEEDED")


SPOILS = {
    "the spec of a waiting job": ("spec", "x"),
    "its own request": ("entry", "{"),
    "what it starts": ("argv", "x"),
    "its options": ("options", ""),
    "its environment": ("env", "["),
}


@pytest.mark.parametrize(("column", "text"), SPOILS.values(), ids=list(SPOILS))
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_spoiled_job_stops_nobody_else(tmp_path: Path, column: str, text: str, restarted: bool) -> None:
    life = Life(tmp_path / "state")
    try:
        life.nodes(1, "4c")
        whole = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 4}}]}]}
        life.run("holder", spec=whole)
        life.submit("waits", spec=whole, argv=("echo", "hidden-word"))
        life.submit("good", spec=whole, argv=("true",))
        life.turn()
        with life.store.transaction():
            spoil(life.store.db, column, text, "submission_id = 'waits'")
            life.store.event("job.edited", "job", "waits")
        if restarted:
            life.die()
            life.start()
        life.end("holder")
        life.until(lambda: life.job("good")["status"] == "SUCCEEDED")
        if column not in ("spec", "entry"):
            assert (life.job("waits")["status"], life.job("waits")["state_reason"]) == (
                "FAILED",
                "ProcessLost",
            )
            assert "cannot be read" in life.job("waits")["message"]
        else:
            assert life.store.value("SELECT source FROM set_aside") == "jobs"
            content = life.store.value("SELECT content FROM set_aside")
            assert '"launch":{' in content  # nothing is lost
            assert "hidden-word" in content
            journal = [str(tuple(row)) for row in life.store.rows(f"SELECT * FROM {JOURNAL}")]
            assert len([text for text in journal if "RowSetAside" in text]) == 1
            assert "hidden-word" not in str(journal)
            base, edited, first = life.store.row(
                "SELECT base, max(seq) FILTER (WHERE change IS NULL), min(seq) FILTER (WHERE kind = 'row.set_aside')"
                f" FROM head, {JOURNAL}"
            )
            assert edited <= base < first  # what the tables are now follows from the journal after the edit
    finally:
        life.close()
