"""Changes of nodes: silent nodes die, dead and draining nodes are replaced, empty draining nodes are drained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vctl.core import jobs as jb
from vctl.core.clusters import FLEXIBLE, JOB
from vctl.core.jobs import Run
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, DRAINED
from vctl.core.resources import Amounts, beyond, least_of, total
from vctl.core.values import replace
from vctl.engine.changes import (
    Change,
    ClusterRemoved,
    LeaseGranted,
    LeaseReturned,
    NodeChanged,
    NodeMoved,
    NodeReplaced,
    NodesPublished,
    VNodesChanged,
)
from vctl.engine.rules import clusters, stops
from vctl.engine.rules.leases import put_on_account
from vctl.engine.settings import TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import NodeSilent, Stimulus
from vctl.scheduler.feasibility import is_overdrawn
from vctl.scheduler.leasing import empty_parts, kept_first, settle
from vctl.scheduler.lending import loans
from vctl.scheduler.replacement import Replaced, broken_gangs, is_published, move, stamp_of, units


def silent(state: SchedulerState, stimuli: Iterable[Stimulus], now: int) -> Iterator[Change]:
    """Declare the nodes dead whose heartbeat lease has ended."""
    alive = state.ledger.nodes.keys() - state.dead_nodes
    for stimulus in stimuli:
        if isinstance(stimulus, NodeSilent) and (node_id := stimulus.node_id) in alive:
            yield NodeMoved(now, node_id, "die", DEAD, f"no heartbeat for {stimulus.timeout_s:g} s", "vctl")


def failed(state: SchedulerState) -> Iterator[Change]:
    """Stop the runs that are lost with dead nodes."""
    for run in lost(state):
        yield from stops.stop(state, [run.run_id], jb.NODE_FAILED)


def lost(state: SchedulerState) -> list[Run]:
    """The runs on nodes that have died, and all main processes of jobs with one, or a virtual node, there.

    Tasks of such a job on other nodes end with the job as usual, or go on if they are detached.
    """
    dead = state.dead_nodes & state.changed.nodes
    runs = {run_id: run for run_id, run in state.runs.items() if run.node_id in dead} if dead else {}
    ended = {run.job_id for run in runs.values() if run.task_id is None}
    for node_id in dead:
        ended.update(int(cluster.job or 0) for cluster in broken_gangs(state.ledger, node_id))
    for job_id in ended:
        runs.update((run_id, state.runs[run_id]) for run_id in state.members_of(job_id))
    return [runs[run_id] for run_id in sorted(runs)]


def upkeep(
    state: SchedulerState, memo: TurnMemo, now: int, number: Callable[[], int], *, sweep: bool
) -> Iterator[Change]:
    """The maintenance that is due now. ``sweep``: with the part that has to look at all objects."""
    if (state.dead_nodes or state.draining_nodes or state.shrunk_nodes) and (
        sweep or memo.replaced != state.seen
    ):
        memo.stuck = None if sweep else memo.stuck
        yield from replaced(state, memo, now, number)
        memo.replaced = state.seen
    if sweep:
        yield from over(state)
    yield from settled(state)
    yield from drained(state, now)
    if sweep and (parts := tuple(empty_parts(state.ledger))):
        yield VNodesChanged(parts)
    if state.ledger.removing:
        for removed in clusters.removed(clusters.InState(state)):
            yield removed
            yield from _loans_ended(state, removed, now, number)


# ---- replacement ----


def replaced(state: SchedulerState, memo: TurnMemo, now: int, number: Callable[[], int]) -> Iterator[Change]:
    """Move what leaves dead, draining and shrunk nodes, again while that succeeds. ``number``: the next lease's id."""
    ledger = state.ledger
    while True:
        lent = _lent(state)
        leaving = units(ledger, sorted(state.dead_nodes | state.draining_nodes | state.shrunk_nodes), lent)
        stamp = stamp_of(ledger, leaving) if leaving else None
        if stamp == memo.stuck or (done := move(ledger, leaving, lent)) is None:
            memo.stuck = stamp
            return
        yield VNodesChanged(done.removed, done.placed)
        touched = [*(part.before for part in done.parts), *done.placed]
        for cluster_id in dict.fromkeys(vnode.cluster_id for vnode in touched):
            yield from leases_settled(ledger, cluster_id, _entry(state, cluster_id), now, number)
            if parts := [part for part in done.parts if part.before.cluster_id == cluster_id]:
                yield from _announced(ledger, cluster_id, parts)


def _lent(state: SchedulerState) -> dict[str, Amounts]:
    """Cluster -> the part of its minimum that siblings have on nodes that are not dead."""
    ledger = state.ledger
    there: dict[str, Amounts] = {}
    alive: dict[int, Amounts] = {}
    for lease in kept_first(ledger, state.leases.values()):
        borrower_id = lease.borrower_id
        if borrower_id not in there:
            there[borrower_id] = _borrowed_alive(ledger, borrower_id)
        alive[lease.lease_id] = least_of(lease.amounts, there[borrower_id])
        there[borrower_id] = beyond(there[borrower_id], lease.amounts)
    return {
        lender_id: total(alive[loan.lease_id] for loan in lent)
        for lender_id, lent in loans(ledger, state.leases.values()).items()
    }


