"""The verbs of ``vctl node``, for physical nodes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from vctl import ops, spec
from vctl.errors import param
from vctl.operations.declare import Context, operation
from vctl.spec.params import Arg, Filters, Opt

if TYPE_CHECKING:
    from vctl.spec.documents import NodeForm

Node = Annotated[str, Arg("NODE", help="Node id, or a unique prefix of it.", complete="nodes")]
Reason = Annotated[str | None, Opt("--reason", longest=100_000, help="The reason, shown with the node.")]
TOTALS = Opt(
    "--resources", metavar="JSON|@FILE|-", reads="resources",
    help='Totals, such as {"CPU": 8, "memory": "16GiB"}.',
)  # fmt: skip
Labels = Annotated[
    Mapping[str, str] | None, Opt("--labels", metavar="JSON", reads="labels", help="Labels as a JSON map.")
]
LabelChanges = Annotated[
    Mapping[str, str | None] | None,
    Opt("--labels", metavar="JSON", reads="labels", help="Labels to set, as a JSON map; null removes one."),
]
Timeout = Annotated[
    float | None,
    Opt(
        "--timeout",
        metavar="TIME",
        reads="positive duration",
        above=0,
        maximum=1e9,
        help="From now on, the node is dead after this time without a heartbeat.",
    ),
]


@operation("node add", "POST /nodes", right="service", items="NodeList", service="the nodes")
def add(
    context: Context,
    *,
    resources: Annotated[Mapping[str, Any], TOTALS],
    node_id: Annotated[str | None, Arg("NODE", help="Id of the node (default: from the template).")] = None,
    count: Annotated[int, Opt("--count", minimum=1, maximum=100_000, help="How many equal nodes (1).")] = 1,
    template: Annotated[
        str | None, Opt("--template", metavar="ID", longest=253, help="Its type (default: such as 8c16g).")
    ] = None,
    labels: Labels = None,
    source: Annotated[str, Opt(choices=("simulated", "local"), help="Its origin.")] = "simulated",
) -> "list[NodeForm]":
    """Declare one node, or many equal ones."""
    return ops.nodes.add(
        context.store,
        resources=context.amounts(resources, param("resources"), totals=True),
        node_id=node_id,
        count=count,
        template=template,
        labels=None if labels is None else spec.selectors.parse_labels(labels, param("labels")),
        source=source,
        units=context.units,
    )


@operation("node list", "GET /nodes", right="see", items="NodeList")
def list_nodes(context: Context, *, filters: Filters = ()) -> "list[NodeForm]":
    """List the physical nodes of all clusters."""
    return ops.nodes.list_nodes(context.store, filters=filters)


@operation("node get", "GET /nodes/{node}", right="see")
def get_node(context: Context, node_id: Node) -> "NodeForm":
    """Show one node."""
    return ops.nodes.get_node(context.store, node_id)


@operation("node update", "PATCH /nodes/{node}", right="service", service="node {node_id}")
def update(
    context: Context,
    node_id: Node,
    *,
    resources: Annotated[Mapping[str, Any] | None, TOTALS] = None,
    labels: LabelChanges = None,
) -> "NodeForm":
    """Change the resources or the labels of a node."""
    return ops.nodes.update(
        context.store,
        node_id,
        resources=context.amounts(resources, param("resources"), totals=True),
        labels=None if labels is None else spec.selectors.parse_label_changes(labels, param("labels")),
        units=context.units,
    )


@operation("node remove", "DELETE /nodes/{node}", right="service", service="node {node_id}")
def remove(context: Context, node_id: Node) -> "NodeForm":
    """Remove a node on which nothing runs."""
    return ops.nodes.remove(context.store, node_id)


@operation("node drain", "POST /nodes/{node}/drain", right="service", service="node {node_id}")
def drain(context: Context, node_id: Node, *, reason: Reason = None) -> "NodeForm":
    """Drain a node: it gets no new work, and running work goes on."""
    return ops.nodes.drain(context.store, node_id, reason=reason)


@operation("node undrain", "POST /nodes/{node}/undrain", right="service", service="node {node_id}")
def undrain(context: Context, node_id: Node) -> "NodeForm":
    """Take a drained node back into service."""
    return ops.nodes.undrain(context.store, node_id)


@operation("node kill", "POST /nodes/{node}/kill", right="service", service="node {node_id}")
def kill(context: Context, node_id: Node, *, reason: Reason = None) -> "NodeForm":
    """Declare a node dead; the work on it fails."""
    return ops.nodes.kill(context.store, node_id, reason=reason)


@operation("node ignore", "POST /nodes/{node}/ignore", right="service", service="node {node_id}")
def ignore(
    context: Context,
    node_id: Node,
    pid: Annotated[
        int, Arg("PID", minimum=2, maximum=2**31 - 1, help="The process, as `vctl gpus` shows it.")
    ],
    *,
    off: Annotated[bool, Opt("--off", help="Let it count again.")] = False,
) -> "NodeForm":
    """Let a process that nobody booked GPUs for keep no jobs from them.

    It holds as long as the process lives; `vctl gpus` shows such processes.
    """
    return ops.gpus.ignore(context.store, node_id, pid, off=off)


@operation("node heartbeat", "POST /nodes/{node}/heartbeat", right="service", service="node {node_id}")
def heartbeat(context: Context, node_id: Node, *, timeout_s: Timeout = None) -> "NodeForm":
    """Send a heartbeat for a node."""
    return ops.nodes.heartbeat(context.store, node_id, timeout_s=timeout_s)
