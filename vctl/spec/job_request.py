"""The request of one ``job submit`` from the command line, HTTP or Python.

The fields of ``JobRequest`` are the declaration of a submit: options, help, limits, and how each is read. A request
checks its form when it is made; other modules check whether the job can run.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from vctl import spec
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import CPU, DEFAULT_UNITS, GPU, MEMORY, SCALE, Amounts
from vctl.core.values import field, value
from vctl.errors import BadSpec, param
from vctl.spec.fields import child, did_you_mean, refuse, show
from vctl.spec.ids import check_submission_id, resolve_cluster_id
from vctl.spec.launch import MAX_RETRIES, check_command, check_environment, check_name
from vctl.spec.options import (
    NOTHING,
    ArrayRange,
    Dependency,
    WarningSignal,
    parse_array,
    parse_dependency,
    parse_private,
    parse_warning_signal,
)
from vctl.spec.params import (
    LONGEST_S,
    MAX_PRIORITY,
    MIN_PRIORITY,
    Arg,
    Made,
    Opt,
    Reading,
    Written,
    check_limits,
    document_of,
    seconds_text,
)
from vctl.spec.quantities import (
    MAX_NODES,
    check_unit_amount,
    exact_text,
    parse_amount,
    parse_memory,
    parse_resources,
    resources_document,
)
from vctl.spec.text import check_document

CAUSES = ("NodeFailed", "LaunchFailed", "OutOfMemory", "ExitCode")
"""The failures that can be retried."""
IN_RUNTIME_ENV = ("pip", "uv", "py_modules", "config")
"""The fields of Ray's ``runtime_env`` that a private Ray carries out; jobs have the others as fields of their own."""


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
    def of(cls, options: Mapping[str, Any]) -> "JobRay":
        """Read a JobRay from the stored options of a job."""
        return cls(options.get("private_ray", ""), **options.get("ray", {}))


DEFAULT_ENTRY: Amounts = {CPU: SCALE}
NODES = Opt(
    "--nodes", minimum=1, maximum=MAX_NODES, help="Number of reserved nodes, each on its own machine (1)."
)
Amount = float | str | None

# ---- fields that jobs and tasks share ----

Words = Annotated[
    Sequence[str],
    Arg("CMD", longest=10_000, help="The command and its arguments, after --.", complete="command"),
]  # fmt: skip
Argv = Annotated[tuple[str, ...], Made(lambda _, words: tuple(words), entrypoint=Words)]
Name = Annotated[str, Opt("--name", longest=100_000, help="Display name.")]
Variables = Annotated[Mapping[str, str], Opt(kernel=True, help="Variables, set on top of the environment.")]
Directory = Annotated[
    str | None,
    Opt(
        kernel=True, sent=lambda cwd: cwd or os.getcwd(), longest=100_000,
        help="Directory in which the command starts.",
    ),
]  # fmt: skip
Document = Mapping[str, Any] | None


def resources_of(
    who: str, prefix: str = "", *, short: bool = False, defaults: tuple[str, str] = ("", "")
) -> dict[str, Any]:
    """The parameters of an amount of CPUs, of GPUs and of memory."""
    options = f"--{prefix.replace('_', '-')}"
    cpus, gpus = (("-n",), ("-g",)) if short else ((), ())
    return {
        f"{prefix}num_cpus": Annotated[
            Amount,
            Opt(*cpus, f"{options}num-cpus", metavar="N", reads="text", help=f"CPUs {who}{defaults[0]}."),
        ],
        f"{prefix}num_gpus": Annotated[
            Amount,
            Opt(*gpus, f"{options}num-gpus", metavar="N", reads="text", help=f"GPUs {who}{defaults[1]}."),
        ],
        f"{prefix}memory": Annotated[
            Amount,
            Opt(
                f"{options}memory",
                metavar="SIZE",
                reads="text",
                help=f"Memory {who}{'' if prefix else ', such as 8GiB'}.",
            ),
        ],
    }


# ---- what fields are made of ----


def _spec(reading: Reading, document: object, *short: Any) -> ClusterSpec | None:
    from vctl.spec.cluster_spec import parse_cluster_spec

    document = document_of(document)
    shortcut = shortcut_spec(*short, units=reading.units, beside_spec=document is not None)
    if document is None:
        return shortcut
    return parse_cluster_spec(document, units=reading.units, camel_case=True)


