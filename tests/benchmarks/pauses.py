"""The longest rounds among ten thousand nodes: with the interpreter's collections, and with the scheduler's own."""

from __future__ import annotations

import argparse
import time

from tests.benchmarks.report import Report
from vctl.core.clusters import PRIMARY, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import SIMULATED, Node
from vctl.core.resources import SCALE, whole_node
from vctl.daemon.collection import Collection
from vctl.scheduler.cycle import decide
from vctl.scheduler.queueing import Queue

NODES, ROUNDS = 10_000, 600


def run(options: argparse.Namespace) -> Report:
    """The same rounds twice."""
    report = Report(
        f"pauses: {options.rounds or ROUNDS} rounds of decide at {NODES} nodes, 20 jobs come in each"
    )
    plain = rounds(options.rounds or ROUNDS, None)
    own = rounds(options.rounds or ROUNDS, Collection())
    for name, taken in (("collected by the interpreter", plain), ("collected while idle", own)):
        ordered = sorted(taken[1:])  # the first one builds what the others use
        report.add(f"{name}: rounds", "ms CPU", taken)
        report.add(f"{name}: the 99th of a hundred", "ms CPU", ordered[len(ordered) * 99 // 100])
        report.add(f"{name}: the longest", "ms CPU", ordered[-1])
    return report


def rounds(count: int, collection: Collection | None) -> list[float]:
    """CPU milliseconds of each round; between two rounds there is a pause, as after most events of a real scheduler."""
    ledger = Ledger()
    for number in range(NODES):
        name = f"n{number:05d}"
        ledger.put_node(Node(name, "t", whole_node({"CPU": 64 * SCALE}, frozenset()), name, {}, SIMULATED))
    queue = Queue(PRIMARY)
    spec = ClusterSpec(groups=(Group((FixedNode({"CPU": SCALE}),) * 2, "SPREAD"),), flexible=False)
    taken: list[float] = []
    if collection is not None:
        collection.start()
        collection.settle()
    try:
        for turn in range(count):
            for number in range(20):
                job = turn * 20 + number + 1
                name = f"job-{job}"
                queue.put(PendingJob(job, name, PRIMARY, f"s{job % 50}", spec, {}, user="u"))
            began = time.process_time()
            plan = decide(ledger, {PRIMARY: queue}, now_ns=turn)
            taken.append((time.process_time() - began) * 1e3)
            for start in plan.starts:
                assert start.cluster is not None
                ledger.put_cluster(start.cluster)
                for vnode in start.vnodes:
                    ledger.assign(vnode)
                queue.drop(start.job.job_id)
            if collection is not None:
                collection.between(1.0)
    finally:
        if collection is not None:
            collection.stop()
    return taken
