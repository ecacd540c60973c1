"""When waiting jobs are expected to start: the present state is read as far as the budget allows, and played forward.

Read are the first waiting jobs of each queue that may take what the asked jobs need, in the order of the queue. The
rest is only counted; jobs behind it have no forecast. Nothing is stored: a forecast is a function of the state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from itertools import islice, repeat
from operator import neg
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.core.listed import Values, joined, runs
from vctl.core.values import replace
from vctl.engine.settings import LeaseTerms
from vctl.ops import background, forms, positions, situations
from vctl.scheduler.explain.trial import Situation
from vctl.simulate import forecast
from vctl.simulate.forecast import UNREAD, Backlog, Expected
from vctl.store import dependencies, job_views, preemptions, queues
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import ExpectedForm

MAX_READ = 200
"""The most waiting jobs that are read."""
MAX_RUNNING = 1_000
"""With more running jobs, the state is too large to be played forward."""


def form(expected: Expected | None) -> ExpectedForm:
    """The fields of a waiting job; both are null where nothing is known or asked."""
    if expected is None:
        return forms.NONE
    return {"expected_start": forms.timestamp(expected.start_ns), "expected_start_basis": expected.basis}


def of(store: Store, wanted: Collection[int], cluster_ids: Collection[str]) -> dict[int, Expected]:
    """The expected starts of waiting jobs of some clusters, without those that are ``UNREAD``; inside a snapshot."""
    backlog = load(store, cluster_ids) if wanted else None
    return {} if backlog is None else forecast.forecast(backlog, wanted)


def of_listed(store: Store, columns: Mapping[str, Values]) -> tuple[Values, Values]:
    """The columns of the two fields for jobs that are listed, newest first; inside a snapshot."""
    numbers, wanted, cluster_ids = columns["job_id"], set[int](), set[str]()
    starts: list[str | None] = [None] * len(numbers)
    bases: list[str | None] = [None] * len(numbers)
    for (status, cluster_id), at in runs(columns["status"], columns["parent_cluster_id"]):
        if status == jb.PENDING:
            bases[at.start : at.stop] = repeat(UNREAD.basis, len(at))
            wanted.update(numbers[at.start : at.stop])
            cluster_ids.add(cluster_id)
    for number, one in of(store, wanted, cluster_ids).items():
        place = bisect_left(numbers, -number, key=neg)
        starts[place], bases[place] = forms.timestamp(one.start_ns), one.basis
    return joined(starts), joined(bases)


def load(store: Store, cluster_ids: Collection[str]) -> Backlog | None:
    """The state that decides about the jobs of some clusters; None where it is too large."""
    counts = job_views.counts_by_cluster(store)
    if sum(one.get("running", 0) for one in counts.values()) > MAX_RUNNING:
        return None
    only = next(iter(cluster_ids)) if len(cluster_ids) == 1 else None
    tree = situations.ledger(store, only)
    situation = situations.load(store, only, tree, queue=False)
    waiting = {n: one["pending"] for n, one in counts.items() if one.get("pending") and n in tree.clusters}
    beside = situations.beside(tree, only, situation.nominations)
    if beside is not None:
        waiting = {name: count for name, count in waiting.items() if name in beside}
    if len(waiting) > MAX_READ:
        return None
    each = MAX_READ // max(1, len(waiting))
    pending: list[PendingJob] = []
    for name, count in waiting.items():
        if count > each and not positions.is_plain(tree.clusters[name].queue):
            return None  # those that were read may not be the first ones
        members = (
            job.member(job.job_id + n) if job.members > 1 else job
            for job in queues.first(store, name, each)
            for n in range(job.members)
        )
        pending += islice(members, each)
    return _backlog(store, replace(situation, pending=pending), {
        name: count - each for name, count in waiting.items() if count > each
    })  # fmt: skip


def _backlog(store: Store, situation: Situation, unread: Mapping[str, int]) -> Backlog:
    awaits = {
        job.job_id: [
            (row["condition"], row["awaited"]) for row in dependencies.awaited(store, job.job_id, MAX_READ)
        ]
        for job in situation.pending
        if job.waits_for
    }
    names = {name for conditions in awaits.values() for _, name in conditions}
    ends = {row["victim_id"]: row["ends_at"] for row in preemptions.all_rows(store)}
    for holder in situation.running:
        if holder.row is not None and holder.row.stop_requested_at is not None:
            ends[holder.job_id] = holder.row.stop_requested_at + int(holder.row.grace_now_s * 1e9)
    return Backlog(
        situation, {job.job_id: job for job in queues.begun(store)}, awaits,
        {name: dependencies.endings(store, name)[2] for name in names}, ends, unread, _terms(store),
    )  # fmt: skip


def _terms(store: Store) -> LeaseTerms:
    """When the running scheduler lets loans go home that nobody uses."""
    has = background.in_force(store) or {}
    idle_s = has.get("lease_idle_timeout")
    return LeaseTerms() if idle_s is None else LeaseTerms(idle_s=float(idle_s))


def of_job(store: Store, job_id: int, cluster_id: str, status: str) -> ExpectedForm:
    """The fields of one job; inside a snapshot."""
    if status != jb.PENDING:
        return forms.NONE
    return form(of(store, [job_id], [cluster_id]).get(job_id, UNREAD))
