"""The line of a command that waits, in the columns that there are (spec 13: nothing is cut without a mark)."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.cells import cell_len

from tests.specification import spec
from vctl.cli.progress import Line, Progress

pytestmark = spec("13.waiting", "13.screen")

LONG = "evaluation-of-the-large-language-model-8"
REASON = "needs 8 GPU on each of 3 nodes; 2 nodes have that free"
ENDS = (" (#286 in primary)", f"; vctl why {LONG}", " (0 of 3 are over)")


@pytest.mark.parametrize(
    ("width", "wanted"),
    [
        (200, f"{LONG} waits: {REASON}{''.join(ENDS)}"),
        (165, f"{LONG} waits: needs 8 GPU on each of 3 node…{''.join(ENDS)}"),
        (150, f"{LONG} waits: needs 8 GPU on each of 3 nodes;…{''.join(ENDS[:2])}"),
        (100, f"{LONG} waits: needs 8 GPU on each of 3 nodes; 2…{ENDS[0]}"),
        (79, f"{LONG} waits: needs 8 GPU on each of 3 nodes…"),
        (60, f"{LONG} waits: needs 8 GPU…"),
        (30, "evaluation-of-the-large-langu…"),
    ],
)
def test_what_does_not_fit_goes_from_the_end_and_leaves_a_mark(width: int, wanted: str) -> None:
    line = Line(f"{LONG} waits: ", REASON, ENDS)
    fitted = line.fitted(width)
    assert cell_len(fitted) <= width
    assert fitted == wanted


def test_signs_of_two_columns_and_escapes_are_counted() -> None:
    line = Line("j waits: ", "方方方方方方方方方方方方方方方方\x1b[2J", (" (#1)",))
    for width in range(12, 60):
        assert cell_len(line.fitted(width)) <= width
    assert "\x1b" not in line.fitted(200)


class Terminal(StringIO):
    """A stream behind which a person sits."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_that_shows_only_text_each_change_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    progress = Progress(file, always=False)
    form = {"submission_id": "j", "message": "needs 8 CPU", "state_reason": None, "queue_position": None}
    for message in ("needs 8 CPU", "needs 8 CPU", "needs 4 CPU"):
        progress._began -= 1
        progress._looked_at -= 10
        progress.see({**form, "status": "PENDING", "message": message}, over=False)
    assert file.getvalue().splitlines() == [f"j waits: needs {n} CPU; vctl why j" for n in (8, 4)]


@spec("8.arrays")
def test_an_array_that_reports_to_a_file_writes_few_lines() -> None:
    """However often it changes and is looked at: the first state soon, the last one always."""
    file = StringIO()
    progress = Progress(file, always=True)
    progress._began -= 1
    progress._looked_at -= 10
    for done in range(1000):
        form = {"submission_id": "a", "array": {"count": 1000, "done": done, "states": {"RUNNING": 2}}}
        progress.see({**form, "status": "RUNNING"}, over=False)
    over = {"submission_id": "a", "array": {"count": 1000, "done": 1000, "states": {}}}
    progress.see({**over, "status": "SUCCEEDED"}, over=True)
    lines = file.getvalue().splitlines()
    assert "0 of 1000" in lines[0]
    assert "1000 of 1000" in lines[-1]
    assert len(lines) <= 3
