"""``vctl why`` and ``job submit --dry-run`` on real tables; each offered command is run on a copy of the state."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World
from vctl.cli.screen import Screen
from vctl.cli.why_view import draw, draw_dry_run
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import CPU, GPU, MEMORY, SCALE
from vctl.errors import Infeasible, NotFound
from vctl.ops import clusters, job_edits, jobs, nodes, obstacles, overview, situations, submitting, why
from vctl.scheduler.explain import whatif
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.spec.options import WarningSignal, parse_array, parse_dependency

pytestmark = spec("11.why")

GIB = 2**30 * SCALE


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "state") as made:
        yield made


def add(world: World, count: int = 1, cpus: int = 4, gpus: int = 0, template: str = "t") -> None:
    resources = {CPU: cpus * SCALE, MEMORY: 8 * GIB} | ({GPU: gpus * SCALE} if gpus else {})
    nodes.add(world.store, resources=resources, count=count, template=template)


def gang(count: int, policy: str = "PACK", **amounts: int) -> ClusterSpec:
    node = FixedNode({name: amount * SCALE for name, amount in amounts.items()})
    return ClusterSpec(groups=(Group((node,) * count, policy),), flexible=False)


def submit(
    world: World, submission_id: str, spec: ClusterSpec | None = None, **fields: Any
) -> dict[str, Any]:
    request = JobRequest(argv=("sleep", "it's"), submission_id=submission_id, spec=spec, cwd="/", **fields)
    return submitting.submit(world.store, request, environment={"PATH": "/bin"})


def dump(world: World) -> list[str]:
    return list(world.store.db.iterdump())


def test_a_full_node(world: World):
    add(world)
    submit(world, "first", gang(1, CPU=3), priority=2)
    submit(world, "big", gang(1, CPU=2), priority=5)
    world.turn()
    submit(world, "ahead", gang(1, CPU=4), priority=3)
    submit(world, "late", gang(1, CPU=3), priority=2)
    world.turn()
    before = dump(world)
    answer = why.why(world.store, "late")
    assert dump(world) == before
    assert (answer["status"], answer["state_reason"]) == ("PENDING", "InsufficientResources")
    assert answer["message"].startswith("needs 3 CPU on one node; free: t-00 2")  # spec 11: true when shown
    assert answer["queue_position"] == 3
    assert [(one["submission_id"], one["priority"], one["resources"]) for one in answer["ahead"]] == [
        ("ahead", 3, {"CPU": 4.0}), ("first", 2, {"CPU": 3.0}),
    ]  # fmt: skip
    (node,) = answer["nodes"]
    assert (node["node_id"], node["verdict"]) == ("t-00", "feasible but not available")
    assert (node["need"], node["have"]) == ({"CPU": 3.0}, {"CPU": 2.0})
    assert node["holders"] == [{"submission_id": "big", "resources": {"CPU": 2.0}}]
    assert all(change["proven"] for change in answer["changes"])
    said = {change["kind"]: (change["change"], change["command"]) for change in answer["changes"]}
    assert set(said) == {"request"}  # one more node would go to those ahead, and `big` is of higher priority
    words, line = said["request"]
    assert words == "ask for 2 CPU instead of 3 CPU per node"
    again = "vctl job submit --num-cpus 2 --priority 2 --working-dir / --no-wait -- sleep 'it'\"'\"'s'"
    assert line == f"vctl job stop late && {again}"


def test_a_cluster_that_can_grow_is_looked_at_again_when_room_comes_back_in_it(world: World):
    add(world, cpus=8, gpus=2)
    clusters.create(
        world.store, "team", ClusterChange(divisible=True, spec=ClusterSpec({}, {CPU: 3 * SCALE}))
    )
    submit(world, "first", gang(1, CPU=3), cluster="team")
    submit(world, "second", gang(1, CPU=1, GPU=1), cluster="team")
    world.turn()
    assert "stop" in {change["kind"] for change in why.why(world.store, "second")["changes"]}
    (run,) = world.processes.running()
    world.processes.end(run, 0)
    world.turn()
    assert jobs.get_job(world.store, "second")["status"] == "RUNNING"


def test_who_does_not_wait_is_told_so(world: World):
    add(world)
    submit(world, "one")
    world.turn()
    answer = why.why(world.store, "one")
    assert (answer["status"], answer["nodes"], answer["changes"]) == ("RUNNING", [], [])
    assert answer["message"].startswith("it has been running since ")
    (run,) = world.processes.running()
    world.processes.end(run, 3)
    world.turn()
    answer = why.why(world.store, "one")
    assert (answer["status"], answer["state_reason"]) == ("FAILED", "NonZeroExit")
    with pytest.raises(NotFound):
        why.why(world.store, "nobody")


def test_without_a_scheduler_the_answer_is_what_one_would_say(world: World):
    add(world)
    submit(world, "one", gang(1, CPU=4))
    submit(world, "two", gang(1, CPU=4))
    assert why.why(world.store, "one")["message"] == why.STARTS_NOW
    answer = why.why(world.store, "two")
    assert answer["state_reason"] == "InsufficientResources"
    assert answer["message"] == "needs 4 CPU on one node; free: t-00 4; 1 job ahead of it would start first"
    assert [change["kind"] for change in answer["changes"]] == ["priority", "node"]


@pytest.mark.parametrize(
    ("limit", "option", "whose"),
    [
        ("max_running_jobs", "--max-running-jobs", ""),
        ("max_running_per_user", "--max-running-per-user", " of each user"),
    ],
)
def test_a_limit_of_running_jobs_is_offered_to_be_higher(world: World, limit: str, option: str, whose: str):
    """The smallest limit that starts the job after those ahead of it. The job to stop holds nothing that it needs."""
    add(world)
    clusters.update(world.store, "primary", ClusterChange(queue={limit: 1}))
    for name in ("one", "two", "three"):
        submit(world, name, gang(1, CPU=1))
        world.turn()
    changes = why.why(world.store, "three")["changes"]
    assert [(one["kind"], one["change"], one["command"]) for one in changes] == [
        (
            limit,
            f"let 3 jobs{whose} run in primary at a time instead of 1",
            f"vctl vc update primary {option} 3",
        ),
    ]
    changes = why.why(world.store, "two")["changes"]
    assert [(one["kind"], one["change"]) for one in changes] == [
        (limit, f"let 2 jobs{whose} run in primary at a time instead of 1"), ("stop", "stop job one"),
    ]  # fmt: skip
    clusters.update(world.store, "primary", ClusterChange(queue={limit: 3}))
    world.turn()
    assert jobs.get_job(world.store, "three")["status"] == "RUNNING"


def test_what_is_held_or_stopped(world: World):
    add(world)
    clusters.create(world.store, "team", ClusterChange(divisible=True, spec=ClusterSpec({})))
    clusters.stop(world.store, "team")
    submit(world, "held", hold=True)
    submit(world, "closed", cluster="team")
    later = submit(world, "later", begin_at=world.now() / 1e9 + 60)
    assert [c["command"] for c in why.why(world.store, "held")["changes"]] == ["vctl job release held"]
    answer = why.why(world.store, "closed")
    assert answer["state_reason"] == "ClusterStopped"
    assert [c["command"] for c in answer["changes"]] == ["vctl vc resume team"]
    answer = why.why(world.store, "later")
    assert (answer["state_reason"], answer["message"]) == ("BeginTime", later["message"])
    assert answer["changes"] == []


def test_of_an_array_the_first_member_that_waits(world: World):
    add(world)
    submit(world, "many", gang(1, CPU=2), array=parse_array("0-3"), priority=1)
    world.turn()
    answer = why.why(world.store, "many")
    assert (answer["submission_id"], answer["status"]) == ("many_2", "PENDING")
    assert [change["kind"] for change in answer["changes"]] == ["node", "stop"]


def test_members_that_their_arrays_limit_keeps_back_are_ahead_and_take_the_places_of_those_that_end(
    world: World,
):
    """Each starts before the younger job; but what another job frees is not for them."""
    add(world, 2)
    submit(world, "other", gang(1, CPU=4))
    submit(world, "sweep", gang(1, CPU=4), array=parse_array("0-2%1"))
    world.turn()
    submit(world, "young", gang(1, CPU=4))
    answer = why.why(world.store, "young")
    assert [(one["submission_id"], one["state_reason"]) for one in answer["ahead"]] == [
        ("sweep_1", "ArrayLimit"), ("sweep_2", "ArrayLimit"),
    ]  # fmt: skip
    assert answer["queue_position"] == 3

    def end(name: str) -> list[str]:
        run = "SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE submission_id = ?"
        world.processes.end(world.store.value(run, name), 0)
        world.turn()
        return world.store.column("SELECT submission_id FROM jobs WHERE status = 'RUNNING' ORDER BY job_id")

    assert end("sweep_0") == ["other", "sweep_1"]
    assert end("other") == ["sweep_1", "young"]


def test_what_was_asked_for_beside_the_numbers_is_asked_for_again(world: World):
    add(world)
    submit(world, "first", gang(1, CPU=3))
    signal = WarningSignal("USR1", 10, 60)
    submit(
        world, "it", gang(1, CPU=2), per_node=True, time_limit_s=1_234_567, signal=signal, max_retries=2, name="n",
        retry_on=("NodeFailed", "ExitCode"), metadata={"k": "v w"}, grace_s=10.0, label=True,
    )  # fmt: skip
    (change,) = (c for c in why.why(world.store, "it")["changes"] if c["kind"] == "request")
    assert change["command"].startswith(
        "vctl job stop it && vctl job submit --num-cpus 1 --time-limit 1234567s --name n --grace 10s"
        " --per-node --label --max-retries 2 --retry-on NodeFailed,ExitCode --signal USR1@60s"
        " --metadata 'k=v w' --working-dir /"
    )


def request(spec: ClusterSpec | None = None, **fields: Any) -> JobRequest:
    return JobRequest(argv=("true",), spec=spec, **fields)


def test_a_dry_run_names_who_lends_how_much(world: World):
    """All that a cluster borrows in one place was told as a loan of its sibling, also what its parent has free."""
    add(world, 1, cpus=8)
    for name, least, lends in (("lender", 5, 4), ("team", 1, 0)):
        minimum, limit = ClusterSpec({CPU: least * SCALE}), {CPU: lends * SCALE}
        clusters.create(world.store, name, ClusterChange(divisible=True, spec=minimum, lending_limit=limit))
    world.turn()
    job = request(gang(1, CPU=6), cluster="team")
    loans = [(one["lender_id"], one["resources"]) for one in why.dry_run(world.store, job)["borrowed"]]
    assert loans == [("lender", {"CPU": 3.0}), ("kPrimaryClusterID", {"CPU": 2.0})]
    submitting.submit(world.store, job, environment={"PATH": "/bin"})
    world.turn()
    leases = world.store.db.execute("SELECT lender_id, amounts FROM leases ORDER BY lease_id").fetchall()
    assert [(lender_id, json.loads(amounts)) for lender_id, amounts in leases] == [
        ("lender", {"CPU": 3 * SCALE}),
        ("kPrimaryClusterID", {"CPU": 2 * SCALE}),
    ]


def test_a_dry_run_says_where_and_changes_nothing(world: World):
    add(world, 2)
    submit(world, "first", gang(1, CPU=3))
    world.turn()
    clusters.create(world.store, "team", ClusterChange(divisible=True, spec=ClusterSpec({CPU: SCALE})))
    world.turn()
    before, held = dump(world), (world.home / "cluster.db").read_bytes()
    answer = why.dry_run(world.store, request(gang(1, CPU=3), cluster="team"))
    assert (answer["verdict"], answer["node_ids"]) == ("starts now", ["t-01"])
    assert [(p["rank"], p["node_id"], p["resources"]) for p in answer["pieces"]] == [
        (0, "t-01", {"CPU": 3.0})
    ]
    assert [(b["borrower_id"], b["lender_id"]) for b in answer["borrowed"]] == [("team", "kPrimaryClusterID")]
    answer = why.dry_run(world.store, request(gang(2, "STRICT_SPREAD", CPU=4)))
    assert (answer["verdict"], answer["state_reason"]) == ("waits", "InsufficientResources")
    assert why.dry_run(world.store, request(hold=True))["state_reason"] == "Held"
    with pytest.raises(Infeasible):
        why.dry_run(world.store, request(gang(1, CPU=40)))
    assert (dump(world), (world.home / "cluster.db").read_bytes()) == (before, held)


@pytest.mark.parametrize(("per_node", "runs"), [(False, [True, False]), (True, [True, True])])
def test_a_dry_run_says_where_the_command_runs(world: World, per_node: bool, runs: list[bool]):
    """spec 8: in the first virtual node; with ``--per-node`` in every one."""
    add(world, 2)
    answer = why.dry_run(world.store, request(gang(2, "STRICT_SPREAD", CPU=1), per_node=per_node))
    assert [piece["runs_entrypoint"] for piece in answer["pieces"]] == runs


def test_a_dry_run_is_what_then_happens(world: World):
    add(world, 2, gpus=2)
    spec = gang(2, "STRICT_SPREAD", CPU=1, GPU=1)
    foretold = why.dry_run(world.store, request(spec))
    submit(world, "it", spec)
    world.turn()
    assert jobs.get_job(world.store, "it")["node_ids"] == foretold["node_ids"] == ["t-00", "t-01"]


def populate(world: World, rng: Random) -> list[str]:
    """A random state after the scheduler has come to rest, and the jobs that wait in it."""
    for template in rng.sample(("4c", "8c2g", "2c4g"), rng.randint(1, 3)):
        cpus, gpus = {"4c": (4, 0), "8c2g": (8, 2), "2c4g": (2, 4)}[template]
        add(world, rng.randint(1, 2), cpus, gpus, template)
    most = rng.choice((None, {CPU: 2 * SCALE}, {CPU: 3 * SCALE, GPU: SCALE}))
    borrow = rng.choice((None, {CPU: 2 * SCALE}))
    clusters.create(
        world.store, "team", ClusterChange(divisible=True, spec=ClusterSpec({}, most), borrow_limit=borrow)
    )
    specs = (
        lambda: gang(1, CPU=rng.randint(1, 6)),
        lambda: gang(1, CPU=1, GPU=rng.randint(1, 4)),
        lambda: gang(rng.randint(2, 3), "STRICT_SPREAD", CPU=rng.randint(1, 4)),
        lambda: ClusterSpec({CPU: rng.randint(1, 8) * SCALE}),
        lambda: None,
    )
    half = rng.randint(2, 4)
    for number in range(rng.randint(5, 9)):
        if number == half:
            world.turn()
            if rng.random() < 0.3:
                nodes.drain(world.store, rng.choice([n["node_id"] for n in nodes.list_nodes(world.store)]))
        try:
            submit(
                world, f"j{number}", rng.choice(specs)(), priority=rng.randint(0, 3),
                cluster=rng.choice((None, "team")),
            )  # fmt: skip
        except Infeasible:
            continue
    if rng.random() < 0.6:
        world.turn()
    if rng.random() < 0.1:
        clusters.stop(world.store, "team")
    items, _ = jobs.list_jobs(world.store, filters=["status=PENDING"])
    return [item["submission_id"] for item in items]


def runs_after(
    world: World, copy: Path, monkeypatch: pytest.MonkeyPatch, job: str, change: dict[str, Any]
) -> bool:
    """Run the command on a copy of the state, let the scheduler work, and look at the job."""
    from vctl.cli.app import run

    shutil.copytree(world.home, copy)
    other = World(copy, terms=world.terms)
    other.elapsed_s, other.processes.runs = world.elapsed_s, dict(world.processes.runs)
    other.processes.starts = dict(world.processes.starts)
    other.start()
    other.folding.begin()  # a copied state begins anew: its journal does not say what that changed
    monkeypatch.setenv("VCTL_HOME", str(copy))
    monkeypatch.setenv("VCTL_AUTOSTART", "0")  # this world schedules, and nobody beside it
    try:
        for line in change["command"].split(" && "):
            words = shlex.split(line)[1:]
            words += ["--no-wait"] if change["kind"] == "stop" else []
            assert run(words) == 0, line
        other.turn()
        other.processes.obey()
        other.turn()
        name = "last" if change["kind"] == "request" else job
        return jobs.get_job(other.store, name)["status"] == "RUNNING"
    finally:
        other.close()


def test_each_command_starts_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setenv("VCTL_LOCAL_NODE", "0")
    tried = situations = 0
    for seed in range(100):
        rng = Random(seed)
        with World(tmp_path / f"s{seed}") as world:
            pending = populate(world, rng)
            if not pending:
                continue
            job = rng.choice(pending)
            answer = why.why(world.store, job)
            world.die()
            for number, change in enumerate(answer["changes"]):
                copy = tmp_path / f"s{seed}-{number}"
                assert runs_after(world, copy, monkeypatch, job, change), (seed, job, change)
                shutil.rmtree(copy)
                tried += 1
        situations += 1
        if situations == 25:
            break
    assert situations == 25
    assert tried > 25


def test_whom_it_would_end(world: World):
    add(world)
    clusters.update(
        world.store, "primary", ClusterChange(queue={"preemption": "requeue", "preemption_grace_s": 30})
    )
    submit(world, "low", gang(1, CPU=3), priority=1)
    world.turn()
    world.sleep(90)
    before = dump(world)
    asked = why.dry_run(world.store, request(gang(1, CPU=2), priority=5), environment={"PATH": "/bin"})
    assert asked["verdict"] == "waits"
    assert asked["message"].endswith("; would preempt: low")
    assert asked["preempts"] == [
        {"submission_id": "low", "priority": 1, "lost_s": 90.0, "lost_share_s": 67.5}
    ]
    equal = why.dry_run(world.store, request(gang(1, CPU=2), priority=1), environment={"PATH": "/bin"})
    assert equal["preempts"] == []
    assert dump(world) == before
    submit(world, "w", gang(1, CPU=2), priority=5)
    said = why.why(world.store, "w")
    assert [one["submission_id"] for one in said["preempts"]] == ["low"]
    assert "stop" in {shlex.split(one["command"] or "x")[-2] for one in said["changes"]}, (
        "a trial ends nobody"
    )
    world.turn()
    said = why.why(world.store, "w")
    assert said["state_reason"] == "WaitingForPreemption"
    assert [(one["submission_id"], one["lost_s"]) for one in said["preempts"]] == [("low", 90.0)]
    world.processes.obey()
    world.turn()
    said = why.why(world.store, "low")
    assert said["state_reason"] == "Preempted"
    assert said["message"].startswith(
        "preempted by w, which has a higher priority; it runs again when its resources"
    )
    assert "needs 3 CPU" in said["message"]
    assert said["preempts"] == []


@spec("2.feasible")
def test_a_minimum_that_may_be_split_is_nowhere_infeasible(world: World):
    """spec 10, 11: the words on a node fit the request: of a minimum each node may give a part."""
    add(world, 2, cpus=8)
    submit(world, "first", gang(1, CPU=7))
    world.turn()
    submit(world, "flex", ClusterSpec({CPU: 12 * SCALE}), entry={})
    world.turn()
    answer = why.why(world.store, "flex")
    assert (answer["state_reason"], answer["message"]) == (
        "InsufficientResources", "needs 12 CPU in total; free: t-01 8, t-00 1",
    )  # fmt: skip
    said = {node["node_id"]: (node["verdict"], node["need"], node["have"]) for node in answer["nodes"]}
    waits = "feasible but not available"
    assert said == {
        "t-00": (waits, {"CPU": 12.0}, {"CPU": 1.0}),
        "t-01": (waits, {"CPU": 12.0}, {"CPU": 8.0}),
    }
    nodes.add(world.store, resources={GPU: SCALE}, count=1, template="g")
    said = {node["node_id"]: node["verdict"] for node in why.why(world.store, "flex")["nodes"]}
    assert said == {"t-00": waits, "t-01": waits, "g-00": "infeasible"}
    foretold = why.dry_run(world.store, request(ClusterSpec({CPU: 9 * SCALE}), entry={}))
    assert foretold["verdict"] == "starts now"


@spec("2.feasible")
def test_the_slices_of_one_node_count_together_for_a_minimum(world: World):
    """spec 1, 11: a minimum may lie in several slices of one node, one fixed node may not; the words compare alike."""
    add(world, cpus=8)
    clusters.create(world.store, "outer", ClusterChange(divisible=True, spec=gang(2, "STRICT_PACK", CPU=3)))
    submit(world, "first", gang(2, CPU=2), cluster="outer")
    world.turn()
    submit(world, "flex", ClusterSpec({CPU: 3 * SCALE}), entry={}, cluster="outer")
    submit(world, "wide", gang(1, CPU=3), cluster="outer")
    world.turn()
    flex, wide = why.why(world.store, "flex"), why.why(world.store, "wide")
    assert flex["message"] == "needs 3 CPU in total; free: t-00 2"
    assert [(node["have"], node["verdict"]) for node in flex["nodes"]] == [
        ({"CPU": 2.0}, "feasible but not available")
    ]
    assert wide["message"].startswith("needs 3 CPU on one node; free: t-00 1")
    assert [node["have"] for node in wide["nodes"]] == [{"CPU": 1.0}]
    assert (
        why.dry_run(world.store, request(ClusterSpec({CPU: 2 * SCALE}), entry={}, cluster="outer"))["verdict"]
        == "starts now"
    )


def test_when_no_single_change_helps_the_nearest_two_are_said(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """spec 11: the smallest changes, each checked with the real scheduler; here two are needed, and both are run."""
    add(world, 2)
    for name in ("a", "b"):
        submit(world, name, gang(1, CPU=4), priority=9)
    world.turn()
    submit(world, "both", gang(2, "STRICT_SPREAD", CPU=4))
    world.turn()
    answer = why.why(world.store, "both")
    assert (answer["changes"], answer["cut"]) == ([], None)
    assert [one["kind"] for one in answer["nearest"]] == ["node", "request"]
    shown = "\n".join(draw(Screen(width=80), answer))
    assert "No single change helps. These two changes together would start it now" in shown
    commands = [one["command"] for one in answer["nearest"]]
    assert all(command in shown for command in commands)  # to copy: never broken
    both = {"kind": "request", "command": " && ".join(commands)}
    assert runs_after(world, tmp_path / "copy", monkeypatch, "both", both)


@spec("7.checks")
def test_a_cluster_of_whole_nodes_is_told_how_it_gets_more(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two clusters deep: of the nodes that the parent has undivided, as few as the job needs."""
    add(world, 5)
    add(world, 2, cpus=1, template="small")
    clusters.create(world.store, "lab", ClusterChange(divisible=True, replica_sets={"t": 3, "small": 1}))
    clusters.create(
        world.store, "team", ClusterChange(divisible=True, replica_sets={"t": 2}), parent_id="lab"
    )
    submit(world, "wide", gang(2, "STRICT_SPREAD", CPU=3), cluster="team", hold=True)
    clusters.update(world.store, "team", ClusterChange(replica_sets={}))
    job_edits.release(world.store, "wide")
    world.turn()
    answer = why.why(world.store, "wide")
    assert answer["state_reason"] == "Infeasible"
    assert answer["message"] == (
        "exceeds the capacity of team: it has no node in service;"
        " give team more nodes with `vctl vc update team --replica-sets JSON`"
    )
    (change,) = answer["changes"]
    assert change["change"] == "give team 2 whole nodes of template t instead of 0"
    assert change["command"] == "vctl vc update team --replica-sets '{\"t\":2}'"
    assert runs_after(world, tmp_path / "copy", monkeypatch, "wide", change)


