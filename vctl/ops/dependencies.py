"""Jobs that wait for others: what a condition says about a job or an array, and what follows when that ends.

Only what is still open has a row in ``dependencies``; a job is in the queue once none of its own is left. An awaited
id exists when a job is submitted, so nothing ever waits for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.engine.changes import Change, DependencyMet, JobEnded
from vctl.store import dependencies as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.options import Dependency

OPEN, MET, IMPOSSIBLE = "open", "met", "impossible"


def judge(store: Store, condition: str, awaited: str) -> str:
    """Whether a condition came true, can no longer, or is open."""
    good, bad, left = table.endings(store, awaited)
    if good + bad + left == 0:  # deleted, so it is over; how it ended is not known any more
        return MET if condition == "any" else IMPOSSIBLE
    if condition == "ok" and bad:
        return IMPOSSIBLE
    if left:
        return OPEN
    if condition == "any" or (condition == "ok") == (bad == 0):
        return MET
    return IMPOSSIBLE


def unmet(store: Store, after: Iterable[Dependency]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Conditions of a new job that have not come true, and the ids of those that can no longer."""
    wanted = {(one.condition, one.job) for one in after}
    verdicts = {pair: judge(store, *pair) for pair in sorted(wanted)}
    kept = tuple(pair for pair, verdict in verdicts.items() if verdict != MET)
    return kept, [name for (_, name), verdict in verdicts.items() if verdict == IMPOSSIBLE]


def settle(store: Store, names: Iterable[str], emit: Callable[[Change], None]) -> None:
    """Follow up the end of jobs: release those that waited for it, fail those for which it was the wrong end."""
    todo = deque(names)
    while todo:
        awaited = todo.popleft()
        verdicts: dict[str, str] = {}
        left: dict[int, int] = {}
        for row in table.waiting_for(store, awaited):
            job_id, condition = row["job_id"], row["condition"]
            if condition not in verdicts:
                verdicts[condition] = judge(store, condition, awaited)
            before = left.get(job_id, row["waits_for"])
            if before and verdicts[condition] == MET:
                left[job_id] = before - 1
                emit(_met(row, awaited, before - 1))
            elif before and verdicts[condition] == IMPOSSIBLE:
                left[job_id] = 0
                emit(_failed(row, awaited, store.clock()))
                todo.extend(name for name in (row["submission_id"], row["array_id"]) if name)


def _met(row: Row, awaited: str, left: int) -> DependencyMet:
    return DependencyMet(
        row["job_id"], row["submission_id"], row["parent_cluster_id"], row["condition"], awaited, left
    )


def _failed(row: Row, awaited: str, now: int) -> JobEnded:
    """The job will never run."""
    wish = {"ok": "to succeed", "notok": "to fail", "any": "to end"}[row["condition"]]
    return JobEnded(
        now, row["job_id"], row["submission_id"], row["array_id"], row["parent_cluster_id"], "reject", jb.FAILED,
        jb.DEPENDENCY_FAILED, f"it waited for {awaited} {wish}, which can no longer happen", None,
    )  # fmt: skip
