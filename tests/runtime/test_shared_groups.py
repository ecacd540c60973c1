"""In a shared service every run has a group that its user cannot leave, and root ends what a user hides (spec 19)."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.accounts import as_root, needs_root
from tests.runtime.conftest import eventually, is_gone
from tests.runtime.shared_ground import SharedGround
from tests.runtime.test_cgroups import HIDDEN, MEMORY_ONLY
from tests.runtime.test_shared import PYTHON, python
from tests.specification import spec
from vctl.runtime import cgroup_trees, cgroups
from vctl.runtime.protocol import RunState

pytestmark = [needs_root, spec("19.limits", "19.start")]


@pytest.fixture
def confined(shared: SharedGround) -> SharedGround:
    with as_root():
        groups = cgroup_trees.find(os.fsencode(shared.home))
    if groups.version != 1 or cgroups.MEMORY not in groups.trees:
        pytest.skip(f"cgroup v1 cannot be written here: {groups.reasons}")
    return shared


def is_in_group(pid: int) -> bool:
    return b"/r." in Path(f"/proc/{pid}/cgroup").read_bytes()


def groups_of(ground: SharedGround, run: str) -> list[cgroups.RunGroup]:
    return cgroup_trees.left_by(run.encode(), cgroup_trees.bases(os.fsencode(ground.home)))


def test_the_process_of_a_user_is_in_a_group_that_it_cannot_leave(confined: SharedGround) -> None:
    code = """
import os
for line in open("/proc/self/cgroup"):
    _, name, path = line.strip().split(":", 2)
    if "/r." in path:
        base = "/sys/fs/cgroup/" + name + path
        for up in (base, base[:base.index("/vctl.")]):
            for file in ("tasks", "cgroup.procs"):
                try:
                    open(up + "/" + file, "w").write("0")
                    print("it can write", up, file)
                except PermissionError:
                    print("denied")
        try: os.mkdir(base + "/below"); print("it can make groups")
        except PermissionError: pass
"""
    confined.launch("a", *python(code), confinement=(50, 100, (("x", (0, 0, 0)),)))
    assert confined.ended("a").exit_code == 0
    said = set(confined.log("a").decode().splitlines())
    assert said == {"denied"}
    assert not groups_of(confined, "a"), "it is removed before the end is recorded"


def test_a_user_over_his_memory_takes_none_of_another(confined: SharedGround) -> None:
    fill = "import time; kept = b'x' * ({} << 20); print('full', flush=True); time.sleep(60)"
    confined.launch("n", *python(fill.format(30)), memory_bytes=64 << 20, confinement=MEMORY_ONLY)
    confined.launch("a", *python(fill.format(200)), memory_bytes=64 << 20, confinement=MEMORY_ONLY)
    end = confined.ended("a")
    assert (end.exit_code, end.signal) == (137, signal.SIGKILL)
    assert end.message == "asked 64 MiB, peak 64 MiB; try --memory 96MiB"
    assert confined.runtime.observe("n").state is RunState.RUNNING


def test_what_a_user_hides_is_ended_by_root_when_the_supervisor_was_killed(confined: SharedGround) -> None:
    """Another parent, session, tag and environment: the scheduler, which is not root, cannot look for it otherwise."""
    mark = Path(confined.ana.pw_dir) / "mark"
    with as_root():
        Path(confined.ana.pw_dir).mkdir(exist_ok=True)
        shutil.chown(confined.ana.pw_dir, confined.ana.pw_uid, confined.ana.pw_gid)
    code = HIDDEN.replace("sys.executable", repr(PYTHON))
    confined.launch("a", *python(code), str(mark), "1000", confinement=MEMORY_ONLY)
    with as_root():
        eventually(mark.exists)
        hidden = int(mark.read_text())
    start = confined.running("a")
    assert is_in_group(hidden)
    with as_root():
        os.kill(start.supervisor, signal.SIGKILL)
    confined.reach("a", RunState.LOST)
    assert not is_gone(hidden)
    assert confined.runtime.clear_lost("a") == ()
    assert is_gone(hidden)
    assert is_gone(start.pid)
    assert not groups_of(confined, "a")


def test_a_program_that_does_not_start_leaves_no_group(confined: SharedGround) -> None:
    confined.launch("a", "no-such", confinement=MEMORY_ONLY)
    assert confined.ended("a").exit_code == 127
    assert not groups_of(confined, "a")
