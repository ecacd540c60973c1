"""Submitting a job or an array of jobs, and the request of a submitted one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from vctl import ops
from vctl.core.clusters import LOGICAL, PRIMARY, ClusterSpec
from vctl.core.jobs import PendingJob, member_of
from vctl.core.nodes import RAY
from vctl.core.resources import CPU, GPU, SCALE
from vctl.core.values import replace, value
from vctl.core.wording import cluster_text
from vctl.engine.changes import ArraySubmitted, JobSubmitted, Launch, SubmitDetails
from vctl.errors import BadSpec, Conflict, param
from vctl.ops import arrays, logs, nodes, rights
from vctl.ops.cluster_views import NoUserCluster
from vctl.ops.feasible import check_feasible, requested
from vctl.ops.jobs import just_submitted, resolve_named
from vctl.spec.fields import refuse
from vctl.spec.ids import check_submission_id, full_cluster_id
from vctl.spec.job_request import DEFAULT_ENTRY, IN_RUNTIME_ENV, JobRay, JobRequest, entry_amounts
from vctl.spec.options import WarningSignal, parse_array
from vctl.store import ahead, clusters, observed, rows, settings
from vctl.store import jobs as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm
    from vctl.spec.options import ArrayRange, Dependency

DEFAULT_GRACE_S = 3.0
_UNQUOTED = str.maketrans("", "", "_@%+=:,./-")
"""Takes the marks away that a shell reads as they are."""
_OF_THE_JOB = ("VCTL_JOB_ID", "VCTL_SUBMISSION_ID", "VCTL_ATTEMPT", "VCTL_CLUSTER_ID", "VCTL_CLUSTER_PATH",
               "VCTL_VNODE_ID", "VCTL_NODE_ID", "VCTL_RESOURCES", "VIRTUAL_CLUSTER_ID", "VCTL_RUN_ID",
               "VCTL_TASK_ID", "VCTL_PRIVATE", "RAY_JOB_CONFIG_JSON_ENV_VAR")  # fmt: skip
"""The variables that describe a job to its processes; a job that it submits does not get them."""
hand_over: Callable[[Store, JobSubmitted, int | None], bool] | None = None
"""Lets the scheduler write a job (``vctl/ops/handing.py``); None in a process that cannot reach it so."""

_TEMPLATE, _OF_USER = f'"{rows.USER_TEMPLATE}"', f'"{rows.OF_USER}"'
"""What the settings of a cluster with a template for clusters of users contain, and of such a cluster."""


@value(frozen=True, slots=True)
class Prepared:
    """The target and the resources of a request.

    ``judged_at``: the version of the capacity at which the shape was judged feasible for this request; None if
    that was known already.
    """

    parent_id: str
    shares_parent: bool
    spec: ClusterSpec
    entry: dict[str, int]
    shape: str
    judged_at: int | None


class Preparation:
    """Finds targets and resources, and refuses jobs that could never run; inside a snapshot, changes nothing.

    Equal questions of several requests are asked once. The caller keeps each ``around`` as long as this object.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._environments: dict[tuple[int, bool], str] = {}
        self._targets: dict[tuple[str | None, bool, int], tuple[str, bool]] = {}
        self._known: dict[tuple[str, str], bool] = {}

    @cached_property
    def _capacity(self) -> int:
        return observed.capacity(self._store)

    @cached_property
    def _caller(self) -> int | None:
        caller = rights.calling_job(self._store)
        return None if caller is None else caller["job_id"]

    def of(self, request: JobRequest, around: Mapping[str, str]) -> Prepared:
        """The target and the resources of a request."""
        from vctl.spec.shape import shape_key

        store = self._store
        question = request.cluster, request.spec is None, id(around)
        if (target := self._targets.get(question)) is None:
            target = self._targets[question] = _target(store, request, around)
            rights.check_target(store, target[0])
        parent_id, shares_parent = target
        if request.per_node:
            _check_whole(
                "per_node", "each member", "its virtual node", request, parent_id, shares_parent=shares_parent
            )
        _check_ray(store, request, parent_id, around, shares_parent=shares_parent)
        spec = request.spec or ClusterSpec()
        entry = dict(entry_amounts(request))
        shape = shape_key(spec, entry) + (";shared" if shares_parent else "")
        known = self._known.get((parent_id, shape))
        if known is None:
            known = self._known[parent_id, shape] = observed.is_feasible(store, parent_id, shape)
            if not known:
                check_feasible(store, parent_id, spec, entry)
        return Prepared(parent_id, shares_parent, spec, entry, shape, None if known else self._capacity)

    def columns(
        self, request: JobRequest, prepared: Prepared, around: Mapping[str, str]
    ) -> tuple[PendingJob, SubmitDetails, Launch]:
        """A job that has neither number nor submit time yet, and its columns."""
        from vctl.spec.text import stored_path

        spec, identity = prepared.spec, self._store.identity
        submission_id = request.submission_id or new_id()
        details = SubmitDetails(
            request.name or None, rows.dumps({**request.labels, **request.metadata}), request.time_limit_s,
            rows.dumps(requested(spec, prepared.entry)), self._caller,
            None if identity is None else identity.uid,
        )  # fmt: skip
        launch = Launch(
            _shown(request.argv), rows.dumps(list(request.argv)), self._environment(request, around),
            stored_path(request.cwd or directory()), rows.dumps(_options(self._store, request, spec)),
        )  # fmt: skip
        if request.array is not None:
            check_submission_id(f"{submission_id}_{request.array.indices.last}", param("submission_id"))
        begin_at = 0 if request.begin_at is None else int(request.begin_at * 1e9)
        job = PendingJob(
            job_id=0,
            submission_id=submission_id,
            parent_id=prepared.parent_id,
            shape=prepared.shape,
            spec=spec,
            entry=prepared.entry,
            priority=request.priority,
            held=request.hold,
            begin_at_ns=begin_at or None,
            shares_parent=prepared.shares_parent,
            per_node=request.per_node,
            user=nodes.author(self._store),
            time_limit_ns=rows.in_ns(request.time_limit_s),
            rules=rows.dumps(_rules(self._store, request)),
            grace_s=DEFAULT_GRACE_S if request.grace_s is None else request.grace_s,
        )
        return job, details, launch

    def _environment(self, request: JobRequest, around: Mapping[str, str]) -> str:
        """The environment of a job as JSON; jobs without variables of their own share one text."""
        if request.env or request.runtime_env:
            return rows.dumps(environment_of(request, around))
        key = id(around), request.clean_env
        if (text := self._environments.get(key)) is None:
            text = self._environments[key] = rows.dumps(environment_of(request, around))
        return text


