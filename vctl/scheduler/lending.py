"""Lenders that keep what they have for their own waiting work.

Without this, a loan that was called back would be lent again at once, to the next job of the borrower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from vctl.core import resources as rs
from vctl.core.clusters import LOGICAL, PRIMARY, REMOVING, ClusterSpec, VNode
from vctl.core.jobs import PendingJob
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts, beyond, least_of
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.scheduler.elasticity import growing, held
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.placement import Placed
from vctl.scheduler.queueing import Queue
from vctl.scheduler.reshape import joined, place_more
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.tasking import could_grow_for


class Waiting(NamedTuple):
    """Work of a cluster that waits for resources: what it needs in all, and whether it may end other jobs there."""

    cluster_id: str
    need: Amounts
    preempts: bool = False


def waiting_job(ledger: Ledger, job: PendingJob) -> Waiting:
    """The need of a waiting job. A whole node counts as the first one of its template."""
    parent, spec = ledger.clusters.get(job.parent_id), job.spec
    firsts = {node.template_id: node for node in reversed(ledger.nodes.values())} if spec.replica_sets else {}
    whole = (
        {name: count * amount for name, amount in firsts[kind].total.amounts.items()}
        for kind, count in spec.replica_sets.items()
        if kind in firsts
    )
    need = rs.total([*(node.resources for node in spec.fixed), spec.flexible_min, *whole])
    return Waiting(job.parent_id, rs.maximum(need, job.entry), parent is not None and parent.queue.preempts)


def waiting_tasks(ledger: Ledger, queue: TaskQueue, *, judged: bool) -> Iterator[Waiting]:
    """The tasks of a cluster that wait for resources. ``judged``: only if nothing has come free since."""
    if queue.cluster_id not in ledger.clusters:
        return
    for shape, verdict in (queue.blocked if judged else queue.before).items():
        task: PendingTask | None = next(iter(queue.sub_queues.get(shape, {}).values()), None)
        if task is not None and (not verdict.infeasible or could_grow_for(ledger, task)):
            yield Waiting(queue.cluster_id, task.request)


def work_in_lenders(
    ledger: Ledger, queues: Mapping[str, Queue], tasks: Mapping[str, TaskQueue], now_ns: int, *, judged: bool
) -> Iterator[Waiting]:
    """The work in lenders that waits for resources. ``judged``: only if nothing came free since it was looked at."""
    for queue in queues.values():
        if in_lender(ledger, queue.parent_id):
            yield from (waiting_job(ledger, job) for job in queue.short(ledger, now_ns, judged=judged))
    for waiting in tasks.values():
        if in_lender(ledger, waiting.cluster_id):
            yield from waiting_tasks(ledger, waiting, judged=judged)


def withhold(ledger: Ledger, amounts: Mapping[str, Amounts]) -> bool:
    """Let lenders keep these amounts, and no others. True: more is lent again, so work that waits may start."""
    before, ledger.withheld = ledger.withheld, amounts
    again = [
        lender for lender, withheld in before.items() if not rs.within(withheld, amounts.get(lender, {}))
    ]
    for lender_id in again:
        ledger.note_growth(ledger.members.get(lender_id, ()))
    return bool(again)


def in_lender(ledger: Ledger, cluster_id: str) -> bool:
    """Whether a cluster lends, or lies in one that lends."""
    return any(up.lending_limit for up in ledger.upward(cluster_id))


def loans(ledger: Ledger, leases: Iterable[Lease]) -> dict[str, list[Lease]]:
    """The leases of what clusters have lent, by lender, and by the clusters around it out of which a loan goes."""
    lent: dict[str, list[Lease]] = {}
    for lease in leases:
        borrower = ledger.clusters.get(lease.borrower_id)
        if borrower is not None and borrower.parent_id != lease.lender_id:
            for lender in ledger.upward(lease.lender_id):
                lent.setdefault(lender.cluster_id, []).append(lease)
                if lender.parent_id == borrower.parent_id:
                    break
    return lent


def regain(ledger: Ledger) -> Iterator[VNode]:
    """The virtual nodes by which lenders take back what nobody borrows any more, outermost cluster first.

    A lender has lent to a job, and the job is over. The caller puts each into the ledger before it asks for the
    next.
    """
    lent = loans(ledger, ledger.leases.values())
    for lender_id in sorted(ledger.lenders, key=lambda id_: (len(ledger.upward(id_)), id_)):
        cluster = ledger.clusters[lender_id]
        has = rs.total([held(ledger, lender_id), *(lease.amounts for lease in lent.get(lender_id, ()))])
        free = ledger.available(cluster.parent_id or PRIMARY)
        lacks = least_of(beyond(cluster.spec.flexible_min, has), free)
        if cluster.kind != LOGICAL or cluster.state == REMOVING or not lacks:
            continue
        placed = place_more(ledger, lender_id, ClusterSpec(flexible_min=lacks))
        for piece in placed.pieces if isinstance(placed, Placed) else ():
            yield joined(ledger, lender_id, piece)


def take_back(ledger: Ledger) -> None:
    """Let lenders take back in a ledger what nobody borrows any more."""
    if ledger.lenders:
        for vnode in regain(ledger):
            ledger.rearrange((), (vnode,), for_start=True)


def end_leases(ledger: Ledger, cluster_id: str) -> None:
    """End in a ledger the leases of a cluster that goes; what it has lent goes over to its parent."""
    parent_id = ledger.clusters[cluster_id].parent_id or PRIMARY
    for lease in list(ledger.leases.values()):
        if lease.borrower_id == cluster_id:
            ledger.put_lease(replace(lease, amounts={}))
        elif lease.lender_id == cluster_id:
            ledger.put_lease(replace(lease, lender_id=parent_id))


class Wish(NamedTuple):
    """What the waiting work of a lender needs, and what of that it can only have by calling in what it lent."""

    need: Amounts
    lack: Amounts


def wishes(
    ledger: Ledger, work: Iterable[Waiting], nominations: Iterable[Nomination] = ()
) -> dict[str, Wish]:
    """Lenders with work that waits, for which there may be enough once they have all of their minimum again.

    Each with what that work needs: it lends the rest. Without those whose loan is a part of a nomination: it was
    promised before. If there is enough, but not in one place, the lender lacks all that its work needs.
    """
    wished: dict[str, Wish] = {}
    for waiting in work:
        cluster_id, needed, preempts = waiting
        lenders = [up.cluster_id for up in ledger.upward(cluster_id) if up.cluster_id in ledger.lenders]
        if not lenders:
            continue
        reach = [cluster_id, *(ledger.clusters[up].parent_id or "" for up in growing(ledger, cluster_id))]
        own, *others = [ledger.available(up) for up in reach]
        free = rs.total([own, *others])
        have = rs.total([ledger.total(cluster_id), *others]) if preempts else free
        for lender_id in lenders:
            lacks = beyond(ledger.clusters[lender_id].spec.flexible_min, held(ledger, lender_id))
            before = wished.get(lender_id, Wish({}, {}))
            need = rs.add(before.need, needed)
            if lacks and lender_id in reach and rs.within(need, rs.add(have, lacks)):
                lack = least_of(beyond(need, free), lacks) or least_of(needed, lacks)
                wished[lender_id] = Wish(need, rs.maximum(before.lack, lack))
    for growth in (nomination.growth(ledger) for nomination in nominations) if wished else ():
        for lender_id in growth.lent if growth is not None else ():
            wished.pop(lender_id, None)
    return wished


def keepers(
    ledger: Ledger, work: Iterable[Waiting], nominations: Iterable[Nomination] = ()
) -> dict[str, Amounts]:
    """What lenders keep for their own waiting work, which starts with it once a loan has come back."""
    return {lender_id: wish.need for lender_id, wish in wishes(ledger, work, nominations).items()}


def kept_back(
    ledger: Ledger, queues: Mapping[str, Queue], tasks: Mapping[str, TaskQueue], now_ns: int,
    nominations: Iterable[Nomination],
) -> dict[str, Amounts]:  # fmt: skip
    """What lenders keep now for the work in these queues."""
    if not ledger.lenders:
        return {}
    return keepers(ledger, work_in_lenders(ledger, queues, tasks, now_ns, judged=False), nominations)
