"""Jobs: submit, look, stop, delete."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.clusters import LOGICAL, PRIMARY, PRIMARY_ALIAS, ClusterSpec
from vctl.errors import BadSpec, Conflict, NotFound
from vctl.ops import arrays, dependencies, forms, gates
from vctl.ops.feasible import asked
from vctl.ops.feasible import check_feasible as _check_feasible
from vctl.ops.filters import parse_filters
from vctl.ops.positions import position, positions
from vctl.store import clusters, feed, job_views, rows, shapes, tasks
from vctl.store import jobs as table
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.job_request import JobRequest
    from vctl.spec.options import Dependency

DEFAULT_GRACE_S = 3.0
UNREAD_NS = 60 * 10**9
LAST = "last"
LOG_BLOCK = 1 << 16
FILTER_KEYS = (
    "submission_id", "job_id", "name", "status", "state_reason", "cluster_id", "parent_cluster_id", "user",
    "priority", "exit_code", "array_id",
)  # fmt: skip
_OF_THE_JOB = ("VCTL_JOB_ID", "VCTL_SUBMISSION_ID", "VCTL_ATTEMPT", "VCTL_CLUSTER_ID", "VCTL_CLUSTER_PATH",
               "VCTL_VNODE_ID", "VCTL_NODE_ID", "VCTL_RESOURCES", "VIRTUAL_CLUSTER_ID", "VCTL_RUN_ID")  # fmt: skip
"""What the environment of a job says about that job: never handed on to a job it submits."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a request means here: where it goes and what must be free. ``known``: judged possible at ``capacity``."""

    parent_id: str
    shares_parent: bool
    spec: ClusterSpec
    entry: dict[str, int]
    shape: str
    capacity: int
    known: bool


def prepare(store: Store, request: JobRequest, around: Mapping[str, str]) -> Prepared:
    """Find the target of a request and refuse what could never run there; changes nothing."""
    from vctl.spec.job_request import entry_amounts
    from vctl.spec.shape import shape_key

    parent_id, shares_parent = _target(store, request, around)
    _check_per_node(request, parent_id, shares_parent=shares_parent)
    spec = request.spec or ClusterSpec()
    entry = dict(entry_amounts(request))
    shape = shape_key(spec, entry) + (";shared" if shares_parent else "")
    capacity, known = shapes.capacity(store), shapes.is_feasible(store, parent_id, shape)
    if not known:
        _check_feasible(store, parent_id, spec, entry)
    return Prepared(parent_id, shares_parent, spec, entry, shape, capacity, known)


def submit(store: Store, request: JobRequest, *, environment: Mapping[str, str] | None = None) -> forms.Form:
    """Queue a job, durably. ``environment`` is the submitter's (default: this process's).

    Raises NotFound for an unknown cluster, Conflict for a taken submission id, Infeasible for what could never run;
    no row is left then.
    """
    from vctl.spec.ids import check_submission_id

    around = os.environ if environment is None else environment
    wanted = prepare(store, request, around)
    parent_id, shares_parent, spec = wanted.parent_id, wanted.shares_parent, wanted.spec
    submission_id = request.submission_id or f"job-{os.urandom(5).hex()}"
    columns: dict[str, object] = {
        "submission_id": submission_id,
        "name": request.name or None,
        "parent_cluster_id": parent_id,
        "cluster_id": parent_id if shares_parent else f"{parent_id}##{submission_id}",
        "shares_parent": shares_parent,
        "status": jb.PENDING,
        "held": request.hold,
        "begin_at": None if request.begin_at is None else int(request.begin_at * 1e9),
        "priority": request.priority,
        "shape": wanted.shape,
        "spec": rows.spec_text(spec),
        "entry": rows.dumps(wanted.entry),
        "entrypoint": _shown(request.argv),
        "user": _user(),
        "metadata": rows.dumps({**request.labels, **request.metadata}),
        "time_limit_s": request.time_limit_s,
        "grace_s": DEFAULT_GRACE_S if request.grace_s is None else request.grace_s,
        "resources": rows.dumps(asked(spec, wanted.entry)),
        "rules": rows.dumps(_rules(request)),
        "per_node": request.per_node,
    }
    options: dict[str, object] = {"sees_all": request.entry is None and spec.has_gang}
    launch = {
        "argv": rows.dumps(list(request.argv)),
        "env": rows.dumps(_environment(request, around)),
        "cwd": request.cwd or _directory(),
        "options": rows.dumps(options),
    }
    if request.array is not None:
        check_submission_id(f"{submission_id}_{request.array.indices[-1]}", "submission_id")
    with store.transaction():
        if table.number_of(store, submission_id) is not None or arrays.known(store, submission_id):
            raise Conflict(
                f"job {submission_id} exists already",
                fix="choose another --submission-id, or leave it out",
                details={"submission_id": submission_id},
            )
        if parent_id != PRIMARY and clusters.get(store, parent_id) is None:
            raise _no_cluster(store, parent_id)
        columns["submitted_at"] = store.clock()  # stamped inside the transaction
        after = resolved(store, request.after)  # first, so that nothing waits for itself
        if request.array is not None:
            arrays.insert(store, request.array, columns, launch, after)
        else:
            job_id = table.insert(store, columns, launch)
            if after:
                dependencies.attach(store, [job_id], after)
            gates.refresh(store, job_id)
        if not wanted.known:
            shapes.set_feasible(store, parent_id, wanted.shape, wanted.capacity)
    return get_job(store, submission_id)