def prepare(store: Store, request: JobRequest, around: Mapping[str, str]) -> Prepared:
    """Find the target cluster of a request, and refuse a job that could never run there; changes nothing."""
    with store.snapshot():  # others may remove the target meanwhile
        return Preparation(store).of(request, around)


def submit(store: Store, request: JobRequest, *, environment: Mapping[str, str] | None = None) -> JobForm:
    """Queue a job, durably. ``environment`` is that of the submitter (default: of this process).

    Raises NotFound for an unknown cluster, Conflict for a taken submission id, Infeasible for a job that can
    never run; no row is left then.
    """
    return just_submitted(store, queue(store, request, os.environ if environment is None else environment))


def queue(store: Store, request: JobRequest, around: Mapping[str, str]) -> str:
    """Like ``submit``, but returns only the id, because counting the jobs ahead of it takes time."""
    nodes.join(store)

    def submit() -> str:
        return write(store, request, prepare(store, request, around), around)

    try:
        return submit()
    except NoUserCluster as missing:
        return ops.user_clusters.made(store, missing, submit)


def write(store: Store, request: JobRequest, prepared: Prepared, around: Mapping[str, str]) -> str:
    """Write a job in one transaction, or let the scheduler write it; its id. A dry run rolls this back."""
    job, details, launch = Preparation(store).columns(request, prepared, around)
    submission_id, parent_id = job.submission_id, job.parent_id
    if is_handed := hand_over is not None and _may_start_now(store, request):
        assert hand_over is not None
        if hand_over(store, JobSubmitted(job, details, (), launch), prepared.judged_at):
            store.submitted = submission_id
            return submission_id
    with ahead.left_alone(store), store.transaction():
        if is_handed and table.number_of(store, submission_id) is not None:
            store.submitted = submission_id
            return submission_id  # the scheduler has written it, but its answer did not arrive
        job = numbered(store, job)
        after: arrays.Pairs = ()
        lost: list[str] = []
        if request.after:
            after, lost = ops.dependencies.unmet(store, resolved(store, request.after))
            job = replace(job, waits_for=len(after))
        if lost or ahead.may_precede(store, job, lambda: settings.queue_of(store, parent_id).order):
            ahead.take_back(store)
        change = submission(store, request, job, details, after, launch)
        if request.submission_id:
            forget_logs(store, {submission_id: request.array})
        arrays.give_rows(store, (table.number_of(store, name) for _, name in after))
        store.emit(change)
        if lost:
            ops.dependencies.settle(store, lost)
        if prepared.judged_at is not None:
            observed.set_feasible(store, parent_id, prepared.shape, prepared.judged_at)
        store.submitted = submission_id  # if the transaction fails, it is taken back
    return submission_id


