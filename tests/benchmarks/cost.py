"""What a job that does nothing costs: statements, CPU of scheduler and supervisors; an array, on 2 and 64 slots.

``python -m tests.benchmarks.cost SLOTS JOBS cpu|statements|profile`` measures one of them in its own process.
"""

from __future__ import annotations

import argparse
import collections
import cProfile
import json
import os
import pstats
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.report import Report
from tests.benchmarks.throughput import xargs
from vctl.daemon.collection import Collection
from vctl.daemon.scheduler import Scheduler
from vctl.ops import nodes, submitting
from vctl.runtime import processes
from vctl.runtime.supervisor import NAME
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.spec.quantities import parse_resources
from vctl.store.store import Store

JOBS, SLOTS, TURNS = 2_000, (2, 64), 3
_LOOK_S = 0.05
_VALUE = re.compile(r"'[^']*'|\b\d+(\.\d+)?\b")


def run(options: argparse.Namespace) -> Report:
    """CPU in turns with xargs, and the statements once."""
    jobs, turns = options.jobs or JOBS, options.rounds or TURNS
    report = Report(f"cost: an array of {jobs} no-op jobs, per job")
    taken: dict[str, list[float]] = {}
    for _ in range(turns):
        taken.setdefault("xargs -P2 and its jobs", []).append(xargs_cpu_ms(jobs))
        for slots in SLOTS:
            for name, figure in measured(slots, jobs, "cpu").items():
                taken.setdefault(f"{name}, {slots} slots", []).append(figure)
    for name, samples in taken.items():
        report.add(name, "per s" if name.startswith("jobs") else "CPU ms", samples)
    for slots in SLOTS:
        counted = measured(slots, jobs, "statements")
        report.add(f"statements, {slots} slots", "n", sum(counted.values()))
    report.remark(
        "statements: by SQLite's trace, those of triggers included. The least CPU is the truest figure"
    )
    return report


def xargs_cpu_ms(jobs: int) -> float:
    """CPU per job of xargs and what it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    xargs(jobs, 2)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / jobs * 1e3


def measured(slots: int, jobs: int, mode: str) -> dict[str, float]:
    """Measure in another process; the supervisors are watched from here."""
    with tempfile.TemporaryDirectory(prefix="vctl-bench-") as home:
        words = [sys.executable, "-m", __spec__.name, str(slots), str(jobs), mode, home]
        supervisors: dict[int, int] = {}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                supervisors |= supervisors_ns(home)
                time.sleep(_LOOK_S)
            assert process.stdout is not None
            found: dict[str, float] = json.loads(process.stdout.read())
    if mode == "cpu":
        found["supervisors"] = sum(supervisors.values()) / jobs / 1e6
    return found


def supervisors_ns(home: str) -> dict[int, int]:
    """Pid -> CPU time of each supervisor of a state directory."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and processes.name(int(name)) == NAME:
            try:
                if processes.command(int(name))[-1:] == [os.fsencode(home)]:
                    found[int(name)] = int(Path(f"/proc/{name}/schedstat").read_text().split()[0])
            except OSError:
                continue  # ended meanwhile
    return found


def main() -> None:
    """Run an array with a scheduler in this process and print what it took."""
    slots, jobs, mode, home = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    with tempfile.TemporaryDirectory(prefix="vctl-bench-") as spare:
        counted: collections.Counter[str] = collections.Counter()
        profile = cProfile.Profile(time.thread_time) if mode == "profile" else None
        cpu_s, wall_s = carried_out(Path(*home or [spare]), slots, jobs, counted, profile, mode)
    if profile is not None:
        pstats.Stats(profile).sort_stats(os.environ.get("SORT", "tottime")).print_stats(
            int(os.environ.get("TOP", "70"))
        )
    elif mode == "statements":
        json.dump({text: number / jobs for text, number in counted.most_common()}, sys.stdout, indent=1)
    else:
        json.dump({"scheduler": cpu_s / jobs * 1e3, "jobs per s": jobs / wall_s}, sys.stdout)


def carried_out(
    home: Path,
    slots: int,
    jobs: int,
    counted: collections.Counter[str],
    profile: cProfile.Profile | None,
    mode: str,
) -> tuple[float, float]:
    """CPU and wall seconds of the scheduler, from its first turn until all jobs are over."""
    with Store.open(home) as store:
        total = dict(parse_resources({"CPU": slots}, "resources"))
        nodes.add(store, resources=total, node_id="n", template="t")
        request = JobRequest(argv=("true",), submission_id="a", array=parse_array(f"1-{jobs}"), cwd="/")
        # What a command has: its size counts, as each process is given it.
        own = {name: text for name, text in os.environ.items() if not name.startswith("VCTL_")}
        submitting.submit(store, request, environment=own)
        scheduler = Scheduler(store, kind="foreground", local_node=False)
        collection = Collection()
        collection.start()
        scheduler.start()
        collection.settle()
        if mode == "statements":
            store.db.set_trace_callback(lambda text: counted.update([_VALUE.sub("?", text)[:120]]))
        poll = select.poll()
        for descriptor in (scheduler.watch, scheduler.runtime):
            poll.register(descriptor.fileno(), select.POLLIN)
        began, cpu = time.perf_counter(), time.process_time()
        if profile is not None:
            profile.enable()
        while True:
            scheduler.turn()
            if (state := scheduler.state) is not None and not state.runs and not state.parent_of:
                break
            sleep_s = scheduler.sleep_s()
            collection.between(sleep_s)
            poll.poll(sleep_s * 1000)
        if profile is not None:
            profile.disable()
        taken = time.process_time() - cpu, time.perf_counter() - began
        store.db.set_trace_callback(None)
        time.sleep(2 * _LOOK_S)  # for a last look at the supervisors
        collection.stop()
        scheduler.close()
    return taken


if __name__ == "__main__":
    main()
