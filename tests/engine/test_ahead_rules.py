"""The rules of runs assigned ahead: who may follow a running job, and what its end makes of them."""

from __future__ import annotations

import pytest

from tests.engine.states import NOTHING, NOW, STARTED, pending, run_ahead, state_of, yielded
from tests.engine.test_start_rules import plan_of, supply
from tests.scheduler import candidates as g
from tests.specification import spec
from vctl.core.clusters import PRIMARY, Cluster, ClusterSpec
from vctl.core.queue_policy import FAIR, QueuePolicy
from vctl.core.tasks import Task
from vctl.core.values import replace
from vctl.engine import changes as ch
from vctl.engine.apply import apply
from vctl.engine.rules.ahead import assign, keeps_order
from vctl.engine.rules.ends import processes
from vctl.engine.rules.starts import starts
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import Exit, ProcessOver, ProcessSeen

pytestmark = spec("8.arrays", "8.end")

ONCE = '{"max_retries":0,"retry_on":["ExitCode"],"backoff_s":0}'
TWO_NODES = g.spec("STRICT_SPREAD: 1c, 1c")
TWICE = ONCE.replace("0", "1", 1)


def members(count: int = 6, nodes: str = "1c, 1c", **fields: object) -> SchedulerState:
    """As many members of an array as fit run, one in each node; the others wait."""
    state = state_of(nodes)
    for number in range(1, count + 1):
        plain = {"array_id": "a", "rules": ONCE, **fields}
        state.put_pending(replace(pending(number), submission_id=f"a_{number}", **plain))
    yielded(state, starts(state, plan_of(state), supply(), STARTED))
    return state


def assigned(state: SchedulerState, most: int = 1) -> list[tuple[int, int]]:
    """(job, the job that it follows) of each run that is assigned ahead now."""
    found = yielded(state, assign(state, supply(), NOW, most))
    jobs = {run.run_id: run.job_id for run in state.runs.values()}
    jobs |= {run_id: one.start.job.job_id for run_id, one in state.ahead.runs.items()}
    return [(one.job_id, jobs[one.follows]) for one in found if isinstance(one, ch.RunAssignedAhead)]


def end(state: SchedulerState, job_id: int, at: int = 1) -> ProcessOver:
    """The process of a job has exited: it runs, or was to follow another one."""
    run_id = next(iter(state.runs_of_job.get(job_id, ())), None) or run_ahead(state, job_id)
    run = state.runs.get(run_id) or state.ahead.runs[run_id].run
    return ProcessOver(run, Exit(0, None, None, "", False, STARTED + at), process=PROCESS)


PROCESS = ch.StartedProcess(5, 6, "boot", STARTED + 1)


def kinds(changes: list[ch.Change]) -> list[str]:
    return [type(one).__name__ for one in changes]


def test_the_next_members_follow_those_that_run_and_leave_their_queue() -> None:
    state = members(8)
    assert assigned(state, 2) == [(3, 1), (4, 2), (5, 3), (6, 4)]
    assert sorted(state.queues[PRIMARY].jobs) == [7, 8]
    assert assigned(state, 2) == []


def test_of_two_runs_of_one_supervisor_the_later_one_leads() -> None:
    """The end of the first was said after the look for ends: who follows it would wait for the second."""
    state = members()
    first, second = (next(iter(state.runs_of_job[job_id])) for job_id in (1, 2))
    state.runs[second] = replace(state.runs[second], supervisor=state.runs[first].supervisor)
    assert assigned(state, 2) == [(3, 2), (4, 3)]


