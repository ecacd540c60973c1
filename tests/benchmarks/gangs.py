"""Gangs of two nodes on 64 nodes: how many a second, as one command each and with a process on every node."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from tests.benchmarks import hyperqueue
from tests.benchmarks.report import Report
from tests.benchmarks.throughput import array, vctl

NODES, JOBS, TURNS = 64, 1_000, 3
PEER = "HyperQueue, n_nodes=2"


def run(options: argparse.Namespace) -> Report:
    """vctl and HyperQueue in turns."""
    jobs = options.jobs or JOBS
    report = Report(f"gangs: {jobs} no-op gangs of 2 nodes on {NODES} nodes, gangs per second")
    contestants: dict[str, Callable[[], float]] = {
        "vctl --nodes 2": partial(_vctl, jobs),
        "vctl --nodes 2 --per-node": partial(_vctl, jobs, "--per-node"),
    }
    if hyperqueue.IS_INSTALLED:
        contestants = {PEER: partial(hyperqueue.seconds, NODES, jobs, "gangs"), **contestants}
    else:
        report.remark("HyperQueue (pip install hyperqueue) is not installed: no comparison")
    rates: dict[str, list[float]] = {}
    for _ in range(options.rounds or TURNS):
        for name, seconds in contestants.items():
            rates.setdefault(name, []).append(jobs / seconds())
    for name, samples in rates.items():
        report.add(name, "per s", samples, base=PEER if PEER in rates and name != PEER else None)
    report.remark("both run the command of a gang on its first node; with --per-node vctl runs it on both")
    return report


def _vctl(jobs: int, *options: str) -> float:
    return vctl(
        jobs, 1, lambda place, count: array(place, count, "--nodes", "2", "-n", "1", *options), nodes=NODES
    )
