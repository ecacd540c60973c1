"""The rule of what a plan starts: every start is checked again, and everything that it needs is in the changes."""

from __future__ import annotations

from itertools import count

from tests.engine.states import NOW, add_task, pending, run_job, state_of, yielded
from tests.scheduler import candidates as g
from tests.specification import spec
from vctl.core.clusters import JOB, PRIMARY, Cluster, VNode
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.resources import EMPTY
from vctl.core.values import replace
from vctl.engine import changes as ch
from vctl.engine.apply import apply
from vctl.engine.rules.starts import Supply, starts
from vctl.engine.state import SchedulerState
from vctl.scheduler.cycle import decide
from vctl.scheduler.plan import Plan

pytestmark = spec("8.submit", "8.per-node", "8.retries", "10.life")

OWN = f"{PRIMARY}##j1"


def supply() -> Supply:
    """Names x1, x2, …; numbers 101, 102, … of all kinds; ports from 5001 on."""
    names, numbers = count(1), count(101)

    def port(taken: set[int]) -> int:
        return next(one for one in count(5001) if one not in taken)

    def number() -> int:
        return next(numbers)

    return Supply(lambda: f"x{next(names)}", number, number, number, lambda: "", port)


def plan_of(state: SchedulerState) -> Plan:
    return decide(state.ledger, state.queues, state.tasks.queues, now_ns=NOW, running=state.running)


def waiting(job_id: int = 1, **fields: object) -> tuple[SchedulerState, PendingJob]:
    state, job = state_of(), pending(job_id, **fields)
    state.put_pending(job)
    return state, job


def test_a_job_starts_with_its_cluster_and_its_process() -> None:
    state, job = waiting(attempt=1, preemptions=1, grace_s=2.0, time_limit_ns=5, user="me", rules='{"a":1}')
    held = g.amounts("1c")
    (started,) = yielded(state, starts(state, plan_of(state), supply(), NOW))
    assert isinstance(started, ch.JobStarted)
    (vnode,) = started.vnodes
    run = Run("1.2.0.x1", 1, 2, 0, OWN, f"{OWN}/0", vnode.node_id, EMPTY, supervisor=102)
    assert started == ch.JobStarted(
        NOW,
        RunningJob(1, PRIMARY, OWN, "1.2.0.x1", "me", NOW + 5, "j1", 0, NOW, 2, 1, rules='{"a":1}',
                   grace_s=2.0, held=held),
        (vnode.node_id,), (run,), Cluster(OWN, PRIMARY, JOB, job.spec, revision=101, job="1"), started.vnodes,
    )  # fmt: skip
    assert state.requests == {1: job}
    assert list(state.changed.runs) == ["1.2.0.x1"]


def test_a_gang_starts_with_a_process_in_each_virtual_node_and_a_port_that_no_other_has() -> None:
    state = state_of("1c, 1c, 4c")
    other = run_job(state, 9, cpus="1c")
    state.running.put(replace(other, master_port=5001))
    state.put_pending(replace(pending(per_node=True), spec=g.spec("STRICT_SPREAD: 1c, 1c")))
    (started,) = yielded(state, starts(state, plan_of(state), supply(), NOW))
    assert isinstance(started, ch.JobStarted)
    assert [run.run_id for run in started.runs] == ["1.1.0.x1", "1.1.1.x2"]
    assert [run.vnode_id for run in started.runs] == [vnode.vnode_id for vnode in started.vnodes]
    assert [run.supervisor for run in started.runs] == [102, 103]
    assert started.job.master_port == 5002


def test_who_was_changed_or_stopped_meanwhile_does_not_start() -> None:
    state, job = waiting()
    plan = plan_of(state)
    state.put_pending(replace(job, priority=1))
    assert list(starts(state, plan, supply(), NOW)) == []
    state.dequeue(1)
    assert list(starts(state, plan, supply(), NOW)) == []


def test_who_does_not_fit_any_more_does_not_start_and_nobody_is_ended_for_that() -> None:
    state, _ = waiting()
    plan = plan_of(state)
    (start,) = plan.starts
    (vnode,) = start.vnodes
    for node_id in ("n1", "n2"):
        taken = state.ledger.capacities[node_id].copy().take(g.amounts("4c"))
        state.ledger.assign(VNode(f"o{node_id}", PRIMARY, node_id, node_id, "fixed", taken))
    assert vnode.node_id in ("n1", "n2")
    assert list(starts(state, plan, supply(), NOW)) == []


def test_two_that_fit_only_one_after_the_other_do_not_start_together() -> None:
    """The second is checked in the state that the start of the first has left."""
    state = state_of("1c")
    state.put_pending(pending())
    plan = plan_of(state)
    state.put_pending(pending(2))
    (other,) = replace(plan, starts=(replace(plan.starts[0], job=pending(2)),)).starts
    both = replace(plan, starts=(*plan.starts, other))
    found = yielded(state, starts(state, both, supply(), NOW))
    assert [one.job.job_id for one in found if isinstance(one, ch.JobStarted)] == [1]


def test_a_task_starts_beside_copies_of_its_inputs() -> None:
    state = state_of("4c, 4c")
    run_job(state)
    apply(state, ch.ObjectCreated(NOW, 1, "a", "n2", OWN, 7))
    add_task(state, 1, inputs=("a",))
    apply(state, ch.TaskReady("task-1", 1, OWN))
    (started,) = yielded(state, starts(state, plan_of(state), supply(), NOW))
    run = Run("task-1.1.x1", 1, 1, 0, OWN, f"{OWN}/0", "n1", EMPTY, task_id="task-1", supervisor=101)
    assert started == ch.TaskStarted(NOW, "task-1", run, (ch.Copy("a", 7),))
    assert list(starts(state, Plan(), supply(), NOW)) == []
