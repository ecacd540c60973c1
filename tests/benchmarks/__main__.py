"""Entry point of the benchmarks: runs the named ones (default: all), prints tables and ratios, or JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import (
    cost,
    crowd,
    dags,
    decisions,
    elastic,
    gangs,
    large,
    latency,
    lists,
    management,
    million,
    pauses,
    recovery,
    scale,
    startup,
    submits,
    throughput,
)
from tests.benchmarks.report import Report

BENCHMARKS: dict[str, Callable[[argparse.Namespace], Report]] = {
    "startup": startup.run,
    "latency": latency.run,
    "scale": scale.run,
    "large": large.run,
    "management": management.run,
    "throughput": throughput.run,
    "submits": submits.run,
    "dags": dags.run,
    "gangs": gangs.run,
    "elastic": elastic.run,
    "lists": lists.run,
    "cost": cost.run,
    "crowd": crowd.run,
    "million": million.run,
    "pauses": pauses.run,
    "recovery": recovery.run,
    "decisions": decisions.run,
}

MARK = "<!-- measured -->"
"""What stands below it in a page is written by ``--page``."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--page", metavar="FILE", help="write the tables into this page, below its mark")
    parser.add_argument(
        "--rounds", type=int, help="samples per figure, instead of each benchmark's own number"
    )
    parser.add_argument(
        "--jobs", type=int, help="size of a queue or a batch, instead of each benchmark's own"
    )
    parser.add_argument(
        "--row",
        metavar="TEXT",
        help="of elastic: only rows with this in their name; of large: only this kind (`whole nodes`, `elastic`,"
        " `one cluster`), or L: at ten times the size, too",
    )
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if options.page and not Path(options.page).is_file():
        parser.error(
            f"--page: there is no file {options.page}, whose part below {MARK} would be written anew"
        )
    reports: dict[str, Report] = {}
    for name in options.names or BENCHMARKS:
        print(f"{name} …", file=sys.stderr, flush=True)
        reports[name] = BENCHMARKS[name](options)
        if not options.json:
            print(f"\n{reports[name].text()}\n", flush=True)
    machine = {
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
    }
    if options.page:
        page = Path(options.page)
        said = ", ".join(f"{name} {value}" for name, value in machine.items())
        tables = "\n\n".join(report.markdown() for report in reports.values())
        page.write_text(f"{page.read_text().partition(MARK)[0]}{MARK}\n\nMeasured with {said}.\n\n{tables}\n")
    if options.json:
        results = {name: report.data() for name, report in reports.items()}
        print(json.dumps({"machine": machine, "benchmarks": results}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
