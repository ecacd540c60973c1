"""A worker slot: one number as the scheduler sees it, with its record file, its process, and its runs.

A slot is in one of the states below. ``MOVES`` is all that can happen to it; anything else is a bug and raises.
The theory is at the head of supervisors.py.
"""

from __future__ import annotations

import socket
from collections import deque
from enum import Enum

from vctl.runtime.forkserver import ForkServer
from vctl.runtime.records import RecordFile

ANSWER_S = 2.0
"""A process that has not taken a request within this time is stopped, or overloaded."""


class WorkerState(Enum):
    """What a slot waits for."""

    __hash__ = object.__hash__  # that of Enum is a function in Python, and each run moves through four states

    FREE = "free"  # for anybody who needs a slot
    ASSIGNED = "assigned"  # for the launch of the run that has its number, or for that run to be taken back
    REQUESTED = "requested"  # for its process to take the request of its run
    PAUSED = "paused"  # to get another process: the one before ended without taking the request
    BUSY = "busy"  # for the end of its run, which a process has taken
    RETIRED = "retired"  # for nothing: it gets no more runs, and its process ends with the present one


FREE, ASSIGNED, REQUESTED, PAUSED, BUSY, RETIRED = WorkerState

MOVES: dict[str, dict[WorkerState, WorkerState]] = {
    "assign": {FREE: ASSIGNED},  # a transaction is about to write its number into the row of a run
    # its run is launched, or comes up from the queue; FREE: the commit of an assignment seemed to fail, and did not
    "ask": {FREE: REQUESTED, ASSIGNED: REQUESTED},
    "lose": {REQUESTED: PAUSED},  # its process has ended, and nobody has taken the request
    "fork": {REQUESTED: REQUESTED, PAUSED: REQUESTED},  # it gets another process, which gets the request
    "take": {REQUESTED: BUSY, PAUSED: BUSY},  # the line or the file says that a process has taken the run
    "end": {REQUESTED: ASSIGNED, PAUSED: ASSIGNED, BUSY: ASSIGNED},  # its run is over, declined, or given up
    "free": {ASSIGNED: FREE},  # no run has its number any more
    "retire": dict.fromkeys((FREE, ASSIGNED, REQUESTED, PAUSED, BUSY), RETIRED),
}


class WorkerSlot:
    """One number: its file, the line to its process if there is one, and its runs."""

    __slots__ = (
        "answer_s", "due", "file", "line", "outbox", "pid", "queue", "request", "rest", "resumed", "run",
        "runs", "server", "since", "state", "supervisor", "tries", "waits",
    )  # fmt: skip

    def __init__(self, file: RecordFile) -> None:
        self.file = file
        self.state = ASSIGNED
        self.line: socket.socket | None = None
        self.outbox = b""
        self.rest = b""
        self.server: ForkServer | None = None  # the launcher that its line was handed to
        self.pid = 0
        self.supervisor: int | None = None  # the index of the supervisor that has the number
        self.run = ""  # the run that it has while it is REQUESTED, PAUSED or BUSY
        self.request = b""  # the request of that run while it is REQUESTED or PAUSED
        self.queue: deque[tuple[str, bytes]] = deque()  # the runs after that, with their requests
        self.since = 0.0  # when it was asked
        self.resumed = False  # whether its process got SIGCONT since then
        self.waits = False  # for its line to take more
        self.due = 0.0  # when a PAUSED slot gets another process
        self.answer_s = ANSWER_S
        # processes that it got for the present request, without those lost with their launcher
        self.tries = 0
        self.runs = 0  # runs that it has carried out
