"""SQL about the holders of numbered devices: which clusters and jobs have which instances of which nodes."""

from __future__ import annotations

from typing import NamedTuple

from vctl.core.clusters import JOB, LOGICAL
from vctl.core.nodes import DEAD, Fence
from vctl.core.resources import GPU
from vctl.store.rows import dumps, fences, loads
from vctl.store.store import Row, Store

REPORTED = "foreign_gpu_processes"
"""The key in ``meta`` of what a scheduler saw last on the devices of its machine, and reports.

``node_id``; ``pids``: device -> foreign processes; ``idle``: booked device -> since when nobody uses it.
"""


class DevicePart(NamedTuple):
    """What a job, or a logical cluster (``job_id`` None), holds of an instance: a share in 1/10000."""

    node_id: str
    number: int
    cluster_id: str
    parent_id: str | None
    job_id: int | None
    share: int


def parts(store: Store, name: str) -> list[DevicePart]:
    """The parts of all instances of a unit resource that jobs and logical clusters hold.

    What lies inside the cluster of a job counts with the job. A job of an indivisible cluster holds with its processes.
    """
    holding = store.rows(
        "SELECT v.node_id, v.instances, c.cluster_id, c.parent_id, iif(c.kind = ?2, c.job_id, NULL) job_id"
        " FROM vnodes v JOIN clusters c USING (cluster_id) WHERE c.kind IN (?2, ?3) AND instr(v.instances, ?1)"
        " UNION ALL SELECT r.node_id, r.instances, c.cluster_id, c.parent_id, r.job_id FROM runs r"
        " JOIN clusters c USING (cluster_id) WHERE c.kind = ?3 AND instr(r.instances, ?1)",
        f'"{name}"', JOB, LOGICAL,
    )  # fmt: skip
    return [
        DevicePart(row["node_id"], int(index), row["cluster_id"], row["parent_id"], row["job_id"], share)
        for row in holding
        for index, share in loads(row["instances"]).get(name, {}).items()
    ]


def jobs(store: Store, job_ids: set[int]) -> dict[int, Row]:
    """Name, user and start of these jobs, by number."""
    found = store.rows(
        "SELECT job_id, submission_id, user, parent_cluster_id, started_at FROM jobs"
        " WHERE job_id IN (SELECT value FROM json_each(?))",
        dumps(sorted(job_ids)),
    )
    return {row["job_id"]: row for row in found}


def runs_on(store: Store, node_id: str) -> list[Row]:
    """The runs of a node that are not over, with their main processes."""
    return store.rows("SELECT run_id, job_id, pid, pid_start, boot_id FROM runs WHERE node_id = ?", node_id)


def fenced(store: Store) -> list[tuple[str, Fence]]:
    """The fences of all nodes that are not dead, by node."""
    found = store.rows(
        "SELECT node_id, fences FROM nodes WHERE fences <> '[]' AND state <> ? ORDER BY node_id", DEAD
    )
    return [(row["node_id"], fence) for row in found for fence in fences(row["fences"])]


def jobs_on(store: Store, node_id: str, number: int) -> list[Row]:
    """The jobs that have booked a GPU, or a share of it."""
    held = {part.job_id for part in parts(store, GPU) if (part.node_id, part.number) == (node_id, number)}
    return list(jobs(store, {job_id for job_id in held if job_id is not None}).values())
