"""Dependencies of a new job: whether its conditions on other jobs and arrays are met, open or impossible.

Only open conditions have a row in ``dependencies``; a job enters the queue when it has none. An awaited id exists when
a job is submitted, so no job waits for itself. The end of an awaited job is handled by a rule
(``vctl/engine/rules/gates.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from vctl.engine.changes import JobEnded
from vctl.engine.rules.gates import IMPOSSIBLE, MET, OPEN, followed, judged
from vctl.engine.stimuli import AwaitedOver
from vctl.errors import param
from vctl.spec.fields import refuse
from vctl.store import dependencies as table
from vctl.store import jobs, rows
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.options import Dependency


def over(store: Store, name: str) -> AwaitedOver:
    """How many jobs of an id ended well, ended badly, and are not over; and the jobs that wait for the id."""
    return AwaitedOver(name, *table.endings(store, name), table.waiting_for(store, name))


def unmet(store: Store, after: Iterable[Dependency]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """The conditions of a new job that are not met, and the awaited ids of those that can no longer be met."""
    pairs = sorted({(dependency.condition, dependency.job) for dependency in after})
    verdicts = {pair: judged(pair[0], over(store, pair[1])) for pair in pairs}
    unsatisfied = tuple(pair for pair, verdict in verdicts.items() if verdict != MET)
    return unsatisfied, [name for (_, name), verdict in verdicts.items() if verdict == IMPOSSIBLE]


def refuse_circle(store: Store, own: Collection[str], after: Iterable[Dependency]) -> None:
    """Raise BadSpec if jobs that are known already would wait for themselves, directly or through others.

    ``own``: their ids. A new job cannot: nothing waits for it yet.
    """
    left, seen = [one.job for one in after], set[str]()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        names = table.names_of(store, name)
        if not {name, *names}.isdisjoint(own):
            path = param("after")
            raise refuse(path, f"{min(own)} would wait for itself", "name a job that does not wait for it")
        left += table.awaited_by(store, name)


def settle(store: Store, names: Iterable[str]) -> None:
    """Apply the state of these awaited ids to the jobs that wait for them; needs no scheduler.

    A condition that is met is removed; a job whose condition can no longer be met ends, which settles those that
    wait for it.
    """
    remaining = list(names)
    while remaining:
        awaited = over(store, remaining.pop(0))
        for job_id, condition in awaited.waiting:
            row = jobs.get(store, job_id)
            if row is not None and row["waits_for"] and (verdict := judged(condition, awaited)) != OPEN:
                change = followed(
                    rows.pending(row), condition, awaited.name, store.clock(), met=verdict == MET
                )
                store.emit(change)
                if isinstance(change, JobEnded):
                    remaining += [
                        name for name in (change.submission_id, change.array_id) if name is not None
                    ]
