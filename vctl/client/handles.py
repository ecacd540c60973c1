"""A job and a task as objects to wait for. They keep nothing but an id; every question goes to the state."""

from __future__ import annotations

import codecs
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Concatenate, Generic

from vctl.client.place import LOOK_EVERY_S, Kind, Place
from vctl.core.jobs import FINAL as OVER
from vctl.core.tasks import FINAL as TASK_OVER
from vctl.errors import TimedOut
from vctl.operations import jobs, tasks
from vctl.operations.declare import Operation, P, R
from vctl.ops.forms import exit_code
from vctl.spec.documents import JobForm, TaskForm

FOLLOW_EVERY_S = 0.2


class _Own(Generic[P, R]):
    """A verb of one object as a method of it: the object gives the id."""

    def __init__(self, operation: Operation[Concatenate[str | int, P], R]) -> None:
        self.operation = operation

    def __get__(self, handle: Handle, owner: type | None = None) -> Callable[P, R]:
        return partial(handle.backend.call, self.operation, handle.ref)


class Handle(ABC):
    """What jobs and tasks have in common."""

    kind: ClassVar[Kind]

    def __init__(self, place: Place, ref: str) -> None:
        self.backend = place
        self.ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ref!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (other.kind, other.ref) == (self.kind, self.ref)

    def __hash__(self) -> int:
        return hash(self.ref)

    @abstractmethod
    def info(self) -> Mapping[str, Any]:
        """All about it, in the documented form."""

    def wait(self, *, timeout_s: float | None = None) -> int:
        """Until it is over; its exit code. Raises TimedOut."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        found = self.info()
        if _is_over(found):
            return exit_code(found)
        with self.backend.waiting(self.kind, self.ref) as pause:
            while not _is_over(found := self.info()):
                left_s = LOOK_EVERY_S if give_up is None else give_up - time.monotonic()
                if left_s <= 0:
                    raise TimedOut(
                        f"{self.ref} is not over after {timeout_s:g} s", fix="wait longer with timeout_s"
                    )
                pause(left_s)
        return exit_code(found)

    def logs(self, *, tail: int | None = None) -> str:
        """Its output as it is now; of its lines only the last ones when asked."""
        return b"".join(self.backend.log(self.kind, self.ref, tail=tail)).decode("utf-8", "replace")

    def follow(self) -> Iterator[str]:
        """Its output as it comes, until it is over."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offset = 0
        with self.backend.waiting(self.kind, self.ref) as pause:
            while True:
                over = _is_over(
                    self.info()
                )  # first the state, then the log: what was written before the end is shown
                content = b"".join(self.backend.log(self.kind, self.ref, offset=offset))
                offset += len(content)
                if text := decoder.decode(content, final=over):
                    yield text
                if over:
                    return
                pause(FOLLOW_EVERY_S)


class Job(Handle):
    """One job."""

    kind = "jobs"

    @property
    def submission_id(self) -> str:
        """Its id."""
        return self.ref

    hold = _Own(jobs.hold)
    release = _Own(jobs.release)
    delete = _Own(jobs.delete_one)

    def info(self) -> JobForm:
        """All about it, in the documented form."""
        return jobs.get_job(self.backend, self.ref)

    def status(self) -> str:
        """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; why is in ``info()``."""
        return self.info()["status"]

    def stop(self, *, grace_s: float | None = None, wait: bool = True) -> JobForm:
        """End it, and by default wait until all its processes are gone."""
        jobs.stop(self.backend, self.ref, grace_s=grace_s)
        if wait:
            self.wait()
        return self.info()

    def rerun(self) -> Job:
        """Submit it once more, as it was, under a new id."""
        return Job(self.backend, jobs.rerun(self.backend, self.ref)["submission_id"])


class Task(Handle):
    """One task."""

    kind = "tasks"

    @property
    def task_id(self) -> str:
        """Its id."""
        return self.ref

    def info(self) -> TaskForm:
        """All about it, in the documented form."""
        return tasks.get_task(self.backend, self.ref)

    def state(self) -> str:
        """PENDING_ARGS_AVAIL, PENDING_NODE_ASSIGNMENT, RUNNING, FINISHED or FAILED."""
        return self.info()["state"]

    def cancel(self, *, grace_s: float | None = None, wait: bool = True) -> TaskForm:
        """End it, and by default wait until its processes are gone."""
        tasks.cancel(self.backend, self.ref, grace_s=grace_s)
        if wait:
            self.wait()
        return self.info()


def _is_over(form: Mapping[str, Any]) -> bool:
    return form["status"] in OVER if "status" in form else form["state"] in TASK_OVER
