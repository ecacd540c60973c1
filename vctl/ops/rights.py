"""Who may change what. A process of a job changes its own cluster and what it submitted; others change everything.

A verb that changes what belongs to all declares that (``service``); one that changes an object asks here with its row.
So the command line, HTTP and Python agree.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from vctl.config import JOB_SCOPES
from vctl.core.caller import Caller
from vctl.core.clusters import PRIMARY
from vctl.errors import Damaged, NotPermitted
from vctl.spec.ids import JOB_MARK
from vctl.store import clusters, jobs
from vctl.store.database import database_path
from vctl.store.rows import loads
from vctl.store.store import Row, Store

OWN, ALL = JOB_SCOPES
"""What a job may change: its cluster and what it submitted, or everything."""


def calling_job(store: Store) -> Row | None:
    """The job that the caller is a process of; None outside, and for a job of another state directory."""
    caller = store.caller
    row = None if caller is None else jobs.get(store, caller.job_id)
    return row if row is not None and caller and row["submission_id"] == caller.submission_id else None


def _confined(store: Store) -> Row | None:
    """The calling job, where it may not change everything."""
    row = calling_job(store)
    return None if row is None or loads(row["rules"]).get("job_scope") == ALL else row


def granted_scope(store: Store, wanted: str) -> str:
    """What a new job may change: never more than the job that submits it."""
    return OWN if _confined(store) is not None else wanted


def check_job(store: Store, row: Row) -> None:
    """May the caller change this job, its tasks and its objects?"""
    me = _confined(store)
    if me is None or jobs.is_own(store, row["job_id"], me["job_id"]):
        return
    if me["shares_parent"] and row["parent_cluster_id"] == me["parent_cluster_id"]:
        return  # both are in one indivisible cluster
    raise _refused(me, f"job {row['submission_id']}", str(row["user"]))


def check_number(store: Store, job_id: int) -> None:
    """The same, of a job that is named by its number."""
    if (row := jobs.get(store, job_id)) is not None:
        check_job(store, row)


def check_array(store: Store, array: Row) -> None:
    """The same of an array: its members were submitted together."""
    check_number(store, array["first_job_id"])


def check_target(store: Store, parent_id: str) -> None:
    """May the caller submit to this cluster?"""
    me = _confined(store)
    if me is not None and parent_id != me["parent_cluster_id"]:
        raise _refused(me, f"cluster {parent_id}, and submits to {me['parent_cluster_id']} only", None)


def check_cluster(store: Store, cluster_id: str) -> None:
    """May the caller change this cluster, or make clusters in it?"""
    me = _confined(store)
    if me is None:
        return
    _, mark, rest = cluster_id.partition(JOB_MARK)
    owner = jobs.number_of(store, rest.partition(JOB_MARK)[0]) if mark else None
    if owner is not None and jobs.is_own(store, owner, me["job_id"]):
        return
    row = clusters.get(store, cluster_id)
    raise _refused(me, f"cluster {cluster_id}", None if row is None else row["owner"])


def check_service(store: Store, what: str) -> None:
    """May the caller change what belongs to all: nodes, the state itself?"""
    me = _confined(store)
    if me is not None:
        raise _refused(me, what, None)


def check_service_at(home: Path, what: str) -> None:
    """The same for a state directory that is not open; one that cannot be read forbids nothing."""
    if (caller := Caller.of(os.environ)) is None or not database_path(home).exists():
        return
    with suppress(Damaged), Store.open(home, create=False) as store:
        store.caller = caller
        check_service(store, what)


def _refused(me: Row, what: str, owner: str | None) -> NotPermitted:
    name = me["submission_id"]
    who = f"{owner} may" if owner else "its users may"
    return NotPermitted(
        f"job {name} may not change {what}: it is outside of its cluster",
        fix=f"{who}, outside of the job; so may jobs that are submitted with job_scope = all (VCTL_JOB_SCOPE=all)",
        details={"job": name, "cluster_id": me["cluster_id"] or PRIMARY},
    )
