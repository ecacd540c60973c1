"""Runs assigned ahead where siblings wait, borrow and lend: whoever follows is the job that a search would start."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.engine.states import NOTHING, NOW, STARTED, pending, run_ahead, state_of, yielded
from tests.engine.test_ahead_rules import ONCE, assigned, end
from tests.engine.test_start_rules import plan_of, supply
from tests.scheduler import candidates as g
from tests.specification import spec
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.leases import CALLED
from vctl.core.queue_policy import BACKFILL, BEST_EFFORT, FAIR, FIFO, LONGEST, PRIORITY, STRICT, QueuePolicy
from vctl.core.values import replace
from vctl.engine import changes as ch
from vctl.engine.apply import apply
from vctl.engine.rules.ends import processes
from vctl.engine.rules.leases import regained
from vctl.engine.rules.starts import Supply, starts
from vctl.engine.state import SchedulerState
from vctl.scheduler.orders import OVERTAKEN

pytestmark = spec("8.arrays", "8.orders", "9.conserving")


def cluster(state: SchedulerState, name: str, parent: str = PRIMARY, **fields: Any) -> None:
    """An elastic cluster without a minimum."""
    apply(state, ch.ClusterAdded(1, Cluster(name, parent, LOGICAL, ClusterSpec(), **fields)))


def wait(state: SchedulerState, *jobs: tuple[int, str], **fields: Any) -> None:
    """Jobs of one CPU wait, each in its cluster."""
    for number, parent in jobs:
        state.put_pending(pending(number, parent=parent, rules=ONCE, **fields))


def settle(state: SchedulerState, numbers: Supply, at: int = STARTED, most: int = 30) -> None:
    """Start all that can start."""
    for _ in range(most):
        plan = plan_of(state)
        if not plan.starts:
            return
        yielded(state, starts(state, plan, numbers, at))
    raise AssertionError("the starts do not end")


def siblings(**fields: Any) -> SchedulerState:
    """One node of one CPU. Job 1 of ``a`` runs on a loan; 2 and 4 of ``b``, and 3 and 5 of ``a``, wait."""
    state = state_of("1c")
    cluster(state, "a", **fields)
    cluster(state, "b")
    wait(state, (1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "a"))
    settle(state, supply())
    assert sorted(state.running.jobs) == [1] and state.leases
    return state


def test_the_next_job_of_a_borrower_follows_although_an_older_one_of_a_sibling_waits() -> None:
    """It needs no loan of another cluster, so a search would start it, too."""
    state = siblings()
    assert assigned(state) == [(3, 1)]
    leases = dict(state.leases)
    found = yielded(state, processes(state, [end(state, 1)], NOW, NOTHING.lease))
    assert [type(one) for one in found] == [ch.RunEnded, ch.JobEnded, ch.JobStarted]
    assert sorted(state.running.jobs) == [3]
    assert state.leases == leases


def test_a_job_of_higher_priority_comes_first_wherever_it_waits() -> None:
    state = siblings()
    wait(state, (9, "b"), priority=1)
    assert assigned(state) == [(9, 1)]
    state = siblings()
    wait(state, (9, "a"), (10, "a"), priority=1)
    assert assigned(state) == [(9, 1)]


def test_a_job_that_needs_a_loan_is_overtaken_by_few() -> None:
    """As in a search: ``OVERTAKEN`` younger ones go first."""
    state = state_of("1c")
    cluster(state, "a")
    cluster(state, "b")
    wait(state, (1, "a"), (2, "b"), (2 + OVERTAKEN, "a"), (3 + OVERTAKEN, "a"), (4 + OVERTAKEN, "a"))
    settle(state, supply())
    assert assigned(state) == [(2 + OVERTAKEN, 1)]
    apply(state, ch.RunTakenBack(run_ahead(state, 2 + OVERTAKEN), 2 + OVERTAKEN))
    yielded(state, [ch.JobEnded(NOW, 2 + OVERTAKEN, "", None, None, "stop", "STOPPED", None, None, None)])
    assert assigned(state) == [(2, 1)]


@pytest.mark.parametrize(
    "policy", [QueuePolicy(order=FIFO), QueuePolicy(ageing_ns=1)], ids=["fifo", "ageing"]
)
def test_nobody_follows_where_the_second_job_of_a_sibling_may_have_a_higher_priority(
    policy: QueuePolicy,
) -> None:
    state = siblings()
    state.queues["b"].arrange(policy)
    assert assigned(state) == []


def test_an_older_job_of_a_cluster_that_grows_in_the_same_place_comes_first() -> None:
    """What comes free in ``a`` is free to the cluster inside it without any loan of another."""
    for number, first in ((2, 2), (8, 3)):
        state = siblings()
        cluster(state, "inside", "a")
        wait(state, (number, "inside"))  # 2: instead of b
        assert assigned(state) == [(first, 1)]


# ---- the place goes over to another cluster ----


def handover(**fields: Any) -> SchedulerState:
    """One node of one CPU. Job 1 of ``a`` runs on a loan; only job 2 of ``b`` waits."""
    state = state_of("1c")
    cluster(state, "a")
    cluster(state, "b", **fields)
    wait(state, (1, "a"), (2, "b"))
    settle(state, supply())
    return state


def test_the_place_of_a_run_goes_over_with_its_loan_in_the_transaction_of_its_end() -> None:
    state, numbers = handover(), supply()
    told = dict(state.queues["b"].reported)
    assert told and assigned(state) == [(2, 1)]
    assert {one.borrower_id for one in state.leases.values()} == {"a"}  # nothing moves before the end
    assert state.queues["b"].reported == told and not state.queues["b"].emptied  # it waits, and has a reason
    found = yielded(state, processes(state, [end(state, 1)], NOW, numbers.lease))
    assert [type(one) for one in found] == [
        ch.RunEnded, ch.JobEnded, ch.VNodesChanged, ch.LeaseReturned, ch.LeaseGranted, ch.JobStarted,
    ]  # fmt: skip
    assert {one.borrower_id for one in state.leases.values()} == {"b"}
    assert sorted(state.running.jobs) == [2]
    assert state.ledger.vnodes["b##j2/0"].parent_id in state.ledger.members["b"]
    assert not state.queues["b"].reported and state.queues["b"].emptied


def test_a_run_that_is_taken_back_from_the_place_of_another_cluster_waits_with_its_reason() -> None:
    state = handover()
    told = dict(state.queues["b"].reported)
    assigned(state)
    apply(state, ch.RunTakenBack(run_ahead(state, 2), 2))
    assert state.queues["b"].reported == told and sorted(state.queues["b"].jobs) == [2]


def test_where_the_place_is_gone_the_job_of_another_cluster_waits_again() -> None:
    state = handover()
    assigned(state)
    state.ledger.put_cluster(replace(state.ledger.clusters["b"], borrow_limit=g.amounts("0c")))
    found = yielded(state, processes(state, [end(state, 1)], NOW, supply().lease))
    assert [type(one) for one in found] == [ch.RunEnded, ch.JobEnded, ch.RunTakenBack]
    assert sorted(state.queues["b"].jobs) == [2]
    assert {one.borrower_id for one in state.leases.values()} == {"a"}


@pytest.mark.parametrize(
    "fields",
    [
        {"borrow_limit": g.amounts("1c")},
        {"queue": QueuePolicy(max_running_jobs=1)},
        {"queue": QueuePolicy(max_running_per_user=1)},
    ],
    ids=["grow up to a limit", "run few jobs", "run few jobs of a user"],
)
def test_no_place_goes_over_to_a_cluster_that_may(fields: dict[str, object]) -> None:
    """Another start could use up what is left of the limit, before the end is known."""
    assert assigned(handover(**fields)) == []


def test_no_place_goes_over_to_a_job_of_another_shape_and_nobody_follows_before_it_has_it() -> None:
    state = handover()
    wait(state, (3, "b"))
    assert assigned(state, 3) == [(2, 1)]
    state = handover()
    (job,) = state.queues["b"].jobs.values()
    state.put_pending(replace(job, shape="other"))
    assert assigned(state) == []


def test_a_trial_of_an_end_leaves_the_ledger_as_it_was() -> None:
    state = handover(borrow_limit=None)
    before = (
        dict(state.ledger.vnodes),
        dict(state.ledger.charges),
        dict(state.leases),
        dict(state.ledger.grown),
    )
    free = {name: dict(one.free) for name, one in state.ledger.capacities.items()}
    assert assigned(state) == [(2, 1)]
    after = (
        dict(state.ledger.vnodes),
        dict(state.ledger.charges),
        dict(state.leases),
        dict(state.ledger.grown),
    )
    assert after == before
    assert {name: dict(one.free) for name, one in state.ledger.capacities.items()} == free


# ---- when nobody follows ----


def test_nobody_follows_where_a_lender_wants_its_loan_back_or_it_expires() -> None:
    for fields in ({"state": CALLED}, {"expires_at": 9}):
        state = siblings()
        for one in list(state.leases.values()):
            state.ledger.put_lease(replace(one, **fields))
        assert assigned(state) == []
    state = siblings()
    state.ledger.withheld = {"b": g.amounts("1c")}
    assert assigned(state) == []


def test_nobody_follows_where_shares_decide_between_siblings() -> None:
    state = siblings()
    primary = state.ledger.clusters[PRIMARY]
    state.ledger.put_cluster(replace(primary, queue=QueuePolicy(order=FAIR)))
    assert assigned(state) == []


def test_nobody_follows_a_job_whose_loan_ends_with_it() -> None:
    """What a cluster beside a job has lent to it goes home at its end: nothing is left for the next one."""
    state = siblings()
    (lease,) = state.leases.values()
    state.ledger.put_lease(replace(lease, amounts={}))
    state.ledger.put_lease(replace(lease, borrower_id="a##j1", lender_id="b"))
    assert assigned(state) == []
    state.ledger.put_lease(replace(lease, borrower_id="a##j1", amounts={}))
    state.ledger.put_lease(replace(lease, job_id=1))
    assert assigned(state) == []


def test_nobody_follows_in_a_cluster_that_is_stopped_and_its_jobs_keep_nobody_from_it() -> None:
    state = siblings()
    state.ledger.put_cluster(replace(state.ledger.clusters["a"], state="STOPPED"))
    assert assigned(state) == [(2, 1)]
    state = siblings()
    wait(state, (9, "b"), priority=1)
    state.ledger.put_cluster(replace(state.ledger.clusters["b"], state="STOPPED"))
    assert assigned(state) == [(3, 1)]


# ---- beside a search ----


def world(seed: int) -> tuple[SchedulerState, Supply]:
    """Up to three nodes, a tree of up to four elastic clusters, and jobs of a few shapes in them, by chance."""
    dice, numbers = random.Random(seed), supply()
    state = state_of(", ".join(dice.choice(("1c", "2c", "4c")) for _ in range(dice.randint(1, 3))))
    names = [PRIMARY]
    for number in range(dice.randint(1, 4)):
        policy = QueuePolicy(
            order=dice.choice((PRIORITY, PRIORITY, FIFO, LONGEST)),
            discipline=dice.choice((BEST_EFFORT, BEST_EFFORT, STRICT, BACKFILL)),
        )
        cluster(state, f"c{number}", dice.choice((PRIMARY, dice.choice(names))), queue=policy)
        names.append(f"c{number}")
    sizes = {
        "s": g.spec("STRICT_SPREAD: 1c"),
        "m": g.spec("STRICT_SPREAD: 2c"),
        "l": g.spec("STRICT_SPREAD: 1c, 1c"),
    }
    shapes = dice.sample(sorted(sizes), dice.randint(1, 2))
    for number in range(1, dice.randint(6, 24)):
        shape = dice.choice(shapes)
        job = pending(number, parent=dice.choice(names), rules=ONCE, priority=dice.choice((0, 0, 0, 0, 1)))
        state.put_pending(
            replace(job, shape=shape, spec=sizes[shape], time_limit_ns=dice.choice((None, 10**9)))
        )
    settle(state, numbers)
    return state, numbers


def places(state: SchedulerState) -> dict[int, list[tuple[str, str]]]:
    """Running job -> what it has on which nodes."""
    return {
        job_id: sorted(
            (vnode.node_id, repr(vnode.allocation))
            for vnode in map(state.ledger.vnodes.__getitem__, state.ledger.members[job.cluster_id])
        )
        for job_id, job in state.running.jobs.items()
    }


def borrowed(state: SchedulerState) -> list[tuple[str, str, int]]:
    """(Borrower, lender, CPUs) of each lease."""
    return sorted((one.borrower_id, one.lender_id, one.amounts["CPU"]) for one in state.leases.values())


def only_first(state: SchedulerState, found: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Of the jobs that were assigned ahead, keep the first: it is the next one wherever a place comes free."""
    for job_id, _ in found[1:]:
        apply(state, ch.RunTakenBack(run_ahead(state, job_id), job_id))
    return found[0] if found else None


