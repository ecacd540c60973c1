"""Why a task does not run: its reason now, with needed and free resources. Also checks named nodes."""

from __future__ import annotations

from functools import cached_property

from vctl.core import jobs as jb
from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core import tasks as tk
from vctl.core.clusters import PRIMARY
from vctl.core.tasks import PendingTask
from vctl.core.wording import amounts_text, cluster_text, counted, number_text
from vctl.errors import NotFound, param
from vctl.ops import late_starts
from vctl.ops.forms import Shown
from vctl.ops.reachable import Reachable
from vctl.ops.reasons import FITS_NOW, UNSEEN
from vctl.scheduler.explain.shortage import Part, Shortage, Slot, Slots
from vctl.scheduler.tasking import growing_for, pinned_to, settled_by
from vctl.store import clusters, nodes, rows
from vctl.store.store import Row, Store


class TaskReasons:
    """Reasons of tasks as of the present snapshot; equal tasks are judged once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._judged: dict[object, Shown] = {}

    @cached_property
    def capacity(self) -> Reachable:
        """The free resources, read on first use."""
        return Reachable(self.store)

    @cached_property
    def late(self) -> dict[late_starts.Work, str]:
        """Tasks with a process that could not be started yet, and why."""
        return late_starts.reasons(self.store)

    def of(self, row: Row) -> Shown:
        """Token and message of a row of ``tasks``."""
        late = self.late.get((row["job_id"], row["task_id"])) if row["ended_at"] is None else None
        if late is not None:
            return jb.START_DELAYED, late
        if row["state"] != tk.PENDING_NODE:
            return row["state_reason"], row["message"]
        key = (
            row["cluster_id"],
            row["request"],
            row["selector"],
            row["strategy"],
            row["vnode_id"],
            row["state_reason"],
        )
        if key not in self._judged:
            self._judged[key] = self._judge(rows.task(row).pending(), row["state_reason"])
        return self._judged[key]

    def _judge(self, task: PendingTask, verdict: str | None) -> Shown:
        task = self._settled(task)
        short = self.shortage(task)
        if verdict not in (jb.INFEASIBLE, jb.INSUFFICIENT):
            return jb.PENDING_EVALUATION, f"{UNSEEN}; {short.text}"
        named, slots = pinned_to(task), self._slots(task)
        grows = self._may_ever_grow(task)
        if named is not None and not slots.all and not grows:
            where = cluster_text(task.cluster_id)
            return (
                jb.INFEASIBLE,
                f"its strategy names {named}, where {where} has no virtual node that takes work",
            )
        if not any(self._holds(slot, task) for slot in slots.all) and not grows:
            alike = [slot for slot in slots.all if _matches(slot, task)]
            return jb.INFEASIBLE, self._too_large(task, alike) if alike else short.text
        if short.fits:
            return jb.PENDING_EVALUATION, f"{FITS_NOW}; {short.text}"
        if task.bound_vnode_id in {slot.slot_id for slot in slots.all}:
            drawn = f"feasible but not available on {task.bound_vnode_id}, which it drew"
            return jb.INSUFFICIENT, f"needs {short.need}; {drawn}; free: {short.free}"
        return jb.INSUFFICIENT, short.text

    def shortage(self, task: PendingTask) -> Shortage:
        """The needed resources of a task, and the free resources where it may run."""
        task = self._settled(task)
        slots = self._slots(task)
        if task.bound_vnode_id is not None:
            drawn = [slot for slot in slots.all if slot.slot_id == task.bound_vnode_id]
            slots = Slots([drawn]) if drawn else slots
        growing = self._growing_for(task) if task.bound_vnode_id is None else None
        above = () if growing is None else self.capacity.above(task.cluster_id)
        if growing is not None and above:
            slots, task = slots if slots.all else Slots(self.capacity.slots(task.cluster_id).groups), growing
        part = Part("one", {n: a for n, a in task.request.items() if a}, 1, task.selector)
        return Shortage([part], slots, above)

    def _settled(self, task: PendingTask) -> PendingTask:
        return settled_by(
            task,
            lambda there: (
                any(self._holds(slot, there) for slot in self._slots(there).all) or self._may_ever_grow(there)
            ),
        )

    def _slots(self, task: PendingTask) -> Slots:
        named, groups = pinned_to(task), self.capacity.slots(task.cluster_id).groups
        if named is not None:
            groups = [[slot for slot in group if named in (slot.slot_id, slot.node_id)] for group in groups]
        return Slots(group for group in groups if group)

    def _holds(self, slot: Slot, task: PendingTask) -> bool:
        return _matches(slot, task) and rs.within(task.request, slot.capacity.total.amounts)

    def _growing_for(self, task: PendingTask) -> PendingTask | None:
        named = pinned_to(task)
        row = None if named is None else clusters.get_vnode(self.store, named)
        return growing_for(task, None if row is None else rows.vnode(row))

    def _may_ever_grow(self, task: PendingTask) -> bool:
        if (growing := self._growing_for(task)) is None:
            return False
        for cluster, parent_id in self.capacity.growing(task.cluster_id):
            maximum = cluster.spec.flexible_max or {}
            if any(amount > maximum.get(name, amount) for name, amount in task.request.items()):
                return False
            if any(self._holds(slot, growing) for slot in self.capacity.slots(parent_id).all):
                return True
        return False

    def _too_large(self, task: PendingTask, slots: list[Slot]) -> str:
        """The requested amount, and the largest total of one virtual node."""
        where = pinned_to(task) or cluster_text(task.cluster_id)
        need = amounts_text(task.request)
        for name, amount in sorted(task.request.items()):
            largest = max((slot.capacity.total.amounts.get(name, 0) for slot in slots), default=0)
            if amount > largest:
                have = f"the largest virtual node has {number_text(name, largest)} {name}"
                return f"exceeds the capacity of {where}: {need} asked on one virtual node, {have}"
        count = counted(len(slots), "virtual node")
        return f"exceeds the capacity of {where}: {need} asked on one virtual node, none of {count} has all of it"


def _matches(slot: Slot, task: PendingTask) -> bool:
    return not task.selector or lb.matches(task.selector, slot.labels())


def check_node(store: Store, cluster_id: str, strategy: str) -> None:
    """Refuse a hard ``NODE:<id>`` without a virtual node of the cluster or a physical node of this id."""
    node_id, otherwise = tk.named_by(strategy)
    if node_id is None or otherwise:
        return
    vnode = clusters.get_vnode(store, node_id)
    if (vnode is not None and vnode["cluster_id"] == cluster_id) or nodes.get(store, node_id) is not None:
        return
    vnode_ids = [str(row["vnode_id"]) for row in clusters.vnode_rows(store, cluster_id)]
    known = ", ".join(vnode_ids[:4]) + (" …" if len(vnode_ids) > 4 else "")
    raise NotFound(
        f"{param('strategy')}: NODE:{node_id}: there is no node {node_id} in {cluster_text(cluster_id)}",
        fix=f"name one of {known}, or write NODE:{node_id}:{tk.SOFT} to run elsewhere when it is not there",
        details={"path": param("strategy"), "node": node_id, "cluster_id": cluster_id or PRIMARY},
    )
