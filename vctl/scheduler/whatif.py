"""What-if trials: would a waiting job or task start if one thing were different?

A trial runs the scheduler's own ``decide`` on a changed ledger and queue, so it decides like the scheduler.
``whatif_search`` looks for the changes that help.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vctl.core.clusters import Cluster, ClusterSpec, VNode
from vctl.core.jobs import INFEASIBLE, INSUFFICIENT, PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.queue_policy import QueuePolicy
from vctl.core.tasks import PendingTask
from vctl.core.values import field, replace, value
from vctl.scheduler.cycle import decide, leaves_more
from vctl.scheduler.fairness import Usage
from vctl.scheduler.membership import join
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.plan import Plan, Start, TaskStart, Wait, apply, revert
from vctl.scheduler.queueing import Queue
from vctl.scheduler.replacement import replace_dead
from vctl.scheduler.reservations import Reservation
from vctl.scheduler.running import Running
from vctl.scheduler.scheduling_class import Verdict
from vctl.scheduler.shared_reservations import Shared
from vctl.scheduler.task_queue import Turns, queues_of
from vctl.scheduler.victims import Victim

MOST_ROUNDS = 8
"""The most rounds of a trial: like a scheduler, a trial goes on at once after a full round."""
MOST_ARRIVALS = 16
"""The most jobs of which each is let in by itself to find its reservation."""
MOST_SEARCHED = 20_000
"""The steps of the search for victims in one round of a trial."""
MOST_WORK = 600
"""The budget of one question: a trial costs one unit, and more where the queue or the cluster is large."""


@value(frozen=True, slots=True)
class Holder:
    """A running job (or task) and its runs. ``cluster_id`` None: it shares its parent's cluster."""

    job_id: int
    submission_id: str
    priority: int
    cluster_id: str | None
    run_ids: tuple[str, ...]
    row: RunningJob | None = None
    """The row of the job as the scheduler knows it."""


@value(frozen=True, slots=True)
class Situation:
    """The state for trials. ``pending``: the queued jobs, without held ones except the job in question."""

    ledger: Ledger
    pending: Sequence[PendingJob]
    running: Sequence[Holder] = ()
    tasks: Sequence[PendingTask] = ()
    turns: Mapping[str, Turns] = field(default_factory=dict)
    """Cluster -> the turns of the classes of its tasks, as far as these run."""
    now_ns: int = 0
    leaving: Collection[int] = ()
    """Running jobs that are being ended."""
    nominations: Sequence[Nomination] = ()
    usage: Usage | None = None
    """The past use and the lag of members, as of ``now_ns``: a trial takes turns by the shares of a round."""


@value(frozen=True, slots=True)
class Change:
    """One change of the state: ``subject`` (cluster, node, job or resource) goes from ``old`` to ``new``.

    ``job`` and ``task``: the changed request. ``cluster`` and ``node``: new rows. ``gone``: a running job to
    stop. ``joins``: whole nodes that the cluster takes from its parent.
    """

    kind: str
    subject: str = ""
    old: int | None = None
    new: int | None = None
    job: PendingJob | None = None
    cluster: Cluster | None = None
    node: Node | None = None
    gone: Holder | None = None
    joins: tuple[VNode, ...] = ()
    task: PendingTask | None = None
    where: str = ""
    """``entry``, ``minimum``, ``group 0``, ``nodes of group 0``, ``whole``, ``task``, or the resource."""


NOTHING = Change("nothing")


def _copies(change: Change) -> bool:
    return bool(change.node or change.gone or change.joins)  # a new row of a cluster is reverted instead


def running_of(situation: Situation) -> Running:
    """The running jobs of a situation as the scheduler knows them."""
    return Running(holder.row for holder in situation.running if holder.row is not None)


class Spent(Exception):
    """The budget of the question is used up."""


@value(frozen=True, slots=True)
class Outcome:
    """The decision of the scheduler about the job: start it, or let it wait for a reason."""

    start: Start | None = None
    wait: Wait | None = None
    others: tuple[int, ...] = ()
    """Other jobs that would start, and may take the capacity that the job needs."""
    preempts: tuple[Victim, ...] = ()
    """Running jobs that would be ended for the job, which starts when they have gone."""
    starts: bool = False
    """Whether the job or task in question starts now."""


