"""When memory runs out, the kernel takes processes of jobs, never a supervisor (spec 16); each may have its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runtime.conftest import Ground, eventually
from tests.specification import spec
from vctl.runtime import processes
from vctl.runtime.local import LocalRuntime

pytestmark = spec("16.local")


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup with a limit of memory."""
    folder = Path("/sys/fs/cgroup/memory") / f"vctl-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"a cgroup that limits memory cannot be made here: {error.strerror}")
    yield folder
    for pid in (folder / "cgroup.procs").read_text().split():
        with suppress(OSError):
            (folder.parent / "cgroup.procs").write_text(pid)
    eventually(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_processes_of_jobs_have_a_higher_score_than_their_supervisor(ground: Ground) -> None:
    ground.python("a", "import subprocess; subprocess.run(['sleep', '1000'])")
    start = ground.running("a")
    (child,) = eventually_children(start.pid)
    own = score(os.getpid())
    assert (score(start.supervisor), score(start.pid), score(child)) == (own, 900, 900)
    ground.launch("b", "/no/such/command")
    assert ground.ended("b").exit_code == 127
    assert score(start.supervisor) == own, "a failed start leaves its score raised"


def eventually_children(pid: int) -> list[int]:
    eventually(lambda: processes.children(pid))
    return processes.children(pid)


def test_the_kernel_takes_no_supervisor_before_a_job(ground: Ground, limited: Path) -> None:
    """A real limit, reached by hundreds of processes that are much smaller than their supervisor."""
    ground.runtime._supervisors.supervisors = 1
    ground.launch("a", "sleep", "1000")
    start = ground.running("a")
    (limited / "memory.limit_in_bytes").write_text(str(16 << 20))
    for pid in (start.supervisor, start.pid):
        (limited / "cgroup.procs").write_text(str(pid))

    def kills() -> int:
        words = (limited / "memory.oom_control").read_text().split()
        return int(words[words.index("oom_kill") + 1])

    ground.launch("b", "sh", "-c", "for n in $(seq 400); do sleep 1000 & done; wait")
    eventually(lambda: kills() or processes.start_time(start.supervisor) is None, "the kernel to kill")
    time.sleep(0.5)
    assert processes.start_time(start.supervisor) == start.supervisor_started, "it killed the supervisor"


def test_a_supervisor_of_its_own_for_each_run(tmp_path: Path) -> None:
    here = Ground(tmp_path / "state")
    here.runtime.close()
    here.runtime = LocalRuntime(here.home, apart=True)
    try:
        for n in range(6):
            here.launch(f"r{n}", "sleep", "1000")
        found = [here.running(f"r{n}").supervisor for n in range(6)]
        assert len(set(found)) == 6
        os.kill(found[0], 9)
        eventually(lambda: here.runtime.observe("r0").state == "lost")
        assert [here.runtime.observe(f"r{n}").state for n in range(1, 6)] == ["running"] * 5
        here.runtime.clear_lost("r0")
    finally:
        here.end()
