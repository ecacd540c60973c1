"""Random sequences of short members of arrays, where runs are assigned ahead: none is lost, none starts twice.

The scheduler dies around any commit, supervisors are killed, and commands change what is about to start.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.specification import spec
from tests.world import Killed, MortalStore, World, amounts
from vctl.core.clusters import PRIMARY
from vctl.engine.changes import JobsStopped
from vctl.errors import VctlError
from vctl.ops import clusters, job_edits, submitting
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.ops import tasks as task_ops
from vctl.runtime.protocol import RunState
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.spec.task_request import TaskRequest
from vctl.store.ahead import BeingStarted
from vctl.store.store import Store

pytestmark = spec("8.arrays", "12.daemon-death", "12.node-death", "17.durable")

STEPS, SEEDS = 120, 12
FINAL = ("SUCCEEDED", "FAILED", "STOPPED")


class Flow:
    """Draws what happens next to a long array on four slots."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.store, self.dice = world, world.store, random.Random(seed)
        self.assigned = self.followed = self.moved = 0
        for name in ("n1", "n2"):
            node_ops.add(self.store, resources=amounts(2), node_id=name, template="t")
        self.submit("a", "1-40")

    def submit(self, name: str, indices: str | None, **fields: object) -> None:
        array = None if indices is None else parse_array(indices)
        request = JobRequest(argv=("x",), submission_id=name, cwd="/", entry=amounts(1), array=array, grace_s=0,
                             **fields)  # type: ignore[arg-type]  # fmt: skip
        submitting.submit(self.store, request, environment={})

    def step(self, number: int) -> None:
        action = self.dice.choices(
            [
                self.ends,
                self.news,
                self.forgetful,
                self.change,
                self.task,
                self.other,
                self.lose,
                self.crash,
                self.wait,
            ],
            [40, 18, 2, 10, 4, 2, 3, 6, 3],
        )[0]
        try:
            action(number)
            self.world.turn()
        except VctlError:  # refused, or to be tried again: nothing has changed
            self.world.turn()
        state = self.world.scheduler.state if self.world.scheduler is not None else None
        self.assigned += 0 if state is None else len(state.ahead.runs)
        self.moved += 0 if state is None else sum(one.moves for one in state.ahead.runs.values())

    def ends(self, _: int) -> None:
        """Some end before anybody looks: also those that have just followed others."""
        for _ in range(self.dice.choice([1, 1, 2, 3, 6])):
            if running := self.world.processes.running():
                self.world.processes.end(self.dice.choice(running), self.dice.choice([0, 0, 0, 1]))

    def news(self, number: int) -> None:
        """The scheduler hears of some of those that are over, in any order: of a run before the one it follows."""
        self.ends(number)
        if (scheduler := self.world.scheduler) is not None:
            over = [one for one, seen in self.world.processes.runs.items() if seen.state is RunState.EXITED]
            self.world.processes.news = set(self.dice.sample(over, self.dice.randint(0, len(over))))
            scheduler.turn()

    def forgetful(self, number: int) -> None:
        """A request to launch gets lost: the next look at all processes finds that."""
        self.world.processes.loses_launches = 1
        self.ends(number)

    def change(self, _: int) -> None:
        member = f"a_{self.dice.randint(1, 40)}"
        action = self.dice.choice(
            ["hold", "release", "edit", "stop", "drain", "undrain", "all", "grow", "resize"]
        )
        if action == "hold":
            job_edits.hold(self.store, member)
        elif action in ("release", "all"):
            job_edits.release(self.store, "a" if action == "all" else member)
        elif action == "edit":
            job_edits.edit(self.store, member, {"priority": self.dice.choice([0, 1]), "time_limit_s": 50.0})
        elif action == "stop":
            job_ops.stop(self.store, member, grace_s=0)
        elif action == "grow":
            running = self.store.column("SELECT cluster_id FROM clusters WHERE kind = 'job'")
            share = {"fixed_size_nodes": [{"resources": {"CPU": 0.5}}]}
            clusters.update(
                self.store,
                self.dice.choice(running or ["none"]),
                ClusterChange(spec=parse_cluster_spec(share)),
            )
        elif action == "resize":
            node_ops.update(self.store, "n2", resources=amounts(self.dice.choice([2, 3])))
        else:
            getattr(node_ops, action)(self.store, self.dice.choice(["n1", "n2"]))

    def task(self, _: int) -> None:
        """Something that may outlive the process of its job lives in the place that another one is to take."""
        running = self.store.rows("SELECT submission_id FROM jobs WHERE status = 'RUNNING'")
        job = self.dice.choice(running)[0] if running else "a"
        detach = self.dice.random() < 0.5
        request = TaskRequest(argv=("x",), job=job, cwd="/", grace_s=0, request=amounts(1), detach=detach)
        task_ops.run(self.store, request, environment={"VCTL_SUBMISSION_ID": job})

    def other(self, number: int) -> None:
        self.submit(f"o{number}", None, priority=self.dice.choice([0, 2]))

    def lose(self, _: int) -> None:
        if running := self.world.processes.running():
            self.world.processes.lose(self.dice.choice(running))

    def wait(self, _: int) -> None:
        self.world.sleep(1.0)

    def crash(self, number: int) -> None:
        """The scheduler dies before or after one of its next commits, or before a launch; processes go on meanwhile."""
        scheduler = self.world.scheduler or self.world.start()
        assert isinstance(scheduler.store, MortalStore)
        scheduler.store.after_it = self.dice.random() < 0.5
        scheduler.store.dies_at = self.dice.choice([0, 0, 1, 2])
        self.world.processes.kill_before_launch = self.dice.random() < 0.2
        try:
            self.ends(number)
            self.world.turn()
        except Killed:
            pass
        self.world.processes.kill_before_launch = False
        self.world.die()
        self.ends(number)
        self.world.start()

    def finish(self) -> None:
        for node in ("n1", "n2"):
            for row in self.store.rows("SELECT state FROM nodes WHERE node_id = ?", node):
                if row[0] in ("DRAINING", "DRAINED"):
                    node_ops.undrain(self.store, node)
        self.world.turn()
        held = "SELECT submission_id FROM jobs WHERE status = 'PENDING' AND held"
        for row in self.store.rows(held):
            job_edits.release(self.store, row[0])
        open_jobs = "SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')"
        while self.store.value(open_jobs):
            self.world.turn()
            self.world.processes.obey()
            running = self.world.processes.running()
            assert running or not self.store.value(open_jobs), "something waits, and nothing runs"
            self.ends(0)
        for _ in range(4):
            self.world.turn()
            for run_id in self.world.processes.running():
                self.world.processes.end(run_id, 0)

    def every_job_ran_once(self) -> None:
        processes = Counter(
            int(run_id.partition(".")[0])
            for run_id in self.world.processes.starts
            if not run_id.startswith("task")
        )
        for row in self.store.rows("SELECT job_id, status, attempt, exit_code, state_reason FROM jobs"):
            assert row["status"] in FINAL, tuple(row)
            assert processes[row["job_id"]] <= row["attempt"] <= 1, tuple(row)
            if row["status"] == "SUCCEEDED":
                assert processes[row["job_id"]] == 1, tuple(row)
        assert self.store.rows("SELECT * FROM runs_ahead") == []


