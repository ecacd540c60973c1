"""No two jobs write into one log, even when a crash has left the log of a forgotten one (spec 17)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.boundaries import ended_when, watched
from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.errors import Conflict
from vctl.ops import jobs, logs, tasks
from vctl.spec.options import parse_array
from vctl.spec.task_request import TaskRequest
from vctl.store.store import Store

pytestmark = spec("17.retention", "12.daemon-death")

FORGETS: dict[str, Callable[[Store], object]] = {
    "delete": lambda store: jobs.delete(store, "a"),
    "prune": lambda store: jobs.prune(store, 0),
}


def child(home: Path, do: Callable[[Store], object], sig: int) -> int:
    """A process that does something to a state directory, and gets a signal before it removes the first file."""
    pid = os.fork()
    if pid == 0:
        try:
            with watched(ended_when("before unlink", sig=sig)), Store.open(home) as store:
                do(store)
        except BaseException:  # noqa: BLE001 - the child must not go on with the tests
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return pid


def wrote(ground: Ground, name: str, text: str = "old\n") -> Path:
    """As a job does."""
    log = logs.log_of(ground.store.home, name)
    log.parent.mkdir(exist_ok=True)
    with log.open("a") as file:
        file.write(text)
    return log


def run_task(ground: Ground, name: str) -> str:
    """A task of a job, as if that ran."""
    with ground.store.transaction():
        ground.store.db.execute("UPDATE jobs SET status = 'RUNNING' WHERE submission_id = ?", (name,))
    task = tasks.run(ground.store, TaskRequest(argv=("true",), cwd="/", job=name), environment={})
    with ground.store.transaction():
        ground.store.db.execute(
            "UPDATE tasks SET state = 'FINISHED', ended_at = 1 WHERE task_id = ?", (task["task_id"],)
        )
    return str(task["task_id"])


@pytest.mark.parametrize("way", FORGETS)
@pytest.mark.parametrize("array", [None, "0-2"])
def test_a_job_does_not_append_to_the_log_of_one_that_was_forgotten(
    ground: Ground, way: str, array: str | None
) -> None:
    given = {} if array is None else {"array": parse_array(array)}
    names = ["a"] if array is None else ["a_0", "a_1", "a_2"]
    ground.submit("a", **given)
    written = [wrote(ground, name) for name in names]
    for name in names:
        ground.end(name)
    ground.now += 10**9
    _, status = os.waitpid(child(ground.store.home, FORGETS[way], signal.SIGKILL), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert all(log.exists() for log in written)
    assert jobs.list_jobs(ground.store, all=True)[0] == []
    ground.submit("a", **given)
    assert not any(log.exists() for log in written)


def test_a_late_removal_spares_the_log_of_a_new_job(ground: Ground) -> None:
    ground.submit("a")
    wrote(ground, "a")
    ground.end("a")
    pid = child(ground.store.home, FORGETS["delete"], signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    later = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
    later.start()
    ground.submit("a")
    log = wrote(ground, "a", "new\n")
    later.join()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert log.read_text() == "new\n"


@pytest.mark.parametrize("way", FORGETS)
def test_the_logs_of_tasks_go_with_their_job(ground: Ground, way: str) -> None:
    ground.submit("a")
    log = wrote(ground, run_task(ground, "a"))
    ground.end("a")
    ground.now += 10**9
    FORGETS[way](ground.store)
    assert not log.exists()


def test_a_task_does_not_append_to_what_is_left(ground: Ground) -> None:
    """Numbers of tasks come again after a restore."""
    ground.submit("a")
    log = wrote(ground, "task-1")
    assert run_task(ground, "a") == "task-1"
    assert not log.exists()


def test_a_job_and_a_task_do_not_share_a_log(ground: Ground) -> None:
    ground.submit("a")
    ground.submit("task-1")
    assert run_task(ground, "a") == "task-2"
    with pytest.raises(Conflict, match="task-2 exists already"):
        ground.submit("task-2")


def test_an_array_that_is_refused_leaves_the_log_of_the_job_that_has_its_name(ground: Ground) -> None:
    ground.submit("a_1")
    log = wrote(ground, "a_1", "kept\n")
    with pytest.raises(Conflict, match="a_1 exists already"):
        ground.submit("a", array=parse_array("1-3"))
    assert log.read_text() == "kept\n"
