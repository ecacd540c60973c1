"""What counts as over, and that those who wait are not woken by every commit of others."""

import threading
import time
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.ops import waiting
from vctl.ops.logs import Growing
from vctl.store.store import Store

pytestmark = spec("13.waiting")

LOOKED_S = 0.5


def test_who_has_waited_for_long_looks_rarely(tmp_path: Path) -> None:
    over = threading.Event()
    with Store.open(tmp_path) as store, waiting._Changes() as changes:
        changes.watch(store)
        announced = store.watched()

        def commit() -> None:
            while not over.wait(0.001):
                announced.write_bytes(b"x")

        committing = threading.Thread(target=commit)
        committing.start()
        try:
            early = _looks(changes)
            changes.began -= 10.0
            late = _looks(changes)
        finally:
            over.set()
            committing.join()
    assert late <= LOOKED_S / waiting.PAUSE_S + 1 < early


def _looks(changes: waiting._Changes) -> int:
    """How often somebody looks in half a second."""
    looks, until = 0, time.monotonic() + LOOKED_S
    while time.monotonic() < until:
        changes.rest(1.0, works=True)
        looks += 1
    return looks


@pytest.mark.parametrize("state", [jb.PENDING, jb.RUNNING, *sorted(jb.FINAL)])
def test_the_final_states_of_jobs(state: str) -> None:
    assert waiting.is_over({"submission_id": "a", "status": state}) is (
        state in ("SUCCEEDED", "FAILED", "STOPPED")
    )


@pytest.mark.parametrize("state", [tk.PENDING_ARGS, tk.PENDING_NODE, tk.RUNNING, *sorted(tk.FINAL)])
def test_the_final_states_of_tasks(state: str) -> None:
    assert waiting.is_over({"task_id": "task-1", "state": state}) is (state in ("FINISHED", "FAILED"))


def test_a_log_is_read_part_by_part_and_from_its_beginning_once_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Growing(path)
    assert (list(log.new()), log.is_open) == ([], False)
    path.write_bytes(b"one ")
    assert (b"".join(log.new()), log.is_open) == (b"one ", True)
    with path.open("ab") as file:
        file.write(b"two")
    assert b"".join(log.new()) == b"two"
    assert list(log.new()) == []
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(b"new")
    assert b"".join(log.new()) == b"new"
    log.close()
    assert not log.is_open
