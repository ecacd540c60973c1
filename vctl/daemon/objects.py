"""Objects while work runs: what a process finds in its directory, what it left there, and when all of that goes.

An output is recorded in the transaction that ends its task, and a copy in the one that starts its user; files follow,
and are made again until the process has started. So the tables are right whenever the scheduler dies.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import Run
from vctl.core.nodes import DEAD
from vctl.daemon.following import FollowedState
from vctl.daemon.measuring import Left, Measuring
from vctl.errors import VctlError, disk_trouble
from vctl.ops import objects as ops
from vctl.runtime import objects as files
from vctl.store import jobs, rows, tasks
from vctl.store import objects as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.daemon.endings import Ended, Outcome

EXIT_OUTPUT_MISSING = 1
NOTHING = "[]"


class Unprepared(VctlError):
    """A process cannot be started, because its directory of objects cannot be made ready."""

    def __init__(self, problem: str, reason: str) -> None:
        super().__init__(problem)
        self.reason = reason


# ---- before a process starts ----


def prepare(
    store: Store, run: Run, attempt: int, *, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> Path:
    """Make the directory of a run's objects: inputs are there, of outputs no earlier try has left anything.

    ``attempt`` is the job's. Raises Unprepared. Doing it again changes nothing.
    """
    place = files.place_of(store.home, run.job_id, attempt, run.node_id)
    try:
        files.make(place)
    except OSError as error:
        if (trouble := disk_trouble(error)) is not None:
            raise trouble from None
        raise Unprepared(f"{place} cannot be made: {error.strerror}", jb.LAUNCH_FAILED) from None
    for name in outputs:
        files.clear(place, name)
    if inputs:
        there = table.places(store, run.job_id, inputs)
        for name in inputs:
            _bring(store, run, attempt, name, list(there.get(name, ())))
    return place


def _bring(store: Store, run: Run, attempt: int, name: str, node_ids: list[str]) -> None:
    """Make one input visible on a run's node, from the first node on which it can be found."""
    place = files.place_of(store.home, run.job_id, attempt, run.node_id)
    if run.node_id in node_ids[:1] and files.is_there(place, name):
        return  # it was made here
    problem = f"there is no {name} any more"
    for node_id in node_ids:
        if node_id != run.node_id:
            try:
                files.bring(files.place_of(store.home, run.job_id, attempt, node_id), place, name)
            except files.Unusable as error:
                problem = error.problem
            else:
                return
    if run.node_id in node_ids and files.is_there(place, name):
        return  # a copy, of which the first one is gone
    with store.transaction():
        table.forget(store, run.job_id, name)
    raise Unprepared(f"input {name} is lost: {problem}", tk.INPUT_FAILED)


# ---- when a process has ended; inside the transaction of its end ----


def outputs_of(store: Store, run: Run) -> tuple[Path, list[str]] | None:
    """Where the outputs of a task are, and their names; None when it has none."""
    row = None if run.task_id is None else tasks.get(store, run.task_id)
    if row is None or row["outputs"] == NOTHING:
        return None
    job = jobs.get(store, run.job_id)
    place = files.place_of(store.home, run.job_id, 0 if job is None else job["attempt"], run.node_id)
    return place, rows.loads(row["outputs"])


def keep(store: Store, state: FollowedState, run: Run, outcome: Outcome, left: Left) -> Outcome:
    """Record what a task that ended well has left. One that did not leave what it declared has not ended well."""
    if outcome.status != jb.SUCCEEDED:
        return outcome
    if isinstance(left, str):
        return dataclasses.replace(
            outcome, status=jb.FAILED, reason=tk.OUTPUT_MISSING, exit_code=EXIT_OUTPUT_MISSING,
            message=f"exited with code 0 without its output in $VCTL_OBJECT_DIR: {left}",
        )  # fmt: skip
    node = state.ledger.nodes.get(run.node_id)
    if node is not None and node.state != DEAD:
        for name, size in left.items():
            table.insert(
                store, run.job_id, name, node_id=run.node_id, cluster_id=run.cluster_id, size=size,
                task_id=run.task_id,
            )  # fmt: skip
    return outcome


def task_over(store: Store, state: FollowedState, row: Row) -> None:
    """A task is over: those that wait for what it was to leave start, or never will."""
    if row["outputs"] != NOTHING:
        settle(store, state, row["job_id"], rows.loads(row["outputs"]))


