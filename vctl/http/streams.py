"""Answers that wait: growing logs, ends of jobs and tasks, and the stream of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fastapi.responses import StreamingResponse

from vctl import ops
from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.text import harmless
from vctl.errors import NotFound, Unreachable, param
from vctl.http.context import Server, within
from vctl.ops import forms, jobs, logs, scope, tasks
from vctl.store import feed
from vctl.store.store import Row, Store

Form = Mapping[str, Any]
IsGone = Callable[[], Awaitable[bool]]
"""Asks whether the client has disconnected."""

LOOK_EVERY_S = 0.1
"""Seconds between reads of a growing log; commits are noticed at once."""
SAFETY_S = 1.0
HEARTBEAT_S = 15.0
BATCH = 500


def binary(parts: AsyncIterator[bytes] | Iterator[bytes]) -> StreamingResponse:
    """A response with raw bytes."""
    return StreamingResponse(
        parts, media_type="application/octet-stream", headers={"Cache-Control": "no-store"}
    )


class Kind(NamedTuple):
    """Jobs or tasks: how one is read, where its log is, and its final states."""

    get: Callable[[Store, Any], Form]
    log_path: Callable[[Store, str], Path]
    state: str
    final: frozenset[str]

    def look(self, store: Store, ref: str | int) -> Form | None:
        """The JSON form of a job or task; None when it was deleted."""
        try:
            return self.get(store, ref)
        except NotFound:
            return None

    def is_over(self, form: Form | None) -> bool:
        """Whether a job or task is over or deleted."""
        return form is None or form[self.state] in self.final


JOBS = Kind(jobs.get_job, jobs.log_path, "status", jb.FINAL)
TASKS = Kind(tasks.get_task, tasks.log_path, "state", tk.FINAL)


def _ref(form: Form) -> str | int:
    """A reference to this job, array or task, which no later one can have."""
    return (
        str(form["task_id"]) if "task_id" in form else form["submission_id" if "array" in form else "job_id"]
    )


async def log_of(
    server: Server, kind: Kind, name: str, *, follow: bool, offset: int, tail: int | None
) -> StreamingResponse:
    """The output of a job or a task."""
    if follow:
        return binary(_quietly(await followed(server, kind, name, offset)))
    _, path = await server.read(lambda store: (kind.get(store, name), kind.log_path(store, name)))
    return binary(logs.read_log(path, offset=offset, tail=tail))


async def followed(server: Server, kind: Kind, name: str, offset: int = 0) -> AsyncIterator[bytes]:
    """The output of a job or a task until that is over.

    Raises NotFound before the first part, Unreachable if no scheduler runs and none may be started.
    """
    form, path = await server.read(lambda store: (kind.get(store, name), kind.log_path(store, name)))
    ref = _ref(form)
    return _follow(server, path, offset, lambda store: kind.is_over(kind.look(store, ref)))


async def _follow(
    server: Server, path: Path, offset: int, is_over: Callable[[Store], bool]
) -> AsyncIterator[bytes]:
    """The blocks of a log until its writer is over and all its output was sent, or until the server ends."""
    while not server.changes.ended:
        ticket = server.changes.ticket()
        over = await server.read(is_over)
        for sent_to, block in logs.new_pieces(path, offset):
            yield block
            offset = sent_to
        if over:
            return
        await _see_to_it(server)
        await within(ticket, LOOK_EVERY_S)


async def _quietly(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The blocks; they end where no scheduler may run, and the client gets the error with the state."""
    with suppress(Unreachable):
        async for block in blocks:
            yield block


async def wait_for(
    server: Server, kind: Kind, name: str, timeout_s: float, is_gone: IsGone
) -> tuple[bool, Form | None]:
    """Whether a job or task is over, and its JSON form; at its end, after the timeout, or without a client."""
    ref = _ref(await server.read(lambda store: kind.get(store, name)))
    give_up = time.monotonic() + timeout_s
    while True:
        ticket = server.changes.ticket()
        form = await server.read(lambda store: kind.look(store, ref))
        left_s = give_up - time.monotonic()
        if (over := kind.is_over(form)) or server.changes.ended or await is_gone():
            return over, form
        await _see_to_it(server)
        if left_s <= 0:
            return over, form
        await within(ticket, min(left_s, SAFETY_S))


async def wait_until_gone(
    server: Server, cluster_id: str, timeout_s: float, is_gone: IsGone
) -> dict[str, Any]:
    """``{gone}``: whether a cluster is deleted; at its end, after the timeout, or without a client."""
    give_up = time.monotonic() + timeout_s
    while True:
        ticket = server.changes.ticket()
        form = await server.read(lambda store: _look_at(store, cluster_id))
        left_s = give_up - time.monotonic()
        if form is None or left_s <= 0 or server.changes.ended or await is_gone():
            return {"gone": form is None}
        await _see_to_it(server)
        await within(ticket, min(left_s, SAFETY_S))


async def events_from(
    server: Server, after: int | None, job: str | None, cluster: str | None
) -> AsyncIterator[str]:
    """Server-sent events after a number, or from now on, of one job or of a cluster and those below it."""

    def look(store: Store) -> tuple[int, int | None, scope.Condition]:
        number = None if job is None else jobs.resolve_named(store, job, param("job"))
        return feed.last(store) if after is None else after, number, scope.of_events(store, cluster)

    start, number, concerned = await server.read(look)
    return _events(server, start, number, cluster, concerned)


async def _events(
    server: Server, after: int, job: int | None, cluster: str | None, concerned: scope.Condition
) -> AsyncIterator[str]:
    """The events until the client disconnects; comments keep the connection alive."""
    yield "retry: 1000\n\n"
    quiet_since = time.monotonic()
    while not server.changes.ended:
        ticket, seen = server.changes.ticket(), after
        found, after, concerned = await server.read(
            partial(_next, seen=seen, cluster=cluster, known=concerned)
        )
        for row in found:
            if job is None or row["job_id"] == job:
                quiet_since = time.monotonic()
                yield f"id: {row['seq']}\nevent: {row['kind']}\ndata: {harmless(json.dumps(forms.event(row)))}\n\n"
        if len(found) < BATCH:
            await within(ticket, SAFETY_S)
        if time.monotonic() - quiet_since > HEARTBEAT_S:
            quiet_since = time.monotonic()
            yield ": still here\n\n"


def _next(
    store: Store, seen: int, cluster: str | None, known: scope.Condition
) -> tuple[list[Row], int, scope.Condition]:
    """The next events of a cluster and the clusters below it, the last number that was read, and their condition.

    ``known`` is the condition of the previous read, as the last events of a cluster come after its deletion.
    """
    last, now = feed.last(store), known
    with suppress(NotFound):
        now = scope.of_events(store, cluster)
    if last <= seen:
        return [], seen, now
    condition = f"seq > ? AND seq <= ? AND ({known[0]} OR {now[0]})"
    found = feed.matching(store, condition, [seen, last, *known[1], *now[1]], BATCH, first=True)
    return found, last if len(found) < BATCH else int(found[-1]["seq"]), now


async def _see_to_it(server: Server) -> None:
    """Start a scheduler if none runs, because a client waits. Raises Unreachable if none may be started."""
    await asyncio.to_thread(server.background.see_to_it)


def _look_at(store: Store, cluster_id: str) -> Form | None:
    """The JSON form of a cluster, None when it is deleted."""
    try:
        return ops.cluster_views.get_cluster(store, cluster_id)
    except NotFound:
        return None
