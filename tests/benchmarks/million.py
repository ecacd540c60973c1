"""Lists, prune, doctor and backup of a directory where very many jobs are over: ``--jobs 1000000`` for a million.

Each list is asked for ten entries, as CPU time of the question inside a process that has the tables open, the way
``vctl serve`` and a Python client ask; beside it a few whole commands.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.bed import VCTL, Bed, bed
from tests.benchmarks.crowd import cpu_ms, fill
from tests.benchmarks.report import Report
from vctl.ops import jobs, submitting, tasks, views
from vctl.spec.job_request import JobRequest
from vctl.store.store import Store

JOBS = 100_000
QUEUED = 1_000
USERS = 20
MEMBERS = 100
"""Every tenth hundred of the finished jobs is one array."""
LIMIT = 10
_OVER = {"all": True, "limit": LIMIT}
COMMANDS = {
    "vctl job list": ["job", "list"],
    "vctl job list -a --limit 10": ["job", "list", "-a", "--limit", "10"],
    "vctl job list -a --state FAILED --user u3 --limit 10": [
        "job", "list", "-a", "--state", "FAILED", "--user", "u3", "--limit", "10",
    ],
    "vctl doctor": ["doctor"],
}  # fmt: skip


def questions(middle: int, moment: str) -> dict[str, Callable[[Store], object]]:
    """The lists, by name. ``middle`` is the number of a job, ``moment`` when it was submitted."""

    def by(*filters: str, **more: object) -> Callable[[Store], object]:
        return lambda store: jobs.list_jobs(store, filters=filters, **{**_OVER, **more})  # type: ignore[arg-type]

    return {
        "jobs, unfinished, limit 1": by(all=False, limit=1),
        "jobs, unfinished, limit 10": by(all=False),
        "jobs": by(),
        "jobs, an array as one": by(members=False),
        "jobs status=FAILED": by("status=FAILED"),
        "jobs status!=SUCCEEDED": by("status!=SUCCEEDED"),
        "jobs state_reason=NonZeroExit": by("state_reason=NonZeroExit"),
        "jobs user=u3": by("user=u3"),
        "jobs user=nobody": by("user=nobody"),
        "jobs user=u3 status=FAILED": by("user=u3", "status=FAILED"),
        "jobs of a cluster that has none": by("parent_cluster_id=other"),
        "jobs cluster_id": by(f"cluster_id=kPrimaryClusterID##ended-{middle}"),
        "jobs submitted_at>= (half of them)": by(f"submitted_at>={moment}"),
        "jobs name=n7": by("name=n7"),
        "jobs submission_id": by(f"submission_id=ended-{middle}"),
        "jobs job_id": by(f"job_id={middle}"),
        "jobs exit_code=1": by("exit_code=1"),
        "jobs priority>=5": by("priority>=5"),
        "jobs array_id": by("array_id=sweep-1"),
        "tasks": lambda store: tasks.list_tasks(store, **_OVER),  # type: ignore[arg-type]
        "events": lambda store: views.list_events(store, limit=LIMIT),
        "events kind=job.ended": lambda store: views.list_events(
            store, limit=LIMIT, filters=["kind=job.ended"]
        ),
        "events of a job": lambda store: views.list_events(store, limit=LIMIT, job=str(middle)),
        "summary jobs": lambda store: views.summary(store, "jobs"),
    }


def run(options: argparse.Namespace) -> Report:
    """All of it, in one directory; the prune comes last."""
    finished, rounds = options.jobs or JOBS, options.rounds or 3
    report = Report(f"million: {finished} finished and {QUEUED} queued jobs")
    with bed() as place:
        fill(place.home, queued=QUEUED, finished=finished)
        with Store.open(place.home) as store:
            vary(store, finished)
            moment = middle_moment(store, finished // 2)
        report.add("bytes of the tables, a job", "B", bytes_of(place.home) / finished)
        with Store.open(place.home) as store:
            for name, ask in questions(finished // 2, moment).items():
                report.add(name, "ms CPU", [spent_ms(ask, store) for _ in range(rounds)])
        for name, words in COMMANDS.items():
            report.add(name, "ms CPU", [cpu_ms(place, words) for _ in range(rounds)])
        report.add("vctl backup", "s", took_s(place, ["backup", str(place.home / "copy.db")]))
        waits, took = pruned(place)
        report.add("vctl prune --older-than 1h", "s", took)
        report.add("a submit beside it", "ms", waits)
        report.add("the slowest of those", "ms", max(waits))
    return report


def vary(store: Store, finished: int) -> None:
    """Users, names, times and arrays, as a year of work has them."""
    hundred = f"(job_id - 5) / {MEMBERS}"
    with store.transaction():
        store.db.execute(
            f"UPDATE jobs SET user = 'u' || (job_id % {USERS}), name = 'n' || (job_id % 1000),"
            " submitted_at = submitted_at + job_id * 1000000 WHERE status NOT IN ('PENDING', 'RUNNING')"
        )
        store.db.execute(
            f"UPDATE jobs SET array_id = 'sweep-' || ({hundred}), array_index = (job_id - 5) % {MEMBERS}"
            f" WHERE ({hundred}) % 10 = 1 AND job_id BETWEEN 5 AND ?",
            (4 + finished // MEMBERS * MEMBERS,),
        )
        store.db.execute(
            "INSERT INTO arrays (array_id, first_job_id, last_job_id, range, count)"
            f" SELECT array_id, min(job_id), max(job_id), '0-{MEMBERS - 1}', {MEMBERS}"
            " FROM jobs WHERE array_id IS NOT NULL GROUP BY 1"
        )


def middle_moment(store: Store, job_id: int) -> str:
    """When a job was submitted."""
    from vctl.ops import forms

    return forms.timestamp(int(store.value("SELECT submitted_at FROM jobs WHERE job_id = ?", job_id)))


def bytes_of(home: Path) -> int:
    """The size of the tables."""
    return sum(path.stat().st_size for path in home.glob("cluster.db*"))


def spent_ms(ask: Callable[[Store], object], store: Store) -> float:
    """CPU time of one question."""
    began = time.process_time()
    ask(store)
    return (time.process_time() - began) * 1e3


def took_s(place: Bed, words: list[str]) -> float:
    """Wall time of a command."""
    began = time.monotonic()
    subprocess.run([VCTL, *words], env=place.env, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.monotonic() - began


def pruned(place: Bed) -> tuple[list[float], float]:
    """Milliseconds of each submit while everything that is over is deleted, and the seconds that this takes."""
    waits: list[float] = []
    with Store.open(place.home) as store:
        began = time.monotonic()
        words = [VCTL, "prune", "--older-than", "1h"]
        pruning = subprocess.Popen(words, env=place.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while pruning.poll() is None:
            at = time.perf_counter()
            submitting.submit(store, JobRequest(argv=("true",), cwd="/"), environment={})
            waits.append((time.perf_counter() - at) * 1e3)
            time.sleep(0.05)
        took = time.monotonic() - began
        left = store.value("SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL")
    assert pruning.returncode == 0, f"prune ended with {pruning.returncode}"
    assert left == 0, f"{left} jobs are left after the prune"
    return waits, took
