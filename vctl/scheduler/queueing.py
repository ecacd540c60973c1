"""Queues: the pending jobs of one cluster by scheduling class, so that equal jobs are judged once.

A class that did not fit keeps its verdict until capacity came free that could help it (``reconsider`` in its cluster,
``regard`` elsewhere), the capacity of the cluster changed (``judge_capacity``), or its limits or those of
clusters around it (``forget_verdicts``). The policy changes the order, never what fits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from vctl.core.jobs import INFEASIBLE, INSUFFICIENT, PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import DEFAULT, FAIR, QueuePolicy
from vctl.core.values import replace
from vctl.scheduler.feasibility import FeasibilityJudge, could_help
from vctl.scheduler.heads import Candidates, Rest
from vctl.scheduler.needs import Needs
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.orders import ORDERS, OrderKey, order_key
from vctl.scheduler.reach import reach_of
from vctl.scheduler.reservations import Reservation, Shared
from vctl.scheduler.scheduling_class import Doubts, SchedulingClass, SubQueue, SubQueueKey, Verdict
from vctl.scheduler.upper_bound import UpperBound

MOST_FREED = 16
"""If something came free in more virtual nodes, it is not asked which classes may fit into any of them."""
MOST_LEFT = 64
"""The number of shapes without a waiting job whose places are remembered."""

if TYPE_CHECKING:
    from vctl.core.demand import Demand
    from vctl.scheduler.placement import Places
    from vctl.scheduler.preemption import Search, Snapshot


class Memo(NamedTuple):
    """That what the last scan of a queue has found holds, until something comes free or what it depends on changes."""

    stamp: object
    """What the scan depends on (``cycle``)."""
    due_ns: int | None
    """When it ends to hold although nothing has happened; None: never."""
    rest: Rest | None = None
    """Where it was cut; None: it came to the end."""
    edition: int | None = None
    """The edition of the ledger for which it holds, where others decide about the jobs, too; None: for any."""


class Queue:
    """Pending jobs of one parent cluster."""

    def __init__(self, parent_id: str, policy: QueuePolicy = DEFAULT) -> None:
        self.parent_id = parent_id
        self.policy = policy
        self.is_limited = False
        """Whether users have limits beside those of the policy."""
        self.jobs: dict[int, PendingJob] = {}
        self.users: Counter[str] = Counter()
        """User -> the number of jobs here."""
        self.shapes: dict[str, SchedulingClass] = {}
        self.doubts = Doubts()
        """Which of them may need a look."""
        self.needs, self.parts = Needs(), Needs()
        """The shapes by what their largest piece needs on a node, and any of their parts."""
        self._heads: list[tuple[OrderKey, SubQueue]] | None = None
        """The sub-queues by their first jobs; None: to be sorted again."""
        self.timed: set[int] = set()
        """Jobs with a begin time."""
        self.emptied: set[str] = set()
        """Wait keys with a reported reason whose last job has left since the last commit."""
        self.reported: dict[str, tuple[str, str]] = {}
        """Wait key -> (reason, message) that was reported last."""
        self.left: dict[str, tuple[Places, UpperBound]] = {}
        """Shape without a waiting job -> the places of its gangs and their count, for the next job of that shape."""
        self.kept: dict[int, Reservation] = {}
        """Reservations of the last round, by job."""
        self.shared: dict[int, Shared] = {}
        """Reservations of the last round that reach beyond this queue, by job."""
        self.outdated: set[int] = set()
        """The jobs whose shared reservation is to be found again: no job that it may bind came before the cut."""
        self.kept_at: object = None
        """The capacity of the cluster for which the reservations were checked."""
        self.feasibility = FeasibilityJudge(parent_id)
        self.demand: Demand | None = None
        """The demand that knows its shapes, except ``unnoted``: those that came or left since."""
        self.unnoted: dict[str, None] = {}
        self.judged_at: object = None
        """The capacity for which the verdicts distinguish ``Infeasible`` from ``InsufficientResources``."""
        self.nominations: dict[int, Nomination] = {}
        """Job -> the place that is reserved for it while others are ended for it."""
        self.growths = 0
        """The number of times that capacity came free."""
        self.times_nominated = 0
        """The number of times that the nominations changed."""
        self.snapshot: Snapshot | None = None
        self.search: Search | None = None
        """Preemption: the running jobs in the last snapshot, and the search to continue in the next round."""
        self.again_ns: int | None = None
        """When to scan the queue again, because a running job will have run long enough to be ended."""
        self.is_stale = False
        """Whether something came free since a scan was over, so that an earlier reserved start may be found."""
        self.improved: set[int] = set()
        """The jobs for which a reserved start was searched since a scan was over."""
        self.is_disturbed = False
        """Whether a scan that was cut has ignored a reservation, so that the others are to be confirmed."""
        self.memo: Memo | None = None
        """The last scan; None: the queue is scanned in the next round."""
        self.until_ns: int | None = None
        """When the last scan ends to hold, even if nothing else happens; None: it holds (``note_until``)."""

    @property
    def heads(self) -> Sequence[tuple[OrderKey, SubQueue]]:
        """The sub-queues by the keys of their first jobs, in the order of the queue where users do not count."""
        if self._heads is None:
            self._heads = sorted(
                (
                    (sub_queue.order[0], sub_queue)
                    for shape in self.shapes.values()
                    for sub_queue in shape.sub_queues.values()
                ),
                key=itemgetter(0),
            )
        return self._heads

    @property
    def first(self) -> OrderKey:
        """The key of the first job."""
        return self.heads[0][0]

    def put(self, job: PendingJob) -> None:
        """Add a job, or take over its new row (priority, hold)."""
        if job.job_id in self.jobs:
            self.drop(job.job_id)
        self.memo = self._heads = None
        self.jobs[job.job_id] = job
        self.users[job.user] += 1
        self._file(job)
        if job.begin_at_ns is not None:
            self.timed.add(job.job_id)

    def put_all(self, jobs: Mapping[int, PendingJob]) -> None:
        """Add many jobs at once, by number. None of them is in the queue yet."""
        self.memo = self._heads = None
        self.jobs.update(jobs)
        self.users.update(job.user for job in jobs.values())
        self.timed.update(job_id for job_id, job in jobs.items() if job.begin_at_ns is not None)
        self._file_all(jobs.values())

    def set_nomination(self, job_id: int, nomination: Nomination | None) -> None:
        """Set the nomination of a job; None: it has none."""
        job = self.jobs.get(job_id)
        if job is not None:
            self.drop(job_id)
        if nomination is not None:
            self.nominations[job_id] = nomination  # keeps its position: older nominations come first
        else:
            self.nominations.pop(job_id, None)
        if job is not None:
            self.put(job)
        self.times_nominated += 1
        self.memo = None
        for shape in self.shapes.values():
            shape.forget_nominations()

    def note_again(self, at_ns: int | None) -> None:
        """Scan this queue again at that time, even if nothing else happens."""
        if at_ns is not None:
            self.again_ns = at_ns if self.again_ns is None else min(self.again_ns, at_ns)
            self.note_until(at_ns)

    def note_until(self, at_ns: int) -> None:
        """Note that the scan finds something else from that time on, although nothing has happened."""
        self.until_ns = at_ns if self.until_ns is None else min(self.until_ns, at_ns)

    def _file(self, job: PendingJob) -> None:
        insort(self._sub_queue(job).order, order_key(job, self.policy))

    def _file_all(self, jobs: Iterable[PendingJob]) -> None:
        """File many jobs with one sort per sub-queue, which costs less than a search per job."""
        policy, key = self.policy, ORDERS[self.policy.order]
        sub_queues: dict[tuple[str, str, int, int], list[OrderKey]] = {}
        for job in jobs:
            alike = (job.shape, job.user, job.priority, job.job_id if job.job_id in self.nominations else 0)
            order = sub_queues.get(alike)  # equal in every property that a policy may look at
            if order is None:
                order = sub_queues[alike] = self._sub_queue(job).order
            order.append(key(job, policy))
        for order in {id(order): order for order in sub_queues.values()}.values():
            order.sort()

    def _sub_queue(self, job: PendingJob) -> SubQueue:
        """The sub-queue of a job; made for the first job in it."""
        shape = self.shapes.get(job.shape)
        if shape is None:
            left = self.left.pop(job.shape, None)
            known, count = ({}, UpperBound(job.spec)) if left is None else left
            shape = self.shapes[job.shape] = SchedulingClass(job, count, self.doubts, places=known)
            self.needs.put(job.shape, shape.count.largest)
            self.parts.put(job.shape, shape.count.least)
            self.unnoted[job.shape] = None
        sub_queue = shape.sub_queues.get(key := self._sub_queue_key(job))
        if sub_queue is None:
            sub_queue = shape.sub_queues[key] = SubQueue(job.shape, *key)
            shape.note_reported(is_reported=False)
            self.emptied.discard(self.wait_key(sub_queue))
        return sub_queue

    def drop(self, job_id: int, *, waits: bool = False) -> None:
        """Remove a job, if it is in the queue. ``waits``: its reason stays, because it has not started yet."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        self.memo = self._heads = None
        self.users[job.user] -= 1
        if not self.users[job.user]:
            del self.users[job.user]
        self.timed.discard(job_id)
        self.kept.pop(job_id, None)
        self.shared.pop(job_id, None)
        shape = self.shapes[job.shape]
        sub_queue = shape.sub_queues[self._sub_queue_key(job)]
        del sub_queue.order[bisect_left(sub_queue.order, order_key(job, self.policy))]
        if sub_queue.order:
            return
        del shape.sub_queues[self._sub_queue_key(job)]
        if not shape.sub_queues:
            del self.shapes[job.shape]
            self.doubts.drop(job.shape)
            self.needs.drop(job.shape)
            self.parts.drop(job.shape)
            self.unnoted[job.shape] = None
            if shape.places:
                if len(self.left) >= MOST_LEFT:
                    self.left.clear()
                self.left[job.shape] = shape.places, shape.count
        if not waits:
            self._forget_reason(sub_queue)

    def give_way(self, job: PendingJob) -> None:
        """Keep nothing for jobs behind one that had left its queue and waits again: it was reserved without that one.

        They get their reservations again, after it.
        """
        is_own = job.parent_id == self.parent_id
        for kept in (self.kept, self.shared):
            for job_id in list(kept):
                other = self.jobs[job_id]
                if (
                    order_key(job, self.policy) < order_key(other, self.policy)
                    if is_own
                    else (-job.priority, job.job_id) < (-other.priority, job_id)
                ):
                    del kept[job_id]
                    self.memo = None

    def note_start(self, job: PendingJob, others: Iterable[PendingJob]) -> None:
        """Note that a job has started that had left the queue before; ``others`` have left it and wait."""
        if job.shape in self.shapes and not self.limits_users:
            return
        alike = (one for one in others if one.parent_id == job.parent_id and one.shape == job.shape)
        key = self._sub_queue_key(job)
        if not any(self._sub_queue_key(one) == key for one in alike):
            self._forget_reason(SubQueue(job.shape, *key))

    def _forget_reason(self, sub_queue: SubQueue) -> None:
        """Forget the reason of a sub-queue, unless others still wait for it."""
        key, shape = self.wait_key(sub_queue), self.shapes.get(sub_queue.shape)
        if shape is None or not any(self.wait_key(other) == key for other in shape.sub_queues.values()):
            self._withdraw_reason(key)

    def arrange(self, policy: QueuePolicy, *, is_limited: bool = False) -> None:
        """Take over a new policy: order all jobs anew. What fits is the same as before, so the verdicts stay.

        ``is_limited``: users have limits beside those of the policy.
        """
        if policy == self.policy and is_limited == self.is_limited:
            return
        self.policy, self.is_limited = policy, is_limited
        self.shared.clear()
        self.kept.clear()
        self.search = self.snapshot = None  # victims are chosen by the policy
        self._heads, self.needs, self.parts = None, Needs(), Needs()
        self.doubts = replace(self.doubts, unreported={}, unsure={})
        before, self.shapes = self.shapes, {}
        self._file_all(self.jobs.values())
        for name, shape in self.shapes.items():
            if (was := before.get(name)) is not None:
                shape.judge(was.verdict)
                shape.judged_at, shape.stood_at, shape.places = was.judged_at, was.stood_at, was.places
        self.recall(self.reported)

    def recall(self, reported: Mapping[str, tuple[str, str]]) -> None:
        """Take over the reasons that were reported before; keys without a waiting job go to ``emptied``."""
        self.reported = dict(reported)
        for shape in self.shapes.values():
            shape.note_reported(is_reported=False)
        keys = {
            self.wait_key(sub_queue)
            for shape in self.shapes.values()
            for sub_queue in shape.sub_queues.values()
        }
        for key in reported.keys() - keys:
            self._withdraw_reason(key)

    def _withdraw_reason(self, key: str) -> None:
        if self.reported.pop(key, None) is not None:
            self.emptied.add(key)

    def wait_key(self, sub_queue: SubQueue) -> str:
        """The wait key of a sub-queue: the name under which the wait reason of its jobs is reported."""
        if not self.limits_users:
            return sub_queue.shape
        return f"{sub_queue.shape};user={sub_queue.user}"

    @property
    def limits_users(self) -> bool:
        """Whether a limit may keep back the jobs of one user and not those of another."""
        return self.is_limited or self.policy.max_running_per_user is not None

    @property
    def splits_users(self) -> bool:
        """Whether the jobs of each user have sub-queues of their own."""
        return self.policy.order == FAIR or self.limits_users

    def _sub_queue_key(self, job: PendingJob) -> SubQueueKey:
        policy = self.policy
        priority = job.priority if policy.preempts else 0
        winner = job.job_id if job.job_id in self.nominations else 0
        return (job.user if self.splits_users else "", priority, winner)

    def reconsider(self, ledger: Ledger, grown: Iterable[str]) -> None:
        """Note that capacity came free in these virtual nodes of its cluster, which cannot grow.

        Whether it helps a shape is asked when the turn comes to it (``has_verdict``).
        """
        slots = [vnode_id for vnode_id in grown if vnode_id in ledger.capacities]
        if not slots:
            return
        self.growths += 1
        self.doubts.note_freed(slots)
        if len(self.doubts.freed) > 2 * len(ledger.members[self.parent_id]):
            self.doubts.keep_freed(ledger.members[self.parent_id])
        if any(part[0] in slots for one in self.nominations.values() for part in one.pieces):
            for shape in self.shapes.values():
                shape.forget_nominations()

    def judge_capacity(self, ledger: Ledger) -> None:
        """Forget verdicts whose reason is wrong now: infeasible became feasible, or the other way round."""
        capacity = self.feasibility.capacity(ledger)
        if capacity == self.judged_at:
            return
        self.judged_at = capacity
        for shape in self.shapes.values():
            reported = shape.verdict
            if reported is not None and reported.reason in (INFEASIBLE, INSUFFICIENT):
                if (reported.reason == INFEASIBLE) != (
                    self.feasibility.why_never(ledger, shape.example) is not None
                ):
                    shape.judge(None)

    def can_help(self, ledger: Ledger, shape: SchedulingClass, slots: list[str]) -> bool:
        """Whether the free capacity of these virtual nodes of its cluster may help a class."""
        index = ledger.index(self.parent_id)
        if index.stamp in shape.places:
            return True
        if not could_help(ledger, self.parent_id, shape.example.spec, shape.example.entry, slots):
            return False
        return shape.count.is_met(shape.count.inside(index))  # else the free capacity is too small in total

    def has_verdict(self, ledger: Ledger, shape: SchedulingClass) -> bool:
        """Whether the verdict of a class holds: no capacity that may help came free, or others took it."""
        if shape.verdict is None:
            return False
        is_doubted = shape.is_doubted and reach_of(ledger, self.parent_id).may_hold(shape.count)
        if is_doubted or self.blocked(ledger, shape) is None:
            shape.note_reported(is_reported=False)
            return False
        shape.stood_at = self.doubts.frees
        return True

    def blocked(self, ledger: Ledger, shape: SchedulingClass) -> Verdict | None:
        """The verdict of a class; None if what came free in its cluster may help (elsewhere: ``is_doubted``)."""
        verdict = shape.verdict
        if verdict is None or not (freed := shape.freed):
            return verdict
        if verdict.valid_for == ledger.index(self.parent_id).stamp:
            return verdict
        return None if verdict.exhausted or self.can_help(ledger, shape, freed) else verdict

    def known_verdict(self, ledger: Ledger, shape: SchedulingClass) -> Verdict | None:
        """The verdict of a class; None if capacity that may help came free since."""
        return shape.verdict if self.has_verdict(ledger, shape) else None

    def to_look_at(self, ledger: Ledger) -> Collection[str]:
        """The shapes whose verdict may not hold, or was not reported for all of their jobs; and maybe others."""
        some: list[str] = []
        if self.doubts.regards:
            some += self.needs.within(reach_of(ledger, self.parent_id).largest_pieces)
        if freed := self.doubts.freed_since(self.doubts.known_at):
            free = (ledger.capacities[one].free for one in freed if one in ledger.capacities)
            some += self.parts.within(free) if len(freed) <= MOST_FREED else self.shapes
        return [*self.doubts.unreported, *some] if some else self.doubts.unreported

    def forget_verdicts(self) -> None:
        """Forget all verdicts and known places."""
        self.growths += 1
        self.memo = None
        self.left.clear()
        for shape in self.shapes.values():
            shape.forget()
            shape.places.clear()

    def regard(self, ledger: Ledger) -> None:
        """Judge the verdicts again after capacity came free elsewhere: where this cluster can grow from, or where
        something borrowed is idle.

        An uncertain verdict is forgotten. A certain one is doubted until it is found again; whether it stands is asked
        when the turn comes to its shape (``has_verdict``), so nothing has to be done here for each of them.
        """
        self.growths += 1
        self.doubts.regards += 1
        for name in list(self.shapes if self.nominations else self.doubts.unsure):
            self.shapes[name].forget()
        if self.policy.preempts:
            for shape in self.shapes.values():
                if not self.has_verdict(ledger, shape):
                    for sub_queue in shape.sub_queues.values():
                        sub_queue.no_victims = None

    def keeps_back(self, ledger: Ledger, sub_queue: SubQueue, binding: Sequence[Reservation]) -> bool:
        """Whether these reservations are known to leave too little free for a sub-queue."""
        if not sub_queue.is_blocked_by(binding):
            return False
        shape = self.shapes[sub_queue.shape]
        regards, frees = sub_queue.blocked_at
        if regards != self.doubts.regards and reach_of(ledger, self.parent_id).may_hold(shape.count):
            return False
        if frees == self.doubts.frees:
            return True
        is_proof = shape.verdict is None or not shape.verdict.exhausted
        return is_proof and not self.can_help(ledger, shape, self.doubts.freed_since(frees))

    def short(self, ledger: Ledger, now_ns: int, *, judged: bool) -> Iterator[PendingJob]:
        """An example of each class with a job that may start now and was told that there is too little for it.

        ``judged``: only classes for which nothing has come free since.
        """
        for shape in self.shapes.values():
            blocked = self.known_verdict(ledger, shape) if judged else None
            if judged and (blocked is None or blocked.reason != INSUFFICIENT):
                continue
            if any(
                self.reported.get(self.wait_key(sub_queue), ("", ""))[0] == INSUFFICIENT
                and any(Candidates(self.jobs, self.policy, sub_queue, now_ns))
                for sub_queue in shape.sub_queues.values()
            ):
                yield shape.example

    @property
    def reservations(self) -> Iterator[Reservation]:
        """What the last round has reserved for jobs here, for this queue and beyond it."""
        yield from self.kept.values()
        for shared in self.shared.values():
            yield shared.reservation

    def reserved_after(self, now_ns: int) -> Iterator[int]:
        """The reserved starts of the last round that are in the future."""
        for reservation in self.reservations:
            if reservation.start_ns is not None and reservation.start_ns > now_ns:
                yield reservation.start_ns

    def is_overdue(self, now_ns: int) -> bool:
        """Whether the reserved start of a job has come, and it has not started."""
        return any(one.is_due(now_ns) for one in self.reservations)

    def delayed(self) -> Iterator[PendingJob]:
        """Jobs with a begin time."""
        return (self.jobs[job_id] for job_id in self.timed)
