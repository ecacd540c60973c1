"""The scheduler is killed at each kind of commit and effect: before, after, and between effect and record (spec 12).

A kind of commit is the set of changes in it, a kind of effect the function that was called. The kinds are found by
watching a scheduler that nobody kills, so a new change is in the matrix when the work below makes one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.boundaries import ended_when, watched
from tests.integration.conftest import PATIENCE_S, Place, eventually
from tests.specification import spec
from vctl import ops
from vctl.config import load
from vctl.operations import clusters, jobs, nodes, tasks
from vctl.operations.declare import Context
from vctl.store.store import Store

pytestmark = spec("12.daemon-death", "17.durable")

MARK = 'echo "$VCTL_SUBMISSION_ID${VCTL_TASK_ID:+ task}" >> ran; '
RETRY = MARK + '[ "$VCTL_ATTEMPT" = 2 ]'
ENDS = {
    "one": 0, "three": 3, "gang": 0, "retry": 0, "arr_0": 0, "arr_1": 0, "arr_2": 0, "behind": 0, "limit": 124,
    "stopped": 143, "in": 5, "parent": 0, "cannot": 127,
}  # fmt: skip
"""How each job ends, whoever is killed."""
RUNS = {**dict.fromkeys(ENDS, 1), "gang": 2, "retry": 2, "parent task": 1, "cannot": 0}
"""How often each runs: never more."""

EFFECTS = ("send", "sendmsg", "kill", "pidfd_send_signal", "posix_spawn", "unlink", "rename", "ftruncate")
MOST_OF_A_KIND = 4


def work(place: Place) -> None:
    """Queue work of many kinds, before there is a scheduler."""
    config = load(env={"VCTL_HOME": str(place.home), "VCTL_LOCAL_NODE": "0"})
    with Store.open(place.home) as store:
        context = Context(store, config, lambda _: {"PATH": os.environ["PATH"]})

        def submit(name: str, script: str, **more: object) -> None:
            more = {"cwd": str(place.folder), "grace_s": 0.2, "submission_id": name, "num_cpus": 1, **more}
            jobs.submit.run(context, more.pop("argv", ["sh", "-c", MARK + script]), **more)  # type: ignore[arg-type]

        nodes.add.run(context, resources={"CPU": 8}, count=2)
        clusters.create.run(context, cluster_id="room", spec={"flexible_resource_min": {"CPU": 1}})
        submit("one", "exit 0")
        submit("three", "sleep 0.05; exit 3")
        submit("gang", "sleep 0.05", nodes=2, per_node=True)
        submit("retry", RETRY.removeprefix(MARK), max_retries=1, retry_on=["ExitCode"], backoff_s=0)
        submit("arr", "exit 0", array="0-2%2")
        submit("behind", "exit 0", after=["ok:one"])
        submit("limit", "exec sleep 1000", time_limit_s=0.1)
        submit("stopped", "exec sleep 1000")
        submit("in", "exit 5", cluster="room", num_cpus=None)
        submit("parent", "while [ ! -e go ]; do sleep 0.02; done", num_cpus=2)
        submit("cannot", "", argv=["./no-such-file"])


def ask(place: Place) -> None:
    """What users ask for while it runs."""
    with Store.open(place.home) as store:
        context = Context(
            store, load(env={"VCTL_HOME": str(place.home)}), lambda _: {"PATH": os.environ["PATH"]}
        )
        jobs.stop.run(context, "stopped")
        inside = {"PATH": os.environ["PATH"], "VCTL_SUBMISSION_ID": "parent"}
        argv = ["sh", "-c", MARK + "exec touch go"]
        tasks.run.run(context, argv, job="parent", environment=inside, cwd=str(place.folder), num_cpus=1)


def scheduler(place: Place, passed: Callable[[str], None]) -> int:
    """A scheduler in a process of its own, which passes points."""
    from vctl.daemon.loop import run_daemon

    child = os.fork()
    if child:
        return child
    try:
        os.chdir(place.folder)
        log = os.open(place.folder / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, fd in enumerate((null, log, log)):
            os.dup2(fd, number)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
        os.environ.update(place.environment({}))
        with watched(passed):
            code = run_daemon(place.home, load(env=place.environment({})))
        os._exit(code)
    except BaseException:  # noqa: BLE001 - the child must not go on with the tests
        sys.excepthook(*sys.exc_info())
        os._exit(70)


def collected(child: int, within_s: float = PATIENCE_S) -> int:
    until = time.monotonic() + within_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("it lives on")
        time.sleep(0.005)


def states(place: Place) -> dict[str, str]:
    with place.sql() as db:
        return dict(db.execute("SELECT submission_id, status FROM jobs"))


def marks(place: Place) -> list[str]:
    ran = place.folder / "ran"
    return ran.read_text().splitlines() if ran.exists() else []


def is_over(place: Place) -> bool:
    return set(states(place).values()) <= {"SUCCEEDED", "FAILED", "STOPPED"}


def play(place: Place, passed: Callable[[str], None], sig: int = signal.SIGKILL) -> bool:
    """The work with a scheduler that may be killed, then one that is not; whether the first was killed."""
    work(place)
    child: int | None = scheduler(place, passed)
    asked = died = False

    def step() -> bool:
        nonlocal child, asked, died
        assert child is not None
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.WIFSIGNALED(status), (place.folder / "daemon.log").read_text()
            died, child = True, None
            child = scheduler(place, lambda name: None)
        if not asked and {"stopped", "parent"} <= set(marks(place)):
            ask(place)
            asked = True
        return asked and is_over(place)

    try:
        eventually(step, "all jobs to end")
    finally:
        if child is not None:
            os.kill(child, signal.SIGTERM)
            try:
                code = collected(child)
            finally:
                child = None
    if code == -signal.SIGKILL:
        died = True
        child = scheduler(place, lambda name: None)  # what it left is found by the next one
        eventually(lambda: place.heartbeat().get("pid") == child, "the next scheduler")
        os.kill(child, signal.SIGTERM)
        assert collected(child) == 0
    return died


def check(place: Place) -> None:
    log = (place.folder / "daemon.log").read_text()
    assert "Traceback" not in log and "internal error" not in log, log
    found = place.jobs()
    assert {name: job["exit_code"] for name, job in found.items() if "array" not in job} == ENDS
    ran = Counter(marks(place))
    ran["limit"] = ran["limit"] or 1  # its time may be over before it has said so
    assert ran == +Counter(RUNS), (ran - Counter(RUNS), Counter(RUNS) - ran)
    attempts = {name: job["attempt"] for name, job in found.items() if job["attempt"] != 1}
    assert attempts == {"retry": 2}
    with Store.open(place.home) as store:
        assert ops.prove.prove(store) == []
        assert ops.replay.replay(store, dry_run=True)["changes"] == 0
        reported = store.rows(
            "SELECT object_id, kind FROM events WHERE kind IN ('job.submitted', 'job.ended')"
        )
        assert len(reported) == len(set(map(tuple, reported)))
        assert store.value("SELECT count(*) FROM runs") == 0
        assert store.value("SELECT count(*) FROM vnodes WHERE cluster_id LIKE '%##%'") == 0
        assert store.value("SELECT count(*) FROM leases") == 0
    assert os.listdir(place.home / "stops") == []


def points(tmp: Path) -> list[tuple[str, int]]:
    """The cells: points that a scheduler passes, by name, and which time it does."""
    folder = tmp / "whole"
    folder.mkdir()
    place = Place(folder / "state", folder / "work")
    out = os.open(folder / "points", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write, own = os.write, os.getpid()

    def note(name: str) -> None:
        if os.getpid() != own:
            write(out, f"{name}\n".encode())

    try:
        assert play(place, note) is False
        check(place)
    finally:
        place.end()
        os.close(out)
    passed: Counter[str] = Counter()
    found = []
    for name in (folder / "points").read_text().splitlines():
        passed[name] += 1
        if passed[name] <= MOST_OF_A_KIND and (" COMMIT" in name or name.split()[-1] in EFFECTS):
            found.append((name, passed[name]))
    return found


def cell(tmp: Path, number: int, name: str, nth: int) -> bool:
    folder = tmp / f"cell{number}"
    folder.mkdir()
    place = Place(folder / "state", folder / "work")
    try:
        died = play(place, ended_when(name, nth))
        check(place)
    except BaseException as error:
        error.add_note(f"the scheduler was killed {name}, time {nth}")
        raise
    finally:
        place.end()
    return died


def test_kills_of_the_scheduler_at_some_points(tmp_path: Path) -> None:
    found = points(tmp_path)
    assert len(found) > 30, found
    for number, one in enumerate(random.Random(os.environ.get("SEED", time.time_ns())).sample(found, 4)):
        cell(tmp_path, number, *one)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_of_the_scheduler_at_every_point(tmp_path: Path) -> None:
    found = points(tmp_path)
    reached = [one for number, one in enumerate(found) if cell(tmp_path, number, *one)]
    sys.stdout.write(f"{len(reached)} of {len(found)} cells reached: {reached}\n")
    assert len(reached) > 0.6 * len(found)
