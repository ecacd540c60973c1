"""Many jobs that do nothing, on 2 and on 64 slots: how many a second, against the machine and the peers."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks import hyperqueue, slurm
from tests.benchmarks.bed import Bed, bed, which
from tests.benchmarks.report import Report
from vctl.ops.jobs import list_jobs
from vctl.store.store import Store

JOBS, SLOTS, TURNS = 1_000, (2, 64), 3
FLOOR, SLURM = "xargs -P", "Slurm, one array"
_ANY_LEFT = (
    "SELECT EXISTS (SELECT 1 FROM jobs WHERE status = 'PENDING')"
    " OR EXISTS (SELECT 1 FROM jobs WHERE status = 'RUNNING')"
)
MISSING = {
    "GNU parallel": lambda: which("parallel") is None,
    "task-spooler": lambda: which("tsp", "ts") is None,
    "HyperQueue (pip install hyperqueue)": lambda: not hyperqueue.IS_INSTALLED,
    "Slurm (and root)": lambda: not slurm.IS_INSTALLED,
}


def run(options: argparse.Namespace) -> Report:
    """vctl and its peers in turns."""
    jobs, turns = options.jobs or JOBS, options.rounds or TURNS
    report = Report(f"throughput: {jobs} no-op jobs, jobs per second")
    for slots in SLOTS:
        rates: dict[str, list[float]] = {}
        for _ in range(turns):
            for name, seconds in contestants(slots).items():
                count = min(jobs, slurm.MOST_JOBS) if name == SLURM else jobs
                rates.setdefault(f"{name}, {slots} slots", []).append(count / seconds(count))
        for name, samples in rates.items():
            floor = f"{FLOOR}, {slots} slots"
            report.add(name, "per s", samples, base=None if name == floor else floor)
    for peer, is_missing in MISSING.items():
        if is_missing():
            report.remark(f"{peer} is not installed: no comparison")
    if slurm.IS_INSTALLED and jobs > slurm.MOST_JOBS:
        report.remark(
            f"Slurm runs {slurm.MOST_JOBS} jobs only, which take it seconds; it writes its state some seconds later"
        )
    report.remark("vctl: every submit and every end is on disk; single jobs come from one open connection")
    return report


def contestants(slots: int) -> dict[str, Callable[[int], float]]:
    """Each with the seconds that it takes for so many jobs."""
    found: dict[str, Callable[[int], float]] = {
        FLOOR: lambda jobs: xargs(jobs, slots),
        "vctl, one array": lambda jobs: vctl(jobs, slots, array),
        "vctl, single jobs": lambda jobs: vctl(jobs, slots, singles),
    }
    if hyperqueue.IS_INSTALLED:
        found["HyperQueue, one batch"] = lambda jobs: hyperqueue.seconds(slots, jobs, "array")
        found["HyperQueue, single jobs"] = lambda jobs: hyperqueue.seconds(slots, jobs, "single")
    if parallel := which("parallel"):
        found["parallel -j"] = lambda jobs: feed([parallel, f"-j{slots}", "true", "#"], jobs)
    if tsp := which("tsp", "ts"):
        found["tsp -S"] = lambda jobs: spool(tsp, jobs, slots)
    if slurm.IS_INSTALLED:
        found[SLURM] = lambda jobs: slurm.seconds(slots, jobs)
    return found


def xargs(jobs: int, slots: int) -> float:
    """Seconds that xargs takes: starts processes and keeps nothing."""
    return feed(["xargs", f"-P{slots}", "-n1", "true"], jobs)


def feed(command: list[str], jobs: int) -> float:
    """Seconds of a command that reads one line per job."""
    lines = "".join(f"{number}\n" for number in range(jobs)).encode()
    started = time.perf_counter()
    subprocess.run(command, input=lines, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def spool(tsp: str, jobs: int, slots: int) -> float:
    """Seconds of task-spooler with a server of its own; it takes at most 900 waiting jobs or so."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TS_SOCKET": f"{folder}/socket", "TMPDIR": folder, "TS_MAXFINISHED": "10"}
        subprocess.run([tsp, "-S", str(slots)], env=env, check=True)
        started = time.perf_counter()
        for number in range(jobs):
            subprocess.run([tsp, "-n", "true"], env=env, check=True, stdout=subprocess.DEVNULL)
            if number % 500 == 499:
                subprocess.run([tsp, "-w"], env=env, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([tsp, "-w"], env=env, check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - started
        subprocess.run([tsp, "-K"], env=env, check=True)
    return taken


def vctl(jobs: int, slots: int, submit: Callable[[Bed, int], None], *, nodes: int = 1) -> float:
    """Seconds of vctl from the first submit to the last end; its scheduler runs already. ``slots``: those of a node."""
    with bed() as place:
        place.add_nodes(nodes, {"CPU": slots})
        with place.daemon():
            started = time.perf_counter()
            submit(place, jobs)
            until_empty(place)
            taken = time.perf_counter() - started
            check(place)
    return taken


def array(place: Bed, jobs: int, *options: str) -> None:
    """One command that submits all and returns when the last one has ended, as xargs does."""
    place.vctl("job", "submit", "--array", f"1-{jobs}", *options, "--", "true")


def singles(place: Bed, jobs: int) -> None:
    """A transaction for each job."""
    place.submit_many(no_ops(jobs))


def no_ops(jobs: int) -> list[dict[str, Any]]:
    """Jobs that ask for one CPU and do nothing."""
    return [{"argv": ("true",), "cwd": "/"} for _ in range(jobs)]


def until_empty(place: Bed) -> None:
    """Return when nothing waits or runs. A look takes microseconds, so that it slows down nobody."""
    with Store.open(place.home) as store:
        while store.value(_ANY_LEFT):
            time.sleep(0.01)


def check(place: Bed) -> None:
    """All jobs have succeeded."""
    with Store.open(place.home) as store:
        _, total = list_jobs(store, all=True, limit=1)
        failed, _ = list_jobs(store, all=True, filters=["status!=SUCCEEDED"])
    if failed:
        raise RuntimeError(f"{len(failed)} of {total} jobs did not succeed: {failed[0]['message']}")
