"""Has it ended? What counts as over, and waiting for it: for jobs, arrays, tasks, clusters, and for their output.

This is the only place that knows the final states of what is waited for. Commands and programs wait with ``wait`` and
``follow``, through a backend; a server, which waits for many at once, asks ``poll`` and ``has_ended``. ``Watched`` is
the answer of all of them, so that waiting ends at the same moment with the same form everywhere.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.clusters import PRIMARY
from vctl.errors import NotFound, VctlError
from vctl.ops import arrays, cluster_views, jobs, privacy, tasks
from vctl.ops.background import Background
from vctl.runtime.watch import CREATE, MODIFY, Watch
from vctl.store import arrays as array_table
from vctl.store import clusters as cluster_table
from vctl.store import jobs as job_table
from vctl.store import tasks as task_table
from vctl.store.store import Store

Form = Mapping[str, Any]
Kind = Literal["jobs", "tasks", "clusters"]
JOBS: Kind = "jobs"
TASKS: Kind = "tasks"
CLUSTERS: Kind = "clusters"
Opened = Callable[[], AbstractContextManager[Store]]
"""Opens the state for one look."""

LONGEST_S = 1.0
"""The longest time between two looks, even without a wake-up."""
STARTING_S = 0.1
"""How often to look while no scheduler runs."""
PAUSE_S, PART = 0.05, 64
"""The pause between two looks: the time waited so far divided by ``PART``, at most ``PAUSE_S``. Without it,
each commit would wake every waiting command, also where hundreds of jobs end."""


class Watched(NamedTuple):
    """Whether something is over, and its JSON form: None if it was deleted. A cluster is over when it is deleted."""

    over: bool
    form: Form | None


GONE = Watched(over=True, form=None)


def is_over(form: Form) -> bool:
    """Whether a job, an array or a task is over, by its JSON form."""
    return form["state"] in tk.FINAL if "task_id" in form else form["status"] in jb.FINAL


def exact(store: Store, kind: Kind, ref: str | int) -> str | int:
    """A reference that no later object can have, by any name, as ids may be used again. Raises NotFound."""
    if kind == JOBS:
        array = arrays.named(store, ref)
        return jobs.resolve(store, ref) if array is None else str(array["array_id"])
    return tasks.task_id(store, str(ref)) if kind == TASKS else cluster_views.resolve(str(ref))


def has_ended(store: Store, kind: Kind, ref: str | int) -> bool:
    """Whether something is over or deleted, by its exact reference: cheaper than its form."""
    if kind == CLUSTERS:
        return ref != PRIMARY and cluster_table.get(store, str(ref)) is None
    if kind == TASKS:
        task = task_table.get(store, str(ref))
        return task is None or task["state"] in tk.FINAL
    if isinstance(ref, int):
        job = job_table.get(store, ref)
        return job is None or job["status"] in jb.FINAL
    array = array_table.get(store, ref)
    return array is None or arrays.state(store, array) in jb.FINAL


def poll(store: Store, kind: Kind, ref: str | int) -> Watched:
    """Whether something is over now, with its form, without a forecast: it is asked again and again."""
    if kind == CLUSTERS:
        return Watched(has_ended(store, kind, ref), None)
    try:
        form: Form = (
            tasks.get_task(store, str(ref)) if kind == TASKS else jobs.get_job(store, ref, forecast=False)
        )
    except NotFound:
        return GONE
    return Watched(is_over(form), privacy.veiled(store, form))


def wait(
    opened: Opened, background: Background, kind: Kind, ref: str | int, timeout_s: float | None
) -> Watched:
    """Wait until something is over or deleted, at most ``timeout_s``; a scheduler is started if none runs.

    What is not there any more at the beginning is over, too. Raises Unreachable if it is not over and no scheduler may
    run.
    """
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    with _Changes() as changes:
        with opened() as store:
            changes.watch(store)
            try:
                reference = exact(store, kind, ref)
            except NotFound:
                return GONE
        while True:
            with opened() as store:
                if has_ended(store, kind, reference):
                    return poll(store, kind, reference)
            works = background.see_to_it()
            remaining_s = LONGEST_S if give_up is None else give_up - time.monotonic()
            if remaining_s <= 0:
                with opened() as store:
                    return poll(store, kind, reference)
            changes.rest(remaining_s, works=works)


def follow(
    opened: Opened, background: Background, kind: Kind, ref: str | int, offset: int, every_s: float | None
) -> Iterator[bytes]:
    """The output of a job or task as it is written, until that is over; after ``every_s`` without any comes ``b''``."""
    with _Changes() as changes:
        with opened() as store:
            changes.watch(store)
            output = (jobs if kind == JOBS else tasks).log(store, str(ref))
            reference = exact(store, kind, ref)
        try:
            output.directory.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            raise VctlError(
                f"{output.directory} is a file", fix="remove it: logs are kept in a directory"
            ) from None
        changes.files.add(output.directory, CREATE if output.is_one_file else CREATE | MODIFY)
        log, shown_at = output.growing(offset), time.monotonic()
        try:
            while True:
                # first the state, then the output: all output that precedes the end is shown
                with opened() as store:
                    over = has_ended(store, kind, reference)
                was_open = log.is_open
                for block in log.new():
                    yield block
                    shown_at = time.monotonic()
                if over:
                    yield from log.rest()
                    return
                if log.is_open and not was_open:
                    changes.files.add(output.path, MODIFY)
                due_s = LONGEST_S if every_s is None else shown_at + every_s - time.monotonic()
                if due_s <= 0:
                    yield b""
                    shown_at = time.monotonic()
                    continue
                changes.rest(due_s, works=background.see_to_it())
        finally:
            log.close()


class _Changes:
    def __init__(self) -> None:
        self.files = Watch()
        self.began = time.monotonic()

    def __enter__(self) -> _Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.close()

    def watch(self, store: Store) -> None:
        """Wake after every commit."""
        self.files.add(store.watched(), MODIFY)

    def rest(self, limit_s: float, *, works: bool) -> None:
        """Wait for a possible change. ``works``: whether a scheduler works."""
        limit_s = min(limit_s, LONGEST_S if works else STARTING_S)
        poller = select.poll()
        poller.register(self.files.fileno(), select.POLLIN)
        if poller.poll(max(0.0, limit_s * 1000)):
            time.sleep(min(PAUSE_S, limit_s, (time.monotonic() - self.began) / PART))
        self.files.read()