def resolved(store: Store, after: Sequence[Dependency]) -> list[Dependency]:
    """Dependencies with the full ids of jobs that exist. Raises NotFound."""
    found = []
    for one in after:
        if (array := arrays.named(store, one.job)) is not None:
            found.append(replace(one, job=array["array_id"]))
            continue
        row = table.get(store, resolve(store, one.job))
        assert row is not None
        found.append(replace(one, job=row["submission_id"]))
    return found


def _check_per_node(request: JobRequest, parent_id: str, *, shares_parent: bool) -> None:
    if not request.per_node:
        return
    if shares_parent:
        raise BadSpec(
            f"--per-node: {parent_id} is indivisible, jobs share it and have no virtual nodes of their own",
            fix="submit to a divisible cluster",
        )
    if request.entry is not None:
        raise BadSpec(
            "--per-node: each member gets the whole of its virtual node, --entrypoint-* does not apply",
            fix="leave out --entrypoint-*; what each node has is said by the spec or --num-cpus",
        )


def _rules(request: JobRequest) -> dict[str, object]:
    """What happens to a job besides its start; only what was asked for."""
    rules: dict[str, object] = {}
    if request.signal is not None:
        signal = request.signal
        rules["signal"] = {"name": signal.name, "number": signal.number, "before_s": signal.before_s}
    if request.max_retries:
        rules |= {
            "max_retries": request.max_retries,
            "retry_on": list(request.retry_on),
            "backoff_s": request.backoff_s,
        }
    return rules


def _shown(argv: Sequence[str]) -> str:
    from shlex import join

    return join(argv)


def _user() -> str:
    from vctl.ops.nodes import author

    return author()


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise BadSpec(
            "the current directory no longer exists", fix="cd to one that does, or give --working-dir"
        ) from None


def _environment(request: JobRequest, around: Mapping[str, str]) -> dict[str, str]:
    captured = {} if request.clean_env else {k: v for k, v in around.items() if k not in _OF_THE_JOB}
    if request.clean_env and "PATH" in around:
        captured["PATH"] = around["PATH"]
    return {**captured, **request.env}


def _target(store: Store, request: JobRequest, around: Mapping[str, str]) -> tuple[str, bool]:
    """Where the job goes, and whether it shares that cluster (indivisible) instead of getting its own."""
    wanted = request.cluster or _inherited(store, around)
    if wanted in (PRIMARY, PRIMARY_ALIAS):
        return PRIMARY, False
    row = clusters.get(store, wanted)
    if row is None:
        raise _no_cluster(store, wanted)
    if row["kind"] != LOGICAL:
        raise BadSpec(
            f"--cluster: {wanted} belongs to a job and takes no jobs",
            fix="start a task in it with `vctl task run`, or submit to the cluster above it",
        )
    if row["state"] == "REMOVING":
        raise Conflict(f"cluster {wanted} is being removed", fix="submit to another cluster")
    if not row["divisible"] and request.spec is not None:
        raise BadSpec(
            f"--virtual-cluster or --num-cpus: {wanted} is indivisible, jobs share it and have no part of their own",
            fix="say with --entrypoint-num-cpus what the command needs, or submit to a divisible cluster",
        )
    return wanted, not row["divisible"]


