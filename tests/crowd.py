"""A crowded cluster for pictures and for tests of what fits a terminal: 40 clusters and 300 jobs, whose long ids differ
in the middle.

The scheduler, the tables and the rules are the real ones; processes are stood in for, as in ``world``.
"""

from __future__ import annotations

import pwd
from pathlib import Path
from unittest.mock import Mock, patch

from tests.world import World
from vctl.core.resources import CPU, GPU, MEMORY, SCALE
from vctl.ops import clusters, job_edits, nodes, submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest, shortcut_spec

GIB = 2**30
WAITS = "evaluation-of-the-large-language-model-7"
"""Waits for more than there is room for; 40 characters."""
TEAMS = 32


def build(home: Path, now_s: float) -> World:
    """The cluster as it is at a moment, an hour after its first job."""
    world = World(home)
    world.elapsed_s = now_s - 3600
    resources = {CPU: 32 * SCALE, GPU: 8 * SCALE, MEMORY: 256 * GIB * SCALE}
    nodes.add(
        world.store,
        resources=resources,
        count=10,
        template="32c8g",
        node_id="gpu-box-of-the-vision-laboratory",
    )
    for name, count in (("computer-vision-laboratory", 3), ("robotics", 2)):
        clusters.create(world.store, name, ClusterChange(divisible=True, replica_sets={"32c8g": count}))
    clusters.create(world.store, "teaching", ClusterChange(divisible=True, spec=_spec({"CPU": 16, "GPU": 2})))
    for number in range(TEAMS):
        clusters.create(world.store, f"team-{number:02d}", ClusterChange(divisible=True, spec=_spec({})))
    for number in range(5):
        clusters.create(
            world.store,
            f"seminar-{number}",
            ClusterChange(divisible=True, spec=_spec({"CPU": 1})),
            parent_id="teaching",
        )
    for number in range(12):
        submit(world, f"training-run-{number:02d}-of-the-vision-transformer", 16, 4, user="ana", limit_s=7200)
    submit(world, "segmentation", 32, 8, cluster="computer-vision-laboratory", user="ben", nodes_=2)
    submit(world, "calibration", 8, 1, cluster="robotics", user="carla", limit_s=3700)
    failed = submit(world, "data-preparation", 1, 0, cluster="robotics", user="carla")
    world.turn()
    world.sleep(1800)
    for run in world.processes.running():
        row = world.store.row("SELECT job_id FROM runs WHERE run_id = ?", run)
        if row is not None and row["job_id"] == failed:
            world.processes.end(run, 3)
    world.turn()
    submit(world, WAITS, 32, 8, user="dora", nodes_=3)
    for number in range(284):
        submit(
            world, f"parameter-sweep-{number:03d}-of-the-reinforcement-learner", 24, 2,
            user=("ana", "ben", "carla", "dora")[number % 4],
        )  # fmt: skip
    job_edits.hold(world.store, "parameter-sweep-283-of-the-reinforcement-learner")
    world.turn()
    world.sleep(1800)
    return world


def _spec(minimum: dict[str, int]) -> object:
    return parse_cluster_spec({"flexible_resource_min": minimum}, units=frozenset({GPU}), logical=True)


def submit(
    world: World, name: str, cpus: int, gpus: int, *, user: str, cluster: str | None = None, nodes_: int = 1,
    limit_s: float | None = None,
) -> int:  # fmt: skip
    """Queue a job of someone; its number."""
    spec = shortcut_spec(
        str(cpus), str(gpus) if gpus else None, None, nodes_, units=frozenset({GPU}), beside_spec=False
    )
    request = JobRequest(
        argv=("python", "train.py", "--config", f"configs/{name}.yaml"), cluster=cluster, spec=spec,
        submission_id=name, cwd="/", time_limit_s=limit_s,
    )  # fmt: skip
    account = Mock(pw_name=user)  # other people's logins are what this machine does not have
    with patch.object(pwd, "getpwuid", return_value=account):
        job = submitting.submit(world.store, request, environment={"PATH": "/bin"})
    return int(job["job_id"])
