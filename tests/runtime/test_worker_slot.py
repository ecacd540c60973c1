"""The table of states of a worker slot; tests/simulation/test_seats.py shows that slots keep to it."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.runtime.records import RecordFile
from vctl.runtime.worker_slot import ASSIGNED, MOVES, RETIRED, WorkerSlot, WorkerState

pytestmark = spec("16.local", "12.daemon-death")


def after(*events: str) -> WorkerState:
    state = WorkerSlot(RecordFile("records/1", 1)).state
    for event in events:
        state = MOVES[event][state]
    return state


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (["ask", "take", "end", "free", "assign", "ask"], "requested"),
        (["ask", "lose", "fork", "lose", "fork", "take"], "busy"),
        (["ask", "lose", "take"], "busy"),  # the process that is gone had taken it
        (["ask", "end", "ask"], "requested"),  # declined, and the next one of the queue
        (["ask", "lose", "retire"], "retired"),  # its record file is gone, or too many processes have ended
        (["retire"], "retired"),
    ],
)
def test_the_life_of_a_slot(events: list[str], state: str) -> None:
    assert after(*events).value == state


@pytest.mark.parametrize(
    "events", [["take"], ["ask", "take", "lose"], ["ask", "take", "ask"], ["free", "free"], ["retire", "ask"]]
)
def test_what_cannot_happen_is_an_error(events: list[str]) -> None:
    with pytest.raises(KeyError):
        after(*events)


def test_each_state_is_reached_and_each_can_be_left() -> None:
    reached = {ASSIGNED}
    while more := {to for moves in MOVES.values() for at, to in moves.items() if at in reached} - reached:
        reached |= more
    assert reached == set(WorkerState)
    assert MOVES["retire"].keys() == set(WorkerState) - {RETIRED}
    assert not any(RETIRED in moves for moves in MOVES.values())
