"""``vctl gpus``: each device with who has booked it, and beside it what is measured there, booked or not.

What is booked comes from the tables. What is measured comes from NVML on this machine, or from a recording; devices of
other nodes have no figures. A process belongs to a job if it belongs to one of the job's runs; all others on a device
are shown with their user, their age and their memory: nobody booked the device for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from vctl.core import wording
from vctl.core.nodes import LEFT as ABANDONED
from vctl.core.nodes import LOCAL, RAY, Fence
from vctl.core.resources import GPU, SCALE
from vctl.errors import Conflict, NotFound
from vctl.ops import forms
from vctl.ops.nodes import as_if_joined, get_node, user_name
from vctl.runtime import devices as probe
from vctl.runtime import nvml, processes
from vctl.runtime.measured import DeviceProcess, Measured, NvmlError
from vctl.store import devices as table
from vctl.store import nodes, observed, rows
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import GpuForm, GpuHolder, GpuProcess, NodeForm

JOB, LEFT, FOREIGN, IGNORED, UNSEEN = "job", "left", "foreign", "ignored", "unseen"
"""The kinds of processes on a device."""
FREE, BOOKED, IN_USE, AVOIDED, FENCED = "FREE", "BOOKED", "FOREIGN", "AVOIDED", "FENCED"
"""The states of a device."""
FILTERS = (
    "gpu_id",
    "node_id",
    "index",
    "uuid",
    "model",
    "state",
    "cluster_id",
    "measured",
    "booked",
    "utilization",
)


class DeviceFigures:
    """What NVML, or a recording, says of the devices of this machine now, by UUID; a trouble is a ``note``."""

    def __init__(self) -> None:
        self.source: str | None = None
        self.note = ""
        self.of: dict[str, Measured] = {}
        try:
            library = nvml.load()
            if library is not None:
                self.of = {one.uuid: one for one in library.measure()}
                self.source = library.source
        except (NvmlError, UnicodeDecodeError) as error:
            self.note = f"the devices cannot be measured: {error}"


def list_gpus(store: Store, *, filters: Sequence[str] = ()) -> list[GpuForm]:
    """Every device of every node, by node and number."""
    parsed = forms.parse_filters(filters, FILTERS)
    with as_if_joined(store), store.snapshot():
        machines = [row for row in nodes.all_rows(store) if GPU in rows.loads(row["instances"])]
        holders = _Holders(store) if machines else None
        every: list[GpuForm] = []
        for row in machines:
            assert holders is not None
            every += _of_node(store, row, holders)
    return [form for form in every if forms.matches(form, parsed)]


def ignore(store: Store, node_id: str, pid: int, *, off: bool = False) -> NodeForm:
    """Let a foreign process count no more, as long as it lives; ``off`` lets it count again."""
    with store.transaction():
        row = nodes.get(store, get_node(store, node_id)["node_id"])
        assert row is not None
        if row["source"] == RAY or row["boot_id"] not in (None, processes.boot_id()):
            raise Conflict(
                f"node {row['node_id']} is not this machine",
                fix="run the command on the machine of the process",
            )
        started = processes.start_time(pid)
        devices = rows.loads(row["devices"])
        ignored = {
            word: at for word, at in devices.get(IGNORED, {}).items() if processes.start_time(int(word)) == at
        }
        if started is None and not off:
            raise NotFound(f"there is no process {pid}", fix="see `vctl gpus` for the processes on devices")
        if off:
            ignored.pop(str(pid), None)
        elif started is not None:
            ignored[str(pid)] = started
        observed.remember_devices(store, row["node_id"], {**devices, IGNORED: ignored})
    store.wake()  # the scheduler looks again
    return get_node(store, row["node_id"])


class _Holders:
    """Who has booked which devices."""

    def __init__(self, store: Store) -> None:
        self._parts: dict[tuple[str, int], list[table.DevicePart]] = {}
        for part in table.parts(store, GPU):
            self._parts.setdefault((part.node_id, part.number), []).append(part)
        numbers = {part.job_id for some in self._parts.values() for part in some if part.job_id is not None}
        self.jobs = table.jobs(store, numbers)

    def of(self, node_id: str, index: int) -> list[GpuHolder]:
        """The jobs on a device; without one, the innermost cluster that has it."""
        parts = self._parts.get((node_id, index), [])
        working = [part for part in parts if part.job_id in self.jobs]
        return [self._form(part) for part in working or self._innermost(node_id, index)]

    def cluster_of(self, node_id: str, index: int) -> str | None:
        """The innermost logical cluster that has a device, or the most of it; None: only the primary has it."""
        found = max(self._innermost(node_id, index), key=lambda part: part.share, default=None)
        return None if found is None else found.cluster_id

    def _innermost(self, node_id: str, index: int) -> list[table.DevicePart]:
        parts = [part for part in self._parts.get((node_id, index), ()) if part.job_id is None]
        outer = {part.parent_id for part in parts}
        return [part for part in parts if part.cluster_id not in outer]

    def _form(self, part: table.DevicePart) -> GpuHolder:
        job = self.jobs.get(part.job_id) if part.job_id is not None else None
        return {
            "cluster_id": part.cluster_id if job is None else str(job["parent_cluster_id"]),
            "job_id": None if job is None else job["job_id"],
            "submission_id": None if job is None else job["submission_id"],
            "user": None if job is None else job["user"],
            "share": part.share / SCALE,
            "since": None if job is None else forms.timestamp(job["started_at"]),
        }


def _of_node(store: Store, row: Row, holders: _Holders) -> Iterable[GpuForm]:
    node_id = row["node_id"]
    known = {gpu["index"]: gpu for gpu in rows.loads(row["devices"]).get("gpus", ())}
    is_here = row["source"] == LOCAL and row["boot_id"] == processes.boot_id()
    figures = DeviceFigures() if is_here else None
    fences = {fence.number: fence for fence in rows.fences(row["fences"]) if fence.name == GPU}
    look = _Processes(store, row) if figures is not None and figures.of else None
    seen = store.recall(table.REPORTED) or {}
    idle = seen.get("idle", {}) if seen.get("node_id") == node_id else {}
    for index in sorted(map(int, rows.loads(row["instances"])[GPU])):
        device = known.get(index, {})
        measured = figures.of.get(device.get("uuid", "")) if figures is not None else None
        held = holders.of(node_id, index)
        booked = sum(one["share"] for one in held if one["job_id"] is not None)
        there = (
            [] if look is None or measured is None else look.forms(measured.processes, is_booked=bool(booked))
        )
        fence = fences.get(index)
        yield {
            "gpu_id": f"{node_id}/{index}",
            "node_id": node_id,
            "index": index,
            "uuid": device.get("uuid"),
            "model": device.get("name"),
            "state": _state(booked, there, fence),
            "booked": booked,
            "cluster_id": holders.cluster_of(node_id, index),
            "holders": held,
            "idle_since": forms.timestamp(idle.get(str(index))) if booked else None,
            "utilization": None if measured is None else measured.utilization,
            "memory_used": None if measured is None else measured.memory_used,
            "memory_total": None if measured is None else measured.memory_total,
            "divided": measured is not None and measured.divided,
            "processes": there,
            "message": _message(node_id, fence, figures),
            "commands": [_ignore(node_id, one) for one in there if one["kind"] == FOREIGN],
            "measured": None if figures is None or measured is None else figures.source,
        }


def _message(node_id: str, fence: Fence | None, figures: DeviceFigures | None) -> str | None:
    note = "" if figures is None else figures.note
    return note or None if fence is None else wording.fence_text(node_id, fence)


def _ignore(node_id: str, process: GpuProcess) -> str:
    return f"vctl node ignore {node_id} {process['pid']}"


def _state(booked: float, there: Collection[GpuProcess], fence: Fence | None) -> str:
    if fence is not None:
        return FENCED if fence.why == ABANDONED else AVOIDED
    if booked:
        return BOOKED
    return IN_USE if any(one["kind"] in (FOREIGN, LEFT) for one in there) else FREE


class _Processes:
    """The forms of the processes on the devices of this machine."""

    def __init__(self, store: Store, row: Row) -> None:
        runs = table.runs_on(store, row["node_id"])
        self._ignored: dict[str, int] = rows.loads(row["devices"]).get(IGNORED, {})
        self._job_of = {row["run_id"]: row["job_id"] for row in runs}
        mains = probe.mains(
            ((row["run_id"], row["pid"], row["pid_start"], row["boot_id"]) for row in runs),
            processes.boot_id(),
        )
        self._identity = store.identity
        self._attribution = probe.Attribution(
            mains, self._job_of, str(store.home), by_mark=store.identity is None
        )
        self._now, self._ticks = store.clock(), processes.ticks_now()

    def forms(self, there: Iterable[DeviceProcess], *, is_booked: bool) -> list[GpuProcess]:
        """The processes on one device: those that nobody booked first, then by memory."""
        forms_ = [self._form(process, is_booked=is_booked) for process in there]
        return sorted(forms_, key=lambda one: (one["kind"] == JOB, -(one["memory"] or 0), one["pid"]))

    def _form(self, process: DeviceProcess, *, is_booked: bool) -> GpuProcess:
        seen = self._attribution.see(process)
        began = None
        if process.age_s is not None:
            began = self._now - int(process.age_s * 1e9)
        elif seen.started is not None:
            began = self._now - (self._ticks - seen.started) * processes.TICK_NS
        user = process.user or (None if seen.uid is None else user_name(seen.uid))
        kind = JOB
        if seen.run_id is None:
            is_ignored = seen.started is not None and self._ignored.get(str(seen.pid)) == seen.started
            is_unseen = is_booked and seen.started is None and not process.user
            kind = UNSEEN if is_unseen else IGNORED if is_ignored else FOREIGN
        elif seen.is_over:
            kind = LEFT
        return {
            "pid": seen.pid,
            "kind": kind,
            "job_id": None if seen.run_id is None else self._job_of.get(seen.run_id),
            "user": user,
            "memory": seen.memory,
            "started_at": forms.timestamp(began),
            "command": self._command(process, seen),
        }

    def _command(self, process: DeviceProcess, seen: probe.OnDevice) -> str | None:
        """The command line, for whoever may see it: in personal mode everybody, else its user and admins."""
        who = self._identity
        if who is not None and not who.is_admin and seen.uid != who.uid:
            return None
        words = processes.command(process.pid) if seen.started is not None and not process.user else []
        text = " ".join(word.decode(errors="replace") for word in words)
        return process.command or text or None
