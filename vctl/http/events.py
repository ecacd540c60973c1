"""The stream of events: each event is read and encoded once for all who listen, who only choose by their scope.

The newest events are kept, encoded. A listener that is behind them, because it asked for older events or reads slowly,
reads on its own until it has caught up, so nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from typing import NamedTuple

from starlette.requests import HTTPConnection

from vctl.core.text import harmless
from vctl.errors import NotFound, param
from vctl.http.context import Server, asking, within
from vctl.ops import forms, jobs, privacy, scope
from vctl.spec.documents import EventForm
from vctl.store import feed
from vctl.store.store import Store

SAFETY_S = 1.0
HEARTBEAT_S = 15.0
BATCH = 500
"""The most events of one read."""
RECENT = 1000
"""How many events are kept at least, once there are so many."""


class SentEvent(NamedTuple):
    """An event as it is sent."""

    seq: int
    job_id: int | None
    text: bytes


class Scope:
    """The events of a cluster and those below it, for all who listen to these."""

    def __init__(self, known: scope.Condition) -> None:
        self.known = known
        """The condition of the previous read, as the last events of a cluster come after its deletion."""
        self.listeners = 0
        self.since: int | None = None
        """It is known which events after this number concern it; None before the first read."""
        self.numbers: set[int] = set()
        """The numbers of these events, as far as they are kept."""


class News(NamedTuple):
    """What one read has found."""

    events: list[SentEvent]
    last: int
    """The number up to which everything was read."""
    more: bool


class Broadcast:
    """The newest events of one server, read while anybody listens."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reading: asyncio.Task[None] | None = None
        self._listeners = 0
        self._scopes: dict[str, Scope] = {}
        self._events: list[SentEvent] = []
        self._numbers: list[int] = []
        self._since: int | None = None
        """All events after this number, up to ``_last``, are kept; None before the first read."""
        self._last = 0
        self._news = asyncio.Event()
        self._failure: Exception | None = None

    async def events(
        self, after: int, job: int | None, cluster: str | None, known: scope.Condition
    ) -> AsyncIterator[bytes]:
        """Server-sent events after a number until the client disconnects; comments keep the connection alive."""
        yield b"retry: 1000\n\n"
        identity = asking()
        sees_all = identity is None or identity.is_admin
        quiet_since = time.monotonic()
        with self._listening(cluster, known) as own:
            while not self._server.changes.ended:
                news, more = self._news, False
                if self._failure is not None:
                    raise self._failure
                if sees_all and (batch := self._after(after, own)) is not None:
                    after = max(after, self._last)
                else:
                    read, known = await self._server.read(partial(_own, after, cluster, known))
                    batch, after, more = read
                if text := b"".join(event.text for event in batch if job is None or event.job_id == job):
                    quiet_since = time.monotonic()
                    yield text
                if not more and not news.is_set():
                    await within(news, quiet_since + HEARTBEAT_S - time.monotonic())
                if time.monotonic() - quiet_since >= HEARTBEAT_S:
                    quiet_since = time.monotonic()
                    yield b": still here\n\n"

    def _after(self, after: int, own: Scope | None) -> Sequence[SentEvent] | None:
        """The events of a scope after a number; None if not all of them are kept."""
        for since in (self._since, self._since if own is None else own.since):
            if since is None or after < since:
                return None
        events = self._events[bisect_right(self._numbers, after) :]
        return events if own is None else [event for event in events if event.seq in own.numbers]

    @contextmanager
    def _listening(self, cluster: str | None, known: scope.Condition) -> Iterator[Scope | None]:
        """Read while somebody listens."""
        own = None if cluster is None else self._scopes.setdefault(cluster, Scope(known))
        self._listeners += 1
        if own is not None:
            own.listeners += 1
        if self._reading is None:
            self._since, self._failure = None, None
            # in the name of the service: the first listener's may not be that of the others
            self._reading = asyncio.create_task(self._read(), context=Context())
        try:
            yield own
        finally:
            self._listeners -= 1
            if own is not None and cluster is not None:
                own.listeners -= 1
                if not own.listeners:
                    del self._scopes[cluster]
            if not self._listeners and self._reading is not None:
                self._reading.cancel()
                self._reading = None

    async def _read(self) -> None:
        """Read what is new, for all, until the server ends or the state cannot be read."""
        me = asyncio.current_task()
        try:
            while not self._server.changes.ended:
                ticket = self._server.changes.ticket()
                if self._since is None:
                    self._begin(await self._server.read(feed.last))
                    continue
                known = {cluster: own.known for cluster, own in self._scopes.items()}
                news, chosen = await self._server.read(partial(_shared, self._last, known))
                self._keep(news, chosen)
                if not news.more:
                    await within(ticket, SAFETY_S)
        except Exception as error:  # noqa: BLE001 - each listener raises it
            self._failure = error
        finally:
            if self._reading is me:
                self._reading = None
            self._wake()

    def _begin(self, last: int) -> None:
        self._events, self._numbers, self._since, self._last = [], [], last, last
        for own in self._scopes.values():
            own.since, own.numbers = None, set()
        self._wake()

    def _keep(self, news: News, chosen: Mapping[str, tuple[scope.Condition, set[int]]]) -> None:
        for cluster, (known, numbers) in chosen.items():
            if (own := self._scopes.get(cluster)) is not None:
                own.known = known
                if news.last > self._last:
                    own.since = self._last if own.since is None else own.since
                    own.numbers |= numbers
        if news.last == self._last:
            return
        self._events += news.events
        self._numbers += (event.seq for event in news.events)
        self._last = news.last
        if len(self._events) > 2 * RECENT:
            self._since = since = self._numbers[-RECENT - 1]
            del self._events[:-RECENT], self._numbers[:-RECENT]
            for own in self._scopes.values():
                own.numbers = {number for number in own.numbers if number > since}
        self._wake()

    def _wake(self) -> None:
        woken, self._news = self._news, asyncio.Event()
        woken.set()