def test_a_follower_starts_where_a_look_at_what_is_free_would_have_started_it() -> None:
    ahead, plain = members(), members()
    assigned(ahead)
    number = ahead.runs[ahead.running.jobs[1].run_id].supervisor
    found = yielded(ahead, processes(ahead, [end(ahead, 1)], NOW, NOTHING.lease))
    yielded(plain, processes(plain, [end(plain, 1)], NOW, NOTHING.lease))
    (looked,) = yielded(plain, starts(plain, plan_of(plain), supply(), NOW))
    assert kinds(found) == ["RunEnded", "JobEnded", "JobStarted"]
    followed = found[-1]
    assert isinstance(followed, ch.JobStarted) and isinstance(looked, ch.JobStarted)
    assert followed.cluster is not None and looked.cluster is not None
    run_id = followed.job.run_id
    assert followed == replace(
        looked, job=replace(looked.job, run_id=run_id), was_ahead=True,
        cluster=replace(looked.cluster, revision=followed.cluster.revision),
        runs=(replace(looked.runs[0], run_id=run_id, supervisor=followed.runs[0].supervisor),),
    )  # fmt: skip
    assert followed.runs[0].supervisor == number
    assert ahead.ledger.vnodes.keys() == plain.ledger.vnodes.keys()


def test_a_whole_chain_that_is_over_is_recorded_at_once_in_order() -> None:
    state = members()
    assert assigned(state, 2) == [(3, 1), (4, 2), (5, 3)]  # the last one of a class stays in the queue
    ends = [end(state, 5, 3), end(state, 3, 2), end(state, 1, 1)]
    found = yielded(state, processes(state, ends, NOW, NOTHING.lease))
    assert [one.job_id for one in found if isinstance(one, ch.JobEnded)] == [1, 3, 5]
    assert kinds(found) == [
        "RunEnded", "JobEnded", "JobStarted", "RunEnded", "JobEnded", "JobStarted", "RunEnded", "JobEnded",
    ]  # fmt: skip
    assert not state.ahead.runs.keys() & {one.run.run_id for one in ends}
    assert sorted(state.running.jobs) == [2]


def test_a_follower_that_was_seen_is_recorded_as_seen() -> None:
    state = members()
    assigned(state)
    run_id = run_ahead(state, 3)
    yielded(state, processes(state, [end(state, 1), ProcessSeen(run_id, PROCESS)], NOW, NOTHING.lease))
    assert state.runs[run_id].pid == PROCESS.pid


def test_a_run_that_was_taken_back_waits_at_its_old_place() -> None:
    state = members()
    before = dict(state.queues[PRIMARY].jobs)
    assigned(state)
    apply(state, ch.RunTakenBack(run_ahead(state, 3), 3))
    apply(state, ch.RunTakenBack("of another time", 3))
    assert all(ahead.start.job.job_id != 3 for ahead in state.ahead.runs.values())
    assert sorted(state.queues[PRIMARY].jobs) == [3, 5, 6]
    assert state.queues[PRIMARY].jobs[3] == before[3]


def test_nobody_follows_where_the_place_is_not_free_after_all() -> None:
    """A detached task holds the cluster of its job beyond the end of its process."""
    state = members()
    assigned(state, 2)
    task = Task(
        "task-1", 1, 1, f"{PRIMARY}##a_1", "a_1", request={}, grace_s=3.0, detached=True, outlives=True
    )
    apply(state, ch.TaskSubmitted(STARTED, task))
    found = yielded(state, processes(state, [end(state, 1)], NOW, NOTHING.lease))
    assert [one.job_id for one in found if isinstance(one, ch.RunTakenBack)] == [3, 5]
    assert sorted(state.queues[PRIMARY].jobs) == [3, 5, 6]


@pytest.mark.parametrize(
    "fields",
    [{"rules": TWICE}, {"per_node": True}],
    ids=["that may be tried again", "of gangs with a process in each node"],
)
def test_nobody_follows_jobs(fields: dict[str, object]) -> None:
    assert assigned(members(**fields)) == []


def test_single_jobs_follow_those_of_their_kind() -> None:
    state = members(array_id=None)
    assert assigned(state, 2) == [(3, 1), (4, 2), (5, 3)]


def test_nobody_follows_a_job_of_another_user_or_one_that_may_be_tried_again() -> None:
    state = members(2)
    for number, user in ((3, "else"), (4, "else"), (5, "")):
        state.put_pending(pending(number, rules=ONCE, user=user))
    assert assigned(state) == []
    state = members(2)
    for number in range(3, 7):
        state.put_pending(pending(number, rules=TWICE))
    assert assigned(state, 3) == [(3, 1), (4, 2)]


