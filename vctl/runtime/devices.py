"""Who uses a device: its processes, as /proc shows them, and the run to which each of them belongs.

A process belongs to a run if the main process of that run is among its ancestors; else by the control group of the run,
which it cannot leave; else by the mark that runs hand on in the environment, which a daemon that left its parents still
has. Knows nothing of jobs and tables.
"""

import os
from collections.abc import Collection, Iterable, Mapping

from vctl.core.values import value
from vctl.runtime import processes
from vctl.runtime.cgroup_trees import name_of
from vctl.runtime.cgroups import FILES, RUN, text
from vctl.runtime.measured import DeviceProcess
from vctl.runtime.processes import HOME_MARK, RUN_MARK

_DEEPEST = 128
"""The most ancestors that are looked at: a pid that is used again could make a circle."""


@value(frozen=True, slots=True)
class OnDevice:
    """A process on a device. ``started``: clock ticks since boot; it and ``uid`` are None if /proc does not show it.

    ``run_id``: the run to which it belongs. ``is_over``: that run is none of the live ones, so the process was left
    behind. Without a run nobody booked the device for it.
    """

    pid: int
    memory: int | None
    uid: int | None
    started: int | None
    run_id: str | None = None
    is_over: bool = False


Mains = Mapping[int, tuple[int, str]]
"""The main processes of the live runs of this machine: pid -> (start in clock ticks, run)."""


class Attribution:
    """Finds the runs of processes; each process of /proc is read once.

    ``live``: the runs that are not over. ``home``: the state directory whose runs control groups and marks name.
    ``by_mark``: not between users, as who may set a variable could name the run of anybody.
    """

    def __init__(self, mains: Mains, live: Collection[str], home: str, *, by_mark: bool = True) -> None:
        self._mains, self._live, self._home, self._has_marks = mains, live, home, by_mark
        self._group = b"/" + name_of(os.fsencode(home)) + b"/"
        self._known: dict[int, processes.Process | None] = {}

    def see(self, process: DeviceProcess) -> OnDevice:
        """What /proc and the runs tell of a process on a device."""
        found = self._process(process.pid)
        if found is None or process.user:
            return OnDevice(process.pid, process.memory, None, None)
        run_id = self._by_ancestors(process.pid) or self._by_group(process.pid) or self._by_mark(process.pid)
        is_over = run_id is not None and run_id not in self._live
        return OnDevice(process.pid, process.memory, owner(process.pid), found.started, run_id, is_over)

    def _process(self, pid: int) -> processes.Process | None:
        if pid not in self._known:
            self._known[pid] = processes.process(pid)
        return self._known[pid]

    def _by_ancestors(self, pid: int) -> str | None:
        for _ in range(_DEEPEST):
            found = self._process(pid)
            if found is None or pid <= 1:
                return None
            main = self._mains.get(pid)
            if main is not None and main[0] == found.started:
                return main[1]
            pid = found.parent
        return None

    def _by_group(self, pid: int) -> str | None:
        for line in (text(FILES, b"/proc/%d/cgroup" % pid) or b"").splitlines():
            _, _, inside = line.partition(self._group)
            _, mark, name = (b"/" + inside).partition(b"/" + RUN)
            if inside and mark:
                return os.fsdecode(name.partition(b"/")[0].removesuffix(b" (deleted)"))
        return None

    def _by_mark(self, pid: int) -> str | None:
        if not self._has_marks:
            return None
        try:
            variables = processes.environment(pid)
        except PermissionError:
            return None
        return variables.get(RUN_MARK) if variables.get(HOME_MARK) == self._home else None


def owner(pid: int) -> int | None:
    """The user id of a process, also of one in a container; None if there is no such process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except (FileNotFoundError, ProcessLookupError):
        return None


def mains(runs: Iterable[tuple[str, int | None, int | None, str | None]], boot: str) -> Mains:
    """The main processes of runs, given as (run, pid, start, boot), that belong to this boot of the machine."""
    return {
        pid: (started, run_id)
        for run_id, pid, started, boot_id in runs
        if pid is not None and started is not None and boot_id == boot
    }
