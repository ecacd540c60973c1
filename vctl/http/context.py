"""The shared objects of all requests of a server: state directory, settings, token, and the watch for changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from starlette.requests import HTTPConnection

from vctl.config import Config
from vctl.core.caller import Caller
from vctl.core.identity import Identity
from vctl.errors import VctlError
from vctl.operations.declare import Context
from vctl.ops import privacy
from vctl.ops.background import Background, KeptScheduler
from vctl.ops.users import Users
from vctl.runtime.watch import MODIFY, Watch
from vctl.store.kept import OpenStores
from vctl.store.store import Store

T = TypeVar("T")
ASKING: ContextVar[Identity] = ContextVar("vctl_asking")
"""Who asks: set for each request of a shared service before anything opens the state."""
CALLER_HEADERS = ("x-vctl-job-id", "x-vctl-submission-id")
"""The headers in which a client names its job, so that the rights of that job apply to the request."""
OWN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR")
"""The variables that a job gets from the server if its submitter sent no environment."""
NEUTRAL = ("PATH", "LANG", "TZ")
"""Those of them that say nothing about the user of the server."""


class Changes:
    """Wakes waiting requests after every commit of any process."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._watch: Watch | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ended = False
        """Whether the server ends, so that waiting requests must return."""

    def start(self, path: Path) -> None:
        """Watch the file that every commit touches, from inside the event loop."""
        self._watch = Watch()
        self._watch.add(path, MODIFY)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._watch.fileno(), self._wake)

    def end(self) -> None:
        """Let all waiting requests return; may be called from a signal handler."""
        self.ended = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    def stop(self) -> None:
        """Stop watching."""
        if self._watch is not None and self._loop is not None:
            self._loop.remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = None

    def _wake(self) -> None:
        assert self._watch is not None
        self._watch.read()
        woken, self._event = self._event, asyncio.Event()
        woken.set()

    def ticket(self) -> asyncio.Event:
        """An event that the next change sets. Take it before reading the state, so that no change is missed."""
        return self._event


async def within(ticket: asyncio.Event, seconds: float) -> None:
    """Wait for the change that sets a ticket, for at most so many seconds."""
    try:
        await asyncio.wait_for(ticket.wait(), seconds)
    except TimeoutError:
        return


@dataclass
class Server:
    """One running server. ``token`` None: no token is required (a private socket, or ``--no-token`` on loopback).

    ``users``: of a shared service, whose requests have the identity of who asks; None in personal mode. ``address``: of
    that service.
    """

    home: Path
    config: Config
    token: str | None
    loopback: bool = True
    users: Users | None = None
    address: str = ""
    changes: Changes = field(default_factory=Changes)

    def __post_init__(self) -> None:
        self.background = Background(self.config) if self.users is None else KeptScheduler(self.config)
        self._own = None if self.users is None else self.users.own()
        self._stores = OpenStores(self.home, self.config.get("lock_timeout"))

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The state, for one operation in one thread; it stays open for later ones."""
        with self._stores.opened() as store:
            store.caller, store.local_node = None, self.config.local_node
            store.identity, store.address = ASKING.get(self._own), self.address
            try:
                yield self.background.attend(store)
            except VctlError as error:
                if store.identity is not None:
                    privacy.veil_error(store, error)
                raise

    async def read(self, query: Callable[[Store], T]) -> T:
        """Read the state from the event loop without blocking it."""

        def work() -> T:
            with self.store() as store:
                return query(store)

        return await asyncio.to_thread(work)

    def surroundings(self, given: Mapping[str, str] | None) -> Mapping[str, str]:
        """The environment of a job, with the settings of the server; of a shared service little of its own."""
        if self.users is not None:
            return (
                {name: os.environ[name] for name in NEUTRAL if name in os.environ} if given is None else given
            )
        if given is None:
            given = {name: os.environ[name] for name in OWN if name in os.environ}
        return {**self.background.settings(), **given}


def asking() -> Identity | None:
    """Who asks in this request of a shared service; None in personal mode."""
    return ASKING.get(None)


def server_of(request: HTTPConnection) -> Server:
    """The server of a request."""
    server = request.app.state.server
    assert isinstance(server, Server)
    return server


@contextmanager
def state(request: HTTPConnection) -> Iterator[Store]:
    """The state, for one request."""
    with server_of(request).store() as store:
        store.caller = Caller.of(request.headers, *CALLER_HEADERS)
        yield store


@contextmanager
def context_of(request: HTTPConnection) -> Iterator[Context]:
    """The state and the settings for the verb of one request."""
    server = server_of(request)
    with state(request) as store:
        yield Context(store, server.config, server.surroundings)
