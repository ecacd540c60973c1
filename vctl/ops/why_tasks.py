"""Why a task waits, and what would start it now: as for jobs, with the virtual nodes of its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core import tasks as tk
from vctl.core.tasks import PendingTask
from vctl.ops import forms, situations
from vctl.ops.obstacles import obstacles_of_task
from vctl.ops.remedies import remedy_for_task
from vctl.ops.self_waiting import task_waits_for_itself
from vctl.ops.task_reasons import TaskReasons
from vctl.scheduler.whatif import Holder
from vctl.scheduler.whatif_tasks import TaskTrials, helpful
from vctl.store import rows, runs
from vctl.store import tasks as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.reports import Found, WhyTask

MOST_AHEAD = 100
"""So many of those ahead are listed; ``queue_position`` counts them all."""
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
            "message": _words(row, message),
            "queue_position": None,
            **nothing_found(),
        }
        if row["state"] != tk.PENDING_NODE:
            return answer
        launch = table.launch(store, row["task_id"])
        assert launch is not None
        situation, task = situations.load(store), rows.task(row).pending()
        others = _running(store, task)
        answer["waits_for_itself"] = task_waits_for_itself(store, row)
    ahead = [one for one in situation.tasks if one.cluster_id == task.cluster_id and one.number < task.number]
    answer["queue_position"] = len(ahead) + 1
    answer["ahead"] = [
        {"task_id": one.task_id, "resources": forms.amounts(one.request)}
        for one in sorted(ahead, key=lambda one: one.number)[:MOST_AHEAD]
    ]
    answer["nodes"] = obstacles_of_task(situation, task)
    trials = TaskTrials(situation, task, others)
    if trials.starts():
        answer["message"] = f"{answer['message']}; nothing blocks it"
        return answer
    found, cut = helpful(trials, situations.kinds_of_nodes(situation))
    answer["changes"] = [remedy_for_task(change, row, launch) for change in found]
    answer["searched"], answer["cut"] = True, CUT if cut else None
    return answer


def nothing_found() -> Found:
    """The fields of an answer that only a search fills."""
    return {
        "ahead": [],
        "nodes": [],
        "preempts": [],
        "changes": [],
        "nearest": [],
        "waits_for_itself": None,
        "searched": False,
        "cut": None,
    }


def _words(row: Row, message: str | None) -> str | None:
    if row["state"] == tk.RUNNING:
        return f"it has been running since {forms.timestamp(row['started_at'])}"
    if row["state"] in tk.FINAL:
        return f"it ended at {forms.timestamp(row['ended_at'])}" + (f": {message}" if message else "")
    return message


def _running(store: Store, task: PendingTask) -> list[Holder]:
    """Tasks that run in its cluster, the newest first."""
    found = [row for row in runs.live_rows(store) if row["task_id"] and row["cluster_id"] == task.cluster_id]
    return [
        Holder(0, str(row["task_id"]), 0, None, (str(row["run_id"]),))
        for row in sorted(found, key=lambda row: -row["assigned_at"])
    ]
