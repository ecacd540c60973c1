"""What gives leases back: a state and the leases that are due on the one side, changes on the other."""

from __future__ import annotations

from collections.abc import Iterable

from tests.engine.states import follows
from tests.scheduler import trees
from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.leases import CALLED, Lease
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import Allocation
from vctl.core.values import replace
from vctl.engine.apply import apply
from vctl.engine.changes import (
    Change,
    Details,
    JobSubmitted,
    LeaseCalled,
    LeaseReturned,
    LeaseSpared,
    QueueChanged,
    RunStopping,
    VNodesChanged,
)
from vctl.engine.rules.leases import called_in, expired, give_back, waits
from vctl.engine.rules.preemption import nominated
from vctl.engine.rules.revocation import begin_graces, revoked, to_call, to_end, to_notify
from vctl.engine.settings import LeaseTerms, Memo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import LeaseNotified, Now
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.scheduling_class import Verdict

S = 10**9
DETAILS = Details(None, "{}", None, "{}", None)
pytestmark = spec("9.return", "9.lending")


def state_of(ledger: Ledger, leases: Iterable[Lease]) -> SchedulerState:
    state = SchedulerState(ledger, {}, 0)
    for lease in leases:
        ledger.put_lease(lease)
    return state


def changes(state: SchedulerState, due: list[Lease]) -> list[Change]:
    """Each is applied before the next one is asked for."""
    found = []
    for change in give_back(state, due):
        apply(state, change)
        found.append(change)
    return found


def test_a_lease_returns_through_every_level_and_each_step_is_possible() -> None:
    ledger = trees.tree("8c", "team < primary []: n1~3c", "inner < team []: n1~3c")
    upper, lower = trees.lease(ledger, "team/0: 3c"), trees.lease(ledger, "inner/0: 3c", number=2)
    state = state_of(ledger, [upper, lower])
    assert changes(state, [lower]) == [
        VNodesChanged(("inner/0",)),
        LeaseReturned(replace(lower, amounts={})),
        VNodesChanged(("team/0",)),
        LeaseReturned(replace(upper, amounts={})),
    ]
    assert not state.leases
    assert not ledger.members["team"]


def test_the_part_that_is_in_use_stays_borrowed_and_the_lender_has_the_rest_again() -> None:
    ledger = trees.tree("8c", "a < primary [6c] lend=4c: n1~2c", "b < primary []: n1~4c")
    trees.use(ledger, "b/0: 1c")
    lease = trees.lease(ledger, "b/0: 4c", lender="a")
    state = state_of(ledger, [lease])
    shrunk, returned, back = changes(state, [lease])
    assert isinstance(shrunk, VNodesChanged)
    assert returned == LeaseReturned(replace(lease, amounts={"CPU": 10000}))
    assert isinstance(back, VNodesChanged)
    assert back.for_start
    assert (trees.parts(ledger, "a"), trees.parts(ledger, "b")) == ("n1~5c", "n1~1c")
    assert changes(state, [lease]) == []  # it is another lease by now


def test_what_lies_in_a_lease_that_was_called_in_is_called_in_too() -> None:
    ledger = trees.tree(
        "8c", "team < primary []: n1~3c", "inner < team []: n1~3c", "other < primary []: n1~1c"
    )
    leases = [
        replace(trees.lease(ledger, "team/0: 3c"), state=CALLED),
        trees.lease(ledger, "inner/0: 3c", number=2),
        trees.lease(ledger, "other/0: 1c", number=3),
    ]
    assert called_in(state_of(ledger, leases)) == {1, 2}
    ledger.put_lease(replace(leases[0], amounts={}))
    assert called_in(state_of(ledger, [])) == set()


def waiting(state: SchedulerState, cluster_id: str) -> None:
    """A job was sent to a cluster, was looked at, and has to wait."""
    apply(state, JobSubmitted(PendingJob(9, "w", cluster_id, "s", ClusterSpec(), {}), DETAILS))
    queue = state.queues[cluster_id]
    ((name, shape),) = queue.shapes.items()
    shape.judge(verdict := Verdict("InsufficientResources", ""))
    queue.told[name] = verdict[:2]


def test_a_lease_is_due_when_it_was_idle_long_enough_and_is_cool_again() -> None:
    ledger = trees.tree("8c", "a < primary []: n1~2c", "b < primary []: n1~4c")
    old, used = (
        trees.lease(ledger, text, number=number) for number, text in enumerate(("a/0: 2c", "b/0: 4c"), 1)
    )
    trees.use(ledger, "b/0: 4c")
    old = replace(old, since=S)
    state = state_of(ledger, [old, used])
    terms = LeaseTerms(idle_s=10, cooldown_s=2)
    assert waits(state, {1: 4.0}, terms, 20 * S) == [(old, 6.0)]
    assert waits(state, {1: 99.0}, terms, 2 * S) == [(old, 1.0)]  # it was borrowed a second ago
    ledger.put_lease(over := replace(old, expires_at=2 * S))
    assert waits(state, {}, terms, 2 * S) == [(over, 0.0)]
    assert waits(state, {}, terms, S) == [(over, 1.0)]  # it is over before it has been idle for long
    piece = ("a/0", Allocation({"CPU": 1}))
    apply(state, nominated(Nomination(7, "w", 5, "a", (piece,))))
    assert waits(state, {1: 99.0}, terms, 99 * S) == []  # the winner of a preemption needs it


