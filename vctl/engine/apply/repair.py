"""What the state is without rows that were set aside, and without reservations that have no place.

A scheduler repairs the tables before it has a state. So this is for those who follow the journal; what they cannot
apply, because other objects depend on the row, they read from the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vctl.core.resources import EMPTY
from vctl.engine import changes as ch
from vctl.engine.apply.table import Table
from vctl.engine.state import SchedulerState


def _drop_job(state: SchedulerState, job_id: int) -> None:
    job = state.pending(job_id) or state.running.jobs.get(job_id)
    state.dequeue(job_id)
    state.stops.discard(job_id)
    state.running.drop(job_id)
    state.array_limits.leave(None if job is None else job.array_id, job_id)
    state.preemptions.pop(job_id, None)
    state.drop_nomination(job_id)


def _drop_run(state: SchedulerState, run_id: str) -> None:
    if (run := state.runs.get(run_id)) is not None:
        state.drop_run(run)
        state.run_stops.pop(run_id, None)


def _drop_node(state: SchedulerState, node_id: str) -> None:
    if node_id in state.ledger.nodes:
        state.ledger.remove_node(node_id)


def _drop_cluster(state: SchedulerState, cluster_id: str) -> None:
    if cluster_id in state.ledger.clusters:
        state.ledger.remove_cluster(cluster_id)


def _drop_vnode(state: SchedulerState, vnode_id: str) -> None:
    if vnode_id in state.ledger.vnodes:
        state.ledger.release(vnode_id)


_DROP: Mapping[str, Callable[[SchedulerState, Any], object]] = {
    "nodes": _drop_node,
    "clusters": _drop_cluster,
    "vnodes": _drop_vnode,
    "runs": _drop_run,
    "jobs": _drop_job,
    "tasks": lambda state, key: state.tasks.drop(key),
    "leases": lambda state, key: state.leases.pop(key, None),
    "preemptions": lambda state, key: state.preemptions.pop(key, None),
    "nominations": lambda state, key: state.drop_nomination(key),
    "provider_requests": lambda state, key: state.node_requests.pop(key, None),
}


def _row_set_aside(state: SchedulerState, change: ch.RowSetAside) -> None:
    if (drop := _DROP.get(change.table)) is not None:  # past use is not in the state of changes
        drop(state, change.key[0])


def _run_stripped(state: SchedulerState, change: ch.RunStripped) -> None:
    if (run := state.runs.get(change.run_id)) is not None:
        state.ledger.discharge(run.run_id)
        state.runs[run.run_id] = replace(run, allocation=EMPTY)


APPLY: Table = {ch.RowSetAside: _row_set_aside, ch.RunStripped: _run_stripped}
