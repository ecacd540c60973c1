"""What keeps a cluster from being removed."""

from __future__ import annotations

from vctl.errors import Conflict
from vctl.store import clusters, job_views, tasks
from vctl.store.store import Row, Store


def in_use(cluster_id: str, blockers: list[str]) -> Conflict:
    """The refusal to remove a cluster, naming what uses it."""
    return Conflict(
        f"The virtual cluster {cluster_id} can not be removed as it is still in use.",
        fix=f"in use by {', '.join(blockers[:5])}; --drain waits for them, --force stops them",
        details={"blockers": blockers},
    )


def blockers_of(store: Store, cluster_id: str) -> list[str]:
    """What keeps a cluster from being removed, by name: clusters and jobs in it, tasks that outlived their job."""
    unfinished = unfinished_jobs(store, cluster_id)
    of_jobs = {row["job_id"] for row in unfinished}
    children = [row for row in clusters.children(store, cluster_id) if row["job_id"] not in of_jobs]
    alone = [
        row
        for row in tasks.views(store, "cluster_id = ? AND ended_at IS NULL", [cluster_id])
        if row["job_id"] not in of_jobs
    ]
    return [
        *(f"cluster {row['cluster_id']}" for row in children),
        *(f"job {row['submission_id']}" for row in unfinished),
        *(f"task {row['task_id']}" for row in alone),
    ]


def unfinished_jobs(store: Store, cluster_id: str) -> list[Row]:
    """Jobs that were sent to a cluster, or that it was made for, and that have not ended."""
    where = "(j.parent_cluster_id = ?1 OR j.cluster_id = ?1) AND j.status IN ('PENDING', 'RUNNING')"
    return job_views.matching(store, where, [cluster_id])
