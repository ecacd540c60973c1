"""A state directory in which real processes run; whatever a test leaves running is ended with it."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.accounts import HostUsers, acting_as
from vctl.runtime import processes
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import ExitRecord, LaunchRequest, RunState, Seen, StartRecord

if TYPE_CHECKING:
    from tests.runtime.shared_ground import SharedGround

PATIENCE_S = 30.0
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.005)
"""
"""Leaves behind a process that double-forked, has a session of its own, and ignores SIGTERM."""


def eventually(condition: Callable[[], object], what: str = "it") -> None:
    """Wait for a condition, much longer than it should take."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.003)


def is_gone(pid: int) -> bool:
    seen = processes.process(pid)
    return seen is None or seen.state in "ZX"


class Ground:
    """One state directory with a runtime on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runtime = LocalRuntime(home)
        self.numbers: dict[str, int] = {}

    def request(self, run_id: str, *argv: str, **fields: object) -> LaunchRequest:
        chosen: dict[str, object] = {
            "own": {"PATH": os.environ["PATH"]},
            "cwd": str(self.home),
            "log_path": str(self.runtime.logs / run_id),
            "grace_s": 0.2,
            "supervisor": self.number(run_id),
        }
        return LaunchRequest(run_id=run_id, argv=argv, **(chosen | fields))  # type: ignore[arg-type]

    def number(self, run_id: str) -> int:
        """Who carries out a run, as the tables would say."""
        if run_id not in self.numbers:
            self.numbers[run_id] = self.runtime.assign()
        return self.numbers[run_id]

    def record(self, run_id: str) -> Path:
        """The file in which the run is recorded."""
        return self.home / "records" / str(self.number(run_id))

    def launch(self, run_id: str, *argv: str, **fields: object) -> None:
        self.runtime.launch(self.request(run_id, *argv, **fields))

    def python(self, run_id: str, code: str, *arguments: str, **fields: object) -> None:
        self.launch(run_id, sys.executable, "-I", "-S", "-c", code, *arguments, **fields)

    def reach(self, run_id: str, *states: RunState) -> Seen:
        seen: list[Seen] = []

        def is_there() -> bool:
            seen.append(self.runtime.observe(run_id))
            return seen[-1].state in states

        eventually(is_there, f"{run_id} to be {states}")
        return seen[-1]

    def running(self, run_id: str) -> StartRecord:
        start = self.reach(run_id, RunState.RUNNING).start
        assert start is not None
        return start

    def ended(self, run_id: str) -> ExitRecord:
        exited = self.reach(run_id, RunState.EXITED).exit
        assert exited is not None
        return exited

    def log(self, run_id: str) -> bytes:
        return (self.runtime.logs / run_id).read_bytes()

    def end(self) -> None:
        """End every run; the launcher and the supervisors must have had nothing to complain of."""
        try:
            for run_id in self.runtime.known_runs():
                self.runtime.stop(run_id, grace_s=0)
            for run_id in self.runtime.known_runs():
                self.reach(run_id, RunState.EXITED, RunState.LOST)
                assert self.runtime.clear_lost(run_id) == ()
        finally:
            self.runtime.close()
        complaints = self.home / "launcher.log"
        assert not complaints.exists() or complaints.read_text() == ""


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    here = Ground(tmp_path / "state")
    yield here
    here.end()


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, pwd.struct_passwd]]:
    """The account of a service, and two of its users."""
    host = HostUsers()
    try:
        svc = host.add("svc")
        ana = host.add("ana", groups=("lab", "gpu"))
        yield {"svc": svc, "ana": ana, "ben": host.add("ben", groups=("lab",))}
    finally:
        host.remove()


@pytest.fixture
def shared(users: dict[str, pwd.struct_passwd]) -> Iterator[SharedGround]:
    """A shared service with these users; the test has the rights of its account."""
    from tests.runtime.shared_ground import SharedGround, make_places

    top = Path(tempfile.mkdtemp(prefix="vctlt-"))
    make_places(top, users["svc"])
    try:
        with acting_as(users["svc"]):
            here = SharedGround(top, users)
            yield here
            here.end()
    finally:
        shutil.rmtree(top)
