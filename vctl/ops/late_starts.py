"""Jobs and tasks that have their resources and whose processes could not be started yet: which, and why.

The kernel may have no process, memory or open file left for a start, or the disk may be full: such a start is tried
again until it succeeds. The supervisor writes the reason into its record file, where this module reads it, so that it
is true when it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vctl.core import jobs as jb
from vctl.core.listed import Alike, Values
from vctl.store import runs
from vctl.store.store import Store

LATE_NS = 1_000_000_000
"""A start that takes less time is not late."""
NOT_TAKEN = "no supervisor has taken it: the machine may have no process or memory left (see launcher.log)"

Work = tuple[int, str | None]
"""A job and, for a task, its id."""


def reasons(store: Store) -> dict[Work, str]:
    """The message for each job or task with a process that could not be started yet."""
    late = runs.unseen(store, store.clock() - LATE_NS)
    if not late:
        return {}
    from vctl.runtime.records import Records

    records, messages = Records(store.home), dict[Work, str]()
    for row in late:
        file = None if row["supervisor"] is None else records.file(row["supervisor"])
        if file is None:
            continue  # its records are gone, or it runs on another machine
        entry = file.runs.get(row["run_id"])
        if entry is None:
            messages[row["job_id"], row["task_id"]] = NOT_TAKEN
        elif entry.waits and entry.start is None and entry.exit is None:
            messages[row["job_id"], row["task_id"]] = (
                f"its process is not started yet: {entry.waits}; next try within a second"
            )
    return messages


def among(store: Store, statuses: Values) -> bool:
    """Whether a list of jobs with these states may have such a job."""
    return jb.RUNNING in statuses and bool(reasons(store))


class Late(Protocol):
    """What knows these jobs."""

    @property
    def late(self) -> Mapping[Work, str]:
        """The messages."""


def shown(known: Late, status: str, numbers: Values, otherwise: Values) -> Values:
    """The ``Shown`` of jobs that do not wait and are alike; ``otherwise``: of those whose processes are started."""
    late = known.late if status == jb.RUNNING else {}
    if not any((number, None) in late for number in numbers):
        return Alike(otherwise, len(numbers))
    messages = (late.get((number, None)) for number in numbers)
    return [otherwise if message is None else (jb.START_DELAYED, message) for message in messages]
