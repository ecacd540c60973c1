"""What becomes of nodes: a state, their leases of heartbeats and the time on the one side, changes on the other."""

from __future__ import annotations

from tests.engine.states import follows
from tests.scheduler import trees
from tests.scheduler.test_replacement import world
from tests.specification import spec
from vctl.core.clusters import PRIMARY, Cluster, ClusterSpec
from vctl.core.jobs import Run, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DEAD, DRAINED, DRAINING
from vctl.core.resources import Allocation
from vctl.core.tasks import Task
from vctl.core.values import replace
from vctl.engine import changes as ch
from vctl.engine.apply import apply
from vctl.engine.rules import nodes
from vctl.engine.settings import TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import NodeSilent

pytestmark = spec("12.node-death", "12.maintenance")

NOW = 9


def state_of(ledger: Ledger, *runs: Run) -> SchedulerState:
    state = SchedulerState(ledger, {run.run_id: run for run in runs}, 0)
    for run in runs:
        ledger.charge(run.run_id, run.vnode_id, run.allocation)
        state.running.put(
            RunningJob(run.job_id, PRIMARY, run.cluster_id, run.run_id, "me", None, f"j{run.job_id}")
        )
    return state


def move(state: SchedulerState, node_id: str, to: str) -> None:
    moves = {DEAD: "die", DRAINING: "drain", ALIVE: "undrain"}
    apply(state, ch.NodeMoved(1, node_id, moves[to], to, "a fan", "me"))


def order(state: SchedulerState, *, sweep: bool = False) -> list[ch.Change]:
    return follows(state, nodes.upkeep(state, TurnMemo(), NOW, iter(range(7, 99)).__next__, sweep=sweep))


def test_a_node_dies_whose_lease_of_heartbeats_is_over() -> None:
    state = state_of(trees.tree("4c,4c"))
    reported = [NodeSilent("n1", 2.5, NOW), NodeSilent("gone", 2.5, NOW)]
    dead = ch.NodeMoved(NOW, "n1", "die", DEAD, "no heartbeat for 2.5 s", "vctl")
    assert follows(state, nodes.silent(state, reported, NOW)) == [dead]
    assert follows(state, nodes.silent(state, reported, NOW)) == []


def test_with_a_node_go_its_processes_and_all_members_of_their_jobs() -> None:
    one = Allocation({"CPU": 10000})
    runs = [
        Run("1.1.0.a", 1, 1, 0, PRIMARY, "n1", "n1", one),
        Run("1.1.1.b", 1, 1, 1, PRIMARY, "n2", "n2", one),
        Run("2.1.0.c", 2, 1, 0, PRIMARY, "n2", "n2", one),
    ]
    state = state_of(trees.tree("4c,4c"), *runs)
    move(state, "n1", DRAINING)
    assert list(nodes.failed(state)) == []  # it changed, and lives
    move(state, "n1", DEAD)
    ended = [ch.RunStopping(run.run_id, "NodeFailed") for run in runs[:2]]
    assert list(nodes.failed(state)) == ended
    state.changed.nodes = {"n2"}
    assert list(nodes.failed(state)) == []


def test_a_dead_whole_node_gives_way_to_a_spare_and_the_events_say_so() -> None:
    state = state_of(world("4c,4c", "J j < primary: n1"))
    move(state, "n1", DEAD)
    changed, replaced, published = order(state)
    assert isinstance(changed, ch.VNodesChanged)
    assert (changed.removed, [vnode.node_id for vnode in changed.placed]) == (("j/0",), ["n2"])
    assert replaced == ch.NodeReplaced("j", "n1", "n2")
    assert published == ch.NodesPublished("j", ("n2",), 1)
    assert order(state) == []


def test_a_lease_ends_with_the_node_that_it_lay_on() -> None:
    ledger = trees.tree("4c,4c", "team < primary []: n1~3c")
    state = state_of(ledger)
    lease = trees.lease(ledger, "team/0: 3c")
    state.ledger.put_lease(lease)
    move(state, "n1", DEAD)
    assert order(state) == [
        ch.VNodesChanged(("team/0",)),
        ch.LeaseReturned(replace(lease, amounts={})),
        ch.NodeReplaced("team", "n1", None),
    ]


def test_a_draining_node_is_drained_when_nothing_is_left_on_it_and_keeps_its_reason() -> None:
    run = Run("1.1.0.a", 1, 1, 0, PRIMARY, "n1", "n1", Allocation({"CPU": 10000}))
    state = state_of(trees.tree("4c,4c"), run)
    move(state, "n1", DRAINING)
    assert order(state) == []
    apply(state, ch.RunEnded(NOW, run.run_id, 0, None))
    assert order(state) == [ch.NodeMoved(NOW, "n1", "empty", DRAINED, "a fan", "me")]
    assert order(state) == []


def test_a_node_that_shrank_is_as_others_once_what_lies_on_it_fits() -> None:
    run = Run("1.1.0.a", 1, 1, 0, PRIMARY, "n1", "n1", Allocation({"CPU": 30000}))
    state = state_of(trees.tree("4c"), run)
    small = replace(state.ledger.nodes["n1"], total=Allocation({"CPU": 20000}), shrunk=True)
    apply(state, ch.NodeChanged(small))
    assert order(state) == []
    apply(state, ch.RunEnded(NOW, run.run_id, 0, None))
    assert order(state) == [ch.NodeChanged(replace(small, shrunk=False), settled=True)]


def test_a_cluster_that_is_to_go_goes_when_nothing_is_in_it_children_first() -> None:
    state = state_of(trees.tree("4c", "org < primary []: n1~3c", "team < org []: n1~1c"))
    for cluster_id in ("org", "team"):
        apply(state, ch.ClusterMoved(1, cluster_id, "remove", "REMOVING", {}))
    task = Task("task-1", 1, 1, "team", "j", {}, 1.0)
    apply(state, ch.TaskSubmitted(NOW, task))
    assert order(state) == []
    apply(state, ch.TaskEnded(NOW, "task-1", 1, "team", "cancel", "Cancelled", None))
    assert order(state) == [ch.ClusterRemoved("team"), ch.ClusterRemoved("org")]


def test_the_cluster_of_a_job_that_is_over_goes_at_a_sweep_unless_a_task_lives_in_it() -> None:
    ledger = trees.tree("4c")
    ledger.put_cluster(Cluster("p##j", PRIMARY, "job", ClusterSpec(), job="1"))
    state = state_of(ledger)
    assert order(state) == []
    apply(state, ch.TaskSubmitted(NOW, Task("task-1", 1, 1, "p##j", "j", {}, 1.0, detached=True)))
    assert order(state, sweep=True) == []
    apply(state, ch.TaskEnded(NOW, "task-1", 1, "p##j", "cancel", "Cancelled", None))
    assert order(state, sweep=True) == [ch.ClusterRemoved("p##j")]
