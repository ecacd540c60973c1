"""From the body of a request to what ``ops`` takes: the values are judged where the command line's are."""

from __future__ import annotations

from vctl.core.clusters import ClusterSpec
from vctl.http import bodies
from vctl.http.context import Server
from vctl.ops.simulated import Wanted
from vctl.spec.job_request import JobRequest
from vctl.spec.task_request import TaskRequest


def cluster_spec(
    server: Server, document: bodies.Document | None, *, logical: bool = False
) -> ClusterSpec | None:
    """A spec as it was sent, camelCase or not."""
    from vctl.spec.cluster_spec import parse_cluster_spec

    if document is None:
        return None
    return parse_cluster_spec(document, units=server.units, camel_case=True, logical=logical)


def resources(
    server: Server, document: bodies.Document, path: str, *, totals: bool = False
) -> dict[str, int]:
    """A resource map as it was sent."""
    from vctl.spec.quantities import parse_resources

    return parse_resources(document, path, server.units, totals=totals)


def job_request(server: Server, body: bodies.Job) -> JobRequest:
    """What a submit asks for, as the command line would have read it."""
    from vctl.spec import options
    from vctl.spec.job_request import shortcut_spec

    short = shortcut_spec(
        body.num_cpus,
        body.num_gpus,
        body.memory,
        body.nodes,
        units=server.units,
        beside_spec=body.virtual_cluster is not None,
    )
    entry = None
    if body.entrypoint_resources is not None:
        entry = resources(server, body.entrypoint_resources, "entrypoint_resources")
        entry = {name: amount for name, amount in entry.items() if amount}
    return JobRequest(
        argv=tuple(body.entrypoint),
        cluster=body.cluster,
        spec=cluster_spec(server, body.virtual_cluster) or short,
        entry=entry,
        priority=body.priority,
        time_limit_s=body.time_limit_s,
        name=body.name,
        submission_id=body.submission_id,
        env=body.env,
        clean_env=body.clean_env,
        cwd=body.cwd,
        metadata=body.metadata,
        labels=body.labels,
        grace_s=server.config.get("kill_grace") if body.grace_s is None else body.grace_s,
        per_node=body.per_node,
        max_retries=body.max_retries,
        retry_on=tuple(body.retry_on),
        backoff_s=body.backoff_s,
        hold=body.hold,
        begin_at=body.begin_at,
        signal=None if body.signal is None else options.parse_warning_signal(body.signal, "signal"),
        after=tuple(options.parse_dependency(text, "after") for text in body.after),
        array=None if body.array is None else options.parse_array(body.array, "array"),
        job_scope=body.job_scope,
        label=body.label,
    )


def simulation(server: Server, body: bodies.Simulation) -> Wanted:
    """What is to be played, as the command line would have read it."""
    from vctl.ops.simulate import trace_of
    from vctl.ops.simulated import Model, Wanted, processors_of
    from vctl.spec.fields import refuse
    from vctl.spec.ids import resolve_cluster_id

    if body.trace is not None and body.model is not None:
        raise refuse("model", "a trace is given too", "send one of them")
    each = None
    if body.node_resources is not None:
        each = resources(server, body.node_resources, "node_resources", totals=True)
    lines = None if body.trace is None else iter(body.trace.splitlines(keepends=True))
    return Wanted(
        trace=None if lines is None else trace_of(lines, "trace", per_node=processors_of(each)),
        model=None if body.model is None else Model(body.model.jobs, body.model.seed, body.model.load),
        since_ns=None if body.since is None else int(body.since * 1e9),
        until_ns=None if body.until is None else int(body.until * 1e9),
        cluster=None if body.cluster is None else resolve_cluster_id(body.cluster, "cluster"),
        policies=tuple(body.policies),
        nodes=tuple(body.nodes),
        template=body.template,
        node_resources=each,
        limit_factor=body.limit_factor,
    )


def task_request(server: Server, body: bodies.Task) -> TaskRequest:
    """What a task asks for, as the command line would have read it."""
    from vctl.spec.selectors import parse_selector
    from vctl.spec.task_request import DEFAULT_REQUEST

    request = DEFAULT_REQUEST if body.resources is None else resources(server, body.resources, "resources")
    selector = () if body.label_selector is None else parse_selector(body.label_selector, "label_selector")
    return TaskRequest(
        argv=tuple(body.entrypoint),
        job=body.job,
        request={name: amount for name, amount in request.items() if amount},
        selector=selector,
        strategy=body.strategy,
        name=body.name,
        max_retries=body.max_retries,
        detach=body.detach,
        env=body.env,
        cwd=body.cwd,
        grace_s=body.grace_s,
        inputs=tuple(body.inputs),
        outputs=tuple(body.outputs),
    )
