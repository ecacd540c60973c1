"""``vctl status``: nodes, resources, clusters, running jobs, the head of the queue, failures, the scheduler.

It can be limited to one cluster and the clusters below it. The cost does not depend on the number of waiting and
finished jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PENDING
from vctl.core.jobs import RUNNING as RUNNING_STATE
from vctl.core.resources import GPU
from vctl.core.wording import fence_text
from vctl.ops import forms, scope
from vctl.ops.capacity import Capacity, capacities
from vctl.ops.cluster_views import cluster_row, existing
from vctl.ops.minimums import all_below_minimum
from vctl.ops.views import scheduler
from vctl.spec.ids import JOB_MARK
from vctl.store import clusters, devices, job_views
from vctl.store import nodes as node_table
from vctl.store.rows import loads
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.scheduler.minimum import BelowMinimum
    from vctl.spec.reports import (
        ClusterLine,
        FailedLine,
        GpuTrouble,
        Minimum,
        RunningLine,
        Status,
        WaitingLine,
    )

RUNNING = 10
FAILURES = 5
FAILURES_NS = 24 * 3600 * 10**9


def status(store: Store, cluster_id: str | None = None, rows: int | None = None) -> Status:
    """The resources, running jobs, waiting jobs and failures of the last day of a cluster; by default the primary.

    ``rows``: the most running jobs and the most waiting jobs.
    """
    with store.snapshot():
        top = existing(store, cluster_id)
        sums = capacities(store)
        jobs = job_views.counts_by_cluster(store)
        lines = _lines(store, top, sums, jobs)
        within = scope.of_jobs(store, top)
        is_of_a_job = JOB_MARK in top
        counts = _counts(store, within) if is_of_a_job else _sums(jobs, lines)
        running = job_views.running(store, RUNNING if rows is None else rows, *within)
        head: list[WaitingLine] = []
        if counts["pending"]:
            from vctl.ops import queue_head  # what tells positions and reasons is loaded where jobs wait

            most = queue_head.HEAD if rows is None else rows
            if is_of_a_job:
                head = queue_head.within(store, *within, most)
            else:
                head = queue_head.head(store, jobs, lines, most)
        own = sums[top].form()
        return {
            "cluster_id": top,
            "nodes": _nodes(store, top),
            "resources": {
                name: {
                    "total": own["total"][name],
                    "reserved": own["reserved"][name],
                    "used": own["used"][name],
                    "lent": own["lent"][name],
                    "idle": own["idle"][name],
                }
                for name in own["total"]
            },
            "clusters": lines,
            "running_jobs": [_running(store, row) for row in running],
            "queue": {"pending": counts["pending"], "running": counts["running"], "head": head},
            "recent_failures": [
                _failure(row)
                for row in job_views.recent_failures(store, FAILURES, store.clock() - FAILURES_NS, *within)
            ],
            "devices": device_troubles(store) if GPU in own["total"] else [],
            "scheduler": scheduler(store),
        }


def device_troubles(store: Store) -> list[GpuTrouble]:
    """What is wrong with devices, as the scheduler knows it: nothing is measured for it."""
    found: list[GpuTrouble] = []
    fences = {(node_id, fence.number): fence for node_id, fence in devices.fenced(store) if fence.name == GPU}
    for (node_id, number), fence in fences.items():
        found.append({"gpu_id": f"{node_id}/{number}", "message": fence_text(node_id, fence)})
    seen = store.recall(devices.REPORTED) or {"node_id": "", "pids": {}}
    node_id = seen["node_id"]
    for number, pids in seen["pids"].items():
        if (node_id, int(number)) not in fences:
            who = f"pid {pids[0]}" + (f" and {len(pids) - 1} more" if len(pids) > 1 else "")
            text = f"{who} uses GPU {number} of {node_id}, and nobody booked it: see `vctl gpus`"
            found.append({"gpu_id": f"{node_id}/{number}", "message": text})
    for number, since in seen.get("idle", {}).items():
        for job in devices.jobs_on(store, node_id, int(number)):
            name, at = job["submission_id"], forms.timestamp(since)
            text = (
                f"{name} of {job['user']} has booked GPU {number} of {node_id} and has not used it since {at}:"
                f" `vctl stop {name}` gives it back"
            )
            found.append({"gpu_id": f"{node_id}/{number}", "message": text})
    return found


def _nodes(store: Store, top: str) -> dict[str, int]:
    """The number of physical nodes in each state; below the primary only nodes with a part of the cluster."""
    if top == PRIMARY:
        return node_table.states(store)
    return dict(Counter(clusters.node_states(store, top).values()))


def _sums(jobs: Mapping[str, Mapping[str, int]], lines: Sequence[ClusterLine]) -> dict[str, int]:
    """The number of waiting and running jobs in the shown clusters, from the stored counts."""
    own = [jobs.get(line["cluster_id"], {}) for line in lines]
    return {word: sum(counts.get(word, 0) for counts in own) for word in ("pending", "running")}


def _counts(store: Store, within: scope.Condition) -> dict[str, int]:
    where, values = within
    return {
        state.lower(): job_views.count(store, [state], where, values) for state in (PENDING, RUNNING_STATE)
    }


def _lines(
    store: Store, top: str, sums: Mapping[str, Capacity], jobs: Mapping[str, Mapping[str, int]]
) -> list[ClusterLine]:
    """The cluster and those below it, in the order of a tree; jobs count in their parent cluster.

    Clusters of jobs are left out, except those that outlived their job: no other part of the answer shows
    these.
    """
    below: dict[str, list[Row | None]] = {}
    for child in (*clusters.logical_rows(store), *clusters.kept(store)):
        below.setdefault(child["parent_id"], []).append(child)
    lacking = all_below_minimum(store)
    first = None if top == PRIMARY else cluster_row(store, top)
    lines: list[ClusterLine] = []
    stack: list[tuple[Row | None, int]] = [(first, 0)]
    while stack:
        row, depth = stack.pop()
        cluster_id = PRIMARY if row is None else row["cluster_id"]
        lines.append(
            {
                "cluster_id": cluster_id,
                "job_id": None if row is None else row["job_id"],
                "parent_id": None if row is None else row["parent_id"],
                "kind": "primary" if row is None else row["kind"],
                "state": "ACTIVE" if row is None else row["state"],
                "depth": depth,
                **sums[cluster_id].form(),
                "jobs": {"pending": 0, "running": 0, **jobs.get(cluster_id, {})},
                "below_minimum": _minimum(lacking.get(cluster_id)),
            }
        )
        stack += [(child, depth + 1) for child in reversed(below.get(cluster_id, []))]
    return lines


def _minimum(below: BelowMinimum | None) -> Minimum | None:
    if below is None:
        return None
    return {
        "has": forms.amounts(below.has),
        "minimum": forms.amounts(below.minimum),
        "node_ids": [node_id for node_id, _ in below.nodes],
        "message": below.text,
    }


def _running(store: Store, row: Row) -> RunningLine:
    now = store.clock()
    ran_s = (now - row["started_at"]) / 1e9
    limit_s = row["time_limit_s"]
    return {
        "job_id": row["job_id"],
        "submission_id": row["submission_id"],
        "name": row["name"],
        "user": row["user"],
        "cluster_id": row["cluster_id"],
        "parent_cluster_id": row["parent_cluster_id"],
        "node_ids": loads(row["node_ids"]) if row["node_ids"] else [],
        "resources": forms.amounts(loads(row["resources"])) if row["resources"] else {},
        "started_at": forms.timestamp(row["started_at"]),
        "run_s": ran_s,
        "time_limit_s": limit_s,
        "time_left_s": None if limit_s is None else max(0.0, limit_s - ran_s),
        "entrypoint": row["entrypoint"],
    }


def _failure(row: Row) -> FailedLine:
    return {
        "job_id": row["job_id"],
        "submission_id": row["submission_id"],
        "name": row["name"],
        "user": row["user"],
        "parent_cluster_id": row["parent_cluster_id"],
        "state_reason": row["state_reason"],
        "message": row["message"],
        "exit_code": row["exit_code"],
        "ended_at": forms.timestamp(row["ended_at"]),
    }
