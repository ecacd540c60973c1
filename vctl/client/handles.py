"""Jobs and tasks as objects. They store only an id; every method reads or changes the state."""

from __future__ import annotations

import codecs
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Protocol, Unpack

from vctl import operations
from vctl.client.fields import changes_of
from vctl.core.caller import Caller
from vctl.errors import TimedOut, known
from vctl.operations import declare, jobs, tasks
from vctl.operations.declare import Backend, Operation, P, R
from vctl.ops.background import Background, not_in_force
from vctl.ops.forms import exit_code
from vctl.spec.params import Limit, Param
from vctl.store.kept import OpenStores

if TYPE_CHECKING:
    from vctl.client.fields import JobFields
    from vctl.config import Config
    from vctl.ops.waiting import Kind
    from vctl.spec.documents import JobForm, TaskForm
    from vctl.store.store import Store

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

    def __init__(self, backend: ConfiguredBackend, ref: str) -> None:
        self.backend = backend
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
        remaining_s = None if give_up is None else max(0.0, give_up - time.monotonic())
        over, form = self.backend.wait(self.kind, self.ref, remaining_s)
        if not over:
            raise TimedOut(f"{self.ref} is not over after {timeout_s:g} s", fix="wait longer with timeout_s")
        # if it was deleted, info() raises NotFound
        return exit_code(self.info() if form is None else form)

    def logs(self, *, tail: int | None = None) -> str:
        """Its present output; ``tail``: only the last lines."""
        TAIL.check(tail)
        return b"".join(self.backend.log(self.kind, self.ref, tail=tail)).decode("utf-8", "replace")

    def follow(self) -> Iterator[str]:
        """Its output in parts as they are written, until it is over."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for block in self.backend.follow(self.kind, self.ref):
            if text := decoder.decode(block):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text


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
        return jobs.get_job(self.backend, self.ref, forecast=False)["status"]

    def stop(self, *, grace_s: float | None = None, wait: bool = True) -> JobForm:
        """Stop it, and by default wait until all its processes have ended."""
        jobs.stop(self.backend, self.ref, grace_s=grace_s)
        if wait:
            self.wait()
        return self.info()

    def edit(self, *, max_running: int | str | None = None, **fields: Unpack[JobFields]) -> JobForm:
        """Change what it asks for, as `Jobs.edit` does."""
        return jobs.edit(self.backend, self.ref, **changes_of({**fields, "max_running": max_running}))

    def rerun(self, *, failed: bool = False) -> Job:
        """Submit it again under a new id, or with ``failed`` what did not succeed of it, in place.

        ``Jobs.rerun`` takes other values of its fields.
        """
        return Job(self.backend, jobs.rerun(self.backend, self.ref, failed=failed)["submission_id"])


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


class ConfiguredBackend(Backend, Protocol):
    """A backend with its settings."""

    config: Config


class _Telling(Background):
    """Warns of settings of this program that the running scheduler does not have, when the program changes something.

    Python shows such a warning once for each line of the program.
    """

    def needed(self, store: Store) -> None:
        """Start a scheduler where the change in the open transaction needs one."""
        super().needed(store)
        if not (sentences := not_in_force(store, self.config)):
            return
        import inspect
        import warnings

        level, frame = 1, inspect.currentframe()
        assert frame is not None
        while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in _OWN:
            level, frame = level + 1, frame.f_back
        for sentence in sentences:
            warnings.warn(f"{sentence}. Restart it: `vctl daemon --stop`", stacklevel=level)


_OWN = ("vctl", "contextlib", "functools")
"""The modules between a line of a program and this one."""


class Local(declare.Local):
    """A state directory. Each call has a store of its own; it stays open for the calls after it."""

    def __init__(self, config: Config) -> None:
        self.home: Path = config.home()
        background = _Telling(config)
        stores = OpenStores(self.home, config.get("lock_timeout"))
        super().__init__(config, lambda: _attended(stores, background), background)

    def __repr__(self) -> str:
        return str(self.home)

    def opened(self) -> AbstractContextManager[Store]:
        """The opened state, for one operation."""
        return self._opened()


@contextmanager
def _attended(stores: OpenStores, background: Background) -> Iterator[Store]:
    """The kept store for one call, with the present job and settings of this process."""
    with stores.opened() as store:
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


def backend_of(address: str | os.PathLike[str] | None = None, token: str | None = None) -> ConfiguredBackend:
    """The backend for an address; None means the settings, as on the command line."""
    from vctl.config import load

    env = {**os.environ, **({} if token is None else {"VCTL_TOKEN": token})}
    if address is None:
        config = load(env=env)
        return Remote(config) if config.get("address") else Local(config)
    text = os.fspath(address)
    if "://" in text or text.startswith("unix:"):
        return Remote(load(env=env, flags={"address": text}))
    return Local(load(env=env, flags={"home": text}))
