"""A number as a scheduler sees it: its file, the process that carries out its runs, and their requests."""

from __future__ import annotations

import socket
from collections import deque

from vctl.runtime.records import RecordFile

ANSWER_S = 2.0
"""A process that has not taken a request within this time is stopped, or overloaded."""


class WorkerSlot:
    """One number: its file, the line to its process if there is one, and its runs."""

    __slots__ = (
        "answer_s", "due", "file", "line", "outbox", "pid", "place", "queue", "request", "rest", "resumed", "run",
        "runs", "since", "tries", "waits",
    )  # fmt: skip

    def __init__(self, file: RecordFile) -> None:
        self.file = file
        self.line: socket.socket | None = None
        self.outbox = b""
        self.rest = b""
        self.pid = 0
        self.place: int | None = None  # the index of the supervisor that has the number
        self.run = ""  # the run that it was given and that is not known to be over
        self.request = b""  # the request of that run, until it is known to be taken
        self.queue: deque[tuple[str, bytes]] = deque()  # the runs after that, with their requests
        self.since = 0.0  # when it was given the request
        self.resumed = False  # whether its process got SIGCONT since then
        self.waits = False  # for its line to take more
        self.due: float | None = None  # when to fork another process
        self.answer_s = ANSWER_S
        self.tries = 0
        self.runs = 0