def test_a_cluster_without_virtual_nodes_is_said_to_have_none(world: World):
    """It grows when its parent has something free: until then its own nodes are no nodes that take no work."""
    add(world)
    clusters.create(world.store, "team", ClusterChange(divisible=True, spec=ClusterSpec({})))
    submit(world, "all", gang(1, CPU=4))
    world.turn()
    submit(world, "one", gang(1, CPU=1), cluster="team")
    world.turn()
    assert why.why(world.store, "one")["message"] == (
        "needs 1 CPU on one node; free: nothing, team has no virtual nodes;"
        " in primary, from which team can grow: t-00 0"
    )


def test_what_can_never_run_is_told_what_would_help(world: World):
    with pytest.raises(Infeasible) as refused:
        submit(world, "none", gang(1, CPU=1))
    assert (
        refused.value.fix == "add a node with `vctl node add`, or let this machine be one: VCTL_LOCAL_NODE=1"
    )
    add(world)
    clusters.create(world.store, "whole", ClusterChange(replica_sets={"t": 1}, divisible=True))
    with pytest.raises(Infeasible) as refused:
        submit(world, "one", gang(1, CPU=9), cluster="whole")
    assert refused.value.fix == (
        "ask for less, or give whole more nodes with `vctl vc update whole --replica-sets JSON`"
    )
    clusters.delete(world.store, "whole")
    nodes.drain(world.store, "t-00")
    with pytest.raises(Infeasible) as refused:
        submit(world, "one", gang(1, CPU=9))
    assert refused.value.fix == "ask for less, or add a node with `vctl node add` or `vctl node undrain`"