def _inherited(store: Store, around: Mapping[str, str]) -> str:
    """The target when none is named: VCTL_CLUSTER, else the parent of the job we are in, else the primary."""
    if default := around.get("VCTL_CLUSTER"):
        return default
    inside = around.get("VCTL_CLUSTER_ID")
    if inside and inside != PRIMARY:
        row = clusters.get(store, inside)
        while row is not None and row["kind"] != LOGICAL:
            if row["parent_id"] == PRIMARY:
                return PRIMARY
            row = clusters.get(store, row["parent_id"])
        if row is not None:
            return str(row["cluster_id"])
    return PRIMARY


def _no_cluster(store: Store, cluster_id: str) -> NotFound:
    from vctl.spec.fields import nearest

    known = [row["cluster_id"] for row in clusters.all_rows(store) if row["kind"] == LOGICAL]
    guess = nearest(cluster_id, [*known, PRIMARY_ALIAS])
    return NotFound(
        f"there is no virtual cluster {cluster_id}",
        fix=f"did you mean {guess}?" if guess else "`vctl vc list` shows them",
        details={"cluster_id": cluster_id},
    )


# ---- looking ----


def resolve(store: Store, ref: str | int) -> int:
    """The number of the job that a submission id, number, unique prefix or ``last`` names; an int is the number."""
    if isinstance(ref, int):
        if table.get(store, ref) is None:
            raise _no_job(str(ref))
        return ref
    if ref == LAST:
        number = table.last_number(store)
        if number is None:
            raise NotFound("there is no job yet", fix="vctl job submit -- COMMAND")
        return number
    number = table.number_of(store, ref) if ref else None
    if number is not None:
        return number
    if ref.isascii() and ref.isdigit() and len(ref) < 19 and table.get(store, int(ref)) is not None:
        return int(ref)
    if arrays.known(store, ref):
        raise BadSpec(f"{ref} is an array of jobs", fix=f"name one of its members, such as {ref}_0")
    like = table.numbers_like(store, ref) if ref else []
    if len(like) == 1:
        return like[0][0]
    if like:
        shown = ", ".join(name for _, name in like[:4])
        raise BadSpec(
            f"job {ref} is ambiguous: {shown}{' …' if len(like) > 4 else ''}", fix="write more of the id"
        )
    raise _no_job(ref)


def _no_job(ref: str) -> NotFound:
    return NotFound(f"there is no job {ref!r}", fix="`vctl job list -a` shows all jobs", details={"job": ref})


def get_job(store: Store, ref: str | int) -> forms.Form:
    """One job, or an array of them."""
    with store.snapshot():
        if (array := arrays.named(store, ref)) is not None:
            return arrays.form(store, array)
        row = job_views.get(store, resolve(store, ref))
        assert row is not None
        return forms.job(row, position(store, row))


def is_array(store: Store, submission_id: str) -> bool:
    """Whether an id is that of an array."""
    return arrays.known(store, submission_id)


def list_jobs(
    store: Store,
    *,
    all: bool = False,  # noqa: A002  # the option's name
    filters: Sequence[str] = (),
    limit: int | None = None,
    cluster: str | None = None,
    members: bool = True,
) -> tuple[list[forms.Form], int]:
    """Jobs, newest first, and how many there are in all. Without ``all`` only those not over.

    Without ``members`` each array is one entry.
    """
    wanted = parse_filters(filters, FILTER_KEYS)
    where, values = ["1"], []
    if not all:
        where.append("j.status IN ('PENDING', 'RUNNING')")
    if cluster is not None:
        where.append("(j.parent_cluster_id = ? OR j.cluster_id = ?)")
        values += [cluster, cluster]
    together = []
    if not members:
        where.append("j.array_id IS NULL")
    condition = " AND ".join(where)
    with store.snapshot():
        if not members:
            together = arrays.list_(store, all=all, cluster=cluster)
        found = job_views.matching(store, condition, values, None if wanted else limit)
        places = positions(store) if any(row["status"] == jb.PENDING for row in found) else {}
        forms_ = [forms.job(row, places.get(row["job_id"])) for row in found]
        total = job_views.count(store, condition, values) + len(together)
    if together:
        forms_ = sorted([*forms_, *together], key=lambda form: -form["job_id"])
    if wanted:
        forms_ = [form for form in forms_ if forms.matches(form, wanted)]
        total = len(forms_)
    return (forms_ if limit is None else forms_[:limit]), total


