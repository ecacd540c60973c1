"""A limit of processes, real (a cgroup): a start that it refuses waits, says so, and is made as soon as it can be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.conftest import Place, eventually
from tests.specification import spec
from vctl.runtime import processes

pytestmark = spec("17.durable", "16.local")

CGROUPS = Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")


class Limit:
    """A cgroup with a limit of processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def holds(self, pid: int) -> None:
        """Put a process and its descendants under the limit."""
        for one in (pid, *processes.descendants(pid)):
            with suppress(ProcessLookupError):
                (self.folder / "cgroup.procs").write_text(str(one))

    def set(self, count: int | None) -> None:
        (self.folder / "pids.max").write_text("max" if count is None else str(count))

    def used(self) -> int:
        return int((self.folder / "pids.current").read_text())


@pytest.fixture
def limit() -> Iterator[Limit]:
    for root in CGROUPS:
        folder = root / f"vctl-test-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            if (folder / "pids.max").exists():
                break
            folder.rmdir()
    else:
        pytest.skip("a cgroup that limits processes cannot be made here")
    made = Limit(folder)
    yield made
    made.set(None)
    for pid in (folder / "cgroup.procs").read_text().split():
        with suppress(OSError):
            (folder.parent / "cgroup.procs").write_text(pid)
    eventually(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


@pytest.fixture
def here(place: Place) -> Place:
    place.add_nodes(1)
    return place


def launcher(place: Place, daemon: subprocess.Popen[bytes]) -> int:
    """Pid of the launcher."""
    return int(
        eventually(
            lambda: next(
                (pid for pid in processes.children(daemon.pid) if processes.name(pid) == b"vctl-launcher"), 0
            ),
            "the launcher",
        )
    )


def supervisors(place: Place) -> set[int]:
    home = os.fsencode(place.home)
    return {
        one.pid
        for one in processes.all_processes()
        if processes.name(one.pid) == b"vctl-supervisor" and processes.command(one.pid)[-1:] == [home]
    }


def test_a_start_that_the_limit_refuses_waits_and_says_so(here: Place, limit: Limit) -> None:
    daemon = here.daemon()
    for n in range(3):  # supervisors live: it is the process of the job that cannot be started
        here.submit("--submission-id", f"before{n}", "--", "true")
        here.reach(f"before{n}", "SUCCEEDED")
    limit.holds(launcher(here, daemon))
    for pid in supervisors(here):
        limit.holds(pid)
    limit.set(limit.used())
    here.submit("--submission-id", "j", "--time-limit", "30s", "--", "sh", "-c", "exit 7")
    here.submit("--submission-id", "s", "--", "sleep", "1000")
    late = eventually(lambda: (job := here.job("j"))["state_reason"] == "StartDelayed" and job, "the reason")
    assert late["status"] == "RUNNING"
    assert "limit of processes" in late["message"], late
    for words in (["why", "j"], ["job", "status", "j"]):
        assert "limit of processes" in here.ok(*words), words
    assert here.jobs()["j"]["state_reason"] == "StartDelayed"
    here.ok("job", "stop", "s")
    assert here.reach("s", "STOPPED")["state_reason"] == "StoppedByUser"
    limit.set(None)
    assert here.reach("j", "FAILED")["exit_code"] == 7
    assert here.job("j")["state_reason"] == "NonZeroExit"
    here.term(daemon)
    here.assert_sound()


def test_a_supervisor_that_cannot_be_forked_is_waited_for(here: Place, limit: Limit) -> None:
    """Ten tries of the launcher gave the run up after twenty seconds: ProcessLost."""
    daemon = here.daemon()
    eventually(lambda: launcher(here, daemon))
    limit.holds(launcher(here, daemon))
    limit.set(limit.used())
    here.submit("--submission-id", "j", "--", "sh", "-c", "exit 7")
    late = eventually(lambda: (job := here.job("j"))["state_reason"] == "StartDelayed" and job, "the reason")
    assert "no supervisor has taken it" in late["message"]
    eventually(lambda: "cannot fork" in (here.home / "launcher.log").read_text())
    limit.set(None)
    assert here.reach("j", "FAILED")["exit_code"] == 7
    assert (here.home / "launcher.log").read_text().count("cannot fork") == 1
    os.truncate(here.home / "launcher.log", 0)
    here.term(daemon)


def test_a_relay_that_cannot_fork_waits(tmp_path: Path, limit: Limit) -> None:
    """A relay that labels lines ended with a traceback and exit code 1."""
    from vctl.runtime import relay

    code = (
        f"import os, runpy, sys; open({str(limit.folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()));"
        f" sys.argv = ['relay', 'label', '', '--', 'sh', '-c', 'echo works; exit 5'];"
        f" runpy.run_path({relay.__file__!r}, run_name='__main__')"
    )
    limit.set(1)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as ran:
        assert ran.stderr is not None
        assert b"cannot fork" in ran.stderr.readline()
        limit.set(None)
        out, err = ran.communicate(timeout=20)
    assert (ran.returncode, out, err) == (5, b"0: works\n", b"")
