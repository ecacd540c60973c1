"""A thousand nodes, ten thousand waiting jobs of many shapes: what a change and what a look costs."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from typing import Any

from tests.benchmarks.bed import VCTL, Bed, bed, interleaved, wall_ms
from tests.benchmarks.latency import nanoseconds
from tests.benchmarks.report import Report

NODES, JOBS, BLOCKS = 1_000, 10_000, 12
WHOLE_NODE = {"CPU": 8, "memory": "16GiB"}
GIB = 1 << 30


def run(options: argparse.Namespace) -> Report:
    """Fill the cluster, queue the jobs, end one block after the other, and watch the rounds that follow."""
    jobs = options.jobs or JOBS
    shapes = list(itertools.product(range(1, 9), range(1, 15)))
    report = Report(f"scale: {NODES} simulated nodes, {jobs} queued jobs of {len(shapes)} shapes")
    with bed() as empty, bed() as full:
        empty.add_nodes(1, WHOLE_NODE)
        full.add_nodes(NODES, WHOLE_NODE)
        with full.daemon():
            blocks = occupy(full)
            started = time.perf_counter()
            full.submit_many([request(*shapes[number % len(shapes)]) for number in range(jobs)])
            report.add("submits through one open connection", "per s", jobs / (time.perf_counter() - started))
            settle(full)
            rounds, handovers = end_one_by_one(full, blocks)
            report.add("last_round_ms after a job ended", "ms", rounds)
            report.add("a job ended -> the next one started", "ms", handovers)
            with empty.daemon():
                watch = {"vctl status": [VCTL, "status"], "vctl job list": [VCTL, "job", "list"]}
                for name, command in watch.items():
                    base = f"{name}, empty"
                    report.add(
                        base, "ms", interleaved(options.rounds or 10, {name: command}, empty.env)[name]
                    )
                    taken = interleaved(options.rounds or 10, {name: command}, full.env)[name]
                    report.add(f"{name}, full", "ms", taken, base=base)
            every_job = [wall_ms([VCTL, "job", "list", "-o", "json"], full.env) for _ in range(3)]
            report.add("vctl job list -o json, every job", "ms", every_job)
            full.end_all()
    return report


def occupy(place: Bed) -> list[str]:
    """Take every node whole: some blocks of one node to be ended later, and one gang of all the rest."""
    spec = {"fixed_size_nodes": [{"nodes": [{"resources": WHOLE_NODE}]}]}
    hold = ["--no-wait", "--priority", "100", "--virtual-cluster"]
    blocks = [
        place.vctl("job", "submit", *hold, json.dumps(spec), "--", "sleep", "100000").strip()
        for _ in range(BLOCKS)
    ]
    rest = {"fixed_size_nodes": [{"nodes": [{"resources": WHOLE_NODE}] * (NODES - BLOCKS)}]}
    place.vctl("job", "submit", *hold, json.dumps(rest), "--", "sleep", "100000")
    while len(place.running()) < BLOCKS + 1:
        time.sleep(0.05)
    return blocks


def request(cpus: int, gib: int) -> dict[str, Any]:
    """A job of one of the shapes; what starts stays, so that the queue does not run dry."""
    from vctl.core.clusters import ClusterSpec, FixedNode, Group
    from vctl.core.resources import SCALE

    size = {"CPU": cpus * SCALE, "memory": gib * GIB * SCALE}
    return {
        "argv": ("sleep", "100000"),
        "spec": ClusterSpec(groups=(Group((FixedNode(size),)),), flexible=False),
        "cwd": "/",
    }


def settle(place: Bed) -> None:
    """Wait until the scheduler has looked at everything: no more rounds for a moment."""
    before = -1
    while (now := place.scheduler()["rounds"]) != before:
        before = now
        time.sleep(0.5)


def end_one_by_one(place: Bed, blocks: list[str]) -> tuple[list[float], list[float]]:
    """Stop each block; collect the round that followed and the time until its room was used again."""
    rounds: list[float] = []
    handovers: list[float] = []
    for block in blocks:
        running = {job["submission_id"] for job in place.running()}
        place.vctl("job", "stop", block)
        place.vctl("job", "wait", block, check=False)
        settle(place)
        rounds.append(place.scheduler()["last_round_ms"])
        ended = nanoseconds(place.read("job", "status", block)["ended_at"])
        fresh = [
            nanoseconds(job["started_at"]) for job in place.running() if job["submission_id"] not in running
        ]
        handovers.append((min(fresh) - ended) / 1e6)
    return rounds, handovers
