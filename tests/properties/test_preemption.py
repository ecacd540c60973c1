"""Random contests for room: nobody of equal or higher priority goes, nobody too young, no half gang, no cycle, and the
room reaches the winner. The choice of victims is compared with trying every combination."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from random import Random

import pytest

from tests.scheduler import candidates as g
from tests.scheduler.contest import Contest
from tests.scheduler.trees import tree
from tests.specification import spec
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import (
    BACKFILL,
    BEST_EFFORT,
    FIFO,
    PRIORITY,
    REQUEUE,
    SECOND,
    STRICT,
    QueuePolicy,
)
from vctl.scheduler import preemption
from vctl.scheduler.gang_growth import find_growth
from vctl.scheduler.placement import Placed, place
from vctl.scheduler.preemption import Preempt
from vctl.scheduler.work import finished

pytestmark = spec("8.preemption")

NODES = ("2c", "4c", "4c 1g", "4c 2g")
SPECS = (
    lambda rng: g.spec(f"PACK: {rng.randint(1, 4)}c"),
    lambda rng: g.spec(f"PACK: {rng.randint(1, 2)}c"),
    lambda rng: g.spec(f"PACK: 1c {rng.choice(('0.5', '0.25', '1', '2'))}g"),
    lambda rng: g.spec("STRICT_SPREAD: " + ", ".join([f"{rng.randint(1, 3)}c"] * 2)),
    lambda rng: g.spec(f"PACK: {rng.randint(1, 2)}c, {rng.randint(1, 2)}c"),
    lambda rng: g.spec(flexible=f"{rng.randint(1, 6)}c"),
    lambda rng: g.spec(whole={rng.choice(("2c", "4c")): 1}),
)
MOST_ROUNDS = 60


def build(seed: int) -> tuple[Contest, Random]:
    rng = Random(seed)
    policy = QueuePolicy(
        order=rng.choice((PRIORITY, PRIORITY, FIFO)),
        discipline=rng.choice((BEST_EFFORT, BEST_EFFORT, STRICT, BACKFILL)),
        ageing_ns=rng.choice((None, None, 100 * SECOND)),
        preemption=REQUEUE,
        min_runtime_ns=rng.choice((0, 0, 200 * SECOND)),
    )
    there = Contest(g.ledger([rng.choice(NODES) for _ in range(rng.randint(1, 4))]), policy)
    for number in range(rng.randint(2, 9)):
        there.now = rng.randint(0, 900)
        there.submit(f"low{number}", rng.randint(0, 3), SPECS[rng.randrange(len(SPECS))](rng))
        there.round(preempts=False)
    there.now = 1_000
    for number in range(rng.randint(1, 4)):
        there.submit(f"high{number}", rng.randint(1, 6), SPECS[rng.randrange(len(SPECS))](rng))
    return there, rng


def tree_of(rng: Random) -> Ledger:
    """A flexible cluster below the primary or another one, with free capacity above; a sibling may lend."""
    nodes = [rng.choice(NODES) for _ in range(rng.randint(1, 3))]
    parent = rng.choice(("primary", "org"))
    most = rng.choice(("", "", "..4c 9g", "..6c 9g"))
    options = rng.choice(("", "", " borrow=2c"))
    clusters = (
        []
        if parent == "primary"
        else [f"org < primary [{rng.randint(0, 2)}c{rng.choice(('', '..8c 9g'))}]: n1~2c"]
    )
    clusters.append(f"team < {parent} [1c{most}]{options}: n1~1c")
    if rng.random() < 0.5 and nodes[0] != "2c":
        clusters.append(f"sib < {parent} [1c] lend={rng.choice(('1c', '2c', '0c'))}: n1~1c")
    return tree(", ".join(nodes), *clusters)


def build_elastic(seed: int) -> tuple[Contest, Random]:
    """The same in a flexible cluster: victims and growth may be needed together."""
    rng = Random(seed)
    policy = QueuePolicy(
        discipline=rng.choice((BEST_EFFORT, BEST_EFFORT, STRICT, BACKFILL)),
        preemption=REQUEUE,
        min_runtime_ns=rng.choice((0, 0, 200 * SECOND)),
    )
    there = Contest(tree_of(rng), policy, "team")
    for number in range(rng.randint(1, 5)):
        there.now = rng.randint(0, 900)
        there.submit(f"low{number}", rng.randint(0, 3), SPECS[rng.randrange(len(SPECS) - 1)](rng))
        there.round(preempts=False)
    there.now = 1_000
    for number in range(rng.randint(1, 3)):
        there.submit(f"high{number}", rng.randint(1, 6), SPECS[rng.randrange(len(SPECS) - 1)](rng))
    return there, rng


def check(seed: int, *, elastic: bool = False) -> int:
    """Let it come to rest, looking at every preemption; how many there were."""
    there, rng = build_elastic(seed) if elastic else build(seed)
    preempted: set[tuple[str, str]] = set()
    since: dict[str, int] = {}
    expected: list[PendingJob] = []
    count = 0
    for _ in range(MOST_ROUNDS):
        before = dict(there.running.jobs)
        held = {job_id: whole(there, job_id) for job_id in there.begun}
        leaving = set(there.ending)
        plan = there.round()
        for winner in expected:
            reaches(there, winner, since[winner.submission_id])
        expected = []
        for one in plan.preempts:
            count += 1
            since[one.job.submission_id] = there.log.index(_line_of(one))
            obey_rules(there, one, before, leaving)
            leaving |= {victim.job.job_id for victim in one.victims}
            for victim in one.victims:
                pair = (one.job.submission_id, victim.job.submission_id)
                assert pair[::-1] not in preempted, f"a cycle in seed {seed}"
                preempted.add(pair)
        assert {n: whole(there, n) for n in held if n in there.begun} == {
            n: held[n] for n in held if n in there.begun
        }
        if there.ending:
            job_id = rng.choice(sorted(there.ending))  # they go in any order, and others look in between
            waiting = {n for n, mark in there.queue.nominations.items() if mark.awaited == {job_id}}
            there.gone(job_id)
            expected = [there.queue.jobs[n] for n in sorted(waiting)]
        elif not (plan.starts or plan.preempts or plan.lapsed or plan.unsearched):
            break
    else:
        raise AssertionError(f"seed {seed} does not come to rest: {there.log}")
    assert there.queue.nominations == {}, (seed, there.log)
    return count


def whole(there: Contest, job_id: int) -> frozenset[str]:
    """What a job holds: all of it or nothing."""
    return frozenset(there.ledger.members.get(there.begun[job_id].start.cluster_id, ()))


def obey_rules(there: Contest, one: Preempt, before: dict[int, RunningJob], leaving: set[int]) -> None:
    for victim in one.victims:
        assert victim.job.job_id in before
        assert victim.job.job_id not in leaving
        assert victim.job.priority < one.job.priority
        ran_ns = there.now * SECOND - before[victim.job.job_id].started_at_ns
        assert ran_ns >= there.queue.policy.min_runtime_ns


def reaches(there: Contest, winner: PendingJob, since: int) -> None:
    """All its victims have gone: in the next round the winner starts, unless the room went to a higher priority."""
    priorities = {job.submission_id: job.priority for job in there.known.values()}
    started = [line.removeprefix("start ") for line in there.log[since:] if line.startswith("start ")]
    others = [*started, *(mark.submission_id for mark in there.queue.nominations.values())]
    higher = any(priorities[name] > winner.priority for name in others)
    assert winner.submission_id in started or higher, there.log


def _line_of(one: Preempt) -> str:
    names = " ".join(sorted(victim.job.submission_id for victim in one.victims))
    return f"preempt {names} for {one.job.submission_id}"


def check_all(seeds: Iterable[int], *, elastic: bool = False) -> int:
    """The number of preemptions; a failure names its seed."""
    count = 0
    for seed in seeds:
        try:
            count += check(seed, elastic=elastic)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return count


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_random_contests(first: int) -> None:
    assert check_all(range(first, first + 100)) > 10


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_random_contests_in_a_flexible_cluster(first: int) -> None:
    """Victims and growth together (spec 8: what is freed is held for the winner; spec 9: growth)."""
    assert check_all(range(first, first + 100), elastic=True) > 10


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_two_thousand_random_contests_in_flexible_clusters(part: int) -> None:
    first = 2_000_000 + part * 500
    assert check_all(range(first, first + 500), elastic=True) > 50


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_random_contests(part: int) -> None:
    first = 1_000_000 + part * 1_000
    assert check_all(range(first, first + 1_000)) > 100


# ---- the choice of victims, by brute force ----


def after(ledger: Ledger, there: Contest, gone: tuple[int, ...]) -> Ledger:
    duplicate = ledger.copy()
    for job_id in gone:
        begun = there.begun[job_id]
        duplicate.discharge(begun.run_id)
        duplicate.remove_cluster(begun.start.cluster_id)
    return duplicate


def best_by_brute_force(there: Contest, job: PendingJob, losses: dict[int, int]) -> list[int] | None:
    """From the highest level down, every combination of a level beside all those below it."""

    def fits(gone: list[int]) -> bool:
        duplicate = after(there.ledger, there, tuple(gone))
        if isinstance(place(duplicate, job.parent_id, job.spec, job.entry), Placed):
            return True
        return isinstance(finished(find_growth(duplicate, job.parent_id, job.spec, job.entry)), tuple)

    jobs = there.running.jobs
    levels = sorted({jobs[n].priority for n in losses}, reverse=True)
    chosen: list[int] = []
    for level in levels:
        here = sorted(
            (n for n in losses if jobs[n].priority == level), key=lambda n: (-jobs[n].started_at_ns, n)
        )
        below = [n for n in losses if jobs[n].priority < level]
        options = [some for size in range(len(here) + 1) for some in combinations(range(len(here)), size)]
        doing = [some for some in options if fits([*chosen, *below, *(here[i] for i in some)])]
        if not doing:
            return None
        best = min(doing, key=lambda some: (sum(losses[here[i]] for i in some), len(some), some))
        chosen += [here[i] for i in best]
    return sorted(chosen)


def with_a_winner(seed: int) -> tuple[Contest, PendingJob]:
    """A cluster in which jobs of low priority run, and one of a high priority that waits."""
    rng = Random(seed)
    there = Contest(g.ledger([rng.choice(NODES) for _ in range(rng.randint(1, 3))]))
    for number in range(rng.randint(2, 8)):
        there.now = rng.randint(0, 900)
        there.submit(f"low{number}", rng.randint(0, 2), SPECS[rng.randrange(len(SPECS))](rng))
        there.round(preempts=False)
    for job_id in list(there.queue.jobs):
        there.queue.drop(job_id)
    there.now = 1_000
    return there, there.queue.jobs[there.submit("w", 9, SPECS[rng.randrange(len(SPECS))](rng))]


@pytest.mark.parametrize("seed", range(150))
def test_the_victims_are_those_that_brute_force_finds(seed: int) -> None:
    there, job = with_a_winner(seed)
    plan = there.round()
    if plan.starts:
        return
    losses = losses_of(there)
    wanted = best_by_brute_force(there, job, losses) if losses else None
    found = [sorted(v.job.job_id for v in one.victims) for one in plan.preempts]
    assert found == ([wanted] if wanted else [])


def losses_of(there: Contest) -> dict[int, int]:
    """What each running job would lose, by the documented rule."""
    total = there.ledger.total(there.parent_id)
    losses = {}
    for job_id, begun in there.begun.items():
        held = [vnode.allocation.amounts for vnode in begun.start.vnodes]
        share = max(
            (10**9 * sum(h.get(name, 0) for h in held) // total[name] for name in total if total[name]),
            default=0,
        )
        elapsed_ms = there.now * 1_000 - there.running.jobs[job_id].started_at_ns // 10**6
        losses[job_id] = elapsed_ms * share
    return losses


# ---- a search that has cost enough (spec 8: lower priority first; spec 18: a round is bounded) ----


@pytest.mark.parametrize("seed", range(500, 800))
def test_a_random_contest_with_rough_searches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "SEARCH_STEPS", 1)
    check(seed, elastic=seed % 2 == 0)


@pytest.mark.parametrize("seed", range(150))
def test_a_rough_search_ends_nobody_of_a_higher_level_than_brute_force(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds somebody whenever anybody helps, no higher level than it takes, and the job fits then."""
    there, job = with_a_winner(seed)
    monkeypatch.setattr(preemption, "SEARCH_STEPS", 1)
    plan = there.round()
    if plan.starts:
        return
    losses = dict.fromkeys(there.begun, 1)
    wanted = best_by_brute_force(there, job, losses) if losses else None
    found = [sorted(v.job.job_id for v in one.victims) for one in plan.preempts]
    assert bool(found) == bool(wanted)
    if wanted:
        priority_of = {n: there.running.jobs[n].priority for n in there.begun}
        assert max(priority_of[n] for n in found[0]) == max(priority_of[n] for n in wanted)
        duplicate = after(there.ledger, there, tuple(found[0]))
        assert isinstance(place(duplicate, job.parent_id, job.spec, job.entry), Placed)


