"""Preemptions that are not over, in memory and in the tables: begun by a commit, ended when the jobs have ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vctl.core.jobs import RunningJob
from vctl.core.wording import amounts_text, cluster_text
from vctl.ops.forms import amounts, timestamp
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.plan import Plan
from vctl.scheduler.preemption import Preempt
from vctl.store import jobs, rows
from vctl.store import preemptions as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.daemon.following import FollowedState

NAMED = 5
"""So many victims are named in a message."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """A running job that ends for a waiting one. ``warns``: it gets a signal first and is ended at ``ends_ns``."""

    victim_id: int
    victim: str
    attempt: int
    winner_id: int
    winner: str
    rule: str
    warns: bool
    ends_ns: int
    told: bool = False
    ending: bool = False
    """Whether its processes were told to end."""


class Preemptions:
    """Every preemption by its victim, and which jobs have a nomination. Writes inside a transaction."""

    def __init__(self) -> None:
        self.active: dict[int, Preemption] = {}
        self.marked: dict[int, str] = {}
        """Job -> cluster in whose queue something is kept for it."""
        self.spared: list[str] = []
        """Jobs that were told and may go on: their notice is to be removed."""

    def load(self, store: Store, state: FollowedState) -> None:
        """Take over what the tables say."""
        for row in table.all_rows(store):
            if row["victim_id"] in state.running.jobs:
                self.active[row["victim_id"]] = Preemption(
                    row["victim_id"], row["submission_id"], row["attempt"], row["winner_id"], row["winner"],
                    row["rule"], bool(row["warns"]), row["ends_at"], bool(row["told"]), bool(row["ending"]),
                )  # fmt: skip
                state.running.leave(row["victim_id"])
        for nomination in table.nominations(store):
            self.marked[nomination.job_id] = nomination.parent_id
            if nomination.parent_id in state.queues:
                left = replace(nomination, awaited=nomination.awaited & state.running.leaving)
                state.queues[nomination.parent_id].set_nomination(nomination.job_id, left)

    def nominations(self, state: FollowedState) -> Iterator[Nomination]:
        """Everything that is kept."""
        for job_id, parent_id in self.marked.items():
            queue = state.queues.get(parent_id)
            if queue is not None and job_id in queue.nominations:
                yield queue.nominations[job_id]

    # ---- beginning ----

    def begin(self, store: Store, state: FollowedState, plan: Plan) -> None:
        """Write the preemptions of a plan that are still right; others are decided again."""
        for _, job_id in plan.lapsed:
            self.unmark(store, state, job_id, "it still does not fit")
        for one in plan.preempts:
            if _is_right(state, one):
                self._begin(store, state, one)
            else:
                state.forget_verdicts()

    def _begin(self, store: Store, state: FollowedState, one: Preempt) -> None:
        policy = state.ledger.clusters[one.job.parent_id].queue
        ends_ns = store.clock() + policy.preemption_grace_ns
        for victim in one.victims:
            row = jobs.get(store, victim.job.job_id)
            assert row is not None
            warns = rows.loads(row["rules"]).get("signal") is not None
            begun = Preemption(
                row["job_id"], row["submission_id"], row["attempt"], one.job.job_id, one.job.submission_id,
                policy.preemption, warns, ends_ns,
            )  # fmt: skip
            table.insert(
                store, victim_id=begun.victim_id, attempt=begun.attempt, winner_id=begun.winner_id, winner=begun.winner,
                rule=begun.rule, warns=warns, ends_at=ends_ns,
            )  # fmt: skip
            self.active[begun.victim_id] = begun
            state.running.leave(begun.victim_id)
            store.event(
                "job.preempting", "job", begun.victim, cluster_id=row["cluster_id"], job_id=begun.victim_id,
                data={"winner": begun.winner, "rule": begun.rule, "ends_at": timestamp(ends_ns)},
            )  # fmt: skip
        table.put_nomination(store, one.nomination)
        self.marked[one.job.job_id] = one.job.parent_id
        state.queues[one.job.parent_id].set_nomination(one.job.job_id, one.nomination)
        names = [victim.job.submission_id for victim in one.victims]
        shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        text = f"preempts {shown}, by {timestamp(ends_ns)} at the latest{_growth_text(state, one.nomination)}"
        table.mark_winner(store, one.job.job_id, text)

    # ---- on the way ----

    def mark(self, store: Store, one: Preemption, *, ending: bool) -> None:
        """The job was told, or its processes were told to end."""
        table.mark(store, one.victim_id, told=True, ending=ending)
        self.active[one.victim_id] = replace(one, told=True, ending=ending)

    def unmark(self, store: Store, state: FollowedState, job_id: int, why: str) -> None:
        """Keep nothing more for a job; those of its victims go on that were not told to end yet."""
        parent_id = self.marked.pop(job_id, None)
        if parent_id is None:
            return
        table.delete_nomination(store, job_id)
        queue = state.queues.get(parent_id)
        if queue is not None and (nomination := queue.nominations.get(job_id)) is not None:
            queue.set_nomination(job_id, None)
            state.ledger.note_growth(part[0] for part in nomination.pieces)
        awaited = {victim for one in self.nominations(state) for victim in one.awaited}
        for one in list(self.active.values()):
            if one.winner_id == job_id and not one.ending and one.victim_id not in awaited:
                del self.active[one.victim_id]
                table.delete(store, one.victim_id)
                state.running.leave(one.victim_id, leaves=False)
                self.spared.append(one.victim)
                store.event(
                    "job.spared", "job", one.victim, job_id=one.victim_id, data={"winner": one.winner, "why": why}
                )  # fmt: skip

    def over(self, store: Store, state: FollowedState, job_id: int) -> None:
        """A running job has ended, whatever for: nobody waits for it any more."""
        if self.active.pop(job_id, None) is not None:
            table.delete(store, job_id)
        for nomination in list(self.nominations(state)):
            if job_id in nomination.awaited:
                left = replace(nomination, awaited=nomination.awaited - {job_id})
                table.put_nomination(store, left)
                state.queues[nomination.parent_id].set_nomination(nomination.job_id, left)

    def of(self, job: RunningJob) -> Preemption | None:
        """What ends this attempt of a job, if something does."""
        one = self.active.get(job.job_id)
        return one if one is not None and one.attempt == job.attempt else None


def _is_right(state: FollowedState, one: Preempt) -> bool:
    """Whether the winner still waits, its victims still run, and the place is still free."""
    queue = state.queues.get(one.job.parent_id)
    if queue is None or queue.jobs.get(one.job.job_id) != one.job:
        return False
    for victim in one.victims:
        job_id = victim.job.job_id
        if state.running.jobs.get(job_id) != victim.job or job_id in state.running.leaving:
            return False
    return one.nomination.stands(state.ledger)


def _growth_text(state: FollowedState, nomination: Nomination) -> str:
    """By how much the cluster grows when the job starts, if it does."""
    growth = nomination.growth(state.ledger)
    gained = {} if growth is None else growth.gained.get(nomination.parent_id, {})
    return f"; then {cluster_text(nomination.parent_id)} grows by {amounts_text(gained)}" if gained else ""


def tell_loss(store: Store, row: Row, one: Preemption | None, *, rule: str, exit_code: int | None) -> None:
    """The event that records what was lost: the time of the attempt, and that times what the job held."""
    lost_s = max(0, store.clock() - (row["started_at"] or store.clock())) / 1e9
    held = amounts(rows.loads(row["resources"] or "{}"))
    store.event(
        "job.preempted", "job", row["submission_id"], cluster_id=row["parent_cluster_id"], job_id=row["job_id"],
        data={
            "winner": None if one is None else one.winner, "rule": rule, "attempt": row["attempt"],
            "exit_code": exit_code, "lost_s": round(lost_s, 3),
            "lost_resource_seconds": {name: round(amount * lost_s, 3) for name, amount in held.items()},
        },
    )  # fmt: skip
