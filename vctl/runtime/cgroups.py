"""Control groups (cgroups): limits of a run that the kernel enforces, and the processes that belong to it.

A run that is *confined* has a group of its own. The group is made before the main process starts, which begins
its life inside, and is removed before the end of the run is recorded; so every process below the run is in it,
whatever parent, session, limits or environment it has by then. It lies below one group for each logical cluster
that the run belongs to: the processes of all runs of a cluster on this machine share the limits of the cluster.

    <base>/vctl.<device>.<inode of the state directory>/c.<cluster>/c.<cluster in it>/r.<run>

The base is the group that the supervisor lives in, so what bounds the supervisor bounds the runs as well. There
are two forms. In version 2 one tree of groups has all controllers; a group that delegates controllers to groups
below it has no processes of its own, so the base must have been delegated to us. In version 1 each controller
has a tree of its own, and a run has a group of the same path in each tree that it needs. Where neither can be
written, there is no group, and the supervisor measures memory itself (memory.py).

The supervisor cannot tell posix_spawn to start a process in a group. It enters the group, starts the process,
and leaves: two writes, 40 microseconds. The limit of memory is set when it has left, because a kernel that is
short of memory in a group kills whom it finds there. A child that enters by itself writes ``0`` into each of
`RunGroup.procs`.

Peaks are those of the kernel and include the pages of files that it kept for the run. A group is never used
for two runs: the peak of the first would be that of the second.

Stand-alone, like processes.py. Imports only built-in modules.
"""

import errno
import os
import time

MYPY = False
if MYPY or __package__:
    from vctl.runtime import processes
else:
    import processes

if MYPY:
    from collections.abc import Callable, Iterable, Iterator

MEMORY, PIDS, CPU, CPUACCT, FREEZER = b"memory", b"pids", b"cpu", b"cpuacct", b"freezer"
CONTROLLERS = (MEMORY, PIDS, CPU)
"""The controllers that enforce a limit; the same names in both versions."""
ALL_V1 = (MEMORY, PIDS, CPU, CPUACCT, FREEZER)
PREFIX, CLUSTER, RUN = b"vctl.", b"c.", b"r."
LEAF = b"vctl.self"  # for the processes of a delegated group, which may have none of its own
_SIGKILL = 9
_FREEZE_S, _PAUSE_S = 0.05, 0.001  # how long to wait until all processes of a group are frozen
_ROUNDS = 5
_WEIGHT_V1, _WEIGHT_V2 = 1024, 100  # of one whole CPU
_MAX_WEIGHT_V1, _MAX_WEIGHT_V2 = 262144, 10000
_MARGIN, _LEAST_MARGIN = 64, 1 << 20  # of a limit of memory: what a request that failed may have asked for
_CHUNK_BYTES = 1 << 14

# bytes of memory (0: any), processes (0: any), hundredths of a CPU that its share of the CPU time is worth (0: any)
Limits = tuple[int, int, int]
Cluster = tuple[bytes, Limits]
# processes and share of the CPU time as in Limits, and the clusters from the outermost on
Confinement = tuple[int, int, tuple[Cluster, ...]]


class GroupUsage:
    """What a group has used: peak in bytes, CPU time in seconds, processes that the kernel killed for memory.

    A figure that no controller measured is None.
    """

    __slots__ = ("cpu_s", "killed", "peak")

    def __init__(self) -> None:
        self.peak: int | None = None
        self.cpu_s: float | None = None
        self.killed = 0


