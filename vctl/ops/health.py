"""``vctl doctor``: faults of the state, and notes about this machine and its limits."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vctl.core.wording import listed
from vctl.engine.changes import RowSetAside
from vctl.errors import Damaged
from vctl.ops import forms, objects
from vctl.ops import prove as proof
from vctl.ops import replay as replaying
from vctl.ops.minimums import all_below_minimum
from vctl.ops.overview import device_troubles
from vctl.ops.views import scheduler
from vctl.runtime.records_mark import asides, of_earlier_builds
from vctl.store import copies, database, feed, files, nodes, ownership, replaced, runs
from vctl.store import repair as raw
from vctl.store.ownership import TABLES
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.reports import Diagnosis

MOST_NAMED = 5
SETTLE_S = 0.05
LARGE_BYTES = 256 << 20
_LEFT_OUT = (
    "the tables are large: their indexes were not compared with them; `vctl doctor --prove` does that, too"
)
CGROUP = Path("/sys/fs/cgroup/cgroup.controllers")


def doctor(
    store: Store, *, prove: bool = False, repair: bool = False, tried: Sequence[str] = ()
) -> Diagnosis:
    """Findings, which are faults, and notes, which are not. ``repair`` makes the safe repairs first.

    The tables and the rules of the tree are always checked; ``prove`` checks the rows of finished objects, too, and
    adds the number of checked rows of each table. Only ``prove`` checks the entries of the indexes of a large file.
    ``tried``: notes about this machine from whoever may start processes to try it.
    """
    indexes = prove or not _is_large(store)
    if damaged := raw.integrity(store, indexes=indexes):  # other checks of damaged tables mean nothing
        fix = (
            "stop the daemon, then put a backup in place with `vctl restore FILE`; what is there now is kept"
        )
        return {"ok": False, "findings": damaged, "notes": [fix], "repaired": []}
    repaired: list[str] = []
    if repair:
        repaired = _set_unshown_aside(store)
        done = replaying.replay(store)
        repaired += [action for step in done["steps"] for action in step["actions"]]
        repaired += objects.remove_orphaned(store)
    findings = [
        *_database(store), *_unreadable_rows(store, all_rows=prove), *proof.prove(store, all_rows=prove),
        *_below_minimum(store), *_orphans(store), *objects.without_files(store), *_clock(store),
    ]  # fmt: skip
    result: Diagnosis = {
        "ok": not findings,
        "findings": findings,
        "notes": _notes(store, tried) + [_LEFT_OUT] * (not indexes),
        "repaired": repaired,
    }
    if prove:
        result["checked"] = {
            table: raw.count_rows(store, table) for table in ("nodes", "clusters", "vnodes", "jobs", "runs")
        }
    return result


def _set_unshown_aside(store: Store) -> list[str]:
    with store.transaction():
        found = list(replaying.unshown(store))
        for change in found:
            store.emit(change)
    return [
        f"set aside unreadable row {change.public_event().object_id} of {change.table}: {change.problem}"
        for change in found
    ]


def unreadable(store: Store) -> Damaged | None:
    """The error that names a damaged definition or row; None when all can be read. For failures of unknown cause."""
    if table := copies.odd_table(store.db):
        return _damaged(f"table {table} has other columns than vctl made")
    if found := _unreadable_rows(store, all_rows=True):
        fix = "set it aside with `vctl doctor --repair`; a scheduler that starts does so with most"
        return Damaged(found[0], fix=fix)
    if name := copies.odd_definition(store.db):
        return _damaged(f"{name} is not as vctl made it")
    return None


def _damaged(problem: str) -> Damaged:
    return Damaged(
        f"the tables of the state directory are damaged: {problem}",
        fix="stop the daemon, then put a backup in place with `vctl restore FILE`",
    )


def _unreadable_rows(store: Store, *, all_rows: bool) -> list[str]:
    """The rows that the next scheduler, or a repair, sets aside; with ``all_rows`` also rows of finished objects."""
    with store.snapshot():
        changes = [*replaying.examine(store).changes, *(replaying.unshown(store) if all_rows else ())]
    named = {
        (change.table, change.public_event().object_id): change.problem
        for change in reversed(changes)
        if isinstance(change, RowSetAside)
    }
    return [f"a row of {table} ({key}) cannot be read: {problem}" for (table, key), problem in named.items()]


def _database(store: Store) -> list[str]:
    found = [
        f"a row of {row['source']} ({row['row_key']}) was set aside: {row['problem']}"
        for row in raw.set_aside_rows(store)
    ]
    if lost := store.lost():
        found.append(
            f"changes {lost[0]} to {lost[1]} were confirmed and are not in the tables: the end of cluster.db-wal was"
            " cut or damaged; a later backup may have them (`vctl restore FILE`)"
        )
    found += [
        f"{path} has tables that were removed or replaced while they were used: put them back with"
        f" `vctl restore {path}`, or remove it"
        for path in sorted(store.home.glob(f"{ownership.TABLES}{files.REMOVED}*"))
    ]
    if replaced.holders(store.home):
        time.sleep(SETTLE_S)  # a process that ends has the files open for a moment after their removal
        found += [
            f"{who} works on files of the tables that were removed or replaced: end it, it puts back what it has"
            for who in replaced.holders(store.home)
        ]
    path = database.database_path(store.home)
    for place, mode in ((store.home, 0o700), (path, 0o600)):
        if place.stat().st_mode & 0o777 & ~mode:
            found.append(
                f"{place} can be read by others (mode {place.stat().st_mode & 0o777:o}, should be {mode:o})"
            )
    kind = database.filesystem_of(store.home)
    if kind in database.NETWORK_FILESYSTEMS:
        found.append(f"{store.home} is on a network filesystem ({kind})")
    return found


def _below_minimum(store: Store) -> list[str]:
    with store.snapshot():
        return [one.text for one in all_below_minimum(store).values()]


def _orphans(store: Store) -> list[str]:
    """Live runs that belong to no job in the tables."""
    from vctl.runtime.local import LocalRuntime
    from vctl.runtime.protocol import RunState

    runtime = LocalRuntime(store.home)
    known = {row["run_id"] for row in runs.live_rows(store)}
    found = [
        f"run {run_id} has processes but belongs to no job"
        for run_id in runtime.known_runs()
        if run_id not in known and runtime.observe(run_id).state in (RunState.STARTING, RunState.RUNNING)
    ]
    runtime.close()
    return found


def _clock(store: Store) -> list[str]:
    newest = feed.newest_at(store)
    if newest is not None and newest > store.clock() + 1_000_000_000:
        return [
            f"the clock is {(newest - store.clock()) / 1e9:.0f} s behind the newest event: it was set back"
        ]
    return []


def _is_large(store: Store) -> bool:
    """Whether a comparison of each entry of each index with its row takes more than about a second."""
    return os.stat(store.home / TABLES).st_size > LARGE_BYTES


def _notes(store: Store, tried: Sequence[str]) -> list[str]:
    notes = []
    state = scheduler(store)
    if not state["running"]:
        notes.append("no scheduler is running; start one with `vctl daemon`")
    notes += [
        f"node {row['node_id']} is {row['state']}" + (f": {row['reason']}" if row["reason"] else "")
        for row in nodes.all_rows(store)
        if row["state"] != "ALIVE"
    ]
    if orphaned := [f"{job_id}.{attempt}.{node_id}" for job_id, attempt, node_id in objects.orphaned(store)]:
        notes.append(
            f"files of objects that no job needs any more: {listed(orphaned, MOST_NAMED)}; the scheduler removes them"
        )
    if aside := [str(path.relative_to(store.home)) for path in asides(store.home)]:
        notes.append(
            f"files that are no records or logs: {listed(aside, MOST_NAMED)}; `vctl prune` deletes them"
        )
    if folders := of_earlier_builds(store.home):
        notes.append(
            f"{listed(folders, MOST_NAMED)}: records of a build before the first release; nothing uses them, and they"
            " can be deleted once no process of that build is left"
        )
    is_writable = CGROUP.exists() and os.access(CGROUP.parent, os.W_OK)
    cgroup = "cgroup v2 is writable, but not used" if is_writable else "no writable cgroup v2"
    notes.append(f"{cgroup}: on the local node CPU limits are by affinity, memory limits by a watchdog")
    notes += [trouble["message"] for trouble in device_troubles(store)]
    notes += tried
    if database.is_full(store.home):
        notes.append(f"the disk of {store.home} is full: the scheduler and commands that write wait or fail")
    from vctl.runtime.detect import detect

    notes += list(detect().notes)
    notes.append(f"checked at {forms.timestamp(time.time_ns())}")
    return notes