def _borrowed_alive(ledger: Ledger, cluster_id: str) -> Amounts:
    """What a cluster may have borrowed on nodes that are not dead: of a job all it has there."""
    alive = [vnode for vnode in ledger.slots(cluster_id) if ledger.nodes[vnode.node_id].state != DEAD]
    if ledger.clusters[cluster_id].kind == JOB:
        return total(vnode.allocation.amounts for vnode in alive)
    flexible = total(vnode.allocation.amounts for vnode in alive if vnode.kind == FLEXIBLE)
    return beyond(flexible, ledger.clusters[cluster_id].spec.flexible_min)


def _loans_ended(
    state: SchedulerState, removed: ClusterRemoved, now: int, number: Callable[[], int]
) -> Iterator[Change]:
    """End what a removed cluster had lent to the gangs of jobs beside it: they have that from their parent now."""
    ledger = state.ledger
    lent = [state.leases[lease_id] for lease_id in removed.lent if lease_id in state.leases]
    for borrower_id in dict.fromkeys(lease.borrower_id for lease in lent):
        cluster = ledger.clusters[borrower_id]
        if cluster.kind == JOB and cluster.parent_id == removed.lender_id:
            yield from leases_settled(ledger, borrower_id, _entry(state, borrower_id), now, number)


def leases_settled(
    ledger: Ledger, cluster_id: str, own: Amounts, now: int, number: Callable[[], int]
) -> Iterator[LeaseReturned | LeaseGranted]:
    """Adapt the leases of a cluster with a new minimum or other virtual nodes. ``own``: see ``_entry``."""
    cluster = ledger.clusters[cluster_id]
    assert cluster.parent_id is not None
    settlement = settle(ledger, cluster_id, own)
    for lease, amounts in settlement.cut:
        yield LeaseReturned(replace(lease, amounts=amounts))
    if settlement.fresh:
        job_id = None if cluster.job is None else int(cluster.job)
        more = Lease(0, cluster_id, cluster.parent_id, settlement.fresh, now, job_id=job_id)
        yield put_on_account(ledger, more, number)


def _entry(state: SchedulerState, cluster_id: str) -> Amounts:
    """The part of the flexible resources of a job cluster that its entrypoint holds."""
    for run_id in state.members_of(int(state.ledger.clusters[cluster_id].job or 0)):
        run = state.runs[run_id]
        vnode = state.ledger.vnodes.get(run.vnode_id)
        if vnode is not None and vnode.cluster_id == cluster_id and vnode.kind == FLEXIBLE:
            return run.allocation.amounts
    return {}


def _announced(ledger: Ledger, cluster_id: str, parts: list[Replaced]) -> Iterator[Change]:
    """The events of a cluster whose nodes were replaced, and its new nodes for the runtime."""
    cluster = ledger.clusters[cluster_id]
    pairs = [(part.before.node_id, None if part.after is None else part.after.node_id) for part in parts]
    for dead, fresh in dict.fromkeys(pairs):
        yield NodeReplaced(cluster_id, dead, fresh)
    if is_published(cluster):
        has = sorted({vnode.node_id for vnode in ledger.slots(cluster_id)})
        job_id = int(cluster.job) if cluster.kind == JOB and cluster.job is not None else None
        yield NodesPublished(cluster_id, tuple(has), job_id)


# ---- what became empty ----


def over(state: SchedulerState) -> Iterator[Change]:
    """Remove the clusters of jobs that are over, except those in which something detached is left."""
    there = clusters.InState(state)
    for cluster in [cluster for cluster in state.ledger.clusters.values() if cluster.kind == JOB]:
        if int(cluster.job or 0) not in state.running.jobs:
            for cluster_id in clusters.orphaned(there, cluster.cluster_id):
                yield clusters.removal(there, cluster_id)


def drained(state: SchedulerState, now: int) -> Iterator[Change]:
    """Move draining nodes on which nothing is left to DRAINED."""
    for node_id in sorted(state.draining_nodes):
        if not state.ledger.children[node_id] and node_id not in state.ledger.homes:
            node = state.ledger.nodes[node_id]
            yield NodeMoved(now, node_id, "empty", DRAINED, node.reason, node.author)


def settled(state: SchedulerState) -> Iterator[Change]:
    """Clear ``shrunk`` of nodes on which no more is held than their totals."""
    ledger = state.ledger
    for node_id in sorted(state.shrunk_nodes):
        if not is_overdrawn(ledger, node_id):
            yield NodeChanged(replace(ledger.nodes[node_id], shrunk=False), settled=True)
