"""A list of ten thousand waiting jobs, for people and for programs, against what is installed beside vctl."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

from tests.benchmarks import slurm
from tests.benchmarks.bed import VCTL, bed, interleaved
from tests.benchmarks.report import Report
from tests.benchmarks.startup import BASE

JOBS = 10_000
SQUEUE = "squeue -r"


def run(options: argparse.Namespace) -> Report:
    """Everything listed; the scheduler of vctl runs, as it would where so many jobs wait."""
    jobs = options.jobs or JOBS
    report = Report(f"lists: {jobs} waiting jobs, wall time of one command")
    with bed() as place, ExitStack() as peers:
        place.add_nodes(1, {"CPU": 2})
        with place.daemon():
            place.vctl(
                "job",
                "submit",
                "--no-wait",
                "--begin",
                "2099-01-01T00:00",
                "--array",
                f"1-{jobs}",
                "--",
                "true",
            )
            words = (f"job list --members --limit {jobs}", "job list --members -o json", "job list")
            commands = {BASE: [sys.executable, "-c", "pass"]}
            commands |= {f"vctl {line}": [VCTL, *line.split()] for line in words}
            env = dict(place.env)
            if slurm.IS_INSTALLED:
                commands[SQUEUE] = SQUEUE.split()
                env |= peers.enter_context(slurm.waiting(jobs))
            taken = interleaved(options.rounds or 15, commands, env)
    for name, samples in taken.items():
        report.add(name, "ms", samples, base=None if name == BASE else BASE)
    if not slurm.IS_INSTALLED:
        report.remark("Slurm is not installed, or this is not root: no comparison with squeue")
    return report
