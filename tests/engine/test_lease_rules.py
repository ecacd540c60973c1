"""What gives leases back: a state and the leases that are due on the one side, changes on the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.engine.states import follows
from tests.scheduler import trees
from tests.specification import spec
from vctl.core.clusters import LOGICAL, PRIMARY, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.leases import CALLED, GRANTED, Lease
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import Allocation
from vctl.core.values import replace
from vctl.engine.apply import apply
from vctl.engine.changes import (
    Change,
    JobSubmitted,
    LeaseCalled,
    LeaseGranted,
    LeaseReturned,
    LeaseSpared,
    QueueChanged,
    RunStopping,
    SubmitDetails,
    VNodesChanged,
)
from vctl.engine.rules.leases import Due, called_in, expired, give_back, granted, returned, waits
from vctl.engine.rules.preemption import nominated
from vctl.engine.rules.revocation import begin_graces, revoked, to_call, to_end, to_notify
from vctl.engine.settings import LeaseTerms, TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import LeaseNotified, Now
from vctl.scheduler.gang_growth import place_with_growth
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.placement import Unplaced
from vctl.scheduler.recall import recall
from vctl.scheduler.scheduling_class import Verdict

S = 10**9
DETAILS = SubmitDetails(None, "{}", None, "{}", None)
pytestmark = spec("9.return", "9.lending")


def state_of(ledger: Ledger, leases: Iterable[Lease]) -> SchedulerState:
    state = SchedulerState(ledger, {}, 0)
    for lease in leases:
        ledger.put_lease(lease)
    return state


def changes(state: SchedulerState, due: list[Lease]) -> list[Change]:
    """Each is applied before the next one is asked for."""
    found = []
    for change in give_back(state, [Due(lease, 0.0, lease.amounts) for lease in due]):
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
    assert changes(state, [lease]) == []  # the rest is in use


def test_what_lies_on_many_nodes_returns_by_one_change_of_the_lease() -> None:
    ledger = trees.tree("2c,2c,2c,2c", "a < primary []: n1~2c, n2~2c, n3~2c, n4~2c")
    trees.use(ledger, "a/1: 1c")
    state = state_of(ledger, [lease := trees.lease(ledger, "a/0: 8c")])
    moved, returned = changes(state, [lease])
    assert returned == LeaseReturned(replace(lease, amounts={"CPU": 10000}))
    assert isinstance(moved, VNodesChanged)
    assert (sorted(moved.removed), trees.parts(ledger, "a")) == (["a/0", "a/2", "a/3"], "n2~1c")


def test_a_parent_passes_on_what_its_child_returned_and_nothing_else() -> None:
    """What else it has idle may have been in use a moment ago: it waits for its own time."""
    ledger = trees.tree("8c,8c", "team < primary []: n1~3c, n2~5c", "inner < team []: n1~3c")
    upper, lower = trees.lease(ledger, "team/0: 8c"), trees.lease(ledger, "inner/0: 3c", number=2)
    state = state_of(ledger, [upper, lower])
    changes(state, [lower])
    assert dict(state.leases) == {1: replace(upper, amounts={"CPU": 50000})}
    assert sum(part.allocation.amounts["CPU"] for part in ledger.slots("team")) == 50000


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


def calls(state: SchedulerState, memo: TurnMemo, now: Now) -> Iterator[Change]:
    return revoked(state, memo, now, lambda: max(state.leases) + 1)


def waiting(state: SchedulerState, cluster_id: str, cpus: int) -> None:
    """A job was sent to a cluster, was looked at, and has to wait."""
    spec = ClusterSpec(flexible_min={"CPU": cpus * 10000})
    apply(state, JobSubmitted(PendingJob(9, "w", cluster_id, "s", spec, {}), DETAILS))
    queue = state.queues[cluster_id]
    ((name, shape),) = queue.shapes.items()
    shape.judge(verdict := Verdict("InsufficientResources", ""))
    queue.reported[name] = verdict[:2]


def test_a_lease_is_due_when_it_was_idle_long_enough_and_is_cool_again() -> None:
    ledger = trees.tree("8c", "a < primary []: n1~2c", "b < primary []: n1~4c")
    old, used = (
        trees.lease(ledger, text, number=number) for number, text in enumerate(("a/0: 2c", "b/0: 4c"), 1)
    )
    trees.use(ledger, "b/0: 4c")
    old = replace(old, since=S)
    state = state_of(ledger, [old, used])
    state.lease_terms = LeaseTerms(idle_s=10, cooldown_s=2)

    def after(idle_s: float, wall: int) -> list[tuple[Lease, float]]:
        memo = TurnMemo(idle_leases={1: (100 * S - int(idle_s * S), old.amounts)})
        return [(one.lease, one.wait_s) for one in waits(state, memo, Now(wall, 100 * S))[0]]

    assert after(4, 20 * S) == [(old, 6.0)]
    assert after(99, 2 * S) == [(old, 1.0)]  # it was borrowed a second ago
    ledger.put_lease(over := replace(old, expires_at=2 * S))
    assert after(0, 2 * S) == [(over, 0.0)]
    assert after(0, S) == [(over, 1.0)]  # it is over before it has been idle for long
    piece = ("a/0", Allocation({"CPU": 1}))
    apply(state, nominated(Nomination(7, "w", 5, "a", (piece,))))
    assert after(99, 99 * S) == []  # the winner of a preemption needs it


def test_a_lender_with_waiting_work_calls_in_the_newest_lease_of_what_it_lent() -> None:
    ledger = trees.tree("8c", "a < primary [6c] lend=4c: n1~2c", "b < primary []: n1~4c")
    leases = [
        replace(trees.lease(ledger, "b/0: 2c", lender="a", number=number), since=number) for number in (1, 2)
    ]
    state = state_of(ledger, leases)
    assert to_call(state, S) == []
    waiting(state, "a", 6)  # 2 CPUs of the node are free
    assert to_call(state, S) == [(leases[1], leases[1].amounts)]
    state.lease_terms = LeaseTerms(reclaim_grace_s=5)
    called = LeaseCalled(replace(leases[1], state=CALLED, expires_at=15 * S))
    assert follows(state, calls(state, TurnMemo(), Now(10 * S, S))) == [called]
    assert follows(state, calls(state, TurnMemo(), Now(11 * S, 2 * S))) == []  # it was called in


def test_a_loan_out_of_two_clusters_is_called_in_once_for_the_work_of_the_outer_one() -> None:
    """``inner`` has lent it, out of ``a``, whose own work waits for it: it was spared and called in again for ever."""
    ledger = trees.tree(
        "8c", "a < primary [4c] lend=4c: n1~3c", "inner < a [2c] lend=1c: n1~1c", "b < primary []: n1~4c"
    )
    state = state_of(ledger, [trees.lease(ledger, "b/0: 1c", lender="inner")])
    waiting(state, "a", 4)
    memo = TurnMemo()
    (called,) = follows(state, calls(state, memo, Now(10 * S, S)))
    assert isinstance(called, LeaseCalled)
    assert follows(state, calls(state, memo, Now(11 * S, 2 * S))) == []
    state.dequeue(9)
    (spared,) = follows(state, calls(state, memo, Now(12 * S, 3 * S)))
    assert isinstance(spared, LeaseSpared)


def test_who_uses_a_lease_that_is_called_in_is_told_and_ended_after_its_grace_unless_it_is_free() -> None:
    ledger = trees.tree("8c", "a < primary [6c] lend=4c: n1~2c", "b < primary []: n1~4c")
    lease = replace(trees.lease(ledger, "b/0: 2c", lender="a"), since=1, state=CALLED)
    run = Run("1.1.0.x", 1, 1, 0, "b", "b/0", "n1", Allocation({"CPU": 40000}), "RUNNING", started_at=1)
    state = state_of(ledger, [lease])
    waiting(state, "a", 4)
    state.add_run(run)
    state.running.put(RunningJob(1, "b", "b", run.run_id, "me", None, "j", started_at_ns=1))
    state.lease_terms, memo = LeaseTerms(reclaim_grace_s=5), TurnMemo()
    assert list(to_notify(state, memo, 90 * S)) == [(lease, 1)]
    assert list(calls(state, memo, Now(90 * S, 90 * S))) == []  # nobody ends without a grace
    begin_graces(state, memo, [LeaseNotified(lease.lease_id, 1), LeaseNotified(99, 1)], Now(90 * S, 10 * S))
    assert (list(to_notify(state, memo, 90 * S)), memo.notified) == ([], {lease.lease_id: {1: 15 * S}})
    assert (list(calls(state, memo, Now(90 * S, 15 * S - 1))), memo.due) == ([], [15 * S])
    ends = [RunStopping(run.run_id, "Preempted")]
    assert follows(state, calls(state, memo, Now(90 * S, 15 * S))) == ends
    assert follows(state, calls(state, memo, Now(90 * S, 16 * S))) == []
    ledger.put_lease(replace(lease, amounts={}))
    assert (list(calls(state, memo, Now(90 * S, 17 * S))), memo.notified) == ([], {})


def test_a_lease_that_is_idle_is_given_back_when_it_was_so_long_enough() -> None:
    ledger = trees.tree("8c", "a < primary []: n1~2c")
    lease = replace(trees.lease(ledger, "a/0: 2c"), since=S)
    state, memo = state_of(ledger, [lease]), TurnMemo()
    state.lease_terms = LeaseTerms(idle_s=10, cooldown_s=2)
    assert (list(expired(state, memo, Now(20 * S, 50 * S))), memo.due) == ([], [60 * S])
    memo.due.clear()
    assert list(expired(state, memo, Now(29 * S, 59 * S))) == []
    assert LeaseReturned(replace(lease, amounts={})) in follows(
        state, expired(state, memo, Now(30 * S, 60 * S))
    )


def test_only_so_long_as_it_was_idle_all_the_while() -> None:
    """An account always has something idle somewhere: only what was idle for the whole time returns."""
    ledger = trees.tree("8c,8c", "a < primary []: n1~4c, n2~4c")
    trees.use(ledger, "a/0: 4c")
    state, memo = state_of(ledger, [replace(trees.lease(ledger, "a/0: 8c"), since=S)]), TurnMemo()
    state.lease_terms = LeaseTerms(idle_s=10, cooldown_s=2)
    assert list(expired(state, memo, Now(20 * S, 50 * S))) == []
    trees.use(ledger, "a/1: 3c")
    assert list(expired(state, memo, Now(21 * S, 51 * S))) == []
    ledger.discharge("a/0#0")  # from now on 5 are idle, but only 1 was all the time
    assert list(expired(state, memo, Now(29 * S, 59 * S))) == []
    changed = follows(state, expired(state, memo, Now(30 * S, 60 * S)))
    assert [dict(one.lease.amounts) for one in changed if isinstance(one, LeaseReturned)] == [{"CPU": 70000}]
    memo.due.clear()
    assert (list(expired(state, memo, Now(31 * S, 61 * S))), memo.due) == ([], [71 * S])


def test_what_a_raylet_left_returns_after_the_cool_down_alone() -> None:
    ledger = trees.tree("8c,8c", "a < primary []: n1~4c, n2~4c")
    lease = replace(trees.lease(ledger, "a/0: 8c"), since=30 * S)
    state, memo = state_of(ledger, [lease]), TurnMemo(vacated_vnodes={"a/0", "gone"})
    state.lease_terms = LeaseTerms(idle_s=100, cooldown_s=2)
    assert list(expired(state, memo, Now(31 * S, 60 * S))) == []
    assert memo.vacated_vnodes == {"a/0"}
    changed = follows(state, expired(state, memo, Now(32 * S, 61 * S)))
    assert changed == [VNodesChanged(("a/0",)), LeaseReturned(replace(lease, amounts={"CPU": 40000}))]
    assert list(expired(state, memo, Now(99 * S, 99 * S))) == []  # the rest has its own time


def test_a_gang_on_many_nodes_through_two_levels_changes_two_leases() -> None:
    """There was a row for each virtual node at each level: 16 for a gang on 8 nodes."""
    ledger = trees.tree(",".join(["2c"] * 8), "org < primary []", "team < org []")
    gang = ClusterSpec(groups=(Group((FixedNode({"CPU": 20000}),) * 8, "STRICT_SPREAD"),), flexible=False)
    found = place_with_growth(ledger, "team", gang, {})
    assert not isinstance(found, Unplaced)
    numbers = iter(range(1, 99))
    state, steps = state_of(ledger, []), found[0]
    assert len(steps) == 16
    assert follows(state, granted(ledger, steps, {}, 5, lambda: next(numbers))) == [
        LeaseGranted(Lease(1, "org", PRIMARY, {"CPU": 160000}, 5)),
        LeaseGranted(Lease(2, "team", "org", {"CPU": 160000}, 5)),
    ]
    before = dict(state.leases)
    back = [step for move in recall(ledger, PRIMARY) for step in move]
    gone = [LeaseReturned(replace(before[number], amounts={})) for number in (2, 1)]
    assert (len(back), list(returned(before, back))) == (16, gone)


def test_only_what_the_lender_lacks_is_called_and_the_rest_of_the_account_stays() -> None:
    ledger = trees.tree("12c", "a < primary [8c] lend=8c: n1~2c", "b < primary []: n1~6c")
    account = trees.lease(ledger, "b/0: 6c", lender="a", since=7)
    state = state_of(ledger, [account])
    trees.use(ledger, "b/0: 6c")
    state.lease_terms = LeaseTerms(reclaim_grace_s=5)
    waiting(state, "a", 9)  # 4 CPUs of the node are free
    called = replace(account, lease_id=2, amounts={"CPU": 30000}, state=CALLED, expires_at=15 * S)
    rest = replace(account, amounts={"CPU": 30000})
    assert follows(state, calls(state, TurnMemo(), Now(10 * S, S))) == [LeaseCalled(called, rest)]
    assert dict(state.leases) == {1: rest, 2: called}
    assert follows(state, calls(state, TurnMemo(), Now(11 * S, 2 * S))) == []  # no more than that


def test_what_is_not_needed_any_more_is_a_part_of_the_account_again() -> None:
    ledger = trees.tree("12c", "a < primary [8c] lend=8c: n1~2c", "b < primary []: n1~6c")
    account = trees.lease(ledger, "b/0: 4c", lender="a", since=7)
    called = replace(account, lease_id=2, amounts={"CPU": 20000}, state=CALLED, expires_at=15)
    state = state_of(ledger, [account, called])
    spared = replace(called, state=GRANTED, expires_at=None)
    whole = replace(account, amounts={"CPU": 60000})
    assert follows(state, calls(state, TurnMemo(), Now(10 * S, S))) == [LeaseSpared(spared, whole)]
    assert dict(state.leases) == {1: whole}
    state = state_of(trees.tree("12c", "a < primary [8c] lend=8c: n1~2c", "b < primary []: n1~2c"), [called])
    assert follows(state, calls(state, TurnMemo(), Now(10 * S, S))) == [LeaseSpared(spared)]


def test_leases_are_called_from_the_newest_on_until_there_is_enough() -> None:
    ledger = trees.tree(
        "12c",
        "a < primary [9c] lend=9c: n1~",
        "b < primary []: n1~4c",
        "c < primary []: n1~3c",
        "d < primary []: n1~2c",
    )
    state = state_of(ledger, [
        trees.lease(ledger, f"{one}/0: {cpus}c", lender="a", number=number, since=since)
        for number, (one, cpus, since) in enumerate((("b", 4, 8), ("c", 3, 9), ("d", 2, 7)), 1)
    ])  # fmt: skip
    waiting(state, "a", 8)  # 3 CPUs of the node are free
    asked = [(lease.borrower_id, amounts["CPU"]) for lease, amounts in to_call(state, S)]
    assert asked == [("c", 30000), ("b", 20000)]


def test_where_there_is_enough_but_not_in_one_place_as_much_as_the_work_needs_is_called() -> None:
    """By amounts nothing is missing: 2 CPUs lie here and 2 there. It waits for what is called before it asks again."""
    ledger = trees.tree(
        "8c,8c",
        "a < primary [12c] lend=8c: n1~2c, n2~2c",
        "b < primary []: n1~6c, n2~2c",
        "f < primary [4c]: n2~4c",
    )
    for slot in ("b/0: 6c", "b/1: 2c", "f/0: 4c"):
        trees.use(ledger, slot)
    state = state_of(ledger, [account := trees.lease(ledger, "b/0: 8c", lender="a")])
    waiting(state, "a", 4)
    assert to_call(state, S) == [(account, {"CPU": 40000})]
    follows(state, calls(state, TurnMemo(), Now(10 * S, S)))
    assert to_call(state, S) == []


def used(ledger: Ledger, *runs: tuple[int, int, str, int], tasks: Iterable[Run] = ()) -> SchedulerState:
    """Jobs that run: (job, rank, virtual node, CPUs). They started in the order of their numbers."""
    found = []
    for job_id, rank, slot, cpus in runs:
        vnode, held = ledger.vnodes[slot], Allocation({"CPU": cpus * 10000})
        found.append(
            Run(
                f"{job_id}.1.{rank}.x",
                job_id,
                1,
                rank,
                vnode.cluster_id,
                slot,
                vnode.node_id,
                held,
                "RUNNING",
                started_at=job_id,
            )
        )
    state = SchedulerState(ledger, {run.run_id: run for run in (*found, *tasks)}, 0)
    for run in (*found, *tasks):
        ledger.charge(run.run_id, run.vnode_id, run.allocation)
    for run in found:
        parent = (
            run.cluster_id
            if ledger.clusters[run.cluster_id].kind == LOGICAL
            else ledger.clusters[run.cluster_id].parent_id
        )
        state.running.put(
            RunningJob(
                run.job_id,
                parent or "",
                run.cluster_id,
                run.run_id,
                "me",
                None,
                "j",
                started_at_ns=run.job_id,
            )
        )
    return state


def ends(state: SchedulerState, cpus: int, now: int = 99) -> list[list[str]]:
    """What has to end of cluster b if so much is called."""
    ledger = state.ledger
    lent = sum(part.allocation.amounts["CPU"] for part in ledger.slots("b"))
    least = ledger.clusters["b"].spec.flexible_min.get("CPU", 0)
    called = Lease(7, "b", "a", {"CPU": cpus * 10000}, 1, state=CALLED)
    for lease in (called, Lease(8, "b", "a", {"CPU": lent - least - cpus * 10000}, 1)):
        ledger.put_lease(lease)
    found = [[run.run_id for run in victims] for _, victims in to_end(state, "b", now)]
    for lease in (called, Lease(8, "b", "a", {}, 1)):
        ledger.put_lease(replace(lease, amounts={}))
    return found


def test_of_the_users_of_a_lease_the_newest_end_and_no_more_than_needed() -> None:
    ledger = trees.tree("8c", "b < primary []: n1~4c")
    idle = Run("1.1.t", 1, 1, 0, "b", "b/0", "n1", Allocation({}), task_id="task-5", started_at=9)
    state = used(ledger, (1, 0, "b/0", 1), (2, 0, "b/0", 1), (2, 1, "b/0", 1), (3, 0, "b/0", 1), tasks=[idle])
    assert ends(state, 1) == [["3.1.0.x"]]  # the task holds nothing
    assert ends(state, 2) == ends(state, 3) == [["3.1.0.x"], ["2.1.0.x", "2.1.1.x"]]  # never half a gang
    apply(state, QueueChanged("b", QueuePolicy(min_runtime_ns=8)))
    assert ends(state, 1, now=10) == [["2.1.0.x", "2.1.1.x"]]  # job 3 is too young to end


def test_the_newest_of_all_nodes_ends_and_what_is_idle_anywhere_counts() -> None:
    ledger = trees.tree("4c,4c", "b < primary []: n1~4c, n2~4c")
    state = used(ledger, (1, 0, "b/1", 3), (2, 0, "b/0", 4))
    assert ends(state, 1) == []
    assert ends(state, 2) == ends(state, 5) == [["2.1.0.x"]]
    assert ends(state, 6) == [["2.1.0.x"], ["1.1.0.x"]]


def test_what_runs_on_the_minimum_of_a_cluster_inside_the_borrower_does_not_end() -> None:
    """Its end would leave nothing: that cluster keeps its minimum."""
    ledger = trees.tree("8c", "b < primary []: n1~8c", "in < b [2c]: n1~4c")
    ledger.put_lease(Lease(3, "in", "b", {"CPU": 20000}, 1))
    state = used(ledger, (1, 0, "b/0", 4), (3, 0, "in/0", 2), (4, 0, "in/0", 2))
    assert ends(state, 2) == [["4.1.0.x"]]
    assert ends(state, 3) == [["4.1.0.x"], ["1.1.0.x"]]  # not job 3, though it is newer


def test_of_a_job_that_grew_the_tasks_end_and_what_only_its_gang_holds_ends_with_it() -> None:
    ledger = trees.tree("8c", "b < primary []: n1~6c", "b##j < b [2c] job: n1~4c, n1=1c")
    ledger.put_lease(Lease(3, "b##j", "b", {"CPU": 20000}, 1, job_id=1))
    tasks = [
        Run(
            f"1.1.t{number}",
            1,
            1,
            0,
            "b##j",
            "b##j/0",
            "n1",
            Allocation({"CPU": 10000}),
            task_id=f"task-{number}",
        )
        for number in (1, 2)
    ]
    state = used(ledger, (1, 0, "b##j/0", 2), tasks=tasks)
    assert ends(state, 1) == []  # 1 CPU of b is idle
    assert ends(state, 2) == [["1.1.t2"]]
    assert ends(state, 4) == [["1.1.t2"], ["1.1.t1"], ["1.1.0.x", "1.1.t1", "1.1.t2"]]


def test_a_loan_to_a_gang_ends_with_its_job() -> None:
    ledger = trees.tree("8c", "a < primary [8c] lend=8c: n1~2c", "b < primary [] job: n1=6c")
    state = used(ledger, (1, 0, "b/0", 0))
    assert ends(state, 6) == [["1.1.0.x"]]
