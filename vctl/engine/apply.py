"""The only code that changes the state for the changes that have moved: one function for each, called by its type.

Applied again, a change does nothing: a follower may know of it from the tables already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.core.nodes import DEAD, Node
from vctl.engine import changes as ch
from vctl.engine.changes import Change, Process
from vctl.engine.state import SchedulerState


def apply(state: SchedulerState, change: Change) -> None:
    """Let the state be what it is after a change."""
    _APPLY[type(change)](state, change)


def _job_started(state: SchedulerState, change: ch.JobStarted) -> None:
    job, ledger = change.job, state.ledger
    if change.cluster is not None:
        ledger.put_cluster(change.cluster)
        for vnode in change.vnodes:
            ledger.assign(vnode)
    for run in change.runs:
        _add_run(state, run)
    state.dequeue(job.job_id)
    state.running.put(job)


def _run_started(state: SchedulerState, change: ch.RunStarted) -> None:
    _add_run(state, change.run)


def _add_run(state: SchedulerState, run: Run) -> None:
    state.ledger.charge(run.run_id, run.vnode_id, run.allocation)
    state.add_run(run)


def _run_assigned(state: SchedulerState, change: ch.RunAssigned) -> None:
    if (run := state.runs.get(change.run_id)) is not None:
        state.runs[change.run_id] = replace(run, supervisor=change.supervisor)


def _run_seen(state: SchedulerState, change: ch.RunSeen) -> None:
    if (run := state.runs.get(change.run_id)) is not None:
        state.runs[change.run_id] = with_process(run, change.process)


def with_process(run: Run, process: Process) -> Run:
    """A run of which the process was seen."""
    return replace(
        run, state=jb.RUNNING, pid=process.pid, pid_start=process.pid_start, boot_id=process.boot_id,
        started_at=process.started_at,
    )  # fmt: skip


def _run_stopping(state: SchedulerState, change: ch.RunStopping) -> None:
    run = state.runs.get(change.run_id)
    if run is None or run.stop_reason is not None:
        return
    state.runs[change.run_id] = replace(run, stop_reason=change.reason)
    if run.task_id is None:
        state.running.leave(run.job_id)


def _run_ended(state: SchedulerState, change: ch.RunEnded) -> None:
    run = state.runs.get(change.run_id)
    if run is None:
        return
    state.drop_run(run)
    state.run_stops.pop(run.run_id, None)
    job = state.running.jobs.get(run.job_id)
    if job is not None and job.run_id == run.run_id:
        state.running.put(replace(job, run_id=min(state.members_of(run.job_id), default="")))


def _job_ending(state: SchedulerState, change: ch.JobEnding) -> None:
    if (job := state.running.jobs.get(change.job_id)) is not None:
        state.running.put(replace(job, outcome=change.outcome))
        state.running.leave(change.job_id)


def _job_ended(state: SchedulerState, change: ch.JobEnded) -> None:
    state.dequeue(change.job_id)
    state.stops.discard(change.job_id)
    state.running.drop(change.job_id)
    state.array_limits.leave(change.array_id, change.job_id)
    state.note_end(change.submission_id, change.array_id)
    if change.removed is not None:
        _cluster_removed(state, change.removed)


def _cluster_removed(state: SchedulerState, change: ch.ClusterRemoved) -> None:
    for lease_id in change.returned:
        state.leases.pop(lease_id, None)
    for lease_id in change.lent:
        if (lease := state.leases.get(lease_id)) is not None and change.lender_id is not None:
            state.leases[lease_id] = replace(lease, lender_id=change.lender_id)
    state.last_spread.pop(change.cluster_id, None)
    if change.cluster_id in state.ledger.clusters:
        state.ledger.remove_cluster(change.cluster_id)


def _job_requeued(state: SchedulerState, change: ch.JobRequeued) -> None:
    state.running.drop(change.job.job_id)
    state.stops.discard(change.job.job_id)
    state.enqueue(change.job)


def _stop_asked(state: SchedulerState, change: ch.StopAsked) -> None:
    if (job := state.running.jobs.get(change.job_id)) is not None:
        state.running.put(
            replace(
                job, stop_requested_at=change.at, stop_reason=change.reason, stop_grace_s=change.grace_s,
                message=change.message,
            )
        )  # fmt: skip
        state.running.leave(change.job_id)
        state.stops.add(change.job_id)


def _jobs_stopped(state: SchedulerState, change: ch.JobsStopped) -> None:
    for first, last in change.spans:
        for job_id in range(first, last + 1):
            state.dequeue(job_id)
            state.array_limits.leave(change.array_id, job_id)
    state.ended.update((change.array_id, *change.awaited))


def _node_added(state: SchedulerState, change: ch.NodeAdded) -> None:
    _put_node(state, change.node)


def _node_moved(state: SchedulerState, change: ch.NodeMoved) -> None:
    if (node := state.ledger.nodes.get(change.node_id)) is not None:
        _put_node(state, replace(node, state=change.state))


def _node_changed(state: SchedulerState, change: ch.NodeChanged) -> None:
    if change.node.node_id in state.ledger.nodes:
        _put_node(state, change.node)


def _put_node(state: SchedulerState, node: Node) -> None:
    if node.state == DEAD:
        state.lost_nodes.add(node.node_id)
    state.ledger.put_node(node)
    state.nodes_changed.add(node.node_id)


def _node_removed(state: SchedulerState, change: ch.NodeRemoved) -> None:
    state.lost_nodes.add(change.node_id)
    if change.node_id in state.ledger.nodes:
        state.ledger.remove_node(change.node_id)


_APPLY: dict[type[Change], Callable[[SchedulerState, Any], None]] = {
    ch.JobStarted: _job_started,
    ch.RunStarted: _run_started,
    ch.RunAssigned: _run_assigned,
    ch.RunSeen: _run_seen,
    ch.RunStopping: _run_stopping,
    ch.RunEnded: _run_ended,
    ch.JobEnding: _job_ending,
    ch.JobEnded: _job_ended,
    ch.ClusterRemoved: _cluster_removed,
    ch.JobRequeued: _job_requeued,
    ch.StopAsked: _stop_asked,
    ch.JobsStopped: _jobs_stopped,
    ch.NodeAdded: _node_added,
    ch.NodeMoved: _node_moved,
    ch.NodeChanged: _node_changed,
    ch.NodeRemoved: _node_removed,
}
