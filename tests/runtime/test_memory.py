"""What supervisors have in memory of their own while their jobs run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.runtime.conftest import eventually
from tests.specification import spec
from vctl.runtime import launcher, processes, supervisors

pytestmark = spec("16.local")

_RUNS = 64
_MOST_FORKS = 12.0
"""So many times the memory of a fork may all supervisors of the runs have together, for each CPU. It is 7.0."""

BARE = """
import os, signal, sys
sys.path.append(sys.argv[1])
import launcher
child = os.fork()
if child == 0:
    os.write(1, b"%d\\n" % os.getpid())
    signal.pause()
os.read(0, 1)
os.kill(child, signal.SIGKILL)
"""
"""A fork of a process that has loaded what the launcher loads; the process writes to nothing afterwards."""


def own_kib(pid: int) -> int:
    """Memory that no other process shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


def bare_fork_kib() -> int:
    words = [sys.executable, "-I", "-S", "-c", BARE, str(Path(launcher.__file__).parent)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        eventually(lambda: (seen := processes.process(child)) is not None and seen.state == "S")
        return own_kib(child)


def test_runs_that_wait_take_no_memory_of_their_own(ground):
    """Spec 16: as many processes as there are CPUs stand over all of them, also after other runs."""
    for wave, lasts in (("earlier", "0.5"), ("r", "1000")):
        for n in range(_RUNS):
            ground.launch(f"{wave}{n}", "sleep", lasts)
        pids = {ground.running(f"{wave}{n}").supervisor for n in range(_RUNS)}
        if wave == "earlier":
            for n in range(_RUNS):
                ground.ended(f"{wave}{n}")
    eventually(lambda: ground.runtime.changes() or all(processes.process(pid).state == "S" for pid in pids))
    cpus = min(len(os.sched_getaffinity(0)), supervisors.MAX_SUPERVISORS)
    assert len(pids) == min(cpus, _RUNS)
    assert sum(map(own_kib, pids)) < _MOST_FORKS * bare_fork_kib() * cpus
