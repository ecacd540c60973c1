"""Scarcity: the ledger learns what the waiting work asks of nodes, and the nodes of a cluster get their rank by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vctl.core.demand import Demand
from vctl.core.ledger import Ledger
from vctl.scheduler.candidate_nodes import candidates_now
from vctl.scheduler.queueing import Queue
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.work import Budget

TASKS = "tasks"
"""The source of the demand of all waiting tasks."""


def note_demand(
    demand: Demand, queues: Iterable[Queue], tasks: Iterable[TaskQueue], budget: Budget | None = None
) -> None:
    """Let the demand of a ledger know what the jobs in the queues and the waiting tasks ask of nodes.

    With a budget, at most half of it: the next round goes on.
    """
    limit = None if budget is None or budget.remaining is None else max(budget.remaining, 2) // 2
    for queue in queues:
        if queue.demand is not demand:
            queue.demand, queue.unnoted = demand, dict.fromkeys(queue.shapes)
        if not queue.unnoted:
            continue
        if limit is not None and len(queue.unnoted) > limit:
            names = list(queue.unnoted)[:limit]
        else:
            names = list(queue.unnoted)
        for name in names:
            del queue.unnoted[name]
            if (shape := queue.shapes.get(name)) is None:
                demand.put((queue.parent_id, name))
            else:
                demand.ask((queue.parent_id, name), shape.example.spec, shape.example.entry, whole=True)
        if budget is not None and limit is not None:
            budget.spend(len(names))
            limit -= len(names)
    demand.put(TASKS, tuple({request: None for queue in tasks for request in queue.requests()}))


def scarcity_in(ledger: Ledger, cluster_id: str) -> Callable[[str], int]:
    """The rank of the scarcity of a cluster's virtual nodes on nodes that take work, by what others ask for."""
    candidates = candidates_now(ledger, cluster_id)
    known = candidates.scarcity({})
    return lambda vnode_id: 0 if known is None else known.of(candidates.kind_of(vnode_id))
