"""Waiting for a server: the functions of ``vctl.daemon.waiting``. The server sees to it that somebody schedules."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from vctl.client.connection import PATIENCE_S, PAUSE_S, Connection, at
from vctl.client.jobs import get_job, resolve, stop
from vctl.client.tasks import get_task
from vctl.core import jobs as jb
from vctl.core.tasks import FINISHED
from vctl.errors import NotFound, TimedOut, Unreachable
from vctl.ops.forms import failure_of

if TYPE_CHECKING:
    from vctl.config import Config

Form = dict[str, Any]

INTERRUPTED = 130
_ONE = {"jobs": "job", "tasks": "task"}
ASK_EVERY_S = 20.0
LOOK_EVERY_S = 0.3
PROGRESS_EVERY_S = 1.0


def submit_and_follow(
    server: Connection,
    config: Config,  # noqa: ARG001  # as in vctl.daemon.waiting
    submission_id: str,
    *,
    stop_on_interrupt: bool = False,
) -> int:
    """Show a job's log until it is over; its exit code. An interrupt detaches, or stops the job when asked to."""
    try:
        return _follow(server, submission_id)
    except KeyboardInterrupt:
        server.close()
        if not stop_on_interrupt:
            _tell(f"\nDetached: job {submission_id} goes on. Stop it with: vctl job stop {submission_id}")
            return INTERRUPTED
    except Unreachable as error:
        error.fix = f"job {submission_id} goes on; follow it with: vctl job logs --follow {submission_id}"
        raise
    stop(server, submission_id)
    return exit_code(_over(server, "jobs", submission_id))


def follow_log(server: Connection, config: Config, ref: str) -> int:  # noqa: ARG001  # as in vctl.daemon.waiting
    """The log of a job to its end; the job's exit code."""
    try:
        return _follow(server, resolve(server, ref))
    except KeyboardInterrupt:
        return INTERRUPTED


def wait_for_jobs(
    server: Connection,
    config: Config,  # noqa: ARG001  # as in vctl.daemon.waiting
    refs: Sequence[str],
    *,
    timeout_s: float | None = None,
) -> int:
    """Until all are over; 0 when all went well, else the first bad exit code in the order given."""
    return _wait_for(server, "jobs", [resolve(server, ref) for ref in refs], timeout_s)


def wait_until_stopped(server: Connection, config: Config, ref: str) -> int:  # noqa: ARG001  # as in vctl.daemon.waiting
    """Until every process of a job is gone."""
    try:
        _over(server, "jobs", ref)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def follow_task(server: Connection, config: Config, ref: str) -> int:  # noqa: ARG001  # as in vctl.daemon.waiting
    """A task's output to its end; its exit code, 130 after an interrupt (it goes on)."""
    task_id = str(get_task(server, ref)["task_id"])
    try:
        task = _copy_log(server, "tasks", task_id)
        if task is not None and (line := failure_of(task)):
            _tell(line)
        return exit_code(task)
    except KeyboardInterrupt:
        _tell(f"\nDetached: task {task_id} goes on. Cancel it with: vctl task cancel {task_id}")
        return INTERRUPTED


def wait_for_tasks(
    server: Connection,
    config: Config,  # noqa: ARG001  # as in vctl.daemon.waiting
    refs: Sequence[str],
    *,
    timeout_s: float | None = None,
) -> int:
    """Until all are over; 0 when all finished well, else the first bad exit code in order."""
    return _wait_for(server, "tasks", [str(get_task(server, ref)["task_id"]) for ref in refs], timeout_s)


class Waiter:
    """Waits for something that can be asked for."""

    def __init__(self, server: Connection, config: Config, *, schedule: bool = True) -> None:
        self.server = server
        self.config = config
        self.may_schedule = schedule

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def until(self, done: Callable[[], bool], *, timeout_s: float | None = None) -> bool:
        """Wait; True when done, False after an interrupt. Raises TimedOut."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while not done():
                if give_up is not None and time.monotonic() > give_up:
                    raise TimedOut(f"not done after {timeout_s:g} s", fix="wait longer with --timeout")
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            return False
        return True


def _follow(server: Connection, submission_id: str) -> int:
    if get_job(server, submission_id).get("array"):
        return _follow_array(server, submission_id)
    job = _copy_log(server, "jobs", submission_id)
    if job is not None and job["status"] != jb.SUCCEEDED and job["state_reason"] != jb.NON_ZERO_EXIT:
        _tell(f"Job {submission_id} {job['status']}: {job['state_reason']}: {job['message']}")
    return exit_code(job)


def _follow_array(server: Connection, array_id: str) -> int:
    """Progress on stderr instead of logs; the first bad exit code by index."""
    from vctl.ops.arrays import progress

    shown = ""
    while True:
        answer = server.get(at("jobs", array_id, "wait"), patient=True, timeout_s=PROGRESS_EVERY_S)
        line = "" if answer["job"] is None else progress(answer["job"])
        if line and line != shown:
            _tell(line)
        shown = line
        if answer["over"]:
            return exit_code(answer["job"])


def _copy_log(server: Connection, kind: str, name: str) -> Form | None:
    """Show a log until its writer is over, and return that; a server that restarts is waited for."""
    shown = 0
    give_up = time.monotonic() + PATIENCE_S
    over, form = False, None
    while True:
        try:
            with closing(_log(server, kind, name, shown, follow=not over)) as blocks:
                for block in blocks:
                    shown += len(block)
                    _write(block)
            if over:
                return form
            answer = server.get(at(kind, name, "wait"), timeout_s=0)
            over, form = (
                answer["over"],
                answer[_ONE[kind]],
            )  # what was written since is shown in the next turn
            give_up = time.monotonic() + PATIENCE_S
        except Unreachable:
            if time.monotonic() > give_up:
                raise
            time.sleep(PAUSE_S)
        except NotFound:
            return form


def _log(server: Connection, kind: str, name: str, offset: int, *, follow: bool) -> Any:
    found: Iterator[bytes] = server.stream(at(kind, name, "logs"), follow=follow, offset=offset)
    return found


def _over(server: Connection, kind: str, ref: str, give_up: float | None = None) -> Form | None:
    """A job or task that is over; None when it was forgotten. Raises TimeoutError."""
    while True:
        left_s = ASK_EVERY_S if give_up is None else min(ASK_EVERY_S, max(give_up - time.monotonic(), 0))
        answer = server.get(at(kind, ref, "wait"), patient=True, timeout_s=left_s)
        if answer["over"]:
            form: Form | None = answer[_ONE[kind]]
            return form
        if give_up is not None and time.monotonic() >= give_up:
            raise TimeoutError


def _wait_for(server: Connection, kind: str, names: Sequence[str], timeout_s: float | None) -> int:
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        codes = [exit_code(_over(server, kind, name, give_up)) for name in names]
    except KeyboardInterrupt:
        return INTERRUPTED
    except TimeoutError:
        raise TimedOut(f"not done after {timeout_s:g} s", fix="wait longer with --timeout") from None
    return next((code for code in codes if code), 0)


def exit_code(form: Mapping[str, Any] | None) -> int:
    """What a waiting command exits with: the job's or task's own code where there is one."""
    if form is None:
        return 1
    if form["exit_code"] is not None:
        return int(form["exit_code"])
    state = form.get("status") or form["state"]
    if state == jb.STOPPED:
        return jb.EXIT_STOPPED
    if state in (jb.SUCCEEDED, FINISHED):
        return 0
    return jb.EXIT_NEVER_RAN if form["started_at"] is None else 1


def _tell(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
