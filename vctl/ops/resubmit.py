"""The command that submits a job or task again with a changed request."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.resources import CPU, Amounts
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.ops.submitting import DEFAULT_GRACE_S, request_of
from vctl.spec.job_request import JobRequest, entry_amounts
from vctl.spec.params import declared
from vctl.spec.task_request import TaskRequest
from vctl.spec.text import shown
from vctl.store.rows import dumps, loads
from vctl.store.store import Row


def resubmit(row: Row, launch: Row, job: PendingJob) -> str:
    """``vctl job submit …`` for the job of ``row`` with the request of ``job``; it stops the old job first.

    The environment is that of the caller, as at every submit.
    """
    request = replace(
        request_of(row, launch),
        cluster=None if job.parent_id == PRIMARY else job.parent_id,
        spec=None if job.shares_parent or job.spec == ClusterSpec() else job.spec,
        entry=None,
        priority=job.priority,
        clean_env=False,
        grace_s=None if row["grace_s"] == DEFAULT_GRACE_S else row["grace_s"],
    )
    entry = {name: amount for name, amount in job.entry.items() if amount}
    if entry != entry_amounts(request):
        request = replace(request, entry=entry)
    words = ["vctl", "job", "submit", *declared(JobRequest).words(request)]
    for key, value in request.metadata.items():
        words += ["--metadata", f"{key}={value}"]
    words += ["--working-dir", request.cwd or "/", "--no-wait", "--", *request.argv]
    return f"vctl job stop {shlex.quote(row['submission_id'])} && {shown(shlex.join(words))}"


def run_again(row: Row, launch: Row, task: PendingTask) -> str:
    """``vctl task run …`` for the task of ``row`` with the request of ``task``; it cancels the old task first."""
    request = TaskRequest(
        argv=tuple(loads(launch["argv"])),
        request={CPU: 0, **task.request},
        selector=task.selector,
        strategy=task.strategy,
        inputs=tuple(loads(row["inputs"])),
        outputs=tuple(loads(row["outputs"])),
        max_retries=row["max_retries"],
        name=row["name"] or "",
        detach=bool(row["detached"]),
    )
    options = ["--job", str(row["job_id"]), *declared(TaskRequest).words(request), "--no-wait"]
    words = ["vctl", "task", "run", *options, "--", *request.argv]
    return f"vctl task cancel {shlex.quote(row['task_id'])} && {shown(shlex.join(words))}"


def document(amounts: Amounts) -> str:
    """A resource map as JSON that the command line reads back unchanged."""
    from vctl.spec.quantities import resources_document

    return dumps(resources_document(amounts))


def command(words: Iterable[str]) -> str:
    """Words as one line for the shell."""
    return shlex.join(["vctl", *words])
