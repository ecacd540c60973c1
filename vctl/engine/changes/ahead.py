"""Changes of runs that are assigned ahead of the end of another run, whose place they take."""

from __future__ import annotations

from vctl.engine.changes.change import change, internal


@change
class RunAssignedAhead:
    """The next run of a supervisor: it starts a waiting job in the place of ``follows``, as soon as that is over."""

    run_id: str
    job_id: int
    follows: str
    supervisor: int
    revision: int
    """That of the cluster which the job gets at its start."""

    public_event = internal("run", "run_id")


@change
class RunTakenBack:
    """A run that was assigned ahead has not started and never will: its job waits in its queue again."""

    run_id: str
    job_id: int

    public_event = internal("run", "run_id")
