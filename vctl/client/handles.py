"""A job and a task as objects to wait for. They keep nothing but an id; every question goes to the state."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from vctl.client.place import LOOK_EVERY_S, Kind, Place
from vctl.core.jobs import FINAL as OVER
from vctl.core.tasks import FINAL as TASK_OVER
from vctl.errors import TimedOut
from vctl.operations import jobs, tasks
from vctl.ops.forms import exit_code
from vctl.spec import documents

FOLLOW_EVERY_S = 0.2


class Job:
    """One job."""

    def __init__(self, place: Place, submission_id: str) -> None:
        self._place = place
        self.submission_id = submission_id

    def __repr__(self) -> str:
        return f"Job({self.submission_id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.submission_id == self.submission_id

    def __hash__(self) -> int:
        return hash(self.submission_id)

    def info(self) -> documents.JobForm:
        """All about it, in the documented form."""
        return jobs.get_job(self._place, self.submission_id)

    def status(self) -> str:
        """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; why is in ``info()``."""
        return self.info()["status"]

    def wait(self, *, timeout_s: float | None = None) -> int:
        """Until it is over; its exit code. Raises TimedOut."""
        return exit_code(wait_until(self._place, "jobs", self.submission_id, self.info, timeout_s))

    def logs(self, *, tail: int | None = None) -> str:
        """Its output as it is now; of its lines only the last ones when asked."""
        content = b"".join(self._place.log("jobs", self.submission_id))
        return _text(content if tail is None else _last_lines(content, tail))

    def follow(self) -> Iterator[str]:
        """Its output as it comes, until the job is over."""
        return _follow(self._place, "jobs", self.submission_id, lambda: self.status() in OVER)

    def stop(self, *, grace_s: float | None = None, wait: bool = True) -> documents.JobForm:
        """End it, and by default wait until all its processes are gone."""
        jobs.stop(self._place, self.submission_id, grace_s=grace_s)
        if wait:
            self.wait()
        return self.info()

    def rerun(self) -> Job:
        """Submit it once more, as it was, under a new id."""
        return Job(self._place, str(jobs.rerun(self._place, self.submission_id)["submission_id"]))

    def hold(self) -> documents.JobForm:
        """Keep it from starting."""
        return jobs.hold(self._place, self.submission_id)

    def release(self) -> documents.JobForm:
        """Let it start again."""
        return jobs.release(self._place, self.submission_id)

    def delete(self) -> documents.JobForm:
        """Forget it with its log; it must be over."""
        return jobs.delete_one(self._place, self.submission_id)


class Task:
    """One task."""

    def __init__(self, place: Place, task_id: str) -> None:
        self._place = place
        self.task_id = task_id

    def __repr__(self) -> str:
        return f"Task({self.task_id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and other.task_id == self.task_id

    def __hash__(self) -> int:
        return hash(self.task_id)

    def info(self) -> documents.TaskForm:
        """All about it, in the documented form."""
        return tasks.get_task(self._place, self.task_id)

    def state(self) -> str:
        """PENDING_ARGS_AVAIL, PENDING_NODE_ASSIGNMENT, RUNNING, FINISHED or FAILED."""
        return self.info()["state"]

    def wait(self, *, timeout_s: float | None = None) -> int:
        """Until it is over; its exit code. Raises TimedOut."""
        return exit_code(wait_until(self._place, "tasks", self.task_id, self.info, timeout_s))

    def logs(self, *, tail: int | None = None) -> str:
        """Its output as it is now; of its lines only the last ones when asked."""
        content = b"".join(self._place.log("tasks", self.task_id))
        return _text(content if tail is None else _last_lines(content, tail))

    def follow(self) -> Iterator[str]:
        """Its output as it comes, until the task is over."""
        return _follow(self._place, "tasks", self.task_id, lambda: self.state() in TASK_OVER)

    def cancel(self, *, grace_s: float | None = None, wait: bool = True) -> documents.TaskForm:
        """End it, and by default wait until its processes are gone."""
        tasks.cancel(self._place, self.task_id, grace_s=grace_s)
        if wait:
            self.wait()
        return self.info()


F = TypeVar("F", bound=Mapping[str, Any])


def wait_until(place: Place, kind: Kind, ref: str, look: Callable[[], F], timeout_s: float | None) -> F:
    """Look until a job or task is over; somebody schedules meanwhile."""
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    found = look()
    if _is_over(found):
        return found
    with place.waiting(kind, ref) as pause:
        while not _is_over(found := look()):
            left_s = LOOK_EVERY_S if give_up is None else give_up - time.monotonic()
            if left_s <= 0:
                raise TimedOut(f"{ref} is not over after {timeout_s:g} s", fix="wait longer with timeout_s")
            pause(left_s)
    return found


def _is_over(form: Mapping[str, Any]) -> bool:
    return form["status"] in OVER if "status" in form else form["state"] in TASK_OVER


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _last_lines(content: bytes, count: int) -> bytes:
    return b"".join(content.splitlines(keepends=True)[-count:]) if count > 0 else b""


def _follow(place: Place, kind: Kind, ref: str, is_over: Callable[[], bool]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset = 0
    with place.waiting(kind, ref) as pause:
        while True:
            over = is_over()  # first the state, then the log: what was written before the end is shown
            content = b"".join(place.log(kind, ref, offset=offset))
            offset += len(content)
            if text := decoder.decode(content, final=over):
                yield text
            if over:
                return
            pause(FOLLOW_EVERY_S)
