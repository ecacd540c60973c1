"""Limits of users and clusters, counted anew from what runs: who exceeds one, and whom one keeps back (spec 19).

Written from section 19 of the specification. It asks nothing of ``vctl/scheduler/limits.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vctl.core import resources as rs
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.limits import Limit
from vctl.core.resources import Amounts


def is_below(ledger: Ledger, cluster_id: str, above_id: str) -> bool:
    """Whether a cluster is another one, or lies in it."""
    while cluster_id != above_id and cluster_id in ledger.clusters:
        cluster_id = ledger.clusters[cluster_id].parent_id or ""
    return cluster_id == above_id


def counts(ledger: Ledger, limit: Limit, job: RunningJob | PendingJob) -> bool:
    """Whether a job counts for a limit."""
    if limit.subject == "cluster":
        return is_below(ledger, job.parent_id, limit.name)
    if limit.name == "*":
        own = (one for one in ledger.limits if (one.subject, one.name) == ("user", job.user))
        return not any(one.resource == limit.resource for one in own)
    return limit.name == job.user


def held_by(ledger: Ledger, job: RunningJob) -> Amounts:
    """What a running job holds."""
    if job.cluster_id == job.parent_id:
        charge = ledger.charges.get(job.run_id)
        return {} if charge is None else charge[1].amounts
    return rs.total(ledger.vnodes[one].allocation.amounts for one in ledger.members.get(job.cluster_id, ()))


def used(ledger: Ledger, running: Iterable[RunningJob], limit: Limit, user: str) -> int:
    """What is used of a limit; of one that each user has, by this user."""
    those = [
        job
        for job in running
        if counts(ledger, limit, job) and (limit.subject == "cluster" or job.user == user)
    ]
    if limit.resource == "running_jobs":
        return len(those)
    return sum(held_by(ledger, job).get(limit.resource, 0) for job in those)


def exceeded(ledger: Ledger, running: Iterable[RunningJob]) -> Iterator[tuple[Limit, str, int]]:
    """The limits of which more is used than they allow: by whom, and how much."""
    running = list(running)
    for limit in ledger.limits:
        if limit.period:
            continue
        users = {job.user for job in running if counts(ledger, limit, job)}
        for user in users if limit.name == "*" else users & {limit.name} if limit.subject == "user" else [""]:
            if (amount := used(ledger, running, limit, user)) > limit.amount:
                yield limit, user, amount


def may_keep_back(ledger: Ledger, running: Iterable[RunningJob], job: PendingJob) -> Limit | None:
    """A limit that keeps a waiting job back, or that may do so: what whole nodes have depends on their place."""
    running = list(running)
    spec = job.spec
    asked = dict(job.entry)
    if not job.shares_parent:
        gang = rs.total([*(node.resources for node in spec.fixed), spec.flexible_min])
        asked = {name: max(gang.get(name, 0), asked.get(name, 0)) for name in {*gang, *asked}}
    for limit in ledger.limits:
        if not counts(ledger, limit, job):
            continue
        if limit.period:  # what was used before is not known here
            if asked.get("GPU") or any(spec.replica_sets.values()):
                return limit
            continue
        more = 1 if limit.resource == "running_jobs" else asked.get(limit.resource, 0)
        if more and used(ledger, running, limit, job.user) + more > limit.amount:
            return limit
        if limit.resource != "running_jobs" and any(spec.replica_sets.values()):
            return limit
    return None