# ---- with growth (spec 8 and 9) ----


@pytest.mark.parametrize("seed", range(300))
@pytest.mark.parametrize("steps", [10_000, 3], ids=["at once", "bit by bit"])
def test_with_growth_the_victims_are_those_that_brute_force_finds(
    seed: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It preempts if and only if some victims and growth make room, ends the least, and starts when they are gone."""
    monkeypatch.setattr(preemption, "MOST_STEPS", steps)
    rng = Random(seed)
    there = Contest(tree_of(rng), parent_id="team")
    for number in range(rng.randint(1, 6)):
        there.now = rng.randint(0, 900)
        there.submit(f"low{number}", rng.randint(0, 2), SPECS[rng.randrange(len(SPECS) - 1)](rng))
        there.round(preempts=False)
    for job_id in list(there.queue.jobs):
        there.queue.drop(job_id)
    there.now = 1_000
    job = there.queue.jobs[there.submit("w", 9, SPECS[rng.randrange(len(SPECS) - 1)](rng))]
    plan = there.round()
    while plan.unsearched:
        plan = there.round()
    if plan.starts:
        return
    losses = losses_of(there)
    wanted = best_by_brute_force(there, job, losses) if losses else None
    found = [sorted(v.job.job_id for v in one.victims) for one in plan.preempts]
    assert found == ([wanted] if wanted else [])
    if found:
        there.victims_leave()
        there.round()
        assert there.is_running("w")
