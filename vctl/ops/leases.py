"""Leases of clusters, and the demand: requests that wait for resources."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from vctl.core import resources as rs
from vctl.core.clusters import LOGICAL
from vctl.core.jobs import PENDING
from vctl.core.resources import Amounts
from vctl.errors import param
from vctl.ops import forms
from vctl.ops.reasons import Reasons
from vctl.ops.task_reasons import TaskReasons
from vctl.spec.fields import refuse
from vctl.store import folded, job_views, leases, rows
from vctl.store import tasks as table
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import DemandForm, LeaseForm


MAX_NAMES = 10
"""The number of jobs or tasks that a line of demand names."""

_Key = tuple[str, str, str, object]


def list_leases(store: Store) -> list[LeaseForm]:
    """Every lease, oldest first."""
    return [
        {
            "lease_id": row["lease_id"],
            "borrower_id": row["borrower_id"],
            "lender_id": row["lender_id"],
            "resources": forms.amounts(rows.loads(row["amounts"])),
            "since": forms.timestamp(row["since"]),
            "expires_at": forms.timestamp(row["expires_at"]),
            "job_id": row["job_id"],
            "state": row["state"],
        }
        for row in leases.all_rows(store)
    ]


def demand(store: Store) -> list[DemandForm]:
    """Waiting requests: whole gangs of jobs, and single tasks.

    Equal requests of one cluster that wait for the same reason are counted together.
    """
    lines: dict[_Key, DemandForm] = {}
    with store.snapshot():
        reasons, task_reasons = Reasons(store), TaskReasons(store)
        for row in reversed(job_views.matching(store, job_views.in_states({PENDING}))):
            key: _Key = ("job", str(row["parent_cluster_id"]), str(reasons.of(row)[0]), row["shape"])
            _count(lines, key, rows.loads(row["resources"]), folded.names(row), row["members"])
        for row in table.waiting_rows(store):
            amounts = rows.loads(row["request"])
            shape = (rs.shape_of(amounts), row["selector"])
            key = ("task", str(row["cluster_id"]), str(task_reasons.of(row)[0]), shape)
            _count(lines, key, amounts, [row["task_id"]])
    return list(lines.values())


def _count(
    lines: dict[_Key, DemandForm], key: _Key, amounts: dict[str, int], names: Iterable[str], members: int = 1
) -> None:
    line = lines.get(key)
    if line is None:
        kind, cluster_id, reason, _ = key
        line = lines[key] = {
            "cluster_id": cluster_id,
            "kind": kind,
            "resources": forms.amounts(amounts),
            "count": 0,
            "reason": reason,
            "by": [],
        }
    line["count"] += members
    line["by"] += islice(names, MAX_NAMES - len(line["by"]))


def check_lending(kind: str, limit: Amounts | None) -> None:
    """Refuse a lending limit for the cluster of a job, and for a cluster inside one."""
    if kind != LOGICAL and any((limit or {}).values()):
        problem = "only a logical cluster lends, not the cluster of a job, nor a cluster inside it"
        raise refuse(param("lending_limit"), problem, "leave it out")
