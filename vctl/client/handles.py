"""Jobs and tasks as objects. They store only an id; every method reads or changes the state."""

from __future__ import annotations

import codecs
import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, Protocol

from vctl import operations
from vctl.core.caller import Caller
from vctl.core.jobs import FINAL as OVER
from vctl.core.tasks import FINAL as TASK_OVER
from vctl.errors import TimedOut, known
from vctl.operations import declare, jobs, tasks
from vctl.operations.declare import Backend, Operation, P, R
from vctl.ops.background import Background
from vctl.ops.forms import exit_code
from vctl.spec.documents import JobForm, TaskForm
from vctl.spec.params import Limit, Param
from vctl.store.kept import OpenStores

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.store.store import Store

FOLLOW_EVERY_S = 0.2
TAIL = Param("tail", Limit, default=None)


class _Own(Generic[P, R]):
    """A verb of one job or task as a method, which passes the id of the object."""

    def __init__(self, operation: Operation[Concatenate[str | int, P], R]) -> None:
        self.operation = operation

    def __get__(self, handle: Handle, owner: type | None = None) -> Callable[P, R]:
        return partial(handle.backend.call, self.operation, handle.ref)


class Handle(ABC):
    """The common methods of jobs and tasks."""

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
        """Wait until it is over; returns its exit code. Raises TimedOut."""
        return self.wait_until(None if timeout_s is None else time.monotonic() + timeout_s, timeout_s)

    def wait_until(self, give_up: float | None, timeout_s: float | None) -> int:
        """Wait until it is over, or until a moment that is ``timeout_s`` after the beginning."""
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
        """Its present output; ``tail``: only the last lines."""
        TAIL.check(tail)
        return b"".join(self.backend.log(self.kind, self.ref, tail=tail)).decode("utf-8", "replace")

    def follow(self) -> Iterator[str]:
        """Its output in parts as they are written, until it is over."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offset = 0
        with self.backend.waiting(self.kind, self.ref) as pause:
            while True:
                # read the state before the log: then no output from before the end is missed
                over = _is_over(self.info())
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
        """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; ``info()`` has the reason."""
        return self.info()["status"]

    def stop(self, *, grace_s: float | None = None, wait: bool = True) -> JobForm:
        """Stop it, and by default wait until all its processes have ended."""
        jobs.stop(self.backend, self.ref, grace_s=grace_s)
        if wait:
            self.wait()
        return self.info()

    def rerun(self) -> Job:
        """Submit the same request again under a new id."""
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
        """Cancel it, and by default wait until its processes have ended."""
        tasks.cancel(self.backend, self.ref, grace_s=grace_s)
        if wait:
            self.wait()
        return self.info()


def _is_over(form: Mapping[str, Any]) -> bool:
    return form["status"] in OVER if "status" in form else form["state"] in TASK_OVER


Kind = Literal["jobs", "tasks"]
Pause = Callable[[float], None]
"""Sleeps until the state may have changed, at most the given seconds."""

LOOK_EVERY_S = 0.5


class Place(Backend, Protocol):
    """A backend that can also wait."""

    config: Config

    def waiting(self, kind: Kind, ref: str) -> Any:
        """A context that yields a ``Pause``; a scheduler runs at least until the job or task is over."""


class Local(declare.Local):
    """A state directory. Each call has a store of its own; it stays open for the calls after it."""

    def __init__(self, config: Config) -> None:
        self.home: Path = config.home()
        self._background = background = Background(config)
        kept = OpenStores(self.home, config.get("lock_timeout"))
        super().__init__(config, lambda: _attended(kept, background))

    def __repr__(self) -> str:
        return str(self.home)

    def opened(self) -> AbstractContextManager[Store]:
        """The opened state, for one operation."""
        return self._opened()

    @contextmanager
    def waiting(self, kind: Kind, ref: str) -> Iterator[Pause]:  # noqa: ARG002  # only ``Remote`` uses them
        """A ``Pause`` that inotify ends after every commit."""
        from vctl.runtime.watch import MODIFY, Watch

        with Watch() as watch:
            with self.opened() as store:
                watch.add(store.watched(), MODIFY)
            poll = select.poll()
            poll.register(watch.fileno(), select.POLLIN)

            def pause(most_s: float) -> None:
                self._background.see_to_it()
                poll.poll(max(0.0, min(most_s, LOOK_EVERY_S)) * 1000)
                watch.read()

            yield pause


@contextmanager
def _attended(kept: OpenStores, background: Background) -> Iterator[Store]:
    """The kept store for one call, with the present job and settings of this process."""
    with kept.opened() as store:
        store.caller = Caller.of(os.environ)
        store.local_node = background.config.local_node
        try:
            yield background.attend(store)
        except Exception as error:
            if (plain := known(error)) is not None and plain is not error:
                raise plain from error
            raise


class Remote(declare.Remote):
    """A server, with one connection for each call."""

    def __init__(self, config: Config) -> None:
        super().__init__(lambda: closing(operations.connection.connect(config)))
        self.config = config

    def __repr__(self) -> str:
        return str(self.config.get("address"))

    @contextmanager
    def waiting(self, kind: Kind, ref: str) -> Iterator[Pause]:
        """A ``Pause`` that the server ends when the job or task is over; the server starts a scheduler if none runs."""
        with closing(operations.connection.connect(self.config)) as server:

            def pause(most_s: float) -> None:
                began = time.monotonic()
                wait_s = max(0.0, min(most_s, LOOK_EVERY_S))
                server.get(operations.connection.at(kind, ref, "wait"), patient=True, timeout_s=wait_s)
                time.sleep(max(0.0, min(wait_s, 0.05) - (time.monotonic() - began)))

            yield pause