def _own(
    after: int, cluster: str | None, known: scope.Condition, store: Store
) -> tuple[News, scope.Condition]:
    """The next events of one listener as it may see them, and the condition of its cluster now."""
    now = _now(store, cluster, known)
    return _matching(store, after, (f"{known[0]} OR {now[0]}", [*known[1], *now[1]])), now


def _shared(
    after: int, clusters: Mapping[str, scope.Condition], store: Store
) -> tuple[News, dict[str, tuple[scope.Condition, set[int]]]]:
    """The next events of all listeners; for each cluster its condition now, and the numbers of its events."""
    news, chosen = _matching(store, after, ("1", [])), {}
    for cluster, known in clusters.items():
        now = _now(store, cluster, known)
        values: list[object] = [after, news.last, *known[1], *now[1]]
        rows = feed.matching(
            store, f"seq > ? AND seq <= ? AND ({known[0]} OR {now[0]})", values, BATCH, first=True
        )
        chosen[cluster] = now, {int(row["seq"]) for row in rows}
    return news, chosen


def _matching(store: Store, after: int, concerned: scope.Condition) -> News:
    last = feed.last(store)
    if last <= after:
        return News([], after, more=False)
    values: list[object] = [after, last, *concerned[1]]
    rows = feed.matching(store, f"seq > ? AND seq <= ? AND ({concerned[0]})", values, BATCH, first=True)
    more = len(rows) == BATCH
    shown: Sequence[EventForm] = privacy.veiled(store, [forms.event(row) for row in rows])
    return News([_encoded(form) for form in shown], int(rows[-1]["seq"]) if more else last, more)


def _now(store: Store, cluster: str | None, known: scope.Condition) -> scope.Condition:
    """The condition of a cluster; of a deleted one the condition that it had."""
    with suppress(NotFound):
        return scope.of_events(store, cluster)
    return known


def _encoded(form: EventForm) -> SentEvent:
    data = harmless(json.dumps(form))
    return SentEvent(
        form["seq"], form["job_id"], f"id: {form['seq']}\nevent: {form['kind']}\ndata: {data}\n\n".encode()
    )


async def events_from(
    request: HTTPConnection, server: Server, after: int | None, job: str | None, cluster: str | None
) -> AsyncIterator[bytes]:
    """Server-sent events after a number, or from now on, of one job or of a cluster and those below it."""

    def start_of(store: Store) -> tuple[int, int | None, scope.Condition]:
        number = None if job is None else jobs.resolve_named(store, job, param("job"))
        return feed.last(store) if after is None else after, number, scope.of_events(store, cluster)

    start, number, known = await server.read(start_of)
    broadcast: Broadcast = request.app.state.broadcast
    return broadcast.events(start, number, cluster, known)
