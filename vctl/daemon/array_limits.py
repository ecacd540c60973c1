"""The running limits of arrays, from the tables: who counts, and letting in as many as there is room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.engine.array_limits import ArrayLimits, Window
from vctl.ops import gates
from vctl.store import arrays, jobs
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.daemon.following import FollowedState


def load(limits: ArrayLimits, store: Store) -> None:
    """Read all of them."""
    for row in arrays.limited(store):
        limits.array_limits.setdefault(row["array_id"], Window(row["at_once"]))
        take(limits, store, row)


def take(limits: ArrayLimits, store: Store, row: Row) -> None:
    """Take over the row of a member."""
    array_id, job_id = row["array_id"], row["job_id"]
    if array_id is None:
        return
    if array_id not in limits.array_limits:
        limit = None if row["status"] in jb.FINAL else arrays.at_once(store, array_id)
        if limit is None:
            return
        limits.array_limits[array_id] = Window(limit)
    if row["status"] in jb.FINAL or row["closed"]:
        waits = row["status"] == jb.PENDING and not row["held"] and not row["waits_for"]
        limits.keep_out(array_id, job_id, waits=waits)
    else:
        limits.let_in(array_id, job_id)


def slide(store: Store, state: FollowedState) -> None:
    """Let in as many as there is room for, in a transaction that is open."""
    limits = state.array_limits
    for array_id in sorted(limits.changed):
        window = limits.array_limits[array_id]
        while window.has_capacity:
            job_id = limits.next(window)
            row = jobs.get(store, job_id)
            if row is None or row["status"] != jb.PENDING or not row["closed"] or row["held"]:
                continue  # it was outdated
            arrays.set_closed(store, job_id, closed=False)
            gates.refresh(store, job_id)
            state.reload_job(store, job_id)
        if not (window.open or window.waiting):
            del limits.array_limits[array_id]
    limits.changed.clear()


def let_in(store: Store, state: FollowedState) -> None:
    """Members for which there is room since somebody stopped or held others."""
    if state.array_limits.may_slide:
        with store.transaction():
            state.follow(store)
            slide(store, state)
            state.caught_up(store)