@value(frozen=True, slots=True)
class Known:
    """Verdicts on waiting shapes by (cluster, shape). Each holds unless ``grown`` could help the shape.

    A change only adds capacity, so a trial judges only the shapes that its change could help.
    """

    verdicts: Mapping[tuple[str, str], Verdict]
    capacity: Mapping[str, object]
    """Cluster -> its capacity for these verdicts: with another one an infeasible shape may be feasible."""
    grown: Mapping[str, set[str]]

    def pass_on(self, ledger: Ledger, queues: Mapping[str, Queue]) -> None:
        """Give the verdicts to the queues."""
        capacities = _capacities(ledger, queues)
        for (parent_id, key), verdict in self.verdicts.items():
            queue = queues.get(parent_id)
            shape = None if queue is None else queue.shapes.get(key)
            if queue is None or shape is None or parent_id not in capacities:
                continue
            if verdict[0] == INSUFFICIENT:
                queue.feasibility.never[key] = (capacities[parent_id], None)
            elif capacities[parent_id] != self.capacity.get(parent_id):
                continue
            shape.judge(verdict)
        for parent_id, capacity in capacities.items():
            queues[parent_id].judged_at = capacity


@value(frozen=True, slots=True)
class Kept:
    """The policy and the reservations of one queue."""

    policy: QueuePolicy
    own: Mapping[int, Reservation] = field(default_factory=dict)
    shared: Mapping[int, Shared] = field(default_factory=dict)


def _capacities(ledger: Ledger, queues: Mapping[str, Queue]) -> dict[str, object]:
    return {name: one.feasibility.capacity(ledger) for name, one in queues.items() if name in ledger.clusters}


def _copied(grown: Mapping[str, set[str]]) -> dict[str, set[str]]:
    return {cluster_id: set(ids) for cluster_id, ids in grown.items()}


