"""Expected starts: a table of what they rest on, and random backlogs against the simulation that goes on."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.scheduler.trace import Given, Trace
from tests.simulate import forest
from tests.specification import spec
from vctl.core.clusters import LOGICAL, PRIMARY
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import DRAINED, Template
from vctl.core.queue_policy import BACKFILL, BEST_EFFORT, SECOND, STRICT, QueuePolicy
from vctl.core.resources import CPU, SCALE
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.core.wording import timestamp
from vctl.scheduler.explain.trial import Situation
from vctl.scheduler.lending import keepers, withhold, work_in_lenders
from vctl.scheduler.plan import Plan
from vctl.scheduler.shared_reservations import kept_by
from vctl.simulate import forecast
from vctl.simulate.forecast import Backlog, Expected
from vctl.simulate.play import Player
from vctl.simulate.workload import Arrival, with_limits

pytestmark = spec("13.expected")


def present(player: Player) -> Backlog:
    """The state of a simulation as a scheduler would find it in the tables."""
    queues = player.queues.values()
    situation = Situation(
        player.ledger.copy(),
        [job for queue in queues for job in queue.jobs.values()],
        list(player._holders.values()),
        now_ns=player.now_ns,
        nominations=[one for queue in queues for one in queue.nominations.values()],
        usage=player.usage,
        reservations={queue.parent_id: kept_by(queue) for queue in queues},
        reported={queue.parent_id: dict(queue.reported) for queue in queues},
    )
    begun = {job_id: player.jobs[job_id].arrival.job for job_id in player._holders}
    return Backlog(situation, begun)


def expected(player: Player, backlog: Backlog | None = None, steps: int = 10**5) -> dict[str, Expected]:
    """The expected starts of all that waits, by submission id."""
    backlog = backlog or present(player)
    names = {job.job_id: job.submission_id for job in backlog.situation.pending}
    found = forecast.forecast(backlog, names, steps=steps)
    return {names[job_id]: one for job_id, one in found.items()}


# ---- random backlogs ----


FLAT, TREE, LENDING = "one queue", "a tree", "a tree that lends"
SOME = [(7, FLAT), *((seed, (FLAT, TREE, LENDING)[seed % 3]) for seed in range(9))]
"""In the first one, three heads have reserved starts, and whose turn for an earlier one it is counts."""
OTHERS = [
    pytest.param(seed, shape, marks=pytest.mark.soak)
    for seed in range(50)
    for shape in (FLAT, TREE, LENDING)
    if (seed, shape) not in SOME
]


def planted(seed: int, discipline: str, shape: str) -> tuple[Ledger, list[Arrival]]:
    """A random machine and a backlog: 24 jobs within ten seconds, of which about half have to wait."""
    dice = random.Random(seed)
    policy = QueuePolicy(discipline=discipline, backfill_depth=dice.choice((1, 3)))
    ledger, arrivals = forest.planted(seed, 24, policy)
    if shape == FLAT:
        ledger = forest.machine(random.Random(seed), len(ledger.nodes))
        arrivals = forest.in_one_queue(arrivals)
    for cluster in list(ledger.clusters.values()):
        if cluster.kind == LOGICAL:
            limit = cluster.spec.flexible_min if shape == LENDING else {}
            ledger.put_cluster(replace(cluster, lending_limit=dict(limit)))
    ledger.set_primary_queue(policy)
    return ledger, [replace(one, job=_sooner(one.job, dice)) for one in arrivals]


def _sooner(job: PendingJob, dice: random.Random) -> PendingJob:
    return replace(job, priority=dice.choice((0, 0, 0, 5)), submitted_at_ns=job.submitted_at_ns // 20)


class Keeping(Player):
    """Lenders keep what their own work starts with, as with a daemon, which calls the rest home."""

    def _decide(self) -> Plan:
        work = work_in_lenders(self.ledger, self.queues, {}, self.now_ns, judged=False)
        withhold(self.ledger, keepers(self.ledger, work))
        return super()._decide()


def until(player: Player, arrivals: Sequence[Arrival], at_ns: int) -> None:
    """Play until a moment at which everything has arrived."""
    player.play(arrivals, until_ns=at_ns)


def last_arrival(arrivals: Sequence[Arrival]) -> int:
    return max(one.job.submitted_at_ns for one in arrivals)


@pytest.mark.parametrize("discipline", [STRICT, BACKFILL])
@pytest.mark.parametrize(("seed", "shape"), [*SOME, *OTHERS])
def test_with_exact_time_limits_jobs_start_when_they_are_expected_to(
    seed: int, shape: str, discipline: str
) -> None:
    ledger, arrivals = planted(seed, discipline, shape)
    arrivals = list(with_limits(arrivals, 1))
    player = Keeping(ledger)
    until(player, arrivals, last_arrival(arrivals))
    said = expected(player)
    go_on(player)
    started = {one.arrival.job.submission_id: one.start_ns for one in player.jobs.values()}
    for name, one in said.items():
        assert one.start_ns == started[name], (name, one.basis)
        rests_on = ("when ", "nothing blocks it", "the rules of its queue")
        never = ("unknown: it needs more than", "unknown: j")  # such a job, or one that it is behind
        assert one.basis.startswith(rests_on if started[name] is not None else never), one


@pytest.mark.parametrize("discipline", [STRICT, BACKFILL])
@pytest.mark.parametrize("seed", range(50))
def test_where_jobs_run_half_their_limits_none_starts_later_than_expected(seed: int, discipline: str) -> None:
    """In one queue whose jobs are all of the same user and width: elsewhere an early end may change who is next."""
    dice = random.Random(seed)
    size, nodes = 8, dice.randint(2, 6)
    trace = Trace(1, size * nodes, QueuePolicy(discipline=discipline, backfill_depth=100))
    jobs = []
    for number in range(24):
        runs = dice.randint(5, 60)
        jobs.append(
            Given(
                f"j{number}",
                dice.randint(1, size * nodes),
                runs,
                limit=2 * runs,
                priority=dice.choice((0, 0, 5)),
            )
        )
    trace.play(jobs, until=0)
    said = expected(trace.player)
    kept = 0
    go_on(trace.player)
    for name, one in said.items():
        assert one.start_ns is not None, one
        if forecast.PASSES not in one.basis:
            kept += 1
            assert trace.started[name] <= one.start_ns // SECOND, (name, one)
    assert kept >= len(said) // 4


@pytest.mark.parametrize("discipline", [STRICT, BACKFILL])
@pytest.mark.parametrize(("seed", "shape"), [*SOME, *OTHERS])
def test_where_an_early_end_may_change_whose_turn_it_is_the_sentence_says_so(
    seed: int, shape: str, discipline: str
) -> None:
    """None starts later than expected without a condition in its sentence."""
    ledger, arrivals = planted(seed, discipline, shape)
    arrivals = list(with_limits(arrivals, 2))
    player = Keeping(ledger)
    until(player, arrivals, last_arrival(arrivals))
    said = expected(player)
    go_on(player)
    for played in player.jobs.values():
        one = said.get(played.arrival.job.submission_id)
        if one is None or one.start_ns is None or ", if " in one.basis:
            continue
        assert played.start_ns is not None
        assert played.start_ns <= one.start_ns, one


def test_a_start_without_a_reservation_that_a_job_behind_may_take_says_so() -> None:
    """Only the first head has a reservation: if others end early, one behind may start that leaves that alone."""
    trace = asked(
        *(Given(name, 2, 60, limit=60) for name in ("now", "a")),
        Given("b", 2, 10, limit=30),
        Given("c", 2, 10, limit=30),
        Given("behind", 1, 90, limit=90),
        policy=QueuePolicy(discipline=BACKFILL, backfill_depth=1),
    )
    found = expected(trace.player)
    assert forecast.BEHIND not in found["b"].basis
    assert found["c"].start_ns == 60 * SECOND
    assert found["c"].basis.endswith(f", {forecast.BEHIND}")


def test_a_start_that_a_job_of_another_queue_may_take_says_so() -> None:
    trace = asked(Given("train", 4, 90, limit=60))
    trace.share("beside", 1)
    trace.submit(Given("b", 4, 10, limit=30))
    trace.submit(Given("other", 1, 9, limit=9, cluster="beside"))
    found = expected(trace.player)
    assert found["b"].basis == f"when train ends by its time limit at {at(60)}, {forecast.BESIDE}"


def test_waiting_tasks_and_machines_that_may_be_made_are_said() -> None:
    trace = asked(Given("train", 4, 90, limit=60), Given("b", 4, 10, limit=30))
    backlog = present(trace.player)
    task = PendingTask("t", 1, 1, trace.player.jobs[1].arrival.job.cluster_id, {CPU: SCALE})
    end = f"when train ends by its time limit at {at(60)}"
    tasks = replace(backlog, situation=replace(backlog.situation, tasks=[task]))
    assert expected(trace.player, tasks)["b"].basis == f"{end}, if no waiting task goes first"
    trace.ledger.templates = (Template("8c", {CPU: 8 * SCALE}, 1),)
    found = expected(trace.player)
    assert found["b"].basis == f"{end}, or before that on a machine that is made for it"
    trace = asked(Given("endless", 4, 90), Given("b", 4, 10))
    trace.ledger.templates = (Template("8c", {CPU: 8 * SCALE}, 1),)
    assert expected(trace.player)["b"] == Expected(None, "unknown: a machine may be made for it")


def go_on(player: Player) -> None:
    """Play to the end, without further arrivals."""
    while (moment := player._next((), 0)) is not None:
        player._go_to(moment)
        player.round()


# ---- what it rests on ----

ONE_AFTER_THE_OTHER = QueuePolicy(discipline=STRICT)
"""One node of 4 CPUs."""


def at(second: int) -> str:
    return timestamp(second * SECOND)


def asked(*jobs: Given, policy: QueuePolicy = ONE_AFTER_THE_OTHER) -> Trace:
    trace = Trace(1, 4, policy)
    trace.play(list(jobs), until=max(job.at for job in jobs))
    return trace


def test_it_names_the_end_that_a_start_waits_for_and_when_that_job_starts() -> None:
    trace = asked(Given("train", 4, 90, limit=60), Given("b", 4, 10, limit=30), Given("c", 4, 10))
    assert expected(trace.player) == {
        "b": Expected(60 * SECOND, f"when train ends by its time limit at {at(60)}"),
        "c": Expected(
            90 * SECOND, f"when b, expected to start at {at(60)}, ends by its time limit at {at(90)}"
        ),
    }


def test_ends_of_the_same_moment_are_counted() -> None:
    trace = asked(Given("a", 2, 90, limit=60), Given("b", 2, 90, limit=60), Given("c", 4, 10))
    assert expected(trace.player)["c"].basis == f"when a ends by its time limit at {at(60)}, as does 1 more"


def test_what_nothing_blocks_starts_now() -> None:
    trace = asked(Given("a", 2, 90, limit=60))
    trace.submit(Given("b", 2, 10))
    assert expected(trace.player)["b"] == Expected(0, forecast.NOW)


def test_without_a_time_limit_nothing_is_known() -> None:
    trace = asked(Given("train", 4, 90), Given("b", 4, 10))
    assert expected(trace.player)["b"] == Expected(None, "unknown: train has no time limit")


def test_a_job_behind_one_whose_start_is_unknown_says_which() -> None:
    trace = asked(Given("train", 1, 90), Given("wide", 4, 10), Given("narrow", 1, 10))
    assert expected(trace.player)["narrow"] == Expected(
        None, "unknown: wide is ahead of it: train has no time limit"
    )


def test_a_begin_time_is_what_a_start_rests_on() -> None:
    trace = asked(Given("a", 2, 9, limit=9))
    trace.submit(Given("later", 2, 10), begin_at=40)
    assert expected(trace.player)["later"] == Expected(40 * SECOND, f"its begin time is {at(40)}")


def test_drained_nodes_are_named() -> None:
    trace = Trace(2, 4, ONE_AFTER_THE_OTHER)
    trace.submit(Given("gang", 4, 9, nodes=2))
    trace.ledger.put_node(replace(trace.ledger.nodes["n00002"], state=DRAINED))
    assert expected(trace.player)["gang"] == Expected(
        None, "unknown: it needs nodes that are drained (n00002)"
    )


def test_held_jobs_and_closed_clusters_say_so() -> None:
    trace = asked(Given("a", 2, 9, limit=9))
    trace.share("shut", 1)
    trace.ledger.put_cluster(replace(trace.ledger.clusters["shut"], state="STOPPED"))
    trace.submit(Given("inside", 1, 9, cluster="shut"))
    backlog = present(trace.player)
    held = replace(trace._arrival(Given("held", 1, 9), 0).job, held=True)
    backlog = replace(
        backlog, situation=replace(backlog.situation, pending=[*backlog.situation.pending, held])
    )
    found = expected(trace.player, backlog)
    assert found["held"] == Expected(None, "unknown: it is held")
    assert found["inside"] == Expected(None, "unknown: shut admits no jobs")


def waiting_for(trace: Trace, condition: str, name: str, left: int = 1) -> Backlog:
    """The present state, with a job that waits for another one."""
    backlog = present(trace.player)
    job = replace(trace._arrival(Given("next", 1, 9), 0).job, waits_for=1)
    situation = replace(backlog.situation, pending=[*backlog.situation.pending, job])
    return replace(backlog, situation=situation, awaits={job.job_id: [(condition, name)]}, left={name: left})


@pytest.mark.parametrize(
    ("condition", "limit", "start", "basis"),
    [
        ("ok", 60, 60, f"when train ends by its time limit at {timestamp(60 * SECOND)}, if train succeeds"),
        ("any", 60, 60, f"when train ends by its time limit at {timestamp(60 * SECOND)}"),
        ("notok", 60, None, "unknown: it waits for train to fail"),
        ("ok", None, None, "unknown: train has no time limit"),
    ],
)
def test_a_dependency_opens_at_the_expected_end(
    condition: str, limit: int | None, start: int | None, basis: str
) -> None:
    trace = asked(Given("train", 1, 90, limit=limit))
    found = expected(trace.player, waiting_for(trace, condition, "train"))["next"]
    assert found == Expected(None if start is None else start * SECOND, basis)


def test_a_dependency_on_a_waiting_job_opens_after_that() -> None:
    trace = asked(Given("a", 4, 9, limit=60), Given("train", 4, 9, limit=30), Given("other", 4, 9))
    found = expected(trace.player, waiting_for(trace, "any", "train"))["next"]
    assert found.start_ns == 90 * SECOND + 0 or found.start_ns is None
    found = expected(trace.player, waiting_for(trace, "any", "other"))["next"]
    assert found == Expected(None, "unknown: other has no time limit")


def test_members_that_wait_for_a_place_of_their_array_follow_each_other() -> None:
    trace = asked(Given("sweep_1", 1, 9, limit=20))
    backlog = present(trace.player)
    begun = {n: replace(job, array_id="sweep") for n, job in backlog.begun.items()}
    more = [
        replace(trace._arrival(Given(f"sweep_{n}", 1, 9, limit=20), 0).job, array_id="sweep", closed=True)
        for n in (2, 3)
    ]
    backlog = replace(backlog, situation=replace(backlog.situation, pending=more), begun=begun)
    found = expected(trace.player, backlog)
    assert [one.start_ns for one in found.values()] == [20 * SECOND, 40 * SECOND]
    assert found["sweep_2"].basis == f"when sweep_1 ends by its time limit at {at(20)}"


def test_a_job_that_is_being_ended_has_gone_at_the_latest_then() -> None:
    trace = asked(Given("train", 4, 90), Given("b", 4, 10))
    backlog = replace(present(trace.player), ends={1: 30 * SECOND})
    assert expected(trace.player, backlog)["b"] == Expected(
        30 * SECOND, f"when train, which is being ended, has gone at {at(30)}"
    )


def test_a_preempted_job_makes_place_now_and_starts_again_later() -> None:
    policy = QueuePolicy(discipline=STRICT, preemption="requeue")
    trace = asked(Given("low", 4, 90, limit=60), policy=policy)
    trace.submit(Given("high", 4, 10, limit=20, priority=9))
    trace.submit(Given("behind", 4, 10, limit=20))
    found = expected(trace.player)
    assert found["high"].start_ns == 0
    assert found["behind"].start_ns == 80 * SECOND


def test_what_never_starts_is_asked_once_for_all_jobs_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_, place_of = list[str](), forecast._place_of

    def counting(ledger: Ledger, job: PendingJob) -> set[str] | None:
        asked_.append(job.submission_id)
        return place_of(ledger, job)

    monkeypatch.setattr(forecast, "_place_of", counting)
    trace = asked(Given("train", 4, 90), *(Given(f"j{n}", 1 + n % 2, 9, limit=9) for n in range(100)))
    found = expected(trace.player)
    assert {one.basis for one in found.values()} == {"unknown: train has no time limit"}
    assert asked_ == ["j0", "j0", "j1", "j1"]  # with what still runs, and without


def test_past_the_budget_it_is_unknown_and_no_round_goes_on() -> None:
    trace = asked(*(Given(f"j{n}", 4, 9, limit=9) for n in range(60)))
    found = expected(trace.player, steps=300)
    assert found["j1"].start_ns == 9 * SECOND
    assert found["j59"] == Expected(None, forecast.TOO_MANY)


def test_jobs_that_were_not_read_are_counted_and_end_the_forecast() -> None:
    policy = QueuePolicy(discipline=BEST_EFFORT)
    trace = asked(*(Given(f"j{n}", 4, 9, limit=9) for n in range(4)), policy=policy)
    backlog = replace(present(trace.player), unread={PRIMARY: 7})
    assert expected(trace.player, backlog)["j3"].basis.endswith(
        ", if none of 7 jobs further behind goes first"
    )
    trace.share("beside", 1)
    trace.submit(Given("other", 4, 9, cluster="beside"))
    found = forecast.forecast(replace(present(trace.player), unread={PRIMARY: 7}), [2, 3, 4, 99])
    assert 99 not in found
    assert found[4].start_ns is not None


def test_the_state_of_the_simulation_stays_as_it_is() -> None:
    trace = asked(Given("train", 4, 90, limit=60), Given("b", 4, 10, limit=30))
    before = (trace.ledger.available(PRIMARY), list(trace.queues[PRIMARY].jobs))
    expected(trace.player)
    assert (trace.ledger.available(PRIMARY), list(trace.queues[PRIMARY].jobs)) == before