def settle(store: Store, state: FollowedState, job_id: int, names: Iterable[str]) -> None:
    """Something happened to objects of a job."""
    for task_id in ops.settle(store, job_id, names):
        state.reload_task(store, task_id)


def job_over(store: Store, state: FollowedState, job_id: int) -> None:
    """A job takes no more tasks: what waits for an object that nobody makes never starts."""
    if state.waiting_tasks_of.get(job_id):
        for task_id in ops.give_up(store, job_id):
            state.reload_task(store, task_id)


def wait_again(store: Store, state: FollowedState, task_id: str) -> None:
    """A task is to be tried again: it needs its inputs once more."""
    row = tasks.get(store, task_id)
    assert row is not None
    if row["inputs"] != NOTHING:
        ops.settle(store, row["job_id"], rows.loads(row["inputs"]))
    state.reload_task(store, task_id)


# ---- in the course of time ----


class Objects:
    """What goes with its job or its node. ``interval_s`` is the time between looks at what a crash left."""

    def __init__(self, store: Store, *, interval_s: float = 30.0) -> None:
        self.store = store
        self.interval_s = interval_s
        self._next = 0.0
        self.measuring = Measuring(store.wake)
        self._nodes: dict[int, set[str]] = {}
        """job -> the nodes on which processes of it have ended."""
        self._over: list[tuple[int, int, str]] = []
        """(job, attempt, node) of directories that can go; at leisure, removing files is slow beside commits."""

    def turn(self, state: FollowedState) -> None:
        """Do what is due."""
        if state.lost_nodes:
            lost, state.lost_nodes = state.lost_nodes, set()
            self._lose(state, sorted(lost))
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self.interval_s
            self.sweep(state)

    def measured(self, end: Ended) -> Ended | None:
        """An end with what the task left; None while that is being measured."""
        if (
            end.record is None
            or end.record.exit_code != 0
            or (outputs := outputs_of(self.store, end.run)) is None
        ):
            return end
        left = self.measuring.result(end.run.run_id, *outputs)
        return None if left is None else dataclasses.replace(end, left=left)

    def let_go(self, state: FollowedState, run: Run) -> None:
        """A process is over; with the last one of its job the objects go."""
        self._nodes.setdefault(run.job_id, set()).add(run.node_id)
        if run.job_id in state.runs_of_job or state.waiting_tasks_of.get(run.job_id):
            return
        attempt: int | None = run.attempt
        if run.task_id is not None:
            job = jobs.get(self.store, run.job_id)
            attempt = None if job is None else job["attempt"]
        nodes = self._nodes.pop(run.job_id)
        if attempt is not None:
            over = [(run.job_id, attempt, node_id) for node_id in sorted(nodes)]
            self._over += [place for place in over if not files.recycle(self.store.home, *place)]

    def tidy(self) -> None:
        """Remove the directories of what is over; those a crash made us forget are found by the next sweep."""
        for place in self._over:
            files.remove(self.store.home, *place)
        self._over.clear()

    def sweep(self, state: FollowedState) -> None:
        """Remove what belongs to nobody, and end what waits for nobody: a scheduler may have died before it did."""
        over = [job_id for job_id in set(state.awaiting.values()) if not jobs.is_running(self.store, job_id)]
        if over or table.ownerless(self.store):
            with self.store.transaction():
                state.follow(self.store)
                for job_id in over:
                    job_over(self.store, state, job_id)
                for job_id in table.ownerless(self.store):
                    table.drop(self.store, job_id)
                state.caught_up(self.store)
        for place in ops.left_over(self.store):
            files.remove(self.store.home, *place)

    def _lose(self, state: FollowedState, node_ids: list[str]) -> None:
        """Nodes are gone, and what lay on them."""
        there = {row["job_id"]: row["attempt"] for one in node_ids for row in table.are_on(self.store, one)}
        if not there:
            return
        with self.store.transaction():
            state.follow(self.store)
            names: dict[int, list[str]] = {}
            for job_id, name in table.lose(self.store, node_ids):
                names.setdefault(job_id, []).append(name)
            for job_id, lost in names.items():
                settle(self.store, state, job_id, lost)
            state.caught_up(self.store)
        for job_id, attempt in there.items():
            for node_id in node_ids:
                files.remove(self.store.home, job_id, attempt, node_id)
