"""Many jobs that do nothing, on two slots: how many a second, against the machine and the peers."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from typing import Any

from tests.benchmarks.bed import Bed, bed, which
from tests.benchmarks.report import Report

JOBS, SLOTS, TURNS = 1_000, 2, 3
FLOOR = "xargs -P2"


def run(options: argparse.Namespace) -> Report:
    """vctl and its peers in turns."""
    jobs, turns = options.jobs or JOBS, options.rounds or TURNS
    report = Report(f"throughput: {jobs} no-op jobs on {SLOTS} slots, jobs per second")
    rates: dict[str, list[float]] = {}
    for _ in range(turns):
        rates.setdefault(FLOOR, []).append(jobs / xargs(jobs))
        for name, seconds in vctl(jobs).items():
            rates.setdefault(name, []).append(jobs / seconds)
        if parallel := which("parallel"):
            rates.setdefault("parallel -j2", []).append(
                jobs / feed([parallel, f"-j{SLOTS}", "true", "#"], jobs)
            )
        if tsp := which("tsp", "ts"):
            rates.setdefault("tsp -S2", []).append(jobs / spool(tsp, jobs))
    for name, samples in rates.items():
        report.add(name, "per s", samples, base=None if name == FLOOR else FLOOR)
    for peer, found in (("GNU parallel", which("parallel")), ("task-spooler", which("tsp", "ts"))):
        if not found:
            report.remark(f"{peer} is not installed: no comparison")
    report.remark(
        "vctl: jobs come from one process with an open connection; every submit and every end is on disk"
    )
    return report


def xargs(jobs: int) -> float:
    """Seconds that xargs takes: starts processes and keeps nothing."""
    return feed(["xargs", f"-P{SLOTS}", "-n1", "true"], jobs)


def feed(command: list[str], jobs: int) -> float:
    """Seconds of a command that reads one line per job."""
    lines = "".join(f"{number}\n" for number in range(jobs)).encode()
    started = time.perf_counter()
    subprocess.run(command, input=lines, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def spool(tsp: str, jobs: int) -> float:
    """Seconds of task-spooler with a server of its own; it takes at most 900 waiting jobs or so."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TS_SOCKET": f"{folder}/socket", "TMPDIR": folder, "TS_MAXFINISHED": "10"}
        subprocess.run([tsp, "-S", str(SLOTS)], env=env, check=True)
        started = time.perf_counter()
        for number in range(jobs):
            subprocess.run([tsp, "-n", "true"], env=env, check=True, stdout=subprocess.DEVNULL)
            if number % 500 == 499:
                subprocess.run([tsp, "-w"], env=env, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([tsp, "-w"], env=env, check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - started
        subprocess.run([tsp, "-K"], env=env, check=True)
    return taken


def vctl(jobs: int) -> dict[str, float]:
    """Seconds of vctl: from the first submit to the last end, and of a full queue from the daemon's start."""
    found: dict[str, float] = {}
    with bed() as place:
        place.add_nodes(1, {"CPU": SLOTS})
        with place.daemon():
            started = time.perf_counter()
            place.submit_many(no_ops(jobs))
            until_empty(place)
            found["vctl, submitting and running"] = time.perf_counter() - started
    with bed() as place:
        place.add_nodes(1, {"CPU": SLOTS})
        started = time.perf_counter()
        place.submit_many(no_ops(jobs))
        found["vctl, submitting"] = time.perf_counter() - started
        started = time.perf_counter()
        with place.daemon():
            until_empty(place)
            found["vctl, running a full queue"] = time.perf_counter() - started
    return found


def no_ops(jobs: int) -> list[dict[str, Any]]:
    """Jobs that ask for one CPU and do nothing."""
    return [{"argv": ("true",), "cwd": "/"} for _ in range(jobs)]


def until_empty(place: Bed) -> None:
    """Return when nothing waits or runs; a look costs the daemon nothing."""
    from vctl.ops import jobs
    from vctl.store.store import Store

    with Store.open(place.home) as store:
        while jobs.list_jobs(store, limit=1)[1]:
            time.sleep(0.01)
        _, total = jobs.list_jobs(store, all=True, limit=1)
        failed, _ = jobs.list_jobs(store, all=True, filters=["status!=SUCCEEDED"])
    if failed:
        raise RuntimeError(f"{len(failed)} of {total} jobs did not succeed: {failed[0]['message']}")
