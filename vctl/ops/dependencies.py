"""Jobs that wait for others: what a condition says about a job or an array, and what follows when that ends.

Only what is still open has a row in ``dependencies``; a job is in the queue once none of its own is left. An awaited
id exists when a job is submitted, so nothing ever waits for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.engine.changes import JobEnded
from vctl.ops import gates
from vctl.store import dependencies as table
from vctl.store import jobs
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.options import Dependency

OPEN, MET, IMPOSSIBLE = "open", "met", "impossible"
UNBLOCKED = "job.unblocked"


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


def attach(store: Store, job_ids: Sequence[int], after: Iterable[Dependency]) -> None:
    """Let new jobs wait for others, by ids that exist; inside the transaction of their submit."""
    wanted = {(one.condition, one.job) for one in after}
    verdicts = {pair: judge(store, *pair) for pair in sorted(wanted)}
    kept = [pair for pair, verdict in verdicts.items() if verdict != MET]
    if not kept:
        return
    table.insert(store, job_ids, kept)
    if lost := [name for (_, name), verdict in verdicts.items() if verdict == IMPOSSIBLE]:
        settle(store, lost)


def settle(store: Store, names: Iterable[str]) -> None:
    """Follow up the end of jobs: release those that waited for it, fail those for which it was the wrong end."""
    todo = deque(names)
    while todo:
        awaited = todo.popleft()
        verdicts: dict[str, str] = {}
        for row in table.waiting_for(store, awaited):
            condition = row["condition"]
            if condition not in verdicts:
                verdicts[condition] = judge(store, condition, awaited)
            match verdicts[condition]:
                case "met":
                    _release(store, row["job_id"], condition, awaited)
                case "impossible":
                    todo.extend(_fail(store, row["job_id"], condition, awaited))


def _release(store: Store, job_id: int, condition: str, awaited: str) -> None:
    table.remove(store, job_id, condition, awaited)
    gates.refresh(store, job_id)
    job = jobs.get(store, job_id)
    if job is not None and not job["waits_for"]:
        jobs.tell(store, job, UNBLOCKED, {"awaited": awaited})


def _fail(store: Store, job_id: int, condition: str, awaited: str) -> list[str]:
    """Record that a job will never run; returns what others may wait for in it."""
    table.remove_all(store, job_id)
    job = jobs.get(store, job_id)
    if job is None or job["status"] != jb.PENDING:
        return []
    wish = {"ok": "to succeed", "notok": "to fail", "any": "to end"}[condition]
    store.emit(JobEnded(
        store.clock(), job_id, job["submission_id"], job["array_id"], job["parent_cluster_id"], "reject", jb.FAILED,
        jb.DEPENDENCY_FAILED, f"it waited for {awaited} {wish}, which can no longer happen", None,
    ))  # fmt: skip
    return [job["submission_id"], *([job["array_id"]] if job["array_id"] else [])]
