"""Waiting for a server, as ``vctl.daemon.waiting`` does for the tables. The server lets somebody schedule."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from vctl.errors import NotFound, Unreachable
from vctl.operations.connection import PATIENCE_S, PAUSE_S, Connection, at
from vctl.ops.logs import write_out

if TYPE_CHECKING:
    from vctl.config import Config

Form = dict[str, Any]

_ONE = {"jobs": "job", "tasks": "task"}


class Waiter:
    """Waits for something that a server knows."""

    longest_s = 20.0

    def __init__(self, store: Connection, config: Config) -> None:
        self.store = store
        self.config = config
        self._seen: dict[tuple[str, str], Form] = {}

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def state(self, kind: str, name: str) -> str | None:
        """The state of a job, an array or a task; None when it was forgotten."""
        seen = self._seen.pop((kind, name), None) or self._ask(kind, name, 0)
        form = seen[_ONE[kind]]
        return None if form is None else str(form.get("status") or form["state"])

    def form(self, kind: str, name: str) -> Form | None:
        """The same with all about it."""
        form: Form | None = self._ask(kind, name, 0)[_ONE[kind]]
        return form

    def waits_for_itself(self, name: str) -> str | None:
        """When a job or a task cannot start before one has ended that submitted it: says so."""
        found: str | None = self.store.get(at("jobs", name, "why")).get("waits_for_itself")
        return found

    def output(self, kind: str, name: str) -> Output:
        """What it writes, for stdout."""
        return Output(self.store, kind, name)

    def rest(self, kind: str, name: str, most_s: float) -> None:
        """Until it is over, but not longer."""
        if kind not in _ONE:
            self.store.get(at(kind, name, "wait"), patient=True, timeout_s=max(0.0, most_s))
            return
        began = time.monotonic()
        self._seen[kind, name] = self._ask(kind, name, most_s)
        time.sleep(max(0.0, min(most_s, 0.05) - (time.monotonic() - began)))

    def _ask(self, kind: str, name: str, most_s: float) -> Form:
        try:
            answer: Form = self.store.get(at(kind, name, "wait"), patient=True, timeout_s=max(0.0, most_s))
        except NotFound:
            return {_ONE[kind]: None}
        return answer


class Output:
    """What a job or task writes, copied to stdout byte for byte; a server that restarts is waited for."""

    def __init__(self, server: Connection, kind: str, name: str) -> None:
        self.server = server
        self.path = at(kind, name, "logs")
        self.shown = 0
        self._give_up: float | None = None

    def copy(self, *, to_the_end: bool) -> None:
        """Write what is new, and go on until the writer is over if that is asked for."""
        try:
            blocks: Iterator[bytes] = self.server.stream(self.path, follow=to_the_end, offset=self.shown)
            with closing(blocks):  # type: ignore[type-var]  # a generator has close
                for block in blocks:
                    self.shown += len(block)
                    write_out(block)
            self._give_up = None
        except NotFound:
            return
        except Unreachable:
            now = time.monotonic()
            self._give_up = self._give_up or now + PATIENCE_S
            if now > self._give_up:
                raise
            time.sleep(PAUSE_S)
