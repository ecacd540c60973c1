"""Rights: the one place that says who may do what, on the command line, over HTTP, in Python and in Ray's job API.

Two questions are asked, and both must be answered with yes:

- *Who asks?* In a shared service ``Store.identity`` is the user that the kernel or a token names. In personal mode it
  is None: every caller is the one user. The table is ``RIGHTS``; each operation and each route names its right.
- *From where?* A process of a job changes only its own cluster and its own jobs, unless it was submitted with
  ``job_scope = all``. What a process says about its job only narrows what its user may.

An operation whose right concerns everything at once is checked before it begins (``begin``); one that concerns a job or
a cluster asks here with its row, inside its transaction, so nobody else can change the row in between.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vctl.config import JOB_SCOPES
from vctl.core.caller import Caller
from vctl.core.clusters import PRIMARY
from vctl.core.wording import cluster_text
from vctl.errors import Conflict, Damaged, NotPermitted
from vctl.ops.cluster_views import cluster_row
from vctl.spec.ids import JOB_MARK
from vctl.store import arrays, jobs
from vctl.store.database import database_path
from vctl.store.rows import loads
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.core.identity import Identity

OWN, ALL = JOB_SCOPES
"""The rights of a job: its cluster and the jobs that it submitted, or everything."""
COMMAND_FIELDS = frozenset(("argv", "entrypoint", "env", "clean_env", "cwd", "runtime_env"))
"""The parameters that change what a job runs, as its owner."""
SERVICE_ADMINS = "root and the admins of the service"

RIGHTS = {
    "see": "everybody; what is private to the jobs of others is left out (vctl/ops/privacy.py)",
    "read": "the owner of the job, the admins of its cluster or of one above it, the admins of the service",
    "change": "the same",
    "own": "the owner of the job and the admins of the service: it runs something as the owner",
    "submit": "the submitters of the cluster, or those of the nearest one above it that names any; its admins",
    "administer": "the admins of the cluster or of one above it, the admins of the service; of a job's: as `change`",
    "inspect": "the admins of the service",
    "service": "the admins of the service",
    "sign": "every user, for himself",
}
"""Right -> who has it in a shared service. In personal mode the one user has them all; `service` is refused to jobs."""


# ---- from where: the calling job ----


def calling_job(store: Store) -> Row | None:
    """The job of the calling process; None outside of jobs, and in a job of another state directory.

    Raises NotPermitted for the job of another user.
    """
    caller = store.caller
    row = None if caller is None else jobs.get(store, caller.job_id)
    if row is None or caller is None or row["submission_id"] != caller.submission_id:
        return None
    if store.identity is not None and not is_owner(store.identity, row):
        raise NotPermitted(
            f"this request names the job {caller.submission_id}, which is not one of {store.identity.name}",
            fix="unset VCTL_JOB_ID and VCTL_SUBMISSION_ID: they are set by the service, in the job itself",
        )
    return row


def _confined(store: Store) -> Row | None:
    """The calling job if its rights are limited, else None."""
    row = calling_job(store)
    return None if row is None or loads(row["rules"]).get("job_scope") == ALL else row


def granted_scope(store: Store, requested: str) -> str:
    """The rights of a new job: at most those of the job that submits it."""
    return OWN if _confined(store) is not None else requested


# ---- who asks: users, owners, admins ----


def is_owner(identity: Identity, row: Row) -> bool:
    """Whether a job is the user's own."""
    return bool(row["uid"] == identity.uid)


def administers(store: Store, cluster_id: str) -> bool:
    """Whether the caller is an admin of a cluster, of one above it, or of the service."""
    identity = store.identity
    if identity is None or identity.is_admin:
        return True
    from vctl.core.access import names
    from vctl.store.settings import access_upward

    return any(names(said.admins, identity) for _, said in access_upward(store, cluster_id))


def may_read(store: Store, row: Row) -> bool:
    """Whether the caller may see what a job runs and writes, by its row."""
    identity = store.identity
    return identity is None or is_owner(identity, row) or administers(store, row["parent_cluster_id"])