def _spec_back(requested: ClusterSpec) -> Mapping[str, object]:
    """The shortcuts for one group of equal nodes with only CPUs, GPUs and memory; else the document of the spec."""
    from vctl.spec.cluster_spec import spec_to_document

    if not requested.flexible and not requested.replica_sets and len(requested.groups) == 1:
        group = requested.groups[0]
        node, count = group.nodes[0], len(group.nodes)
        policy = "STRICT_SPREAD" if count > 1 else group.policy
        is_plain = all(other == node for other in group.nodes) and not node.labels and not node.selector
        if is_plain and group.policy == policy and set(node.resources) <= {CPU, GPU, MEMORY}:
            return {**sizes_back("", node.resources), **({"nodes": count} if count > 1 else {})}
    return {"virtual_cluster": spec_to_document(requested)}


def _entry_back(entry: Amounts) -> Mapping[str, object]:
    amounts = {name: amount for name, amount in entry.items() if amount}
    return amounts_back("entrypoint_", amounts) if amounts else {"entrypoint_num_cpus": "0"}


def sizes_back(prefix: str, amounts: Amounts) -> dict[str, object]:
    """The parameters of ``resources_of`` that give these amounts of CPUs, GPUs and memory."""
    names = {CPU: "num_cpus", GPU: "num_gpus", MEMORY: "memory"}
    return {
        prefix + names[name]: exact_text(name, amount)
        for name, amount in amounts.items()
        if amount and name in names
    }


def amounts_back(prefix: str, amounts: Amounts) -> dict[str, object]:
    """The parameters that give these amounts: as ``sizes_back``, and ``resources`` for all others."""
    others = {name: amount for name, amount in amounts.items() if amount and name not in (CPU, GPU, MEMORY)}
    more = {f"{prefix}resources": resources_document(others)} if others else {}
    return {**sizes_back(prefix, amounts), **more}


