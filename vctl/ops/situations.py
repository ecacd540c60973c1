"""The situation for trials, read from the tables: ledger, queue, running jobs, waiting tasks. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.clusters import PRIMARY
from vctl.core.ledger import Ledger
from vctl.core.nodes import LOST, MADE_BY, Node
from vctl.core.resources import whole_node
from vctl.core.values import replace
from vctl.ops import forms
from vctl.ops.feasible import judge_of, templates
from vctl.scheduler.elasticity import apply_growth, revert_growth, sharing
from vctl.scheduler.explain.trial import RunningHolder, Situation
from vctl.scheduler.explain.whatif import MOST_CLASSES
from vctl.scheduler.fairness import Shares, Usage
from vctl.scheduler.leasing import above_minimum
from vctl.scheduler.lending import Waiting, keepers, waiting_job
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.plan import Start
from vctl.scheduler.running import Running
from vctl.scheduler.task_queue import Turns, kind_of, note_turn
from vctl.scheduler.victims import Victim
from vctl.store import (
    clusters,
    jobs,
    limits,
    nodes,
    observed,
    partial,
    preemptions,
    queues,
    reservations,
    rows,
    runs,
    tasks,
    usage,
)  # fmt: skip
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.reports import Loan, PieceForm, Preempted


MOST_TOLD = 1_000
"""The most reasons of the last round that are read for a look at the first jobs of a queue."""
MOST_SPARE = 64
"""The most whole nodes of each template that a cluster could be given."""


def load(
    store: Store, cluster_id: str | None = None, tree: Ledger | None = None, *, queue: bool = True
) -> Situation:
    """The present input of a round of the scheduler; inside a snapshot.

    ``cluster_id``: only the work that may use what the work of this cluster needs waits in it. ``tree``: the result of
    ``ledger`` in this snapshot. Where so much waits that no trial fits into the budget, the queues are not read, nor
    without ``queue``.
    """
    tree = ledger(store) if tree is None else tree
    nominations = preemptions.nominations(store)
    around = beside(tree, cluster_id, nominations)
    run_ids: dict[int, list[str]] = {}
    for row in sorted(runs.live_rows(store), key=lambda row: row["task_id"] is not None):
        run_ids.setdefault(row["job_id"], []).append(row["run_id"])  # the job's own process first
    running_rows = jobs.running_rows(store)
    waiting = [row for row in tasks.waiting_rows(store) if around is None or row["cluster_id"] in around]
    running = [
        RunningHolder(
            row["job_id"],
            row["submission_id"],
            row["priority"],
            None if row["shares_parent"] else row["cluster_id"],
            tuple(ids := run_ids.get(row["job_id"], [])),
            replace(rows.running(row), run_id=ids[0]) if ids else None,
        )
        for row in running_rows
        if not (mine := run_ids.get(row["job_id"])) or not tree.charges.keys().isdisjoint(mine)
    ]
    reported: dict[str, dict[str, tuple[str, str]]] = {}
    is_crowded = observed.count_waits(store, around) > (MOST_CLASSES if queue else MOST_TOLD)
    for row in () if is_crowded else observed.waits(store, around):
        reported.setdefault(row["parent_cluster_id"], {})[row["shape"]] = (row["reason"], row["message"])
    known = Running(holder.row for holder in running if holder.row is not None)
    return Situation(
        ledger=tree,
        pending=() if is_crowded or not queue else list(queues.queued(store, around)),
        running=running,
        tasks=[rows.task(row).pending() for row in waiting],
        turns=_turns(store, {row["cluster_id"] for row in waiting}),
        now_ns=store.clock(),
        leaving=[
            *(row["job_id"] for row in running_rows if row["stop_requested_at"] is not None),
            *(row["victim_id"] for row in preemptions.all_rows(store)),
        ],
        nominations=nominations,
        usage=Usage.joined(usage.load(store), tree, Shares(tree, known).held, store.clock()),
        reservations=reservations.load(store),
        reported=reported,
        next_job=jobs.next_number(store),
        next_task=tasks.next_number(store),
        passed=[row["task_id"] for row in waiting if row["state_reason"] in (jb.INSUFFICIENT, jb.INFEASIBLE)],
        spent=limits.spent(store, tree.limits),
        is_crowded=is_crowded,
    )


def branch_of(store: Store, cluster_id: str) -> str:
    """The cluster that has all that the work of a cluster can have; the primary where that is no smaller tree.

    Machines that a provider makes, places reserved by preemptions, and a node that replaces a dead one may come from
    anywhere. What counts against a limit may be anywhere, too, and what is booked comes from above.
    """
    is_lost = any(state in LOST for state in nodes.states(store))
    is_open = is_lost or preemptions.nominations(store) or limits.exist(store) or clusters.booked(store)
    return PRIMARY if is_open or templates(store) else judge_of(store, cluster_id)


def beside(tree: Ledger, cluster_id: str | None, nominations: Sequence[Nomination]) -> set[str] | None:
    """The clusters whose waiting work may use what the work of a cluster needs; None: all.

    What is reserved counts wherever it is; a node that replaces a dead one may come from anywhere.
    """
    if cluster_id is None or tree.limits or any(node.state in LOST for node in tree.nodes.values()):
        return None
    return sharing(tree, cluster_id) | {nomination.parent_id for nomination in nominations}


def _turns(store: Store, cluster_ids: Collection[str]) -> dict[str, Turns]:
    """Cluster -> the classes of its running tasks, in the order in which the last of each started."""
    turns: dict[str, Turns] = {cluster_id: {} for cluster_id in cluster_ids}
    for cluster_id in sorted(cluster_ids):
        for row in tasks.running_rows(store, cluster_id):
            note_turn(turns[cluster_id], kind_of(rows.task(row)))
    return turns


def ledger(store: Store, cluster_id: str | None = None) -> Ledger:
    """The ledger of the whole tree, with the lenders that keep what they have for their own waiting work.

    ``cluster_id``: only what the work of this cluster can have is needed.
    """
    top_id = PRIMARY if cluster_id is None else branch_of(store, cluster_id)
    if top_id == PRIMARY:
        tree = clusters.load_ledger(store)
        tree.templates = templates(store)
    else:
        tree = partial.load_branch(store, top_id, MOST_SPARE)
    tree.limits = limits.load(store)
    if any(any(cluster.lending_limit.values()) for cluster in tree.clusters.values()):
        tree.withheld = keepers(tree, _waiting(store, tree), preemptions.nominations(store))
    return tree


def _waiting(store: Store, tree: Ledger) -> Iterator[Waiting]:
    """The work that was told last that there is too little for it."""
    for job in queues.short(store):
        if job.parent_id in tree.clusters:
            yield waiting_job(tree, job)
    for row in tasks.waiting_rows(store):
        if row["state_reason"] == jb.INSUFFICIENT and row["cluster_id"] in tree.clusters:
            yield Waiting(row["cluster_id"], rows.task(row).request)


def kinds_of_nodes(store: Store) -> dict[str, Node]:
    """One new node of every known template, with the id that ``vctl node add`` would choose; inside a snapshot."""
    kinds: dict[str, Node] = {}
    known = set(nodes.ids_like(store, ""))
    for node in sorted(
        map(rows.node, nodes.examples(store)), key=lambda node: (node.state in LOST, node.node_id)
    ):
        amounts = {name: amount for name, amount in sorted(node.total.amounts.items()) if amount}
        labels = {name: value for name, value in sorted(node.labels.items()) if name != MADE_BY}
        key = json.dumps([node.template_id, amounts, labels])
        if key in kinds or not amounts or node.shrunk:
            continue
        node_id = next(
            unused for n in range(len(known) + 1) if (unused := f"{node.template_id}-{n:02d}") not in known
        )
        total = whole_node(amounts, node.total.instances)
        kinds[key] = Node(node_id, node.template_id, total, node_id, labels, node.source)
    return kinds


def preempted(situation: Situation, victims: Sequence[Victim]) -> list[Preempted]:
    """The JSON forms of jobs that would be preempted: their lost run time, also weighted by their share."""
    return [
        {
            "submission_id": victim.job.submission_id,
            "priority": victim.job.priority,
            "lost_s": round((situation.now_ns - victim.job.started_at_ns) / 1e9, 3),
            "lost_share_s": round(victim.loss / 1e12, 3),
        }
        for victim in victims
    ]


def pieces(start: Start) -> list[PieceForm]:
    """The virtual nodes of a start, or its place in a shared cluster."""
    return [
        {
            "rank": vnode.rank,
            "kind": vnode.kind,
            "node_id": vnode.node_id,
            "parent_vnode_id": vnode.parent_id,
            "resources": forms.amounts(vnode.allocation.amounts),
            "runs_entrypoint": start.job.per_node or vnode.vnode_id == start.vnode_id,
        }
        for vnode in start.vnodes
    ] or [
        {
            "rank": 0,
            "kind": "shared",
            "node_id": start.node_id,
            "parent_vnode_id": start.vnode_id,
            "resources": forms.amounts(start.allocation.amounts),
            "runs_entrypoint": True,
        }
    ]


def borrowed(ledger: Ledger, start: Start) -> list[Loan]:
    """The resources that clusters would borrow for a start, and the lenders."""
    from vctl.engine.rules import leases  # here, because only a dry run needs it

    loans: list[Loan] = []
    lent_out = leases.loans_of(start.growth)
    for step in start.growth:
        apply_growth(ledger, step)
        cluster, rest = ledger.clusters[step.after.cluster_id], above_minimum(ledger, step)
        of_others = leases.borrowed(lent_out.get(step.after.parent_id or "", ()), rest)
        loans += [
            {
                "borrower_id": cluster.cluster_id,
                "lender_id": lender_id,
                "node_id": step.after.node_id,
                "resources": forms.amounts(lent),
            }
            for lender_id, lent in (*of_others, (cluster.parent_id, rest))
            if lent
        ]
    for step in reversed(start.growth):
        revert_growth(ledger, step)
    return loans
