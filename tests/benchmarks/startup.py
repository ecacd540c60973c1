"""What one command costs from a cold process, against a bare Python."""

from __future__ import annotations

import argparse
import sys

from tests.benchmarks.bed import VCTL, bed, interleaved, which
from tests.benchmarks.report import Report

BASE = "python -c pass"


def run(options: argparse.Namespace) -> Report:
    """Cold starts, interleaved; the queue is empty. With a scheduler, commands are handed to its command server."""
    report = Report("startup: wall time of one command, cold process")
    with bed() as place:
        place.add_nodes(1, {"CPU": 64})
        words = ("status -o json", "ps -o json", "job submit --no-wait -- true", "status", "ps")
        commands = {BASE: [sys.executable, "-c", "pass"], "vctl --version": [VCTL, "--version"]}
        commands |= {f"vctl {line}": [VCTL, *line.split()] for line in words}
        alone = {f"vctl {line}, no scheduler": ["env", "VCTL_DEBUG=1", VCTL, *line.split()] for line in words}
        if tsp := which("tsp", "ts"):
            commands["tsp"] = [tsp, "true"]
        else:
            report.remark("task-spooler is not installed: no comparison with tsp")
        with place.daemon():
            taken = interleaved(options.rounds or 20, commands | alone, place.env)
            place.end_all()
    for name, samples in taken.items():
        report.add(name, "ms", samples, base=None if name == BASE else BASE)
    return report