@value(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """All parameters of a submit. None means the default of the specification.

    ``max_retries`` counts tries after the first, for the causes in ``retry_on``; the wait before the n-th
    retry is ``backoff_s * 2**(n-1)``. ``begin_at`` is in seconds since the epoch. With ``clean_env`` the job
    does not get the submitter's environment, only ``env``. ``job_scope`` is what the job may change: ``own``
    (its cluster and its own jobs) or ``all``. ``label`` puts the rank before each line of output. ``attach``
    is a pair: ``stdin``, ``terminal`` or ``hold``, and the path of the submitting program's socket. With
    ``private`` None or ``()`` it has no more for itself than its cluster demands; ``()`` also with a private Ray.
    """

    argv: Argv
    cluster: Annotated[
        str | None,
        Opt(
            "-c", "--cluster", metavar="ID", complete="clusters",
            help="Cluster to submit to (default: VCTL_CLUSTER).",
        ),
    ] = None  # fmt: skip
    spec: Annotated[
        ClusterSpec | None,
        Made(
            _spec,
            _spec_back,
            "virtual_cluster",
            virtual_cluster=Annotated[
                Mapping[str, Any] | Written | None,
                Opt(
                    "--virtual-cluster", metavar="JSON|@FILE|-", reads="cluster spec",
                    help="Resources to reserve for the job, all or none: a cluster spec.",
                ),
            ],
            **resources_of("of each reserved node", short=True),
            nodes=Annotated[int | None, NODES],
        ),
    ] = None  # fmt: skip
    entry: Annotated[
        Amounts | None,
        Made(
            lambda reading, *given: entry_request(*given, units=reading.units),
            _entry_back,
            **resources_of("of the command itself", "entrypoint_"),
            entrypoint_resources=Annotated[
                Document,
                Opt(
                    "--entrypoint-resources", metavar="JSON", reads="resources",
                    help="Other resources of the command itself.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    priority: Annotated[
        int,
        Opt("--priority", minimum=MIN_PRIORITY, maximum=MAX_PRIORITY, help="Higher priorities go first (0)."),
    ] = 0  # fmt: skip
    time_limit_s: Annotated[
        float | None,
        Opt(
            "--time-limit", metavar="TIME", reads="positive duration", minimum=0, maximum=LONGEST_S,
            help="End the job after 90s, 1h30m or 01:30:00.",
        ),
    ] = None  # fmt: skip
    name: Name = ""
    submission_id: Annotated[str | None, Opt("--submission-id", metavar="ID", help="Choose the id.")] = None
    env: Variables = field(default_factory=dict)
    clean_env: Annotated[bool, Opt("--clean-env", help="Do not pass this environment on to the job.")] = False
    cwd: Directory = None
    metadata: Annotated[Mapping[str, str], Opt(help="Metadata stored with the job.")] = field(
        default_factory=dict
    )  # fmt: skip
    labels: Annotated[Mapping[str, str], Opt(help="Labels stored with the job.")] = field(
        default_factory=dict
    )  # fmt: skip
    grace_s: Annotated[
        float | None,
        Opt(
            "--grace", metavar="TIME", reads="duration", minimum=0, maximum=LONGEST_S,
            help="Time between SIGTERM and SIGKILL, such as 10s (default 3s).",
        ),
    ] = None  # fmt: skip
    hold: Annotated[bool, Opt("--hold", help="Do not start it before `vctl job release`.")] = False
    begin_at: Annotated[
        float | None,
        Opt(
            "--begin", metavar="TIME", reads="begin", minimum=0, maximum=9e9,
            help="Earliest start: 1h from now, the next 16:00, or 2030-01-31T08:00.",
        ),
    ] = None  # fmt: skip
    array: Annotated[
        ArrayRange | None,
        Made(
            lambda _, text: parse_array(text, param("array")),
            array=Annotated[
                str | None,
                Opt(
                    "--array", metavar="INDEXES", longest=100_000,
                    help="One job for each index, such as 0-99, 0-99:2 or 1,5,7-9, with VCTL_ARRAY_INDEX;"
                    " 0-99%8 runs 8 at a time.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    after: Annotated[
        tuple[Dependency, ...],
        Made(
            lambda _, texts: tuple([parse_dependency(text, param("after")) for text in texts]),
            after=Annotated[
                Sequence[str],
                Opt(
                    "--after", metavar="COND:ID", complete="after",
                    help="Start only after that job succeeded (ok:ID), ended (any:ID) or failed (notok:ID);"
                    " repeatable.",
                ),
            ],
        ),
    ] = ()  # fmt: skip
    per_node: Annotated[
        bool, Opt("--per-node", help="Run the command in every virtual node, with RANK and WORLD_SIZE.")
    ] = False  # fmt: skip
    label: Annotated[
        bool, Opt("--label", help="With --per-node: put the rank before each line of output.")
    ] = False  # fmt: skip
    private: Annotated[
        tuple[str, ...] | None,
        Made(
            lambda _, words: parse_private(words, param("private")),
            lambda words: {"private": words or (NOTHING,)},
            private=Annotated[
                Sequence[str] | None,
                Opt(
                    "--private", metavar="tmp,pids|none", reads="words", complete="private",
                    help="What it has for itself: tmp is /tmp and /var/tmp, emptied at its end; with pids it sees no"
                    " processes but its own. With --ray both, unless none.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    ray: Annotated[
        JobRay,
        Made(
            lambda _, ray, dashboard: JobRay("dashboard" if dashboard else "plain" if ray else ""),
            lambda ray: {"ray_dashboard" if ray.own == "dashboard" else "ray": bool(ray.own)},
            ray=Annotated[
                bool,
                Opt("--ray", help="Start a Ray cluster for the job alone, of its virtual nodes; needs Ray."),
            ],
            ray_dashboard=Annotated[
                bool, Opt("--ray-dashboard", help="--ray with the dashboard, which ray.util.state needs.")
            ],
        ),
    ] = JobRay()  # fmt: skip
    runtime_env: Annotated[
        Document,
        Opt(help="Packages for the tasks and the command of a job with ray, in Ray's form: pip, uv, py_modules."),
    ] = None  # fmt: skip
    max_retries: Annotated[
        int,
        Opt(
            "--max-retries", minimum=0, maximum=MAX_RETRIES,
            help="Number of retries after failures that --retry-on names (0).",
        ),
    ] = 0  # fmt: skip
    retry_on: Annotated[
        tuple[str, ...],
        Made(
            lambda _, causes: tuple(causes),
            lambda causes: {"retry_on": causes},
            retry_on=Annotated[
                Sequence[str],
                Opt(
                    "--retry-on", metavar="CAUSE,…", reads="words", complete="causes",
                    help="Failures to retry: NodeFailed (default), ExitCode, LaunchFailed, OutOfMemory.",
                ),
            ],
        ),
    ] = ("NodeFailed",)  # fmt: skip
    backoff_s: Annotated[
        float,
        Opt(
            "--backoff", metavar="TIME", reads="duration", minimum=0, maximum=LONGEST_S,
            help="Wait before the first retry, doubled each time (1s).",
        ),
    ] = 1  # fmt: skip
    signal: Annotated[
        WarningSignal | None,
        Made(
            lambda _, text: parse_warning_signal(text, param("signal")),
            lambda signal: {"signal": f"{signal.name}@{seconds_text(signal.before_s)}"},
            signal=Annotated[
                str | None,
                Opt(
                    "--signal", metavar="SIG@TIME",
                    help="Signal sent this many seconds before the time limit, and with the notice of a preemption:"
                    " USR1@60.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    job_scope: Annotated[
        str, Opt(choices=("own", "all"), help="What the job may change: what is its own, or all.")
    ] = "own"  # fmt: skip
    notify: Annotated[
        str | None,
        Opt(
            "--notify", metavar="CMD|URL|mailto:…", longest=10_000,
            help="Told at the start and at the end: a command, a URL (POST) or a mail address; none: nobody.",
        ),
    ] = None  # fmt: skip
    attach: tuple[str, str] | None = None  # fmt: skip

    def __post_init__(self) -> None:
        check_command(self.argv, self.cwd)
        if self.cluster is not None:
            resolve_cluster_id(self.cluster, param("cluster"))
        if self.submission_id is not None:
            check_submission_id(self.submission_id, param("submission_id"))
        check_limits(self)
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
        if self.runtime_env:
            check_runtime_env(self.runtime_env, has_ray=bool(self.ray.own))
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
        if self.notify is not None:
            spec.notify.check_notify(self.notify, param("notify"))
        for cause in self.retry_on:
            if cause not in CAUSES:
                raise refuse(param("retry_on"), f"unknown cause {show(cause)}", did_you_mean(cause, CAUSES))
        check_environment(self.env)
        check_document(self.metadata, param("metadata"))
        check_document(self.labels, param("labels"))


def check_runtime_env(runtime_env: Mapping[str, object], *, has_ray: bool) -> None:
    """Refuse what a private Ray does not install, and packages without a private Ray."""
    name = param("runtime_env")
    for field_name in runtime_env:
        if field_name not in IN_RUNTIME_ENV:
            instead = {"env_vars": param("env"), "working_dir": param("working_dir")}.get(field_name)
            fix = f"use {instead}" if instead else f"possible are {', '.join(IN_RUNTIME_ENV)}"
            raise refuse(f"{name}.{field_name}", "it is not handed to Ray", fix)
    if not has_ray:
        fields = ", ".join(runtime_env)
        raise refuse(
            name, f"only a job with a Ray of its own has {fields}", f"add {param('ray')}, or leave it out"
        )


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
    if nodes is not None:
        NODES.check_range(nodes, param("nodes"))
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


def booked_spec(
    num_cpus: object, num_gpus: object, memory: object, others: Amounts, nodes: int, units: Iterable[str]
) -> ClusterSpec:
    """The spec of a cluster that is booked: equal virtual nodes, each on a machine of its own."""
    amounts = {**others, **_sizes("", num_cpus, num_gpus, memory, frozenset(units))}
    if not any(amounts.values()):
        names = f"{param('num_gpus')}, {param('num_cpus')}, {param('memory')} or {param('resources')}"
        raise BadSpec("nothing to book", fix=f"give {names}")
    group = Group((FixedNode(amounts),) * nodes, "STRICT_SPREAD" if nodes > 1 else "PACK")
    return ClusterSpec(groups=(group,), flexible=False)


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
