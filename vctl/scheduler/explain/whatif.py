"""What-if trials: would a waiting job or task start if one thing were different?

``trial`` runs the rounds on the changed ledger and queue; ``whatif_search`` looks for the changes that help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from vctl.core.clusters import Cluster, ClusterSpec, VNode
from vctl.core.jobs import INFEASIBLE, INSUFFICIENT, PendingJob
from vctl.core.ledger import Ledger
from vctl.core.limits import Limit
from vctl.core.nodes import Fence, Node
from vctl.core.tasks import PendingTask
from vctl.core.values import field, replace, value
from vctl.scheduler import task_queue
from vctl.scheduler.cycle import leaves_more
from vctl.scheduler.explain.trial import (
    Known,
    RunningHolder,
    Situation,
    TrialRounds,
    capacities_of,
    hand_over,
    settle,
    stop,
)
from vctl.scheduler.gang_growth import why_no_place
from vctl.scheduler.membership import join
from vctl.scheduler.plan import Plan, Start, Wait
from vctl.scheduler.queueing import Queue
from vctl.scheduler.task_rounds import verdict_on
from vctl.scheduler.victims import Victim

MOST_ROUNDS = 8
"""The most rounds of a trial: like a scheduler, a trial goes on at once after a full round."""
CLASSES_PER_UNIT = 50
MOST_WORK = 600
"""The budget of one question: a trial costs one unit, and more where the queue or the cluster is large."""
MOST_CLASSES = MOST_WORK * CLASSES_PER_UNIT
"""With more classes of jobs, one trial costs more than the budget."""


@value(frozen=True, slots=True)
class ProposedChange:
    """One change of the state: ``subject`` (cluster, node, job or resource) goes from ``old`` to ``new``.

    ``job`` and ``task``: the changed request. ``cluster`` and ``node``: new rows. ``stopped``: a running job to
    stop. ``joins``: whole nodes that the cluster takes from its parent.
    """

    kind: str
    subject: str = ""
    old: int | None = None
    new: int | None = None
    job: PendingJob | None = None
    cluster: Cluster | None = None
    node: Node | None = None
    fence: Fence | None = None
    """The fence around a device whose processes count no more."""
    stopped: RunningHolder | None = None
    joins: tuple[VNode, ...] = ()
    task: PendingTask | None = None
    limits: tuple[tuple[Limit, int], ...] = ()
    """Limits that keep the job back, and the amount that ``subject``, its user or a cluster, would have of each."""
    where: str = ""
    """``entry``, ``minimum``, ``group 0``, ``nodes of group 0``, ``whole``, ``task``, or the resource."""


NOTHING = ProposedChange("nothing")


def _copies(change: ProposedChange) -> bool:
    return bool(change.node or change.stopped or change.joins)  # a new row of a cluster is reverted instead


class Spent(Exception):
    """The budget of the question is used up."""


@value(frozen=True, slots=True)
class TrialOutcome:
    """The decision of the scheduler about the job: start it, or let it wait for a reason."""

    start: Start | None = None
    wait: Wait | None = None
    others: tuple[int, ...] = ()
    """Other jobs that would start, and may take the capacity that the job needs."""
    preempts: tuple[Victim, ...] = ()
    """Running jobs that would be ended for the job, which starts when they have gone."""
    starts: bool = False
    """Whether the job or task in question starts now."""
    tried: bool = True
    """False: the budget did not allow the trial, so nothing is known."""


def _copied(grown: Mapping[str, set[str]]) -> dict[str, set[str]]:
    return {cluster_id: set(ids) for cluster_id, ids in grown.items()}


@value(eq=False)
class Trials:
    """The trials of one question. Every trial leaves the ledger and the queues as they were.

    The question is whether ``job``, or ``task`` if given, starts. ``others``: running tasks of its cluster.
    """

    situation: Situation
    job: PendingJob
    budget: int = field(default_factory=lambda: MOST_WORK)
    known: Known | None = None
    task: PendingTask | None = None
    others: Sequence[RunningHolder] = ()
    origin: tuple[Trials, ProposedChange] | None = None
    """The trials before a first change, and that change."""

    def __post_init__(self) -> None:
        situation, job = self.situation, self.job
        self._queues: dict[str, Queue] = {}
        for waiting in situation.pending:
            if waiting.job_id != job.job_id:
                self._queues.setdefault(waiting.parent_id, Queue(waiting.parent_id)).put(waiting)
        self._passed: dict[str, dict[task_queue.SchedulingClass, task_queue.TaskVerdict]] = {}
        """Cluster -> shape of tasks -> the verdict of the last round."""
        passed = set(situation.passed)
        for task in situation.tasks:
            if task.task_id in passed and task.cluster_id in situation.ledger.clusters:
                of_cluster, shape = self._passed.setdefault(task.cluster_id, {}), task_queue.shape_of(task)
                if shape not in of_cluster:
                    of_cluster[shape] = verdict_on(situation.ledger, task)
        self._price = 1 + sum(len(queue.shapes) for queue in self._queues.values()) // CLASSES_PER_UNIT
        self.budget = 0 if situation.is_crowded else self.budget
        self._copy_price = 1 + len(situation.ledger.vnodes) // 1000

    def starts(self, change: ProposedChange = NOTHING) -> bool:
        """Whether the job or task would start now. Raises Spent if the budget is used up.

        After a first change it has to start however fast the second one follows: once the scheduler is at rest again,
        and before it has seen the first.
        """
        if not (self._has_place(change) and self.outcome(change).starts):
            return False
        if self.origin is None:
            return True
        trials, first = self.origin
        if change.stopped is not None and all(
            holder.job_id != change.stopped.job_id for holder in trials.situation.running
        ):
            return False  # it starts only between the two
        trials.budget = self.budget
        try:
            return trials.outcome(change, first=first).starts
        finally:
            self.budget = trials.budget

    def _has_place(self, change: ProposedChange) -> bool:
        """Whether the job would have a place if nothing else waited: without one, no round can start it.

        This costs much less than rounds, in which all that waits is tried.
        """
        if self.task is not None:
            return True
        self.budget -= self._copy_price
        if self.budget < 0:
            raise Spent
        job = change.job or self.job
        with _changed(self.situation.ledger, change) as ledger:
            if change.stopped is not None:
                stop(ledger, change.stopped)
                settle(ledger)
            before, withheld, ledger.withheld = ledger.grown, ledger.withheld, {}
            ledger.grown = {}
            with ledger.bookings_in_force(()):  # it may be over before they begin
                refusal = why_no_place(ledger, job.parent_id, job.spec, job.entry)
            ledger.grown, ledger.withheld = before, withheld
        return refusal is None or refusal.exhausted

    def after(self, change: ProposedChange) -> Trials:
        """Trials in the state in which a scheduler rests after a change, with the rest of the budget. Raises Spent."""
        self._pay(change)
        ledger, job = self.situation.ledger.copy(), change.job or self.job
        known = None if change.cluster is not None else self.known
        ledger.grown = {} if known is None else _copied(known.grown)
        _make(ledger, change)
        with self._waiting(job, self.task) as situation:
            trial = TrialRounds(situation, ledger, self._queues, known, self._passed)
            for _ in self._plans(trial, job, [change]):
                pass
            rested, known = trial.rested(situation), self._learn(ledger)
            trial.let_go()
        return Trials(rested, job, budget=self.budget, known=known, origin=(self, change))

    def outcome(
        self, change: ProposedChange = NOTHING, *, first: ProposedChange = NOTHING, preempts: bool = False
    ) -> TrialOutcome:
        """The decision about the job or task; with ``preempts`` also the jobs to end for it. Raises Spent.

        ``first``: another change that is made at once with it.
        """
        self._pay(first, change)
        if self.known is not None:
            self.situation.ledger.grown = _copied(self.known.grown)
        job, task = change.job or first.job or self.job, change.task or self.task
        with self._waiting(job, task) as situation, _changed(situation.ledger, first, change) as ledger:
            return self._rounds(situation, ledger, job, task, [first, change], preempts=preempts)

    def _pay(self, *changes: ProposedChange) -> None:
        self.budget -= self._price + self._copy_price * any(map(_copies, changes))
        if self.budget < 0:
            raise Spent

    @contextmanager
    def _waiting(self, job: PendingJob, task: PendingTask | None) -> Iterator[Situation]:
        """The situation in which this job or task waits, and nothing else of the one in question."""
        situation = self.situation
        if task is not None and self.task is not None:
            others = [waiting for waiting in situation.tasks if waiting.task_id != self.task.task_id]
            situation = replace(situation, tasks=[*others, task])
        else:
            self._queues.setdefault(job.parent_id, Queue(job.parent_id)).put(job)
        self._prepare(job)
        try:
            yield situation
        finally:
            if task is None:
                self._queues[job.parent_id].drop(job.job_id)

    def _prepare(self, job: PendingJob) -> None:
        """Give the queues what the last round has left to the next one, under the policies before the change.

        The job in question has no reservation any more if its row has changed.
        """
        hand_over(self.situation, self._queues, None if job == self.job else job.job_id)
        for key in _wait_keys(job) if job.parent_id in self._queues else ():
            self._queues[job.parent_id].reported.pop(key, None)  # so that the round tells it

    def _is_new(self, work: PendingJob | PendingTask) -> bool:
        """Whether a job or task is submitted in place of the one in question."""
        if isinstance(work, PendingTask):
            return self.task is not None and work.task_id != self.task.task_id
        return work.job_id != self.job.job_id

    def _plans(
        self,
        trial: TrialRounds,
        work: PendingJob | PendingTask,
        changes: Sequence[ProposedChange],
        *,
        preempts: bool = False,
    ) -> Iterator[Plan]:
        """Run rounds until nothing more starts, as a scheduler does, which is faster than whoever makes the change.

        Only then end what is ``stopped``, because a stop takes time, or add the job or task that is submitted again
        after the other one was stopped. Yields each plan before it is carried out.
        """
        if late := self._is_new(work):
            trial.withdraw(work)
        holders = [change.stopped for change in changes if change.stopped is not None]
        for holder in holders:
            trial.running.leave(holder.job_id)
        for _ in range(MOST_ROUNDS):
            plan = trial.decide(preempts=preempts)
            yield plan
            trial.begin(plan)
            if leaves_more(plan, plan.proposed) or (self.task is not None and plan.task_starts):
                continue
            if holders:
                for holder in holders:
                    trial.stop(holder)
                holders = []
            elif late:
                trial.submit(work)
                late = False
            else:
                return

    def _rounds(
        self, situation: Situation, ledger: Ledger, job: PendingJob, task: PendingTask | None,
        changes: Sequence[ProposedChange], *, preempts: bool,
    ) -> TrialOutcome:  # fmt: skip
        wait, victims = None, tuple[Victim, ...]()
        has_other = any(change.cluster is not None for change in changes)
        is_calm = task is None and not has_other and not any(map(_copies, changes))
        trial = TrialRounds(situation, ledger, self._queues, None if has_other else self.known, self._passed)
        try:
            for plan in self._plans(trial, task or job, changes, preempts=preempts):
                is_calm = is_calm and not (plan.preempts or plan.starts or plan.task_starts)
                if task is not None and any(
                    started.task.task_id == task.task_id for started in plan.task_starts
                ):
                    return TrialOutcome(starts=True)
                for start in plan.starts:
                    if start.job.job_id == job.job_id:
                        return TrialOutcome(start, starts=True)
                wait = next(
                    (
                        new
                        for new in plan.waits
                        if new.parent_id == job.parent_id and new.shape in _wait_keys(job)
                    ),
                    wait,
                )
                ended = [choice.victims for choice in plan.preempts if choice.job.job_id == job.job_id]
                victims = ended[0] if ended else victims
            if is_calm:
                self.known = self._learn(ledger)
            others = tuple(started.job.job_id for started in trial.done if isinstance(started, Start))
            return TrialOutcome(None, wait, others, victims)
        finally:
            trial.take_back()

    def _learn(self, ledger: Ledger) -> Known | None:
        """The verdicts of a round without starts, for the other trials; None with nominations."""
        if self.situation.nominations:
            return None
        verdicts = {
            (parent_id, key): verdict._replace(valid_for=None)  # other ledgers have other stamps
            for parent_id, queue in self._queues.items()
            for key, shape in queue.shapes.items()
            if (verdict := queue.known_verdict(ledger, shape)) is not None
            and verdict.reason in (INFEASIBLE, INSUFFICIENT)
            and not verdict.exhausted
        }
        return Known(verdicts, capacities_of(ledger, self._queues), {})


def task_trials(situation: Situation, task: PendingTask, others: Sequence[RunningHolder] = ()) -> Trials:
    """Trials of the question whether a task starts; ``others``: running tasks of its cluster."""
    nobody = PendingJob(0, "", task.cluster_id, "", ClusterSpec(), {})
    return Trials(situation, nobody, task=task, others=others)


def _wait_keys(job: PendingJob) -> tuple[str, str]:
    """The keys of what a round says about a job: its shape, or its user's jobs of that shape."""
    return job.shape, f"{job.shape};user={job.user}"


@contextmanager
def _changed(ledger: Ledger, *changes: ProposedChange) -> Iterator[Ledger]:
    """The ledger with changes, for the block: a new row of a cluster is reverted, else a copy is changed."""
    ledger = ledger.copy() if any(map(_copies, changes)) else ledger
    before = [ledger.clusters[change.cluster.cluster_id] for change in changes if change.cluster is not None]
    limits = ledger.limits
    for change in changes:
        _make(ledger, change)
    try:
        yield ledger
    finally:
        ledger.limits = limits
        for cluster in before:
            ledger.put_cluster(cluster)


def _make(ledger: Ledger, change: ProposedChange) -> None:
    if change.node is not None:
        ledger.put_node(change.node)
    if change.limits:
        raised = (replace(limit, name=change.subject, amount=amount) for limit, amount in change.limits)
        ledger.limits = ledger.limits.with_(*raised)
    if change.cluster is not None:
        ledger.put_cluster(change.cluster)
        join(ledger, change.cluster.cluster_id, change.joins)
    if _copies(change):
        settle(ledger)