def test_a_lender_with_waiting_work_calls_in_the_newest_lease_of_what_it_lent() -> None:
    ledger = trees.tree("8c", "a < primary [6c] lend=4c: n1~2c", "b < primary []: n1~4c")
    leases = [
        replace(trees.lease(ledger, "b/0: 2c", lender="a", number=number), since=number) for number in (1, 2)
    ]
    state = state_of(ledger, leases)
    assert to_call(state, S) == []
    waiting(state, "a")
    assert to_call(state, S) == [leases[1]]
    state.lease_terms = LeaseTerms(reclaim_grace_s=5)
    called = LeaseCalled(replace(leases[1], state=CALLED, expires_at=15 * S))
    assert follows(state, revoked(state, Memo(), Now(10 * S, S))) == [called]
    assert follows(state, revoked(state, Memo(), Now(11 * S, 2 * S))) == []  # it was called in


def test_a_loan_out_of_two_clusters_is_called_in_once_for_the_work_of_the_outer_one() -> None:
    """``inner`` has lent it, out of ``a``, whose own work waits for it: it was spared and called in again for ever."""
    ledger = trees.tree(
        "8c", "a < primary [4c] lend=4c: n1~3c", "inner < a [2c] lend=1c: n1~1c", "b < primary []: n1~4c"
    )
    state = state_of(ledger, [trees.lease(ledger, "b/0: 1c", lender="inner")])
    waiting(state, "a")
    memo = Memo()
    (called,) = follows(state, revoked(state, memo, Now(10 * S, S)))
    assert isinstance(called, LeaseCalled)
    assert follows(state, revoked(state, memo, Now(11 * S, 2 * S))) == []
    state.dequeue(9)
    (spared,) = follows(state, revoked(state, memo, Now(12 * S, 3 * S)))
    assert isinstance(spared, LeaseSpared)


def test_who_uses_a_lease_that_is_called_in_is_told_and_ended_after_its_grace_unless_it_is_free() -> None:
    ledger = trees.tree("8c", "a < primary [6c] lend=4c: n1~2c", "b < primary []: n1~4c")
    lease = replace(trees.lease(ledger, "b/0: 2c", lender="a"), since=1, state=CALLED)
    run = Run("1.1.0.x", 1, 1, 0, "b", "b/0", "n1", Allocation({"CPU": 40000}), "RUNNING", started_at=1)
    state = state_of(ledger, [lease])
    waiting(state, "a")
    state.add_run(run)
    state.running.put(RunningJob(1, "b", "b", run.run_id, "me", None, "j", started_at_ns=1))
    state.lease_terms, memo = LeaseTerms(reclaim_grace_s=5), Memo()
    assert list(to_notify(state, memo)) == [(lease, 1)]
    assert list(revoked(state, memo, Now(90 * S, 90 * S))) == []  # nobody ends without a grace
    begin_graces(state, memo, [LeaseNotified(lease.lease_id, 1), LeaseNotified(99, 1)], Now(90 * S, 10 * S))
    assert (list(to_notify(state, memo)), memo.notified) == ([], {lease.lease_id: {1: 15 * S}})
    assert (list(revoked(state, memo, Now(90 * S, 15 * S - 1))), memo.due) == ([], [15 * S])
    ends = [RunStopping(run.run_id, "Preempted")]
    assert follows(state, revoked(state, memo, Now(90 * S, 15 * S))) == ends
    assert follows(state, revoked(state, memo, Now(90 * S, 16 * S))) == []
    ledger.put_lease(replace(lease, amounts={}))
    assert (list(revoked(state, memo, Now(90 * S, 17 * S))), memo.notified) == ([], {})


def test_a_lease_that_is_idle_is_given_back_when_it_was_so_long_enough() -> None:
    ledger = trees.tree("8c", "a < primary []: n1~2c")
    lease = replace(trees.lease(ledger, "a/0: 2c"), since=S)
    state, memo = state_of(ledger, [lease]), Memo()
    state.lease_terms = LeaseTerms(idle_s=10, cooldown_s=2)
    assert (list(expired(state, memo, Now(20 * S, 50 * S))), memo.due) == ([], [60 * S])
    memo.due.clear()
    assert list(expired(state, memo, Now(29 * S, 59 * S))) == []
    assert LeaseReturned(replace(lease, amounts={})) in follows(
        state, expired(state, memo, Now(30 * S, 60 * S))
    )


def test_of_the_users_of_a_lease_the_newest_end_and_no_more_than_needed() -> None:
    ledger = trees.tree("8c", "b < primary []: n1~4c")
    one = Allocation({"CPU": 10000})
    runs = [
        Run(f"{job_id}.1.{rank}.x", job_id, 1, rank, "b", "b/0", "n1", one, "RUNNING", started_at=job_id)
        for job_id, rank in ((1, 0), (2, 0), (2, 1), (3, 0))
    ]
    task = Run("1.1.t", 1, 1, 0, "b", "b/0", "n1", Allocation({}), task_id="task-5", started_at=9)
    state = SchedulerState(ledger, {run.run_id: run for run in (*runs, task)}, 0)
    for run in runs:
        ledger.charge(run.run_id, run.vnode_id, run.allocation)
        state.running.put(
            RunningJob(run.job_id, "b", "b", run.run_id, "me", None, "j", started_at_ns=run.job_id)
        )

    def ends(cpus: int) -> list[list[str]]:
        lease = trees.lease(ledger, f"b/0: {cpus}c", lender="a")
        return [[run.run_id for run in victims] for victims in to_end(state, lease, 10)]

    assert ends(1) == [["1.1.t"], ["3.1.0.x"]]
    assert ends(2) == ends(3) == [["1.1.t"], ["3.1.0.x"], ["2.1.0.x", "2.1.1.x"]]  # never half a gang
    apply(state, QueueChanged("b", QueuePolicy(min_runtime_ns=8)))
    assert ends(1) == [["1.1.t"], ["2.1.0.x", "2.1.1.x"]]  # job 3 is too young to end
