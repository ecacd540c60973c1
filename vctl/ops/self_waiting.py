"""Jobs and tasks that wait for themselves: for the end or the resources of their submitter, which may wait
for them.

A job may depend on its submitter, also through jobs between them. Without such a dependency, all jobs and
tasks except the chain of submitters are removed from a ledger. If the job or task has no place even then, it
can start only after one of its submitters has ended.
"""

from __future__ import annotations

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINED, DRAINING
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.core.wording import amounts_text, listed
from vctl.ops import situations
from vctl.scheduler.explain.trial import Situation, stop
from vctl.scheduler.explain.words import limit_beside
from vctl.scheduler.feasibility import with_machines
from vctl.scheduler.gang_growth import grow, why_no_place
from vctl.scheduler.limits import reached
from vctl.scheduler.tasking import choose, growing_for, pinned_to, settled
from vctl.store import arrays, dependencies, jobs, rows, runs, settings, tasks
from vctl.store.store import Row, Store

MOST_DEEP, MOST_NAMED, MOST_AWAITED = 64, 3, 64


def job_waits_for_itself(store: Store, row: Row, now: Situation | None = None) -> str | None:
    """A warning for a pending job that cannot start before its running submitter has ended; else None.

    ``now``: the situation in this snapshot, if it is known.
    """
    chain = _submitters(store, row["submitted_by"])
    if row["status"] != jb.PENDING or not chain:
        return None
    names = [str(submitter["submission_id"]) for submitter in chain]
    if (awaited := _awaited(store, row, chain)) is not None:
        return _warning(str(row["submission_id"]), [awaited], f"it waits for {awaited} (--after)")
    beside = [
        submitter["user"] for submitter in chain if submitter["parent_cluster_id"] == row["parent_cluster_id"]
    ]
    policy = settings.queue_of(store, row["parent_cluster_id"])
    if (refusal := reached(policy, len(beside), beside.count(row["user"]))) is not None:
        return _warning(str(row["submission_id"]), names, limit_beside(refusal))
    now = situations.load(store, str(row["parent_cluster_id"])) if now is None else now
    ledger = _emptied(now, {int(submitter["job_id"]) for submitter in chain})
    if _has_place(ledger, rows.pending(row)):
        return None
    return _warning(str(row["submission_id"]), names, "it needs resources that are held there")


def task_waits_for_itself(store: Store, row: Row, now: Situation | None = None) -> str | None:
    """A warning for a waiting task that cannot start before its starter has ended: a task, or the job's command.

    ``now``: the situation in this snapshot, if it is known.
    """
    if row["state"] != tk.PENDING_NODE:
        return None
    owners: list[Row] = []
    above = tasks.get(store, row["owner_id"])
    while above is not None and above["state"] == tk.RUNNING and len(owners) < MOST_DEEP:
        owners.append(above)
        above = tasks.get(store, above["owner_id"])
    now = situations.load(store, str(row["cluster_id"])) if now is None else now
    task = rows.task(row).pending()
    owner_ids = {str(owner["task_id"]) for owner in owners}
    task_of = {str(run["run_id"]): run["task_id"] for run in runs.live_rows(store)}
    ledger = _emptied(now, {task.job_id})
    for run_id in list(ledger.charges):
        if (owner := task_of.get(run_id)) is not None and owner not in owner_ids:
            ledger.discharge(run_id)
    if _task_has_place(ledger, task):
        return None
    for run_id in list(ledger.charges):
        ledger.discharge(run_id)
    if not _task_has_place(ledger, task):
        return None  # the task is too large even for its empty cluster
    job = jobs.get(store, task.job_id)
    names = (
        [*owner_ids]
        if owner_ids
        else [f"the command of {job['submission_id']}" if job is not None else "its job"]
    )
    return _warning(task.task_id, names, f"it needs {amounts_text(task.request)}, which is held there")


def _awaited(store: Store, row: Row, chain: list[Row]) -> str | None:
    """The submitter for which a job waits by its dependencies, directly or through other jobs; else None."""
    whose = {
        name: str(job["submission_id"]) for job in chain for name in (job["array_id"], job["submission_id"])
    }
    seen, to_visit = {row["job_id"]}, [row["job_id"]]
    while to_visit and len(seen) < MOST_AWAITED:
        for dependency in dependencies.awaited(store, to_visit.pop(0), MOST_AWAITED):
            if (name := dependency["awaited"]) in whose:
                return whose[name]
            array = arrays.get(store, name)
            number = jobs.number_of(store, name) if array is None else arrays.first(store, array)
            if number is not None and number not in seen:
                seen.add(number)
                to_visit.append(number)
    return None


def _warning(name: str, chain: list[str], why: str) -> str:
    first = chain[0]
    any_of = f"{first} or {listed(chain[1:], MOST_NAMED)}" if len(chain) > 1 else first
    return (
        f"{name} cannot start before {any_of} ends: {why}. {first} submitted it; if {first} waits for {name},"
        " both wait forever."
    )


def _submitters(store: Store, number: int | None) -> list[Row]:
    """The running jobs in the chain of submitters, the nearest first."""
    chain: list[Row] = []
    while number is not None and len(chain) < MOST_DEEP:
        row = jobs.get(store, number)
        if row is None:
            break
        if row["status"] == jb.RUNNING:
            chain.append(row)
        number = row["submitted_by"]
    return chain


def _emptied(now: Situation, job_ids: set[int]) -> Ledger:
    """The ledger with only the jobs ``job_ids``, drained nodes in service, and all machines of a provider."""
    ledger = now.ledger.copy()
    for holder in now.running:
        if holder.job_id not in job_ids and (
            holder.cluster_id is None or holder.cluster_id in ledger.clusters
        ):
            stop(ledger, holder)
    for node in list(ledger.nodes.values()):
        if node.state in (DRAINING, DRAINED):
            ledger.put_node(replace(node, state=ALIVE))
    return with_machines(ledger)


def _has_place(ledger: Ledger, job: PendingJob) -> bool:
    if job.parent_id not in ledger.clusters:
        return True
    refusal = why_no_place(ledger, job.parent_id, job.spec, job.entry)
    return refusal is None or refusal.exhausted


def _task_has_place(ledger: Ledger, task: PendingTask) -> bool:
    if task.cluster_id not in ledger.clusters or choose(ledger, task) is not None:
        return True
    task = settled(ledger, task)
    request = growing_for(task, ledger.vnodes.get(pinned_to(task) or ""))
    return (
        request is not None
        and grow(ledger.copy(), task.cluster_id, task.request, request.selector) is not None
    )