def submission(
    store: Store,
    request: JobRequest,
    job: PendingJob,
    details: SubmitDetails,
    after: arrays.Pairs,
    launch: Launch,
) -> JobSubmitted | ArraySubmitted:
    """The change that queues a job or an array."""
    if request.array is None:
        return JobSubmitted(job, details, after, launch)
    return arrays.submitted(store, request.array, job, details, after, launch)


def forget_logs(store: Store, chosen: Mapping[str, ArrayRange | None]) -> None:
    """Remove logs with ids that submitters chose for new jobs and arrays: those of jobs that were deleted."""
    if not any(chosen.values()):
        names: Iterable[str] = chosen
    else:  # an array has too many members to look for the log of each
        of_arrays = {name: array.indices for name, array in chosen.items() if array is not None}
        names = (
            name
            for name in logs.names(store.home)
            if name in chosen or (its := member_of(name))[1] in of_arrays.get(its[0], ())
        )
    for name in names:
        logs.forget_log(store.home, name)


def numbered(store: Store, job: PendingJob) -> PendingJob:
    """The job with its number and times, inside the transaction. Raises if it cannot be submitted now."""
    if table.taken(store, [job.submission_id]):
        raise ops.matching.exists(job.submission_id)
    if job.parent_id != PRIMARY:
        open_cluster(store, job.parent_id)
    return timed(job, table.next_number(store), store.clock())


def new_id() -> str:
    """An id for a job whose submitter chose none."""
    return f"job-{os.urandom(5).hex()}"


def timed(job: PendingJob, number: int, now: int) -> PendingJob:
    """The job with its number and its times."""
    begin_at = job.begin_at_ns if job.begin_at_ns is not None and job.begin_at_ns > now else None
    return replace(job, job_id=number, submitted_at_ns=now, begin_at_ns=begin_at)


def _may_start_now(store: Store, request: JobRequest) -> bool:
    """Whether the scheduler may write this job: its id must be new, so that a row with the id is this job."""
    keeps = request.submission_id or request.array or request.after or request.hold
    return not keeps and request.begin_at is None and store.caller is None and store.head is None


def _options(store: Store, request: JobRequest, spec: ClusterSpec) -> dict[str, object]:
    options: dict[str, object] = {
        "sees_all": request.entry is None and (spec.has_gang or bool(request.ray.own)),
        **request.ray.options(),
    }
    if request.private is not None:
        options["private"] = list(request.private)
    if request.notify is not None:
        from vctl.spec.notify import COMMAND, NOBODY, kind_of

        if store.identity is not None and kind_of(request.notify) == COMMAND and request.notify != NOBODY:
            problem = f"{request.notify!r} is a command, and a shared service runs none on its own account"
            raise refuse(
                param("notify"), problem, "give a URL or mailto:NAME@HOST, or run it at the end of the job"
            )
        if request.notify != NOBODY:
            options["notify"] = request.notify
    if request.label:
        options["relay"] = ["label", ""]
    elif request.attach is not None:
        options["relay"] = list(request.attach)
    return options


