"""Version 2 of cgroups against a recorded tree: what is written where and in which order, and what is read (19)."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.runtime.conftest import eventually
from tests.specification import spec
from vctl.runtime import cgroup_trees, cgroups

pytestmark = spec("16.local", "19.limits")

POINT = b"/cg"
OWN = POINT + b"/user.slice/vctl.scope"
FILES_OF_A_GROUP = {
    b"cgroup.procs": b"", b"cgroup.controllers": b"cpu memory pids", b"cgroup.subtree_control": b"",
    b"cgroup.kill": b"", b"cgroup.freeze": b"0", b"memory.max": b"max", b"memory.swap.max": b"max",
    b"memory.oom.group": b"0", b"memory.peak": b"0", b"memory.events": b"low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
    b"memory.events.local": b"low 0\noom 0\noom_kill 0\n", b"pids.max": b"max", b"cpu.weight": b"100",
    b"cpu.stat": b"usage_usec 0\nuser_usec 0\nsystem_usec 0\n",
}  # fmt: skip


class Recorded(cgroups.Files):
    """A tree of version 2 as a kernel 6.1 showed it, in memory, with its rule about inner groups."""

    def __init__(self, own: bytes = b"100\n") -> None:
        self.texts: dict[bytes, bytes] = {
            b"/proc/self/cgroup": b"0::/user.slice/vctl.scope\n",
            b"/proc/self/mountinfo": b"30 24 0:26 / /cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        }
        self.written: list[tuple[bytes, bytes]] = []
        self.is_writable = True
        for folder in (POINT, POINT + b"/user.slice", OWN):
            self._add(folder)
        self.texts[OWN + b"/cgroup.procs"] = own

    def _add(self, folder: bytes) -> None:
        for name, text in FILES_OF_A_GROUP.items():
            self.texts[b"%b/%b" % (folder, name)] = text

    def make(self, folder: bytes) -> None:
        if folder + b"/cgroup.procs" in self.texts:
            raise FileExistsError(errno.EEXIST, "", folder)
        if folder.rpartition(b"/")[0] + b"/cgroup.procs" not in self.texts:
            raise FileNotFoundError(errno.ENOENT, "", folder)
        self._add(folder)

    def remove(self, folder: bytes) -> None:
        if self.texts[folder + b"/cgroup.procs"] or self.below(folder):
            raise OSError(errno.EBUSY, "", folder)
        for path in [path for path in self.texts if path.startswith(folder + b"/")]:
            del self.texts[path]

    def read(self, path: bytes) -> bytes:
        if path not in self.texts:
            raise FileNotFoundError(errno.ENOENT, "", path)
        return self.texts[path]

    def write(self, path: bytes, text: bytes) -> None:
        folder, _, name = path.rpartition(b"/")
        if path not in self.texts:
            raise FileNotFoundError(errno.ENOENT, "", path)
        if name == b"cgroup.subtree_control" and self.texts[folder + b"/cgroup.procs"]:
            raise OSError(errno.EBUSY, "an inner group has no processes", path)
        if name == b"cgroup.procs":
            pid = b"100" if text == b"0" else text
            for other in self.texts:
                if other.endswith(b"/cgroup.procs"):
                    self.texts[other] = b"".join(
                        line + b"\n" for line in self.texts[other].split() if line != pid
                    )
            self.texts[path] += pid + b"\n"
            self.texts[b"/proc/self/cgroup"] = b"0::%b\n" % folder[len(POINT) :]
        elif name == b"cgroup.kill":
            self.texts[folder + b"/cgroup.procs"] = b""
        else:
            self.texts[path] = text
        self.written.append((path, text))

    def below(self, folder: bytes) -> list[bytes]:
        depth = folder.count(b"/") + 2
        paths = [path for path in self.texts if path.startswith(folder + b"/")]
        return sorted({b"/".join(path.split(b"/")[:depth]) for path in paths if path.count(b"/") >= depth})

    def may_write(self, folder: bytes) -> bool:
        return self.is_writable and folder + b"/cgroup.procs" in self.texts


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(cgroup_trees, "_SYSTEMD", b"/nowhere")
    return Recorded()


def found(recorded: Recorded, home: Path) -> cgroups.Groups:
    return cgroup_trees.find(os.fsencode(home), files=recorded)


def test_the_base_gives_its_processes_to_a_leaf_before_it_has_groups(
    recorded: Recorded, tmp_path: Path
) -> None:
    groups = found(recorded, tmp_path)
    assert groups.version == 2
    assert {cgroups.MEMORY, cgroups.PIDS, cgroups.CPU} <= groups.trees.keys()
    groups.prepare()
    assert recorded.texts[OWN + b"/vctl.self/cgroup.procs"] == b"100\n"
    enabled = [text for path, text in recorded.written if path == OWN + b"/cgroup.subtree_control"]
    assert enabled == [b"+memory", b"+pids", b"+cpu"]
    assert groups.own[cgroups.MEMORY] == OWN + b"/vctl.self", "to where a supervisor returns"


def test_a_run_has_its_limits_below_those_of_its_cluster(recorded: Recorded, tmp_path: Path) -> None:
    groups = found(recorded, tmp_path)
    groups.prepare()
    group = groups.make(b"7.1.0", (1024, 250, ((b"research", (64 << 30, 4096, 1600)),)))
    cluster = groups.trees[cgroups.MEMORY] + b"/c.research"
    folder = cluster + b"/r.7.1.0"
    group.enter()
    assert recorded.texts[folder + b"/cgroup.procs"] == b"100\n"
    assert recorded.texts[folder + b"/memory.max"] == b"max", "not while the supervisor is in it"
    group.leave()
    assert group.limit_memory(8 << 30)
    said = {name: recorded.texts[b"%b/%b" % (folder, name)] for name in FILES_OF_A_GROUP}
    assert (said[b"memory.max"], said[b"memory.swap.max"], said[b"memory.oom.group"]) == (
        b"8589934592",
        b"0",
        b"1",
    )
    assert (said[b"pids.max"], said[b"cpu.weight"], said[b"cgroup.procs"]) == (b"1024", b"250", b"")
    assert recorded.texts[cluster + b"/memory.max"] == b"%d" % (64 << 30)
    assert recorded.texts[cluster + b"/memory.oom.group"] == b"0", "one run ends, not the team's"
    assert recorded.texts[cluster + b"/cpu.weight"] == b"1600"
    assert group.procs == [folder + b"/cgroup.procs"]


def test_what_it_used_and_why_it_was_killed_is_read(recorded: Recorded, tmp_path: Path) -> None:
    groups = found(recorded, tmp_path)
    groups.prepare()
    group = groups.make(b"7.1.0", (0, 0, ((b"research", (64 << 30, 0, 0)),)))
    folder = group.folders[cgroups.MEMORY]
    recorded.texts[folder + b"/memory.peak"] = b"8589934592\n"
    recorded.texts[folder + b"/cpu.stat"] = b"usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n"
    usage = group.usage()
    assert (usage.peak, usage.cpu_s, usage.killed, group.was_full) == (8 << 30, 1.5, 0, False)
    recorded.texts[folder + b"/memory.events"] = b"max 12\noom 1\noom_kill 3\noom_group_kill 1\n"
    assert group.killed() == 3
    assert group.full_cluster() == ""
    recorded.texts[folder.rpartition(b"/")[0] + b"/memory.events.local"] = b"oom 1\noom_kill 0\n"
    assert group.full_cluster() == "research"


def test_its_end_is_one_write_and_leaves_nothing(recorded: Recorded, tmp_path: Path) -> None:
    groups = found(recorded, tmp_path)
    groups.prepare()
    group = groups.make(b"7.1.0", (0, 0, ((b"research", (0, 0, 0)),)))
    folder = group.folders[cgroups.MEMORY]
    recorded.texts[folder + b"/cgroup.procs"] = b"4000\n4001\n"
    assert group.processes() == [4000, 4001]
    assert not group.remove()
    assert group.clear() == []
    assert (folder + b"/cgroup.kill", b"1") in recorded.written
    groups.sweep()
    assert not [path for path in recorded.texts if path.startswith(groups.trees[b""] + b"/")]


def test_what_is_not_delegated_is_left_alone_and_said(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.is_writable = False
    groups = found(recorded, tmp_path)
    assert not groups.trees
    assert "was not delegated" in groups.reasons[cgroups.MEMORY]
    recorded.is_writable = True
    monkeypatch.setattr(cgroup_trees, "_SYSTEMD", b"/")
    groups = found(recorded, tmp_path)
    assert not groups.trees
    assert "belongs to systemd, which did not delegate it" in groups.reasons[cgroups.MEMORY]


def test_a_tree_without_a_controller_says_which(recorded: Recorded, tmp_path: Path) -> None:
    """As on a machine where version 1 has the controllers, and version 2 only processes."""
    recorded.texts[OWN + b"/cgroup.controllers"] = b"cpu"
    groups = found(recorded, tmp_path)
    assert cgroups.MEMORY not in groups.trees
    assert groups.reasons[cgroups.MEMORY].endswith("has no controller memory")


def test_version_2_of_this_machine_ends_and_finds_processes(tmp_path: Path) -> None:
    """For real, where the tree is there and may be written, even without controllers."""
    groups = cgroup_trees.find(os.fsencode(tmp_path), versions=(2,))
    if not groups.trees:
        pytest.skip(f"cgroup v2 cannot be written here: {groups.reasons}")
    groups.trees = {b"": groups.trees[b""]}  # nothing is enabled in the groups of others
    group = groups.make(b"a", (0, 0, ((b"x", (0, 0, 0)),)))
    try:
        group.enter()
        with subprocess.Popen(["sh", "-c", "(setsid sleep 1000 &) ; sleep 1000"]) as process:
            group.leave()
            eventually(lambda: len(group.processes()) == 3)
            assert groups.run_of(process.pid) == b"a"
            assert groups.run_of(os.getpid()) == b""
            group.kill()
            assert process.wait(10) == -9
        eventually(lambda: not group.processes())
    finally:
        assert group.clear() == []
        groups.sweep()
    assert cgroup_trees.bases(os.fsencode(tmp_path)) == []
