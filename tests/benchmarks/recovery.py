"""A daemon that is killed with a full queue: how soon the next job starts, whether anything is lost; and its memory."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.bed import VCTL, Bed, bed
from tests.benchmarks.crowd import CPUS, fill
from tests.benchmarks.report import Report
from vctl.ops import jobs
from vctl.store import job_views
from vctl.store.store import Store

RUNNING = 64
PATIENCE_S = 600.0


def run(options: argparse.Namespace) -> Report:
    """Single jobs of four shapes wait, 64 jobs of a higher priority run; then many jobs are over, and four wait."""
    few, rounds = options.jobs or 10_000, options.rounds or 5
    report = Report(f"recovery: kill -9 of a daemon with {RUNNING} running jobs, and its memory")
    with bed() as empty:
        empty.add_nodes(1, {"CPU": RUNNING})
        with empty.daemon() as daemon:
            idle = _settled_mib(empty, daemon)
    report.add("memory (PSS), nothing queued", "MiB", idle)
    for queued in (few, 10 * few):
        with bed() as place:
            _queue(place, queued)
            starts = [_next_start_ms(place) for _ in range(rounds)]
            report.add(f"{queued} queued, a daemon to its next start", "ms", starts)
            with Store.open(place.home) as store:
                states = job_views.counts_by_status(store)
            kept = sum(states.get(state, 0) for state in ("PENDING", "RUNNING", "STOPPED"))
            report.add(f"{queued} queued, lost", "jobs", queued + len(CPUS) + RUNNING - kept)
            with place.daemon() as daemon:
                report.add(f"{queued} queued, memory (PSS)", "MiB", _settled_mib(place, daemon))
                place.end_all()
    with bed() as place:
        finished = 100 * few
        fill(place.home, finished=finished)
        report.add(
            f"{finished} finished, a daemon to its next start",
            "ms",
            [_next_start_ms(place) for _ in range(3)],
        )
        with place.daemon():
            place.end_all()
    return report


def _queue(place: Bed, queued: int) -> None:
    """Have 64 jobs run on a node of 64 CPUs, and so many wait behind them; the daemon is killed."""
    fill(place.home, queued=queued, cpus=RUNNING)
    words = (
        "job",
        "submit",
        "--no-wait",
        "--priority",
        "9",
        "--array",
        f"1-{RUNNING}",
        "--",
        "sleep",
        "9999",
    )
    place.vctl(*words)
    with place.daemon() as daemon:
        _until(lambda: len(place.running()) == RUNNING)
        daemon.kill()
        daemon.wait()


def _next_start_ms(place: Bed) -> float:
    """Milliseconds from the start of a daemon to the start of the next job, for which others are ended. Kills it."""
    newest = "SELECT max(started_at) FROM jobs WHERE status = 'RUNNING'"
    with Store.open(place.home) as store:
        running, _ = jobs.list_jobs(store, filters=["status=RUNNING"], limit=max(CPUS))
        for job in running:
            jobs.stop(store, job["submission_id"], grace_s=0)
        with open(place.home / "benchmark-daemon.log", "ab") as log:
            began = time.time_ns()
            daemon = subprocess.Popen([VCTL, "daemon"], env=place.env, stdout=log, stderr=log, stdin=log)
        try:
            _until(lambda: (store.value(newest) or 0) > began)
        finally:
            daemon.kill()
            daemon.wait()
        started: int = store.value(newest)
    return (started - began) / 1e6


def _settled_mib(place: Bed, daemon: subprocess.Popen[bytes]) -> float:
    """Proportional memory of a daemon that has nothing more to do."""
    rounds = -1
    while (now := place.scheduler()["rounds"]) != rounds:
        rounds = now
        time.sleep(4)
    lines = Path(f"/proc/{daemon.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up:
            raise RuntimeError("nothing starts")
        time.sleep(0.002)
