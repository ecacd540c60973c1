"""Failover replay: reads the tables, sets unreadable rows aside, and writes changes that repair the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from vctl import ops
from vctl.core.clusters import LOGICAL, PRIMARY
from vctl.core.fitting import fits
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.values import is_value
from vctl.engine import replay as rebuilding
from vctl.engine.changes import NominationDropped, RowSetAside
from vctl.engine.replay import TITLES, Replayed, TableRows
from vctl.errors import Conflict
from vctl.store import (
    clusters,
    jobs,
    leases,
    nodes,
    preemptions,
    provider,
    queues,
    repair,
    reservations,
    rows,
    runs,
    settings,
    tasks,
    upkeep,
    usage,
)
from vctl.store.database import NotText, raw_text
from vctl.store.locks import SchedulerLock
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec import reports

Value = TypeVar("Value")
Job = TypeVar("Job", PendingJob, RunningJob)
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, AssertionError)
"""The exceptions that reading an invalid row raises."""


def replay(store: Store, *, dry_run: bool = False) -> reports.ReplayForm:
    """``vctl replay``: run the six steps and report their changes; ``dry_run`` only reports them."""
    if dry_run:
        with store.snapshot():
            return _form(examine(store))
    ops.rights.check_service(store, "the state as a whole")
    lock = SchedulerLock(store.home)
    if not lock.acquire("replay"):
        raise Conflict(
            "a scheduler is running, and it replayed the tables when it started",
            fix="stop it first, or look with `vctl replay --dry-run`",
        )
    try:
        ops.nodes.ensure_local(store, register=False)
        return _form(rebuild(store))
    finally:
        lock.release()


def unshown(store: Store) -> Iterator[RowSetAside]:
    """The changes that set aside jobs and tasks, also finished ones, and events that cannot be shown.

    A replay does not read the rows of finished objects.
    """
    makers: Mapping[str, Callable[[Row], object]] = {
        "jobs": lambda row: (
            ops.forms.job(store, row, None, (None, None)),
            rows.spec(row["spec"]),
            rows.entry(row["entry"]),  # needed to run the job again
        ),
        "tasks": lambda row: ops.tasks.form(row, (None, None)),
        "events": ops.forms.event,
    }
    with raw_text(store.db):
        for table, make in makers.items():
            for row in repair.table_rows(store, table):
                try:
                    _check_key_and_text(row)
                    make(row)
                except UNREADABLE as error:
                    yield repair.aside(store, table, row, f"{type(error).__name__}: {error}")
                    continue
                if problem := None if table == "events" else _wrong_command(store, table, row):
                    yield repair.aside(store, table, row, f"its command cannot be read: {problem}")


def _wrong_command(store: Store, table: str, row: Row) -> str | None:
    """The problem in the stored command of a job or a task; None if it can be read."""
    of_job = table == "jobs"
    launch = jobs.launch(store, row["job_id"]) if of_job else tasks.launch(store, row["task_id"])
    if launch is None:
        return None
    kinds = {"argv": list, "env": dict, "options": dict, "rules": dict}
    texts = {**launch, "rules": row["rules"]} if of_job else dict(launch)
    for name in kinds.keys() & texts.keys():
        try:
            if not isinstance(rows.loads(texts[name]), kinds[name]):
                raise ValueError("it is of another type")
        except UNREADABLE as error:
            return f"{name}: {error}"
    return None


def _check_key_and_text(row: Row) -> None:
    if row[0] is None:
        raise ValueError("its key is NULL")
    if bytes not in map(type, row):
        return
    for name, value in zip(row.keys(), row, strict=True):
        if isinstance(value, bytes):
            raise ValueError(f"{name} is not UTF-8 text")


def _form(done: Replayed) -> reports.ReplayForm:
    steps: list[reports.ReplayStep] = [
        {"step": number, "title": title, "actions": actions}
        for number, (title, actions) in enumerate(zip(TITLES, done.steps, strict=True), 1)
    ]
    return {"steps": steps, "changes": sum(map(len, done.steps))}


def rebuild(store: Store, *, strict: bool = True) -> Replayed:
    """Run the six steps in one transaction. ``strict`` as in ``examine``."""
    with store.transaction():
        done = examine(store, strict=strict)
        for change in done.changes:
            store.emit(change)
    return done


def examine(store: Store, *, strict: bool = True) -> Replayed:
    """The findings of the six steps; writes nothing. ``strict`` also reads waiting jobs and checks types."""
    try:
        return _examine(store, strict=strict)
    except NotText:
        with raw_text(store.db):
            return _examine(store, strict=True)


def _read(row: Row, make: Callable[[Row], Value], *, looks_close: bool) -> Value:
    _check_key_and_text(row)
    value = make(row)
    if looks_close and is_value(value) and not fits(value, type(value)):
        raise ValueError("a value in it is of another type")
    return value


def _examine(store: Store, *, strict: bool) -> Replayed:
    done = Replayed()

    def read(
        step: int, table: str, found: Iterable[Row], make: Callable[[Row], Value]
    ) -> list[Value]:  # fmt: skip
        values = []
        for row in found:
            try:
                values.append(_read(row, make, looks_close=strict or table == "nominations"))
            except UNREADABLE as error:
                action = f"set aside unreadable row {row[0]} of {table}: {error}"
                done.repair(step, action, repair.aside(store, table, row, f"{type(error).__name__}: {error}"))
                if table == "nominations":
                    done.changes.append(NominationDropped(row["job_id"]))
        return values

    tree = clusters.parents_first(clusters.all_rows(store))
    logical = read(1, "clusters", [row for row in tree if row["kind"] == LOGICAL], rows.cluster)
    others = read(3, "clusters", [row for row in tree if row["kind"] != LOGICAL], rows.cluster)
    known = {PRIMARY}
    known.update(one.cluster_id for one in (*logical, *others) if one.parent_id in known)

    def sent(make: Callable[[Row], Job]) -> Callable[[Row], Job]:
        """Also refuse a job whose target cluster does not exist."""

        def made(row: Row) -> Job:
            job = make(row)
            if job.parent_id not in known:
                raise ValueError(f"cluster {job.parent_id} does not exist")
            return job

        return made

    vnodes = read(3, "vnodes", clusters.all_vnode_rows(store), rows.vnode)
    tables = TableRows(
        nodes=read(0, "nodes", nodes.all_rows(store), rows.node),
        queue=settings.queue_of(store, PRIMARY),
        clusters=[*logical, *others],
        vnodes={cluster_id: [] for cluster_id in sorted({vnode.cluster_id for vnode in vnodes})},
        runs=read(5, "runs", runs.live_rows(store), rows.run),
        running={job.job_id: job for job in read(5, "jobs", jobs.running_rows(store), sent(rows.running))},
        leases=read(4, "leases", leases.all_rows(store), rows.lease),
        outliving=tasks.outliving(store),
        inhabited=upkeep.inhabited(store),
    )
    for vnode in vnodes:
        tables.vnodes[vnode.cluster_id].append(vnode)
    if strict:
        try:
            for row in queues.pending_kinds(store):
                _read(row, sent(rows.pending), looks_close=True)
        except UNREADABLE:
            read(5, "jobs", queues.pending_rows(store), sent(rows.pending))
    read(5, "tasks", tasks.unfinished(store), rows.task)
    read(5, "preemptions", preemptions.all_rows(store), preemptions.preemption)
    read(5, "nominations", preemptions.nomination_rows(store), preemptions.nomination)
    read(5, "usage", usage.rows(store), usage.check)
    read(5, "lags", usage.lag_rows(store), usage.check_lag)
    read(5, "reservations", reservations.rows(store), reservations.check)
    read(5, "provider_requests", provider.rows(store), provider.request)
    rebuilding.replay(tables, done, store.clock())
    return done