@spec("8.reasons")
def test_who_may_not_start_yet_is_ahead_of_nobody(world: World):
    """A job that is held, or waits for a time or for another job, keeps nobody waiting; it has the position that it
    would get now."""
    add(world)
    submit(world, "first", gang(1, CPU=4))
    world.turn()
    submit(world, "held", gang(1, CPU=4), hold=True)
    submit(world, "later", gang(1, CPU=4), priority=5, begin_at=world.now() / 1e9 + 60)
    submit(world, "after", gang(1, CPU=4), after=(parse_dependency("ok:held"),))
    submit(world, "next", gang(1, CPU=4))
    submit(world, "it", gang(1, CPU=4))
    world.turn()

    def seen() -> dict[str, tuple[int, list[str]]]:
        found = {}
        for job in jobs.list_jobs(world.store)[0]:
            if (name := job["submission_id"]) != "first":
                answer, alone = why.why(world.store, name), jobs.get_job(world.store, name)
                assert job["queue_position"] == answer["queue_position"] == alone["queue_position"], name
                found[name] = job["queue_position"], [one["submission_id"] for one in answer["ahead"]]
        head = {
            one["submission_id"]: one["queue_position"]
            for one in overview.status(world.store)["queue"]["head"]
        }
        assert head == {name: place for name, (place, _) in found.items()}
        return found

    gated = {"held": (1, []), "later": (1, []), "after": (1, [])}
    for order in ("priority", "fifo", "fair", "longest"):
        clusters.update(world.store, "primary", ClusterChange(queue={"order": order}))
        found = seen()
        assert (found["next"], found["it"]) == ((1, []), (2, ["next"])), order
        if order in ("priority", "fair"):
            assert {name: found[name] for name in gated} == gated
    clusters.update(world.store, "primary", ClusterChange(queue={"order": "priority"}))
    world.sleep(61)  # nothing else happens: the time has come
    job_edits.release(world.store, "held")
    assert seen() == {
        "later": (1, []), "held": (2, ["later"]), "next": (3, ["later", "held"]),
        "after": (3, ["later", "held"]), "it": (4, ["later", "held", "next"]),
    }  # fmt: skip


