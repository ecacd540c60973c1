"""Changes of runs: a process was seen, is to be ended, is over. It starts with its job or its task."""

from __future__ import annotations

from vctl.engine.changes.change import PublicEvent, change, internal


@change
class Process:
    """How to find the process of a run again."""

    pid: int
    pid_start: int
    boot_id: str
    started_at: int


@change
class RunSeen:
    """A process was seen to run; or (None) its run may have been started, and is not started again."""

    run_id: str
    process: Process | None = None

    public_event = internal("run", "run_id")


@change
class RunStopping:
    """A process is to be ended, for this reason; what was said first stays."""

    run_id: str
    reason: str

    public_event = internal("run", "run_id")


@change
class RunWarned:
    """The process of a job got the signal that warns of its end at ``ends_ns``, by the clock of the boot."""

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


@change
class RunEnded:
    """A process is over, and everything that it started is gone. ``process`` where it was not seen before."""

    at: int
    run_id: str
    exit_code: int | None
    message: str | None
    process: Process | None = None

    def public_event(self) -> PublicEvent:
        """For schedulers alone: the event is its job's or its task's."""
        return PublicEvent("", "run", self.run_id)
