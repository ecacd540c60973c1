"""An hour under load: many submit, something is killed every 20 seconds, and nothing grows (spec 12, 17).

``SOAK_S``, ``SOAK_SUBMITTERS`` and ``SOAK_PAUSE_S`` (between two submits of one of them) change the load; the figures
are appended to the file ``SOAK_OUT``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Place, eventually
from tests.specification import spec
from vctl.runtime import processes

pytestmark = [spec("12.daemon-death", "17.durable"), pytest.mark.soak, pytest.mark.timeout(0)]

SUBMITTER = """
import os, random, sys, time
from pathlib import Path
from vctl.errors import Unreachable
from vctl.ops import submitting
from vctl.spec.job_request import JobRequest, shortcut_spec
from vctl.store.store import Store

name, pause_s = sys.argv[1], float(sys.argv[2])
chance, number = random.Random(name), 0
folder = os.getcwd()
with open("submitted", "ab", 0) as submitted, open("refused", "ab", 0) as refused:
    while os.getppid() != 1:
        number += 1
        ref = f"{name}-{number}"
        command = f'echo {ref} >>ran; sleep {chance.choice([0, 0, 0.01, 0.3])}; exit {chance.choice([0, 0, 0, 7])}'
        spec = shortcut_spec(chance.choice((1, 1, 1, 2)), None, None, chance.choice((1, 1, 1, 2)))
        try:
            with Store.open(Path(os.environ["VCTL_HOME"])) as store:  # as a command does: open, write, close
                request = JobRequest(argv=("/bin/sh", "-c", command), spec=spec, submission_id=ref, cwd=folder)
                submitting.submit(store, request, environment={"PATH": os.environ["PATH"]})
        except Unreachable:  # 30 s were not enough on a machine that does much else: exit code 6
            refused.write(f"{ref}\\n".encode())
        else:
            submitted.write(f"{ref}\\n".encode())
        time.sleep(chance.uniform(0, 2 * pause_s))