def log_blocks(store: Store, ref: str, *, tail: int | None = None) -> Iterator[bytes]:
    """A job's output as it is now; of its lines only the last ones when asked."""
    return read_log(log_path(store, ref), tail=tail)


def read_log(path: Path, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
    """A log as it is now, block by block; nothing when the job has written nothing."""
    from collections import deque

    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        if tail is not None:
            yield from deque(file, maxlen=max(tail, 0))
            return
        while block := file.read(LOG_BLOCK):
            yield block


def log_path(store: Store, ref: str) -> Path:
    """Where a job's output is."""
    job_id = resolve(store, ref)
    row = table.get(store, job_id)
    assert row is not None
    return log_of(store.home, row["submission_id"])


def log_of(home: Path, submission_id: str) -> Path:
    """The log file of a job; stdout and stderr in order."""
    return home / "logs" / f"{submission_id}.log"


def forget_log(home: Path, name: str) -> None:
    """Remove a log, and what was rotated out of it."""
    log = log_of(home, name)
    log.unlink(missing_ok=True)
    log.with_name(f"{log.name}.1").unlink(missing_ok=True)


# ---- ending ----


def stop(
    store: Store, ref: str | int, *, grace_s: float | None = None, reason: str = jb.STOPPED_BY_USER
) -> forms.Form:
    """End a job: at once when it is pending; a running one is asked for, and a scheduler carries it out."""
    with store.transaction():
        if (array := arrays.named(store, ref)) is not None:
            arrays.stop(store, array, grace_s=grace_s, reason=reason)
            return arrays.form(store, array)
        job_id = resolve(store, ref)
        row = table.get(store, job_id)
        assert row is not None
        if row["status"] == jb.PENDING:
            table.mark_ended(
                store, job_id, row["submission_id"], status=jb.STOPPED, reason=reason,
                message="stopped before it started", exit_code=None, cluster_id=row["parent_cluster_id"],
            )  # fmt: skip
        elif row["status"] == jb.RUNNING:
            table.request_stop(store, job_id, row["submission_id"], reason=reason, grace_s=grace_s)
    return get_job(store, job_id)


def delete(store: Store, *refs: str | int) -> list[forms.Form]:
    """Forget jobs that are over, with their logs: all of them or none."""
    with store.transaction():
        deleted = [get_job(store, ref) for ref in refs]
        gone: list[str] = []
        for form in deleted:
            if form["status"] not in jb.FINAL:
                raise Conflict(
                    f"job {form['submission_id']} is {form['status']}",
                    fix=f"vctl job stop {form['submission_id']}, then delete it",
                )
            _refuse_while_used(store, form)
            if "array" in form:
                gone += arrays.delete(store, form["submission_id"])
            else:
                table.delete(store, form["job_id"], form["submission_id"])
                gone.append(form["submission_id"])
        arrays.forget_empty(store)
    for name in gone:
        forget_log(store.home, name)
    return deleted


def _refuse_while_used(store: Store, form: forms.Form) -> None:
    """A detached task may outlive its job: its process and what it holds must not be forgotten with that."""
    array = arrays.named(store, form["submission_id"]) if "array" in form else None
    reach = (form["job_id"],) * 2 if array is None else (array["first_job_id"], array["last_job_id"])
    left = tasks.unfinished_among(store, *reach)
    if left is not None:
        raise Conflict(
            f"task {left['task_id']} of job {left['submission_id']} is detached and not over",
            fix=f"vctl task cancel {left['task_id']}, or wait for it, then delete the job",
            details={"task_id": left["task_id"]},
        )


def prune(store: Store, older_than_s: float, *, dry_run: bool = False) -> forms.Form:
    """Forget jobs that ended longer ago, with their logs, and history of that age."""
    before = store.clock() - int(older_than_s * 1e9)
    with store.transaction():
        old = table.ended_before(store, before)
        events = 0
        if not dry_run:
            for row in old:
                table.delete(store, row["job_id"], row["submission_id"])
            arrays.forget_empty(store)
            unread = store.clock() - UNREAD_NS  # a scheduler may still have to read the newest ones
            events = feed.delete_before(store, min(before, unread))
    if not dry_run:
        for row in old:
            forget_log(store.home, row["submission_id"])
    return {"jobs": [row["submission_id"] for row in old], "events": events, "dry_run": dry_run}