class Siblings(Flow):
    """Four elastic clusters take turns on the whole machine, so its place goes over from one to the other."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.world.turn()
        lends = {"flexible_resource_min": {"CPU": 1}}
        for number in range(4):
            least = self.dice.random() < 0.3
            clusters.create(
                self.store,
                f"c{number}",
                ClusterChange(
                    divisible=True,
                    spec=parse_cluster_spec(lends if least else {}),
                    lending_limit=amounts(1) if least else None,
                ),
            )
        self.next = 0
        for _ in range(30):
            self.submit_whole()

    def submit(self, name: str, indices: str | None, **fields: object) -> None:
        if name != "a":
            self.submit_whole(**fields)

    def submit_whole(self, **fields: object) -> None:
        """One more job that needs all of the machine, in any of the clusters; now and then a small one."""
        self.next += 1
        cpus = self.dice.choices([2, 1], [9, 1])[0]
        gang = parse_cluster_spec({"fixed_size_nodes": [{"resources": {"CPU": cpus}}] * 2})
        request = JobRequest(
            argv=("x",), submission_id=f"a_{self.next}", cwd="/", spec=gang, grace_s=0,
            cluster=self.dice.choice([f"c{number}" for number in range(4)] * 3 + [None]), **fields,
        )  # type: ignore[arg-type]  # fmt: skip
        submitting.submit(self.store, request, environment={})

    def change(self, number: int) -> None:
        cluster = f"c{self.dice.randint(0, 3)}"
        match self.dice.choice(["limit", "free", "stop", "resume", "reserve", "drop", "jobs", "jobs"]):
            case "limit":
                clusters.update(
                    self.store, cluster, ClusterChange(borrow_limit=amounts(self.dice.choice([0, 2, 4])))
                )
            case "free":
                clusters.update(self.store, cluster, ClusterChange(borrow_limit={}))
            case "stop":
                clusters.stop(self.store, cluster)
            case "resume":
                clusters.resume(self.store, cluster)
            case "reserve":
                spec = parse_cluster_spec({"flexible_resource_min": {"CPU": 1}})
                clusters.create(self.store, "other", ClusterChange(divisible=True, spec=spec))
            case "drop":
                clusters.delete(self.store, "other", force=True)
            case _:
                super().change(number)

    def finish(self) -> None:
        for number in range(4):
            clusters.update(self.store, f"c{number}", ClusterChange(borrow_limit={}))
            if self.store.value("SELECT state FROM clusters WHERE cluster_id = ?", f"c{number}") == "STOPPED":
                clusters.resume(self.store, f"c{number}")
        with suppress(VctlError):
            clusters.delete(self.store, "other", force=True)
        node_ops.update(self.store, "n2", resources=amounts(2))
        super().finish()


def run(home: Path, seed: int, kind: type[Flow] = Flow) -> Flow:
    with World(home, window=8) as world:
        flow = kind(world, seed)
        world.turn()
        try:
            for number in range(STEPS):
                flow.step(number)
            flow.finish()
            flow.every_job_ran_once()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        changes = "SELECT count(*) FROM changes WHERE change LIKE '%\"was_ahead\":true%'"
        flow.followed = world.store.value(changes)
    return flow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Store.open(tmp_path / "home").close()
    return tmp_path / "home"


def test_a_submit_takes_back_those_that_it_may_come_before(home: Path) -> None:
    """By priority, in another queue, or where the order of the queue may say so: spec 9, orders of queues."""
    with World(home, window=8) as world:
        flow = Flow(world, 1)

        def ahead() -> int:
            return int(world.store.value("SELECT count(*) FROM runs_ahead"))

        def assign() -> int:
            for _ in range(20):
                world.turn()
                if ahead():
                    return ahead()
                flow.ends(0)
            raise AssertionError("nobody follows")

        node_ops.add(world.store, resources=amounts(1), node_id="n3", template="small")
        clusters.create(world.store, "small", ClusterChange(divisible=True, replica_sets={"small": 1}))
        cases: list[tuple[str, str, dict[str, object], bool]] = [
            ("priority", "alike", {}, True),
            ("priority", "lower", {"priority": -1}, True),
            ("priority", "higher", {"priority": 1}, False),
            ("priority", "elsewhere", {"cluster": "small"}, False),
            ("shortest", "short", {"time_limit_s": 1.0}, False),
        ]
        for order, name, fields, keeps in cases:
            clusters.update(world.store, PRIMARY, ClusterChange(queue={"order": order}))
            flow.submit(f"more-{name}", "1-40")
            before = assign()
            flow.submit(name, None, **fields)
            assert ahead() == (before if keeps else 0), name


@pytest.mark.parametrize("has", ["slices", "a whole node"])
def test_a_job_in_whose_place_another_one_is_being_started_keeps_its_cluster(home: Path, has: str) -> None:
    """The place of the next one is that of its predecessor: neither an update nor a node that changes moves it."""
    is_whole = has == "a whole node"
    gang = parse_cluster_spec(
        {"replica_sets": {"t": 1}} if is_whole else {"flexible_resource_min": {"CPU": 1}}
    )
    more = parse_cluster_spec({"fixed_size_nodes": [{"resources": {"CPU": 1}}]})
    with World(home, window=8) as world:
        node_ops.add(world.store, resources=amounts(2), node_id="n1", template="t")
        request = JobRequest(
            argv=("x",), submission_id="a", cwd="/", entry=amounts(1), array=parse_array("1-9"), spec=gang
        )
        submitting.submit(world.store, request, environment={})
        world.turn()
        while not world.store.value("SELECT count(*) FROM runs_ahead"):
            world.processes.end(world.processes.running()[0], 0)
            world.turn()
        (follows,) = world.store.column("SELECT follows FROM runs_ahead ORDER BY revision LIMIT 1")
        world.processes.end(follows, 0)  # the next one has started, and no scheduler has heard of it
        job_id = follows.partition(".")[0]

        def change() -> None:
            if is_whole:
                node_ops.update(world.store, "n1", resources=amounts(3))
            else:
                clusters.update(world.store, f"{PRIMARY}##a_{job_id}", ClusterChange(spec=more))

        with pytest.raises(BeingStarted, match=f"in the place of job {job_id},"):
            change()
        world.turn()
        node_ops.update(world.store, "n1", resources=amounts(3))
        world.turn()


def settled_by_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> list[BeingStarted]:
    """A command that waits until a start is recorded waits for a turn of the scheduler; how often it did so."""
    waited: list[BeingStarted] = []

    def settled(do: Callable[[], object], _: float = 0.0) -> object:
        while True:
            try:
                return do()
            except BeingStarted as error:
                waited.append(error)
                assert len(waited) < 9
                world.turn()

    monkeypatch.setattr(Store, "settled", staticmethod(settled))
    return waited


def array_with_a_member_that_is_being_started(world: World) -> str:
    """Its number is between those of the members that run and that wait; no scheduler has heard of its start."""
    node_ops.add(world.store, resources=amounts(2), node_id="n1", template="t")
    request = JobRequest(argv=("x",), submission_id="a", cwd="/", entry=amounts(1), array=parse_array("1-9"))
    submitting.submit(world.store, request, environment={})
    world.turn()
    while not world.store.value("SELECT count(*) FROM runs_ahead"):
        world.processes.end(world.processes.running()[0], 0)
        world.turn()
    follows, job_id = world.store.rows("SELECT follows, job_id FROM runs_ahead ORDER BY revision LIMIT 1")[0]
    world.processes.end(follows, 0)
    return f"a_{job_id}"


def test_an_array_is_stopped_while_a_member_of_it_is_being_started(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long array that runs, some member is being started at nearly every moment. A stop of all of it was refused
    and tried again until none was: a transaction of seconds each time, in which the scheduler could not record the
    start (finding 35). Now it leaves that member out, and stops it when its start is recorded."""
    with World(home, window=8) as world:
        name = array_with_a_member_that_is_being_started(world)
        waited = settled_by_turns(world, monkeypatch)
        changes: list[object] = []
        emit = Store.emit
        monkeypatch.setattr(
            Store, "emit", lambda store, change: (changes.append(change), emit(store, change))[1]
        )
        form = job_ops.stop(world.store, "a", grace_s=0)
        assert (
            len([one for one in changes if isinstance(one, JobsStopped)]) == 1
        )  # not once more for each try
        assert len(waited) == 1
        assert set(form["array"]["states"]) <= {"SUCCEEDED", "STOPPED", "RUNNING"}
        asked = world.store.value("SELECT stop_requested_at FROM jobs WHERE submission_id = ?", name)
        assert asked is not None
        assert world.store.value("SELECT count(*) FROM jobs WHERE status = 'PENDING'") == 0
        for run_id in world.processes.running():
            world.processes.end(run_id, 143)
        world.turn()
        assert world.store.value("SELECT count(*) FROM jobs WHERE status = 'RUNNING'") == 0


