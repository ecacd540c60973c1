"""For each node: the need of a waiting job or task, the free resources, and the holders of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vctl.core import resources as rs
from vctl.core.clusters import JOB, PRIMARY
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.core.tasks import PendingTask
from vctl.core.wording import cluster_text
from vctl.ops import forms
from vctl.scheduler.explain.nodes import AVAILABLE, RANK, NodeVerdict, explain, explain_task
from vctl.scheduler.explain.trial import RunningHolder, Situation

if TYPE_CHECKING:
    from vctl.spec.reports import HolderForm, NodeObstacle, Obstacles

NO_TASKS: Mapping[str, str] = {}


MOST_NODES = 200
"""The most nodes that an answer lists; of more, it counts the others by verdict."""


def obstacles(situation: Situation, job: PendingJob) -> Obstacles:
    """The verdicts on the nodes on which the job could be placed, also by growth of its parent, by node id."""
    ledger = situation.ledger
    best: dict[str, tuple[NodeVerdict, str]] = {}
    for cluster_id in _candidates(ledger, job.parent_id):
        for verdict in explain(ledger, cluster_id, job.spec, job.entry):
            known = best.get(verdict.node_id)
            if known is None or RANK.index(verdict.verdict) > RANK.index(known[0].verdict):
                best[verdict.node_id] = verdict, cluster_id
    holders = _Holders(situation)
    chosen, left_out = _chosen({node_id: verdict for node_id, (verdict, _) in best.items()})
    listed = [
        _obstacle(verdict, holders.on(cluster_id, node_id), _of_growth(verdict, cluster_id, job.parent_id))
        for node_id, (verdict, cluster_id) in sorted(best.items())
        if node_id in chosen
    ]
    return {"nodes": listed, "nodes_left_out": left_out}


def obstacles_of_task(situation: Situation, task: PendingTask, others: Sequence[RunningHolder]) -> Obstacles:
    """The verdicts on the virtual nodes of the task's cluster, by rank; ``others``: the tasks that run there."""
    holders = _Holders(situation, {run: holder.submission_id for holder in others for run in holder.run_ids})
    verdicts = dict(explain_task(situation.ledger, task))
    chosen, left_out = _chosen(verdicts)
    listed: list[NodeObstacle] = [
        {**_obstacle(verdict, holders.of([vnode_id])), "vnode_id": vnode_id}
        for vnode_id, verdict in verdicts.items()
        if vnode_id in chosen
    ]
    return {"nodes": listed, "nodes_left_out": left_out}


def _chosen(verdicts: Mapping[str, NodeVerdict]) -> tuple[set[str], dict[str, int]]:
    """The nodes that are listed, those that lack least first; and how many of each verdict are left out."""
    order = sorted(verdicts, key=lambda name: -RANK.index(verdicts[name].verdict))  # stable
    left_out = Counter(verdicts[name].verdict for name in order[MOST_NODES:])
    return set(order[:MOST_NODES]), dict(left_out)


def _obstacle(verdict: NodeVerdict, holders: list[HolderForm], note: str | None = None) -> NodeObstacle:
    return {
        "node_id": verdict.node_id,
        "verdict": verdict.verdict,
        "need": forms.amounts(verdict.need),
        "have": forms.amounts({name: max(amount, 0) for name, amount in verdict.have.items()}),
        "holders": holders,
        "note": verdict.note or note,
    }


def _of_growth(verdict: NodeVerdict, cluster_id: str, parent_id: str) -> str | None:
    if cluster_id == parent_id or verdict.verdict != AVAILABLE:
        return None
    return f"free in {cluster_text(cluster_id)}; {cluster_text(parent_id)} would have to grow"


def _candidates(ledger: Ledger, parent_id: str) -> Iterator[str]:
    """The parent and the clusters above it from which it can grow."""
    while parent_id in ledger.clusters:
        yield parent_id
        cluster = ledger.clusters[parent_id]
        if parent_id == PRIMARY or not cluster.spec.flexible or cluster.parent_id is None:
            return
        parent_id = cluster.parent_id


class _Holders:
    """The holders of resources in the virtual nodes of a cluster: its children, and its own runs.

    ``tasks``: run -> its task, where a run counts for its task and not for its job.
    """

    def __init__(self, situation: Situation, tasks: Mapping[str, str] = NO_TASKS) -> None:
        self.ledger = situation.ledger
        self._tasks = tasks
        self._job_of_run = {
            run: holder.submission_id for holder in situation.running for run in holder.run_ids
        }
        self._job_of_cluster = {
            holder.cluster_id: holder.submission_id for holder in situation.running if holder.cluster_id
        }
        self._slots: dict[str, dict[str, list[str]]] = {}
        self._runs: dict[str, list[str]] = {}
        for run_id, (vnode_id, _) in self.ledger.charges.items():
            self._runs.setdefault(vnode_id, []).append(run_id)

    def on(self, cluster_id: str, node_id: str) -> list[HolderForm]:
        """The holders on one node with their resources, the largest first."""
        return self.of(self._slots_on(cluster_id).get(node_id, ()))

    def of(self, vnode_ids: Iterable[str]) -> list[HolderForm]:
        """The holders in some virtual nodes with their resources, the largest first."""
        held: dict[tuple[str, str], dict[str, int]] = {}
        for vnode_id in vnode_ids:
            for who, amounts in self._in(vnode_id):
                held[who] = rs.add(held.get(who, {}), amounts)
        holding = [(who, amounts) for who, amounts in held.items() if any(amounts.values())]
        order = sorted(holding, key=lambda item: (-sum(item[1].values()), item[0]))
        return [_holder(kind, name, amounts) for (kind, name), amounts in order]

    def _in(self, vnode_id: str) -> Iterator[tuple[tuple[str, str], Amounts]]:
        for child_id in self.ledger.children.get(vnode_id, ()):
            child = self.ledger.vnodes[child_id]
            job = self._job_of_cluster.get(child.cluster_id)
            of_job = job is not None and self.ledger.clusters[child.cluster_id].kind == JOB
            yield (
                ("submission_id", job or "") if of_job else ("cluster_id", child.cluster_id),
                child.allocation.amounts,
            )
        for run_id in self._runs.get(vnode_id, ()):
            task_id = self._tasks.get(run_id)
            who = self._job_of_run.get(run_id, run_id) if task_id is None else task_id
            kind = "submission_id" if task_id is None else "task_id"
            yield (kind, who), self.ledger.charges[run_id][1].amounts

    def _slots_on(self, cluster_id: str) -> dict[str, list[str]]:
        if cluster_id not in self._slots:
            by_node: dict[str, list[str]] = {}
            for vnode in self.ledger.slots(cluster_id):
                by_node.setdefault(vnode.node_id, []).append(vnode.vnode_id)
            self._slots[cluster_id] = by_node
        return self._slots[cluster_id]


def _holder(kind: str, name: str, amounts: Amounts) -> HolderForm:
    held = forms.amounts(amounts)
    if kind == "task_id":
        return {"task_id": name, "resources": held}
    if kind == "submission_id":
        return {"submission_id": name, "resources": held}
    return {"cluster_id": name, "resources": held}
