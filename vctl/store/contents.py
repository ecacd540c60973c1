"""What jobs and tasks ask for: commands, environments and requests, each content once in the tables.

A job or a task names its command; a command names its environment and, for a job, the request: what the job needs and
by which rules it ends. A row of these three tables never changes. It goes with the last row that names it.
"""

from __future__ import annotations

from _sqlite3 import Row
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vctl.store.store import Store

JOBS = "jobs j LEFT JOIN commands c USING (command_id) LEFT JOIN requests q USING (request_id)"
"""SQL: the jobs with what they ask for. An outer join: a job whose command is missing is seen, and set aside."""
JOB = "j.*, c.entrypoint, q.shape, q.spec, q.entry, q.rules"
"""SQL: the columns of a job out of ``JOBS``."""
COMMAND = "c.argv, c.cwd, c.options, e.env"
"""SQL: the columns of a command and its environment out of ``COMMANDS``."""
COMMANDS = "JOIN commands c USING (command_id) JOIN environments e USING (environment_id)"

COLUMNS = ("argv", "env", "cwd", "options", "entrypoint", "shape", "spec", "entry", "rules")
"""The columns of all three tables that are texts."""


_OF = "SELECT c.argv, c.cwd, c.options, c.environment_id, j.uid FROM commands c JOIN"


def of_job(store: Store, job_id: int) -> Row | None:
    """The command of a job, the number of its environment, and the uid of its user."""
    return store.row(f"{_OF} jobs j USING (command_id) WHERE job_id = ?", job_id)


def of_task(store: Store, task_id: str) -> Row | None:
    """Like ``of_job``, for a task: it runs as the user of its job. Also the options of the job."""
    return store.row(
        "SELECT c.argv, c.cwd, c.options, c.environment_id, j.uid, o.options AS of_job FROM tasks t"
        " JOIN commands c ON c.command_id = t.command_id LEFT JOIN jobs j ON j.job_id = t.job_id"
        " LEFT JOIN commands o ON o.command_id = j.command_id WHERE t.task_id = ?",
        task_id,
    )


def environment(store: Store, number: int) -> str:
    """An environment as JSON. The numbers of deleted ones are not given again."""
    return str(store.value("SELECT env FROM environments WHERE environment_id = ?", number))
