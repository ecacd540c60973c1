"""Starts that a round has tried stay taken until they are committed: nothing else may ever see them as started."""

from __future__ import annotations

from tests.scheduler import candidates
from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.nodes import DRAINING
from vctl.engine.apply import apply
from vctl.engine.changes import Change, JobStarted, NodeMoved
from vctl.engine.state import SchedulerState
from vctl.scheduler.cycle import decide
from vctl.scheduler.plan import Plan, Start

pytestmark = spec("6.gang")

CPU = 10_000


def tried(*sizes: str, nodes: str = "4c") -> tuple[SchedulerState, Plan]:
    """A round with a job of each size; its starts are still taken."""
    state = SchedulerState(candidates.ledger(nodes), {}, 0)
    for number, size in enumerate(sizes, 1):
        gang = candidates.spec(f"PACK: {size}")
        entry = candidates.amounts(size)
        state.enqueue(PendingJob(number, f"j{number}", PRIMARY, size, gang, entry))
    plan = decide(state.ledger, state.queues, now_ns=0, running=state.running, keeps=True)
    state.trial = plan.trial
    return state, plan


def started(start: Start) -> Change:
    """The change that a commit makes of it."""
    job, cluster = start.job, start.cluster
    run = Run(
        f"{job.job_id}.1", job.job_id, 1, 0, start.cluster_id, start.vnode_id, start.node_id, start.allocation
    )
    begun = RunningJob.begun(job, start.cluster_id, run.run_id, 0)
    return JobStarted(0, begun, (start.node_id,), (run,), cluster, start.vnodes)


def free(state: SchedulerState) -> float:
    return state.ledger.available(PRIMARY)["CPU"] / CPU


def test_what_is_committed_is_there_once_and_what_is_not_returns() -> None:
    """Spec 6: two jobs were tried, one is committed; the other is taken back as if it had never been there."""
    state, plan = tried("1c", "2c")
    assert free(state) == 1
    one, two = plan.starts
    assert state.has_room(one, 0)
    apply(state, started(one))
    assert state.has_room(two, 0)
    assert free(state) == 1
    state.end_trial()
    assert free(state) == 3
    assert sorted(state.ledger.charges) == ["1.1"]
    assert sorted(state.ledger.clusters) == [PRIMARY, one.cluster_id]
    assert PRIMARY not in state.ledger.grown, "what comes back was never gone"
    apply(state, started(two))
    assert free(state) == 1


def test_any_other_change_takes_back_what_is_tried_before_it_is_seen() -> None:
    """Spec 6: the node is drained between search and commit: nothing starts on it."""
    state, plan = tried("1c", "1c", nodes="2c")
    apply(state, started(plan.starts[0]))
    apply(state, NodeMoved(0, "n1", "drain", DRAINING))
    assert state.trial is None
    assert not state.has_room(plan.starts[1], 0)
    assert sorted(state.ledger.charges) == ["1.1"]


def test_a_start_of_another_round_is_asked_again() -> None:
    """Spec 6: only what is taken in this very trial needs no second look."""
    state, plan = tried("3c")
    older = plan.starts[0]
    state.end_trial()
    again = decide(state.ledger, state.queues, now_ns=0, running=state.running, keeps=True)
    state.trial = again.trial
    assert state.has_room(older, 0), "by a look, after the trial is taken back"
    assert state.trial is None
    state.ledger.charge("other", "n1", state.ledger.capacities["n1"].choice({"CPU": 2 * CPU}))
    assert not state.has_room(older, 0)


def test_who_does_not_ask_for_it_gets_the_ledger_back_as_it_was() -> None:
    """Spec 6: a dry run, a replay, a simulation."""
    state = SchedulerState(candidates.ledger("4c"), {}, 0)
    state.enqueue(PendingJob(1, "j", PRIMARY, "s", candidates.spec("PACK: 1c"), {}))
    plan = decide(state.ledger, state.queues, now_ns=0, running=state.running)
    assert plan.trial is None
    assert len(plan.starts) == 1
    assert free(state) == 4
