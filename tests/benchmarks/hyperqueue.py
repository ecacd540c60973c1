"""HyperQueue at the same work, through its Python package: server and worker in this process, which keep nothing.

``python -m tests.benchmarks.hyperqueue SLOTS JOBS array|single|gangs|graph`` prints the seconds from the first submit
to the last end, which it sees a second late at most; with ``starts``, for each job the milliseconds until it runs;
with ``graph``, seconds of the submit, seconds until the last end, and CPU milliseconds per job.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperqueue import Client

IS_INSTALLED = importlib.util.find_spec("hyperqueue") is not None


def seconds(slots: int, jobs: int, form: str) -> float:
    """Measure in another process: the package logs to the terminal and ends with its process only."""
    return _ask(slots, jobs, form)[-1]


def to_start_ms(jobs: int) -> list[float]:
    """Milliseconds from the submit of an open connection to the first act of the process, one job at a time."""
    return _ask(4, jobs, "starts")[-jobs:]


def of_graph(slots: int, graph: list[list[int]], *, objects: bool = False) -> tuple[float, float, float]:
    """Of a graph as one batch: seconds of the submit, seconds until the last end, CPU milliseconds per job.

    ``objects``: each job writes a file.
    """
    form = "objects" if objects else "graph"
    submitted, ended, cpu = _ask(slots, len(graph), form, json.dumps(graph))
    return submitted, ended, cpu


def _ask(slots: int, jobs: int, form: str, given: str = "") -> list[float]:
    words = [sys.executable, "-m", __spec__.name, str(slots), str(jobs), form]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600, input=given)
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def main() -> None:
    """Run the jobs as one batch (``array``), as jobs of one task (``single``), or on two nodes each (``gangs``)."""
    from hyperqueue import Job
    from hyperqueue.cluster import LocalCluster, WorkerConfig
    from hyperqueue.ffi.protocol import ResourceRequest

    slots, jobs, form = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    cores = 1 if form == "gangs" else slots
    with tempfile.TemporaryDirectory() as folder, LocalCluster(folder, WorkerConfig(cores=cores)) as cluster:
        for _ in range(slots - 1 if form == "gangs" else 0):
            cluster.start_worker(WorkerConfig(cores=1))
        client = cluster.client()
        if form == "starts":
            print(*[_start_ms(client, Path(folder) / "clock") for _ in range(jobs)])
            return
        if form in ("graph", "objects"):
            print(*_graph(client, folder, json.load(sys.stdin), objects=form == "objects"))
            return
        wanted = ResourceRequest(n_nodes=2) if form == "gangs" else None
        began = time.perf_counter()
        batches = [1] * jobs if form == "single" else [jobs]
        submitted = []
        for size in batches:
            job = Job(default_workdir=folder, max_fails=None)
            for _ in range(size):
                job.program(["true"], stdout=None, stderr=None, resources=wanted)
            submitted.append(client.submit(job))
        if not client.wait_for_jobs(submitted):
            raise RuntimeError("a task of HyperQueue failed")
        print(time.perf_counter() - began)


def _graph(
    client: Client, folder: str, graph: list[list[int]], *, objects: bool
) -> tuple[float, float, float]:
    from hyperqueue import Job

    cpu, began = _cpu_s(), time.perf_counter()
    job = Job(default_workdir=folder, max_fails=None)
    tasks: list[Any] = []
    for number, awaited in enumerate(graph):
        words = ["sh", "-c", f"echo > {folder}/o{number}"] if objects else ["true"]
        tasks.append(job.program(words, stdout=None, stderr=None, deps=[tasks[other] for other in awaited]))
    submitted = client.submit(job)
    after = time.perf_counter()
    if not client.wait_for_jobs([submitted]):
        raise RuntimeError("a task of HyperQueue failed")
    return after - began, time.perf_counter() - began, (_cpu_s() - cpu) / len(graph) * 1e3


def _cpu_s() -> float:
    """CPU of this process, in which server and worker are, and of the tasks."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _start_ms(client: Client, clock: Path) -> float:
    from hyperqueue import Job

    job = Job(default_workdir=clock.parent)
    job.program(["sh", "-c", "date +%s%N"], stdout=clock, stderr=None)
    began = time.time_ns()
    client.wait_for_jobs([client.submit(job)])
    return (int(clock.read_text()) - began) / 1e6


if __name__ == "__main__":
    main()
