"""What is used of the limits of users and clusters, by the tables; and a change of a job's cluster that keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial

from vctl.core.jobs import USER_LIMIT
from vctl.core.wording import cluster_text
from vctl.errors import Conflict
from vctl.scheduler.explain.refusal import Refusal
from vctl.scheduler.explain.words import limit_reached
from vctl.scheduler.limits import LimitUse, gpu_time
from vctl.spec.ids import JOB_MARK
from vctl.store import jobs, rows
from vctl.store import limits as table
from vctl.store.store import Store


def use_of(store: Store) -> LimitUse:
    """What the running jobs have of that which the limits in force are of."""
    given = table.load(store)
    chain = cache(partial(table.chain, store))
    if not given:
        return LimitUse(given, (), chain)
    spent: Iterable[tuple[tuple[str, str], Iterable[tuple[int, int]]]] = ()
    if given.periods:
        running = map(rows.running, jobs.running_rows(store))
        spent = gpu_time(table.spent(store, given), running, store.clock())
    return LimitUse(given, table.running(store), chain, spent, store.clock())


@contextmanager
def limits_kept(store: Store, cluster_id: str) -> Iterator[None]:
    """Inside, a cluster changes. Raises Conflict if its job then exceeds a limit by more than before."""
    parent_id, is_inside, rest = cluster_id.partition(JOB_MARK)
    number = jobs.number_of(store, rest.partition(JOB_MARK)[0]) if is_inside and table.exist(store) else None
    row = None if number is None else jobs.get(store, number)
    if row is None:
        yield
        return
    user = str(row["user"])
    before = use_of(store)
    yield
    after = use_of(store)
    for limit in after.that_hold(parent_id, user):
        used = 0 if limit.period else after.of(limit, user)
        if used > max(limit.amount, before.of(limit, user)):
            of = {limit.resource: used - before.of(limit, user)}
            refusal = Refusal(USER_LIMIT, limit.resource, used, limit.amount, of, limit=limit)
            raise Conflict(
                f"{cluster_text(cluster_id)} would exceed a limit: {limit_reached(refusal, parent_id, user)}",
                fix="ask for less, or stop other jobs first; `vctl limit list` shows what is used",
            )
