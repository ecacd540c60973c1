"""Decisions for gangs of 64 among ten thousand nodes: what one costs beside a bare loop over the nodes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from tests.benchmarks.report import Report
from vctl.core.clusters import PRIMARY, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import SIMULATED, Node
from vctl.core.resources import SCALE, whole_node
from vctl.daemon.collection import Collection
from vctl.scheduler.cycle import decide
from vctl.scheduler.queueing import Queue

NODES, SIZE, DECISIONS, LIVE = 10_000, 64, 10_000, 100
LOOP = "a bare loop over the nodes"
T = TypeVar("T")
POLICIES = ("PACK", "SPREAD", "STRICT_SPREAD")


def run(options: argparse.Namespace) -> Report:
    """Each policy on a machine of its own; the loop in turns with the decisions."""
    count = options.rounds or DECISIONS
    report = Report(f"decisions: {count} gangs of {SIZE} at {NODES} nodes, {LIVE} of them run at a time")
    collection = Collection()
    collection.start()
    loops: list[float] = []
    try:
        for policy in POLICIES:
            taken = []
            for milliseconds, ledger in decisions(NODES, policy, count // len(POLICIES)):
                taken.append(milliseconds)
                loops.append(timed(partial(_loop, ledger))[0])
                if len(taken) == LIVE:
                    collection.settle()
                collection.between(1.0)
            report.add(
                f"{policy}: a decision", "ms CPU", taken[1:], base=LOOP
            )  # the first one builds the index
            report.add(f"{policy}: the longest", "ms CPU", max(taken[1:]))
    finally:
        collection.stop()
    report.add(LOOP, "ms CPU", loops)
    return report


def decisions(nodes: int, policy: str, count: int, live: int = LIVE) -> Iterator[tuple[float, Ledger]]:
    """CPU milliseconds of one decision after the other; what is started stays until ``live`` others were."""
    ledger = Ledger()
    for number in range(nodes):
        name = f"n{number:05d}"
        ledger.put_node(Node(name, "t", whole_node({"CPU": 64 * SCALE}), name, {}, SIMULATED))
    queue = Queue(PRIMARY)
    spec = ClusterSpec(groups=(Group((FixedNode({"CPU": SCALE}),) * SIZE, policy),), flexible=False)
    running: list[str] = []
    for number in range(1, count + 1):
        queue.put(PendingJob(number, f"job-{number}", PRIMARY, "s", spec, {}, user="u"))
        milliseconds, plan = timed(partial(decide, ledger, {PRIMARY: queue}, now_ns=number, keeps=True))
        (start,) = plan.starts
        assert start.cluster is not None
        assert plan.trial is not None
        assert plan.trial.settle(number, start.cluster, start.vnodes)
        queue.drop(number)
        running.append(start.cluster_id)
        if len(running) > live:
            ledger.remove_cluster(running.pop(0))
        yield milliseconds, ledger


def timed(what: Callable[[], T]) -> tuple[float, T]:
    """CPU milliseconds of a call, and its answer."""
    began = time.thread_time()
    found = what()
    return (time.thread_time() - began) * 1e3, found


def _loop(ledger: Ledger) -> int:
    return sum(1 for _ in ledger.nodes)
