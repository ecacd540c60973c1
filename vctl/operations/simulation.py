"""``vctl simulate``: the backend simulates recorded jobs; the caller simulates a trace or a model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from vctl import operations, ops, spec
from vctl.errors import param
from vctl.operations.declare import Backend, Context, operation
from vctl.spec.params import Opt

if TYPE_CHECKING:
    from vctl.ops.simulate import Progress
    from vctl.ops.simulated import Model, SimulationRequest

ENVELOPE = ("api_version", "kind", "total")
MAX_JOBS, MAX_NODES, MAX_RUNS = 20_000, 10_000, 50
"""The most jobs and nodes that a server simulates, and the most policies and numbers of nodes of one request."""
_OF_HISTORY = ("since", "until", "cluster", "policies", "nodes", "template", "limit_factor")
"""The parameters of a simulation of the recorded history."""
LONGEST_S = 30.0
"""How long a server simulates, as other requests wait for it."""
Moment = Annotated[
    float | None, Opt(minimum=0, maximum=9e9, help="Of the recorded history, in seconds since the epoch.")
]


def run(backend: Backend, request: "SimulationRequest", progress: "Progress | None" = None) -> dict[str, Any]:
    """Simulate a workload under the queue settings of a backend, and under other policies."""
    if request.trace is None and request.model is None:
        result = simulate(backend, **{name: getattr(request, name) for name in _OF_HISTORY})
        return {name: value for name, value in result.items() if name not in ENVELOPE}
    queue = spec.queue_settings.parse_queue(
        operations.clusters.get_cluster(backend, "primary")["queue"], "queue"
    )
    return ops.simulated.made_up(request, queue, progress)


@operation("simulate", "POST /simulate", right="see")
def simulate(
    context: Context,
    *,
    trace: Annotated[str | None, Opt(longest=2**31, help="The lines of a trace.")] = None,
    model: Annotated[
        Mapping[str, Any] | None, Opt(help="A published model: how many jobs, the seed, the load.")
    ] = None,
    since: Moment = None,
    until: Moment = None,
    cluster: Annotated[str | None, Opt(help="Only the jobs of this cluster.")] = None,
    policies: Annotated[
        Sequence[str], Opt(longest=MAX_RUNS, help="Policies to compare with the current one.")
    ] = (),
    nodes: Annotated[
        Sequence[int], Opt(minimum=1, maximum=MAX_NODES, longest=MAX_RUNS, help="Numbers of nodes to try.")
    ] = (),
    template: Annotated[str | None, Opt(help="Template of added or removed nodes.")] = None,
    node_resources: Annotated[Mapping[str, Any] | None, Opt(help="Trace: resources of each node.")] = None,
    limit_factor: Annotated[
        float | None,
        Opt(above=0, maximum=1e6, help="Jobs without a time limit get this many times their run time."),
    ] = None,
) -> dict[str, Any]:
    """Simulate recorded, given or modelled work under other policies or on other machines. Changes nothing."""
    if trace is not None and model is not None:
        raise spec.fields.refuse(param("model"), "a trace is given too", "send one of them")
    parsed = None if model is None else model_of(model)
    if parsed is not None and parsed.jobs > MAX_JOBS:
        raise spec.fields.refuse(
            spec.fields.child(param("model"), "jobs"),
            "these are too many for a server",
            f"write 1 to {MAX_JOBS}",
        )
    each = context.amounts(node_resources, param("node_resources"), totals=True)
    lines = None if trace is None else iter(trace.splitlines(keepends=True))
    request = ops.simulated.SimulationRequest(
        trace=None
        if lines is None
        else ops.simulate.trace_of(
            lines,
            "trace",
            per_node=ops.simulated.processors_of(each),
            size=spec.trace_size.Size(MAX_JOBS, MAX_NODES),
        ),
        model=parsed,
        since=since,
        until=until,
        cluster=None if cluster is None else spec.ids.resolve_cluster_id(cluster, param("cluster")),
        policies=tuple(policies),
        nodes=tuple(nodes),
        template=template,
        node_resources=each,
        limit_factor=limit_factor,
    )
    data = ops.simulated.at(context.store.home, request, check=ops.simulated.within(LONGEST_S))
    return {"api_version": "vctl/v1", "kind": "SimulationRunList", **data, "total": len(data["items"])}


def model_of(given: Mapping[str, Any]) -> "Model":
    """Read a model from its JSON form."""
    kinds: dict[str, type | tuple[type, ...]] = {"jobs": int, "seed": int, "load": (int, float)}
    for name, value in given.items():
        path = spec.fields.child(param("model"), name)
        if name not in kinds:
            raise spec.fields.refuse(path, "unknown field", spec.fields.did_you_mean(name, kinds))
        if isinstance(value, bool) or not isinstance(value, kinds[name]):
            raise spec.fields.refuse(path, f"{spec.fields.show(value)} is not a number", "write a number")
    return ops.simulated.Model(**given)