def resolved(store: Store, after: Sequence[Dependency]) -> list[Dependency]:
    """Dependencies with the full ids of jobs that exist. Raises NotFound."""
    dependencies = []
    for dependency in after:
        if (array := arrays.named(store, dependency.job)) is not None:
            dependencies.append(replace(dependency, job=array["array_id"]))
            continue
        row = table.get(store, resolve_named(store, dependency.job, param("after")))
        assert row is not None
        dependencies.append(replace(dependency, job=row["submission_id"]))
    return dependencies


def _check_whole(
    name: str, who: str, gets: str, request: JobRequest, parent_id: str, *, shares_parent: bool
) -> None:
    """Raise BadSpec unless the job has virtual nodes of its own, and no request for the entrypoint."""
    if shares_parent:
        problem = f"{parent_id} is indivisible, jobs share it and have no virtual nodes of their own"
        raise refuse(param(name), problem, "submit to a divisible cluster")
    if request.entry is not None:
        problem = f"{who} gets the whole of {gets}, a request of the entrypoint does not apply"
        fix = f"set the resources of each node in the spec or with {param('num_cpus')}"
        raise refuse(param(name), problem, f"leave out {param('entrypoint_num_cpus')} and the like; {fix}")


def without_ray(store: Store, request: JobRequest, around: Mapping[str, str]) -> BadSpec | None:
    """The error that says why a job cannot have a Ray of its own; None if it can."""
    parent_id, shares_parent = _target(store, request, around)
    try:
        _check_ray(store, request, parent_id, around, shares_parent=shares_parent)
    except BadSpec as error:
        return error
    return None


def _check_ray(
    store: Store, request: JobRequest, parent_id: str, around: Mapping[str, str], *, shares_parent: bool
) -> None:
    if not request.ray.own:
        return
    from vctl.ray.private import raylets

    _check_whole("ray", "Ray", "each virtual node", request, parent_id, shares_parent=shares_parent)
    spec = request.spec or ClusterSpec()
    for amounts in (*(node.resources for node in spec.fixed), spec.flexible_min):
        for name in (CPU, GPU):
            if amounts.get(name, 0) % SCALE:
                has = (
                    f"a virtual node with {amounts[name] / SCALE:g} {name}, and a node of Ray has whole ones"
                )
                raise refuse(param("ray"), has, f"request a whole number of {name}")
    if store.recall(RAY):
        return  # the nodes of a Ray cluster have Ray
    env = environment_of(request, around)
    if raylets.program(request.argv, env.get("PATH", os.defpath), request.cwd or directory()) is None:
        raise refuse(
            param("ray"),
            f"Ray is not installed where {_shown(request.argv[:1])} runs",
            f"pip install '{raylets.PACKAGE}' there, or name a Python that has it",
        )


def _rules(store: Store, request: JobRequest) -> dict[str, object]:
    """The rules of a job: what it may change, its warning signal, its retries. Defaults are left out."""
    rules: dict[str, object] = {}
    if (scope := rights.granted_scope(store, request.job_scope)) != rights.OWN:
        rules["job_scope"] = scope
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
    from vctl.spec.text import shown

    if all(
        word.isascii() and word.translate(_UNQUOTED).isalnum() for word in argv
    ):  # most are; shlex costs time
        return shown(" ".join(argv))
    from shlex import join

    return shown(join(argv))


