"""Trying things on a copy of the state: would this job start if one thing were different?

A trial is the scheduler's own ``decide`` on a changed ledger and queue; what it says is what the scheduler would do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from vctl.core.clusters import Cluster
from vctl.core.jobs import INFEASIBLE, INSUFFICIENT, PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.queue_policy import DEFAULT, MAKESPAN
from vctl.core.tasks import PendingTask
from vctl.scheduler.cycle import MOST_STARTS, decide
from vctl.scheduler.foresight import in_plan
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.orders import order_key
from vctl.scheduler.plan import Plan, Start, Wait, apply, revert
from vctl.scheduler.plan_tasks import TaskStart, apply_task, revert_task
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.victims import Victim

MOST_ROUNDS = 8
"""A scheduler goes on at once after a full round; a job that would start later than this is not counted as started."""
MOST_SEARCHED = 20_000
"""Steps of the search for jobs to end, in one trial: it does not go on later."""
MOST_WORK = 600
"""Work units of one question; a trial costs one, and more where the queue or the cluster is large."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that runs: what has to go when it is stopped. ``cluster_id`` is None when it shares its parent's."""

    job_id: int
    submission_id: str
    priority: int
    cluster_id: str | None
    run_ids: tuple[str, ...]
    row: RunningJob | None = None
    """As the scheduler counts it."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A state to try things on. ``pending`` is the queue: no held jobs but the one in question."""

    ledger: Ledger
    pending: Sequence[PendingJob]
    running: Sequence[Holder] = ()
    tasks: Sequence[PendingTask] = ()
    now_ns: int = 0
    leaving: Collection[int] = ()
    """Running jobs that are being ended."""
    nominations: Sequence[Nomination] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is different; ``subject`` (a cluster, a node, a job, a resource) goes from ``old`` to ``new``.

    ``job`` is the job as it would be asked for, ``clusters`` and ``nodes`` are new rows, ``gone`` are running jobs
    that have been stopped.
    """

    kind: str
    subject: str = ""
    old: int | None = None
    new: int | None = None
    job: PendingJob | None = None
    cluster: Cluster | None = None
    node: Node | None = None
    gone: Holder | None = None
    task: PendingTask | None = None
    where: str = ""
    """Which part of the request is meant: ``entry``, ``minimum``, ``group 0``, ``nodes of group 0``, ``whole``."""


NOTHING = Change("nothing")


def ahead_of(situation: Situation, job: PendingJob) -> list[PendingJob]:
    """Who is before a job in its queue by the policy of its cluster, the next one first."""
    parent = situation.ledger.clusters.get(job.parent_id)
    policy = DEFAULT if parent is None else parent.queue
    queued = [one for one in situation.pending if one.parent_id == job.parent_id]
    if policy.order == MAKESPAN:
        queued = in_plan(situation.ledger, job.parent_id, queued, running_of(situation), situation.now_ns)
        job = next((one for one in queued if one.job_id == job.job_id), job)
    place = order_key(job, policy)
    before = [(key, one) for one in queued if (key := order_key(one, policy)) < place]
    return [one for _, one in sorted(before, key=lambda item: item[0])]


def running_of(situation: Situation) -> Running:
    """The running jobs of a situation, as the scheduler counts them."""
    return Running(holder.row for holder in situation.running if holder.row is not None)


class Spent(Exception):
    """The work that one question may cost is used up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the scheduler would do with the job: start it so, or let it wait for this reason."""

    start: Start | None
    wait: Wait | None
    others: tuple[int, ...] = ()
    """Other jobs that would start, and may be in its way."""
    preempts: tuple[Victim, ...] = ()
    """Running jobs that would be ended for it: it does not start now, but when they have gone."""


@dataclass(frozen=True, slots=True)
class Known:
    """Verdicts on waiting shapes by (cluster, shape): each stands but where ``grown`` could help.

    Changes only add to what there is, so what a trial has to judge is what its own change could help.
    """

    verdicts: Mapping[tuple[str, str], tuple[str, str]]
    capacity: Mapping[str, object]
    """Cluster -> its capacity then: with more, what was never possible may be."""
    grown: Mapping[str, set[str]]

    def grown_since(self) -> dict[str, set[str]]:
        """A copy, to be used up by a round."""
        return {cluster_id: set(ids) for cluster_id, ids in self.grown.items()}

    def tell(self, ledger: Ledger, queues: Mapping[str, Queue]) -> None:
        """Give the queues what is known."""
        capacities = _capacities(ledger, queues)
        for (parent_id, key), told in self.verdicts.items():
            queue = queues.get(parent_id)
            shape = None if queue is None else queue.shapes.get(key)
            if queue is None or shape is None or parent_id not in capacities:
                continue
            if told[0] == INSUFFICIENT:
                queue.never[key] = (capacities[parent_id], None)
            elif capacities[parent_id] != self.capacity.get(parent_id):
                continue
            shape.blocked = told
        for parent_id, capacity in capacities.items():
            queues[parent_id].judged_at = (capacity, ledger.may_gain_nodes)


def _capacities(ledger: Ledger, queues: Mapping[str, Queue]) -> dict[str, object]:
    return {
        parent_id: queue.capacity(ledger)
        for parent_id, queue in queues.items()
        if parent_id in ledger.clusters
    }


class Trials:
    """Runs the scheduler on changed states; every trial leaves ledger and queues as they were."""

    def __init__(
        self, situation: Situation, job: PendingJob, *, most: int = MOST_WORK, known: Known | None = None
    ) -> None:
        self.situation = situation
        self.job = job
        self.left = most
        self.known = known
        self._queues: dict[str, Queue] = {}
        for waiting in situation.pending:
            if waiting.job_id != job.job_id:
                self._queues.setdefault(waiting.parent_id, Queue(waiting.parent_id)).put(waiting)
        self._price = 1 + sum(len(queue.shapes) for queue in self._queues.values()) // 50
        self._copy_price = 1 + len(situation.ledger.vnodes) // 1000

    def starts(self, change: Change) -> bool:
        """Whether the job would start now. Raises Spent when too much has been tried already."""
        return self.outcome(change).start is not None

    def after(self, change: Change) -> Trials:
        """Trials in the state that a change leads to, with what is left to spend."""
        now = self.situation
        ledger = now.ledger
        known = None if change.cluster is not None else self.known
        if change.node is not None or change.gone is not None or change.cluster is not None:
            ledger = ledger.copy()
            ledger.grown = {} if known is None else known.grown_since()
        if change.node is not None:
            ledger.put_node(change.node)
        if change.cluster is not None:
            ledger.put_cluster(change.cluster)
        running = now.running
        if change.gone is not None:
            stop(ledger, change.gone)
            running = [one for one in running if one.job_id != change.gone.job_id]
        known = known and Known(
            known.verdicts, known.capacity, {one: set(ids) for one, ids in ledger.grown.items()}
        )
        situation = replace(now, ledger=ledger, running=running)
        return Trials(situation, change.job or self.job, most=self.left, known=known)

    def outcome(self, change: Change = NOTHING, *, preempts: bool = False) -> Outcome:
        """What the scheduler would do with the job, and why; with ``preempts`` also the jobs that it would end."""
        job = change.job or self.job
        with self.state(change) as ledger, self._queued(job):
            return self._rounds(ledger, job, change, preempts=preempts)

    @contextmanager
    def state(self, change: Change) -> Iterator[Ledger]:
        """The ledger with a change, paid for. Raises Spent when too much has been tried already."""
        copies = change.node is not None or change.gone is not None
        self.left -= self._price + self._copy_price * copies
        if self.left < 0:
            raise Spent
        if self.known is not None:
            self.situation.ledger.grown = self.known.grown_since()
        with _changed(self.situation.ledger, change) as ledger:
            yield ledger

    def trial(self, situation: Situation, ledger: Ledger, change: Change = NOTHING) -> Trial:
        """Rounds of the scheduler in a state, to be taken back."""
        return Trial(situation, ledger, self._queues, None if change.cluster is not None else self.known)

    @contextmanager
    def _queued(self, job: PendingJob) -> Iterator[None]:
        queue = self._queues.setdefault(job.parent_id, Queue(job.parent_id))
        queue.put(job)
        try:
            yield
        finally:
            queue.drop(job.job_id)

    def _rounds(self, ledger: Ledger, job: PendingJob, change: Change, *, preempts: bool) -> Outcome:
        """Round after round until nothing more starts; only then ``gone`` is over, as a stop takes its time."""
        trial, gone = self.trial(self.situation, ledger, change), change.gone
        wait: Wait | None = None
        victims: tuple[Victim, ...] = ()
        is_calm = change.node is None and change.cluster is None and change.gone is None
        try:
            for _ in range(MOST_ROUNDS):
                plan = trial.decide(preempts=preempts)
                is_calm = is_calm and not (plan.preempts or plan.starts or plan.task_starts)
                for start in plan.starts:
                    if start.job.job_id == job.job_id:
                        return Outcome(start, None)
                wait = next((one for one in plan.waits if _is_of(one, job)), wait)
                victims = next(
                    (one.victims for one in plan.preempts if one.job.job_id == job.job_id), victims
                )
                trial.begin(plan)
                if len(plan.starts) + len(plan.task_starts) >= MOST_STARTS or plan.tasks_deferred:
                    continue
                if gone is None:
                    break
                trial.end(gone)
                gone = None
            if is_calm:
                self.known = self._learn(ledger)
            return Outcome(None, wait, trial.begun, victims)
        finally:
            trial.take_back()

    def _learn(self, ledger: Ledger) -> Known | None:
        """Nothing starts as things are: what was found of the shapes that wait holds in all other trials."""
        if self.situation.nominations:
            return None
        verdicts = {
            (parent_id, key): shape.blocked
            for parent_id, queue in self._queues.items()
            for key, shape in queue.shapes.items()
            if shape.blocked is not None
            and shape.blocked[0] in (INFEASIBLE, INSUFFICIENT)
            and not shape.exhausted
        }
        return Known(verdicts, _capacities(ledger, self._queues), {})


def _is_of(wait: Wait, job: PendingJob) -> bool:
    """Whether a reason is the job's: told for its shape, or for its user's jobs of that shape."""
    return wait.parent_id == job.parent_id and wait.shape in (job.shape, f"{job.shape};user={job.user}")


class Trial:
    """Rounds of the scheduler on a ledger and queues, taken back at the end."""

    def __init__(
        self, situation: Situation, ledger: Ledger, queues: dict[str, Queue], known: Known | None = None
    ) -> None:
        self.now_ns = situation.now_ns
        self.ledger = ledger
        self.queues = queues
        self.running = running_of(situation)
        for one in situation.running:
            for run_id in one.run_ids if one.row is not None else ():
                if one.row is not None and run_id != one.row.run_id:
                    self.running.put_task(one.job_id, run_id)
        for job_id in situation.leaving:
            self.running.leave(job_id)
        self.tasks: dict[str, TaskQueue] = {}
        for task in situation.tasks:
            self.tasks.setdefault(task.cluster_id, TaskQueue(task.cluster_id)).put(task)
        self.done: list[Start | TaskStart] = []
        for queue in queues.values():
            queue.forget_verdicts()
            for job_id in list(queue.nominations):
                queue.set_nomination(job_id, None)
        if known is not None:
            known.tell(ledger, queues)
        for nomination in situation.nominations:
            if nomination.parent_id in queues:
                queues[nomination.parent_id].set_nomination(nomination.job_id, nomination)
        for queue in queues.values():
            queue.told.clear()
            queue.kept.clear()
            queue.shared.clear()

    @property
    def begun(self) -> tuple[int, ...]:
        """The jobs that have been started."""
        return tuple(one.job.job_id for one in self.done if isinstance(one, Start))

    def decide(self, *, preempts: bool) -> Plan:
        """One round."""
        return decide(
            self.ledger, self.queues, self.tasks,
            now_ns=self.now_ns, running=self.running, preempts=preempts, search_steps=MOST_SEARCHED,
        )  # fmt: skip

    def begin(self, plan: Plan) -> None:
        """Carry out what a round decided."""
        for task in plan.task_starts:
            apply_task(self.ledger, task, task.run_id)
            self.tasks[task.task.cluster_id].drop(task.task.task_id)
            self.done.append(task)
        for start in plan.starts:
            job = start.job
            apply(self.ledger, start)
            self.queues[job.parent_id].drop(job.job_id)
            self.queues[job.parent_id].nominations.pop(job.job_id, None)
            self.running.put(RunningJob.begun(job, start.cluster_id, start.run_id, self.now_ns))
            self.done.append(start)

    def end(self, job: Holder) -> None:
        """A running job is over."""
        stop(self.ledger, job)
        self.running.drop(job.job_id)

    def take_back(self) -> None:
        """Leave ledger and queues as they were."""
        for one in reversed(self.done):
            if isinstance(one, Start):
                revert(self.ledger, one)
                self.queues[one.job.parent_id].put(one.job)
            else:
                revert_task(self.ledger, one)
        self.ledger.grown.clear()  # what the reverts gave back was never gone


@contextmanager
def _changed(ledger: Ledger, change: Change) -> Iterator[Ledger]:
    """The ledger with the change: a cluster's new row is taken back afterwards, for all else a copy is changed."""
    if change.node is not None or change.gone is not None:
        ledger = ledger.copy()
        if change.node is not None:
            ledger.put_node(change.node)
    if change.cluster is None:
        yield ledger
        return
    before = ledger.clusters[change.cluster.cluster_id]
    ledger.put_cluster(change.cluster)
    try:
        yield ledger
    finally:
        ledger.put_cluster(before)


def stop(ledger: Ledger, job: Holder) -> None:
    """Take a running job with everything in it out of a ledger."""
    for run_id in job.run_ids:
        ledger.discharge(run_id)
    if job.cluster_id is not None:
        _remove(ledger, job.cluster_id)


def _remove(ledger: Ledger, cluster_id: str) -> None:
    for below in list(ledger.subclusters.get(cluster_id, ())):
        _remove(ledger, below)
    ledger.remove_cluster(cluster_id)
