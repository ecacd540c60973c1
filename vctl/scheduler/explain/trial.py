"""Rounds of the scheduler on a state that comes back: the ledger and the queues are as before when a trial has ended.

A trial runs the scheduler's own ``decide``, so it decides like the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from vctl.core.jobs import INSUFFICIENT, PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.limits import Spent
from vctl.core.tasks import PendingTask
from vctl.core.values import field, replace, value
from vctl.scheduler import task_queue
from vctl.scheduler.cycle import decide
from vctl.scheduler.fairness import Usage
from vctl.scheduler.lending import end_leases, kept_back, take_back, withhold
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.plan import Plan, Start, TaskStart, apply, revert
from vctl.scheduler.queueing import Queue
from vctl.scheduler.reach import reach_of
from vctl.scheduler.replacement import replace_dead
from vctl.scheduler.running import Running
from vctl.scheduler.scheduling_class import Verdict
from vctl.scheduler.shared_reservations import Kept, keep, kept_by
from vctl.scheduler.task_queue import Turns, queues_of

MOST_SEARCHED = 20_000
"""The steps of the search for victims in one round of a trial."""


@value(frozen=True, slots=True)
class RunningHolder:
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
    running: Sequence[RunningHolder] = ()
    tasks: Sequence[PendingTask] = ()
    turns: Mapping[str, Turns] = field(default_factory=dict)
    """Cluster -> the turns of the classes of its tasks, as far as these run."""
    now_ns: int = 0
    leaving: Collection[int] = ()
    """Running jobs that are being ended."""
    nominations: Sequence[Nomination] = ()
    usage: Usage | None = None
    """The past use and the lag of members, as of ``now_ns``: a trial takes turns by the shares of a round."""
    reservations: Mapping[str, Mapping[int, Kept]] = field(default_factory=dict)
    """Cluster -> job -> the reservations that the last round has left to the next one."""
    reported: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    """Cluster -> wait key -> the reason that the last round has told: what lenders keep depends on it."""
    next_job: int = 0
    next_task: int = 0
    """The numbers that the next job and the next task get."""
    passed: Collection[str] = ()
    """The tasks that found no place in the last round."""
    spent: Mapping[tuple[str, str], Spent] = field(default_factory=dict)
    """Cluster, user -> the GPU time of jobs that are over, by day, where periods have limits."""
    is_crowded: bool = False
    """Whether too much waits for any trial, so that ``pending`` was not read."""


def running_of(situation: Situation) -> Running:
    """The running jobs of a situation as the scheduler knows them."""
    running = Running(holder.row for holder in situation.running if holder.row is not None)
    running.spent = {whose: dict(days) for whose, days in situation.spent.items()}
    return running


def hand_over(situation: Situation, queues: Mapping[str, Queue], besides: int | None = None) -> None:
    """Give queues what the last round has left to the next one. ``besides``: a job that has no reservation any more."""
    for name, queue in queues.items():
        if (cluster := situation.ledger.clusters.get(name)) is not None:
            queue.arrange(cluster.queue, is_limited=situation.ledger.limits.of_users)
        for job_id in list(queue.nominations):
            queue.set_nomination(job_id, None)
    for nomination in situation.nominations:
        if nomination.parent_id in queues:
            queues[nomination.parent_id].set_nomination(nomination.job_id, nomination)
    for name, queue in queues.items():
        kept = situation.reservations.get(name, {})
        keep(queue, {job_id: reserved for job_id, reserved in kept.items() if job_id != besides})
        queue.recall(situation.reported.get(name, {}))


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
        capacities = capacities_of(ledger, queues)
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


def capacities_of(ledger: Ledger, queues: Mapping[str, Queue]) -> dict[str, object]:
    """Cluster -> its capacity, for which the verdicts of its queue hold."""
    return {
        name: queue.feasibility.capacity(ledger) for name, queue in queues.items() if name in ledger.clusters
    }


def believe(ledger: Ledger, queue: Queue) -> None:
    """Take over from the last round that there is too little for a class, where a count proves that there still is.

    What was reported may be older than the state: without the proof the class is judged as in a first round.
    """
    reach = reach_of(ledger, queue.parent_id) if queue.parent_id in ledger.clusters else None
    for shape in queue.shapes.values():
        reported = {queue.reported.get(queue.wait_key(sub_queue)) for sub_queue in shape.sub_queues.values()}
        reason = reported.pop() if len(reported) == 1 else None
        if reason is not None and reason[0] == INSUFFICIENT and reach and not reach.may_hold(shape.count):
            shape.judge(Verdict(*reason))


class TrialRounds:
    """Rounds of the scheduler on a ledger and queues that are reverted at the end."""

    def __init__(
        self,
        situation: Situation,
        ledger: Ledger,
        queues: dict[str, Queue],
        known: Known | None = None,
        before: Mapping[str, Mapping[task_queue.SchedulingClass, task_queue.TaskVerdict]] | None = None,
    ) -> None:
        self.now_ns = situation.now_ns
        self.usage = situation.usage
        self.ledger = ledger
        self.queues = queues
        self.running = running_of(situation)
        for holder in situation.running:
            for run_id in holder.run_ids:
                if holder.row is not None and run_id != holder.row.run_id:
                    self.running.put_task(holder.job_id, run_id)
        for job_id in situation.leaving:
            self.running.leave(job_id)
        self.tasks = queues_of(situation.tasks, situation.turns)
        self.done: list[Start | TaskStart] = []
        self.stopped: set[int] = set()
        self.nominations = situation.nominations
        self._withheld = ledger.withheld
        for cluster_id, tasks in self.tasks.items():
            tasks.before |= {
                shape: verdict
                for shape, verdict in (before or {}).get(cluster_id, {}).items()
                if shape in tasks.sub_queues
            }
        for queue in queues.values():
            queue.forget_verdicts()
        if known is not None:
            known.pass_on(ledger, queues)
        for queue in queues.values() if known is None else ():
            believe(ledger, queue)

    def decide(self, *, preempts: bool) -> Plan:
        """One round, before which lenders keep what their own work starts with."""
        withhold(self.ledger, kept_back(self.ledger, self.queues, self.tasks, self.now_ns, self.nominations))
        return decide(
            self.ledger, self.queues, self.tasks,
            now_ns=self.now_ns, running=self.running, usage=self.usage, preempts=preempts,
            search_steps=MOST_SEARCHED,
        )  # fmt: skip

    def begin(self, plan: Plan) -> None:
        """Apply the starts of a plan."""
        for task in plan.task_starts:
            self.tasks[task.task.cluster_id].drop(task.task.task_id)
        for of_job in plan.starts:
            job = of_job.job
            self.queues[job.parent_id].drop(job.job_id)
            self.queues[job.parent_id].nominations.pop(job.job_id, None)
            self.running.put(RunningJob.begun(job, of_job.cluster_id, of_job.run_id, self.now_ns))
        begun: tuple[Start | TaskStart, ...] = (*plan.task_starts, *plan.starts)
        for start in begun:
            apply(self.ledger, start)
        self.done += begun

    def withdraw(self, work: PendingJob | PendingTask) -> None:
        """Take a job or a task out of its queue."""
        if isinstance(work, PendingTask):
            self.tasks[work.cluster_id].drop(work.task_id)
        else:
            self.queues[work.parent_id].drop(work.job_id)

    def submit(self, work: PendingJob | PendingTask) -> None:
        """Put a job or a task into its queue."""
        if isinstance(work, PendingTask):
            self.tasks[work.cluster_id].put(work)
        else:
            self.queues[work.parent_id].put(work)

    def stop(self, job: RunningHolder) -> None:
        """End a running job, with the tasks that wait or have begun in it. The ledger must be a copy."""
        for queue in self.tasks.values():
            for waiting in [task for task in queue.tasks.values() if task.job_id == job.job_id]:
                queue.drop(waiting.task_id)
        for begun in list(self.done):
            if isinstance(begun, TaskStart) and begun.task.job_id == job.job_id:
                self.ledger.discharge(begun.run_id)
                self.done.remove(begun)
        stop(self.ledger, job)
        settle(self.ledger)
        self.running.drop(job.job_id)
        self.stopped.add(job.job_id)

    def rested(self, situation: Situation) -> Situation:
        """The situation after the rounds so far."""
        run_ids: dict[int, list[str]] = {}
        for start in self.done:
            job = start.job if isinstance(start, Start) else start.task
            run_ids.setdefault(job.job_id, []).append(start.run_id)
        running = [
            replace(holder, run_ids=(*holder.run_ids, *run_ids.get(holder.job_id, ())))
            for holder in situation.running
            if holder.job_id not in self.stopped
        ]
        running += [
            RunningHolder(
                start.job.job_id, start.job.submission_id, start.job.priority,
                None if start.cluster is None else start.cluster_id, tuple(run_ids[start.job.job_id]),
                self.running.jobs[start.job.job_id],
            )
            for start in self.done
            if isinstance(start, Start)
        ]  # fmt: skip
        return replace(
            situation,
            ledger=self.ledger,
            pending=[job for queue in self.queues.values() for job in queue.jobs.values()],
            running=running,
            tasks=[task for queue in self.tasks.values() for task in queue.tasks.values()],
            turns={name: queue.turns for name, queue in self.tasks.items()},
            reservations={name: kept_by(queue) for name, queue in self.queues.items()},
            reported={name: dict(queue.reported) for name, queue in self.queues.items()},
            passed=[
                task_id
                for queue in self.tasks.values()
                for shape, sub_queue in queue.sub_queues.items()
                if shape in queue.before
                for task_id in sub_queue
            ],
        )

    def let_go(self) -> None:
        """Put the jobs that have started back into the queues. The ledger stays as it is."""
        for start in reversed(self.done):
            if isinstance(start, Start):
                self.queues[start.job.parent_id].put(start.job)

    def take_back(self) -> None:
        """Revert all starts."""
        for start in reversed(self.done):
            revert(self.ledger, start)
        self.let_go()
        self.ledger.withheld = self._withheld
        self.ledger.grown.clear()  # the reverts gave back only what the trial took


def settle(ledger: Ledger) -> None:
    """What a scheduler does before it decides: what can leaves dead nodes, and lenders take back their loans."""
    replace_dead(ledger)
    take_back(ledger)


def stop(ledger: Ledger, job: RunningHolder) -> None:
    """Remove a running job with all its clusters and processes from a ledger."""
    for run_id in job.run_ids:
        ledger.discharge(run_id)
    if job.cluster_id is not None:
        for cluster_id in [*reversed(ledger.below(job.cluster_id)), job.cluster_id]:
            end_leases(ledger, cluster_id)
            ledger.remove_cluster(cluster_id)
