"""What commands cost where very many jobs wait and very many are over, as ratios to a directory with hardly any.

``fill`` makes such a state directory in seconds: real jobs, copied row by row in SQL.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import time
from pathlib import Path

from tests.benchmarks.bed import VCTL, Bed, bed
from tests.benchmarks.report import Report
from vctl.core import jobs as jb
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import SCALE
from vctl.ops import submitting
from vctl.ops.nodes import add
from vctl.spec.job_request import JobRequest
from vctl.store.entries import NEWEST, code_of, content_of
from vctl.store.store import Store

CPUS = (1, 2, 3, 4)
"""Sizes of the jobs; each is one shape."""
_NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"


DAY = 86_400 * 10**9
FINISHED = 200_000
PRUNED_S = 20.0
COMMANDS = {
    "submit": ["job", "submit", "--no-wait", "--num-cpus", "1", "--", "true"],
    "status": ["status"],
    "list events --limit 5": ["list", "events", "--limit", "5"],
    "summary jobs": ["summary", "jobs"],
    "job list": ["job", "list"],
    "doctor": ["doctor"],
}


def run(options: argparse.Namespace) -> Report:
    """CPU time of commands, the start of a daemon, and how long a submit waits while a prune runs."""
    queued = options.jobs or 100_000
    report = Report(f"crowd: {queued} queued and {FINISHED} finished jobs, against 4 queued ones")
    with bed() as empty, bed() as full:
        fill(empty.home)
        fill(full.home, queued=queued, finished=FINISHED)
        for name, words in COMMANDS.items():
            taken: dict[str, list[float]] = {"few": [], "many": []}
            for _ in range(options.rounds or 3):
                taken["few"].append(cpu_ms(empty, words))
                taken["many"].append(cpu_ms(full, words))
            report.add(f"{name}, few jobs", "ms CPU", taken["few"])
            report.add(f"{name}, many jobs", "ms CPU", taken["many"], base=f"{name}, few jobs")
        report.add("loading the queue at the start of a daemon", "ms CPU", load_ms(full.home))
        before = waits_while_pruned(full, prune=False)
        waits = waits_while_pruned(full)
        report.add("a submit while nothing else writes", "ms", before)
        report.add("the slowest of them", "ms", max(before))
        report.add(f"a submit in the first {PRUNED_S:g} s of a prune", "ms", waits)
        report.add("the slowest of those", "ms", max(waits))
    return report


def cpu_ms(place: Bed, words: list[str]) -> float:
    """User and system time of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([VCTL, *words], env=place.env, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def load_ms(home: Path) -> list[float]:
    """What a starting scheduler does with the tables."""
    from vctl.daemon.following import FollowedState

    found = []
    for _ in range(3):
        with Store.open(home) as store:
            began = time.process_time()
            FollowedState.load(store)
            found.append((time.process_time() - began) * 1e3)
    return found


def waits_while_pruned(place: Bed, *, prune: bool = True) -> list[float]:
    """Milliseconds of each submit through an open connection, while a process of its own forgets what is over."""
    waits: list[float] = []
    words = ["prune", "--older-than", "1h"] if prune else ["--version"]
    with Store.open(place.home) as store:
        pruning = subprocess.Popen([VCTL, *words], env=place.env, stdout=subprocess.DEVNULL)
        over_at = time.monotonic() + PRUNED_S
        while time.monotonic() < over_at and (not prune or pruning.poll() is None):
            began = time.perf_counter()
            submitting.submit(store, JobRequest(argv=("true",), cwd="/"), environment={})
            waits.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.01)
        pruning.terminate()  # some jobs are forgotten, the others are whole
        pruning.wait()
    return waits


def fill(home: Path, *, queued: int = 0, finished: int = 0, nodes: int = 1, cpus: int = 4) -> None:
    """One job of each size waits; then ``finished`` jobs that are over and ``queued`` more that wait are added."""
    with Store.open(home) as store:
        add(store, resources={"CPU": cpus * SCALE}, count=nodes)
        for size in CPUS:
            spec = ClusterSpec(groups=(Group((FixedNode({"CPU": size * SCALE}),)),), flexible=False)
            submitting.submit(
                store,
                JobRequest(argv=("sleep", "1000"), spec=spec, cwd="/"),
                environment={"PATH": os.environ["PATH"], "HOME": "/nowhere", "LANG": "C.UTF-8"},
            )
        with store.transaction():
            _copy(store, "ended", finished)
            _end(store)
            _copy(store, "queued", queued)
            _tell(store)


def _copy(store: Store, prefix: str, count: int) -> None:
    if not count:
        return
    columns = [row["name"] for row in store.rows("PRAGMA table_info(jobs)")]
    same = [name for name in columns if name not in ("job_id", "submission_id", "submitted_at")]
    first = (store.value("SELECT max(job_id) FROM jobs") or 0) + 1
    store.db.execute(
        f"{_NUMBERS} INSERT INTO jobs (job_id, submission_id, submitted_at, {', '.join(same)})"
        " SELECT ?2 + i - 1, printf('%s-%d', ?3, i),"
        f" submitted_at + i, {', '.join(same)} FROM n JOIN jobs ON job_id = 1 + i % {len(CPUS)}",
        (count, first, prefix),
    )


def _end(store: Store) -> None:
    """All copies made so far ran and are over, a day ago."""
    store.db.execute(
        "UPDATE jobs SET status = CASE job_id % 10 WHEN 0 THEN 'FAILED' ELSE 'SUCCEEDED' END,"
        " state_reason = CASE job_id % 10 WHEN 0 THEN 'NonZeroExit' END, exit_code = (job_id % 10 = 0),"
        " attempt = 1, submitted_at = submitted_at - ?2, started_at = submitted_at - ?2 + 1,"
        " ended_at = submitted_at - ?2 + 2, node_ids = '[\"sim-1\"]' WHERE job_id > ?1",
        (len(CPUS), DAY),
    )


def _tell(store: Store) -> None:
    """Write the history of all copies. The entries of their processes, which schedulers have read, are forgotten."""
    store.db.execute("UPDATE events SET at = at - ?", (DAY,))
    first: int = store.value(f"SELECT {NEWEST} + 1")
    failed: dict[str, object] = {"status": jb.FAILED, "exit_code": 1, "reason": jb.NON_ZERO_EXIT}
    for number, kind, moment, place, data, which in (
        (0, "job.submitted", "submitted_at", 0, {}, "1"),
        (1, "job.started", "started_at", 1, {"attempt": 1, "nodes": ["sim-1"]}, "attempt = 1"),
        (4, "job.ended", "ended_at", 1, {"status": jb.SUCCEEDED, "exit_code": 0}, "exit_code = 0"),
        (4, "job.ended", "ended_at", 1, failed, "exit_code = 1"),
    ):
        store.db.execute(
            "INSERT INTO events (seq, at, code, object_id, place, job_id, content)"
            f" SELECT ?1 + 5 * (job_id - ?2) + ?3, {moment}, ?4, submission_id, ?5, job_id, ?6 FROM jobs"
            f" WHERE job_id > ?2 AND {which}",
            (first, len(CPUS), number, code_of(kind, "job"), place, content_of(kind, data)),
        )
    store.db.execute("DELETE FROM changes")
    store.db.execute("UPDATE sqlite_sequence SET seq = (SELECT max(seq) FROM events) WHERE name = 'changes'")
    store.db.execute("UPDATE head SET base = (SELECT max(seq) FROM events)")