"""
KILL_EVERY_S, LOOK_EVERY_S, PRUNE_EVERY_S, KEEP_S = 20.0, 15.0, 60.0, 120
GROWTH, MORE_MIB, MORE_FILES = 1.2, 8.0, 20
"""By how much the last third of the figures may exceed the one before it."""


def pss_mib(pids: list[int]) -> float:
    """What processes take of the memory, with their part of what they share."""
    kib = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib / 1024


def figures(place: Place, daemon: subprocess.Popen[bytes]) -> dict[str, float]:
    """What there is of everything that could grow."""
    below = processes.descendants(daemon.pid)
    count = {
        name: len(os.listdir(place.home / name)) if (place.home / name).is_dir() else 0
        for name in ("records", "ahead", "stops", "logs")
    }
    try:
        handles = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    except OSError:
        handles = 0
    wal = place.home / "cluster.db-wal"
    with place.sql() as db:
        jobs, waiting, events = db.execute(
            "SELECT count(*), sum(status = 'PENDING'), (SELECT count(*) FROM events) FROM jobs"
        ).fetchone()
        size, free = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    return {
        "daemon_mib": pss_mib([daemon.pid]), "others_mib": pss_mib(below), "handles": handles, **count,
        "wal_mib": wal.stat().st_size / 2**20 if wal.exists() else 0.0,
        "db_mib": (place.home / "cluster.db").stat().st_size / 2**20, "used_mib": (size - free) * 4096 / 2**20,
        "jobs": jobs, "waiting": waiting or 0, "events": events,
    }  # fmt: skip


def largest(place: Place) -> dict[str, float]:
    """MiB of the largest tables and indexes, where SQLite can tell."""
    sql = "SELECT name, sum(pgsize) FROM dbstat GROUP BY 1 ORDER BY 2 DESC LIMIT 8"
    with contextlib.suppress(sqlite3.OperationalError), place.sql() as db:
        return {name: round(size / 2**20, 2) for name, size in db.execute(sql)}
    return {}


def note(found: Mapping[str, object]) -> None:
    """Keep it for whoever looks on, and for the end."""
    if out := os.environ.get("SOAK_OUT"):
        with open(out, "a") as file:
            file.write(json.dumps(found) + "\n")


def kill_one(place: Place, dice: random.Random, daemon: subprocess.Popen[bytes]) -> str:
    """The daemon, mostly; else its launcher, or somebody who stands over a run."""
    what = dice.choice(["daemon", "daemon", "launcher", "supervisor"])
    if what != "daemon":
        names = {"launcher": b"vctl-launcher", "supervisor": b"vctl-supervisor"}
        home = os.fsencode(place.home)
        found = [
            one.pid
            for one in processes.all_processes()
            if processes.name(one.pid) == names[what] and processes.command(one.pid)[-1:] == [home]
        ]
        if found:
            os.kill(dice.choice(found), signal.SIGKILL)
            return what
    place.kill(daemon)
    return "daemon"


def test_an_hour_of_submits_and_kills(place: Place) -> None:
    length_s = float(os.environ.get("SOAK_S", "3600"))
    count = int(os.environ.get("SOAK_SUBMITTERS", "50"))
    pause_s = os.environ.get("SOAK_PAUSE_S", "5")
    dice, killed = random.Random(1), Counter[str]()
    place.add_nodes(4)
    daemon = place.daemon()
    submitters = [
        subprocess.Popen(
            [sys.executable, "-c", SUBMITTER, f"s{number}", pause_s],
            env=place.environment({"PYTHONPATH": str(ROOT)}), cwd=place.folder, stdin=subprocess.DEVNULL,
        )
        for number in range(count)
    ]  # fmt: skip
    seen: list[dict[str, float]] = []
    try:
        began = time.monotonic()
        look_at, kill_at, prune_at = began + LOOK_EVERY_S, began + KILL_EVERY_S, began + PRUNE_EVERY_S
        while (now := time.monotonic()) < began + length_s:
            assert all(one.poll() is None for one in submitters)
            if now >= look_at:
                look_at = now + LOOK_EVERY_S
                seen.append({"at_s": now - began, **figures(place, daemon)})
                rounded = {name: round(value, 1) for name, value in seen[-1].items()}
                note({**rounded, "largest": largest(place)})
            if now >= kill_at:
                kill_at = now + KILL_EVERY_S
                killed[kill_one(place, dice, daemon)] += 1
                if daemon.poll() is not None:
                    daemon = place.daemon()
            if now >= prune_at:
                prune_at = now + PRUNE_EVERY_S
                assert place.fork("prune", "--older-than", f"{KEEP_S}s").code in (0, 6), "6: not within 30 s"
            time.sleep(0.5)
    finally:
        for one in submitters:
            one.kill()
            one.wait()
    eventually(lambda: figures(place, daemon)["waiting"] == 0, "all to start", 600)
    eventually(lambda: all(job["ended_at"] for job in place.jobs().values()), "the jobs to end", 120)
    place.term(daemon)
    ran = Counter((place.folder / "ran").read_text().split())
    submitted, refused = ((place.folder / name).read_text().split() for name in ("submitted", "refused"))
    with place.sql() as db:
        (lost,) = db.execute("SELECT count(*) FROM jobs WHERE state_reason = 'ProcessLost'").fetchone()
    assert not set(refused) & set(ran)
    summary = {
        "submitted": len(submitted),
        "refused": len(refused),
        "ran": len(ran),
        "killed": dict(killed),
        "lost_kept": lost,
    }
    note(summary)
    assert {name: times for name, times in ran.items() if times != 1} == {}, "a job ran twice"
    missing = set(submitted) - set(ran)
    assert len(missing) <= killed["supervisor"], missing  # killed before its command had begun
    place.assert_sound()
    assert "Traceback" not in (place.folder / "daemon.log").read_text()
    third = len(seen) // 3
    # used_mib and not db_mib: the file keeps the size that it once had
    for name in ("daemon_mib", "others_mib", "handles", "records", "ahead", "stops", "wal_mib", "used_mib"):
        middle, last = (
            statistics.median(one[name] for one in part) for part in (seen[third : 2 * third], seen[-third:])
        )
        spare = MORE_MIB if name.endswith("_mib") else MORE_FILES
        assert last <= max(middle * GROWTH, middle + spare), (name, middle, last)
