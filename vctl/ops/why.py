"""Why a job or a task waits, with the changes that would start it now; and the outcome of a submit. Both only read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from vctl import ops
from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import PendingJob
from vctl.core.nodes import RAY, UP
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.core.wording import counted, listed
from vctl.errors import NotFound
from vctl.ops import arrays, expected, feasible, forms, jobs, nodes, self_waiting, situations, submitting
from vctl.ops import tasks as task_ops
from vctl.ops.cluster_views import NoUserCluster
from vctl.ops.forms import Shown
from vctl.ops.obstacles import obstacles, obstacles_of_task
from vctl.ops.positions import ahead
from vctl.ops.reasons import Reasons
from vctl.ops.remedies import remedy, remedy_for_task
from vctl.ops.self_waiting import task_waits_for_itself
from vctl.ops.task_reasons import TaskReasons
from vctl.scheduler.explain.shortage import Shortage
from vctl.scheduler.explain.trial import RunningHolder, Situation
from vctl.scheduler.explain.whatif import NOTHING, Spent, TrialOutcome, Trials, task_trials
from vctl.scheduler.explain.whatif_search import helpful, nearest
from vctl.scheduler.plan import nodes_of
from vctl.scheduler.running import allocations_of
from vctl.scheduler.task_queue import in_turn
from vctl.scheduler.victims import Victim, loss_of
from vctl.store import arrays as members
from vctl.store import job_views, preemptions, provider, rows, runs, tasks
from vctl.store import jobs as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm
    from vctl.spec.job_request import JobRequest
    from vctl.spec.reports import Ahead, Causes, DryRun, LaunchFailure, Preempted, Why, WhyJob, WhyTask

STARTS_NOW = "nothing blocks it: the scheduler starts it in its next round"
NAMED = 5
"""The most preempted jobs that the message names; the list has all of them."""


def why(store: Store, ref: str | int) -> Why:
    """Why a job or a task waits: the reason, the jobs ahead, the nodes, and the changes that would start it now."""
    if isinstance(ref, str) and (task := tasks.get(store, ref)) is not None and not _is_job(store, ref):
        return why_task(store, task)
    with store.snapshot():
        row = job_views.get(store, _number(store, ref))
        assert row is not None
        reasons = Reasons(store)
        shown = reasons.of(row)
        before = ahead(store, row) if row["status"] == jb.PENDING else []
        position = len(before) + 1 if row["status"] == jb.PENDING else None
        start = expected.of_job(store, row["job_id"], row["parent_cluster_id"], row["status"])
        answer = _answer(forms.job(store, row, position, shown, start))
        if row["status"] != jb.PENDING:
            if (leaving := preemptions.of(store, row["job_id"])) is not None:
                answer["message"] = (
                    f"{answer['message']}, and is preempted by {leaving['winner']}, which has a higher priority, "
                    + (
                        f"at {forms.timestamp(leaving['ends_at'])} at the latest"
                        if leaving["ends_at"] > reasons.now
                        else "as soon as its processes have ended"
                    )
                )
            elif row["status"] == jb.RUNNING and row["cluster_id"] is not None:
                answer["message"] = f"{answer['message']}{reasons.to_give_back(row['cluster_id'])}"
            return answer
        launch = table.launch(store, row["job_id"])
        assert launch is not None
        job = rows.pending(row)
        situation = situations.load(store, job.parent_id, reasons.ledger(job.parent_id))
        itself = self_waiting.job_waits_for_itself(store, row, situation)
        ending = _leaving(store, situation, job.job_id)
        short = reasons.shortage(row)
        answer["ahead"] = _ahead(store, reasons, before)
        gate = reasons.gate(row)
        coming = _coming(store)
        kinds = situations.kinds_of_nodes(store)
        more = feasible.to_enlarge(store, feasible.judge_of(store, job.parent_id))
    trials = Trials(situation, job)
    outcome = _next_round(trials, job, preempts=gate is None)
    answer["preempts"] = situations.preempted(situation, outcome.preempts) or ending
    if gate is None:
        answer["state_reason"], answer["message"] = _reason(before, outcome, shown, short)
    elif gate == jb.HELD and outcome.tried and outcome.start is None:
        answer["message"] = (
            f"{answer['message']}; once released it would still wait: {_now(before, outcome, short)[1]}"
        )
    if gate is None and outcome.start is None:
        never = f"; {more}" if answer["state_reason"] == jb.INFEASIBLE else ""
        answer["message"] = f"{answer['message']}{never}{coming}"
    if itself is not None:
        answer["waits_for_itself"] = itself
    there = obstacles(situation, job)
    answer["nodes"], answer["nodes_left_out"] = there["nodes"], there["nodes_left_out"]
    if not outcome.tried:
        answer["cut"] = NONE_TESTED
    elif gate in (None, jb.HELD) and (gate or outcome.start is None):
        changes, cut = helpful(trials, kinds)
        answer["changes"] = [remedy(change, row, launch, answer["state_reason"]) for change in changes]
        answer["searched"], answer["cut"] = True, CUT if cut else None
        if not changes and not cut and (both := nearest(trials, kinds)) is not None:
            answer["nearest"] = [remedy(change, row, launch, answer["state_reason"]) for change in both]
    return answer


def _next_round(trials: Trials, job: PendingJob, *, preempts: bool) -> TrialOutcome:
    """The decision of the next round about the job, released if it is held; an empty one where it is not tried."""
    try:
        return trials.outcome(replace(NOTHING, job=replace(job, held=False)), preempts=preempts)
    except Spent:
        return TrialOutcome(tried=False)


def waits_for_itself(store: Store, ref: str | int) -> str | None:
    """A warning when a job or task cannot start before its submitter has ended; else None."""
    with store.snapshot():
        if isinstance(ref, str) and (task := tasks.get(store, ref)) is not None and not _is_job(store, ref):
            return self_waiting.task_waits_for_itself(store, task)
        row = table.get(store, _number(store, ref))
        return None if row is None else self_waiting.job_waits_for_itself(store, row)


def _is_job(store: Store, ref: str) -> bool:
    return table.number_of(store, ref) is not None


def _number(store: Store, ref: str | int) -> int:
    """The number of a job; for an array of the first waiting member, else of the first running member."""
    array = arrays.named(store, ref)
    if array is not None:
        for statuses in ("'PENDING'", "'RUNNING'"):
            if (number := members.example(store, array, statuses)) is not None:
                return number
        return members.first(store, array)
    try:
        return jobs.resolve(store, ref)
    except NotFound as none:
        if str(ref).startswith("task-") and none.details:
            raise task_ops.no_task(str(ref)) from None
        raise


def _answer(form: JobForm) -> WhyJob:
    message = _words(form["status"], form["message"], form["started_at"], form["ended_at"])
    return {
        "job_id": form["job_id"],
        "submission_id": form["submission_id"],
        "status": form["status"],
        "state_reason": form["state_reason"],
        "message": form["message"] or "" if form["state_reason"] == jb.START_DELAYED else message,
        "queue_position": form["queue_position"],
        "expected_start": form["expected_start"],
        "expected_start_basis": form["expected_start_basis"],
        **nothing_found(),
    }


def _reason(before: Sequence[int], outcome: TrialOutcome, shown: Shown, short: Shortage) -> Shown:
    """The reason that other commands show, with the jobs that would start first or be preempted."""
    reason, message = shown
    if outcome.start is not None:
        return reason, STARTS_NOW
    if reason == jb.WAITING_FOR_PREEMPTION or not outcome.tried:
        return reason, message
    # whose turn it is cannot be counted, so an order that has changed since the last round shows only in the next one
    is_stale = reason == jb.HEAD_OF_LINE and outcome.wait is not None and outcome.wait.reason != reason
    if reason == jb.PENDING_EVALUATION or is_stale:
        reason, message = _now(before, outcome, short)
        return reason, message
    return reason, f"{message}{_after(before, outcome)}{_ends(outcome)}"


def _now(before: Sequence[int], outcome: TrialOutcome, short: Shortage) -> tuple[str, str]:
    """The verdict of a scheduler in its next round."""
    wait = outcome.wait
    if wait is None:
        said = f"more jobs are ahead of it than start at once; {short.text}"
        return jb.PENDING_EVALUATION, said
    said = short.text if wait.reason == jb.INSUFFICIENT else wait.message
    return wait.reason, f"{said}{_after(before, outcome)}{_ends(outcome)}"


def _ends(outcome: TrialOutcome) -> str:
    """The end of a message that names the jobs to be preempted."""
    names = [victim.job.submission_id for victim in outcome.preempts]
    return f"; would preempt: {listed(names, NAMED)}" if names else ""


def _coming(store: Store) -> str:
    """The end of a message: the machines that a node provider was asked for, and its last error."""
    texts = []
    for row in provider.rows(store):
        if row["action"] == UP:
            machines = f"{counted(len(rows.loads(row['nodes'])), 'node')} of {row['template']}"
            problem = (row["message"] or "").partition("; ")[
                0
            ]  # without the time of the next try, which passes
            failed = f" (the last try failed: {problem})" if problem else ""
            texts.append(
                f"; the node provider was asked for {machines} at {forms.timestamp(row['created_at'])}{failed}"
            )
    return "".join(texts)


def _after(before: Sequence[int], outcome: TrialOutcome) -> str:
    """The end of a message that counts the jobs that would start first and take free resources."""
    others = len(set(before).intersection(outcome.others))
    rest = len(outcome.others) - others
    texts = []
    if others:
        texts.append(f"{counted(others, 'job')} ahead of it would start first")
    if rest:
        texts.append(f"{counted(rest, 'other job')} would start first")
    return "".join(f"; {text}" for text in texts)


def _leaving(store: Store, situation: Situation, winner_id: int) -> list[Preempted]:
    """The jobs that are being preempted for a job."""
    leaving = {row["victim_id"] for row in preemptions.all_rows(store) if row["winner_id"] == winner_id}
    victims = [
        holder.row for holder in situation.running if holder.row is not None and holder.job_id in leaving
    ]
    total = [situation.ledger.total(holder.parent_id) for holder in victims]
    return situations.preempted(
        situation,
        [
            Victim(holder, loss_of(
                situation.now_ns - holder.started_at_ns,
                (held.amounts for _, held in allocations_of(situation.ledger, holder)), whole,
            ))
            for holder, whole in zip(victims, total, strict=True)
        ],
    )  # fmt: skip


def _ahead(store: Store, reasons: Reasons, job_ids: Sequence[int]) -> list[Ahead]:
    """The JSON forms of the first of the jobs that are ahead."""
    ahead_rows = (job_views.get(store, job_id) for job_id in job_ids[:MOST_AHEAD])
    return [
        {
            "submission_id": row["submission_id"],
            "user": row["user"],
            "priority": row["priority"],
            "resources": forms.amounts(rows.loads(row["resources"])) if row["resources"] else {},
            "state_reason": reasons.token(row),
        }
        for row in ahead_rows
        if row is not None
    ]


def dry_run(store: Store, request: JobRequest, *, environment: Mapping[str, str] | None = None) -> DryRun:
    """The outcome of a submit: the job would start now, and where, or would wait, and why. Changes nothing.

    The submit itself is carried out up to its commit and taken back, so this refuses the same requests with the same
    messages.
    """
    environ = os.environ if environment is None else environment
    try:
        return _dry_run(store, request, environ)
    except NoUserCluster as missing:
        with nodes.rolled_back(store):
            return ops.user_clusters.made(store, missing, lambda: _dry_run(store, request, environ))


def _dry_run(store: Store, request: JobRequest, environ: Mapping[str, str]) -> DryRun:
    with nodes.as_if_joined(store):
        prepared = submitting.prepare(store, request, environ)
        with nodes.rolled_back(store):
            row = job_views.get(store, _number(store, submitting.write(store, request, prepared, environ)))
            assert row is not None
            reasons = Reasons(store)
            shown, gate = reasons.of(row), reasons.gate(row) if row["status"] == jb.PENDING else None
            before = ahead(store, row) if row["status"] == jb.PENDING else []
            listed_, short = _ahead(store, reasons, before), reasons.shortage(row)
        parent_id = str(row["parent_cluster_id"])
        situation = situations.load(store, parent_id, reasons.ledger(parent_id))
    if row["status"] != jb.PENDING:
        return _forecast(row, "never starts", shown)
    job = rows.pending(row)
    outcome = _next_round(Trials(situation, job), job, preempts=gate is None)
    failure = _launch_failure(store, request, environ)
    if gate is None and outcome.start is not None:
        start = outcome.start
        outlook: Shown = None, "it would start now"
        if failure is not None:
            outlook = jb.LAUNCH_FAILED, failure["message"]
        return _forecast(row, "fails to start" if failure else "starts now", outlook, failure) | {
            "node_ids": sorted(nodes_of(start)),
            "pieces": situations.pieces(start),
            "borrowed": situations.borrowed(situation.ledger, start),
        }
    derived, there = shown[0] != jb.PENDING_EVALUATION, obstacles(situation, job)
    reason, message = shown if derived or not outcome.tried else _now(before, outcome, short)
    if not (derived or outcome.tried):
        message = f"{message}; {NOT_TRIED}"
    verdict = "waits" if derived or outcome.tried else "not tried"
    return _forecast(row, verdict, (reason, message), failure) | {
        "queue_position": len(before) + 1,
        "ahead": listed_,
        "nodes": there["nodes"],
        "nodes_left_out": there["nodes_left_out"],
        "preempts": situations.preempted(situation, outcome.preempts),
    }


def _launch_failure(store: Store, request: JobRequest, around: Mapping[str, str]) -> LaunchFailure | None:
    """How the command of a request would fail at its start, as files are now; None if nothing shows that.

    Files of another user are not looked at, and those that he sees may be others.
    """
    from vctl.runtime import spawning

    if store.identity is not None or store.recall(RAY):  # its nodes are other machines
        return None
    variables = submitting.environment_of(request, around).items()
    problem = spawning.foreseen(
        tuple(map(os.fsencode, request.argv)),
        {os.fsencode(name): os.fsencode(value) for name, value in variables},
        os.fsencode(request.cwd or submitting.directory()),
    )
    return None if problem is None else {"exit_code": problem.exit_code, "message": str(problem)}


def _forecast(row: Row, verdict: str, shown: Shown, failure: LaunchFailure | None = None) -> DryRun:
    return {
        "verdict": verdict,
        "launch_failure": failure,
        "state_reason": shown[0],
        "message": shown[1],
        "parent_cluster_id": row["parent_cluster_id"],
        "queue_position": None,
        "ahead": [],
        "node_ids": [],
        "pieces": [],
        "borrowed": [],
        "nodes": [],
        "nodes_left_out": {},
        "preempts": [],
    }


MOST_AHEAD = 100
"""The most jobs ahead that are listed; ``queue_position`` counts all of them."""
NOT_TRIED = "too much waits to try the next round of the scheduler"
NONE_TESTED = f"{NOT_TRIED}; no changes were tested"
CUT = "the search for changes reached its budget; some changes were not tested"


def why_task(store: Store, row: Row) -> WhyTask:
    """The reason, the tasks ahead, each virtual node, and the smallest changes that would start it now."""
    with store.snapshot():
        reason, message = TaskReasons(store).of(row)
        answer: WhyTask = {
            "task_id": row["task_id"],
            "job_id": row["job_id"],
            "status": row["state"],
            "state_reason": reason,
            "message": _words(
                row["state"], message, forms.timestamp(row["started_at"]), forms.timestamp(row["ended_at"])
            ),
            "queue_position": None,
            **nothing_found(),
        }
        if row["state"] != tk.PENDING_NODE:
            return answer
        launch = tasks.launch(store, row["task_id"])
        assert launch is not None
        task = rows.task(row).pending()
        situation = situations.load(store, task.cluster_id)
        others = _running(store, task)
        answer["waits_for_itself"] = task_waits_for_itself(store, row, situation)
        coming, kinds = _coming(store), situations.kinds_of_nodes(store)
    together = [other for other in situation.tasks if other.cluster_id == task.cluster_id]
    order = in_turn(together, situation.turns.get(task.cluster_id, {}))
    ahead = list(takewhile(lambda other: other.task_id != task.task_id, order))
    answer["queue_position"] = len(ahead) + 1
    answer["ahead"] = [
        {"task_id": other.task_id, "resources": forms.amounts(other.request)} for other in ahead[:MOST_AHEAD]
    ]
    there = obstacles_of_task(situation, task, others)
    answer["nodes"], answer["nodes_left_out"] = there["nodes"], there["nodes_left_out"]
    trials = task_trials(situation, task, others)
    try:
        starts = trials.starts()
    except Spent:
        answer["message"], answer["cut"] = f"{answer['message']}{coming}", NONE_TESTED
        return answer
    if starts:
        answer["message"] = f"{answer['message']}; nothing blocks it"
        return answer
    answer["message"] = f"{answer['message']}{coming}"
    changes, cut = helpful(trials, kinds)
    answer["changes"] = [remedy_for_task(change, row, launch) for change in changes]
    answer["searched"], answer["cut"] = True, CUT if cut else None
    return answer


def nothing_found() -> Causes:
    """The empty fields of an answer that a search fills."""
    return {
        "ahead": [],
        "nodes": [],
        "nodes_left_out": {},
        "preempts": [],
        "changes": [],
        "nearest": [],
        "waits_for_itself": None,
        "searched": False,
        "cut": None,
    }


def _words(state: str, message: str | None, started_at: str | None, ended_at: str | None) -> str | None:
    if state == jb.RUNNING:
        return f"it has been running since {started_at}"
    if state in jb.FINAL | tk.FINAL:
        return f"it ended at {ended_at}" + (f": {message}" if message else "")
    return message


def _running(store: Store, task: PendingTask) -> list[RunningHolder]:
    """The running tasks in the cluster of a task, the newest first."""
    live = [row for row in runs.live_rows(store) if row["task_id"] and row["cluster_id"] == task.cluster_id]
    return [
        RunningHolder(0, str(row["task_id"]), 0, None, (str(row["run_id"]),))
        for row in sorted(live, key=lambda row: -row["assigned_at"])
    ]
