"""A start that the scheduler would make, in the documented form: nodes, pieces, what is borrowed, who has to go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vctl.core.ledger import Ledger
from vctl.ops import forms
from vctl.scheduler.elasticity import apply_growth, revert_growth
from vctl.scheduler.leasing import above_minimum
from vctl.scheduler.plan import Start
from vctl.scheduler.victims import Victim
from vctl.scheduler.whatif import Situation

if TYPE_CHECKING:
    from vctl.spec.reports import Loan, Piece, Preempted


def preempted(situation: Situation, victims: Sequence[Victim]) -> list[Preempted]:
    """Running jobs that would end for a job: how long they ran, and that times their part of the cluster."""
    return [
        {
            "submission_id": one.job.submission_id,
            "priority": one.job.priority,
            "lost_s": round((situation.now_ns - one.job.started_at_ns) / 1e9, 3),
            "lost_share_s": round(one.loss / 1e12, 3),
        }
        for one in victims
    ]


def node_ids(start: Start) -> list[str]:
    """The physical nodes that it would use."""
    return sorted({vnode.node_id for vnode in start.vnodes}) or [start.node_id]


def pieces(start: Start) -> list[Piece]:
    """Its virtual nodes, or its place in the cluster that it shares."""
    return [
        {
            "rank": vnode.rank,
            "kind": vnode.kind,
            "node_id": vnode.node_id,
            "parent_vnode_id": vnode.parent_id,
            "resources": forms.amounts(vnode.allocation.amounts),
            "runs_entrypoint": vnode.vnode_id == start.vnode_id,
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
    """What clusters above would take beyond their minimum for it, and the lenders."""
    found: list[Loan] = []
    done = []
    for step in start.growth:
        apply_growth(ledger, step)
        done.append(step)
        cluster = ledger.clusters[step.after.cluster_id]
        if lent := above_minimum(ledger, step):
            found.append(
                {
                    "borrower_id": cluster.cluster_id,
                    "lender_id": step.lender_id or cluster.parent_id,
                    "node_id": step.after.node_id,
                    "resources": forms.amounts(lent),
                }
            )
    for step in reversed(done):
        revert_growth(ledger, step)
    return found
