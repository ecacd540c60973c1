"""Simulated nodes with the real scheduler, driven turn by turn in this process; jobs are real processes."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from vctl.core.ledger import Ledger
from vctl.daemon.clock import Clock
from vctl.daemon.scheduler import Scheduler
from vctl.ops import cluster_views, leases, submitting
from vctl.ops import clusters as cluster_ops
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.ops import tasks as task_ops
from vctl.ops.prove import prove
from vctl.ops.replay import replay
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.quantities import parse_resources
from vctl.store import clusters, nodes
from vctl.store.store import Store

SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(60)")
PATIENCE_S = 30.0


class Life(Clock):
    """A state directory and, while it lives, its scheduler. After every turn the rules hold, the scheduler
    state is right."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = Store.open(home)
        self.skew_ns = 0
        self.scheduler: Scheduler | None = None

    # ---- the scheduler ----

    def start(self, store: Store | None = None) -> Scheduler:
        """Begin to rule, with a store of its own as a daemon has; its clock is ours."""
        ruling = store or Store.open(self.home)
        ruling.clock = self.now
        self.scheduler = Scheduler(ruling, kind="foreground", local_node=False, clock=self)
        self.scheduler.start()
        return self.scheduler

    def now(self) -> int:
        return time.time_ns() + self.skew_ns

    def uptime_ns(self) -> int:
        return super().uptime_ns() + self.skew_ns

    def die(self) -> None:
        """The daemon is gone as after kill -9: nothing is written any more."""
        assert self.scheduler is not None
        scheduler, self.scheduler = self.scheduler, None
        scheduler.close(orderly=False)
        scheduler.store.close()

    def turn(self, *, maintain: bool = True) -> None:
        scheduler = self.scheduler or self.start()
        if maintain:
            scheduler.observer.all_at = 0
        scheduler.turn()
        self.check()

    def until(self, condition: Callable[[], Any], *, maintain: bool = False) -> None:
        """Turn whenever something happens until a condition holds."""
        scheduler = self.scheduler or self.start()
        give_up = time.monotonic() + PATIENCE_S
        self.turn(maintain=maintain)
        while not condition():
            assert time.monotonic() < give_up, "waited too long"
            poll = select.poll()
            poll.register(scheduler.watch.fileno(), select.POLLIN)
            poll.poll(50)
            self.turn(maintain=maintain)

    def check(self) -> None:
        assert prove(self.store) == []
        assert self.scheduler is not None
        assert self.scheduler.state is not None
        assert picture(self.scheduler.state.ledger) == picture(clusters.load_ledger(self.store))

    # ---- what users do ----

    def nodes(self, count: int, template: str, cpus: int = 4) -> list[str]:
        made = node_ops.add(self.store, resources=cpu(cpus), count=count, template=template)
        return [node["node_id"] for node in made]

    def node(self, node_id: str, template: str, cpus: int = 4) -> str:
        node_ops.add(self.store, resources=cpu(cpus), node_id=node_id, template=template)
        return node_id

    def logical(
        self,
        cluster_id: str,
        replica_sets: Mapping[str, int] | None = None,
        *,
        divisible: bool = False,
        spec: object = None,
        parent: str | None = None,
    ) -> None:
        wanted = None if spec is None else parse_cluster_spec(spec, logical=True)
        cluster_ops.create(
            self.store,
            cluster_id,
            ClusterChange(divisible=divisible, replica_sets=replica_sets, spec=wanted),
            parent_id=parent,
        )

    def submit(
        self,
        job: str,
        *,
        cluster: str | None = None,
        spec: object = None,
        argv: tuple[str, ...] = SLEEP,
        entry: Mapping[str, int] | None = None,
        **options: Any,
    ) -> str:
        parsed = None if spec is None else parse_cluster_spec(spec)
        request = JobRequest(
            argv=argv, submission_id=job, cluster=cluster, spec=parsed, grace_s=0.1, entry=entry, **options
        )
        submitting.submit(self.store, request, environment={"PATH": "/usr/bin:/bin"})
        return job

    def run(self, job: str, *, cluster: str | None = None, spec: object = None) -> str:
        """Submit a job that sleeps and wait until its process has started."""
        self.submit(job, cluster=cluster, spec=spec)
        self.until(lambda: self.store.value(
            "SELECT count(*) FROM runs JOIN jobs USING (job_id) WHERE submission_id = ? AND state = 'RUNNING'", job
        ))  # fmt: skip
        return job

    def end(self, job: str) -> None:
        job_ops.stop(self.store, job, grace_s=0)
        self.until(lambda: self.job(job)["status"] not in ("PENDING", "RUNNING"))

    def kill(self, *node_ids: str) -> None:
        for node_id in node_ids:
            node_ops.kill(self.store, node_id)

    # ---- what there is ----

    def job(self, job: str) -> dict[str, Any]:
        return job_ops.get_job(self.store, job)

    def members(self, cluster_id: str) -> list[str]:
        """Physical nodes of a cluster; of the primary those that no logical cluster has whole."""
        if cluster_id == "primary":
            return [row["node_id"] for row in nodes.owned_by_primary(self.store)]
        return clusters.node_ids_of(self.store, cluster_id)

    def counts(self, cluster_id: str, *, alive: bool = True) -> dict[str, int]:
        found: dict[str, int] = {}
        for node_id in self.members(cluster_id):
            row = nodes.get(self.store, node_id)
            assert row is not None
            if row["state"] != "DEAD" or not alive:
                found[row["template_id"]] = found.get(row["template_id"], 0) + 1
        return found

    def state(self, node_id: str) -> str:
        return str(node_ops.get_node(self.store, node_id)["state"])

    def events(self, kind: str) -> list[str]:
        return [
            row[0]
            for row in self.store.rows("SELECT object_id FROM events WHERE kind = ? ORDER BY seq", kind)
        ]

    def revision(self, cluster_id: str) -> int:
        return int(self.store.value("SELECT revision FROM clusters WHERE cluster_id = ?", cluster_id))

    def replay(self, *, dry_run: bool = False) -> list[list[str]]:
        """What each step of a replay did."""
        return [step["actions"] for step in replay(self.store, dry_run=dry_run)["steps"]]

    def close(self) -> None:
        """End every process that a test started."""
        for job in job_ops.list_jobs(self.store)[0]:
            job_ops.stop(self.store, job["submission_id"], grace_s=0)
        for row in self.store.rows("SELECT task_id FROM tasks WHERE ended_at IS NULL"):
            task_ops.cancel(self.store, row[0], grace_s=0)  # detached ones too
        if self.store.value("SELECT count(*) FROM runs"):
            self.until(lambda: not self.store.value("SELECT count(*) FROM runs"))
        if self.scheduler is not None:
            self.scheduler.close()
            self.scheduler.store.close()
        self.store.close()


def cpu(count: float) -> dict[str, int]:
    """An amount of CPUs."""
    return dict(parse_resources({"CPU": count}, "resources"))


def loans(life: Life, *, of_jobs: bool = True) -> list[tuple[str, str, float]]:
    """(borrower, lender, CPUs) of each lease, in order; ``of_jobs``: also those of the clusters of jobs."""
    found: list[dict[str, Any]] = leases.list_leases(life.store)
    return sorted(
        (lease["borrower_id"], lease["lender_id"], lease["resources"]["CPU"])
        for lease in found
        if of_jobs or "##" not in lease["borrower_id"]
    )


def total(life: Life, cluster_id: str) -> float:
    """The CPUs that a cluster holds."""
    return float(cluster_views.get_cluster(life.store, cluster_id)["total_resources"].get("CPU", 0))


def picture(ledger: Ledger) -> object:
    """All that a ledger says, comparable."""
    capacities = {
        v: (dict(capacity.free), capacity.instances, capacity.cores, capacity.total)
        for v, capacity in ledger.capacities.items()
    }
    return ledger.nodes, ledger.vnodes, capacities, ledger.charges, ledger.homes, set(ledger.clusters)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    there = Life(tmp_path / "state")
    yield there
    there.close()
