"""Objects while work runs: what a process finds in its directory, what it left there, and when all of that goes.

An output is recorded in the transaction that ends its task, and a copy in the one that starts its user; files follow,
and are made again until the process has started. So the tables are right whenever the scheduler dies.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import Run
from vctl.daemon.following import FollowedState
from vctl.daemon.measuring import Measuring
from vctl.engine.changes import ObjectLost
from vctl.engine.rules.objects import drop, give_up, settled
from vctl.engine.stimuli import ProcessOver
from vctl.errors import VctlError, disk_trouble
from vctl.ops import objects as ops
from vctl.runtime import objects as files
from vctl.store import jobs
from vctl.store import objects as table
from vctl.store.store import Store


class Unprepared(VctlError):
    """A process cannot be started, because its directory of objects cannot be made ready."""

    def __init__(self, problem: str, reason: str) -> None:
        super().__init__(problem)
        self.reason = reason


# ---- before a process starts ----


def prepare(store: Store, state: FollowedState, run: Run, attempt: int) -> str:
    """Make the directory of a run's objects: inputs are there, of outputs no earlier try has left anything.

    ``attempt`` is the job's. Raises Unprepared. Doing it again changes nothing.
    """
    folder = files.folder_of(str(store.home), run.job_id, attempt, run.node_id)
    try:
        files.make(folder)
    except OSError as error:
        if (trouble := disk_trouble(error)) is not None:
            raise trouble from None
        raise Unprepared(f"{folder} cannot be made: {error.strerror}", jb.LAUNCH_FAILED) from None
    if (task := state.tasks.unfinished.get(run.task_id or "")) is not None:
        for name in task.outputs:
            files.clear(Path(folder), name)
        for name in task.inputs:
            _bring(store, state, run, attempt, name)
    return folder


def _bring(store: Store, state: FollowedState, run: Run, attempt: int, name: str) -> None:
    """Make one input visible on a run's node, from the first node on which it can be found."""
    place = files.place_of(store.home, run.job_id, attempt, run.node_id)
    there = state.tasks.objects.get(run.job_id, {}).get(name)
    node_ids = [] if there is None else list(there.at)
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
        state.emit(store, ObjectLost(run.job_id, name))
    raise Unprepared(f"input {name} is lost: {problem}", tk.INPUT_FAILED)


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

    def _attempt(self, state: FollowedState, job_id: int) -> int | None:
        """The attempt of a job that runs, or of one that is over, but for what it detached."""
        if (known := state.running.jobs.get(job_id)) is not None:
            return known.attempt
        row = jobs.get(self.store, job_id)
        return None if row is None else int(row["attempt"])

    def measured(self, state: FollowedState, end: ProcessOver) -> ProcessOver | None:
        """An end with what the task left; None while that is being measured."""
        if (
            end.exit is None
            or end.exit.exit_code != 0
            or (task := state.tasks.unfinished.get(end.run.task_id or "")) is None
            or not task.outputs
        ):
            return end
        attempt = self._attempt(state, end.run.job_id) or 0
        place = files.place_of(self.store.home, end.run.job_id, attempt, end.run.node_id)
        left = self.measuring.result(end.run.run_id, place, list(task.outputs))
        return None if left is None else dataclasses.replace(end, left=left)

    def let_go(self, state: FollowedState, run: Run) -> None:
        """A process is over; with the last one of its job the objects go."""
        self._nodes.setdefault(run.job_id, set()).add(run.node_id)
        if run.job_id in state.runs_of_job or state.tasks.waiting_of.get(run.job_id):
            return
        attempt = run.attempt if run.task_id is None else self._attempt(state, run.job_id)
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
        over = set(state.tasks.awaiting().values()) - set(state.running.jobs)
        ownerless = state.tasks.with_objects - set(state.running.jobs)
        if over or any(not state.tasks.of_job(job_id) for job_id in ownerless):
            with self.store.transaction():
                state.follow(self.store)
                for job_id in sorted(over):
                    state.emit_each(self.store, give_up(state, job_id, self.store.clock()))
                for job_id in sorted(ownerless):
                    if not state.tasks.of_job(job_id):
                        state.emit_each(self.store, drop(state, job_id))
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
            for node_id in node_ids:
                for row in table.are_on(self.store, node_id):
                    job_id, name = row["job_id"], row["name"]
                    is_last = len(state.tasks.objects[job_id][name].at) == 1
                    state.emit(
                        self.store, ObjectLost(job_id, name, node_id, row["cluster_id"], silent=not is_last)
                    )
                    if is_last:
                        names.setdefault(job_id, []).append(name)
            for job_id, lost in names.items():
                state.emit_each(self.store, settled(state, job_id, lost, self.store.clock()))
        for job_id, attempt in there.items():
            for node_id in node_ids:
                files.remove(self.store.home, job_id, attempt, node_id)
