"""Where a Python client finds the state: the tables of a directory, or a server. Both are backends of verbs.

When something is to be scheduled and no scheduler runs, one is started in the background, as commands do it. It is
no child of the process that uses the API, whose signals, threads and children are its own.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vctl import operations
from vctl.core.caller import Caller
from vctl.errors import known
from vctl.operations import declare
from vctl.operations.declare import Backend
from vctl.ops.background import Background

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.store.store import Store

Kind = Literal["jobs", "tasks"]
Pause = Callable[[float], None]
"""Sleep until something may have changed, but not longer than that many seconds."""

LOOK_EVERY_S = 0.5


class Place(Backend, Protocol):
    """Carries verbs out, and waits."""

    config: Config

    def waiting(self, kind: Kind, ref: str) -> Any:
        """A context that gives a ``Pause``; somebody schedules while it lasts, at least until that one is over."""


class Local(declare.Local):
    """The tables of a state directory. A store is opened for each call, so that threads share nothing."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, self.opened)
        self.home: Path = config.home()
        self._background = Background(config)

    def __repr__(self) -> str:
        return str(self.home)

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The state, for one piece of work."""
        from vctl.store.store import Store

        with Store.open(self.home, lock_timeout_s=self.config.get("lock_timeout")) as store:
            store.caller = Caller.of(os.environ)
            store.local_node = bool(self.config.get("local_node"))
            try:
                yield self._background.attend(store)
            except Exception as error:
                if (plain := known(error)) is not None and plain is not error:
                    raise plain from error
                raise

    @contextmanager
    def waiting(self, kind: Kind, ref: str) -> Iterator[Pause]:  # noqa: ARG002  # a server is told what for
        """Wakes by inotify after every commit."""
        from vctl.runtime.watch import MODIFY, Watch
        from vctl.store.store import Store

        with Watch() as watch:
            with Store.open(self.home) as store:
                watch.add(store.watched(), MODIFY)
            poll = select.poll()
            poll.register(watch.fileno(), select.POLLIN)

            def pause(most_s: float) -> None:
                self._background.see_to_it()
                poll.poll(max(0.0, min(most_s, LOOK_EVERY_S)) * 1000)
                watch.read()

            yield pause


class Remote(declare.Remote):
    """A server, with one connection for each call."""

    def __init__(self, config: Config) -> None:
        super().__init__(lambda: closing(operations.connection.connect(config)))
        self.config = config

    def __repr__(self) -> str:
        return str(self.config.get("address"))

    @contextmanager
    def waiting(self, kind: Kind, ref: str) -> Iterator[Pause]:
        """The server tells when the one that is waited for is over, and sees to it that somebody schedules."""
        with closing(operations.connection.connect(self.config)) as server:

            def pause(most_s: float) -> None:
                began = time.monotonic()
                wait_s = max(0.0, min(most_s, LOOK_EVERY_S))
                server.get(operations.connection.at(kind, ref, "wait"), patient=True, timeout_s=wait_s)
                time.sleep(max(0.0, min(wait_s, 0.05) - (time.monotonic() - began)))

            yield pause
