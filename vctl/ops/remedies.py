"""Changes that would start a waiting job or task, as a sentence and as a command."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.clusters import PRIMARY, Cluster, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.limits import RUNNING_JOBS, USER
from vctl.core.nodes import SIMULATED, Node
from vctl.core.resources import CPU, GPU, MEMORY, Amounts
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.core.wording import amount_text, cluster_text, counted, listed
from vctl.ops.submitting import DEFAULT_GRACE_S, request_of, runtime_env_of
from vctl.scheduler.explain import whatif_search as kinds
from vctl.scheduler.explain.whatif import ProposedChange
from vctl.spec.job_request import JobRequest, entry_amounts
from vctl.spec.params import declared
from vctl.spec.quantities import exact_text, format_duration
from vctl.spec.task_request import TaskRequest
from vctl.spec.text import shown
from vctl.store.rows import dumps, loads
from vctl.store.store import Row

if TYPE_CHECKING:
    from vctl.spec.reports import Remedy

OPTION_OF = {CPU: "cpus", GPU: "gpus", MEMORY: "memory"}
"""Resource -> the option of ``vctl limit set``."""
OTHERWISE = (jb.CAP_REACHED, jb.USER_LIMIT, jb.HEAD_OF_LINE)
"""Reasons for which a job waits although the resources that it needs may be free."""


def remedy(change: ProposedChange, row: Row, launch: Row, reason: str | None) -> Remedy:
    """The JSON form of a tested change that starts the job of ``row``, which waits for ``reason``."""
    is_limit = change.kind == kinds.TIME_LIMIT
    words, line = _limited(change) if is_limit else _words_and_command(change, row, launch)
    if change.kind == kinds.STOP and reason in OTHERWISE:
        words = f"stop job {change.subject}"
    return {"kind": change.kind, "change": words, "command": line, "proven": True}


def remedy_for_task(change: ProposedChange, row: Row, launch: Row) -> Remedy:
    """The JSON form of a tested change that starts the task of ``row``."""
    match change.kind:
        case kinds.CANCEL:
            words = f"cancel {change.subject}, which holds resources that it needs"
            line: str | None = command(["task", "cancel", change.subject])
        case kinds.ANYWHERE | kinds.REQUEST:
            assert change.task is not None, change
            line = run_again(row, launch, change.task)
            old, new = (_amount(change.subject, amount) for amount in (change.old, change.new))
            words = f"ask for {new} instead of {old}"
            if change.kind == kinds.ANYWHERE:
                words = f"let it run on another node than {change.subject}"
        case _:
            words, line = _words_and_command(change, row, launch)
    return {"kind": change.kind, "change": words, "command": line, "proven": True}


def _words_and_command(change: ProposedChange, row: Row, launch: Row) -> tuple[str, str | None]:
    match change.kind:
        case kinds.RELEASE:
            return "release it", command(["job", "release", str(row["submission_id"])])
        case kinds.RESUME:
            name = cluster_text(change.subject)
            return f"let {name} admit jobs again", command(["vc", "resume", name])
        case kinds.UNDRAIN:
            return f"take node {change.subject} back into service", command(
                ["node", "undrain", change.subject]
            )
        case kinds.IGNORE if change.fence is not None:
            fence, name = change.fence, change.subject
            who = f"{listed([f'pid {pid}' for pid in fence.pids], 3)} of {fence.owner}"
            lines = [command(["node", "ignore", name, str(pid)]) for pid in fence.pids]
            return f"share {fence.name} {fence.number} of {name} with {who}", " && ".join(lines)
        case kinds.PRIORITY:
            words = f"raise its priority from {change.old} to {change.new}"
            return words, command(["job", "edit", str(row["submission_id"]), "--priority", str(change.new)])
        case kinds.RUNNING_JOBS | kinds.RUNNING_PER_USER:
            name, option = cluster_text(change.subject), f"--{change.kind.replace('_', '-')}"
            whose = " of each user" if change.kind == kinds.RUNNING_PER_USER else ""
            words = f"let {counted(change.new or 0, 'job')}{whose} run in {name} at a time instead of {change.old}"
            return words, command(["vc", "update", name, option, str(change.new)])
        case kinds.LIMIT:
            return _raised(change)
        case kinds.MAXIMUM | kinds.BORROW if change.cluster is not None:
            return _limit(change, change.cluster)
        case kinds.REPLICAS if change.cluster is not None:
            name, counts = (
                cluster_text(change.cluster.cluster_id),
                dumps(dict(change.cluster.spec.replica_sets)),
            )
            words = f"give {name} {counted(change.new or 0, 'whole node')} of template {change.subject}"
            words += f" instead of {change.old}"
            return words, command(["vc", "update", name, "--replica-sets", counts])
        case kinds.NODE if change.node is not None:
            return _node(change.node)
        case kinds.STOP:
            return f"stop job {change.subject}, which holds resources that it needs", command(
                ["job", "stop", change.subject]
            )
    assert change.job is not None, change
    return _request(change), resubmit(row, launch, change.job)


def _limited(change: ProposedChange) -> tuple[str, str]:
    limit = format_duration(change.new or 0)
    has = f"it has {'none' if change.old is None else format_duration(change.old)}"
    words = f"give it a time limit of {limit} ({has}), so that it is over before a booking begins"
    return words, command(["job", "edit", change.subject, "--time-limit", limit])


def _raised(change: ProposedChange) -> tuple[str, str]:
    """Higher limits of a user or a cluster. Of one that each user has, this user gets one of his own."""
    limit, _ = change.limits[0]
    is_user = limit.subject == USER
    name = cluster_text(change.subject)
    phrases, options = list[str](), ["--user" if is_user else "--cluster", name]
    for limit, most in change.limits:
        if limit.period:
            new, old = exact_text(GPU, most), exact_text(GPU, limit.amount)
            phrases.append(f"use {new} GPU hours a {limit.period} instead of {old}")
            options += ["--gpu-hours", new, "--per", limit.period]
        elif limit.resource == RUNNING_JOBS:
            phrases.append(f"run {counted(most, 'job')} at a time instead of {limit.amount}")
            options += ["--running-jobs", str(most)]
        else:
            old = _amount(limit.resource, limit.amount)
            phrases.append(f"hold {_amount(limit.resource, most)} at a time instead of {old}")
            options += [f"--{OPTION_OF[limit.resource]}", exact_text(limit.resource, most)]
    return f"let {name} {' and '.join(phrases)}", command(["limit", "set", *options])


def _limit(change: ProposedChange, cluster: Cluster) -> tuple[str, str]:
    from vctl.spec.cluster_spec import spec_to_document

    name = cluster_text(cluster.cluster_id)
    new, old = (_amount(change.where, amount) for amount in (change.new, change.old))
    if change.kind == kinds.BORROW:
        words = f"let {name} borrow up to {new} instead of {old}"
        return words, command(["vc", "update", name, "--borrow-limit", document(cluster.borrow_limit or {})])
    words = f"raise the maximum of {name} from {old} to {new}"
    return words, command(["vc", "update", name, "--spec", dumps(spec_to_document(cluster.spec))])


def _node(node: Node) -> tuple[str, str | None]:
    words = f"add one more node of template {node.template_id}"
    if node.source != SIMULATED:
        return words, None
    given = ["node", "add", "--template", node.template_id, "--resources", document(node.total.amounts)]
    if node.labels:
        given += ["--labels", dumps(dict(node.labels))]
    return words, command([*given, "--simulated"])


def _request(change: ProposedChange) -> str:
    where, subject = change.where, change.subject
    if where.startswith("nodes of group"):
        return f"ask for {counted(change.new or 0, 'node')} instead of {change.old}"
    if where == "whole":
        return (
            f"ask for {counted(change.new or 0, 'whole node')} of template {subject} instead of {change.old}"
        )
    words = f"ask for {_amount(subject, change.new)} instead of {_amount(subject, change.old)}"
    if where == "entry":
        return f"{words} for the command itself"
    return f"{words} as the flexible minimum" if where == "minimum" else f"{words} per node"


def _amount(name: str, amount: int | None) -> str:
    return amount_text(name, amount) if amount else f"0 {name or CPU}"


# ---- commands ----


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
    if request.ray.own and (packages := runtime_env_of(request.env)):
        words += ["--runtime-env-json", dumps(packages)]
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
