"""Random sequences with users who have limits: ``report`` is the sum over the journal, and limits hold (spec 19)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests import limited
from tests.specification import spec
from tests.users import Users
from tests.world import World
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import RunningJob
from vctl.core.limits import Limit
from vctl.core.wording import timestamp
from vctl.engine import changes as ch
from vctl.engine.codec import decode
from vctl.ops import limits, report
from vctl.ops import nodes as node_ops
from vctl.store import feed

pytestmark = spec("19.accounting")

NAMES = ("ana", "bob")
HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS
FIELDS = {"CPU": ("cpu_hours", 1), "GPU": ("gpu_hours", 1), "memory": ("memory_gib_hours", 1 << 30)}


class Span:
    """One attempt as the journal tells it."""

    def __init__(self, job: RunningJob, began: int) -> None:
        self.job, self.began = job, began
        self.ended: int | None = None
        self.lost = False


class Book:
    """What the journal says about attempts; it asks no table."""

    def __init__(self, world: World) -> None:
        self.store = world.store
        self.seen = feed.last(self.store)
        self.spans: list[Span] = []
        self.open: dict[int, Span] = {}
        self.limits: dict[object, Limit] = {}
        self.checked = 0
        """The starts that were compared with a limit of GPU hours."""

    def read(self) -> None:
        for row in feed.journal(self.store, self.seen):
            self.seen = row["seq"]
            if row["change"] is not None:
                self.take(row["at"], decode(row["change"]))

    def take(self, at: int, change: ch.Change) -> None:
        if isinstance(change, ch.LimitSet):
            self.limits[change.limit.key] = change.limit
        elif isinstance(change, ch.LimitCleared):
            del self.limits[change.limit.key]
        elif isinstance(change, ch.JobStarted):
            self.check_hours(change)
            span = self.open[change.job.job_id] = Span(change.job, change.at)
            self.spans.append(span)
        elif isinstance(change, ch.JobEnded) and change.job_id in self.open:
            span = self.open.pop(change.job_id)
            span.ended = change.at
            span.lost = change.status == "FAILED" or change.reason == "Preempted"
        elif isinstance(change, ch.JobRequeued):
            span = self.open.pop(change.job.job_id)
            span.ended, span.lost = change.at, True

    def check_hours(self, start: ch.JobStarted) -> None:
        """No job with GPUs starts when its user has used the GPU hours of the day."""
        own = self.limits.get(("user", start.job.user, "gpu_hours", "day"))
        limit = own or self.limits.get(("user", "*", "gpu_hours", "day"))
        if limit is None or not start.job.held.get("GPU"):
            return
        self.checked += 1
        midnight = start.at // DAY_NS * DAY_NS
        used = sum(
            span.job.held.get("GPU", 0)
            * ((span.ended or start.at) // 1000 - max(span.began, midnight) // 1000)
            for span in self.spans
            if span.job.user == start.job.user and (span.ended or start.at) > midnight
        )
        assert used < limit.amount * 3_600 * 10**6, (start, limit)

    def hours(self, by: str, since: int, until: int) -> dict[str, dict[str, Fraction]]:
        """The hours of each key by field, in a time."""
        found: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        for span in self.spans:
            now = self.store.clock()
            began, ended = max(span.began, since), min(now if span.ended is None else span.ended, until)
            job = span.job
            key = {"user": job.user, "cluster": job.parent_id, "job": job.submission_id}[by]
            if ended <= began and not (span.began < until and (span.ended or now) > since):
                continue
            us = ended // 1000 - began // 1000
            for name, (field, unit) in FIELDS.items():
                hours = Fraction(job.held.get(name, 0) * us, 10_000 * unit * 3_600 * 10**6)
                found[key][field] += hours
                found[key][f"lost_{field}"] += hours if span.lost else 0
        return found


class Team(Users):
    """Users with names and limits."""

    def __init__(self, world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.user = NAMES[0]
        monkeypatch.setattr(node_ops, "author", lambda *_: self.user)
        monkeypatch.setattr(limits, "_has_account", lambda _: True)
        super().__init__(world, seed)
        self.actions += [(4, self.limit), (2, self.clear), (12, self.join), (12, self.exit_process)]
        self.actions.remove((2, self.forget_job))

    def submit(self) -> None:
        self.user = self.dice.choice(NAMES)
        super().submit()

    def submit_array(self) -> None:
        self.user = self.dice.choice(NAMES)
        super().submit_array()

    def limit(self) -> None:
        dice = self.dice
        resource, amount = dice.choice(
            [
                ("running_jobs", dice.choice([1, 2, 4, 6])),
                ("CPU", dice.choice([1, 2, 5, 9]) * 10_000),
                ("GPU", 10_000),
                ("gpu_hours", dice.choice([10, 100, 1_000])),
            ]
        )
        clusters = [
            row[0] for row in self.store.rows("SELECT cluster_id FROM clusters WHERE kind = 'logical'")
        ]
        whose = dice.choice(
            [{"user": dice.choice((*NAMES, "*"))}, {"cluster": dice.choice([PRIMARY, *clusters])}]
        )
        limits.set_limits(
            self.store, user=whose.get("user"), cluster=whose.get("cluster"),
            amounts={resource: dice.choice([amount, amount, None])},
            period="day" if resource == "gpu_hours" else "",
        )  # fmt: skip

    def clear(self) -> None:
        limits.clear(self.store, user=None, cluster=None, every=True)


def over(world: World) -> dict[object, int]:
    """By what the limits are exceeded now."""
    assert world.scheduler is not None
    state = world.scheduler.state
    assert state is not None
    running = state.running.jobs.values()
    return {(limit.key, user): amount for limit, user, amount in limited.exceeded(state.ledger, running)}


def agrees(world: World, book: Book, since: int, until: int, by: str) -> None:
    """Whether the report of a time is the sum over the journal."""
    lines = report.report(world.store, since=timestamp(since), until=timestamp(until), by=by)
    field = {"user": "user", "cluster": "cluster_id", "job": "submission_id"}[by]
    found: dict[str, Any] = {str(line[field]): line for line in lines}  # type: ignore[literal-required]
    reported = book.hours(by, since, until)
    for key in {*reported, *found}:
        for name in ("cpu_hours", "gpu_hours", "memory_gib_hours", "lost_cpu_hours", "lost_gpu_hours"):
            assert found.get(key, {}).get(name, 0.0) == float(reported[key][name]), (
                by,
                key,
                name,
                since,
                until,
            )


def windows(dice: Any, now: int) -> Iterator[tuple[int, int]]:
    yield 0, now + HOUR_NS
    for _ in range(3):
        edges = sorted(dice.randrange(0, now // 1000 + 2_000_000) * 1000 for _ in range(2))
        if edges[0] < edges[1]:
            yield edges[0], edges[1]


LONG = [pytest.param(seed, 200, marks=pytest.mark.soak) for seed in range(10, 40)]


@pytest.mark.parametrize(("seed", "steps"), [(1, 150), (2, 150), (3, 150), *LONG])
def test_reports_and_limits_in_random_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int
) -> None:
    with World(tmp_path / "state") as world:
        team, book = Team(world, seed, monkeypatch), Book(world)
        before: dict[object, int] = {}
        for step in range(steps):
            team.step()
            world.turn()
            book.read()
            now = over(world)
            assert all(amount <= before[key] for key, amount in now.items() if key in before), (now, before)
            changed = team.done[-1].startswith(("limit", "clear", "change_node"))
            assert changed or now.keys() <= before.keys(), (team.done[-3:], now, before)
            before = now
            if team.dice.random() < 0.05:
                world.sleep(3_600)
            if step % 10 == 9:
                for since, until in windows(team.dice, world.now()):
                    for by in ("user", "cluster", "job"):
                        agrees(world, book, since, until, by)
        assert len(book.spans) > 5
