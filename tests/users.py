"""Users of a ``World``: they draw at random what users, machines and crashes do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.world import Killed, MortalStore, World, amounts
from vctl.core.clusters import ClusterSpec
from vctl.core.nodes import MADE_BY, Template
from vctl.errors import VctlError
from vctl.ops import clusters as cluster_ops
from vctl.ops import job_edits, reruns, submitting
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.ops import tasks as task_ops
from vctl.ops.prove import prove
from vctl.ops.replay import replay
from vctl.runtime import objects as files
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array, parse_dependency, parse_warning_signal
from vctl.spec.overrides import Overrides
from vctl.spec.params import Reading, declared
from vctl.spec.provider_spec import ProviderSpec
from vctl.spec.task_request import TaskRequest
from vctl.store import clusters, folded, jobs

TEMPLATES: dict[str, tuple[float, float]] = {"t2": (2, 0), "t4": (4, 1), "t8": (8, 2)}
PROVIDER = ProviderSpec(
    "simulated", (Template("t2", amounts(2), 2), Template("t4", amounts(4, 1), 2)), boot_s=2, idle_s=10
)
MOST_CLUSTERS, MOST_JOBS, MOST_NODES = 10, 10, 12
OTHERWISE = ("", ":soft", ":spill")


class Users:
    """Draws what happens next; what is refused must have changed nothing."""

    turns = 0.8
    """How often the scheduler turns after a step."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.store = world.store
        self.dice = random.Random(seed)
        self.made = 0
        self.done: list[str] = []
        self.actions: list[tuple[int, Callable[[], object]]] = [
            (3, self.join), (2, self.kill), (2, self.drain), (2, self.undrain), (1, self.forget_node),
            (2, self.change_node),
            (3, self.serve),
            (4, self.create), (4, self.divide), (4, self.update), (3, self.delete), (1, self.stop_or_resume),
            (11, self.submit), (6, self.submit_array), (7, self.exit_process), (3, self.stop_job),
            (2, self.hold), (2, self.release), (2, self.edit), (2, self.forget_job), (1, self.lose_process),
            (3, self.rerun),
            (16, self.run_task), (6, self.end_task), (2, self.cancel_task), (8, self.wait),
            (2, self.restart), (3, self.crash),
        ]  # fmt: skip

    # ---- one step ----

    def step(self) -> None:
        weights, actions = zip(*self.actions, strict=True)
        (action,) = self.dice.choices(actions, weights)
        self.done.append(action.__name__)
        before, refused = self._tables(), False
        try:
            action()
        except VctlError as error:
            refused = True
            self.done[-1] += f" refused: {error}"
        assert not refused or self._tables() == before
        problems = prove(self.store)
        assert problems == [], problems
        self.world.sleep(self.dice.choice([0, 0, 1, 3]))
        if self.dice.random() < self.turns:
            self.world.turn()
            if len(self.done) % 4 == 0 and self.world.overlooked():
                self.world.sleep(40)  # some verdicts hold for a time
                self.world.turn()
                assert self.world.overlooked() == []
        if self.dice.random() < 0.7:
            self.world.processes.obey()

    def _tables(self) -> list[Any]:
        """Everything but the reasons why things wait."""
        names = ("nodes", "clusters", "vnodes", "leases", "runs")
        found: list[Any] = [
            tuple(row) for name in names for row in self.store.rows(f"SELECT * FROM {name} ORDER BY 1")
        ]
        return [*found, self.store.value("SELECT max(seq) FROM events")]

    def number(self) -> int:
        self.made += 1
        return self.made

    def one(self, sql: str) -> str | None:
        found = [str(row[0]) for row in self.store.rows(sql)]
        return self.dice.choice(found) if found else None

    def count(self, sql: str) -> int:
        return int(self.store.value(sql))

    # ---- machines ----

    def join(self) -> None:
        if self.count("SELECT count(*) FROM nodes WHERE state = 'ALIVE'") >= MOST_NODES:
            return
        template = self.dice.choice(sorted(TEMPLATES))
        node_ops.add(
            self.store, resources=amounts(*TEMPLATES[template]), node_id=f"n{self.number():03}", template=template,
            labels={"zone": self.dice.choice("ab")},
        )  # fmt: skip

    def kill(self) -> None:
        if node := self.one("SELECT node_id FROM nodes WHERE state <> 'DEAD'"):
            node_ops.kill(self.store, node)

    def drain(self) -> None:
        if node := self.one("SELECT node_id FROM nodes WHERE state = 'ALIVE'"):
            node_ops.drain(self.store, node)

    def undrain(self) -> None:
        if node := self.one("SELECT node_id FROM nodes WHERE state IN ('DRAINING', 'DRAINED')"):
            node_ops.undrain(self.store, node)

    def forget_node(self) -> None:
        if node := self.one("SELECT node_id FROM nodes"):
            node_ops.remove(self.store, node)

    def change_node(self) -> None:
        if node := self.one("SELECT node_id FROM nodes WHERE state <> 'DEAD'"):
            more = amounts(self.dice.choice([1, 2, 4, 8]), self.dice.choice([0, 1, 2]))
            node_ops.update(self.store, node, resources=more)

    # ---- clusters ----

    def parent(self) -> str | None:
        found = self.one("SELECT cluster_id FROM clusters WHERE kind = 'logical' AND divisible")
        return found if self.dice.random() < 0.6 else None

    def counts(self) -> dict[str, int]:
        return {
            name: self.dice.choice([0, 1, 1, 2]) for name in sorted(TEMPLATES) if self.dice.random() < 0.6
        }

    def spec(self, *, logical: bool) -> ClusterSpec:
        draw = self.dice
        document: dict[str, Any] = {}
        kind = draw.choice(["flexible", "flexible", "groups", "both"])
        if kind != "groups":
            least: dict[str, float] = {
                "CPU": draw.choice([0, 0.5, 1, 2, 3]),
                "GPU": draw.choice([0, 0, 0, 0.5, 1]),
            }
            document["flexible_resource_min"] = least
            if draw.random() < 0.5:
                document["flexible_resource_max"] = {"CPU": least["CPU"] + draw.choice([0, 1, 4])}
        if kind != "flexible":
            policy = draw.choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
            node: dict[str, Any] = {"resources": {"CPU": draw.choice([0.5, 1, 2])}}
            if draw.random() < 0.3:
                node["label_selector"] = {"zone": draw.choice(["a", "b"])}
            document["fixed_size_nodes"] = [
                {"nodes": [node] * draw.choice([1, 2]), "scheduling_policy": policy}
            ]
        return parse_cluster_spec(document, logical=logical)

    def limits(self) -> dict[str, Any]:
        found = {}
        if self.dice.random() < 0.3:
            found["borrow_limit"] = amounts(self.dice.choice([1, 2]))
        if self.dice.random() < 0.4:
            found["lending_limit"] = amounts(self.dice.choice([1, 2, 4]))
        return found

    def create(self) -> None:
        if self.count("SELECT count(*) FROM clusters WHERE kind = 'logical'") >= MOST_CLUSTERS:
            return
        whole = self.dice.random() < 0.4
        cluster_ops.create(
            self.store,
            f"v{self.number():03}",
            ClusterChange(
                divisible=self.dice.random() < 0.7,
                replica_sets=self.counts() if whole else None,
                spec=None if whole else self.spec(logical=True),
                **self.limits(),
            ),
            parent_id=self.parent(),
        )

    def divide(self) -> None:
        """A running job makes a cluster inside its own."""
        inside = self.one(
            "SELECT c.cluster_id FROM clusters c JOIN jobs j ON j.job_id = c.job_id"
            " WHERE c.kind IN ('job', 'sub') AND j.status = 'RUNNING' AND c.divisible"
        )
        if inside is not None:
            cluster_ops.create(
                self.store,
                f"s{self.number():03}",
                ClusterChange(spec=self.spec(logical=False)),
                parent_id=inside,
            )

    def update(self) -> None:
        cluster_id = self.one("SELECT cluster_id FROM clusters WHERE kind <> 'sub' OR parent_id LIKE '%##%'")
        if cluster_id is None or (row := clusters.get(self.store, cluster_id)) is None:
            return  # somebody has deleted it meanwhile
        logical = row["kind"] == "logical"
        wanted: dict[str, Any] = self.limits() if logical else {}
        if not wanted or self.dice.random() < 0.7:
            if logical and self.dice.random() < 0.5:
                wanted["replica_sets"] = self.counts()
            else:
                wanted["spec"] = self.spec(logical=logical)
        cluster_ops.update(self.store, cluster_id, ClusterChange(**wanted))

    def delete(self) -> None:
        cluster_id = self.one("SELECT cluster_id FROM clusters WHERE kind <> 'job'")
        if cluster_id is not None:
            how = self.dice.choice([{}, {}, {"drain": True}, {"force": True}])
            cluster_ops.delete(self.store, cluster_id, **how)

    def stop_or_resume(self) -> None:
        if cluster_id := self.one("SELECT cluster_id FROM clusters WHERE kind = 'logical'"):
            self.dice.choice([cluster_ops.stop, cluster_ops.resume, cluster_ops.resume])(
                self.store, cluster_id
            )

    # ---- jobs and tasks ----

    def submit(self) -> None:
        if self.count("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')") >= MOST_JOBS:
            return
        target = self.one("SELECT cluster_id FROM clusters WHERE kind = 'logical'")
        target = target if self.dice.random() < 0.7 else None
        row = None if target is None else clusters.get(self.store, target)
        spec = None
        if row is None or row["divisible"]:
            spec = self.dice.choice([None, self.spec(logical=False), self.spec(logical=False), self._whole()])
        entry = self.dice.choice([None, None, amounts(1), amounts(0.5, 0.5), {}])
        request = JobRequest(
            argv=("x",), submission_id=f"j{self.number():03}", cluster=target, spec=spec, entry=entry, cwd="/",
            **self.gates(),
            priority=self.dice.choice([0, 0, 1, 2]), time_limit_s=(limit_s := self.dice.choice([None, None, 20])),
            grace_s=0, signal=None if limit_s is None else parse_warning_signal("USR1@5"),
            max_retries=self.dice.choice([0, 0, 1]), retry_on=("NodeFailed", "ExitCode"),
            per_node=spec is not None and entry is None and self.dice.random() < 0.2,
        )  # fmt: skip
        submitting.submit(self.store, request, environment={})

    def gates(self) -> dict[str, Any]:
        """What keeps a job out of its queue at first, for some jobs."""
        draw = self.dice
        found: dict[str, Any] = {"hold": draw.random() < 0.1}
        if draw.random() < 0.15:
            found["begin_at"] = self.world.now() / 1e9 + draw.choice([-1, 2, 10])
        others = self.jobs("1")
        others += [str(row[0]) for row in self.store.rows("SELECT array_id FROM arrays")]
        if others and draw.random() < 0.25:
            names = draw.sample(others, min(len(others), draw.choice([1, 1, 2])))
            found["after"] = tuple(
                parse_dependency(f"{draw.choice(['ok', 'any', 'notok'])}:{name}") for name in names
            )
        return found

    def submit_array(self) -> None:
        """Members of arrays are jobs like others; some arrays have a limit of those that run at once."""
        if self.count("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')") >= MOST_JOBS:
            return
        request = JobRequest(
            argv=("x",), submission_id=f"a{self.number():03}", cwd="/", entry=amounts(self.dice.choice([0.5, 1])),
            array=parse_array(self.dice.choice(["0-2", "0-4%1", "1-7:2%2", "3", "0-8", "2-20:3"])), grace_s=0,
            max_retries=self.dice.choice([0, 0, 1]), retry_on=("NodeFailed", "ExitCode"),
            backoff_s=self.dice.choice([0, 5]), **self.gates(),
        )  # fmt: skip
        submitting.submit(self.store, request, environment={})

    def job_or_array(self, which: str) -> str | None:
        """A job, or now and then the array that it is in."""
        if not (found := self.jobs(which)):
            return None
        job = self.dice.choice(found)
        row = jobs.get(self.store, jobs.number_of(self.store, job) or 0)
        if row is None:  # another command has deleted it since
            return None
        return job if row["array_id"] is None or self.dice.random() < 0.5 else str(row["array_id"])

    def jobs(self, which: str) -> list[str]:
        """The ids of jobs, members of arrays without rows of their own among them."""
        rows = self.store.rows(f"SELECT * FROM jobs WHERE {which} ORDER BY job_id")
        return [name for row in rows for _, name in folded.members(row)]

    def hold(self) -> None:
        if job := self.job_or_array("status = 'PENDING' AND NOT held"):
            job_edits.hold(self.store, job)

    def release(self) -> None:
        if job := self.job_or_array("status = 'PENDING' AND held"):
            job_edits.release(self.store, job)

    def edit(self) -> None:
        """Let what waits, or runs, ask for something else."""
        if not (job := self.job_or_array("status IN ('PENDING', 'RUNNING')")):
            return
        draw = self.dice
        others = self.jobs("1")
        cluster = self.one("SELECT cluster_id FROM clusters WHERE kind = 'logical'")
        drawn: dict[str, Any] = {
            "priority": draw.choice([0, 1, 2]), "name": draw.choice([None, "x"]),
            "time_limit_s": draw.choice([None, 20.0, 0.5]), "num_cpus": draw.choice([None, 0.5, 1, 2]),
            "cluster": draw.choice([None, cluster]), "max_retries": draw.choice([0, 1]),
            "begin_at": draw.choice([None, self.world.now() / 1e9 + draw.choice([-1, 5])]),
            "after": draw.choice([[], [f"{draw.choice(['ok', 'any', 'notok'])}:{draw.choice(others)}"]]),
            "env": {"A": draw.choice("ab")}, "grace_s": draw.choice([None, 1.0]),
        }  # fmt: skip
        names = draw.choice([["time_limit_s"], ["priority", "name"], draw.sample(sorted(drawn), 2)])
        values = {name: drawn[name] for name in names}
        row = self.store.row("SELECT at_once FROM arrays WHERE array_id = ?", job)
        if row is not None and draw.random() < 0.5:
            job_edits.edit(self.store, job, {}, max_running=draw.choice([None, 1, 2]))
        else:
            job_edits.edit(self.store, job, values)

    def forget_job(self) -> None:
        if self.dice.random() < 0.3:
            job_ops.prune(self.store, 30)
        elif job := self.job_or_array("status NOT IN ('PENDING', 'RUNNING')"):
            job_ops.delete(self.store, job)

    def rerun(self) -> None:
        """Let what did not succeed run again in place, as it is or with another request."""
        if not (job := self.job_or_array("status IN ('FAILED', 'STOPPED')")):
            return
        values: dict[str, Any] = {}
        if self.dice.random() < 0.4:
            values = {"priority": self.dice.choice([0, 5]), "time_limit_s": self.dice.choice([4, 60])}
        if self.dice.random() < 0.3:
            values |= {"num_cpus": self.dice.choice([0.5, 1, 2]), "hold": self.dice.random() < 0.2}
        if self.dice.random() < 0.2 and (awaited := self.job_or_array("1")):
            values["after"] = [f"{self.dice.choice(['ok', 'any', 'notok'])}:{awaited}"]
        changes = Overrides(declared(JobRequest), Reading(frozenset(), values), values)
        reruns.rerun(self.store, job, changes, failed=True)

    def serve(self) -> None:
        """Let jobs of a queue preempt, or no more."""
        target = self.one("SELECT cluster_id FROM clusters WHERE kind = 'logical'")
        queue = {
            "preemption": self.dice.choice(["requeue", "requeue", "stop", "off"]),
            "min_runtime_s": self.dice.choice([0, 0, 5]),
            "preemption_grace_s": self.dice.choice([0, 5, 30]),
            "discipline": self.dice.choice(["best-effort", "strict", "backfill"]),
        }
        cluster_ops.update(self.store, target or "primary", ClusterChange(queue=queue))

    def _whole(self) -> ClusterSpec:
        return parse_cluster_spec({"replica_sets": {self.dice.choice(sorted(TEMPLATES)): 1}})

    def exit_process(self) -> None:
        """The entrypoint of a job comes to its end."""
        entry_points = {row[0] for row in self.store.rows("SELECT run_id FROM runs WHERE task_id IS NULL")}
        self._exit([run_id for run_id in self.world.processes.running() if run_id in entry_points])

    def end_task(self) -> None:
        of_tasks = {row[0] for row in self.store.rows("SELECT run_id FROM runs WHERE task_id IS NOT NULL")}
        self._exit([run_id for run_id in self.world.processes.running() if run_id in of_tasks])

    def _exit(self, found: list[str]) -> None:
        if found:
            run_id, code = self.dice.choice(found), self.dice.choice([0, 0, 1])
            self._leave_outputs(run_id)
            self.world.processes.end(run_id, code)

    def _leave_outputs(self, run_id: str) -> None:
        """What a task has promised, but for now and then one."""
        row = self.store.row(
            "SELECT t.outputs, r.job_id, r.node_id, j.attempt FROM runs r JOIN tasks t USING (task_id)"
            " JOIN jobs j ON j.job_id = r.job_id WHERE r.run_id = ?",
            run_id,
        )
        for name in json.loads(row["outputs"]) if row is not None else ():
            place = files.folder_path(self.world.home, row["job_id"], row["attempt"], row["node_id"])
            if self.dice.random() < 0.9 and place.is_dir():
                (place / name).write_text(name)

    def lose_process(self) -> None:
        if found := self.world.processes.running():
            self.world.processes.lose(self.dice.choice(found))

    def stop_job(self) -> None:
        if job := self.job_or_array("status IN ('PENDING', 'RUNNING')"):
            job_ops.stop(self.store, job, grace_s=0)

    def run_task(self) -> None:
        """From outside, from the job's process, from another task, or in a sub-cluster."""
        job = self.one("SELECT submission_id FROM jobs WHERE status = 'RUNNING'")
        if job is None:
            return
        around = {}
        if self.dice.random() < 0.8:
            around["VCTL_SUBMISSION_ID"] = job
            whose = f"JOIN jobs j USING (job_id) WHERE j.submission_id = '{job}'"
            if owner := self.one(f"SELECT task_id FROM tasks t {whose} AND t.state = 'RUNNING'"):
                if self.dice.random() < 0.3:
                    around["VCTL_TASK_ID"] = owner
            if inner := self.one(f"SELECT c.cluster_id FROM clusters c {whose} AND c.kind = 'sub'"):
                if self.dice.random() < 0.5:
                    around["VCTL_CLUSTER_ID"] = inner
        node = self.one("SELECT node_id FROM nodes")
        draw = self.dice
        names = draw.sample("vwxyz", 3)
        request = TaskRequest(
            argv=("x",), job=job, cwd="/", grace_s=0, request=amounts(draw.choice([0, 0.5, 1, 1, 2, 3]),
            draw.choice([0, 0, 0, 0.5, 1])), max_retries=draw.choice([0, 0, 1]), detach=draw.random() < 0.15,
            strategy=draw.choice(["HYBRID", "HYBRID", "SPREAD", "RANDOM", *(f"NODE:{node}{how}" for how in OTHERWISE)]),
            inputs=tuple(names[: draw.choice([0, 0, 1, 2])]), outputs=tuple(names[2 : draw.choice([2, 2, 3])]),
        )  # fmt: skip
        task_ops.run(self.store, request, environment=around)

    def cancel_task(self) -> None:
        if task := self.one("SELECT task_id FROM tasks WHERE ended_at IS NULL"):
            task_ops.cancel(self.store, task)

    # ---- time, and the end of schedulers ----

    def wait(self) -> None:
        """Long enough for leases to be idle and for the maintenance round."""
        self.world.sleep(self.dice.choice([6, 12, 31]))

    def restart(self) -> None:
        self.world.die()
        self.world.start()
        self.is_replayed()

    def crash(self) -> None:
        """The scheduler dies around one of its next commits, or between a commit and the launch."""
        scheduler = self.world.scheduler or self.world.start()
        store = scheduler.store
        assert isinstance(store, MortalStore)
        at, store.after_it = self.dice.choice([None, 0, 0, 1, 1, 2, 3]), self.dice.random() < 0.5
        if at is None:
            self.world.processes.kill_before_launch = True
        store.dies_at = at
        try:
            self.dice.choice([self.submit, self.run_task, self.exit_process, self.kill])()
            self.world.turn()
        except VctlError:
            pass
        except Killed:
            self.done[-1] += " killed"
        self.world.processes.kill_before_launch = False
        self.restart()

    def is_replayed(self) -> None:
        """What was replayed needs no further replay."""
        assert replay(self.store, dry_run=True)["changes"] == 0
        self.world.turn()

    # ---- the end of all ----

    def end_everything(self) -> None:
        for _ in range(3):
            for job in self.jobs("status IN ('PENDING', 'RUNNING')"):
                job_ops.stop(self.store, job, grace_s=0)
            for row in self.store.rows("SELECT task_id FROM tasks WHERE ended_at IS NULL"):
                task_ops.cancel(self.store, row[0])
            self.world.turn()
            self.world.processes.obey()
            self.world.turn()
        for row in self.store.rows("SELECT cluster_id FROM clusters WHERE kind = 'logical'"):
            if clusters.get(self.store, row[0]) is not None:
                cluster_ops.delete(self.store, row[0], force=True)
        for _ in range(3):
            self.world.sleep(40)
            self.world.turn()

    def nothing_is_left(self) -> None:
        for table in (
            "clusters",
            "vnodes",
            "leases",
            "set_aside",
            "objects",
            "promises",
            "task_inputs",
            "preemptions",
            "nominations",
            "dependencies",
        ):
            assert [tuple(row) for row in self.store.rows(f"SELECT * FROM {table}")] == [], table
        assert self.count("SELECT count(*) FROM runs") == 0
        assert self.count("SELECT count(*) FROM tasks WHERE ended_at IS NULL") == 0
        assert self.count("SELECT count(*) FROM jobs WHERE status IN ('PENDING', 'RUNNING')") == 0
        assert list(files.folders(self.world.home)) == []
        assert self.world.processes.running() == []
        ledger = clusters.load_ledger(self.store)
        assert all(capacity.is_untouched() for capacity in ledger.capacities.values())
        assert self.count("SELECT count(*) FROM nodes WHERE state = 'DRAINING'") == 0
        assert [node for node in ledger.nodes.values() if MADE_BY in node.labels] == []


def play(
    home: Path, seed: int, steps: int, make: Callable[[World, int], Users] = Users, *, end: bool = True
) -> None:
    """Let users act at random; every third sequence has a node provider. ``end``: then all work ends, and nothing
    may be left."""
    with World(home, provider=PROVIDER if seed % 3 == 0 else None) as world:
        users = make(world, seed)
        for _ in range(3):
            users.join()
        world.turn()
        try:
            for _ in range(steps):
                users.step()
            if end:
                users.end_everything()
                users.nothing_is_left()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {len(users.done)}, the last ones: {users.done[-8:]}")
            raise
