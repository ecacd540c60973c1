"""What a node provider is asked for: a state, idle leases and the time on the one side, requests on the other."""

from __future__ import annotations

from tests.engine.states import follows
from tests.scheduler import trees
from tests.specification import spec
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import PendingJob, Run
from vctl.core.nodes import DEAD, DOWN, MADE_BY, RAY, RELEASING, UP, Node, NodeRequest, Template
from vctl.core.resources import DEFAULT_UNITS, Allocation, whole_node
from vctl.core.values import replace
from vctl.engine import changes as ch
from vctl.engine.apply import apply
from vctl.engine.rules import machines
from vctl.engine.settings import MachineTerms, TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import MachineDemand, Now
from vctl.scheduler.scheduling_class import Verdict

pytestmark = spec("9.provider")

NOW = 9
FOUR = Template("4c", {"CPU": 40000}, 3, {"zone": "a"})
DETAILS = ch.SubmitDetails(None, "{}", None, "{}", None)
ASKED = NodeRequest("id", "simulated", UP, "4c", FOUR.resources, FOUR.labels, ("4c-p1",), NOW)


def new_id() -> str:
    return "id"


def machine(node_id: str, kind: str = "simulated") -> Node:
    return Node(node_id, "4c", whole_node(FOUR.resources), node_id, {"zone": "a", MADE_BY: kind})


def state_of(*nodes: Node) -> SchedulerState:
    state = SchedulerState(trees.tree("1c"), {}, 0)
    for node in nodes:
        apply(state, ch.NodeAdded(1, node, None, "{}"))
    return state


def job(number: int, cpus: int) -> ch.JobSubmitted:
    shape = ClusterSpec(flexible_min={"CPU": cpus * 10000})
    return ch.JobSubmitted(PendingJob(number, f"j{number}", PRIMARY, f"s{cpus}", shape, {}), DETAILS)


def counts(state: SchedulerState) -> dict[str, int]:
    state.machine_terms = MachineTerms("simulated", (FOUR,))
    return dict(machines.demand(state, NOW).nodes)


def test_as_many_machines_are_asked_for_as_let_what_waits_start_and_no_more_than_there_may_be() -> None:
    state = state_of(machine("4c-p2"))
    assert counts(state) == {}
    for number in range(1, 4):
        apply(state, job(number, 4))
    (shape,) = state.queues[PRIMARY].shapes.values()
    shape.judge(Verdict("InsufficientResources", ""))
    assert counts(state) == {"4c": 2}  # one has its node already
    asked = ch.MachinesAsked(replace(ASKED, nodes=("4c-p1", "4c-p3")))
    assert follows(state, machines.requested(state, {"4c": 2}, [FOUR], "simulated", NOW, new_id)) == [asked]
    assert counts(state) == {}  # they are on their way
    follows(state, machines.failed(state, state.node_requests["id"], "up: no answer"))
    assert state.node_requests["id"].attempts == 1
    assert counts(state) == {}  # nothing more of what fails


def test_machines_that_were_made_are_nodes_and_the_request_is_done() -> None:
    state = state_of()
    apply(state, ch.MachinesAsked(ASKED))
    assert follows(state, machines.done(state, ASKED, ["4c-p1"], DEFAULT_UNITS, NOW)) == [
        ch.NodeAdded(NOW, machine("4c-p1"), None, "{}"),
        ch.MachinesDone(ASKED, ("4c-p1",)),
    ]
    assert follows(state, machines.done(state, ASKED, ["4c-p1"], DEFAULT_UNITS, NOW)) == []


def test_a_machine_of_a_command_stays_until_it_was_ended() -> None:
    state = state_of(machine("m", "command"))
    down = NodeRequest("id", "command", DOWN, "4c", {}, {}, ("m",), NOW)
    assert follows(state, machines.released(state, ["m"], "command", NOW, new_id)) == [
        ch.NodeMoved(NOW, "m", "release", RELEASING),
        ch.MachinesAsked(down),
    ]
    assert follows(state, machines.released(state, ["m"], "command", NOW, new_id)) == []
    assert follows(state, machines.done(state, down, ["m"], DEFAULT_UNITS, NOW)) == [
        ch.NodeRemoved("m"),
        ch.MachinesDone(down, ("m",)),
    ]


def test_a_machine_stays_while_somebody_uses_it_or_needs_what_lies_on_it() -> None:
    state = state_of(machine("m"), machine("o"))
    run = Run("1.1.0.x", 1, 1, 0, PRIMARY, "m", "m", Allocation({"CPU": 1}))
    state.add_run(run)
    apply(state, ch.ObjectCreated(NOW, 1, "a", "o", PRIMARY, 5))
    assert [node.node_id for node in machines.unused(state, "simulated")] == ["o"]
    assert list(machines.released(state, ["m", "o"], "simulated", NOW, new_id)) == []
    apply(state, ch.NodeMoved(NOW, "o", "die", DEAD))
    assert list(machines.released(state, ["m", "o"], "simulated", NOW, new_id)) == [ch.NodeRemoved("o")]


def of_ray(number: int) -> NodeRequest:
    return replace(ASKED, request_id=f"id{number}", kind=RAY, nodes=(f"4c-p{number}",), created_at=number)


def wants(state: SchedulerState) -> list[ch.Change]:
    """What follows in the next turn in which nothing else starts."""
    state.machine_terms = MachineTerms(RAY, (FOUR,))
    numbers = iter(range(1, 10))
    wanted = MachineDemand(machines.demand(state, NOW))
    return follows(
        state, machines.changes(state, TurnMemo(), [wanted], Now(NOW, NOW), lambda: f"id{next(numbers)}")
    )


def test_ray_is_asked_for_each_node_by_itself_and_no_longer_than_anything_needs_it() -> None:
    """The nodes that join are not those of a request: so what is still needed is found anew."""
    state = state_of()
    for number in range(1, 4):
        apply(state, job(number, 4))
    (shape,) = state.queues[PRIMARY].shapes.values()
    shape.judge(Verdict("InsufficientResources", ""))
    asked = [replace(of_ray(number), created_at=NOW) for number in (1, 2, 3)]
    assert wants(state) == [ch.MachinesAsked(one) for one in asked]
    assert wants(state) == []
    apply(state, ch.NodeAdded(NOW, machine("joined", RAY), None, "{}"))
    assert wants(state) == [ch.MachinesDone(asked[0])]  # one of the jobs has its node
    for number, left in ((3, [ch.MachinesDone(asked[1])]), (2, [ch.MachinesDone(asked[2])]), (1, [])):
        ended = ("stop", "STOPPED", "StoppedByUser", None, 143)
        apply(state, ch.JobEnded(NOW, number, f"j{number}", None, None, *ended))
        assert wants(state) == left


def test_a_node_of_ray_is_removed_when_it_is_dead_and_never_ended() -> None:
    state = state_of(machine("idle", RAY), machine("gone", RAY))
    apply(state, ch.NodeMoved(NOW, "gone", "die", DEAD))
    assert [node.node_id for node in machines.unused(state, RAY)] == ["gone"]


def test_another_provider_withdraws_what_ray_was_asked_for() -> None:
    state = state_of()
    apply(state, ch.MachinesAsked(of_ray(1)))
    state.machine_terms = MachineTerms("simulated", (FOUR,))
    assert follows(state, machines.booted(state, TurnMemo(), Now(NOW, NOW))) == [ch.MachinesDone(of_ray(1))]
