"""``vctl node``: add, drain and remove physical nodes."""

from typing import Annotated, Any

from vctl.cli.call import Call
from vctl.cli.common import CHANGES, CHOSEN_BY, LISTS, READS, SINCE, STATE
from vctl.cli.declare import Arg, Opt, command
from vctl.cli.output import Answer, done, listing, single

NodeRef = Annotated[str, Arg("NODE", help="Node id, or a unique prefix of it.", complete="nodes")]
Reason = Annotated[str | None, Opt("--reason", help="The reason, shown with the node.")]
Resources = Annotated[
    str | None,
    Opt("--resources", metavar="JSON|@FILE|-", help='Totals, such as {"CPU": 8, "memory": "16GiB"}.'),
]
Label = Annotated[list[str] | None, Opt("--label", metavar="K=V", help="A label; repeatable.")]
Labels = Annotated[str | None, Opt("--labels", metavar="JSON", help="Labels as a JSON map.")]


@command(
    "node add",
    'vctl node add --count 100 --template 8c16g --resources \'{"CPU": 8, "memory": "16GiB"}\' --simulated',
    'vctl node add box --resources \'{"CPU": 8, "GPU": 4}\' --label ray.io/accelerator-type=A100 --simulated',
    common=CHANGES,
)
def add(
    call: Call,
    node_id: Annotated[str | None, Arg("NODE", help="Id of the node (default: from the template).")] = None,
    count: Annotated[int, Opt("--count", help="How many equal nodes (1).")] = 1,
    template: Annotated[
        str | None, Opt("--template", metavar="ID", help="Its type (default: such as 8c16g).")
    ] = None,
    resources: Resources = None,
    label: Label = None,
    labels: Labels = None,
    simulated: Annotated[
        bool, Opt("--simulated", help="A declared node; its jobs run as processes of this machine.")
    ] = False,
) -> Answer:
    """Declare one node, or many equal ones."""
    from vctl.cli.columns import NODES
    from vctl.errors import BadSpec
    from vctl.ops import nodes

    if resources is None:
        raise BadSpec(
            "--resources is missing", fix='write for example --resources \'{"CPU": 8, "memory": "16GiB"}\''
        )
    made = nodes.add(
        call.store,
        node_id=node_id,
        count=count,
        template=template,
        resources=_resources(call, resources),
        labels=_labels(label, labels) or {},
        source="simulated" if simulated else "local",
        units=call.config.get("unit_resources"),
    )
    answer = listing("NodeList", made, len(made), "node_id", NODES, "")
    last = f" to {made[-1]['node_id']}" if len(made) > 1 else ""
    counted = "node" if len(made) == 1 else f"{len(made)} nodes"
    answer.draw, answer.sentences = None, [f"{counted} {made[0]['node_id']}{last} added"]
    return answer


def _resources(call: Call, document: str) -> dict[str, int]:
    from vctl.spec.quantities import parse_resources
    from vctl.spec.source import read_document

    given = read_document(document, "a map of resources", "--resources")
    return parse_resources(given, "--resources", call.config.get("unit_resources"), totals=True)


def _labels(pairs: list[str] | None, document: str | None) -> dict[str, str] | None:
    if pairs is None and document is None:
        return None
    from vctl.spec.options import parse_label_pairs
    from vctl.spec.selectors import parse_labels
    from vctl.spec.source import read_document

    found: dict[str, str] = {}
    if document is not None:
        found.update(parse_labels(read_document(document, "a map of labels", "--labels"), "--labels"))
    found.update(parse_label_pairs(pairs or ()))
    return found


@command(
    "node list",
    "vctl node list",
    "vctl node list --filter state=ALIVE -o name",
    common=(STATE, SINCE, *LISTS),
)
def list_(call: Call) -> Answer:
    """List the physical nodes of all clusters."""
    from vctl.cli.columns import NODES
    from vctl.ops import nodes

    call.choose(**CHOSEN_BY["nodes"])
    items = nodes.list_nodes(call.store, filters=call.filters)
    none = (
        "no nodes yet: the first `vctl run` registers this machine;"
        " `vctl node add --simulated` declares simulated nodes"
    )
    return listing("NodeList", call.first(items), len(items), "node_id", NODES, none)


@command("node get", "vctl node get 8c16g-00", common=READS)
def get(call: Call, node: NodeRef) -> Answer:
    """Show one node."""
    from vctl.ops import nodes

    data = nodes.get_node(call.store, node)
    return single(data, data["node_id"])


def _changed(data: dict[str, Any], what: str | None = None) -> Answer:
    return done(data, data["node_id"], f"node {data['node_id']} {what or 'is ' + data['state']}")


@command("node drain", "vctl node drain 8c16g-00 --reason 'new disk'", common=CHANGES)
def drain(call: Call, node: NodeRef, reason: Reason = None) -> Answer:
    """Drain a node: it gets no new work, and running work goes on."""
    from vctl.ops import nodes

    return _changed(nodes.drain(call.store, node, reason=reason))


@command("node undrain", "vctl node undrain 8c16g-00", common=CHANGES)
def undrain(call: Call, node: NodeRef) -> Answer:
    """Take a drained node back into service."""
    from vctl.ops import nodes

    return _changed(nodes.undrain(call.store, node))


@command(
    "node update",
    "vctl node update 8c16g-00 --resources '{\"CPU\": 16}'",
    "vctl node update 8c16g-00 --label rack=r2",
    common=CHANGES,
)
def update(
    call: Call, node: NodeRef, resources: Resources = None, label: Label = None, labels: Labels = None
) -> Answer:
    """Change the resources or the labels of a node."""
    from vctl.errors import BadSpec
    from vctl.ops import nodes

    if resources is None and label is None and labels is None:
        raise BadSpec("nothing to change", fix="give --resources, --label or --labels")
    data = nodes.update(
        call.store,
        node,
        resources=None if resources is None else _resources(call, resources),
        labels=_labels(label, labels),
        units=call.config.get("unit_resources"),
    )
    return _changed(data, "updated")


@command("node remove", "vctl node remove 8c16g-00", common=CHANGES)
def remove(call: Call, node: NodeRef) -> Answer:
    """Remove a node on which nothing runs."""
    from vctl.ops import nodes

    return _changed(nodes.remove(call.store, node), "removed")


@command("node kill", "vctl node kill 8c16g-00 --reason 'power supply'", common=CHANGES)
def kill(call: Call, node: NodeRef, reason: Reason = None) -> Answer:
    """Declare a node dead; the work on it fails."""
    from vctl.ops import nodes

    return _changed(nodes.kill(call.store, node, reason=reason))


@command("node heartbeat", "vctl node heartbeat 8c16g-00 --timeout 30s", common=CHANGES)
def heartbeat(
    call: Call,
    node: NodeRef,
    timeout: Annotated[
        str | None,
        Opt(
            "--timeout",
            metavar="TIME",
            help="From now on, the node is dead after this time without a heartbeat.",
        ),
    ] = None,
) -> Answer:
    """Send a heartbeat for a node."""
    from vctl.ops import nodes
    from vctl.spec.quantities import parse_duration

    timeout_s = None if timeout is None else parse_duration(timeout, "--timeout", positive=True)
    return _changed(nodes.heartbeat(call.store, node, timeout_s=timeout_s))
