"""The observer of this machine's devices: it finds processes on them that keep a device from new work.

A look asks NVML in a thread: a driver that hangs must not stop the scheduler. Looks are repeated while the machine has
devices, and one follows each end of a run that held one, in the turn of that end, before its place is given away.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Container, Iterable, Mapping

from vctl.core.clusters import LOGICAL, PRIMARY_KIND
from vctl.core.nodes import FOREIGN, LEFT, LOCAL, Fence, Node
from vctl.core.resources import GPU
from vctl.core.values import field, value
from vctl.daemon.following import FollowedState
from vctl.daemon.trouble import say
from vctl.engine.stimuli import DevicesObserved, Now, ProcessOver, Stimulus
from vctl.ops.nodes import user_name
from vctl.runtime import nvml, processes
from vctl.runtime.devices import Attribution, OnDevice, mains
from vctl.runtime.measured import DeviceLibrary, DeviceProcess, Measured, NvmlError
from vctl.store import nodes as table
from vctl.store import observed, rows
from vctl.store.devices import REPORTED
from vctl.store.store import Store

EVERY_S, FENCED_S, STALE_S = 5.0, 1.0, 0.25
"""The time between two looks, while a device is fenced, and before a start where foreign processes are avoided."""
AVOID = "avoid"
AT_ONCE_S = 0.25
"""How long a turn waits for the figures: a driver that is well needs milliseconds."""


@value(frozen=True, slots=True)
class DevicePolicy:
    """What is done about processes that nobody booked: ``ignore``, ``report`` or ``avoid``, above so many bytes.

    ``idle_s``: after this time without use a booked device is reported as idle; 0: never.
    """

    word: str = "report"
    least_bytes: int = 256 << 20
    idle_s: float = 1800.0


@value(slots=True)
class _Use:
    """The use of a booked device: by which runs, how much memory, and since when it is flat."""

    runs: frozenset[str]
    memory: int
    since: int


class DeviceReader:
    """The figures of the devices, read in a thread."""

    def __init__(self, wake: Callable[[], None], load: Callable[[], DeviceLibrary | None]) -> None:
        self._wake, self._load = wake, load
        self._library: DeviceLibrary | None = None
        self._thread: threading.Thread | None = None
        self._result: list[Measured] | None = None
        self.problem = ""

    def ask(self) -> list[Measured] | None:
        """The figures now; None if they are not there yet (``wake`` is called then), or cannot be had."""
        if self._thread is None:
            self._result = None
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
            self._thread.join(AT_ONCE_S)
        if self._thread.is_alive():
            return None
        self._thread = None
        return self._result

    @property
    def is_ready(self) -> bool:
        """Whether a look that took long is over."""
        return self._thread is not None and not self._thread.is_alive()

    def _read(self) -> None:
        try:
            self._library = self._library or self._load()
            self._result = [] if self._library is None else self._library.measure()
            self.problem = ""
        except (NvmlError, UnicodeDecodeError) as error:
            self.problem = str(error)
        with contextlib.suppress(OSError):
            self._wake()


_Found = tuple[OnDevice, DeviceProcess]


@value(slots=True)
class _Place:
    """The node of this machine with its devices: UUID -> number, and the ignored processes: pid -> start."""

    node_id: str
    numbers: Mapping[str, int]
    ignored: Mapping[int, int] = field(default_factory=dict)

    def counts(self, found: OnDevice, process: DeviceProcess, *, is_booked: bool) -> bool:
        """Whether a process without a run counts as foreign.

        One that /proc does not show is of another PID namespace: on a booked device it may be the job's.
        """
        if found.started is None:
            return bool(process.user) or not is_booked
        return self.ignored.get(found.pid) != found.started


class DeviceObserver:
    """Looks at the devices of this machine. Without devices it does nothing."""

    def __init__(
        self, store: Store, policy: DevicePolicy, load: Callable[[], DeviceLibrary | None] = nvml.load
    ) -> None:
        self.store, self.policy = store, policy
        self.figures = DeviceReader(store.wake, load)
        self._boot = processes.boot_id()
        self._at = self._seen_at = 0
        self._node_id: str | None = None
        """The node of this machine, if it has devices, as of the last regular look."""
        self._run_of: dict[tuple[int, int], str] = {}
        """(pid, start) -> the run to which the process belonged when it was last seen on a device."""
        self._said = ""
        self._uses: dict[int, _Use] = {}

    def begin(self) -> None:
        """Look in the first turn after a state was loaded."""
        self._at = 0

    def due(self) -> list[int]:
        """When the next look is due, in ns since the machine started."""
        return [] if self._node_id is None else [self._at]

    def observe(
        self, state: FollowedState, stimuli: Iterable[Stimulus], now: Now, *, has_work: bool
    ) -> list[Stimulus]:
        """What keeps devices from new work, if it is time to look. ``has_work``: jobs come, beside those that wait."""
        if self._at <= now.uptime:
            self._node_id = self._here(state, state.ledger.nodes)
        elif self._node_id is None:
            self._node_id = self._here(state, state.changed.nodes)
        elif not (
            self.figures.is_ready
            or self._starts(state, now, has_work=has_work)
            or self._frees(state, stimuli)
        ):
            return []
        if self._node_id is None:
            if self._at <= now.uptime:
                self._at = now.uptime + int(EVERY_S * 1e9)
            return []
        self._at, self._seen_at = now.uptime + int(EVERY_S * 1e9), now.uptime
        node = state.ledger.nodes.get(self._node_id)
        if node is None or (measured := self._measured()) is None:
            return []
        ending = {one.run.run_id for one in stimuli if isinstance(one, ProcessOver)}
        booked = self._booked(state, node, ending)
        fences, foreign = self._look(state, node, measured, booked, ending)
        self._report(node.node_id, foreign, self._idle(booked, measured, now))
        if fences:
            self._at = min(self._at, now.uptime + int(FENCED_S * 1e9))
        return [DevicesObserved(node.node_id, tuple(fences))] if fences or node.fences else []

    def _here(self, state: FollowedState, node_ids: Iterable[str]) -> str | None:
        """The node of this machine among these, if it has devices."""
        found = filter(None, map(state.ledger.nodes.get, node_ids))
        of_machine = (
            node.node_id
            for node in found
            if node.source == LOCAL and node.boot_id == self._boot and GPU in node.total.instances
        )
        return next(of_machine, None)

    def _starts(self, state: FollowedState, now: Now, *, has_work: bool) -> bool:
        """Whether jobs may start now that the figures are too old for, where foreign processes are avoided."""
        if self.policy.word != AVOID or now.uptime < self._seen_at + int(STALE_S * 1e9):
            return False
        return has_work or any(queue.jobs for queue in state.queues.values())

    def _frees(self, state: FollowedState, stimuli: Iterable[Stimulus]) -> bool:
        """Whether a run that may have used devices of this machine has ended."""
        for one in stimuli:
            if isinstance(one, ProcessOver) and one.run.node_id == self._node_id:
                vnode = state.ledger.vnodes.get(one.run.vnode_id)
                if vnode is None or GPU in vnode.allocation.instances:
                    return True
        return False

    def _measured(self) -> list[Measured] | None:
        measured = self.figures.ask()
        if (problem := self.figures.problem) != self._said:
            self._said = problem
            say(f"devices cannot be measured: {problem}" if problem else "devices can be measured again")
        return None if problem else measured

    def _booked(self, state: FollowedState, node: Node, ending: set[str]) -> dict[int, set[str]]:
        """Device -> the runs whose jobs have booked it, or a share of it."""
        booked: dict[int, set[str]] = {}
        for run_id, run in state.runs.items():
            if run.node_id != node.node_id or run_id in ending:
                continue
            vnode = state.ledger.vnodes.get(run.vnode_id)
            is_own = vnode is not None and state.ledger.clusters[vnode.cluster_id].kind not in (
                PRIMARY_KIND,
                LOGICAL,
            )
            held = vnode.allocation if vnode is not None and is_own else run.allocation
            for number in held.instances.get(GPU, ()):
                booked.setdefault(number, set()).add(run_id)
        return booked

    def _idle(self, booked: Mapping[int, set[str]], measured: Iterable[Measured], now: Now) -> dict[str, int]:
        """The booked devices that have not been used for long -> since when: no use, and memory that is flat."""
        place = self._place(self._node_id or "") if booked and self.policy.idle_s else None
        figures = {place.numbers.get(one.uuid): one for one in measured} if place is not None else {}
        uses: dict[int, _Use] = {}
        for number, runs in booked.items():
            if (figure := figures.get(number)) is None:
                continue
            before, present = self._uses.get(number), _Use(frozenset(runs), figure.memory_used, now.wall)
            is_flat = (
                before is not None
                and figure.utilization == 0
                and before.runs == present.runs
                and abs(before.memory - present.memory) <= figure.memory_total // 100
            )
            uses[number] = before if before is not None and is_flat else present
        self._uses = uses
        after = int(self.policy.idle_s * 1e9)
        return {str(number): use.since for number, use in uses.items() if use.since + after <= now.wall}

    def _report(self, node_id: str, foreign: dict[int, list[int]], idle: dict[str, int]) -> None:
        """Keep for commands, which do not measure, what foreign processes use and what lies idle."""
        found = (
            {str(number): pids for number, pids in foreign.items()} if self.policy.word != "ignore" else {}
        )
        said = {"node_id": node_id, "pids": found, "idle": idle} if found or idle else None
        if said != self.store.recall(REPORTED):
            with self.store.transaction():
                observed.remember(self.store, REPORTED, said)

    def _look(
        self, state: FollowedState, node: Node, measured: Iterable[Measured], booked: Container[int],
        ending: set[str],
    ) -> tuple[list[Fence], dict[int, list[int]]]:  # fmt: skip
        place = self._place(node.node_id) if any(one.processes for one in measured) else None
        if place is None:
            self._run_of.clear()
            return [], {}
        live = {run_id: run for run_id, run in state.runs.items() if run_id not in ending}
        here = (run for run in live.values() if run.node_id == node.node_id)
        known = mains(((run.run_id, run.pid, run.pid_start, run.boot_id) for run in here), self._boot)
        look = Attribution(known, live, str(self.store.home))
        before, self._run_of = self._run_of, {}
        fences, strangers = list[Fence](), dict[int, list[int]]()
        for device in measured:
            number = place.numbers.get(device.uuid)
            if number is None or number not in node.total.instances.get(GPU, ()):
                continue
            left, foreign = list[_Found](), list[_Found]()
            for process in device.processes:
                found = look.see(process)
                key = (found.pid, found.started or 0)
                if (run_id := found.run_id or before.get(key)) is not None:
                    self._run_of[key] = run_id
                    if run_id not in live:
                        left.append((found, process))
                elif place.counts(found, process, is_booked=number in booked):
                    foreign.append((found, process))
            if left:
                run_id = self._run_of[left[0][0].pid, left[0][0].started or 0]
                fences.append(_fence(number, LEFT, left, of=f"job {run_id.partition('.')[0]}"))
            elif self.policy.word == AVOID and self._counts(foreign):
                fences.append(_fence(number, FOREIGN, foreign))
            if foreign:
                strangers[number] = sorted(one.pid for one, _ in foreign)
        return fences, strangers

    def _counts(self, foreign: Iterable[_Found]) -> bool:
        """Whether processes have more memory than is tolerated; an unknown amount may be any."""
        held = [one.memory for one, _ in foreign]
        return bool(held) and (None in held or sum(one or 0 for one in held) > self.policy.least_bytes)

    def _place(self, node_id: str) -> _Place | None:
        row = table.get(self.store, node_id)
        if row is None:
            return None
        devices = rows.loads(row["devices"])
        numbers = {gpu["uuid"]: gpu["index"] for gpu in devices.get("gpus", ())}
        return _Place(node_id, numbers, {int(pid): at for pid, at in devices.get("ignored", {}).items()})


def _fence(number: int, why: str, some: list[_Found], of: str = "") -> Fence:
    some.sort(key=lambda pair: (-(pair[0].memory or 0), pair[0].pid))
    first, recorded = some[0]
    owner = recorded.user or ("" if first.uid is None else user_name(first.uid))
    pids = tuple(one.pid for one, _ in some)
    return Fence(GPU, number, why, pids, owner, sum(one.memory or 0 for one, _ in some), 0, of)