@dataclass(eq=False)
class Trials:
    """The trials of one question. Every trial leaves the ledger and the queues as they were.

    The question is whether ``job``, or ``task`` if given, starts. ``others``: running tasks of its cluster.
    """

    situation: Situation
    job: PendingJob
    left: int = MOST_WORK
    known: Known | None = None
    task: PendingTask | None = None
    others: Sequence[Holder] = ()

    def __post_init__(self) -> None:
        situation, job = self.situation, self.job
        self._kept: dict[str, Kept] | None = None
        """Queue -> the reservations that a scheduler has made in the state before the change."""
        self._queues: dict[str, Queue] = {}
        for waiting in situation.pending:
            if waiting.job_id != job.job_id:
                self._queues.setdefault(waiting.parent_id, Queue(waiting.parent_id)).put(waiting)
        self._price = 1 + sum(len(queue.shapes) for queue in self._queues.values()) // 50
        self._copy_price = 1 + len(situation.ledger.vnodes) // 1000

    def starts(self, change: Change = NOTHING) -> bool:
        """Whether the job or task would start now. Raises Spent if the budget is used up."""
        return self.outcome(change).starts

    def after(self, change: Change) -> Trials:
        """Trials in the state after a change, with the rest of the budget."""
        now, ledger = self.situation, self.situation.ledger
        known = None if change.cluster is not None else self.known
        if _copies(change) or change.cluster is not None:
            ledger = ledger.copy()
            ledger.grown = {} if known is None else _copied(known.grown)
            if change.gone is not None:
                stop(ledger, change.gone)
            _make(ledger, change)
        gone = None if change.gone is None else change.gone.job_id
        running = [one for one in now.running if one.job_id != gone]
        tasks = [one for one in now.tasks if one.job_id != gone]
        known = known and replace(known, grown=_copied(ledger.grown))
        situation = replace(now, ledger=ledger, running=running, tasks=tasks)
        return Trials(situation, change.job or self.job, left=self.left, known=known)

    def outcome(self, change: Change = NOTHING, *, preempts: bool = False) -> Outcome:
        """The decision about the job or task; with ``preempts`` also the jobs to end for it. Raises Spent.

        Which reservations a scheduler has depends on what was there before, and no table tells that. So a start counts
        only if it happens with those that the waiting jobs would have got one by one, and with those of a scheduler
        that has just begun.
        """
        self.left -= self._price + self._copy_price * _copies(change)
        if self.left < 0:
            raise Spent
        if self._kept is None:
            self._reserve()
        found = self._tried(change, self._kept, preempts=preempts)
        if found.starts and any(one.own or one.shared for one in (self._kept or {}).values()):
            return self._tried(change, {}, preempts=preempts)
        return found

    def _tried(self, change: Change, kept: Mapping[str, Kept] | None, *, preempts: bool) -> Outcome:
        if self.known is not None:
            self.situation.ledger.grown = _copied(self.known.grown)
        situation, task, job = self.situation, change.task or self.task, change.job or self.job
        with _changed(situation.ledger, change) as ledger:
            if task is not None:
                waiting = [one for one in situation.tasks if one.task_id != task.task_id]
                situation = replace(situation, tasks=[*waiting, task])
                return self._rounds(situation, ledger, change, kept, preempts=preempts)
            queue = self._queues.setdefault(job.parent_id, Queue(job.parent_id))
            queue.put(job)
            try:
                return self._rounds(situation, ledger, change, kept, preempts=preempts)
            finally:
                queue.drop(job.job_id)

    def _reserve(self) -> None:
        """Find the reservations of the state as it is: a change of it does not undo them.

        A scheduler keeps a reservation while the job waits, also if others came after it that are ahead of it now. So
        the jobs come one by one, in the order of their numbers; of very many, the first ones.
        """
        self._kept = {}
        situation, ledger = self.situation, self.situation.ledger
        jobs = [one for one in situation.pending if one.job_id != self.job.job_id]
        if self.task is None and not self.job.held:
            jobs.append(self.job)
        jobs.sort(key=lambda one: one.job_id)
        queues: dict[str, Queue] = {}
        trial = Trial(situation, ledger, queues)
        grown = _copied(ledger.grown)
        for number, one in enumerate(jobs, 1):
            queues.setdefault(one.parent_id, Queue(one.parent_id)).put(one)
            if number < MOST_ARRIVALS or number == len(jobs):
                trial.decide(preempts=False)
        ledger.grown.update(grown)
        self._kept = {
            name: Kept(one.policy, dict(one.kept), dict(one.shared)) for name, one in queues.items()
        }

    def _rounds(
        self,
        situation: Situation,
        ledger: Ledger,
        change: Change,
        kept: Mapping[str, Kept] | None,
        *,
        preempts: bool = False,
    ) -> Outcome:
        """Run rounds until nothing more starts, as a scheduler does, which is faster than whoever makes the change.

        Only then end ``change.gone``, because a stop takes time, or add a job that is submitted again after a stop.
        """
        job, task, gone = change.job or self.job, change.task or self.task, change.gone
        late = job if task is None and job.job_id != self.job.job_id else None
        wait, victims = None, tuple[Victim, ...]()
        is_calm = task is None and change.cluster is None and not _copies(change)
        trial = Trial(
            situation, ledger, self._queues, None if change.cluster is not None else self.known, kept
        )
        if late is not None:
            trial.queues[job.parent_id].drop(job.job_id)
        try:
            for _ in range(MOST_ROUNDS):
                plan = trial.decide(preempts=preempts)
                is_calm = is_calm and not (plan.preempts or plan.starts or plan.task_starts)
                if task is not None and any(one.task.task_id == task.task_id for one in plan.task_starts):
                    return Outcome(starts=True)
                for start in plan.starts:
                    if start.job.job_id == job.job_id:
                        return Outcome(start, starts=True)
                wait = next((one for one in plan.waits if _is_of(one, job)), wait)
                ended = [one.victims for one in plan.preempts if one.job.job_id == job.job_id]
                victims = ended[0] if ended else victims
                trial.begin(plan)
                if leaves_more(plan, plan.proposed) or (task is not None and plan.task_starts):
                    continue
                if gone is not None:
                    trial.stop(gone)
                    gone = None
                elif late is not None:
                    trial.queues[job.parent_id].put(job)
                    late = None
                else:
                    break
            if is_calm:
                self.known = self._learn(ledger)
            others = tuple(one.job.job_id for one in trial.done if isinstance(one, Start))
            return Outcome(None, wait, others, victims)
        finally:
            trial.take_back()

    def _learn(self, ledger: Ledger) -> Known | None:
        """The verdicts of a round without starts, for the other trials; None with nominations."""
        if self.situation.nominations:
            return None
        verdicts = {
            (parent_id, key): shape.blocked._replace(valid_for=None)  # other ledgers have other stamps
            for parent_id, queue in self._queues.items()
            for key, shape in queue.shapes.items()
            if shape.blocked is not None
            and shape.blocked[0] in (INFEASIBLE, INSUFFICIENT)
            and not shape.blocked.exhausted
        }
        return Known(verdicts, _capacities(ledger, self._queues), {})


def task_trials(situation: Situation, task: PendingTask, others: Sequence[Holder] = ()) -> Trials:
    """Trials of the question whether a task starts; ``others``: running tasks of its cluster."""
    nobody = PendingJob(0, "", task.cluster_id, "", ClusterSpec(), {})
    return Trials(situation, nobody, task=task, others=others)


