"""The maintenance round: silent and dead nodes, what replaces them, clusters and drained nodes that became empty.

Runs at its interval, when a node joined, changed or died, and when something happened while work is left to be done.
What a round changes is one transaction, in the tables and in the scheduler state alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from vctl.core import jobs as jb
from vctl.core.clusters import JOB
from vctl.core.jobs import Run
from vctl.core.nodes import DEAD, DRAINED, DRAINING, Node
from vctl.daemon.following import FollowedState
from vctl.engine.changes import NodeChanged, NodeReplaced, NodesPublished, VNodesChanged
from vctl.ops.clusters import sweep_removing
from vctl.ops.growth import Emit, settle_leases
from vctl.ops.nodes import settle_drained
from vctl.scheduler.leasing import empty_parts
from vctl.scheduler.replacement import Replaced, below, broken_gangs, is_published, replace_whole
from vctl.scheduler.reseating import reseat_slices
from vctl.store import clusters, jobs, nodes, upkeep
from vctl.store.store import Store

Stop = Callable[[Run, str, float], None]
"""Ends a process: the run, the reason, the grace in seconds."""


class _Nothing(Exception):
    """Rolls back a round in which nothing was to be done."""


class Maintenance:
    """What the scheduler keeps in order besides jobs. ``interval_s`` is the time between rounds at rest."""

    def __init__(self, store: Store, *, interval_s: float = 30.0) -> None:
        self.store = store
        self.interval_s = interval_s
        self._next = 0.0
        self._lost_at: int | None = None
        """When the next heartbeat lease ends, unless it is renewed."""
        self._dead: set[str] = set()
        self._draining: set[str] = set()
        self._shrunk: set[str] = set()
        self._seen = -1

    def due_s(self) -> float:
        """Seconds until there is something to look at."""
        due = self._next - time.monotonic()
        if self._lost_at is not None:
            due = min(due, (self._lost_at - self.store.clock()) / 1e9)
        return max(0.0, due)

    def turn(self, state: FollowedState, stop: Stop) -> None:
        """Do what is due; ``stop`` is called for each process whose node or gang is lost."""
        at_interval = time.monotonic() >= self._next
        if at_interval or state.nodes_changed or self._silence_is_due():
            self._end_silent(state)
        changed = self.end_lost_work(state, stop)
        if at_interval:
            self._next = time.monotonic() + self.interval_s
        if at_interval or changed or state.seen != self._seen:
            seen = state.seen
            self._round(state, sweep=at_interval)
            self._seen = seen if state.nodes_changed else state.seen

    # ---- silent and dead nodes ----

    def _silence_is_due(self) -> bool:
        return self._lost_at is not None and self._lost_at <= self.store.clock()

    def _end_silent(self, state: FollowedState) -> None:
        """Nodes whose heartbeat lease is over are dead."""
        now = self.store.clock()
        leased = upkeep.heartbeats(self.store)
        if any(row["lost_at"] <= now for row in leased):
            with self.store.transaction():
                for row in upkeep.heartbeats(self.store):  # again: one may have beaten meanwhile
                    if row["lost_at"] <= now:
                        silence = f"no heartbeat for {row['timeout_s']:g} s"
                        nodes.move(self.store, row["node_id"], "die", reason=silence, author="vctl")
            state.follow(self.store)
        self._lost_at = min((row["lost_at"] for row in leased if row["lost_at"] > now), default=None)

    def end_lost_work(self, state: FollowedState, stop: Stop) -> set[str]:
        """End what ran on nodes that died and the gangs that lost a part; returns the nodes that changed."""
        changed, state.nodes_changed = state.nodes_changed, set()
        ledger = state.ledger
        dead = set()
        for node_id in changed:
            node = ledger.nodes.get(node_id)
            now = None if node is None else node.state
            (self._shrunk.add if node is not None and node.shrunk else self._shrunk.discard)(node_id)
            (self._dead.add if now == DEAD else self._dead.discard)(node_id)
            (self._draining.add if now == DRAINING else self._draining.discard)(node_id)
            if now == DEAD:
                dead.add(node_id)
        if dead:
            for run in _lost(state, dead):
                stop(run, jb.NODE_FAILED, 0.0)
        return changed

    # ---- the round ----

    def _round(self, state: FollowedState, *, sweep: bool) -> None:
        waiting = self._left_dead(state) or self._emptied(state) or self._fitting_again(state)
        over = _over(state) if sweep else []
        empty = sweep and any(empty_parts(state.ledger))
        if not (waiting or over or empty or state.ledger.removing):
            return
        try:
            with self.store.transaction():
                state.follow(self.store)  # inside the write lock: from here on nobody changes anything
                done = self._replace(state)
                done = self._destroy(state, over) or done
                done = self._settle(state) or done
                if parts := list(empty_parts(state.ledger)) if empty else []:
                    state.emit(self.store, VNodesChanged(tuple(parts)))
                    done = True
                if not (sweep_removing(self.store, self._emitting(state)) or done):
                    raise _Nothing
        except _Nothing:
            pass

    def _left_dead(self, state: FollowedState) -> list[str]:
        """Dead nodes on which something lies."""
        return sorted(node_id for node_id in self._dead if state.ledger.children.get(node_id))

    def _emptied(self, state: FollowedState) -> list[Node]:
        ledger = state.ledger
        found = (ledger.nodes.get(node_id) for node_id in sorted(self._draining))
        return [
            node
            for node in found
            if node is not None
            and node.state == DRAINING
            and not ledger.children[node.node_id]
            and node.node_id not in ledger.homes
        ]

    def _fitting_again(self, state: FollowedState) -> list[Node]:
        """Nodes that shrank on which no more is held than there is."""
        ledger = state.ledger
        return [
            ledger.nodes[node_id]
            for node_id in sorted(self._shrunk)
            if node_id in ledger.nodes
            and not ledger.capacities[node_id].is_overdrawn()
            and not any(ledger.capacities[v.vnode_id].is_overdrawn() for v in below(ledger, node_id))
        ]

    def _replace(self, state: FollowedState) -> bool:
        """Put spares where dead nodes are, as often as that makes more possible."""
        done: list[Replaced] = []
        rearrange = state.rearrange(self.store)
        while dead := self._left_dead(state):
            more = replace_whole(state.ledger, dead, rearrange)
            more += reseat_slices(state.ledger, dead, rearrange)
            if not more:
                break
            done += more
        for cluster_id in dict.fromkeys(change.before.cluster_id for change in done):
            settle_leases(self.store, state.ledger, cluster_id, self._emitting(state))
            self._tell(state, cluster_id, [c for c in done if c.before.cluster_id == cluster_id])
        return bool(done)

    def _tell(self, state: FollowedState, cluster_id: str, changes: list[Replaced]) -> None:
        """The events of a cluster whose nodes were replaced; the runtime is told where work runs."""
        cluster = state.ledger.clusters[cluster_id]
        members = state.ledger.members[cluster_id]
        pairs = [(c.before.node_id, None if c.after is None else c.after.node_id) for c in changes]
        for dead, fresh in dict.fromkeys(pairs):
            state.emit(self.store, NodeReplaced(cluster_id, dead, fresh))
        if is_published(cluster):
            has = sorted({state.ledger.vnodes[vnode_id].node_id for vnode_id in members})
            job_id = int(cluster.job) if cluster.kind == JOB and cluster.job is not None else None
            state.emit(self.store, NodesPublished(cluster_id, tuple(has), job_id))

    def _emitting(self, state: FollowedState) -> Emit:
        return partial(state.emit, self.store)

    def _destroy(self, state: FollowedState, over: Iterable[str]) -> bool:
        """Destroy job clusters whose job is over and in which nothing detached lives any more."""
        done = False
        for cluster_id in over:
            cluster = state.ledger.clusters.get(cluster_id)
            below = clusters.subtree(self.store, cluster_id)
            if cluster is None or self._is_wanted(state, [cluster_id, *below], int(cluster.job or 0)):
                continue
            for one in [*reversed(below), cluster_id]:
                state.emit(self.store, state.removal_of(one))
            done = True
        return done

    def _is_wanted(self, state: FollowedState, cluster_ids: list[str], job_id: int) -> bool:
        job = jobs.get(self.store, job_id)
        if job is not None and job["status"] == jb.RUNNING:
            return True
        return _is_inhabited(state, cluster_ids) or not upkeep.inhabited(self.store).isdisjoint(cluster_ids)

    def _settle(self, state: FollowedState) -> bool:
        """Draining nodes on which nothing is left are drained; what shrank is as others once its use fits."""
        done = False
        for node in self._fitting_again(state):
            state.emit(self.store, NodeChanged(replace(node, shrunk=False), settled=True))
            self._shrunk.discard(node.node_id)
            done = True
        for node in self._emptied(state):
            settle_drained(self.store, node.node_id)
            if state.follow(self.store) and state.ledger.nodes[node.node_id].state == DRAINED:
                self._draining.discard(node.node_id)
                done = True
        return done


def _lost(state: FollowedState, dead: set[str]) -> list[Run]:
    """Processes on dead nodes, and all members of each job of which one, or a slice of its gang, was on one.

    Tasks of such a job that were elsewhere end with it as at any end of a job, or go on when they are detached.
    """
    ended: set[int] = set()
    found: dict[str, Run] = {}
    for run in state.runs.values():
        if run.node_id in dead:
            found[run.run_id] = run
            if run.task_id is None:
                ended.add(run.job_id)
    for node_id in dead:
        ended.update(int(cluster.job or 0) for cluster in broken_gangs(state.ledger, node_id))
    for job_id in ended:
        members = (state.runs[run_id] for run_id in state.runs_of_job.get(job_id, ()))
        found.update((run.run_id, run) for run in members if run.task_id is None)
    return [found[run_id] for run_id in sorted(found)]


def _over(state: FollowedState) -> list[str]:
    """Job clusters of which no process of the job is known; whether the job is over is in its row."""
    return [
        cluster.cluster_id
        for cluster in state.ledger.clusters.values()
        if cluster.kind == JOB and not state.runs_of_job.get(int(cluster.job or 0))
    ]


def _is_inhabited(state: FollowedState, cluster_ids: Iterable[str]) -> bool:
    ledger = state.ledger
    return any(
        vnode_id in ledger.homes
        for cluster_id in cluster_ids
        for vnode_id in ledger.members.get(cluster_id, ())
    )