@spec("13.output")
@pytest.mark.parametrize("limit", ["max_running_jobs", "max_running_per_user"])
def test_what_a_limit_keeps_back_is_told_with_the_name_of_the_cluster_that_screens_have(
    world: World, limit: str
):
    add(world)
    clusters.update(world.store, "primary", ClusterChange(queue={limit: 1}))
    user = submit(world, "one")["user"]
    submit(world, "two")
    world.turn()
    ((said,),) = world.store.db.execute("SELECT message FROM waits").fetchall()
    whose = f" of {user}" if limit == "max_running_per_user" else ""
    assert said == f"at most 1 job{whose} may run in primary at a time"


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("limit", [(whatif, "MOST_WORK"), (situations, "MOST_CLASSES")])
def test_with_too_much_to_try_the_answer_has_what_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch, held: bool, limit: tuple[Any, str]
):
    add(world)
    submit(world, "first", gang(1, CPU=3))
    submit(world, "late", gang(1, CPU=3), hold=held)
    submit(world, "other", gang(1, CPU=3))
    world.turn()
    known = why.why(world.store, "late")
    monkeypatch.setattr(*limit, 0)
    answer = why.why(world.store, "late")
    assert answer["state_reason"] == known["state_reason"]
    assert known["message"].startswith(answer["message"])
    assert (answer["nodes"], answer["ahead"]) == (known["nodes"], known["ahead"])
    assert (answer["changes"], answer["searched"], answer["cut"]) == ([], False, why.NONE_TESTED)
    assert why.NONE_TESTED in "\n".join(draw(Screen(), answer))


