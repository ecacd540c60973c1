"""Follows the tables for a command that waits: states, output as it is written, and that a scheduler runs."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vctl.errors import NotFound, VctlError
from vctl.ops import arrays, jobs, logs, tasks
from vctl.ops.background import Background
from vctl.runtime.watch import CREATE, MODIFY, Watch
from vctl.store import arrays as array_table
from vctl.store import jobs as job_table
from vctl.store import tasks as task_table
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.config import Config

Form = Mapping[str, Any]

STARTING_S = 0.1
"""How often to look while no scheduler runs."""
PAUSE_S, PART = 0.05, 64
"""The pause between two looks: the time waited so far divided by ``PART``, at most ``PAUSE_S``. Without it,
each commit would wake every waiting command, also where hundreds of jobs end."""


class Waiter:
    """Waits for something in the tables."""

    longest_s = 1.0
    """The longest time between two looks, even without a wake-up."""

    def __init__(self, store: Store, config: Config) -> None:
        self.store = store
        self.background = Background(config)
        self.began = time.monotonic()
        self.watch = Watch()
        self.watch.add(store.watched(), MODIFY)

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.close()

    def state(self, kind: str, name: str) -> str | None:
        """The state of a job, an array or a task; None when it was forgotten."""
        if kind == "tasks":
            task = task_table.get(self.store, name)
            return None if task is None else str(task["state"])
        number = job_table.number_of(self.store, name)
        if number is not None and (job := job_table.get(self.store, number)) is not None:
            return str(job["status"])
        array = array_table.get(self.store, name)
        return None if array is None else arrays.state(self.store, array)

    def form(self, kind: str, name: str) -> Form | None:
        """The whole form of a job or a task; None when it was forgotten."""
        try:
            return tasks.get_task(self.store, name) if kind == "tasks" else jobs.get_job(self.store, name)
        except NotFound:
            return None

    def waits_for_itself(self, name: str) -> str | None:
        """A warning if a job or a task cannot start before its submitter has ended; else None."""
        from vctl.ops import why

        return why.waits_for_itself(self.store, name)

    def output(self, kind: str, name: str) -> Output:  # noqa: ARG002  # one name for both kinds here
        """The output of a job or a task, for stdout."""
        path = logs.log_of(self.store.home, name)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            raise VctlError(
                f"{path.parent} is a file", fix="remove it: logs are kept in a directory"
            ) from None
        self.watch.add(path.parent, CREATE)
        return Output(path, self.watch)

    def rest(self, kind: str, name: str, most_s: float) -> None:  # noqa: ARG002  # as with a server
        """Wait for a possible change, at most ``most_s``. Raises Unreachable if no scheduler can run."""
        self.store.reopen_tables()
        if not self.background.see_to_it():
            most_s = min(most_s, STARTING_S)
        poll = select.poll()
        poll.register(self.watch.fileno(), select.POLLIN)
        if poll.poll(max(0.0, most_s * 1000)):
            time.sleep(min(PAUSE_S, most_s, (time.monotonic() - self.began) / PART))
        self.watch.read()


class Output:
    """A growing log, copied to stdout byte for byte."""

    def __init__(self, path: Path, watch: Watch) -> None:
        self.path = path
        self.watch = watch
        self.shown = 0
        self._fd: int | None = None
        self._read_to = 0

    def copy(self, *, to_the_end: bool) -> None:  # noqa: ARG002  # a server sends until the end
        """Write the new part of the log to stdout."""
        if self._fd is None:
            if (fd := logs.open_log(self.path)) is None:
                return
            self._fd = fd
            self.watch.add(self.path, MODIFY)
        end = os.fstat(self._fd).st_size
        if end < self._read_to:
            self._read_to = 0  # the log was cut
        for read_to, chunk in logs.pieces(self._fd, self._read_to, end):
            self._read_to = read_to
            self.shown += len(chunk)
            logs.write_out(chunk)
