"""Rights: a process of a job changes only its own cluster and its own jobs; other processes change everything.

A verb that changes shared objects declares that (``service``); a verb that changes one object checks its row here. So
the command line, HTTP and Python agree.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from vctl.config import JOB_SCOPES
from vctl.core.caller import Caller
from vctl.core.clusters import PRIMARY
from vctl.core.wording import cluster_text
from vctl.errors import Damaged, NotPermitted
from vctl.ops.cluster_views import cluster_row
from vctl.spec.ids import JOB_MARK
from vctl.store import arrays, jobs
from vctl.store.database import database_path
from vctl.store.rows import loads
from vctl.store.store import Row, Store

OWN, ALL = JOB_SCOPES
"""The rights of a job: its cluster and the jobs that it submitted, or everything."""


def calling_job(store: Store) -> Row | None:
    """The job of the calling process; None outside of jobs, and in a job of another state directory."""
    caller = store.caller
    row = None if caller is None else jobs.get(store, caller.job_id)
    return row if row is not None and caller and row["submission_id"] == caller.submission_id else None


def _confined(store: Store) -> Row | None:
    """The calling job if its rights are limited, else None."""
    row = calling_job(store)
    return None if row is None or loads(row["rules"]).get("job_scope") == ALL else row


def granted_scope(store: Store, requested: str) -> str:
    """The rights of a new job: at most those of the job that submits it."""
    return OWN if _confined(store) is not None else requested


def check_job(store: Store, row: Row) -> None:
    """Raise NotPermitted unless the caller may change this job, its tasks and its objects."""
    job = _confined(store)
    if job is None or jobs.is_own(store, row["job_id"], job["job_id"]):
        return
    if job["shares_parent"] and row["parent_cluster_id"] == job["parent_cluster_id"]:
        return  # both are in one indivisible cluster
    raise _refused(job, f"job {row['submission_id']}", str(row["user"]))


def check_number(store: Store, job_id: int) -> None:
    """Like ``check_job``, by the number of the job; passes if there is no such job."""
    if (row := jobs.get(store, job_id)) is not None:
        check_job(store, row)


def check_array(store: Store, array: Row) -> None:
    """Like ``check_job``, for an array, whose members were submitted together."""
    check_number(store, arrays.first(store, array))


def check_target(store: Store, parent_id: str) -> None:
    """Raise NotPermitted unless the caller may submit to this cluster."""
    job = _confined(store)
    if job is not None and parent_id != job["parent_cluster_id"]:
        own = cluster_text(job["parent_cluster_id"])
        raise _refused(job, f"cluster {cluster_text(parent_id)}, and submits to {own} only", None)


def check_cluster(store: Store, cluster_id: str) -> None:
    """Raise NotPermitted unless the caller may change this cluster, or create clusters in it.

    Raises NotFound if a job asks for a cluster that does not exist.
    """
    job = _confined(store)
    if job is None:
        return
    _, mark, rest = cluster_id.partition(JOB_MARK)
    owner = jobs.number_of(store, rest.partition(JOB_MARK)[0]) if mark else None
    if owner is not None and jobs.is_own(store, owner, job["job_id"]):
        return
    owner_name = None if cluster_id == PRIMARY else cluster_row(store, cluster_id)["owner"]
    raise _refused(job, f"cluster {cluster_text(cluster_id)}", owner_name)


def check_service(store: Store, what: str) -> None:
    """Raise NotPermitted unless the caller may change shared objects: nodes, the state as a whole."""
    job = _confined(store)
    if job is not None:
        raise _refused(job, what, None)


def check_service_at(home: Path, what: str) -> None:
    """Like ``check_service``, for a state directory that is not open; a damaged state permits everything."""
    if (caller := Caller.of(os.environ)) is None or not database_path(home).exists():
        return
    with suppress(Damaged), Store.open(home, create=False) as store:
        store.caller = caller
        check_service(store, what)


def _refused(job: Row, what: str, owner: str | None) -> NotPermitted:
    name = job["submission_id"]
    who = f"{owner} may" if owner else "its users may"
    return NotPermitted(
        f"job {name} may not change {what}: it is outside of its cluster",
        fix=f"{who}, outside of the job; so may jobs that are submitted with job_scope = all (VCTL_JOB_SCOPE=all)",
        details={"job": name, "cluster_id": job["cluster_id"] or PRIMARY},
    )
