"""Changes of runs: assigned ahead, seen, stopping, over. The start of a job or a task adds its other runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.core.values import replace
from vctl.engine.changes.change import Change, PublicEvent, change, internal

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class StartedProcess:
    """How to find the process of a run again."""

    pid: int
    pid_start: int
    boot_id: str
    started_at: int


@change
class RunSeen(Change):
    """The process of a run was seen; or (None) the run may have been started, and is not started again."""

    run_id: str
    process: StartedProcess | None = None

    public_event = internal("run", "run_id")

    def apply(self, state: SchedulerState) -> None:
        if (run := state.runs.get(self.run_id)) is not None:
            run = state.runs[self.run_id] = with_process(run, self.process)
            if (job := state.running.jobs.get(run.job_id)) is not None and job.ends_at_ns is not None:
                state.timers.plan(state, run, job)


@change
class RunStopping(Change):
    """A run is to be stopped for this reason; the first reason stays."""

    run_id: str
    reason: str

    public_event = internal("run", "run_id")

    def apply(self, state: SchedulerState) -> None:
        run = state.runs.get(self.run_id)
        if run is None or run.stop_reason is not None:
            return
        state.runs[self.run_id] = replace(run, stop_reason=self.reason)
        state.to_stop.pop(self.run_id, None)
        state.changed.runs[self.run_id] = None
        if run.task_id is None:
            state.running.leave(run.job_id)


@change
class RunWarned(Change):
    """The process of a job got the signal that warns of its end at ``ends_ns`` (ns since the boot)."""

    run_id: str
    ends_ns: int
    job_id: int
    submission_id: str
    cluster_id: str
    signal: str
    left_s: float

    def public_event(self) -> PublicEvent:
        data = {"signal": self.signal, "left_s": self.left_s}
        return PublicEvent("job.warned", "job", self.submission_id, self.cluster_id, self.job_id, data)

    def apply(self, state: SchedulerState) -> None:
        if (run := state.runs.get(self.run_id)) is not None:
            state.runs[self.run_id] = replace(run, warned_for=self.ends_ns)


@change
class RunEnded(Change):
    """A process is over, and all its descendants are gone. ``process``: set if it was not seen before."""

    at: int
    run_id: str
    exit_code: int | None
    message: str | None
    process: StartedProcess | None = None

    public_event = internal("run", "run_id")

    def apply(self, state: SchedulerState) -> None:
        run = state.runs.get(self.run_id)
        if run is None:
            return
        state.drop_run(run)
        job = state.running.jobs.get(run.job_id)
        if job is None or run.task_id is not None or not (others := state.members_of(run.job_id)):
            return
        if job.run_id == run.run_id:
            state.running.put(replace(job, run_id=min(others)))
        if run.stop_reason is not None:  # it may have succeeded all the same; then the others go on
            state.running.leave(
                run.job_id, leaves=state.is_ending(run.job_id) or run.job_id in state.preemptions
            )


def with_process(run: Run, process: StartedProcess | None) -> Run:
    """A run after its process was seen; None: it may run, but its process was not found."""
    if process is None:
        return replace(run, state=jb.RUNNING)
    return replace(
        run, state=jb.RUNNING, pid=process.pid, pid_start=process.pid_start, boot_id=process.boot_id,
        started_at=process.started_at,
    )  # fmt: skip


@change
class RunAssignedAhead(Change):
    """The next run of a supervisor: a waiting job starts in the place of ``follows`` once that is over."""

    run_id: str
    job_id: int
    follows: str
    supervisor: int
    revision: int
    """The revision of the cluster that the job gets at its start."""

    public_event = internal("run", "run_id")

    def apply(self, state: SchedulerState) -> None:
        from vctl.engine.ahead import run_after  # imported here because commands do not need it

        job, before = state.pending(self.job_id), state.ahead.runs.get(self.follows)
        if job is not None:
            state.dequeue(self.job_id, waits=True)
            state.ahead.put(
                run_after(
                    state.ledger, before or state.runs[self.follows], job, self.run_id, self.supervisor,
                    self.revision,
                )
            )  # fmt: skip


@change
class RunTakenBack(Change):
    """A run that was assigned ahead has not started and never will: its job is queued again."""

    run_id: str
    job_id: int

    public_event = internal("run", "run_id")

    def apply(self, state: SchedulerState) -> None:
        if (ahead := state.ahead.drop(self.run_id)) is not None:
            state.put_pending(ahead.start.job)
            for queue in state.queues.values():
                queue.give_way(ahead.start.job)
