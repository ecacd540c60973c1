"""The reasons of waiting jobs, derived from one snapshot of the state, so that they are true when shown.

The token comes from the scheduler's last verdict (``waits``, one row for each shape) or from a gate. All numbers are
counted now: the needed resources, the free resources of each node, the running jobs under a limit. A verdict that the
numbers contradict is not shown; the job then waits for the next round of the scheduler. A verdict that cannot be
derived (the order of a queue, reservations) is shown with its age. Jobs of one shape are judged once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.clusters import BOOKED, PRIMARY, STOPPED
from vctl.core.gates import gate_of
from vctl.core.leases import Lease
from vctl.core.wording import STOPPED_WITH_BOOKING, amounts_text, cluster_text, fence_text, listed, opens_at
from vctl.ops.forms import Shown, timestamp
from vctl.store import arrays, clusters, dependencies, job_views, rows, settings
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.core.clusters import Cluster
    from vctl.core.jobs import PendingJob
    from vctl.core.ledger import Ledger
    from vctl.core.queue_policy import QueuePolicy
    from vctl.ops.idle_holders import IdleHolders
    from vctl.ops.reachable import Reachable
    from vctl.scheduler.explain.refusal import Refusal
    from vctl.scheduler.explain.shortage import Shortage
    from vctl.scheduler.limits import LimitUse
    from vctl.scheduler.minimum import BelowMinimum

UNSEEN = "the scheduler has not evaluated it yet"
FITS_NOW = "it can start in the next round of the scheduler"
MOST_SEARCHES = 8
"""The most shapes of one answer for which a placement is searched, where counting does not decide."""
MOST_NAMED = 3


class Reasons:
    """Reasons of jobs as of the present snapshot."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = store.clock()
        self._tokens: dict[object, str] = {}
        self._messages: dict[object, str] = {}
        self._never: dict[object, str | None] = {}
        self._shortages: dict[object, Shortage] = {}
        self._running: dict[str, dict[str, int]] = {}
        self._arrays: dict[str, str | None] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._policies: dict[str, QueuePolicy] = {}
        self._searches = 0
        self._round_at: int | None = None

    @cached_property
    def capacity(self) -> Reachable:
        """The free resources, read on first use."""
        from vctl.ops.reachable import Reachable

        return Reachable(self.store)

    def of(self, row: Row) -> Shown:
        """Token and message of a row of ``job_views``."""
        if row["status"] == jb.RUNNING and (late := self.late.get((row["job_id"], None))) is not None:
            return jb.START_DELAYED, late
        if row["status"] != jb.PENDING:
            return row["state_reason"], row["message"]
        reason, message = self._gate(row)
        if is_gate(reason):
            return reason, message
        if row["state_reason"] == jb.WAITING_FOR_PREEMPTION:
            return jb.WAITING_FOR_PREEMPTION, f"{row['message']}; {self.shortage(row).text}"
        if reason == jb.PREEMPTED:
            return jb.PREEMPTED, f"{message}; {self._words(row)}"
        return self._token(row), self._words(row)

    @cached_property
    def late(self) -> dict[tuple[int, str | None], str]:
        """Jobs with a process that could not be started yet, and why."""
        from vctl.ops import late_starts

        return late_starts.reasons(self.store)

    def token(self, row: Row) -> str | None:
        """The token of ``of`` alone: without numbers in words, it costs much less."""
        if row["status"] != jb.PENDING:
            return str(row["state_reason"])
        reason, _ = gate(self.store, row)
        if reason is not None:
            return reason
        is_winner = row["state_reason"] == jb.WAITING_FOR_PREEMPTION
        return jb.WAITING_FOR_PREEMPTION if is_winner else self._token(row)

    def gate(self, row: Row) -> str | None:
        """The reason that keeps a pending job out of the queue; None for a job in the queue."""
        reason, _ = gate(self.store, row)
        return reason if is_gate(reason) else None

    def _gate(self, row: Row) -> Shown:
        """Token and message of the gate, with the numbers of an array; these are counted once."""
        reason, message = gate(self.store, row)
        if reason != jb.ARRAY_LIMIT:
            return reason, message
        array_id = str(row["array_id"])
        if array_id not in self._arrays:
            self._arrays[array_id] = _places(self.store, array_id)
        return reason, self._arrays[array_id] or message

    def fresh(self, row: Row) -> Shown:
        """Token and message directly after the submit, before any round of a scheduler; without counting resources."""
        if row["status"] != jb.PENDING:
            return row["state_reason"], row["message"]
        reason, message = self._gate(row)
        if reason is not None:
            return reason, message
        parent_id = str(row["parent_cluster_id"])
        parent = None if parent_id == PRIMARY else clusters.get(self.store, parent_id)
        ends = "" if parent is None else _ends_with_booking(row, parent, self.now)
        if parent is not None and parent["state"] == BOOKED:
            return jb.BEGIN_TIME, f"{_opens(rows.cluster(parent))}{ends}"
        is_stopped = parent is not None and parent["state"] == STOPPED
        return (
            (jb.CLUSTER_STOPPED, _stopped(parent_id))
            if is_stopped
            else (jb.PENDING_EVALUATION, f"{UNSEEN}{ends}")
        )

    def shortage(self, row: Row) -> Shortage:
        """The needed and the free resources of a job."""
        from vctl.scheduler.explain.shortage import Shortage, parts_of

        key = self._key(row)
        if key not in self._shortages:
            parent_id, winner = str(row["parent_cluster_id"]), int(row["job_id"])
            parts = parts_of(rows.spec(row["spec"]), rows.loads(row["entry"]))
            self._shortages[key] = Shortage(
                parts, self.capacity.slots(parent_id, winner), self.capacity.above(parent_id, winner)
            )
        return self._shortages[key]

    @cached_property
    def winners(self) -> set[int]:
        """Jobs with reserved resources, which are free for them and not for other jobs."""
        return {nomination.job_id for nomination in self.capacity.nominations}

    def _key(self, row: Row) -> object:
        winner = row["job_id"] if row["job_id"] in self.winners else 0
        return row["parent_cluster_id"], row["shape"], winner

    def _verdict_key(self, row: Row) -> object:
        """What the reason of a job in the queue depends on: it is the same for all jobs that have this in common."""
        each = self._policy(row["parent_cluster_id"]).max_running_per_user
        is_of_user = each is not None or self.use is not None
        return self._key(row), row["judged"], row["judged_words"], row["user"] if is_of_user else ""

    def _token(self, row: Row) -> str:
        """The scheduler's verdict, if the present resources confirm it."""
        key = self._verdict_key(row)
        if key not in self._tokens:
            self._tokens[key] = self._judge(row)
        return self._tokens[key]

    def _judge(self, row: Row) -> str:
        parent_id, verdict = str(row["parent_cluster_id"]), row["judged"]
        parent = self.capacity.cluster(parent_id)
        if parent is not None and not parent.starts_jobs:
            return jb.BEGIN_TIME if parent.state == BOOKED else jb.CLUSTER_STOPPED
        if verdict in (None, jb.HEAD_OF_LINE):
            return verdict or jb.PENDING_EVALUATION
        if (limit := self._limit(row, parent_id)) is not None:
            return limit.rule  # as in a round, whose first question it is
        if verdict == jb.INFEASIBLE and self._why_never(row) is not None:
            return jb.INFEASIBLE
        return jb.PENDING_EVALUATION if self._fits(row) else jb.INSUFFICIENT

    def _words(self, row: Row) -> str:
        key = self._verdict_key(row)
        if key not in self._messages:
            self._messages[key] = self._explained(row)
        return self._messages[key]

    def _explained(self, row: Row) -> str:
        parent_id, user = str(row["parent_cluster_id"]), str(row["user"])
        match self._token(row):
            case jb.CLUSTER_STOPPED:
                return _stopped(parent_id)
            case jb.BEGIN_TIME if (parent := self.capacity.cluster(parent_id)) is not None:
                return _opens(parent)
            case jb.HEAD_OF_LINE:
                verdict = f"{row['judged_words']} ({self._age(row)})"
                return f"{verdict}; {self.shortage(row).text}{self._below(parent_id)}"
            case jb.CAP_REACHED | jb.USER_LIMIT if (limit := self._limit(row, parent_id)) is not None:
                from vctl.scheduler.explain.words import limit_reached

                return limit_reached(limit, parent_id, user)
            case jb.INFEASIBLE:
                return f"{self._why_never(row)}{self._below(parent_id)}"
            case jb.INSUFFICIENT:
                return self._lack(row)
        if row["judged"] is None:
            return f"{UNSEEN}; {self.shortage(row).text}{self._below(parent_id)}"
        return f"{FITS_NOW}; {self.shortage(row).text}"

    def _fits(self, row: Row) -> bool:
        """Whether all needed resources are free by now: counted, and searched where counting does not decide."""
        fits = self.shortage(row).fits
        return self._has_place(row) if fits is None else fits

    def _lack(self, row: Row) -> str:
        short = self.shortage(row)
        reserved = self.capacity.reserved_for(str(row["parent_cluster_id"]), int(row["job_id"]))
        beside = f"; not counting resources reserved for {listed(reserved, MOST_NAMED)}" if reserved else ""
        if short.fits is None:
            from vctl.scheduler.explain.shortage import parts_of

            parts = parts_of(rows.spec(row["spec"]), rows.loads(row["entry"]))
            several = len(parts) > 1 or any(part.count > 1 for part in parts)
            what = "the parts do not all fit at the same time" if several else "that is not enough for it"
            beside = f"{beside}; {what}"
        parent_id = str(row["parent_cluster_id"])
        idle = self._idle.text(parent_id, {n: a for n, a in rows.loads(row["resources"]).items() if a})
        return (
            f"{short.text}{beside}{self._fenced(row)}{self._coming_back(row)}{idle}{self._below(parent_id)}"
        )

    def _fenced(self, row: Row) -> str:
        """The end of a message: the devices that take no new job, if the job asks for such."""
        resources = rows.loads(row["resources"])
        texts = [text for name, text in self._fences if resources.get(name)]
        return f"; {listed(texts, MOST_NAMED)}" if texts else ""

    @cached_property
    def _fences(self) -> list[tuple[str, str]]:
        from vctl.store.devices import fenced

        return [(fence.name, fence_text(node_id, fence)) for node_id, fence in fenced(self.store)]

    @cached_property
    def _idle(self) -> IdleHolders:
        from vctl.ops.idle_holders import IdleHolders

        return IdleHolders(self.store, self.capacity, lambda cluster_id: self.ledger(cluster_id).withheld)

    def _coming_back(self, row: Row) -> str:
        """The end of a message: the resources that a job needs and that borrowers are giving back."""
        resources = rows.loads(row["resources"])
        called = self.capacity.coming_back(str(row["parent_cluster_id"]))
        return self._given_back(lease for lease in called if resources.keys() & lease.amounts.keys())

    @cached_property
    def _minimums(self) -> dict[str, BelowMinimum]:
        from vctl.ops.minimums import all_below_minimum

        return all_below_minimum(self.store)

    def _below(self, cluster_id: str) -> str:
        """The end of a message: the nearest cluster of a job that is below its minimum."""
        cluster = self.capacity.cluster(cluster_id)
        while cluster is not None and cluster.parent_id is not None:
            if (below := self._minimums.get(cluster.cluster_id)) is not None:
                return f"; {below.text}"
            cluster = self.capacity.cluster(cluster.parent_id)
        return ""

    def to_give_back(self, cluster_id: str) -> str:
        """The end of a message: the resources that the cluster of a running job must give back."""
        return self._given_back(self.capacity.to_give_back(cluster_id))

    def _given_back(self, called: Iterable[Lease]) -> str:
        loans = [
            f"{cluster_text(lease.borrower_id)} gives {amounts_text(lease.amounts)} back to"
            f" {cluster_text(lease.lender_id)} "
            + (
                f"by {timestamp(lease.expires_at)}, and what uses it then is ended"
                if lease.expires_at is not None and lease.expires_at > self.now
                else "as soon as what uses it has ended"
            )
            for lease in called
        ]
        return f"; {listed(loans, MOST_NAMED)}" if loans else ""

    def _limit(self, row: Row, parent_id: str) -> Refusal | None:
        from vctl.scheduler.limits import has_limit, reached

        policy = self._policy(parent_id)
        if (used := self.use) is not None:
            from vctl.scheduler.limits import least_held

            spec, entry = rows.spec(row["spec"]), rows.loads(row["entry"])
            requested = least_held(spec, entry, shares_parent=bool(row["shares_parent"]))
            if (refusal := used.refusal(parent_id, str(row["user"]), requested)) is not None:
                return refusal
        if not has_limit(policy):
            return None
        if parent_id not in self._running:
            self._running[parent_id] = job_views.running_by_user(self.store, parent_id)
        running = self._running[parent_id]
        return reached(policy, sum(running.values()), running.get(str(row["user"]), 0))

    @cached_property
    def use(self) -> LimitUse | None:
        """What running jobs have of that which users and clusters may have at most; None: they have no limits."""
        from vctl.store import limits

        if not limits.exist(self.store):
            return None
        from vctl.ops.kept_limits import use_of

        return use_of(self.store)

    def _policy(self, cluster_id: str) -> QueuePolicy:
        if cluster_id not in self._policies:
            self._policies[cluster_id] = settings.queue_of(self.store, cluster_id)
        return self._policies[cluster_id]

    def _age(self, row: Row) -> str:
        """The time since a verdict was stored, or since the last round of a scheduler if that was later."""
        if self._round_at is None:
            heartbeat = self.store.read_heartbeat()
            self._round_at = 0 if heartbeat is None else int(heartbeat["last_beat_ns"])
        seconds = max(0, self.now - max(int(row["judged_at"]), min(self._round_at, self.now))) / 1e9
        return f"evaluated {seconds:.0f} s ago"

    # ---- where counting does not decide: the search of the scheduler, on a ledger of this snapshot ----

    def _why_never(self, row: Row) -> str | None:
        key = row["parent_cluster_id"], row["shape"]
        if key not in self._never:
            self._never[key] = self._searched_never(rows.pending(row))
        return self._never[key]

    def _searched_never(self, job: PendingJob) -> str | None:
        from vctl.scheduler.feasibility import ever, with_machines

        ledger = with_machines(self.ledger(job.parent_id))
        if job.parent_id not in ledger.clusters:
            return None
        never = ever(ledger, job.parent_id, job.spec, job.entry)
        where = cluster_text(job.parent_id)
        return None if never is None else f"exceeds the capacity of {where}: {never.capacity}"

    def _has_place(self, row: Row) -> bool:
        from vctl.scheduler.gang_growth import why_no_place
        from vctl.scheduler.nominations import Nominations

        self._searches += 1
        if self._searches > MOST_SEARCHES:
            return False
        job = rows.pending(row)
        ledger = self.ledger(job.parent_id)
        nominated = Nominations(
            ledger,
            [nomination for nomination in self.capacity.nominations if nomination.job_id != job.job_id],
        )
        try:
            return (
                job.parent_id in ledger.clusters
                and why_no_place(ledger, job.parent_id, job.spec, job.entry) is None
            )
        finally:
            nominated.close()

    def ledger(self, cluster_id: str) -> Ledger:
        """The tree, as far as the work of a cluster can have something of it; read once."""
        from vctl.ops import situations

        if (top_id := situations.branch_of(self.store, cluster_id)) not in self._ledgers:
            self._ledgers[top_id] = situations.ledger(self.store, top_id)
        return self._ledgers[top_id]


