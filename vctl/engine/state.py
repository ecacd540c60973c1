"""The state of a scheduler: ledger, queues, live runs, running jobs. Values in memory; it reads no table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vctl.core.jobs import STOPPED_BY_USER, PendingJob, Preemption, Run, RunningJob
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, DRAINING, Node, NodeRequest
from vctl.core.tasks import CANCELLED
from vctl.core.values import field, replace, value
from vctl.engine.ahead import RunsAhead
from vctl.engine.array_limits import ArrayLimits
from vctl.engine.settings import LeaseTerms, MachineTerms
from vctl.engine.tasks import Tasks
from vctl.engine.timers import Timers
from vctl.scheduler.bookings import still_fits_beside
from vctl.scheduler.fairness import Usage
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.plan import Start, Trial
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running

GANG_ENDED = "GangEnded"
"""The reason for the stop of a gang's member after another member failed."""


@value(slots=True)
class Changed:
    """The objects that changed since their reader looked last. A reader looks only at these, and clears them.

    It may contain too much, but never too little. After a load it has all runs, nodes and awaited jobs.
    """

    runs: dict[str, None]
    """Runs for which other effects may be due. Reader: ``effects.news``."""
    nodes: set[str] = field(default_factory=set)
    """Changed nodes. Readers: rules, and the observer of heartbeats."""
    ended: set[str] = field(default_factory=set)
    """Ids of ended jobs, and of arrays with an ended member. Reader: the observer of awaited jobs."""
    started: dict[str, None] = field(default_factory=dict)
    """Runs of jobs that have started. Reader: ``rules.ahead.assign``, which assigns runs to follow them."""


