"""Graphs of jobs and tasks, at once and one by one: submits per second, CPU per job or task of all processes together.

The jobs do nothing. So do the tasks without objects; each of the others makes an object, and some use one.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import vctl
from tests.benchmarks import hyperqueue
from tests.benchmarks.bed import Bed, bed
from tests.benchmarks.cost import supervisors_ns
from tests.benchmarks.report import Report
from tests.benchmarks.submits import settings_of
from tests.benchmarks.throughput import check, until_empty
from vctl.client.fields import BatchedJob, BatchedTask

Graph = list[list[int]]
"""For each job the numbers of those before it that it waits for."""
TURNS, SLOTS = 3, 2


def chain(jobs: int) -> Graph:
    """Each waits for the one before."""
    return [[number - 1] if number else [] for number in range(jobs)]


def fan(jobs: int) -> Graph:
    """One, all others after it, and one after all."""
    return [[], *([0] for _ in range(jobs - 2)), list(range(1, jobs - 1))]


def scattered(jobs: int) -> Graph:
    """Each waits for up to three of the hundred before it."""
    dice = random.Random(1)
    return [
        sorted(dice.sample(range(max(0, number - 100), number), min(number, dice.randint(0, 3))))
        for number in range(jobs)
    ]


def pairs(tasks: int) -> Graph:
    """Every second one waits for the one before."""
    return [[number - 1] if number % 2 else [] for number in range(tasks)]


TASKS = 400
GRAPHS = {"chain": (chain, 200), "fan-out": (fan, 500), "random DAG": (scattered, 1_000)}


def run(options: argparse.Namespace) -> Report:
    """In turns: each graph at once and job by job, and by HyperQueue as one batch where it is installed."""
    report = Report("dags: graphs of no-op jobs by one Python client, beside a scheduler with 2 slots")
    ways: dict[str, Callable[[Graph], tuple[float, float, float]]] = {
        "one by one": lambda graph: measured(graph, one_by_one),
        "submit_many": lambda graph: measured(graph, at_once),
    }
    if hyperqueue.IS_INSTALLED:
        ways["HyperQueue, one batch"] = lambda graph: hyperqueue.of_graph(SLOTS, graph)
    for name, (make, size) in GRAPHS.items():
        graph = make(options.jobs or size)
        samples: dict[str, list[tuple[float, float, float]]] = {}
        for _ in range(options.rounds or TURNS):
            for way, measure in ways.items():
                samples.setdefault(way, []).append(measure(graph))
        for at, (what, unit) in enumerate(
            (("submits", "per s"), ("until the last end", "s"), ("CPU per job", "ms"))
        ):
            for way, found in samples.items():
                figures = [len(graph) / one[0] if at == 0 else one[at] for one in found]
                base = None if way == "one by one" else f"{name} of {len(graph)}, {what}: one by one"
                report.add(f"{name} of {len(graph)}, {what}: {way}", unit, figures, base=base)
    for name, objects in (("tasks", False), ("tasks with objects", True)):
        graph = pairs(options.jobs or TASKS) if objects else [[] for _ in range(options.jobs or TASKS)]
        every: dict[str, Callable[[], float]] = {
            "one by one": lambda graph=graph, objects=objects: of_tasks(graph, objects=objects, many=False),
            "run_many": lambda graph=graph, objects=objects: of_tasks(graph, objects=objects, many=True),
        }  # type: ignore[misc]  # mypy takes the defaults for parameters
        if hyperqueue.IS_INSTALLED:
            every["HyperQueue, one batch"] = lambda graph=graph, objects=objects: hyperqueue.of_graph(  # type: ignore[misc]
                SLOTS, graph, objects=objects
            )[2]
        taken: dict[str, list[float]] = {}
        for _ in range(options.rounds or TURNS):
            for way, cpu in every.items():
                taken.setdefault(way, []).append(cpu())
        for way, figures in taken.items():
            base = None if way == "one by one" else f"{len(graph)} {name}, CPU per task: one by one"
            report.add(f"{len(graph)} {name}, CPU per task: {way}", "ms", figures, base=base)
    report.remark(
        "CPU: of the client, the scheduler, the supervisors and the jobs, from the first submit to the last end"
    )
    return report


def measured(graph: Graph, submit: Callable[[vctl.Client, Graph], None]) -> tuple[float, float, float]:
    """Seconds of the submits, seconds until the last end, and CPU milliseconds per job."""
    with bed() as place:
        place.add_nodes(1, {"CPU": SLOTS})
        with settings_of(place), place.daemon() as daemon:
            client = vctl.connect()
            cpu, began = time.process_time() + cpu_s(place, daemon.pid), time.perf_counter()
            submit(client, graph)
            submitted, own = time.perf_counter(), time.process_time()
            until_empty(place)
            ended = time.perf_counter()
            cpu = own + cpu_s(place, daemon.pid) - cpu
        check(place)
    return submitted - began, ended - began, cpu / len(graph) * 1e3


def of_tasks(graph: Graph, *, objects: bool, many: bool) -> float:
    """CPU milliseconds per task of a job with all slots."""
    with bed() as place:
        place.add_nodes(1, {"CPU": SLOTS})
        with settings_of(place), place.daemon() as daemon:
            client = vctl.connect()
            job = client.submit(["sleep", "1000"], num_cpus=SLOTS)
            while job.status() != "RUNNING":
                time.sleep(0.01)
            cpu = time.process_time() + cpu_s(place, daemon.pid)
            if many:
                client.tasks.run_many(tasks_of(graph, job.submission_id, objects=objects))
            else:
                for task in tasks_of(graph, job.submission_id, objects=objects):
                    client.tasks.run(**task)
            while (ended := client.summarize_tasks()["counts"]) != {"FINISHED": len(graph)}:
                if "FAILED" in ended:
                    (first, *_) = client.tasks.list(filters=["state=FAILED"])
                    raise RuntimeError(f"tasks failed: {ended}: {first['state_reason']}: {first['message']}")
                time.sleep(0.1)
            cpu = time.process_time() + cpu_s(place, daemon.pid) - cpu
            job.stop()
    return cpu / len(graph) * 1e3


def tasks_of(graph: Graph, job: str, *, objects: bool) -> Iterator[BatchedTask]:
    """The tasks of a graph; with objects, each makes one, and waits for those of the ones before it."""
    for number, awaited in enumerate(graph):
        if objects:
            yield {
                "command": ["sh", "-c", f"echo > $VCTL_OBJECT_DIR/o{number}"], "job": job, "outputs": [f"o{number}"],
                "inputs": [f"o{other}" for other in awaited],
            }  # fmt: skip
        else:
            yield {"command": ["true"], "job": job}


def cpu_s(place: Bed, daemon: int) -> float:
    """CPU seconds of the scheduler, of what it has started, of the supervisors, and of the jobs that have ended."""
    pids = {daemon, *supervisors_ns(str(place.home))}
    stats: dict[int, list[str]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            stats[int(name)] = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
    while more := {pid for pid, stat in stats.items() if int(stat[1]) in pids} - pids:
        pids |= more
    ticks = sum(int(one) for pid in pids & stats.keys() for one in stats[pid][11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def jobs_of(graph: Graph) -> Iterator[BatchedJob]:
    """The jobs of a graph, with ids by their numbers."""
    for number, awaited in enumerate(graph):
        yield {
            "entrypoint": ["true"], "submission_id": f"j{number}", "after": [f"ok:j{other}" for other in awaited],
        }  # fmt: skip


def one_by_one(client: vctl.Client, graph: Graph) -> None:
    """A submit for each job."""
    for job in jobs_of(graph):
        client.jobs.submit(**job)


def at_once(client: vctl.Client, graph: Graph) -> None:
    """One submit for all."""
    client.jobs.submit_many(jobs_of(graph))
