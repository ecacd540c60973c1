"""The running limits of arrays, from the tables: who counts, and letting in as many as there is room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.engine.array_limits import ArrayLimits, Window
from vctl.ops import gates
from vctl.store import arrays, jobs
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.daemon.mirror import Mirror


def load(limits: ArrayLimits, store: Store) -> None:
    """Read all of them."""
    for row in arrays.limited(store):
        limits.windows.setdefault(row["array_id"], Window(row["at_once"]))
        take(limits, store, row)


def take(limits: ArrayLimits, store: Store, row: Row) -> None:
    """Take over the row of a member."""
    array_id, job_id = row["array_id"], row["job_id"]
    if array_id is None:
        return
    if array_id not in limits.windows:
        limit = None if row["status"] in jb.FINAL else arrays.at_once(store, array_id)
        if limit is None:
            return
        limits.windows[array_id] = Window(limit)
    if row["status"] in jb.FINAL or row["closed"]:
        waits = row["status"] == jb.PENDING and not row["held"] and not row["waits_for"]
        limits.keep_out(array_id, job_id, waits=waits)
    else:
        limits.let_in(array_id, job_id)


def slide(store: Store, mirror: Mirror) -> None:
    """Let in as many as there is room for, in a transaction that is open."""
    limits = mirror.windows
    for array_id in sorted(limits.changed):
        window = limits.windows[array_id]
        while window.has_room:
            job_id = limits.next(window)
            row = jobs.get(store, job_id)
            if row is None or row["status"] != jb.PENDING or not row["closed"] or row["held"]:
                continue  # it was outdated
            arrays.set_closed(store, job_id, closed=False)
            gates.refresh(store, job_id)
            mirror.reload_job(store, job_id)
        if not (window.open or window.waiting):
            del limits.windows[array_id]
    limits.changed.clear()


def let_in(store: Store, mirror: Mirror) -> None:
    """Members for which there is room since somebody stopped or held others."""
    if mirror.windows.may_slide:
        with store.transaction():
            mirror.follow(store)
            slide(store, mirror)
            mirror.caught_up(store)
