"""Names that users choose: virtual cluster ids and submission ids.

The messages about clusters are those of ant-ray's management API, as scripts search for them.
"""

from __future__ import annotations

import re

from vctl.core.clusters import ID_PATTERN, PRIMARY, PRIMARY_ALIAS
from vctl.errors import BadSpec
from vctl.spec.fields import refuse, show

JOB_MARK = "##"
"""The mark between the parent id and the submission id in the id of a job cluster."""

SUBMISSION_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z"
LAST = "last"
"""The word that stands for the id of the job submitted last."""

_RULE = "1 to 63 of A-Z a-z 0-9 . _ -, starting with a letter or digit"


def check_new_cluster_id(cluster_id: str, *, action: str = "created or updated") -> str:
    """Check the id of a logical cluster that is created or updated, or with ``action="removed"`` deleted."""
    if not cluster_id:
        raise BadSpec("Invalid request, the virtual cluster id is empty.", fix=f"choose an id: {_RULE}")
    if cluster_id in (PRIMARY, PRIMARY_ALIAS):
        raise BadSpec(f"Invalid request, {PRIMARY} can not be {action}.", fix="choose another id")
    if JOB_MARK in cluster_id:
        raise BadSpec(
            f"Invalid request, the virtual cluster id {show(cluster_id)} contains {JOB_MARK},"
            " which belongs to job clusters.",
            fix="choose an id without ##; a job cluster is made and removed with its job",
        )
    if not re.match(ID_PATTERN, cluster_id):
        raise BadSpec(f"Invalid request, {show(cluster_id)} is not a virtual cluster id.", fix=f"use {_RULE}")
    return cluster_id


def resolve_cluster_id(cluster_id: str, path: str = "") -> str:
    """The full id of a cluster of any kind. Resolves aliases; checks the form, not the existence."""
    if cluster_id in (PRIMARY, PRIMARY_ALIAS):
        return PRIMARY
    if not cluster_id:
        raise refuse(path, "the virtual cluster id is empty", f"write an id, or {PRIMARY_ALIAS}")
    cluster_id = full_cluster_id(cluster_id)
    if len(cluster_id) > 1024 or not all(is_id(part) for part in cluster_id.split(JOB_MARK)):
        last = cluster_id.rpartition("/")[2]
        is_path = "/" in cluster_id and is_id(last)
        fix = f"an id is no path: write {last}" if is_path else "see `vctl vc list` for the ids"
        raise refuse(path, f"{show(cluster_id)} is not a virtual cluster id", fix)
    return cluster_id


def full_cluster_id(cluster_id: str) -> str:
    """The full id for the alias ``primary``, also as the first part: ``primary##train``."""
    if cluster_id == PRIMARY_ALIAS or cluster_id.startswith(PRIMARY_ALIAS + JOB_MARK):
        return PRIMARY + cluster_id.removeprefix(PRIMARY_ALIAS)
    return cluster_id


def is_id(text: str) -> bool:
    """Whether a text can be the id of a node or a job, a part of the id of a cluster, or the name of an object."""
    return bool(re.match(SUBMISSION_PATTERN, text))


def check_submission_id(submission_id: str, path: str = "--submission-id") -> str:
    """Check a submission id that the user has chosen."""
    if submission_id == LAST:
        raise refuse(path, f"{LAST} stands for the job submitted last", "choose another id")
    if JOB_MARK in submission_id:
        raise refuse(
            path, f"{show(submission_id)} contains {JOB_MARK}, which belongs to job clusters", "leave it out"
        )
    if not is_id(submission_id):
        raise refuse(
            path,
            f"{show(submission_id)} is not a submission id",
            "use 1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or digit",
        )
    return submission_id


def job_cluster_id(parent_id: str, submission_id: str) -> str:
    """The id of the cluster that is made for one job."""
    return f"{parent_id}{JOB_MARK}{submission_id}"
