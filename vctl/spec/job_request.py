"""The request of one ``job submit`` from the command line, HTTP or Python.

A ``JobRequest`` checks its form when it is made; other modules check whether the job can run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vctl import spec
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import CPU, DEFAULT_UNITS, GPU, MEMORY, SCALE, Amounts
from vctl.core.values import field, value
from vctl.errors import param
from vctl.spec.fields import child, did_you_mean, refuse, show
from vctl.spec.ids import check_submission_id, resolve_cluster_id
from vctl.spec.launch import (
    MAX_RETRIES,
    check_command,
    check_environment,
    check_name,
    check_range,
    check_seconds,
)
from vctl.spec.options import ArrayRange, Dependency, WarningSignal
from vctl.spec.quantities import check_unit_amount, parse_amount, parse_memory, parse_resources
from vctl.spec.text import check_document

LEAST_PRIORITY, MOST_PRIORITY = -(2**31), 2**31
CAUSES = ("NodeFailed", "LaunchFailed", "OutOfMemory", "ExitCode")
"""The failures that can be retried."""


@value(frozen=True, slots=True)
class JobRay:
    """The Ray of a job. ``own``: ``plain`` or ``dashboard`` for a private Ray cluster; empty for none.

    For a job from Ray's job API: ``runtime_env`` is as the client sent it, and ``files`` is the directory of
    its unpacked archives.
    """

    own: str = ""
    runtime_env: Mapping[str, object] | None = None
    files: str | None = None

    def options(self) -> dict[str, object]:
        """The options that are stored with the command of the job."""
        own: dict[str, object] = {"private_ray": self.own} if self.own else {}
        if self.runtime_env is None:
            return own
        files = {} if self.files is None else {"files": self.files}
        return {"ray": {"runtime_env": self.runtime_env, **files}, **own}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> JobRay:
        """Read a JobRay from the stored options of a job."""
        return cls(options.get("private_ray", ""), **options.get("ray", {}))


DEFAULT_ENTRY: Amounts = {CPU: SCALE}
MAX_NODES = 10_000


@value(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """All parameters of a submit. None means the default of the specification.

    ``max_retries`` counts tries after the first, for the causes in ``retry_on``; the wait before the n-th
    retry is ``backoff_s * 2**(n-1)``. ``begin_at`` is in seconds since the epoch. With ``clean_env`` the job
    does not get the submitter's environment, only ``env``. ``job_scope`` is what the job may change: ``own``
    (its cluster and its own jobs) or ``all``. ``label`` puts the rank before each line of output. ``attach``
    is a pair: ``stdin``, ``terminal`` or ``hold``, and the path of the submitting program's socket.
    """

    argv: tuple[str, ...]
    cluster: str | None = None
    spec: ClusterSpec | None = None
    entry: Amounts | None = None
    priority: int = 0
    time_limit_s: float | None = None
    name: str = ""
    submission_id: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    clean_env: bool = False
    cwd: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    grace_s: float | None = None
    per_node: bool = False
    max_retries: int = 0
    retry_on: tuple[str, ...] = ("NodeFailed",)
    backoff_s: float = 1
    hold: bool = False
    begin_at: float | None = None
    signal: WarningSignal | None = None
    after: tuple[Dependency, ...] = ()
    array: ArrayRange | None = None
    job_scope: str = "own"
    label: bool = False
    attach: tuple[str, str] | None = None
    ray: JobRay = JobRay()

    def __post_init__(self) -> None:
        check_command(self.argv, self.cwd)
        if self.cluster is not None:
            resolve_cluster_id(self.cluster, param("cluster"))
        if self.submission_id is not None:
            check_submission_id(self.submission_id, param("submission_id"))
        check_range(self.priority, param("priority"), LEAST_PRIORITY, MOST_PRIORITY)
        check_range(self.max_retries, param("max_retries"), 0, MAX_RETRIES)
        check_seconds(self.time_limit_s, param("time_limit"))
        check_seconds(self.grace_s, param("grace"))
        check_seconds(self.backoff_s, param("backoff"))
        if self.label and not self.per_node:
            raise refuse(
                param("label"),
                f"only a job with {param('per_node')} has ranks",
                f"add {param('per_node')}, or leave {param('label')} out",
            )
        if self.ray.own and self.per_node:
            raise refuse(
                param("ray"),
                "the command runs once, and Ray in every virtual node",
                f"leave out {param('per_node')}, or {param('ray')}",
            )
        if self.attach is not None and (self.per_node or self.array is not None or self.max_retries):
            raise refuse(
                param(self.attach[0]),
                "only one process can read it, and only once",
                f"leave out {param('per_node')}, {param('array')} and {param('max_retries')}",
            )
        if self.time_limit_s == 0:
            raise refuse(
                param("time_limit"),
                "the job would end at once",
                "write at least 1s, or leave it out for no limit",
            )
        check_name(self.name)
        for cause in self.retry_on:
            if cause not in CAUSES:
                raise refuse(param("retry_on"), f"unknown cause {show(cause)}", did_you_mean(cause, CAUSES))
        check_environment(self.env)
        check_document(self.metadata, param("metadata"))
        check_document(self.labels, param("labels"))


def entry_amounts(request: JobRequest) -> Amounts:
    """The resources of the entrypoint itself: as requested, else none if the job has a gang, else one CPU."""
    if request.entry is not None:
        return request.entry
    return {} if request.spec is not None and request.spec.has_gang else DEFAULT_ENTRY


def shortcut_spec(
    num_cpus: object = None,
    num_gpus: object = None,
    memory: object = None,
    nodes: int | None = None,
    *,
    units: Iterable[str] = DEFAULT_UNITS,
    beside_spec: bool = False,
) -> ClusterSpec | None:
    """The spec for these options: one group of equal fixed nodes; None if none of the options is given.

    ``beside_spec``: ``virtual_cluster`` was given too, which cannot be combined with these options.
    """
    given = [n for n, v in zip(_SHORTCUTS, (num_cpus, num_gpus, memory, nodes), strict=True) if v is not None]
    if not given:
        return None
    if beside_spec:
        raise refuse(
            param(given[0]),
            f"cannot be combined with {param('virtual_cluster')}",
            "put the resources into the spec",
        )
    if nodes is not None and not 1 <= nodes <= MAX_NODES:
        raise refuse(
            param("nodes"), f"{show(nodes)} is out of range", f"write a number from 1 to {MAX_NODES}"
        )
    resources = _sizes("", num_cpus, num_gpus, memory, frozenset(units))
    if not resources:
        resources = dict(DEFAULT_ENTRY)  # nodes alone, as in Slurm
    if not any(resources.values()):
        raise refuse(
            param(given[0]),
            "a fixed node without resources",
            f"{param('entrypoint_num_cpus')} 0 starts a job that reserves nothing",
        )
    count = nodes or 1
    return ClusterSpec(
        groups=(Group((FixedNode(resources),) * count, "STRICT_SPREAD" if count > 1 else "PACK"),),
        flexible=False,
    )


_SHORTCUTS = ("num_cpus", "num_gpus", "memory", "nodes")


def entry_request(
    num_cpus: object = None,
    num_gpus: object = None,
    memory: object = None,
    resources_json: object = None,
    *,
    units: Iterable[str] = DEFAULT_UNITS,
    prefix: str = "entrypoint_",
) -> Amounts | None:
    """The resources requested for the entrypoint; None if no option is given, ``{}`` if all amounts are 0.

    ``resources_json`` is a text for ``read_document``, or a mapping.
    """
    if all(value is None for value in (num_cpus, num_gpus, memory, resources_json)):
        return None
    unit_names = frozenset(units)
    amounts = _sizes(prefix, num_cpus, num_gpus, memory, unit_names)
    if resources_json is not None:
        path = param(prefix + "resources")
        if isinstance(resources_json, str):
            resources_json = spec.source.read_document(resources_json, "a map of resources", path)
        for name, amount in parse_resources(resources_json, path, unit_names).items():
            if name in amounts:
                raise refuse(child(path, name), f"{name} is given twice", "keep one of the two")
            amounts[name] = amount
    return {name: amount for name, amount in amounts.items() if amount}


def _sizes(
    prefix: str, num_cpus: object, num_gpus: object, memory: object, units: frozenset[str]
) -> dict[str, int]:
    """The amounts of CPUs, GPUs and memory that have a value."""
    amounts: dict[str, int] = {}
    if num_cpus is not None:
        amounts[CPU] = parse_amount(num_cpus, param(prefix + "num_cpus"))
    if num_gpus is not None:
        amounts[GPU] = parse_amount(num_gpus, param(prefix + "num_gpus"))
        if GPU in units:
            check_unit_amount(GPU, amounts[GPU], param(prefix + "num_gpus"))
    if memory is not None:
        amounts[MEMORY] = parse_memory(memory, param(prefix + "memory"))
    return amounts
