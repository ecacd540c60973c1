"""What would start a waiting job: a table of situations, and random ones against brute force."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from tests.scheduler import candidates as g
from tests.scheduler.situations import cases, queues_of, single_numbers, starts_when
from tests.specification import spec
from tests.world import picture
from vctl.core.clusters import FIXED, LOGICAL, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.jobs import INSUFFICIENT, PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DEAD, DRAINED, FOREIGN, LEFT, Fence, Node
from vctl.core.resources import CPU, SCALE, whole_node
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.scheduler.cycle import decide
from vctl.scheduler.explain.trial import RunningHolder, Situation
from vctl.scheduler.explain.whatif import ProposedChange, Trials
from vctl.scheduler.explain.whatif_search import helpful, nearest
from vctl.scheduler.queue_scan import QueueScan

pytestmark = spec("11.why")

FULL = "4c 2g"


def job(number: int = 9, spec: str = "PACK: 4c", parent: str = PRIMARY, **fields: object) -> PendingJob:
    return PendingJob(number, f"j{number}", parent, f"s{number}", g.spec(spec), {}, **fields)  # type: ignore[arg-type]


def running(world: Ledger, number: int, spec: str, parent: str = PRIMARY, priority: int = 0) -> RunningHolder:
    (start,) = decide(world, queues_of([job(number, spec, parent)]), now_ns=0).starts
    g.run(world, start, f"r{number}")
    assert start.cluster is not None
    return RunningHolder(number, f"j{number}", priority, start.cluster.cluster_id, (f"r{number}",))


def offers(world: Ledger, one: PendingJob, *others: object, templates: str = "") -> dict[str, object]:
    queued = [other for other in others if isinstance(other, PendingJob)]
    runs = [other for other in others if isinstance(other, RunningHolder)]
    kinds = {t: Node("new", t, whole_node(g.amounts(t))) for t in templates.split(",") if t}
    found, cut = helpful(Trials(Situation(world, queued, runs), one), kinds)
    assert not cut
    return {
        (change.kind if not change.where.startswith(("group", "nodes", "min", "entry", "whole"))
         else f"{change.subject} of {change.where}"): change.new if change.new is not None else change.subject
        for change in found
    }  # fmt: skip


def team(most: str | None = None, borrow: str | None = None, state: str = "ACTIVE") -> Cluster:
    spec = ClusterSpec({}, None if most is None else g.amounts(most))
    return Cluster(
        "team", PRIMARY, LOGICAL, spec, state=state, borrow_limit=g.amounts(borrow) if borrow else None
    )


def test_a_full_node_is_helped_by_less_by_another_node_or_by_a_stop():
    world = g.ledger("4c")
    other = running(world, 1, "PACK: 3c")
    assert offers(world, job(spec="PACK: 2c"), other, templates="4c,1c") == {
        "CPU of group 0": SCALE, "node": "4c", "stop": "j1",
    }  # fmt: skip


SPARES = {
    "all nodes live": (ALIVE, "4c", {"node": "4c", "stop": "j1"}),
    "a node of that template is dead": (DEAD, "4c", {}),
    "a node of another template is dead": (DEAD, "8c", {"node": "8c"}),
}


@pytest.mark.parametrize(("state", "template", "helps"), SPARES.values(), ids=list(SPARES))
def test_a_new_node_is_a_spare_for_a_dead_one_first(state, template, helps):
    """A logical cluster waits for a spare of that template: a scheduler gives it what comes free before any start."""
    world = g.ledger("4c,4c")
    world.put_cluster(Cluster("lab", PRIMARY, LOGICAL, ClusterSpec(replica_sets={"4c": 1})))
    world.assign(VNode("lab/0", "lab", "n1", "n1", FIXED, world.capacities["n1"].total, {}, whole=True))
    world.put_node(replace(world.nodes["n1"], state=state))
    other = running(world, 1, "PACK: 4c")
    assert offers(world, job(spec="PACK: 3c"), other, templates=template) == helps
    assert world.vnodes["lab/0"].node_id == "n1"  # the trials leave the ledger as it was


@pytest.mark.parametrize("waiting", [1, 2], ids=["and nothing waits in it then", "and another waits in it"])
def test_a_job_is_stopped_in_which_a_task_would_start(waiting):
    """What begins in it before its stop takes effect ends with it."""
    world = g.ledger("4c")
    other = running(world, 1, "PACK: 3c")
    inside = [PendingTask(f"t{n}", n, 1, str(other.cluster_id), {CPU: 2 * SCALE}) for n in range(waiting)]
    situation = Situation(world, [], [other], inside)
    found, cut = helpful(Trials(situation, job(spec="PACK: 4c")), {})
    assert [change.subject for change in found if change.kind == "stop"] == ["j1"]
    assert not cut
    stopped = ProposedChange("stop", stopped=other)
    rested = Trials(situation, job(spec="PACK: 4c")).after(stopped).situation
    assert [one.submission_id for one in rested.running] == ["j9"]
    assert (rested.tasks, list(rested.ledger.charges)) == ([], ["trial:9"])


def test_nobody_of_higher_priority_is_stopped():
    world = g.ledger("4c")
    other = running(world, 1, "PACK: 3c", priority=1)
    assert "stop" not in offers(world, job(spec="PACK: 2c"), other)


def test_the_smallest_priority_that_goes_before_those_who_take_it_all():
    world = g.ledger("4c")
    ahead = [job(1, "PACK: 2c", priority=5), job(2, "PACK: 2c", priority=7)]
    assert offers(world, job(spec="PACK: 2c"), *ahead)["priority"] == 6


def test_the_largest_smaller_amount_and_the_number_of_nodes():
    world = g.ledger("4c 4g, 4c 3g")
    runs = running(world, 1, "PACK: 1g")
    assert offers(world, job(spec="STRICT_SPREAD: 1c 4g, 1c 4g"), runs) == {
        "GPU of group 0": 2 * SCALE, "nodes of nodes of group 0": 1,
    }  # fmt: skip


def test_fewer_nodes():
    world = g.ledger("4c, 4c")
    assert offers(world, job(spec="STRICT_SPREAD: 4c, 4c, 4c"), templates="4c") == {
        "nodes of nodes of group 0": 2, "node": "4c",
    }  # fmt: skip


def test_the_maximum_as_low_as_will_do():
    world = g.ledger("8c")
    world.put_cluster(team(most="2c"))
    assert offers(world, job(spec="PACK: 5c", parent="team"))["maximum"] == 5 * SCALE


def test_one_maximum_is_raised_where_a_job_ahead_would_use_the_other():
    """More CPUs for the cluster would start the job ahead, and nothing would be left."""
    world = g.ledger("4c 4g")
    world.put_cluster(team(most="3c 1g"))
    ahead = job(1, "PACK: 4c", parent="team", priority=1)
    assert offers(world, job(spec="PACK: 1c 3g", parent="team"), ahead)["maximum"] == 3 * SCALE


def test_the_borrow_limit_as_low_as_will_do():
    world = g.ledger("8c")
    world.put_cluster(team(borrow="2c"))
    found = offers(world, job(spec="PACK: 5c", parent="team"))
    assert found["borrow_limit"] == 5 * SCALE
    assert "maximum" not in found


def test_a_stopped_cluster_is_resumed_and_nothing_else_is_offered():
    world = g.ledger("8c")
    world.put_cluster(team(state="STOPPED"))
    assert offers(world, job(parent="team"), templates="8c") == {"resume": "team"}


def test_a_held_job_is_released_when_that_is_enough():
    world = g.ledger("4c")
    assert offers(world, job(held=True)) == {"release": "j9"}
    other = running(world, 1, "PACK: 3c")
    assert offers(world, job(held=True), other) == {}


def test_a_drained_node_is_taken_back():
    world = g.ledger("4c, 1c")
    world.put_node(replace(world.nodes["n1"], state=DRAINED))
    assert offers(world, job())["undrain"] == "n1"


@spec("19.devices")
def test_a_device_is_shared_with_a_foreign_process_but_not_with_one_that_was_left_behind():
    world = g.ledger("4c 2g")
    held = Fence("GPU", 0, LEFT, (7,), "bob", 5, 1), Fence("GPU", 1, FOREIGN, (8, 9), "bob", 5, 1)
    world.put_node(replace(world.nodes["n1"], fences=held))
    assert offers(world, job(spec="PACK: 1g"))["ignore"] == 1
    assert "ignore" not in offers(world, job(spec="PACK: 2g"))


def test_a_share_when_no_whole_device_is_left():
    world = g.ledger("4c 1g")
    other = running(world, 1, "PACK: 0.25g")
    assert offers(world, job(spec="PACK: 1c 1g"), other)["GPU of group 0"] == 7500


def test_too_much_to_try_is_said():
    world = g.ledger("4c")
    found, cut = helpful(Trials(Situation(world, [job(1)]), job(spec="PACK: 4c"), budget=0), {})
    assert (found, cut) == ([], True)


def test_trials_leave_the_state_as_it_was():
    for _, case in cases(range(40)):
        world, before = case.situation.ledger, picture(case.situation.ledger)
        trials = Trials(case.situation, case.job)
        helpful(trials, case.templates)
        trials.outcome()
        assert picture(world) == before


def check(seeds: range, most: int) -> tuple[int, int]:
    """How many were checked: each offer starts the job, and where one number would help, its kind is offered."""
    situations = offered = 0
    for seed, case in cases(seeds):
        if situations == most:
            break
        found, cut = helpful(Trials(case.situation, case.job, budget=10_000), case.templates)
        assert not cut
        for change in found:
            assert starts_when(seed, change), (seed, change)
        kinds = {change.kind for change in found}
        for kind, change in single_numbers(case):
            if kind not in kinds:
                assert not starts_when(seed, change), (seed, kind, change)
        situations, offered = situations + 1, offered + len(found)
    return situations, offered


def test_every_offer_starts_the_job_and_none_is_missed():
    situations, offered = check(range(200), 60)
    assert situations == 60
    assert offered > 60


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_offer_of_five_hundred_situations():
    situations, offered = check(range(10_000, 20_000), 500)
    print(f"{situations} situations, {offered} changes offered, all start the job")  # noqa: T201
    assert situations == 500


class Anew(Trials):
    """Every trial judges all that waits, as if nothing were known of the state before the change."""

    def _learn(self, ledger: Ledger) -> None:
        return None


def test_what_is_known_of_the_state_before_a_change_changes_no_answer():
    """spec 11: a trial judges only what its change could help, and says the same."""
    compared = 0
    for seed, case in cases(range(40)):
        answers = []
        for kind in (Trials, Anew):
            trials = kind(case.situation, case.job, budget=10_000)
            outcome = trials.outcome()
            answers.append((outcome, helpful(trials, case.templates), nearest(trials, case.templates)))
        assert answers[0] == answers[1], seed
        compared += answers[0][0].start is None
    assert compared > 10


def test_a_trial_judges_what_its_change_could_help_however_many_shapes_wait():
    """spec 11: many shapes wait for a full cluster; the search judges them once, not at every trial."""
    world = g.ledger(", ".join(["8c"] * 20))
    runs = [running(world, number, "PACK: 7c") for number in range(1, 21)]
    sizes = [(size, nodes) for size in range(2, 9) for nodes in range(1, 5)]
    queue = [
        job(100 + n, f"PACK: {', '.join([f'{size}c'] * nodes)}") for n, (size, nodes) in enumerate(sizes)
    ]

    def judged(kind: type[Trials]) -> tuple[object, int]:
        count = 0

        def note(frame: FrameType, event: str, _: object) -> None:
            nonlocal count
            count += event == "call" and frame.f_code is QueueScan._try.__code__

        trials = kind(Situation(world, queue, runs), queue[20])
        outcome = trials.outcome()
        sys.setprofile(note)
        try:
            return (outcome, helpful(trials, {})), count
        finally:
            sys.setprofile(None)

    (answer, few), (same, many) = judged(Trials), judged(Anew)
    assert answer == same
    assert few * 5 < many, (few, many)


def test_the_last_round_is_believed_where_a_count_proves_it_and_nowhere_else(monkeypatch):
    """Shapes of others that still have too little are not judged; one that fits by now goes first, as in a round."""
    tried = []
    judge = QueueScan._try_due

    def noting(scan, one, *rest, **more):
        tried.append(one.shape)
        return judge(scan, one, *rest, **more)

    monkeypatch.setattr(QueueScan, "_try_due", noting)
    world = g.ledger("4c,4c")
    other = running(world, 1, "PACK: 4c")
    tried.clear()
    queue = [job(2, "PACK: 3c"), job(4, "PACK: 4c, 4c")]
    told = {PRIMARY: {one.shape: (INSUFFICIENT, "once") for one in queue}}
    outcome = Trials(Situation(world, queue, [other], reported=told), job(9, "PACK: 2c")).outcome()
    assert (outcome.starts, outcome.others) == (False, (2,))
    assert set(tried) == {"s2", "s9"}
    assert outcome.wait is not None
    assert outcome.wait.reason == INSUFFICIENT