def begin(store: Store, right: str, name: str) -> None:
    """Check what can be checked before an operation of a shared service begins, by the right that it needs."""
    assert store.identity is not None
    calling_job(store)
    if right in ("inspect", "service") and not store.identity.is_admin:
        raise _denied(store, f"`{name}` is about the state as a whole", SERVICE_ADMINS, "do that")
    if right == "sign" and _confined(store) is not None:
        raise _denied(store, "a job with limited rights signs nobody in", store.identity.name, "do that")


def personal(command: str) -> Conflict:
    """The refusal, in personal mode, of a command that only a shared service has."""
    return Conflict(
        f"`{command}` is for a service that several users share (`vctl daemon --shared`), and this state directory is"
        " that of one user",
        fix="for HTTP, start `vctl serve`; its token is in the file `token` of the state directory",
    )


# ---- jobs ----


def check_job(store: Store, row: Row, to: str = "change") -> None:
    """Raise NotPermitted unless the caller may change this job, its tasks and its objects. ``to``: the verb."""
    job = _confined(store)
    if job is not None and not (
        jobs.is_own(store, row["job_id"], job["job_id"])
        # both are in one indivisible cluster
        or (job["shares_parent"] and row["parent_cluster_id"] == job["parent_cluster_id"])
    ):
        raise _refused(job, f"job {row['submission_id']}", str(row["user"]))
    if not may_read(store, row):
        raise _not_yours(store, row, to)


def check_number(store: Store, job_id: int, to: str = "change") -> None:
    """Like ``check_job``, by the number of the job; passes if there is no such job."""
    if (row := jobs.get(store, job_id)) is not None:
        check_job(store, row, to)


def check_array(store: Store, array: Row, to: str = "change") -> None:
    """Like ``check_job``, for an array, whose members were submitted together."""
    check_number(store, arrays.first(store, array), to)


def check_own(store: Store, row: Row, to: str) -> None:
    """Raise NotPermitted unless the caller may run something as the owner of a job."""
    check_job(store, row, to)
    identity = store.identity
    if identity is not None and not (identity.is_admin or is_owner(identity, row)):
        owner = str(row["user"])
        raise _denied(
            store, f"what runs in job {row['submission_id']} runs as {owner}", f"{owner} and root", f"{to} it"
        )


def check_read(store: Store, row: Row, what: str = "the output") -> None:
    """Raise NotPermitted unless the caller may see what a job writes."""
    if not may_read(store, row):
        raise _not_yours(store, row, f"see {what} of")


def check_read_number(store: Store, job_id: int, what: str = "the output") -> None:
    """Like ``check_read``, by the number of the job; of a job that is gone, only admins see anything."""
    identity = store.identity
    if identity is None:
        return
    if (row := jobs.get(store, job_id)) is not None:
        check_read(store, row, what)
    elif not identity.is_admin:
        raise _denied(store, f"job {job_id} is gone", SERVICE_ADMINS, f"see {what} of it")


# ---- clusters and the service ----


def check_target(store: Store, parent_id: str) -> None:
    """Raise NotPermitted unless the caller may submit to this cluster."""
    job = _confined(store)
    if job is not None and parent_id != job["parent_cluster_id"]:
        own = cluster_text(job["parent_cluster_id"])
        raise _refused(job, f"cluster {cluster_text(parent_id)}, and submits to {own} only", None)
    check_submitter(store, parent_id)


def check_submitter(store: Store, parent_id: str) -> None:
    """Raise NotPermitted unless the caller, from wherever he asks, is a submitter or an admin of this cluster."""
    identity = store.identity
    if identity is None or identity.is_admin:
        return
    from vctl.core.access import names
    from vctl.store.settings import access_upward

    upward = access_upward(store, parent_id)
    named = next((said.submitters for _, said in upward if said.submitters), ())
    if not named or names(named, identity) or any(names(said.admins, identity) for _, said in upward):
        return
    text = cluster_text(parent_id)
    who = [*named, *(f"admins of {cluster_text(above)}" for above, said in upward if said.admins)]
    raise _denied(store, f"{identity.name} is no submitter of {text}", _listed(who), "submit to it", who)