def directory() -> str:
    """The current directory, in which the command of a job starts by default."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise BadSpec(
            "the current directory is gone", fix=f"cd to one that exists, or give {param('working_dir')}"
        ) from None


def environment_of(request: JobRequest, around: Mapping[str, str]) -> dict[str, str]:
    """The environment that a job brings along."""
    captured = {} if request.clean_env else {k: v for k, v in around.items() if k not in _OF_THE_JOB}
    if request.clean_env and "PATH" in around:
        captured["PATH"] = around["PATH"]
    own = dict(request.env)
    if request.runtime_env:
        from vctl.ray.private.raylets import JOB_CONFIG, job_config

        own[JOB_CONFIG] = job_config(own.get(JOB_CONFIG, ""), request.runtime_env)
    return {**captured, **own}


def runtime_env_of(env: Mapping[str, str]) -> dict[str, object]:
    """What ``environment_of`` has put into the environment of a job for its private Ray to install."""
    from vctl.ray.private.raylets import JOB_CONFIG, to_install

    found = to_install(env.get(JOB_CONFIG, ""))
    return {name: found[name] for name in IN_RUNTIME_ENV if name in found}


def _target(store: Store, request: JobRequest, around: Mapping[str, str]) -> tuple[str, bool]:
    """The target cluster, and whether the job shares it (indivisible) instead of getting its own."""
    cluster_id = full_cluster_id(request.cluster or _inherited(store, around))
    if cluster_id == PRIMARY:
        return PRIMARY, False
    row = open_cluster(store, cluster_id)
    if _TEMPLATE in row["settings"]:
        row = open_cluster(store, ops.user_clusters.of(store, row))
        cluster_id = str(row["cluster_id"])
    elif _OF_USER in row["settings"]:
        rights.check_submitter(store, row["parent_id"])  # who is none any more has his own cluster still
    if not row["divisible"] and request.spec is not None:
        problem = f"{cluster_id} is indivisible, jobs share it and have no part of their own"
        fix = f"request resources for the command with {param('entrypoint_num_cpus')}, or submit to a divisible cluster"
        raise refuse(f"{param('virtual_cluster')} or {param('num_cpus')}", problem, fix)
    return cluster_id, not row["divisible"]


def open_cluster(store: Store, cluster_id: str) -> Row:
    """The row of a cluster that takes jobs. Raises NotFound, BadSpec or Conflict for any other."""
    row = clusters.get(store, cluster_id)
    if row is None:
        raise ops.cluster_views.no_cluster(cluster_id, clusters.logical_rows(store))
    if row["kind"] != LOGICAL:
        raise BadSpec(
            f"{param('cluster')}: {cluster_text(cluster_id)} belongs to a job and takes no jobs",
            fix="start a task in it with `vctl task run`, or submit to the cluster above it",
        )
    if row["state"] == "REMOVING":
        raise Conflict(
            f"cluster {cluster_text(cluster_id)} is being removed", fix="submit to another cluster"
        )
    return row


def _inherited(store: Store, around: Mapping[str, str]) -> str:
    """The default target: that of the calling job, VCTL_CLUSTER, that of VCTL_CLUSTER_ID, or the primary."""
    if (job := rights.calling_job(store)) is not None:
        return str(job["parent_cluster_id"])
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


def request_of(row: Row, launch: Row, array: Row | None = None) -> JobRequest:
    """The request of a job, or of an array, as far as another job can have the same."""
    options, rules, spec = rows.loads(launch["options"]), rows.loads(row["rules"]), rows.spec(row["spec"])
    env = dict(rows.loads(launch["env"]))
    if array is None and row["array_id"] is not None:
        env |= {
            "VCTL_ARRAY_ID": row["array_id"],
            "VCTL_ARRAY_INDEX": str(row["array_index"]),
            "VCTL_ARRAY_COUNT": str(launch["count"]),
        }
    entry = rows.entry(row["entry"])
    is_default = options.get("sees_all") or row["per_node"] or (entry == DEFAULT_ENTRY and not spec.has_gang)
    signal = rules.get("signal")
    retries = {name: rules[name] for name in ("max_retries", "backoff_s") if rules.get("max_retries")}
    if retries:
        retries["retry_on"] = tuple(rules["retry_on"])
    return JobRequest(
        argv=tuple(rows.loads(launch["argv"])),
        cluster=row["parent_cluster_id"],
        spec=None if row["shares_parent"] or spec == ClusterSpec() else spec,
        entry=None if is_default else entry,
        priority=row["priority"],
        time_limit_s=row["time_limit_s"],
        name=row["name"] or "",
        env=env,
        clean_env=True,
        cwd=os.fsdecode(launch["cwd"]),
        metadata=rows.loads(row["metadata"]),
        grace_s=row["grace_s"],
        per_node=bool(row["per_node"]),
        label=options.get("relay", [""])[0] == "label",
        signal=None if signal is None else WarningSignal(**signal),
        array=None if array is None else parse_array(array["range"]),
        job_scope=rules.get("job_scope", rights.OWN),
        notify=options.get("notify"),
        private=None if (words := options.get("private")) is None else tuple(words),
        ray=JobRay.of(options),
        **retries,
    )