def is_gate(reason: str | None) -> bool:
    """Whether a reason of ``gate`` keeps a job out of the queue; a preempted job is in the queue again."""
    return reason not in (None, jb.PREEMPTED)


AT_LIMIT = "the running members of its array are at the limit"
NAMED = 5
"""The most awaited jobs that a message names."""


def gate(store: Store, row: Row) -> tuple[str | None, str | None]:
    """Token and message of the gate of a pending job, else of its last preemption, else (None, None)."""
    token = gate_of(
        row["held"], row["waits_for"], row["begin_at"], row["closed"], row["attempt"], row["state_reason"],
        store.clock(),
    )  # fmt: skip
    match token:
        case jb.HELD:
            return token, "held until `vctl job release`"
        case jb.DEPENDENCY:
            return token, _awaited(store, row["job_id"])
        case jb.PREEMPTED:
            return token, row["message"]  # the cause is shown until the job runs again
        case jb.INSUFFICIENT:
            return token, row["message"]  # who holds it outside of vctl, as far as is known
        case jb.BACKOFF:
            cause = row["message"] if row["state_reason"] == jb.BACKOFF else None
            return token, cause or f"next try at {timestamp(row['begin_at'])}"
        case jb.BEGIN_TIME:
            return token, f"begins at {timestamp(row['begin_at'])}"
    return token, None if token is None else AT_LIMIT


