"""The objects of a cluster: those of present and former clusters in it, and of the jobs that its job submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vctl import ops
from vctl.core.clusters import LOGICAL, PRIMARY
from vctl.spec.ids import JOB_MARK
from vctl.store import clusters, jobs
from vctl.store.store import Store

Condition = tuple[str, list[object]]
"""SQL and its values."""
_AFTER_MARK = JOB_MARK[:-1] + chr(ord(JOB_MARK[-1]) + 1)
"""The end of the range of ids that begin with the mark."""


def below(top: str, clusters: Iterable[Mapping[str, Any]]) -> Callable[[str], bool]:
    """A test whether a cluster is ``top`` or below it; ``clusters`` are the forms of all clusters, parents first."""
    if top == PRIMARY:
        return lambda _: True
    known = {top}
    for cluster in clusters:
        if cluster["parent_id"] in known:
            known.add(cluster["cluster_id"])
    # the id of a job cluster begins with that of its parent, also after its deletion
    return lambda cluster_id: any(
        cluster_id == top_id or cluster_id.startswith(top_id + JOB_MARK) for top_id in known
    )


def existing(store: Store, cluster_id: str | None) -> str:
    """The full id of a cluster that exists, or that was the cluster of a known job. Raises NotFound."""
    full_id = ops.cluster_views.resolve(cluster_id)
    if full_id != PRIMARY and job_of(store, full_id) is None:
        ops.cluster_views.cluster_row(store, full_id)
    return full_id


def job_of(store: Store, cluster_id: str) -> int | None:
    """The number of the job of a job cluster or sub-cluster; None for logical clusters."""
    _, mark, rest = cluster_id.partition(JOB_MARK)
    return jobs.number_of(store, rest.partition(JOB_MARK)[0]) if mark else None


def of_jobs(store: Store, cluster_id: str | None) -> Condition:
    """The SQL condition on ``jobs j`` of a cluster: jobs in it and below it, its own job, and the jobs of that job."""
    top = existing(store, cluster_id)
    if top == PRIMARY:
        return "1", []
    if JOB_MARK in top:
        return (
            ("j.job_id < 0", [])
            if _is_sub(top)
            else (f"j.job_id IN {jobs.SUBMITTED_BY}", [job_of(store, top)])
        )
    tops = _logical(store, top)
    return f"j.parent_cluster_id IN ({', '.join('?' * len(tops))})", [*tops]


def of_tasks(store: Store, cluster_id: str | None) -> Condition:
    """The SQL condition on tasks in a cluster and below it."""
    top = existing(store, cluster_id)
    return ("1", []) if top == PRIMARY else _within(_logical(store, top), "cluster_id")


def _within(tops: Iterable[str], *columns: str) -> Condition:
    """The SQL condition that a column has the id of one of the clusters, or of a job cluster in one of them."""
    parts: list[str] = []
    values: list[object] = []
    for top in tops:
        for column in columns:
            parts.append(f"{column} = ? OR {column} >= ? AND {column} < ?")
            values += [top, top + JOB_MARK, top + _AFTER_MARK]
    return f"({' OR '.join(parts)})", values


def of_events(store: Store, cluster_id: str | None) -> Condition:
    """The SQL condition on events of a cluster, of those below it and of their jobs."""
    top = existing(store, cluster_id)
    if top == PRIMARY:
        return "1", []
    where, values = _within(_logical(store, top), "cluster_id", "object_id")
    if JOB_MARK in top and not _is_sub(top) and (job_id := job_of(store, top)) is not None:
        return f"({where} OR job_id IN {jobs.SUBMITTED_BY})", [*values, job_id]
    return where, values


def _is_sub(cluster_id: str) -> bool:
    """Whether a cluster is a sub-cluster, to which no job is submitted."""
    return cluster_id.count(JOB_MARK) > 1


def _logical(store: Store, top: str) -> list[str]:
    """A cluster and the logical clusters below it."""
    kinds = {row["cluster_id"]: row["kind"] for row in clusters.logical_rows(store)}
    return [
        top,
        *(cluster_id for cluster_id in clusters.subtree(store, top) if kinds.get(cluster_id) == LOGICAL),
    ]