class SchedulerState:
    """Ledger, queues, live runs and running jobs of a state directory at entry ``seen`` of the journal."""

    tick_ns = 10**7
    """The unit of ``Run.pid_start``, in ns."""

    def __init__(self, ledger: Ledger, runs: dict[str, Run], seen: int) -> None:
        self.ledger = ledger
        self.runs = runs
        self.runs_of_job: dict[int, set[str]] = {}
        for run in runs.values():
            self.runs_of_job.setdefault(run.job_id, set()).add(run.run_id)
        self.running = Running()
        """The running jobs as the queues need them: for limits, reserved starts and shares."""
        for run in runs.values():
            if run.task_id is not None:
                self.running.put_task(run.job_id, run.run_id)
        self.usage = Usage()
        self.queues: dict[str, Queue] = {}
        self.parent_of: dict[int, str] = {}
        """Job in a queue -> the cluster of that queue."""
        self.gated: dict[int, PendingJob] = {}
        """Jobs that wait outside of the queues: on hold, for other jobs, or for a place in their array."""
        self.requests: dict[int, PendingJob] = {}
        """Running jobs as they were while they waited: this is queued again for another attempt."""
        self.ahead = RunsAhead()
        """Runs of waiting jobs that take the place of running ones at their end."""
        self.changed = Changed(dict.fromkeys(runs))
        self.seen = seen
        self.trial: Trial | None = None
        """Starts that are taken in the ledger but not committed yet: any other change takes them back."""
        self.to_stop: dict[str, None] = {}
        """Runs that are to stop, without a recorded reason (``RunStopping``) yet."""
        self.timers = Timers()
        """The times at which running processes reach their time limits."""
        self.array_limits = ArrayLimits()
        """The running limits of arrays."""
        self.dead_nodes: set[str] = set()
        self.draining_nodes: set[str] = set()
        self.shrunk_nodes: set[str] = set()
        for node in ledger.nodes.values():
            self.sort_node(node)
        self.tasks = Tasks()
        """Tasks that are not over, and the objects that they use and leave."""
        self.preemptions: dict[int, Preemption] = {}
        """Running job that ends for a waiting one -> its preemption."""
        self.nominations: dict[int, Nomination] = {}
        """Waiting job -> the resources that are reserved for it, in the order of the first nominations."""
        self.node_requests: dict[str, NodeRequest] = {}
        """Request id -> the request to a node provider that is not done."""
        self.lease_terms, self.machine_terms = LeaseTerms(), MachineTerms()

    def sort_node(self, node: Node) -> None:
        """Keep the sets of dead, draining and shrunk nodes in step with a node."""
        for ids, belongs in (
            (self.dead_nodes, node.state == DEAD),
            (self.draining_nodes, node.state == DRAINING),
            (self.shrunk_nodes, node.shrunk),
        ):
            (ids.add if belongs else ids.discard)(node.node_id)

    def put_node(self, node: Node) -> None:
        """Add or replace a node."""
        if node.state == DEAD:
            of_node = [run.run_id for run in self.runs.values() if run.node_id == node.node_id]
            self.changed.runs.update(dict.fromkeys(of_node))  # their stops lose their grace
        self.ledger.put_node(node)
        self.sort_node(node)
        self.changed.nodes.add(node.node_id)

    def add_run(self, run: Run) -> None:
        """Add a run that is to be started; from now on it holds its part of a virtual node."""
        self.ledger.charge(run.run_id, run.vnode_id, run.allocation)
        self.runs[run.run_id] = run
        self.changed.runs[run.run_id] = None
        self.runs_of_job.setdefault(run.job_id, set()).add(run.run_id)
        if run.task_id is not None:
            self.running.put_task(run.job_id, run.run_id)
        self.sort_run(run)

    def sort_run(self, run: Run) -> None:
        """Keep ``to_stop`` in step with a run."""
        if run.stop_reason is None and self.reason_to_stop(run) is not None:
            self.to_stop[run.run_id] = None
        else:
            self.to_stop.pop(run.run_id, None)

    def reason_to_stop(self, run: Run) -> str | None:
        """Why a run is to stop: somebody asked for it, or the entrypoint has ended. None: it goes on."""
        job, task = self.running.jobs.get(run.job_id), self.tasks.unfinished.get(run.task_id or "")
        if job is not None and job.stop_requested_at is not None and self.is_attached(run):
            return job.stop_reason or STOPPED_BY_USER
        if task is not None and task.stop_requested_at is not None:
            return CANCELLED
        return GANG_ENDED if job is not None and job.outcome is not None and run.task_id is None else None

    def note_stop(self, run_ids: Iterable[str]) -> None:
        """Note that a stop of these runs was requested, or requested again in another way."""
        for run_id in run_ids:
            self.changed.runs[run_id] = None
            self.sort_run(self.runs[run_id])

    def knows(self, run_id: str) -> bool:
        """Whether a run is not over, or is assigned ahead."""
        return run_id in self.runs or run_id in self.ahead.runs

    def drop_run(self, run: Run) -> None:
        """Remove a run that is over, and give back what it held."""
        self.runs.pop(run.run_id, None)
        self.to_stop.pop(run.run_id, None)
        self.running.drop_task(run.job_id, run.run_id)
        siblings = self.runs_of_job.get(run.job_id)
        if siblings is not None:
            siblings.discard(run.run_id)
            if not siblings:
                del self.runs_of_job[run.job_id]
        self.ledger.discharge(run.run_id)

    def has_room(self, start: Start, now: int) -> bool:
        """Whether a start still fits: it is in the trial, or else it fits after the trial was taken back."""
        if self.trial is not None and self.trial.starts.get(start.job.job_id) is start:
            return True
        self.end_trial()
        return still_fits_beside(self.ledger, self.running, start, now)

    def end_trial(self) -> None:
        """Take back the starts that were only tried."""
        if self.trial is not None:
            self.trial.take_back()
            self.trial = None

    def members_of(self, job_id: int) -> list[str]:
        """The runs of a job's main processes that are not over: several for ``--per-node``."""
        return [run_id for run_id in self.runs_of_job.get(job_id, ()) if self.runs[run_id].task_id is None]

    def runs_of_task(self, task_id: str, job_id: int) -> list[str]:
        """The run of a task, as a list; empty if the task does not run."""
        return [one for one in self.runs_of_job.get(job_id, ()) if self.runs[one].task_id == task_id]

    def put_pending(self, job: PendingJob) -> None:
        """Add or replace a waiting job: in its queue, or outside of it while a gate keeps it out."""
        self.array_limits.put(job)
        if job.is_gated:
            self.dequeue(job.job_id)
            self.gated[job.job_id] = job
        else:
            self.gated.pop(job.job_id, None)
            self.enqueue(job)

    def pending(self, job_id: int) -> PendingJob | None:
        """The waiting job of this number; None if it does not wait."""
        parent_id = self.parent_of.get(job_id)
        return self.gated.get(job_id) if parent_id is None else self.queues[parent_id].jobs[job_id]

    def enqueue(self, job: PendingJob) -> None:
        """Add or replace a job in its queue."""
        self._queue(job.parent_id).put(job)
        self.parent_of[job.job_id] = job.parent_id

    def put_all_pending(self, jobs: Iterable[PendingJob]) -> None:
        """Add very many waiting jobs, none of which waited before."""
        waiting: dict[str, dict[int, PendingJob]] = {}
        for job in jobs:
            parent_id, job_id = job.parent_id, job.job_id
            if job.array_id is not None:
                self.array_limits.put(job)
            if job.is_gated:
                self.gated[job_id] = job
                continue
            if parent_id not in waiting:
                waiting[parent_id] = {}
            waiting[parent_id][job_id] = job
            self.parent_of[job_id] = parent_id
        for parent_id, found in waiting.items():
            self._queue(parent_id).put_all(found)

    def _queue(self, parent_id: str) -> Queue:
        queue = self.queues.get(parent_id)
        if queue is None:
            queue = self.queues[parent_id] = Queue(parent_id)
        return queue

    def dequeue(self, job_id: int, *, waits: bool = False) -> None:
        """Remove a job from the waiting jobs. ``waits``: it has not started yet."""
        self.gated.pop(job_id, None)
        parent_id = self.parent_of.pop(job_id, None)
        if parent_id is not None:
            self.queues[parent_id].drop(job_id, waits=waits)

    def note_running(self, job: RunningJob, request: PendingJob) -> None:
        """Add a running job that was loaded from the tables; its ``run_id`` follows from its runs."""
        own = self.members_of(job.job_id)
        self.requests[job.job_id] = request
        self.array_limits.run(job.array_id, job.job_id)
        self.running.put(replace(job, run_id=min(own, default="")))
        if self.is_ending(job.job_id):
            self.running.leave(job.job_id)
        for run_id in own:
            self.timers.plan(self, self.runs[run_id], job)

    def is_ending(self, job_id: int) -> bool:
        """Whether a running job ends: after a stop or the end of its entrypoint, or if a run is stopped."""
        job = self.running.jobs[job_id]
        members = (self.runs[run_id] for run_id in self.members_of(job_id))
        is_stopped = job.stop_requested_at is not None or job.outcome is not None
        return is_stopped or any(run.stop_reason is not None for run in members)

    def put_preemption(self, one: Preemption) -> None:
        """Record that a running job is to end for another."""
        self.preemptions[one.victim_id] = one
        self.running.leave(one.victim_id)

    def preemption_of(self, job: RunningJob) -> Preemption | None:
        """The preemption of this attempt of a job, if there is one."""
        one = self.preemptions.get(job.job_id)
        return one if one is not None and one.attempt == job.attempt else None

    @property
    def leases(self) -> Mapping[int, Lease]:
        """The leases of all clusters, by number."""
        return self.ledger.leases

    def put_nomination(self, nomination: Nomination) -> None:
        """Reserve the resources of a nomination for its job."""
        self.nominations[nomination.job_id] = nomination
        if nomination.parent_id in self.queues:
            self.queues[nomination.parent_id].set_nomination(nomination.job_id, nomination)

    def drop_nomination(self, job_id: int) -> None:
        """Drop the nomination of a job, if it has one."""
        if (nomination := self.nominations.pop(job_id, None)) is not None:
            if nomination.parent_id in self.queues:
                self.queues[nomination.parent_id].set_nomination(job_id, None)
            self.ledger.note_growth(part[0] for part in nomination.pieces)

    def note_end(self, submission_id: str, array_id: str | None) -> None:
        """Note the end of a job, for which other jobs may wait."""
        self.changed.ended.add(submission_id)
        if array_id is not None:
            self.changed.ended.add(array_id)

    def is_attached(self, run: Run) -> bool:
        """Whether a run ends with its job: all runs do, except those of tasks that outlive it."""
        task = self.tasks.unfinished.get(run.task_id or "")
        return task is None or not task.outlives

    def judge_anew(self, cluster_id: str) -> None:
        """Let everything that waits in a cluster or below it be judged anew."""
        for one in (cluster_id, *self.ledger.below(cluster_id)):
            if (queue := self.queues.get(one)) is not None:
                queue.forget_verdicts()
            if (waiting := self.tasks.queues.get(one)) is not None:
                waiting.forget_verdicts()

    def forget_verdicts(self) -> None:
        """Let everything that waits be judged anew."""
        for queue in self.queues.values():
            queue.forget_verdicts()
        for waiting in self.tasks.queues.values():
            waiting.forget_verdicts()