def _places(store: Store, array_id: str) -> str | None:
    """Why a member of an array may not start yet, with numbers; None if the array has no limit."""
    places = arrays.places(store, array_id)
    if places is None:
        return None
    limit, run, following = places
    why = (
        AT_LIMIT
        if run + following >= limit
        else "the next round of the scheduler gives out the free places of its array"
    )
    beside = f" and {following} {'is' if following == 1 else 'are'} next" if following else ""
    return f"{why}: {run} run{'s' if run == 1 else ''}{beside}, at most {limit} may run at a time"


def _awaited(store: Store, job_id: int) -> str:
    awaited = dependencies.awaited(store, job_id, NAMED + 1)
    names = ", ".join(f"{row['condition']}:{row['awaited']}" for row in awaited[:NAMED])
    return f"waits for {names}{' …' if len(awaited) > NAMED else ''}"


def _opens(cluster: Cluster) -> str:
    return opens_at(cluster.cluster_id, 0 if cluster.booking is None else cluster.booking.begin_ns)


def _ends_with_booking(row: Row, parent: Row, now: int) -> str:
    """What to add for a job that may run longer than its cluster is booked; else nothing."""
    if rows.BOOKING not in parent["settings"] or (booking := rows.cluster(parent).booking) is None:
        return ""
    limit_ns = rows.in_ns(row["time_limit_s"])
    if limit_ns is not None and max(now, booking.begin_ns) + limit_ns <= booking.end_ns:
        return ""
    return f"; {STOPPED_WITH_BOOKING} {timestamp(booking.end_ns)}"


def _stopped(cluster_id: str) -> str:
    return f"{cluster_text(cluster_id)} admits no jobs until `vctl vc resume {cluster_id}`"
