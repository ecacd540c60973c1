"""What a job that does not fit means for those behind it, as a table; and rules over random traces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.trace import Given, Trace
from tests.specification import spec
from vctl.core import jobs as jb
from vctl.core.clusters import PRIMARY
from vctl.core.queue_policy import SECOND, QueuePolicy

pytestmark = spec("8.disciplines")

MINUTE = 60


def policy(text: str) -> QueuePolicy:
    """'fifo strict', 'fifo backfill depth=2', 'priority best-effort starve=60'."""
    order, discipline, *rest = text.split()
    more = dict(word.split("=") for word in rest)
    return QueuePolicy(
        order, discipline, starvation_after_ns=int(more.get("starve", 600)) * SECOND,
        backfill_depth=int(more.get("depth", 1)),
        max_running_jobs=int(more["most"]) if "most" in more else None,
        max_running_per_user=int(more["each"]) if "each" in more else None,
    )  # fmt: skip


def jobs(text: str) -> list[Given]:
    """'a:4c60s/90@0+5~u' is job a: 4 CPUs, runs 60 s, limit 90 s ('/-': none), comes at 0, priority 5, user u."""
    found = []
    for word in text.split():
        name, _, rest = word.partition(":")
        rest, _, user = rest.partition("~")
        rest, _, priority = rest.partition("+")
        rest, _, at = rest.partition("@")
        rest, _, limit = rest.partition("/")
        size, _, runs = rest.partition("c")
        runs = runs.removesuffix("s")
        true_limit = None if limit == "-" else int(limit or runs)
        found.append(
            Given(
                name,
                int(size),
                int(runs),
                at=int(at or 0),
                limit=true_limit,
                priority=int(priority or 0),
                user=user or "me",
            )
        )
    return found


CASES = {
    "strict: a blocked head blocks": (
        "fifo strict", 4, "a:3c10s h:4c10s b:1c5s", {"a": 0, "h": 10, "b": 20}),
    "strict: what could never run does not block": (
        "fifo strict", 4, "a:3c10s h:9c10s b:1c5s", {"a": 0, "b": 0}),
    "strict: a later job of higher priority becomes the head": (
        "priority strict", 4, "a:4c10s h:4c10s b:1c5s+1", {"b": 0, "a": 5, "h": 15}),
    "best-effort: later jobs pass": (
        "fifo best-effort", 4, "a:3c10s/- h:4c10s b:1c50s", {"a": 0, "b": 0, "h": 50}),
    "best-effort: a head that starved has room kept": (
        "fifo best-effort starve=60", 4,
        "a:3c70s/- h:4c10s b:1c40s c:1c40s@40 d:1c40s@80 e:1c40s@81",
        {"a": 0, "b": 0, "c": 40, "h": 80, "d": 90, "e": 90}),
    "best-effort: without starving the head is overtaken for ever": (
        "fifo best-effort starve=9999", 4,
        "a:3c70s/- h:4c10s b:1c41s c:1c41s@40 d:1c41s@80",
        {"a": 0, "b": 0, "c": 41, "d": 80, "h": 121}),
    "backfill: who ends before the reserved start passes": (
        "fifo backfill", 4, "a:3c10s h:4c10s b:1c10s c:1c11s", {"a": 0, "b": 0, "h": 10, "c": 20}),
    "backfill: who has no limit may not use what is reserved": (
        "fifo backfill", 4, "a:3c10s h:4c10s b:1c1s/-", {"a": 0, "h": 10, "b": 20}),
    "backfill: what is not reserved may be used by anybody": (
        "fifo backfill", 4, "a:2c10s g:1c10s h:3c10s b:1c99s/-", {"a": 0, "g": 0, "b": 0, "h": 10}),
    "backfill: a limit that was too long lets the head start earlier": (
        "fifo backfill", 4, "a:3c10s/100 h:4c10s b:1c5s", {"a": 0, "b": 0, "h": 10}),
    "backfill: no reserved start behind a job without a limit": (
        "fifo backfill", 4, "a:3c10s/- h:4c10s b:1c50s", {"a": 0, "b": 0, "h": 50}),
    "backfill: but once starved room is kept": (
        "fifo backfill starve=60", 4, "a:3c70s/- h:4c10s b:1c90s@65", {"a": 0, "h": 70, "b": 80}),
    "backfill: only the first head is reserved for": (
        "fifo backfill", 4, "a:3c10s h:4c10s i:4c10s b:1c10s", {"a": 0, "b": 0, "h": 10, "i": 20}),
    "limits: so many jobs at a time": (
        "fifo best-effort most=1", 4, "a:1c10s b:1c10s", {"a": 0, "b": 10}),
    "limits: so many jobs of a user at a time": (
        "fifo best-effort each=1", 4, "a:1c10s~x b:1c10s~x c:1c10s~y", {"a": 0, "c": 0, "b": 10}),
    "limits: a user at the limit does not block others": (
        "fifo strict each=1", 4, "a:1c10s~x b:1c10s~x c:1c10s~y", {"a": 0, "c": 0, "b": 10}),
}  # fmt: skip


@pytest.mark.parametrize(("how", "cpus", "given_jobs", "want"), CASES.values(), ids=CASES)
def test_when_jobs_start(how: str, cpus: int, given_jobs: str, want: dict[str, int]) -> None:
    trace = Trace(1, cpus, policy(how))
    trace.play(jobs(given_jobs))
    assert trace.started == want


REASONS = {
    "strict: those behind name the head": (
        "fifo strict", "a:3c10s h:4c10s b:1c10s", "1x1", jb.HEAD_OF_LINE, "job h"),
    "backfill: those kept back name the job": (
        "fifo backfill", "a:3c10s h:4c10s b:1c11s", "1x1", jb.HEAD_OF_LINE, "h"),
    "the cap of the cluster": ("fifo strict most=1", "a:3c10s b:1c9s", "1x1", jb.CAP_REACHED, "at most 1 job may run"),
    "the limit of a user": ("fifo strict each=1", "a:3c9s~x b:1c9s~x", "1x1;user=x", jb.USER_LIMIT, "of x"),
}  # fmt: skip


@pytest.mark.parametrize(("how", "given_jobs", "shape", "reason", "words"), REASONS.values(), ids=REASONS)
def test_why_jobs_wait(how: str, given_jobs: str, shape: str, reason: str, words: str) -> None:
    trace = Trace(1, 4, policy(how))
    for job in jobs(given_jobs):
        trace.submit(job)
    trace.round()
    assert trace.waits[shape][0] == reason
    assert words in trace.waits[shape][1]


TRACES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.integers(0, 20), st.integers(0, 40)),
    min_size=1, max_size=14,
).map(
    lambda found: [
        Given(f"j{n}", size, runs, nodes, at=at, limit=runs + more)
        for n, (size, nodes, runs, more, at) in enumerate(found)
    ]
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(TRACES)
def test_nobody_starts_later_than_first_reserved(found: list[Given]) -> None:
    trace = Trace(3, 4, policy("fifo backfill starve=99999"))
    trace.play(found)
    assert set(trace.started) == {job.name for job in found}
    late = {n: (trace.started[n], at) for n, at in trace.first_reserved.items() if trace.started[n] > at}
    assert not late


@settings(max_examples=30, deadline=None)
@given(TRACES, st.integers(2, 3))
def test_with_several_reservations_everybody_starts(found: list[Given], depth: int) -> None:
    trace = Trace(3, 4, policy(f"fifo backfill depth={depth} starve=99999"))
    trace.play(found)
    assert set(trace.started) == {job.name for job in found}


@pytest.mark.parametrize("every", [10, 50])
def test_every_head_gets_its_turn_for_an_earlier_start(every: int) -> None:
    """One after the other on one node; the first ends early, so all may move up, each after the one before it.

    Short jobs end on the other node, always beside the same running ones, also in the rhythm of the turns.
    """
    trace, lasts = Trace(2, 4, policy("fifo backfill depth=6 starve=9999999")), 100 * every
    heads = " ".join(f"h{n}:4c{lasts}s/{lasts}@1" for n in range(1, 7))
    ticks = " ".join(f"t{at}:1c1s/1@{at}" for at in range(every + 5, 90 * every, every))
    trace.play(jobs(f"filler:3c999999s/999999@0 r:4c10s/{lasts}@0 {heads} {ticks}"), until=90 * every)
    assert trace.first_reserved == {f"h{n}": lasts * n for n in range(1, 7)}
    kept = sorted(one.start_ns or 0 for one in trace.queues[PRIMARY].kept.values())
    assert [at // SECOND for at in kept] == [10 + lasts * n for n in range(1, 6)]


@settings(max_examples=25, deadline=None)
@given(TRACES)
def test_strict_never_overtakes(found: list[Given]) -> None:
    trace = Trace(3, 4, policy("fifo strict"))
    trace.play(found)
    arrival = sorted(found, key=lambda job: job.at)
    starts = [trace.started[job.name] for job in arrival]
    assert starts == sorted(starts)


@settings(max_examples=25, deadline=None)
@given(TRACES)
def test_a_starved_head_is_not_overtaken_for_ever(found: list[Given]) -> None:
    """From the moment it starves, at most the jobs that run then come before it; they last 30 s at most."""
    trace = Trace(3, 4, policy("fifo best-effort starve=20"))
    head = Given("head", 4, 5, 3, at=0)
    stream = [Given(f"s{n}", 2, 25, at=n * 3) for n in range(60)]
    trace.play([*stream, head, *found], until=400)
    assert trace.started["head"] <= 20 + 30 + MINUTE


def test_a_round_leaves_the_ledger_as_it_was() -> None:
    trace = Trace(2, 4, policy("fifo backfill"))
    for job in jobs("a:3c10s b:3c10s h:4c10s c:1c5s d:1c50s"):
        trace.submit(job)
    trace.round()
    free = dict(trace.ledger.available("kPrimaryClusterID"))
    trace.round()
    assert trace.ledger.available("kPrimaryClusterID") == free
    assert not [run for run in trace.ledger.charges if run.startswith("reserved")]
