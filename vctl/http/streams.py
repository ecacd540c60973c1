"""Answers that wait: growing logs, ends of jobs and tasks, and the stream of events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, suppress

from fastapi.responses import StreamingResponse

from vctl.errors import Unreachable
from vctl.http.context import Server, within
from vctl.ops import jobs, logs, tasks, waiting
from vctl.ops.waiting import Kind, Watched
from vctl.store.store import Store

IsDisconnected = Callable[[], Awaitable[bool]]
"""Asks whether the client has disconnected."""

POLL_EVERY_S = 0.1
"""Seconds between reads of a growing log; commits are noticed at once."""
SAFETY_S = 1.0


def binary(parts: AsyncIterator[bytes] | Iterator[bytes]) -> StreamingResponse:
    """A response with raw bytes."""
    return StreamingResponse(
        parts, media_type="application/octet-stream", headers={"Cache-Control": "no-store"}
    )


async def log_of(
    server: Server, kind: Kind, name: str, *, follow: bool, offset: int, tail: int | None
) -> StreamingResponse:
    """The output of a job or a task."""
    if follow:
        return binary(_quietly(await followed(server, kind, name, offset)))
    _, log = await server.read(lambda store: _exact(store, kind, name))
    return binary(log.read(offset=offset, tail=tail))


def _exact(store: Store, kind: Kind, name: str) -> tuple[str | int, logs.Log]:
    """The exact reference of a job or task, and its log. Raises NotFound."""
    return waiting.exact(store, kind, name), (jobs if kind == waiting.JOBS else tasks).log(store, name)


async def followed(server: Server, kind: Kind, name: str, offset: int = 0) -> AsyncIterator[bytes]:
    """The output of a job or a task until that is over.

    Raises NotFound before the first part, Unreachable if no scheduler runs and none may be started.
    """
    ref, log = await server.read(lambda store: _exact(store, kind, name))
    return _follow(server, kind, ref, log.growing(offset))


async def _follow(server: Server, kind: Kind, ref: str | int, log: logs.Growing) -> AsyncIterator[bytes]:
    """The blocks of a log until its writer is over and all its output was sent, or until the server ends."""
    with closing(log):
        while not server.changes.ended:
            ticket = server.changes.ticket()
            over = await server.read(lambda store: waiting.has_ended(store, kind, ref))
            give_up = time.monotonic() + SAFETY_S
            while True:
                for block in log.new():
                    yield block
                if over:
                    for block in log.rest():
                        yield block
                    return
                if ticket.is_set() or time.monotonic() >= give_up:  # the end of the server sets it, too
                    break
                await within(ticket, POLL_EVERY_S)
            await _see_to_it(server)


async def _quietly(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The blocks; they end where no scheduler may run, and the client gets the error with the state."""
    with suppress(Unreachable):
        async for block in blocks:
            yield block


async def wait_for(
    server: Server, kind: Kind, name: str, timeout_s: float, is_disconnected: IsDisconnected
) -> Watched:
    """Whether something is over, and its JSON form; at its end, after the timeout, or without a client.

    Raises NotFound for a job or task that is not there at the beginning.
    """
    ref = await server.read(lambda store: waiting.exact(store, kind, name))
    give_up = time.monotonic() + timeout_s
    while True:
        ticket = server.changes.ticket()
        over = await server.read(lambda store: waiting.has_ended(store, kind, ref))
        remaining_s = give_up - time.monotonic()
        if not (over or server.changes.ended or await is_disconnected()):
            await _see_to_it(server)
            if remaining_s > 0:
                await within(ticket, min(remaining_s, SAFETY_S))
                continue
        return await server.read(lambda store: waiting.poll(store, kind, ref))


async def _see_to_it(server: Server) -> None:
    """Start a scheduler if none runs, because a client waits. Raises Unreachable if none may be started."""
    await asyncio.to_thread(server.background.see_to_it)
