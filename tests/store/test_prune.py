"""Forgetting very many jobs: others write meanwhile, and a crash in the middle loses nothing (spec 17)."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.crowd import fill
from tests.benchmarks.million import vary
from tests.contents import WHOLE
from tests.specification import spec
from vctl.ops import jobs, nodes, submitting
from vctl.ops.prove import prove
from vctl.spec.job_request import JobRequest
from vctl.store import observed
from vctl.store.store import Store

pytestmark = [spec("17.retention"), pytest.mark.not_fast("a prune sleeps between its slices")]

FINISHED = 3_000


def whole(store: Store) -> bool:
    """No half of a job is left, and the counts fit."""
    halves = store.value(
        "SELECT (SELECT count(*) FROM jobs WHERE command_id NOT IN (SELECT command_id FROM commands))"
        " + (SELECT count(*) FROM commands WHERE command_id NOT IN (SELECT command_id FROM jobs))"
        " + (SELECT count(*) FROM environments WHERE environment_id NOT IN (SELECT environment_id FROM commands))"
        " + (SELECT count(*) FROM requests WHERE request_id NOT IN (SELECT request_id FROM commands))"
    )
    empty = store.value(
        "SELECT count(*) FROM arrays WHERE NOT EXISTS"
        " (SELECT 1 FROM jobs WHERE job_id BETWEEN first_job_id AND last_job_id AND jobs.array_id = arrays.array_id)"
    )
    return halves == empty == 0 and prove(store) == []


def test_others_write_while_very_much_is_forgotten(tmp_path: Path) -> None:
    home = tmp_path / "state"
    fill(home, queued=10, finished=FINISHED)
    waited: list[float] = []
    over = threading.Event()

    def submit() -> None:
        with Store.open(home) as store:
            while not over.is_set():
                began = time.monotonic()
                submitting.submit(store, JobRequest(argv=("true",), cwd="/"), environment={})
                waited.append(time.monotonic() - began)
                time.sleep(0.002)

    writer = threading.Thread(target=submit)
    writer.start()
    with Store.open(home) as store:
        began = time.monotonic()
        found = jobs.prune(store, 3600)
        took = time.monotonic() - began
        over.set()
        writer.join()
        assert len(found["jobs"]) == FINISHED
        assert found["events"] >= 3 * FINISHED
        assert whole(store)
        assert store.value("SELECT count(*) FROM jobs") == 14 + len(waited)
        assert store.value("SELECT count(*) FROM events WHERE kind = 'job.submitted'") == 10 + len(waited)
    assert len(waited) > 10
    assert max(waited) < max(0.2, took / 5)  # never behind all of it


class Timed(Store):
    """Notes the CPU seconds of each transaction, from the right to write to the end of the commit."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.held: list[float] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """As it is."""
        with super().transaction():
            began = time.thread_time()
            yield
        self.held.append(time.thread_time() - began)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected: this process has the objects of thousands of tests, which takes half a second."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_no_transaction_holds_others_up(tmp_path: Path) -> None:
    """A submit gets through within 100 ms (spec 17): a slice is as long as it takes, not as many jobs as it has."""
    home = tmp_path / "state"
    fill(home, queued=10, finished=8 * FINISHED)
    with Timed.open(home) as store:
        assert isinstance(store, Timed)
        jobs.prune(store, 3600)
        assert store.value("SELECT count(*) FROM jobs") == 14
        assert len(store.held) > 20
        assert max(store.held) < 4 * jobs.SLICE_S
        assert sum(store.held) > 4 * jobs.SLICE_S  # in one go it would have been too long


TASKS = 40


def give_tasks(store: Store, fraction: int) -> None:
    """The last jobs, one of so many, ran dear: each has ``TASKS`` tasks."""
    last, count = store.row("SELECT max(job_id), count(*) FROM jobs WHERE ended_at IS NOT NULL") or (0, 0)
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {TASKS})"
    dear = f"jobs WHERE ended_at IS NOT NULL AND job_id > {last - count // fraction}"
    with store.transaction():
        store.db.execute(
            f"{numbers} INSERT INTO tasks (task_id, job_id, cluster_id, owner_id, state, request, selector, strategy,"
            " created_at, ended_at, command_id) SELECT 't-' || job_id || '-' || i, job_id, cluster_id, 'o',"
            f" 'SUCCEEDED', '{{}}', '{{}}', 'DEFAULT', submitted_at, ended_at, command_id FROM n, {dear}"
        )


@pytest.mark.usefixtures("uncollected")
def test_no_transaction_holds_others_up_where_dear_jobs_come_after_cheap_ones(tmp_path: Path) -> None:
    """A slice was as long as the one before had been cheap: a thousand jobs, and each of them with its tasks."""
    home = tmp_path / "state"
    fill(home, queued=10, finished=2 * FINISHED)
    with Timed.open(home) as store:
        assert isinstance(store, Timed)
        give_tasks(store, 5)
        store.held.clear()
        jobs.prune(store, 3600)
        assert store.value("SELECT count(*) FROM jobs") == 14
        assert store.value("SELECT count(*) FROM tasks") == 0
        assert max(store.held) < 4 * jobs.SLICE_S, sorted(store.held)[-5:]


def test_a_crash_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    home = tmp_path / "state"
    fill(home, queued=10, finished=FINISHED)
    with Store.open(home) as store:
        vary(store, FINISHED)
    pid = os.fork()
    if pid == 0:
        try:
            with Store.open(home) as store:
                jobs.prune(store, 3600)
        finally:
            os._exit(0)
    reader = sqlite3.connect(home / "cluster.db")
    give_up = time.monotonic() + 30
    over = "SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL"
    while reader.execute(over).fetchone()[0] > FINISHED * 0.8:
        assert time.monotonic() < give_up
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    left = reader.execute(over).fetchone()[0]
    reader.close()
    assert left > 0
    with Store.open(home) as store:
        assert whole(store)
        assert len(jobs.prune(store, 3600)["jobs"]) == left
        assert whole(store)
        assert store.value("SELECT count(*) FROM jobs") == 14


class Interrupted(Exception):
    """As Ctrl-C."""


def test_a_prune_that_is_ended_behind_any_slice_leaves_whole_jobs(tmp_path: Path) -> None:
    """Also arrays: one without members is gone with the last of them, and of the others the rest is there."""
    home = tmp_path / "state"
    fill(home, queued=10, finished=FINISHED)
    with Store.open(home) as store:
        vary(store, FINISHED)
        arrays = store.value("SELECT count(*) FROM arrays")
        reported: list[str] = []

        def tell(text: str) -> None:
            reported.append(text)
            if len(reported) % 3 == 1 and text:
                raise Interrupted

        store.progress = tell
        interrupted = 0
        while True:
            try:
                jobs.prune(store, 3600)
                break
            except Interrupted:
                interrupted += 1
                assert reported.pop() == "", "the line is taken away"
                assert whole(store)
                found, total = jobs.list_jobs(store, all=True, members=False, limit=50)
                assert total >= len(found) > 0
        assert interrupted > 3
        assert arrays > 0 == store.value("SELECT count(*) FROM arrays")
        assert store.value("SELECT count(*) FROM jobs") == 14


def test_a_prune_tells_how_far_it_is(tmp_path: Path) -> None:
    home = tmp_path / "state"
    fill(home, queued=10, finished=FINISHED)
    with Store.open(home) as store:
        reported: list[str] = []
        store.progress = reported.append
        found = jobs.prune(store, 3600)
    done = [text for text in reported if text.endswith(f" of {FINISHED} jobs deleted")]
    numbers = [int(text.split()[0]) for text in done]
    assert numbers == sorted(set(numbers)) and numbers[-1] == FINISHED and len(numbers) > 3
    assert reported[-2] == f"{found['events']} of {found['events']} entries of the history deleted"
    assert reported[-1] == ""


def test_what_ends_while_others_are_deleted_stays(tmp_path: Path) -> None:
    """The jobs are chosen at the beginning, and each is looked at again before it goes."""
    home = tmp_path / "state"
    fill(home, queued=10, finished=FINISHED)
    with Store.open(home) as store, Store.open(home) as other:
        kept = store.value("SELECT max(job_id) FROM jobs WHERE ended_at IS NOT NULL")

        def rerun(_: str) -> None:
            with other.transaction():
                other.db.execute("UPDATE jobs SET status = 'PENDING' WHERE job_id = ?", (kept,))

        store.progress = rerun
        names = jobs.prune(store, 3600)["jobs"]
        assert len(names) == FINISHED - 1
        assert store.value("SELECT status FROM jobs WHERE job_id = ?", kept) == "PENDING"


def test_nothing_stays_that_nobody_reads(tmp_path: Path) -> None:
    """Rows beside the jobs do not grow with the number of jobs, shapes and schedulers that there ever were."""
    with Store.open(tmp_path / "state") as store:
        nodes.add(store, resources={"CPU": 40_000}, count=2, template="t")
        for number in range(6):
            request = JobRequest(argv=("true",), cwd="/", entry={"CPU": 10_000 + number}, priority=number)
            form = submitting.submit(store, request, environment={})
            with store.transaction():
                observed.set_wait(store, "kPrimaryClusterID", f"shape {number}", "Infeasible", "too large")
            jobs.stop(store, form["job_id"])
        nodes.add(store, resources={"CPU": 10_000}, count=1, template="t")  # judgements begin anew
        request = JobRequest(argv=("true",), cwd="/", entry={"CPU": 5_000})
        kept = submitting.submit(store, request, environment={})
        shape = store.value(f"SELECT shape FROM {WHOLE} WHERE job_id = ?", kept["job_id"])
        with store.transaction():
            for shown in (shape, f"{shape};user={kept['user']}"):
                observed.set_wait(store, kept["parent_cluster_id"], shown, "InsufficientResources", "busy")
        jobs.prune(store, 0)
        assert store.value("SELECT count(*) FROM waits") == 2
        assert store.value("SELECT count(*) FROM feasible") == 1
        assert store.value("SELECT count(*) FROM job_counts") == 1
        assert prove(store) == []


def test_schedulers_that_were_killed_are_not_kept_for_ever(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state") as store:
        for _ in range(120):
            store.epoch = None
            store.begin_term("background")
        assert store.value("SELECT count(*) FROM terms") == 101
