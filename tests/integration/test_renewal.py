"""A scheduler that gives memory back by becoming a new program: nobody but the machine notices (spec 12, 17, 18)."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.crowd import fill
from tests.integration.conftest import Place, eventually
from tests.specification import spec
from vctl.config import load
from vctl.daemon import renewal
from vctl.daemon.loop import Signals
from vctl.ops import jobs
from vctl.store import locks
from vctl.store.locks import BACKGROUND, FOREGROUND, SchedulerLock
from vctl.store.store import Store

pytestmark = spec("18.budgets", "17.one-daemon", "12.daemon-death")

QUEUED = 7_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    return made


def memory(pid: int) -> float:
    """Proportional memory in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def stop_what_waits(place: Place) -> None:
    with Store.open(place.home) as store, store.together():
        for job in jobs.list_jobs(store, filters=["status=PENDING"])[0]:
            jobs.stop(store, job["submission_id"])


@pytest.mark.parametrize("kind", [FOREGROUND, pytest.param(BACKGROUND, marks=pytest.mark.slow)])
def test_memory_is_given_back_after_a_long_queue(place: Place, kind: str) -> None:
    fill(place.home, queued=QUEUED)
    if kind == BACKGROUND:
        place.ok("daemon", "--background")
        log = place.home / "daemon.log"
    else:
        place.daemon()
        log = place.folder / "daemon.log"
    holder = eventually(lambda: locks.holder(place.home), "the scheduler")
    assert holder.kind == kind
    running = eventually(
        lambda: [name for name, job in place.jobs().items() if job["status"] == "RUNNING"], "starts"
    )
    main = place.running_process(running[0])
    full = memory(holder.pid)
    stop_what_waits(place)

    def is_new() -> bool:
        assert locks.holder(place.home) == holder, "somebody else could have become the scheduler"
        return place.heartbeat().get("epoch") == 2

    eventually(is_new, "it to begin anew")
    assert log.read_text().count(renewal.AGAIN) == 1
    os.kill(main, signal.SIGKILL)
    assert place.reach(running[0], "FAILED", "STOPPED")["exit_code"] == 137
    place.submit("--submission-id", "after", "--", "true")
    place.reach("after", "SUCCEEDED")
    left = memory(holder.pid)
    assert os.stat(f"/proc/{holder.pid}/fd/3").st_ino == os.stat(place.home / locks.SCHEDULER_LOCK).st_ino
    assert place.ok("daemon", "--stop") == f"{kind} scheduler {holder.pid} stopped; running jobs go on\n"
    fresh = place.daemon()
    place.submit("--submission-id", "again", "--", "true")
    place.reach("again", "SUCCEEDED")
    assert left <= 1.2 * memory(fresh.pid)
    assert left < full - 3
    assert "Traceback" not in log.read_text()


def test_it_is_worth_it_after_a_large_fall_and_while_the_program_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("1")
    monkeypatch.setattr(renewal, "PROGRAM", [program])
    monkeypatch.setattr(renewal, "LOOK_EVERY_S", 0.0)
    many = [[] for _ in range(sys.getallocatedblocks() // 2)]  # type: ignore[var-annotated]
    scheduler = renewal.Renewal()
    assert scheduler.due_s() == math.inf
    many.clear()
    assert 0 < scheduler.due_s() <= renewal.LEAST_AGE_S
    os.utime(program, ns=(1, 1))
    assert scheduler.due_s() == math.inf, "another version was installed"


def test_a_signal_that_comes_meanwhile_reaches_the_new_program(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []

    def execute(*given: Any) -> None:
        became.append(given)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(os, "execve", execute)
    lock = SchedulerLock(home)
    assert lock.acquire(FOREGROUND)
    with Signals() as old:
        at = os.dup(0)
        monkeypatch.setattr(renewal, "HANDED_OVER", at)
        config = load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0"})
        renewal.begin_anew(home, config, lock, old, kind=FOREGROUND)
    assert old.caught is None
    ((program, words, env),) = became
    assert [program, *words[1:]] == [words[0], "-P", "-m", "vctl", "daemon", "--home", str(home)]
    assert env["VCTL_LOCAL_NODE"] == "0"
    lock.release()
    assert not SchedulerLock(home).acquire(FOREGROUND), "the new program has it"
    inherited = SchedulerLock.inherited(home, at)
    assert inherited is not None and inherited.is_held and not os.get_inheritable(at)
    with Signals() as new:
        assert new.caught == signal.SIGTERM
        renewal.begin_anew(home, config, inherited, new, kind=FOREGROUND)
    assert len(became) == 1, "whoever is told to end does not begin anew"
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "and hears every further signal"
    assert locks.holder(home) is None


def test_a_lock_that_somebody_else_holds_is_not_inherited(home: Path) -> None:
    lock = SchedulerLock(home)
    assert lock.acquire(FOREGROUND)
    at = os.open(lock.path, os.O_RDONLY)
    assert SchedulerLock.inherited(home, at) is None
    lock.release()
    os.close(at)
    at = os.open("/dev/null", os.O_RDONLY)
    assert SchedulerLock.inherited(home, at) is None
    os.close(at)
