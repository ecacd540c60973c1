"""Runs that are assigned ahead: their rows, and for each the file that whoever removes it decides by.

A supervisor removes ``ahead/<run>`` before it starts the run; whoever takes the run back removes it, too. Only one of
them succeeds. So a transaction of a command takes all back that has not started, and nothing starts behind its back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from sqlite3 import Row
from typing import TYPE_CHECKING

from vctl.engine.changes import RunAssignedAhead

if TYPE_CHECKING:
    from vctl.store.store import Store

FOLDER = "ahead"


def rows(store: Store) -> list[Row]:
    """All of them."""
    return store.rows("SELECT * FROM runs_ahead")


def assigned(row: Row) -> RunAssignedAhead:
    """The change that a row says."""
    return RunAssignedAhead(row["run_id"], row["job_id"], row["follows"], row["supervisor"], row["revision"])


def offer(home: Path, run_id: str) -> None:
    """Let a supervisor start a run."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(f"{home}/{FOLDER}/{run_id}", flags, 0o600)
    except FileNotFoundError:
        (home / FOLDER).mkdir(mode=0o700, exist_ok=True)
        fd = os.open(f"{home}/{FOLDER}/{run_id}", flags, 0o600)
    os.close(fd)


def withdraw(home: Path, run_id: str) -> bool:
    """Whether a run has not started and never will because of the offer: it is withdrawn now."""
    try:
        os.unlink(f"{home}/{FOLDER}/{run_id}")
    except FileNotFoundError:
        return False
    return True


def tidy(home: Path, known: Iterable[str]) -> None:
    """Remove the offers of runs that nobody knows."""
    with suppress(FileNotFoundError):
        for name in set(os.listdir(home / FOLDER)) - set(known):
            withdraw(home, name)