def test_a_dry_run_with_too_much_to_try_does_not_say_that_it_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    add(world)
    monkeypatch.setattr(whatif, "MOST_WORK", 0)
    request = JobRequest(argv=("true",), spec=gang(1, CPU=1), cwd="/")
    answer = why.dry_run(world.store, request, environment={})
    assert (answer["verdict"], answer["state_reason"]) == ("not tried", "PendingEvaluation")
    assert answer["message"].endswith(f"; {why.NOT_TRIED}")
    assert "it may wait in primary" in "\n".join(draw_dry_run(Screen(), answer))
    submit(world, "all", gang(1, CPU=4))
    world.turn()
    submit(world, "like-it", gang(1, CPU=1))
    world.turn()
    answer = why.dry_run(world.store, request, environment={})  # the last round refused such a job
    assert (answer["verdict"], answer["state_reason"]) == ("waits", "InsufficientResources")


def test_of_many_nodes_the_nearest_are_listed_and_the_others_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(obstacles, "MOST_NODES", 2)
    add(world, count=3, cpus=1)
    add(world, count=3, cpus=4, template="u")
    submit(world, "full", gang(2, "STRICT_SPREAD", CPU=4))
    world.turn()
    submit(world, "waits", gang(2, "STRICT_SPREAD", CPU=3))
    world.turn()
    answer = why.why(world.store, "waits")
    assert [(one["node_id"], one["verdict"]) for one in answer["nodes"]] == [
        ("u-00", "feasible but not available"), ("u-02", "available"),
    ]  # fmt: skip
    assert answer["nodes_left_out"] == {"feasible but not available": 1, "infeasible": 3}
    reported = "\n".join(draw(Screen(), answer))
    assert "and more nodes: 1 feasible but not available, 3 infeasible" in reported
    request = JobRequest(argv=("true",), spec=gang(2, "STRICT_SPREAD", CPU=3), cwd="/")
    assert why.dry_run(world.store, request, environment={})["nodes_left_out"] == answer["nodes_left_out"]