def check_booking(store: Store, parent_id: str) -> None:
    """Raise NotPermitted unless the caller may book resources of a cluster: its submitters, but none of their jobs."""
    if (job := _confined(store)) is not None:
        raise _refused(job, f"cluster {cluster_text(parent_id)}", None)
    check_target(store, parent_id)


def check_cluster(store: Store, cluster_id: str, to: str = "change", *, above: bool = False) -> None:
    """Raise NotPermitted unless the caller may change this cluster, or create clusters in it.

    ``above``: only an admin of the cluster above it may, as for its deletion. Raises NotFound if there is no such
    cluster and it matters who asks.
    """
    job, identity = _confined(store), store.identity
    if job is None and (identity is None or identity.is_admin):
        return
    _, mark, rest = cluster_id.partition(JOB_MARK)
    number = jobs.number_of(store, rest.partition(JOB_MARK)[0]) if mark else None
    if job is not None and not (number is not None and jobs.is_own(store, number, job["job_id"])):
        owner_name = None if cluster_id == PRIMARY else cluster_row(store, cluster_id)["owner"]
        raise _refused(job, f"cluster {cluster_text(cluster_id)}", owner_name)
    if identity is None:
        return
    if number is not None:
        row = jobs.get(store, number)
        assert row is not None
        if not may_read(store, row):
            raise _not_yours(store, row, f"{to} a cluster of")
        return
    top = cluster_id
    if cluster_id != PRIMARY:
        row = cluster_row(store, cluster_id)
        top = row["parent_id"] if above else cluster_id
    if not administers(store, top):
        text = cluster_text(cluster_id)
        who = _admins(store, top)
        raise _denied(
            store, f"{identity.name} is no admin of {cluster_text(top)}", _listed(who), f"{to} {text}", who
        )


def check_service(store: Store, what: str) -> None:
    """Raise NotPermitted unless the caller may change shared objects: nodes, the state as a whole."""
    job = _confined(store)
    if job is not None:
        raise _refused(job, what, None)
    if store.identity is not None and not store.identity.is_admin:
        raise _denied(store, f"{what} is not yours to change", SERVICE_ADMINS, "do that")


def check_service_at(home: Path, what: str) -> None:
    """Like ``check_service``, for a state directory that is not open; a damaged state permits everything."""
    if (caller := Caller.of(os.environ)) is None or not database_path(home).exists():
        return
    with suppress(Damaged), Store.open(home, create=False) as store:
        store.caller = caller
        check_service(store, what)


# ---- refusals ----


def _admins(store: Store, cluster_id: str) -> list[str]:
    """Who administers a cluster, in words, nearest first; root last."""
    from vctl.store.settings import access_upward

    return [
        *(
            f"admins of {cluster_text(above)}"
            for above, said in access_upward(store, cluster_id)
            if said.admins
        ),
        "root",
    ]


def _listed(who: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(who[:-1]), who[-1])))


def _not_yours(store: Store, row: Row, to: str) -> NotPermitted:
    name, owner = row["submission_id"], str(row["user"])
    who = [owner, *_admins(store, row["parent_cluster_id"])]
    return _denied(store, f"job {name} belongs to {owner}", _listed(who), f"{to} it", who)


def _denied(store: Store, problem: str, who: str, to: str, may: Sequence[str] = ()) -> NotPermitted:
    assert store.identity is not None
    fix = f"ask one of them; you are {store.identity.name}"
    return NotPermitted(
        f"{problem}: {who} may {to}",
        fix=fix,
        details={"user": store.identity.name, "may": list(may) or [who]},
    )


def _refused(job: Row, what: str, owner: str | None) -> NotPermitted:
    name = job["submission_id"]
    who = f"{owner} may" if owner else "its users may"
    return NotPermitted(
        f"job {name} may not change {what}: it is outside of its cluster",
        fix=f"{who}, outside of the job; so may jobs that are submitted with job_scope = all (VCTL_JOB_SCOPE=all)",
        details={"job": name, "cluster_id": job["cluster_id"] or PRIMARY},
    )