@pytest.mark.not_fast("takes seconds")
def test_who_follows_is_who_a_search_would_have_started() -> None:
    """In random trees: the same state with a follower and without one is the same again after each end."""
    followed = beside_others = moved = 0
    for seed in range(150):
        (ahead, numbers), (plain, others) = world(seed), world(seed)
        dice = random.Random(-seed)
        while ahead.running.jobs:
            ahead.changed.started.update(dict.fromkeys(ahead.runs))
            first = only_first(ahead, assigned(ahead))
            job_id = dice.choice(sorted(ahead.running.jobs)) if first is None else first[1]
            moved += any(one.moves for one in ahead.ahead.runs.values())
            for state, supplied in ((ahead, numbers), (plain, others)):
                yielded(state, processes(state, [end(state, job_id)], NOW, supplied.lease))
                yielded(state, regained(state))
            if first is not None:
                assert first[0] in ahead.running.jobs, (seed, first)
                followed += 1
                beside_others += sum(bool(queue.jobs) for queue in ahead.queues.values()) > 1
            settle(ahead, numbers, NOW)
            settle(plain, others, NOW)
            assert places(ahead) == places(plain), (seed, job_id, first)
            assert borrowed(ahead) == borrowed(plain), (seed, job_id, first)
    assert followed > 200 and beside_others > 50 and moved > 50, (followed, beside_others, moved)
