"""The stream of events for many listeners: each event is read and encoded once, and each gets exactly its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from vctl import ops
from vctl.config import load
from vctl.core.clusters import ClusterSpec
from vctl.errors import Conflict
from vctl.http import events
from vctl.http.context import Server
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.store import feed
from vctl.store.store import Store

pytestmark = spec("14.streams")

ANY_SIZE: ClusterSpec = parse_cluster_spec({"flexible_resource_max": {"CPU": 4}})


class Site:
    """A state directory, a server that watches it, and its broadcast."""

    def __init__(self, home: Path) -> None:
        config = load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"})
        self.store = Store.open(home)
        ops.nodes.add(self.store, resources={"CPU": 40_000}, node_id="n", template="t")
        self.server = Server(home, config, None)
        self.broadcast = events.Broadcast(self.server)
        self.listening: list[asyncio.Task[None]] = []
        self.names: list[str] = []
        self.jobs: list[str] = []

    def run(self, play: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def inside() -> None:
            self.server.changes.start(self.store.watched())
            try:
                await play()
            finally:
                for task in self.listening:
                    task.cancel()
                await asyncio.gather(*self.listening, return_exceptions=True)
                self.server.changes.stop()

        try:
            asyncio.run(inside())
        finally:
            self.store.close()

    async def stream(self, after: int | None, job: str | None, cluster: str | None) -> AsyncIterator[bytes]:
        """What the route answers with."""
        number = None if job is None else ops.jobs.resolve(self.store, job)
        known = ops.scope.of_events(self.store, cluster)
        start = feed.last(self.store) if after is None else after
        async for block in self.broadcast.events(start, number, cluster, known):
            yield block

    def listen(
        self,
        after: int | None = None,
        job: str | None = None,
        cluster: str | None = None,
        pause_s: float = 0.0,
    ) -> list[int]:
        """The numbers of the events that a listener gets, as they come."""
        got: list[int] = []

        async def read() -> None:
            async for block in self.stream(after, job, cluster):
                got.extend(int(line[4:]) for line in block.split(b"\n") if line.startswith(b"id: "))
                await asyncio.sleep(pause_s)

        self.listening.append(asyncio.create_task(read()))
        return got

    def happen(self, count: int = 1) -> None:
        for _ in range(count):
            with self.store.transaction():
                self.store.event("node.told", "node", "n")

    def change(self, dice: random.Random) -> None:
        """A random commit: an event of no cluster, a new cluster below another one, a job in one, the end of a job."""
        kind = dice.randrange(5)
        if kind == 1 and len(self.names) < 9:
            above = dice.choice([*self.names, None])
            self.names.append(f"c{len(self.names)}")
            ops.clusters.create(
                self.store, self.names[-1], ClusterChange(spec=ANY_SIZE, divisible=True), parent_id=above
            )
        elif kind in (2, 3) and self.names:
            request = JobRequest(argv=("true",), cluster=dice.choice(self.names), hold=True)
            self.jobs.append(ops.submitting.submit(self.store, request)["submission_id"])
        elif kind == 4 and self.jobs:
            ops.jobs.stop(self.store, self.jobs.pop(dice.randrange(len(self.jobs))))
        else:
            self.happen()


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    for _ in range(int(within_s / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true")


def test_each_event_is_encoded_once_for_all_who_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding 34: each listener read and encoded each event by itself."""
    encoded: list[int] = []
    encode = events._encoded
    monkeypatch.setattr(events, "_encoded", lambda row: (encoded.append(row["seq"]), encode(row))[1])
    site = Site(tmp_path)

    async def play() -> None:
        first = feed.last(site.store)
        listeners = [site.listen() for _ in range(100)]
        await until(lambda: site.broadcast._since is not None)
        for _ in range(20):
            site.happen()
            await asyncio.sleep(0.01)
        wanted = list(range(first + 1, first + 21))
        await until(lambda: all(got == wanted for got in listeners))
        assert sorted(encoded) == wanted

    site.run(play)


def test_nobody_reads_when_nobody_listens(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def play() -> None:
        got = site.listen(after=0)
        await until(lambda: len(got) > 0)
        site.listening[0].cancel()
        await asyncio.gather(*site.listening, return_exceptions=True)
        assert site.broadcast._reading is None
        site.happen(3)
        again = site.listen(after=got[-1])
        await until(lambda: len(again) == 3)

    site.run(play)


def test_a_slow_listener_misses_nothing_and_nothing_is_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "RECENT", 5)
    monkeypatch.setattr(events, "BATCH", 7)
    site = Site(tmp_path)

    async def play() -> None:
        first = feed.last(site.store)
        quick, slow = site.listen(), site.listen(pause_s=0.2)
        await until(lambda: site.broadcast._since is not None)
        for _ in range(20):
            site.happen(5)
            await asyncio.sleep(0.01)
        wanted = list(range(first + 1, first + 101))
        await until(lambda: quick == wanted)
        assert len(site.broadcast._events) <= 2 * 5 + 7
        await until(lambda: slow == wanted)

    site.run(play)


def test_everybody_who_listens_is_told_that_the_state_cannot_be_read(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def play() -> None:
        version = site.store.value("PRAGMA user_version")
        for _ in range(3):
            site.listen()
        await until(lambda: site.broadcast._since is not None)
        site.store.db.execute("PRAGMA user_version = 9999")
        ended = await asyncio.wait_for(asyncio.gather(*site.listening, return_exceptions=True), 20)
        assert [type(one) for one in ended] == [Conflict] * 3
        site.store.db.execute(f"PRAGMA user_version = {version}")
        site.happen()
        got = site.listen(after=0)  # the next one begins anew
        await until(lambda: got[-1:] == [feed.last(site.store)])

    site.run(play)


@pytest.mark.parametrize("seed", range(6))
def test_each_listener_gets_what_a_list_of_its_scope_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random changes, and listeners that come at random moments, with random scopes and beginnings."""
    monkeypatch.setattr(events, "RECENT", 6)
    monkeypatch.setattr(events, "BATCH", 5)
    site, dice = Site(tmp_path), random.Random(seed)
    store = site.store
    listeners: list[tuple[tuple[Any, ...], list[int]]] = []

    async def play() -> None:
        for _ in range(60):
            for _ in range(dice.choice((1, 1, 1, 8))):
                site.change(dice)
            if dice.random() < 0.3:
                after = dice.choice((None, 0, dice.randrange(feed.last(store))))
                job = dice.choice((None, None, *site.jobs[-1:]))
                cluster = dice.choice((None, *site.names[:2], *site.names[-1:])) if job is None else None
                start = feed.last(store) if after is None else after
                pause_s = dice.choice((0.0, 0.0, 0.03))
                listeners.append(((start, job, cluster), site.listen(start, job, cluster, pause_s)))
            await asyncio.sleep(dice.choice((0, 0, 0.005, 0.03)))
        for (start, job, cluster), got in listeners:
            sql, values = ops.scope.of_events(store, cluster)
            number = None if job is None else ops.jobs.resolve(store, job)
            rows = feed.matching(store, f"seq > ? AND ({sql})", [start, *values], 10_000, first=True)
            wanted = [row["seq"] for row in rows if number is None or row["job_id"] == number]
            await until(lambda got=got, wanted=wanted: got == wanted)

    site.run(play)