class Files:
    """The few operations on the tree of groups; a test puts a recorded tree in its place."""

    def make(self, folder: bytes) -> None:
        """Make a group. Raises OSError."""
        os.mkdir(folder, 0o755)

    def remove(self, folder: bytes) -> None:
        """Remove a group without processes. Raises OSError."""
        os.rmdir(folder)

    def read(self, path: bytes) -> bytes:
        """A whole file. Raises OSError."""
        return processes.read(path)

    def write(self, path: bytes, text: bytes) -> None:
        """Write a value. Raises OSError if the kernel refuses it."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)

    def below(self, folder: bytes) -> list[bytes]:
        """The groups directly below a group; a directory of groups has a link for each of them."""
        try:
            if os.stat(folder).st_nlink <= 2:
                return []
            with os.scandir(folder) as entries:
                return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def may_write(self, folder: bytes) -> bool:
        """Whether groups may be made below a group."""
        return os.access(folder, os.W_OK | os.X_OK)


FILES = Files()


class Groups:
    """Where the groups of one state directory lie: `trees`, the base in each tree, by controller.

    `reasons` says why there is no better one: by controller, for people. `own`: the groups of this process, to
    which it returns. In version 2 all controllers have the same base, and b"" is there without any controller.
    """

    def __init__(self, version: int, files: Files = FILES) -> None:
        self.version, self.files = version, files
        self.trees: dict[bytes, bytes] = {}
        self.own: dict[bytes, bytes] = {}
        self.reasons: dict[bytes, str] = {}
        self.point = b""  # in version 2: where the tree is mounted

    def make(self, name: bytes, confinement: Confinement) -> "RunGroup":
        """Make the group of a run. Raises OSError."""
        max_processes, weight, clusters = confinement
        wanted = {b"", MEMORY, FREEZER}
        if max_processes or any(limits[1] for _, limits in clusters):
            wanted.add(PIDS)
        if weight:
            wanted |= {CPU, CPUACCT}
        group = self.group(name, [controller for controller in self.trees if controller in wanted])
        try:
            group.make(clusters, (0, max_processes, weight))
        except OSError:
            group.remove()
            raise
        return group

    def group(self, name: bytes, controllers: "Iterable[bytes]") -> "RunGroup":
        """The group of a run as an object; it makes nothing."""
        return (RunGroupV2 if self.version == 2 else RunGroupV1)(self, name, controllers)

    def run_of(self, pid: int) -> bytes:
        """The run to which a process belongs by its group, which it cannot change; empty if to none."""
        for line in (text(self.files, b"/proc/%d/cgroup" % pid) or b"").splitlines():
            _, _, after = line.partition(b"/" + PREFIX)
            _, mark, after = after.partition(b"/" + RUN)
            if mark:
                return after.partition(b"/")[0].removesuffix(b" (deleted)")
        return b""

    def prepare(self) -> None:
        """Let the base have groups with controllers below it. Raises OSError.

        In version 2 that is possible only while the base has no processes of its own: they are moved to a leaf.
        """
        if self.version != 2 or not self.trees:
            return
        base = self.trees[b""].rpartition(b"/")[0]
        for controller in CONTROLLERS:
            if controller in self.trees and not self._enable(base, controller):
                self._vacate(base)
                if not self._enable(base, controller):
                    del self.trees[controller], self.own[controller]
                    self.reasons[controller] = f"{os.fsdecode(base)} has processes that cannot be moved"
        within = (text(self.files, b"/proc/self/cgroup") or b"").splitlines()
        own = next((line[3:] for line in within if line.startswith(b"0::")), b"")
        self.own = dict.fromkeys(self.own, self.point + own.rstrip(b"/"))

    def _enable(self, base: bytes, controller: bytes) -> bool:
        return quietly(self.files.write, base + b"/cgroup.subtree_control", b"+" + controller)

    def _vacate(self, base: bytes) -> None:
        leaf = base + b"/" + LEAF
        quietly(self.files.make, leaf)
        for pid in pids(self.files, base):
            quietly(self.files.write, leaf + b"/cgroup.procs", b"%d" % pid)

    def sweep(self) -> None:
        """Remove the groups of clusters that hold no run."""
        for base in set(self.trees.values()):
            for folder in reversed(list(tree(self.files, base))):
                if not folder.rpartition(b"/")[2].startswith(RUN):
                    quietly(self.files.remove, folder)


class RunGroup:
    """The group of a run. `procs`: who writes ``0`` into each of these files is in the group."""

    entrance = b""
    """The file in the folder of a group to which a process writes 0 to enter."""

    def __init__(self, groups: Groups, name: bytes, controllers: "Iterable[bytes]") -> None:
        self.groups, self.files, self.name = groups, groups.files, name
        self.controllers = tuple(controllers)
        self.folders: dict[bytes, bytes] = {}
        """Controller -> folder; in version 2 the same one for all."""

    # ---- life ----

    def make(self, clusters: "tuple[Cluster, ...]", limits: Limits) -> None:
        """Make the group, and those of the clusters above it, with these limits. Raises OSError."""
        for base in dict.fromkeys(self.groups.trees[controller] for controller in self.controllers):
            mine = [controller for controller in self.controllers if self.groups.trees[controller] == base]
            path = [base]
            for cluster, _ in clusters:
                path.append(b"%b/%b%b" % (path[-1], CLUSTER, cluster))
            own = b"%b/%b%b" % (path[-1], RUN, self.name)
            self._make_all(path, own)
            self.folders |= dict.fromkeys(mine, own)
            bounds = [limits_of for _, limits_of in clusters]
            for folder, limits_of in zip((*path[1:], own), (*bounds, limits), strict=True):
                for controller in mine:
                    self.bound(folder, controller, limits_of)

    def _make_all(self, path: list[bytes], own: bytes) -> None:
        """Make a group at the end of a path. It is new: what an earlier run of this name left is cleared."""
        for _ in range(_ROUNDS):
            try:
                self.files.make(own)
            except FileExistsError:
                left = self.groups.group(self.name, self.controllers)
                left.folders = dict.fromkeys(self.controllers, own)
                left.clear()
            except FileNotFoundError:
                for folder in path:  # or somebody removes the groups of clusters without a run
                    try:
                        self.files.make(folder)
                    except (FileExistsError, FileNotFoundError):
                        continue
                    self.delegate(folder)
            else:
                return
        raise OSError(errno.EBUSY, "cannot make a group", own)

    def delegate(self, folder: bytes) -> None:
        """Let groups below a new group have its controllers."""
        raise NotImplementedError

    @property
    def procs(self) -> list[bytes]:
        """The files into which a process writes ``0`` to enter the group."""
        return [b"%b/%b" % (folder, self.entrance) for folder in dict.fromkeys(self.folders.values())]

    def enter(self) -> None:
        """Move this process, which has one thread, into the group. Raises OSError."""
        for file in self.procs:
            self.files.write(file, b"0")

    def leave(self) -> None:
        """Move this process back to where it came from."""
        for folder in {self.groups.own[controller] for controller in self.folders}:
            for _ in range(_ROUNDS):  # it fails for want of memory only
                if quietly(self.files.write, b"%b/%b" % (folder, self.entrance), b"0"):
                    break

    def limit_memory(self, size: int) -> bool:
        """Set the limit of memory. False if more is in use and the kernel cannot take it back."""
        folder = self.folders.get(MEMORY)
        return folder is None or not size or self.bound(folder, MEMORY, (size, 0, 0))

    def bound(self, folder: bytes, controller: bytes, limits: Limits) -> bool:
        """Set the limit of one controller in a group; see ``limit_memory`` for the result."""
        raise NotImplementedError

    def remove(self) -> bool:
        """Remove the group; whether it is gone."""
        are_gone = True
        for folder in set(self.folders.values()):
            for below in reversed(list(tree(self.files, folder))):
                are_gone &= (
                    quietly(self.files.remove, below) or text(self.files, below + b"/cgroup.procs") is None
                )
        return are_gone

    # ---- processes ----

    def processes(self) -> list[int]:
        """Pids of the processes in the group; without zombies."""
        found: dict[int, None] = {}
        for folder in self._one_tree():
            try:
                found |= dict.fromkeys(map(int, self.files.read(folder + b"/cgroup.procs").split()))
            except OSError:
                continue  # removed meanwhile
        found.pop(os.getpid(), None)
        return list(found)

    def _one_tree(self) -> "Iterator[bytes]":
        """The folders of the group and of the groups below it, in the tree that is best for ending it."""
        folder = self.folders.get(FREEZER) or next(iter(self.folders.values()), None)
        return iter(()) if folder is None else tree(self.files, folder)

    def kill(self) -> None:
        """SIGKILL all processes at one moment, so that none of them can replace another."""
        raise NotImplementedError

    def clear(self) -> list[int]:
        """Kill what is left in the group, and remove it; the pids that are still there."""
        for _ in range(_ROUNDS):
            if self.processes():
                self.kill()
            if self.remove():
                return []
            time.sleep(_PAUSE_S)
        return self.processes()

    # ---- use ----

    @property
    def bounds_memory(self) -> bool:
        """Whether the kernel ends processes of the group before it uses more memory than its limit."""
        return MEMORY in self.folders

    def killed(self) -> int:
        """How many processes of the group the kernel has killed for want of memory."""
        raise NotImplementedError

    @property
    def was_full(self) -> bool:
        """Whether the group has reached its own limit of memory."""
        return self.has_filled(self.folders.get(MEMORY, b""))

    def full_cluster(self) -> str:
        """The innermost cluster of the run that has reached its own limit of memory; empty if none has."""
        folder = self.folders.get(MEMORY, b"").rpartition(b"/")[0]
        while folder.rpartition(b"/")[2].startswith(CLUSTER):
            folder, _, name = folder.rpartition(b"/")
            if self.has_filled(b"%b/%b" % (folder, name)):
                return os.fsdecode(name[len(CLUSTER) :])
        return ""

    def has_filled(self, folder: bytes) -> bool:
        """Whether the group in a folder has reached its own limit of memory."""
        raise NotImplementedError

    def usage(self) -> GroupUsage:
        """What the group has used until now."""
        raise NotImplementedError

    def number(self, controller: bytes, file: bytes, key: bytes = b"") -> int | None:
        """A number in a file of the group, behind ``key`` on its line; None if there is none."""
        folder = self.folders.get(controller)
        return None if folder is None else number(self.files, b"%b/%b" % (folder, file), key)


class RunGroupV1(RunGroup):
    """In version 1: one folder for each controller. Only the freezer ends all of its processes at one moment."""

    entrance = b"tasks"  # one thread: the kernel need not stop all forks of the machine meanwhile

    def bound(self, folder: bytes, controller: bytes, limits: Limits) -> bool:
        """See RunGroup."""
        memory, max_processes, weight = limits
        if controller == MEMORY and memory:
            return self._bound_memory(folder, memory)
        if controller == PIDS and max_processes:
            quietly(self.files.write, folder + b"/pids.max", b"%d" % max_processes)
        if controller == CPU and weight:
            shares = max(2, min(_WEIGHT_V1 * weight // 100, _MAX_WEIGHT_V1))
            quietly(self.files.write, folder + b"/cpu.shares", b"%d" % shares)
        return True

    def _bound_memory(self, folder: bytes, memory: int) -> bool:
        limit, with_swap = (folder + b"/memory.%blimit_in_bytes" % part for part in (b"", b"memsw."))
        size = b"%d" % memory
        try:
            self.files.write(limit, size)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            quietly(self.files.write, with_swap, size)  # it may not be below the other one: raise it first
            return quietly(self.files.write, limit, size)
        quietly(self.files.write, with_swap, size)  # a kernel that does not count swap has no such file
        return True

    def delegate(self, folder: bytes) -> None:
        """See RunGroup. Kernels since 5.11 do so without being told."""
        quietly(self.files.write, folder + b"/memory.use_hierarchy", b"1")

    def kill(self) -> None:
        """See RunGroup."""
        state = b"/freezer.state"
        frozen = [folder for folder in self._one_tree() if FREEZER in self.folders]
        for folder in frozen[:1]:  # groups below it freeze with it
            quietly(self.files.write, folder + state, b"FROZEN")
            until = time.monotonic() + _FREEZE_S
            while text(self.files, folder + state) == b"FREEZING" and time.monotonic() < until:
                time.sleep(_PAUSE_S)
        for pid in self.processes():
            processes.send(pid, _SIGKILL)
        for folder in frozen:  # a process that is frozen dies when it is thawed
            quietly(self.files.write, folder + state, b"THAWED")

    def killed(self) -> int:
        """See RunGroup."""
        return self.number(MEMORY, b"memory.oom_control", b"oom_kill") or 0

    def has_filled(self, folder: bytes) -> bool:
        """See RunGroup."""
        # memory.failcnt is 0 on newer kernels whatever has happened
        peak = number(self.files, folder + b"/memory.max_usage_in_bytes")
        limit = number(self.files, folder + b"/memory.limit_in_bytes")
        return peak is not None and limit is not None and peak >= limit - max(limit // _MARGIN, _LEAST_MARGIN)

    def usage(self) -> GroupUsage:
        """See RunGroup."""
        usage = GroupUsage()
        usage.peak = self.number(MEMORY, b"memory.max_usage_in_bytes")
        usage.killed = self.killed()
        if (spent := self.number(CPUACCT, b"cpuacct.usage")) is not None:
            usage.cpu_s = spent / 1e9
        return usage


class RunGroupV2(RunGroup):
    """In version 2: one folder. The kernel ends all of its processes together, also when memory runs out."""

    entrance = b"cgroup.procs"

    def delegate(self, folder: bytes) -> None:
        """See RunGroup."""
        for controller in CONTROLLERS:
            if controller in self.groups.trees:
                quietly(self.files.write, folder + b"/cgroup.subtree_control", b"+" + controller)

    def bound(self, folder: bytes, controller: bytes, limits: Limits) -> bool:
        """See RunGroup."""
        memory, max_processes, weight = limits
        if controller == MEMORY and memory:
            is_run = folder.rpartition(b"/")[2].startswith(RUN)
            quietly(self.files.write, folder + b"/memory.swap.max", b"0")
            if is_run:
                quietly(self.files.write, folder + b"/memory.oom.group", b"1")
            quietly(self.files.write, folder + b"/memory.max", b"%d" % memory)
        if controller == PIDS and max_processes:
            quietly(self.files.write, folder + b"/pids.max", b"%d" % max_processes)
        if controller == CPU and weight:
            share = max(1, min(_WEIGHT_V2 * weight // 100, _MAX_WEIGHT_V2))
            quietly(self.files.write, folder + b"/cpu.weight", b"%d" % share)
        return True

    def kill(self) -> None:
        """See RunGroup."""
        folder = next(iter(self.folders.values()))
        if os.getpid() not in pids(self.files, folder) and quietly(
            self.files.write, folder + b"/cgroup.kill", b"1"
        ):
            return
        for _ in range(_ROUNDS):  # a kernel before 5.14
            quietly(self.files.write, folder + b"/cgroup.freeze", b"1")
            for pid in self.processes():
                processes.send(pid, _SIGKILL)
        quietly(self.files.write, folder + b"/cgroup.freeze", b"0")

    def killed(self) -> int:
        """See RunGroup."""
        return self.number(MEMORY, b"memory.events", b"oom_kill") or 0

    def has_filled(self, folder: bytes) -> bool:
        """See RunGroup."""
        return bool(number(self.files, folder + b"/memory.events.local", b"oom"))

    def usage(self) -> GroupUsage:
        """See RunGroup."""
        usage = GroupUsage()
        usage.peak = self.number(MEMORY, b"memory.peak")
        usage.killed = self.killed()
        controller = next(iter(self.folders))
        if (spent := self.number(controller, b"cpu.stat", b"usage_usec")) is not None:
            usage.cpu_s = spent / 1e6
        return usage


# ---- files ----


def tree(files: Files, folder: bytes) -> "Iterator[bytes]":
    """A group and all below it, from the top down."""
    yield folder
    for below in files.below(folder):
        yield from tree(files, below)


def text(files: Files, path: bytes) -> bytes | None:
    """A file of a group without its last newline; None if it cannot be read."""
    try:
        return files.read(path).rstrip(b"\n")
    except OSError:
        return None


def pids(files: Files, folder: bytes) -> list[int]:
    """The processes that are directly in a group."""
    return list(map(int, (text(files, folder + b"/cgroup.procs") or b"").split()))


def number(files: Files, path: bytes, key: bytes = b"") -> int | None:
    """The number in a file, or the one behind a key at the beginning of a line."""
    for line in (text(files, path) or b"").splitlines():
        words = line.split()
        if words and words[-1].isdigit() and (words[0] == key if key else len(words) == 1):
            return int(words[-1])
    return None


def quietly(do: "Callable[..., None]", *words: bytes) -> bool:
    """Whether an operation on a group worked. Where it does not, the group has one limit less, or stays."""
    try:
        do(*words)
    except OSError:
        return False
    return True
