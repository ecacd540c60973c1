"""Small states for the tests of rules: jobs that run on two nodes, and what a rule yields for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.scheduler import candidates as g
from vctl.core.clusters import FIXED, JOB, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.resources import EMPTY
from vctl.core.tasks import PENDING_ARGS, RUNNING, Task
from vctl.engine import changes as ch
from vctl.engine import effects
from vctl.engine.apply import apply
from vctl.engine.changes import Change
from vctl.engine.effects import Effect
from vctl.engine.rules.starts import Supply
from vctl.engine.state import SchedulerState

NOTHING = Supply(str, int, int, int, str, len)
"""A supply of names and numbers that no rule of a test asks for."""
STARTED, NOW = 2 * 10**9, 5 * 10**9
"""When the jobs started, and the time of the rule."""


def state_of(nodes: str = "4c, 4c") -> SchedulerState:
    """Nothing but nodes n1, n2, … (see ``candidates.ledger``)."""
    ledger = g.ledger(nodes)
    ledger.put_cluster(Cluster(PRIMARY, None, "primary", ClusterSpec(flexible=False)))
    return SchedulerState(ledger, {}, 0)


def effects_due(state: SchedulerState, uptime: int) -> list[Effect]:
    """All that is due outside, carried out already or not; ``uptime`` in ns since the machine started."""
    of_runs = [effect for run in state.runs.values() for effect in effects.of_run(state, run)]
    return [*of_runs, *effects.warnings(state, uptime), *effects.notices(state)]


def pending(job_id: int = 1, *, parent: str = PRIMARY, **fields: Any) -> PendingJob:
    """Job ``j1``, which asks for one CPU."""
    return PendingJob(
        job_id, f"j{job_id}", parent, "s", ClusterSpec(flexible_min=g.amounts("1c")), {}, **fields
    )


def run_job(
    state: SchedulerState,
    job_id: int = 1,
    *,
    cpus: str = "1c",
    members: int = 1,
    seen: bool = True,
    **fields: Any,
) -> RunningJob:
    """Job ``j1`` runs in its own cluster, with a process ``j1.0`` (and ``j1.1``, … on the next nodes)."""
    request = pending(job_id, per_node=members > 1, **fields)
    state.put_pending(request)
    ledger, cluster_id = state.ledger, request.cluster_id
    cluster = Cluster(cluster_id, PRIMARY, JOB, request.spec, job=str(job_id))
    vnodes = []
    for rank in range(members):
        node_id = f"n{rank + 1}"
        allocation = ledger.capacities[node_id].copy().take(g.amounts(cpus))
        vnodes.append(
            VNode(f"{cluster_id}/{rank}", cluster_id, node_id, node_id, FIXED, allocation, rank=rank)
        )
    runs = tuple(
        Run(f"j{job_id}.{vnode.rank}", job_id, request.attempt + 1, vnode.rank, cluster_id, vnode.vnode_id,
            vnode.node_id, vnode.allocation if vnode.rank == 0 else EMPTY, supervisor=7)
        for vnode in vnodes
    )  # fmt: skip
    job = RunningJob.begun(request, cluster_id, runs[0].run_id, STARTED, held=g.amounts(cpus))
    apply(state, ch.JobStarted(STARTED, job, ("n1",), runs, cluster, tuple(vnodes)))
    for run in runs if seen else ():
        apply(state, ch.RunSeen(run.run_id, PROCESS))
    return job


PROCESS = ch.StartedProcess(100, 1, "boot", STARTED)


def add_task(
    state: SchedulerState, number: int, *, job_id: int = 1, runs: bool = False, **fields: Any
) -> Task:
    """Task ``task-1`` of job ``j1``, with its process ``t1`` where it runs; without resources of its own."""
    cluster_id = f"{PRIMARY}##j{job_id}"
    fields = {"owner_id": f"j{job_id}", "grace_s": 3.0, **fields}
    if fields.get("inputs"):
        fields["state"] = PENDING_ARGS
    task = Task(f"task-{number}", number, job_id, cluster_id, request={}, **fields)
    apply(state, ch.TaskSubmitted(STARTED, task))
    if runs:
        run = Run(
            f"t{number}", job_id, 1, 0, cluster_id, f"{cluster_id}/0", "n1", EMPTY, task_id=task.task_id
        )
        apply(state, ch.TaskStarted(STARTED, task.task_id, run))
        assert state.tasks.unfinished[task.task_id].state == RUNNING
    return state.tasks.unfinished[task.task_id]


def yielded(state: SchedulerState, changes: Iterable[Change]) -> list[Change]:
    """What a rule yields, each change applied before it is asked for the next."""
    found = []
    for change in changes:
        apply(state, change)
        found.append(change)
    return found


def over(job_id: int = 1, status: str = "SUCCEEDED", code: int | None = 0, **fields: Any) -> ch.JobEnded:
    """The end of job ``j1``, its cluster removed with it unless ``removed`` says otherwise."""
    name = f"{PRIMARY}##j{job_id}"
    plain: Mapping[str, Any] = {
        "reason": None,
        "message": None,
        "removed": ch.ClusterRemoved(name, silent=True),
    }
    return ch.JobEnded(
        NOW, job_id, f"j{job_id}", None, name, "end", status, exit_code=code, **{**plain, **fields}
    )


def follows(state: SchedulerState, changes: Iterable[Change]) -> list[Change]:
    """What a rule yields; each change is applied before the next one is asked for."""
    found = []
    for change in changes:
        apply(state, change)
        found.append(change)
    return found


def run_ahead(state: SchedulerState, job_id: int) -> str:
    """The run that is assigned ahead for a waiting job."""
    return next(run_id for run_id, ahead in state.ahead.runs.items() if ahead.start.job.job_id == job_id)
