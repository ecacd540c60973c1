"""Single submits of one Python client, one after the other: each is on disk when the call returns."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import vctl
from tests.benchmarks.bed import Bed, bed
from tests.benchmarks.report import Report
from tests.benchmarks.throughput import no_ops, until_empty

SUBMITS, TURNS = 1_000, 3
BASE = "into one open store, no scheduler"
FULL, RUNNING = "connect().jobs.submit, all slots are taken", "connect().jobs.submit, the jobs run at once"


def run(options: argparse.Namespace) -> Report:
    """In turns: without a scheduler, while one has no free slot, and while it runs what comes."""
    submits = options.jobs or SUBMITS
    report = Report(f"submits: {submits} single submits by one Python client, submits per second")
    contestants: dict[str, Callable[[], float]] = {
        BASE: lambda: without_scheduler(lambda place: place.submit_many(no_ops(submits))),
        "connect().jobs.submit, no scheduler": lambda: without_scheduler(
            lambda place: client(place, submits)
        ),
        FULL: lambda: with_scheduler(submits, full=True),
        RUNNING: lambda: with_scheduler(submits, full=False),
    }
    rates: dict[str, list[float]] = {}
    for _ in range(options.rounds or TURNS):
        for name, seconds in contestants.items():
            rates.setdefault(name, []).append(submits / seconds())
    for name, samples in rates.items():
        report.add(name, "per s", samples, base=None if name == BASE else BASE)
    report.remark(
        "each submit is on disk when the call returns; jobs that run share the CPUs with who submits"
    )
    return report


def without_scheduler(submit: Callable[[Bed], object]) -> float:
    """Seconds of the submits in a state directory of their own."""
    with bed() as place:
        place.add_nodes(1, {"CPU": 1})
        return seconds_of(lambda: submit(place))


def with_scheduler(submits: int, *, full: bool) -> float:
    """Seconds of the submits beside a scheduler, which has no free slot, or runs what is submitted."""
    with bed() as place:
        place.add_nodes(1, {"CPU": 2})
        with place.daemon():
            if full:
                place.vctl("job", "submit", "--no-wait", "-n", "2", "--", "sleep", "100000")
                while not place.running():
                    time.sleep(0.05)
            taken = seconds_of(lambda: client(place, submits))
            if full:
                place.end_all()
            until_empty(place)
    return taken


def client(place: Bed, submits: int) -> None:
    """A program that submits one job after the other."""
    with settings_of(place):
        jobs = vctl.connect().jobs
        for _ in range(submits):
            jobs.submit(["true"])


def seconds_of(do: Callable[[], object]) -> float:
    """How long something takes."""
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


@contextmanager
def settings_of(place: Bed) -> Iterator[None]:
    """The environment of this process, with the settings of a bed."""
    own = {name: value for name, value in place.env.items() if name.startswith("VCTL_")}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]