def _is_of(wait: Wait, job: PendingJob) -> bool:
    """Whether a wait is that of the job: of its shape, or of its user's jobs of that shape."""
    return wait.parent_id == job.parent_id and wait.shape in (job.shape, f"{job.shape};user={job.user}")


class Trial:
    """Rounds of the scheduler on a ledger and queues that are reverted at the end."""

    def __init__(
        self,
        situation: Situation,
        ledger: Ledger,
        queues: dict[str, Queue],
        known: Known | None = None,
        kept: Mapping[str, Kept] | None = None,
    ) -> None:
        self.now_ns = situation.now_ns
        self.usage = situation.usage
        self.ledger = ledger
        self.queues = queues
        self.running = running_of(situation)
        for one in situation.running:
            for run_id in one.run_ids:
                if one.row is not None and run_id != one.row.run_id:
                    self.running.put_task(one.job_id, run_id)
        for job_id in situation.leaving:
            self.running.leave(job_id)
        self.tasks = queues_of(situation.tasks, situation.turns)
        self.done: list[Start | TaskStart] = []
        for queue in queues.values():
            queue.forget_verdicts()
            for job_id in list(queue.nominations):
                queue.set_nomination(job_id, None)
        if known is not None:
            known.pass_on(ledger, queues)
        for nomination in situation.nominations:
            if nomination.parent_id in queues:
                queues[nomination.parent_id].set_nomination(nomination.job_id, nomination)
        for name, queue in queues.items():
            before = (kept or {}).get(name) or Kept(queue.policy)
            queue.arrange(before.policy)
            queue.told.clear()
            queue.kept, queue.shared, queue.kept_at = dict(before.own), dict(before.shared), None

    def decide(self, *, preempts: bool) -> Plan:
        """One round."""
        return decide(
            self.ledger, self.queues, self.tasks,
            now_ns=self.now_ns, running=self.running, usage=self.usage, preempts=preempts,
            search_steps=MOST_SEARCHED,
        )  # fmt: skip

    def begin(self, plan: Plan) -> None:
        """Apply the starts of a plan."""
        for task in plan.task_starts:
            self.tasks[task.task.cluster_id].drop(task.task.task_id)
        for one in plan.starts:
            job = one.job
            self.queues[job.parent_id].drop(job.job_id)
            self.queues[job.parent_id].nominations.pop(job.job_id, None)
            self.running.put(RunningJob.begun(job, one.cluster_id, one.run_id, self.now_ns))
        begun: tuple[Start | TaskStart, ...] = (*plan.task_starts, *plan.starts)
        for start in begun:
            apply(self.ledger, start)
        self.done += begun

    def stop(self, job: Holder) -> None:
        """End a running job, with the tasks that wait or have begun in it. The ledger must be a copy."""
        for queue in self.tasks.values():
            for waiting in [one for one in queue.tasks.values() if one.job_id == job.job_id]:
                queue.drop(waiting.task_id)
        for begun in list(self.done):
            if isinstance(begun, TaskStart) and begun.task.job_id == job.job_id:
                self.ledger.discharge(begun.run_id)
                self.done.remove(begun)
        stop(self.ledger, job)
        replace_dead(self.ledger)
        self.running.drop(job.job_id)

    def take_back(self) -> None:
        """Revert all starts."""
        for start in reversed(self.done):
            revert(self.ledger, start)
            if isinstance(start, Start):
                self.queues[start.job.parent_id].put(start.job)
        self.ledger.grown.clear()  # the reverts gave back only what the trial took


@contextmanager
def _changed(ledger: Ledger, change: Change) -> Iterator[Ledger]:
    """The ledger with a change, for the block: a new row of a cluster is reverted, else a copy is changed."""
    ledger = ledger.copy() if _copies(change) else ledger
    before = None if change.cluster is None else ledger.clusters[change.cluster.cluster_id]
    _make(ledger, change)
    try:
        yield ledger
    finally:
        if before is not None:
            ledger.put_cluster(before)


def _make(ledger: Ledger, change: Change) -> None:
    if change.node is not None:
        ledger.put_node(change.node)
    if change.cluster is not None:
        ledger.put_cluster(change.cluster)
        join(ledger, change.cluster.cluster_id, change.joins)
    if _copies(change):
        replace_dead(ledger)


def stop(ledger: Ledger, job: Holder) -> None:
    """Remove a running job with all its clusters and processes from a ledger."""
    for run_id in job.run_ids:
        ledger.discharge(run_id)
    if job.cluster_id is not None:
        for cluster_id in [*reversed(ledger.below(job.cluster_id)), job.cluster_id]:
            ledger.remove_cluster(cluster_id)
