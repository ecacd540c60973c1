"""Makes the launch request of a run: its command, its environment, and what it sees of its cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce

from vctl.core.clusters import PRIMARY, VNode
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import LOCAL, RAY
from vctl.core.resources import CPU, EMPTY, GPU, MEMORY, SCALE, Allocation, merged
from vctl.core.values import value
from vctl.daemon import gangs, isolation, notices, objects
from vctl.daemon.confining import AUTO, confinement_of
from vctl.daemon.following import FollowedState
from vctl.engine.ahead import RunAhead
from vctl.ops.forms import amounts
from vctl.ops.logs import log_path
from vctl.ray.daemon import private_rays
from vctl.ray.daemon.private_rays import reservation_of
from vctl.runtime import relay, spawning
from vctl.runtime.environment import SharedVariables, job_environment
from vctl.runtime.protocol import LaunchRequest
from vctl.spec.options import PIDS
from vctl.store import arrays, contents, jobs, rows
from vctl.store.rows import dumps, loads
from vctl.store.store import Row, Store

MAX_ENVIRONMENTS = 64
"""The number of environments that are kept in memory, those that were used last."""


@value(frozen=True, slots=True)
class LaunchCommand:
    """The command of a job or a task; ``count``: members of its array, ``ray``: kind of its private Ray, or empty.

    ``beside``: the run whose resources it sees instead of its own. ``private``: what its job wants for itself.
    ``relay``: the words before it, if it runs behind the relay. ``uid``: the user as whom it runs; None in
    personal mode.
    """

    argv: tuple[str, ...]
    env: SharedVariables
    cwd: str
    sees_all: bool = False
    count: int = 1
    ray: str = ""
    beside: str = ""
    private: tuple[str, ...] = ()
    relay: tuple[str, ...] = ()
    uid: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The command behind its relay."""
        return (*self.relay, *self.argv)