def test_gangs_with_one_process_follow_each_other_unless_one_of_their_nodes_is_drained() -> None:
    state = members(5, "1c, 1c", spec=TWO_NODES)
    assert assigned(state, 2) == [(2, 1), (3, 2)]
    found = yielded(state, processes(state, [end(state, 1)], NOW, NOTHING.lease))
    assert kinds(found) == ["RunEnded", "JobEnded", "JobStarted"]
    assert {vnode.node_id for vnode in state.ledger.vnodes.values()} == set(state.ledger.nodes)
    state = members(5, "1c, 1c", spec=TWO_NODES)
    first = state.runs[next(iter(state.runs_of_job[1]))].node_id
    other = next(node for node in state.ledger.nodes.values() if node.node_id != first)
    state.ledger.nodes[other.node_id] = replace(other, state="DRAINING")
    assert assigned(state, 2) == []


def test_where_many_run_few_follow_each() -> None:
    state = members(80, "1c, 1c")
    assert len(assigned(state, 99)) == 64
    state = members(160, ", ".join(["1c"] * 40))
    assert len(assigned(state, 99)) == 80


def test_nobody_follows_one_that_is_told_to_stop_or_has_tasks() -> None:
    state = members()
    (run_id,) = state.runs_of_job[1]
    apply(state, ch.RunStopping(run_id, "StoppedByUser"))
    assert assigned(state) == [(3, 2)]


def test_nobody_follows_on_a_node_that_is_being_drained() -> None:
    state = members()
    node_id = state.runs[next(iter(state.runs_of_job[1]))].node_id
    node = state.ledger.nodes[node_id]
    state.ledger.nodes[node_id] = replace(node, state="DRAINING")
    assert assigned(state) == [(3, 2)]


def test_only_who_is_next_follows() -> None:
    """Where others come first, or may, nobody is assigned ahead: spec 9, orders of queues."""
    state = members()
    state.put_pending(pending(9, priority=5))  # as first in the queue
    assert assigned(state) == [(9, 1), (3, 2)]
    state = members()
    for number in (9, 10):
        state.put_pending(replace(pending(number, priority=5), shape="large"))
    assert assigned(state) == []
    state = members()
    primary = state.ledger.clusters[PRIMARY]
    state.ledger.put_cluster(replace(primary, queue=QueuePolicy(order=FAIR)))
    assert assigned(state) == []


def test_the_last_one_of_a_class_stays_in_the_queue_for_a_place_that_comes_free_elsewhere() -> None:
    """Behind a run that takes long, it would wait beside that place for up to half a second."""
    state = members(4)
    assert assigned(state, 3) == [(3, 1)]
    assert sorted(state.queues[PRIMARY].jobs) == [4]


def test_behind_the_only_run_the_last_one_follows_and_keeps_the_reason_why_it_waits() -> None:
    state = members(3, "1c")
    queue = state.queues[PRIMARY]
    plan_of(state)
    told = dict(queue.reported)
    assert told and assigned(state, 3) == [(2, 1), (3, 2)]
    assert not queue.jobs and queue.reported == told and not queue.emptied
    yielded(state, processes(state, [end(state, 1)], NOW, NOTHING.lease))
    assert queue.reported == told and not queue.emptied
    yielded(state, processes(state, [end(state, 2)], NOW, NOTHING.lease))
    assert not queue.reported and queue.emptied == set(told)


def test_only_ends_and_starts_keep_the_order() -> None:
    state = members()
    found = yielded(state, processes(state, [end(state, 1)], NOW, NOTHING.lease))
    assert all(map(keeps_order, found))
    assert not keeps_order(ch.BeginTimesPassed(((1, 1),)))
    assert not keeps_order(ch.ClusterAdded(1, Cluster("c", PRIMARY, "logical", ClusterSpec())))