def test_an_array_is_not_stopped_in_part_where_other_things_happen_in_the_same_transaction(
    home: Path,
) -> None:
    with World(home, window=8) as world:
        array_with_a_member_that_is_being_started(world)
        with pytest.raises(BeingStarted), world.store.together():
            job_ops.stop(world.store, "a", grace_s=0)
        assert world.store.value("SELECT count(*) FROM jobs WHERE status = 'STOPPED'") == 0


@pytest.mark.parametrize("held", [True, False])
def test_an_array_is_held_while_a_member_of_it_is_being_started(home: Path, held: bool) -> None:
    """That member waits no more: it stays as it is, as those that run."""
    with World(home, window=8) as world:
        name = array_with_a_member_that_is_being_started(world)
        if held:
            job_edits.hold(world.store, "a")
        else:
            job_edits.release(world.store, "a")
        found = dict(world.store.rows("SELECT submission_id, held FROM jobs WHERE status = 'PENDING'"))
        assert not found.pop(name)
        assert set(found.values()) == {int(held)}
        world.turn()
        assert job_ops.get_job(world.store, name)["status"] == "RUNNING"


CHANGES: dict[str, Callable[[Store], object]] = {
    "a limit of the cluster": lambda store: clusters.update(
        store, "c1", ClusterChange(borrow_limit=amounts(0))
    ),
    "no jobs for the cluster": lambda store: clusters.stop(store, "c1"),
    "a drained node": lambda store: node_ops.drain(store, "n1"),
    "a cluster with a minimum": lambda store: clusters.create(
        store,
        "other",
        ClusterChange(divisible=True, spec=parse_cluster_spec({"flexible_resource_min": {"CPU": 1}})),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_while_a_place_goes_over_to_another_cluster_clusters_and_nodes_stay_as_they_are(
    home: Path, name: str
) -> None:
    """The moves of its loans are not written yet, and the job runs already: else it would have no place."""
    with World(home, window=8) as world:
        node_ops.add(world.store, resources=amounts(2), node_id="n1", template="t")
        node_ops.add(world.store, resources=amounts(1), node_id="n2", template="small")
        for cluster in ("c0", "c1"):
            clusters.create(world.store, cluster, ClusterChange(divisible=True, spec=parse_cluster_spec({})))
        gang = parse_cluster_spec({"fixed_size_nodes": [{"resources": {"CPU": 2}}]})
        for number in range(1, 10):
            request = JobRequest(
                argv=("x",), submission_id=f"a{number}", cwd="/", spec=gang, cluster=f"c{number % 2}"
            )
            submitting.submit(world.store, request, environment={})
        world.turn()

        def ahead() -> list[str]:
            """The runs whose place goes over next."""
            assert world.scheduler is not None and world.scheduler.state is not None
            return [one.follows for one in world.scheduler.state.ahead.runs.values() if one.moves]

        while not ahead():
            world.processes.end(world.processes.running()[0], 0)
            world.turn()
        (follows,) = ahead()
        world.processes.end(follows, 0)  # the next one has started, and no scheduler has heard of it
        job_id = follows.partition(".")[0]
        with pytest.raises(BeingStarted, match=f"in the place of job {job_id},"):
            CHANGES[name](world.store)
        world.turn()
        (running,) = world.processes.running()
        CHANGES[name](world.store)
        world.turn()
        assert world.processes.running() == [running]
        assert len(world.processes.starts) == len(set(world.processes.starts))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_run_is_lost_and_none_starts_twice(home: Path, seed: int) -> None:
    flow = run(home, seed)
    assert flow.assigned and flow.followed


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_run_is_lost_and_none_starts_twice_where_its_place_goes_over_to_a_sibling(
    home: Path, seed: int
) -> None:
    flow = run(home, seed, Siblings)
    assert flow.assigned and flow.followed and flow.moved


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS, 300))
def test_no_run_is_lost_in_many_sequences_of_siblings(home: Path, seed: int) -> None:
    run(home, seed, Siblings)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS, 300))
def test_no_run_is_lost_in_many_sequences(home: Path, seed: int) -> None:
    run(home, seed)
