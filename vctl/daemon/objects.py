"""Objects of running work: prepares the directories of processes, and removes them when they are obsolete.

The transaction that ends a task records its outputs; the transaction that starts a task records the copies of
its inputs. The files follow, and are made again until the process has started. So the tables are right
whenever the scheduler dies.
"""

from __future__ import annotations

from pathlib import Path

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import Run
from vctl.core.nodes import DEAD
from vctl.daemon.following import FollowedState
from vctl.engine.changes import ObjectLost
from vctl.errors import VctlError, disk_trouble
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


def prepare(store: Store, state: FollowedState, run: Run, attempt: int, *, again: bool = False) -> str:
    """Make the directory of a run's objects, with all inputs and without the outputs of earlier tries.

    ``attempt`` is the attempt of the job. ``again``: the run may have started after an earlier call, so its outputs
    stay. Raises Unprepared.
    """
    folder = files.folder_of(str(store.job_files), run.job_id, attempt, run.node_id)
    try:
        files.make(folder)
    except OSError as error:
        if (trouble := disk_trouble(error)) is not None:
            raise trouble from None
        raise Unprepared(f"{folder} cannot be made: {error.strerror}", jb.LAUNCH_FAILED) from None
    if (task := state.tasks.unfinished.get(run.task_id or "")) is not None:
        for name in task.outputs if not again else ():
            files.clear(Path(folder), name)
        for name in task.inputs:
            _bring(store, state, run, attempt, name)
    return folder


def _bring(store: Store, state: FollowedState, run: Run, attempt: int, name: str) -> None:
    """Make one input visible on a run's node, from the first node on which it can be found."""
    folder = files.folder_path(store.job_files, run.job_id, attempt, run.node_id)
    there = state.tasks.objects.get(run.job_id, {}).get(name)
    node_ids = [] if there is None else list(there.at)
    if run.node_id in node_ids[:1] and files.is_there(folder, name):
        return  # it was made here
    problem = f"there is no {name} any more"
    for node_id in node_ids:
        if node_id != run.node_id:
            try:
                files.bring(files.folder_path(store.job_files, run.job_id, attempt, node_id), folder, name)
            except files.Unusable as error:
                problem = error.problem
            else:
                return
    if run.node_id in node_ids and files.is_there(folder, name):
        return  # a copy whose original is gone
    with store.transaction():
        state.emit(store, ObjectLost(run.job_id, name))
    raise Unprepared(f"input {name} is lost: {problem}", tk.INPUT_FAILED)


# ---- while work runs and after it ----


def attempt_of(store: Store, state: FollowedState, job_id: int) -> int | None:
    """The attempt of a job that runs, or that is over but for its detached tasks; None if it is unknown."""
    if (known := state.running.jobs.get(job_id)) is not None:
        return known.attempt
    row = jobs.get(store, job_id)
    return None if row is None else int(row["attempt"])


class Objects:
    """Removes directories of objects with their job or node. ``interval_s``: between looks at all of them."""

    def __init__(self, store: Store, *, interval_s: float = 30.0) -> None:
        self.store = store
        self.interval_s = interval_s
        self._next = 0
        self._nodes: dict[int, set[str]] = {}
        """job -> the nodes on which processes of it have ended."""
        self._dead: set[str] = set()

    def let_go(self, state: FollowedState, run: Run) -> None:
        """Note that a process is over, and release the objects of a job without other processes or tasks."""
        self._nodes.setdefault(run.job_id, set()).add(run.node_id)
        if run.job_id in state.runs_of_job or state.tasks.waiting_of.get(run.job_id):
            return
        attempt = run.attempt if run.task_id is None else attempt_of(self.store, state, run.job_id)
        nodes = self._nodes.pop(run.job_id)
        if attempt is not None:
            for node_id in sorted(nodes):
                files.let_go(self.store.job_files, run.job_id, attempt, node_id)

    def have_lost_a_node(self, state: FollowedState) -> bool:
        """Whether a node has died since the last time."""
        return not state.dead_nodes <= self._dead

    def tidy(self, state: FollowedState, uptime: int) -> None:
        """Remove the directories of lost nodes, and periodically those of ended jobs that a crash left."""
        is_due = self._next <= uptime
        if is_due or self.have_lost_a_node(state):
            for key in files.folders(self.store.job_files):
                if self._is_on_a_lost_node(state, *key):
                    files.remove(self.store.job_files, *key)
                elif is_due and not table.is_wanted(self.store, *key[:2]):
                    files.let_go(self.store.job_files, *key)
            self._dead = set(state.dead_nodes)
        if is_due:
            self._next = uptime + int(self.interval_s * 1e9)
        files.tidy(self.store.job_files)  # at leisure: removing files is slow beside commits

    def _is_on_a_lost_node(self, state: FollowedState, job_id: int, _: int, node_id: str) -> bool:
        node = state.ledger.nodes.get(node_id)
        runs = (state.runs[run_id] for run_id in state.runs_of_job.get(job_id, ()))
        return (node is None or node.state == DEAD) and all(run.node_id != node_id for run in runs)
