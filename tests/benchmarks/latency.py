"""From the stamp of a submit to the first thing its process does, on an idle daemon."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.benchmarks import hyperqueue
from tests.benchmarks.bed import VCTL, Bed, bed, wall_ms, which
from tests.benchmarks.report import Report


def run(options: argparse.Namespace) -> Report:
    """One job after the other; each prints the clock as its first act."""
    report = Report("latency: one job at a time on an idle daemon")
    to_start: list[float] = []
    from_command: list[float] = []
    to_end: list[float] = []
    floor: list[float] = []
    with bed() as place:
        place.add_nodes(1, {"CPU": 4})
        with place.daemon():
            one(place)
            for _ in range(options.rounds or 50):
                command, started, ended = one(place)
                from_command.append(command)
                to_start.append(started)
                to_end.append(ended)
                floor.append(wall_ms(["sh", "-c", "date +%s%N"]))
    report.add("sh -c date, started by hand", "ms", floor)
    rounds = options.rounds or 50
    if tsp := which("tsp", "ts"):
        spooled = task_spooler(tsp, rounds)
        report.add("tsp: command -> job reads the clock", "ms", spooled, base="sh -c date, started by hand")
    if hyperqueue.IS_INSTALLED:
        started = hyperqueue.to_start_ms(rounds)
        report.add(
            "HyperQueue: submit -> job reads the clock", "ms", started, base="sh -c date, started by hand"
        )
    report.add("submitted_at -> job reads the clock", "ms", to_start, base="sh -c date, started by hand")
    report.add("command -> job reads the clock", "ms", from_command, base="sh -c date, started by hand")
    report.add("submitted_at -> ended_at", "ms", to_end)
    report.remark(
        f"submitted by {VCTL.rsplit('/', 1)[-1]} job submit --no-wait; its own start is in `startup`"
    )
    return report


def task_spooler(tsp: str, rounds: int) -> list[float]:
    """Milliseconds from the start of its command to the job's first clock reading, with a server of its own."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TS_SOCKET": f"{folder}/socket", "TMPDIR": folder}
        clock = Path(folder) / "clock"
        for _ in range(rounds + 1):
            began = time.time_ns()
            subprocess.run(
                [tsp, "-n", "sh", "-c", f"date +%s%N > {clock}"], env=env, check=True, capture_output=True
            )
            subprocess.run([tsp, "-w"], env=env, check=True)
            found.append((int(clock.read_text()) - began) / 1e6)
        subprocess.run([tsp, "-K"], env=env, check=True)
    return found[1:]  # the first one starts the server


def one(place: Bed) -> tuple[float, float, float]:
    """Milliseconds from the command and from the submit's stamp to the job's first clock reading, and to its end."""
    began = time.time_ns()
    submission = place.vctl("job", "submit", "--no-wait", "--", "sh", "-c", "date +%s%N").strip()
    place.vctl("job", "wait", submission)
    time.sleep(0.02)  # idle again
    job = place.read("job", "status", submission)
    submitted_ns = nanoseconds(job["submitted_at"])
    first_ns = int(place.vctl("job", "logs", submission))
    ended_ns = nanoseconds(job["ended_at"])
    return (first_ns - began) / 1e6, (first_ns - submitted_ns) / 1e6, (ended_ns - submitted_ns) / 1e6


def nanoseconds(stamp: str) -> int:
    """An ISO time as nanoseconds since the epoch; exact to the microsecond."""
    moment = datetime.fromisoformat(stamp)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1_000