class Commands:
    """The commands of jobs and tasks. Jobs with one environment share it, and the members of an array their command."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._array: tuple[tuple[str, int], LaunchCommand] | None = None
        """The array and the command of the last member. A rerun gives some members another command."""
        self._environments: dict[int, SharedVariables] = {}

    def of(self, run: Run, array_id: str | None) -> LaunchCommand | None:
        """The command of a run."""
        if run.task_id is not None:
            return self._command(contents.of_task(self.store, run.task_id), is_task=True)
        if array_id is None:
            return self._command(contents.of_job(self.store, run.job_id))
        if (command_id := jobs.command_id(self.store, run.job_id)) is None:
            return None
        if self._array is not None and self._array[0] == (array_id, command_id):
            return self._array[1]
        array = arrays.get(self.store, array_id)
        if array is None:
            return None
        command = self._command(contents.of_job(self.store, run.job_id), count=array["count"])
        if command is not None:
            self._array = (array_id, command_id), command
        return command

    def _command(self, row: Row | None, count: int = 1, *, is_task: bool = False) -> LaunchCommand | None:
        if row is None:
            return None
        of_job = row["of_job"] if is_task else None
        options = loads(row["options"])
        return LaunchCommand(
            tuple(loads(row["argv"])), self._environment(row["environment_id"]),
            os.fsdecode(row["cwd"]), sees_all=bool(options.get("sees_all")), count=count,
            ray=options.get("private_ray", ""), beside=options.get("beside", ""),
            private=isolation.wish(options if of_job is None else loads(of_job)),
            relay=relayed(options.get("relay")), uid=row["uid"],
        )  # fmt: skip

    def _environment(self, number: int) -> SharedVariables:
        variables = self._environments.pop(number, None)
        if variables is None:
            variables = SharedVariables(loads(contents.environment(self.store, number)))
            if len(self._environments) >= MAX_ENVIRONMENTS:
                del self._environments[next(iter(self._environments))]
        self._environments[number] = variables  # the one that was used last is dropped last
        return variables


def request_of(
    store: Store, state: FollowedState, commands: Commands, run: Run, *, log_max_bytes: int = 0, cgroups: str = AUTO,
    ahead: RunAhead | None = None, again: bool = False,
) -> LaunchRequest | None:  # fmt: skip
    """The launch request of a run, or None if its job is gone. Makes the directory of its objects; raises Unprepared.

    ``again``: a supervisor may have an earlier request of this run, and may have started it.
    ``ahead``: given for a run that is assigned ahead. Then None also if its job has a private Ray, or if its
    node belongs to a Ray cluster.
    """
    ledger = state.ledger
    job: PendingJob | RunningJob | None = None if ahead is None else ahead.start.job
    if job is None:
        job = state.running.jobs.get(run.job_id) or _detached_from(store, run.job_id)
    command = None if job is None else commands.of(run, job.array_id)
    source = ledger.nodes[run.node_id].source if run.node_id in ledger.nodes else ""
    if job is None or command is None or (ahead is not None and (command.ray or source == RAY)):
        return None
    home = str(store.home)
    attempt = job.attempt if ahead is None else run.attempt
    in_gang = run.task_id is None and job.per_node
    shown_run = state.runs.get(command.beside, run) if command.beside else run
    sees = shown_run.allocation
    if command.sees_all:
        sees = visible(ledger.ranked(run.cluster_id) if ahead is None else ahead.start.vnodes, run)
    if shown_run.task_id is None and job.per_node:
        sees = ledger.vnodes[run.vnode_id].allocation
    cpus = sees.amounts.get(CPU, 0)
    own = {
        "VCTL_JOB_ID": str(run.job_id),
        "VCTL_SUBMISSION_ID": job.submission_id,
        "VCTL_ATTEMPT": str(run.attempt),
        "VCTL_CLUSTER_ID": run.cluster_id,
        "VIRTUAL_CLUSTER_ID": run.cluster_id,
        "VCTL_CLUSTER_PATH": path_of(ledger, run.cluster_id, job.parent_id),
        "VCTL_VNODE_ID": run.vnode_id,
        "VCTL_NODE_ID": run.node_id,
        **_granted(sees),
        **({"VCTL_ADDRESS": store.address} if store.address else {"VCTL_HOME": home}),
        "VCTL_LEASE_FILE": notices.path_of(store.job_files, job.submission_id),
        "VCTL_OBJECT_DIR": objects.prepare(store, state, run, attempt, again=again),
    }
    if run.task_id is not None:
        own["VCTL_TASK_ID"] = run.task_id
    elif job.array_id is not None:
        own["VCTL_ARRAY_ID"] = job.array_id
        own["VCTL_ARRAY_INDEX"] = str(job.array_index)
        own["VCTL_ARRAY_COUNT"] = str(command.count)
    if in_gang and isinstance(job, RunningJob):
        own.update(gangs.environment(store, ledger, run, job.master_port or 0))
    before: tuple[str, ...] = ()
    ray = private_rays.part_of(command.ray, command.argv) if source == RAY else ""
    shown = None
    if command.ray and source == RAY:
        shown = private_rays.begin_on_ray(store.home, ledger, run)
    elif command.ray and _can_start(command):  # else its start fails as any other
        before = private_rays.command(store.home, ledger, run, command.ray)
    if command.ray:
        about = jobs.metadata(store, run.job_id)
        own |= private_rays.job_config(job.submission_id, about, command.env.variables)
    gpus = [str(index) for index in sorted(sees.instances.get(GPU, {}))]
    argv, cwd = (*before, *command.words), command.cwd
    above = ledger.upward(run.cluster_id if run.cluster_id in ledger.clusters else job.parent_id)
    if what := isolation.given(above, command.private):
        argv, cwd = _apart(store, state, run, command, before, what, source=source, attempt=attempt)
    return LaunchRequest(
        run_id=run.run_id,
        argv=argv,
        own=job_environment(command.env.variables, own, gpus=gpus, cpus=cpus),
        cwd=cwd,
        supervisor=run.supervisor,
        log_path=log_path(home, run.task_id or job.submission_id),
        cpu_ids=sees.bound_cores if source == LOCAL else None,
        grace_s=job.grace_s,
        uid=command.uid,
        log_max_bytes=log_max_bytes,
        memory_bytes=0 if source != LOCAL else sees.amounts.get(MEMORY, 0) // SCALE,
        confinement=confinement_of(ledger, run, sees, job.parent_id, uid=command.uid, cgroups=cgroups),
        node_id=run.node_id,
        reservation=reservation_of(ledger, run, attempt) if source == RAY else None,
        ray=ray,
        shown=shown,
        shared=command.env,
    )


def _can_start(command: LaunchCommand) -> bool:
    """Whether nothing shows that the start of a command fails; that of another user is not looked at."""
    if command.uid is not None:
        return True
    variables = {os.fsencode(name): os.fsencode(text) for name, text in command.env.variables.items()}
    argv = tuple(map(os.fsencode, command.words))
    return spawning.foreseen(argv, variables, os.fsencode(command.cwd)) is None


def _apart(
    store: Store, state: FollowedState, run: Run, command: LaunchCommand, before: tuple[str, ...], what: str,
    *, source: str, attempt: int,
) -> tuple[tuple[str, ...], str]:  # fmt: skip
    """The words and the directory of a run that has ``what`` for itself. ``before``: the words that start its Ray."""
    mode, words, cwd = command.relay[4:5], (*before, *command.words), command.cwd
    is_public = isolation.is_public(cwd)
    if mode == ("hold",) or not ((is_public and run.task_id is not None) or _can_start(command)):
        return words, cwd  # nothing is started, or its start fails as any other
    beside = None
    if PIDS in what and (command.beside or private_rays.is_raylet(command.argv)):
        runs = (state.runs[run_id] for run_id in state.runs_of_job.get(run.job_id, ()))
        mains = (one for one in runs if one.task_id is None and command.beside in ("", one.run_id))
        beside = next((one.pid for one in mains), None)
    apart = isolation.words(
        what, str(store.home), run.job_id, attempt, cwd, source=source, beside=beside
    )  # fmt: skip
    if mode == ("label",):  # outside, where the supervisor gives it the time to write what is left
        words = (*command.relay, *apart, *command.argv)
    else:
        words = (*apart, *words)
    return words, "/" if is_public else cwd


@lru_cache(1024)
def _granted(sees: Allocation) -> Mapping[str, str]:
    """The variables that name resources; cached, as runs that follow each other hold the same resources."""
    instances = {name: sorted(shares) for name, shares in sorted(sees.instances.items()) if shares}
    return {"VCTL_RESOURCES": dumps(amounts(sees.amounts)), "VCTL_INSTANCES": dumps(instances)}


def _detached_from(store: Store, job_id: int) -> RunningJob | None:
    """The job of a detached task; the job itself is over."""
    row = jobs.get(store, job_id)
    return None if row is None else rows.running(row)


def relayed(how: Sequence[str] | None) -> tuple[str, ...]:
    """The words before a command that runs behind the relay; ``how``: the relay's mode and socket."""
    return () if how is None else (sys.executable, "-I", "-S", relay.__file__, *how, "--")


def visible(vnodes: Iterable[VNode], run: Run) -> Allocation:
    """The resources on the run's node that the run's cluster has; ``vnodes``: the cluster's virtual nodes."""
    return reduce(merged, (vnode.allocation for vnode in vnodes if vnode.node_id == run.node_id), EMPTY)


def path_of(ledger: Ledger, cluster_id: str, parent_id: str) -> str:
    """The ids from the root down to a cluster, joined by slashes. The cluster itself may not exist yet."""
    new = [] if cluster_id in ledger.clusters else [cluster_id]
    above = ledger.upward(parent_id if new else cluster_id)
    return "/".join([PRIMARY, *(cluster.cluster_id for cluster in reversed(above)), *new])
