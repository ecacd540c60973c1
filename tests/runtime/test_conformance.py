"""What every runtime does, whatever its processes run on: starting, stopping, dying, adopting, forgetting.

The same timelines on this machine and, among the slow tests, on a node of a real Ray cluster.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray_cluster import NEEDS_RAY, RayCluster, running
from tests.runtime.conftest import is_gone
from tests.specification import spec
from vctl.core.resources import CPU, SCALE
from vctl.ray.on_ray.runtime import RayRuntime
from vctl.runtime import processes
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import (
    ExitRecord,
    LaunchRequest,
    ReservedParts,
    RunState,
    Runtime,
    Seen,
    StartRecord,
)

pytestmark = [spec("16.local", "16.ray", "12.daemon-death"), pytest.mark.timeout(600)]

LOCAL, RAY = "local", "ray"
PATIENCE_S = {LOCAL: 30.0, RAY: 240.0}
OVER = (RunState.EXITED, RunState.LOST)


class Bed:
    """A state directory, and the runtime of a scheduler that may be killed."""

    def __init__(self, kind: str, home: Path, address: str, node_id: str) -> None:
        self.kind, self.home, self.address, self.node_id = kind, home, address, node_id
        self.numbers: dict[str, int] = {}
        self.logs = home / "logs"
        self.runtime = self.begin()

    def begin(self) -> Runtime:
        """A scheduler begins: it says which runs are in its tables."""
        runtime: Runtime
        if self.kind == RAY:
            runtime = RayRuntime(self.home, self.address, lambda _: None)
            runtime.connect()
        else:
            runtime = LocalRuntime(self.home)
        runtime.prepare()
        runtime.settle(dict(self.numbers))
        self.runtime = runtime
        return runtime

    def die(self) -> None:
        """The scheduler is gone as after kill -9."""
        if isinstance(self.runtime, RayRuntime):
            self.runtime.link.drop()
            self.runtime.copies.close()
        else:
            self.runtime.close()

    def request(self, run_id: str, *argv: str, **fields: object) -> LaunchRequest:
        if run_id not in self.numbers:
            self.numbers[run_id] = self.runtime.assign()
        chosen: dict[str, object] = {
            "own": {"PATH": os.environ["PATH"]}, "cwd": "/", "log_path": str(self.logs / run_id), "grace_s": 0.2,
            "supervisor": self.numbers[run_id], "node_id": self.node_id,
            "reservation": ReservedParts(run_id, (("v", self.node_id, {CPU: SCALE // 10}),), "v"),
        }  # fmt: skip
        return LaunchRequest(run_id=run_id, argv=argv, **(chosen | fields))  # type: ignore[arg-type]

    def launch(self, run_id: str, *argv: str, **fields: object) -> None:
        self.runtime.launch(self.request(run_id, *argv, **fields))

    def shell(self, run_id: str, line: str, **fields: object) -> None:
        self.launch(run_id, "sh", "-c", line, **fields)

    def until(self, run_id: str, *states: RunState) -> Seen:
        """Take turns, as a scheduler does, until a run is seen so."""
        give_up = time.monotonic() + PATIENCE_S[self.kind]
        poll = select.poll()
        poll.register(self.runtime.fileno(), select.POLLIN)
        while True:
            self.runtime.changes()
            seen = self.runtime.observe(run_id)
            if seen.state in states:
                if seen.state is not RunState.LOST or not self.runtime.clear_lost(run_id):
                    return seen
            assert time.monotonic() < give_up, (run_id, seen)
            poll.poll(min(self.runtime.due_s(), 0.25) * 1000)

    def started(self, run_id: str) -> StartRecord:
        start = self.until(run_id, RunState.RUNNING, *OVER).start
        assert start is not None
        return start

    def ended(self, run_id: str) -> ExitRecord:
        end = self.until(run_id, *OVER).exit
        assert end is not None
        return end

    def log(self, run_id: str) -> bytes:
        return (self.logs / run_id).read_bytes()

    def wait_for(self, run_id: str, text: bytes) -> None:
        """Until a run has written something."""
        give_up = time.monotonic() + PATIENCE_S[self.kind]
        while not (self.logs / run_id).exists() or text not in self.log(run_id):
            self.runtime.changes()
            assert time.monotonic() < give_up
            time.sleep(0.02)

    def end(self) -> None:
        for run_id in self.numbers:
            self.runtime.stop(run_id, grace_s=0)
            self.until(run_id, *OVER, RunState.NEVER_STARTED)
            self.runtime.forget(run_id)
        self.runtime.close()


@pytest.fixture(scope="module")
def cluster(alone_with_ray: None) -> Iterator[RayCluster]:
    yield from running((4, 0))


@pytest.fixture(params=[LOCAL, pytest.param(RAY, marks=[pytest.mark.slow, NEEDS_RAY])])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    address, node_id, ray = "", "", None
    if request.param == RAY:
        ray = request.getfixturevalue("cluster")
        address = ray.address
        node_id = ray.ask(
            "print(next(n['NodeID'] for n in ray.nodes() if n['Resources'].get('CPU')))"
        ).strip()
        for name, text in ray.environment.items():
            request.getfixturevalue("monkeypatch").setenv(name, text)
    made = Bed(request.param, tmp_path / "state", address, node_id)
    yield made
    made.end()
    if ray is not None:
        give_up = time.monotonic() + PATIENCE_S[RAY]
        while ray.groups() + ray.agents():
            assert time.monotonic() < give_up, (ray.groups(), ray.agents())


# ---- starting ----


def test_a_run_from_start_to_end(bed: Bed) -> None:
    """Exactly the environment that was asked for, a session of its own, output in order, code and times."""
    assert bed.runtime.observe("a").state is RunState.NEVER_STARTED
    code = (
        "import os, sys; print(sorted(os.environ), os.getsid(0) == os.getpid(), flush=True); sys.exit('err')"
    )
    bed.launch("a", sys.executable, "-I", "-S", "-c", code, own={"PATH": "/bin", "MINE": "x", "LC_ALL": "C"})
    end = bed.ended("a")
    seen = bed.runtime.observe("a")
    assert (end.exit_code, end.signal, end.launch_errno, end.stopped) == (1, None, None, False)
    assert bed.log("a") == b"['LC_ALL', 'MINE', 'PATH', 'VCTL_HOME', 'VCTL_RUN_ID'] True\nerr\n"
    assert seen.start is not None
    assert seen.start.started_at <= end.ended_at
    assert end.user_us + end.system_us > 0


def test_a_run_starts_once(bed: Bed) -> None:
    """However often it is launched, also by the next scheduler."""
    for _ in range(3):
        bed.shell("a", "echo once; sleep 1; exit 2")
    bed.wait_for("a", b"once")
    bed.die()
    bed.begin()
    bed.shell("a", "echo twice")
    assert bed.ended("a").exit_code == 2
    bed.shell("a", "echo again")
    assert bed.until("a", *OVER).state is RunState.EXITED
    assert bed.log("a") == b"once\n"


@pytest.mark.parametrize(
    ("argv", "cwd", "code"),
    [("/nowhere/at-all", "/", 127), ("/etc/passwd", "/", 126), ("true", "/nowhere", 126)],
)
def test_what_cannot_be_started(bed: Bed, argv: str, cwd: str, code: int) -> None:
    bed.launch("a", argv, cwd=cwd)
    end = bed.ended("a")
    assert (end.exit_code, bool(end.launch_errno), end.stopped) == (code, True, False)
    assert (argv if cwd == "/" else cwd) in end.message


def test_a_signal_of_its_own(bed: Bed) -> None:
    bed.shell("a", "kill -KILL $$")
    end = bed.ended("a")
    assert (end.exit_code, end.signal, end.stopped) == (137, 9, False)


def test_all_output_is_there_at_the_end(bed: Bed) -> None:
    size = 900_000
    bed.launch("a", sys.executable, "-S", "-c", f"import sys; sys.stdout.write('0123456789' * {size // 10})")
    bed.ended("a")
    assert bed.log("a") == b"0123456789" * (size // 10)


def test_many_at_once(bed: Bed) -> None:
    for number in range(8):
        bed.shell(f"r{number}", f"echo {number}; exit {number}")
    assert [bed.ended(f"r{number}").exit_code for number in range(8)] == list(range(8))
    assert [bed.log(f"r{number}") for number in range(8)] == [b"%d\n" % number for number in range(8)]


# ---- stopping ----


def test_a_stop_asks_first(bed: Bed) -> None:
    bed.shell("a", "trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done")
    bed.wait_for("a", b"up")
    bed.runtime.stop("a", grace_s=30)
    end = bed.ended("a")
    assert (end.exit_code, end.stopped) == (9, True)
    assert bed.log("a").endswith(b"bye\n")


def test_a_stop_ends_whole_trees(bed: Bed) -> None:
    """What ignores the signal is killed after the grace, in whatever session it is; a second stop shortens it."""
    bed.shell("a", "trap '' TERM; setsid sh -c 'echo $$; exec sleep 1000' & sleep 1000")
    bed.wait_for("a", b"\n")
    inner = int(bed.log("a"))
    bed.runtime.stop("a", grace_s=1000)
    bed.runtime.stop("a", grace_s=0.2)
    end = bed.ended("a")
    assert (end.signal, end.stopped) == (9, True)
    assert is_gone(inner)


def test_a_stop_before_the_start(bed: Bed) -> None:
    """It may be asked for while the launch is on its way."""
    bed.shell("a", "sleep 1000")
    bed.runtime.stop("a", grace_s=0)
    assert bed.ended("a").stopped


def test_what_a_run_leaves_behind_ends_with_it(bed: Bed) -> None:
    bed.shell("a", "trap '' TERM; setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2; exit 3")
    assert bed.ended("a").exit_code == 3
    assert is_gone(int(bed.log("a")))


def test_signals(bed: Bed) -> None:
    assert bed.runtime.signal_run("a", signal.SIGUSR1) is False
    bed.shell("a", "trap 'echo usr1' USR1; echo up; while :; do sleep 0.05; done")
    bed.started("a")
    bed.wait_for("a", b"up")
    assert bed.runtime.signal_run("a", signal.SIGUSR1)
    bed.wait_for("a", b"usr1")
    bed.runtime.stop("a", grace_s=0)
    bed.ended("a")
    assert bed.runtime.signal_run("a", signal.SIGUSR1) is False


# ---- dying ----


def test_a_supervisor_that_is_killed(bed: Bed) -> None:
    """The run is lost, and what it has left is ended before that is said."""
    bed.shell("a", "echo up; sleep 1000 & sleep 1000")
    bed.wait_for("a", b"up")
    start = bed.started("a")
    os.kill(start.supervisor, signal.SIGKILL)
    seen = bed.until("a", RunState.LOST)
    assert seen.exit is None
    assert is_gone(start.pid)
    assert b"a" not in processes.marked(b"VCTL_RUN_ID", b"VCTL_HOME=" + os.fsencode(bed.home))


# ---- adopting ----


def test_the_next_scheduler_takes_over(bed: Bed) -> None:
    """The same process, the rest of its output, its exit code."""
    bed.shell("a", "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exit 6", cwd=str(bed.home))
    bed.wait_for("a", b"one")
    start = bed.started("a")
    bed.die()
    bed.begin()
    assert bed.runtime.known_runs() == ["a"]
    assert bed.started("a") == start
    (bed.home / "go").touch()
    assert bed.ended("a").exit_code == 6
    assert bed.log("a") == b"one\ntwo\n"


def test_a_run_that_ends_while_nobody_looks(bed: Bed) -> None:
    bed.shell("a", "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exit 6", cwd=str(bed.home))
    bed.wait_for("a", b"one")
    start = bed.started("a")
    bed.die()
    (bed.home / "go").touch()
    give_up = time.monotonic() + PATIENCE_S[bed.kind]
    while not is_gone(start.pid):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    bed.begin()
    assert bed.ended("a").exit_code == 6
    assert bed.log("a") == b"one\ntwo\n"


def test_a_stop_after_taking_over(bed: Bed) -> None:
    bed.shell("a", "echo up; sleep 1000")
    bed.wait_for("a", b"up")
    bed.die()
    bed.begin()
    bed.runtime.stop("a", grace_s=0.2)
    assert bed.ended("a").stopped


# ---- forgetting ----


def test_what_is_forgotten(bed: Bed) -> None:
    """Nothing is kept of a run but its log; the next scheduler does not hear of it."""
    bed.shell("a", "echo up; exit 3")
    bed.ended("a")
    bed.runtime.forget("a")
    assert bed.runtime.observe("a").state is RunState.NEVER_STARTED
    bed.die()
    bed.numbers.clear()
    bed.begin()
    give_up = time.monotonic() + PATIENCE_S[bed.kind]
    while bed.runtime.known_runs():
        bed.runtime.settle({})
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert bed.log("a") == b"up\n"
