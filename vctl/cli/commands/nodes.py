"""``vctl node``: add, drain and remove physical nodes."""

from typing import TYPE_CHECKING, Annotated, Any

from vctl import cli, spec
from vctl.cli.call import Call
from vctl.cli.commands.objects import listed
from vctl.cli.common import CHANGES, LISTS, READS, SINCE, STATE
from vctl.cli.declare import command, shows
from vctl.cli.output import Answer, done, listing, single
from vctl.core.clusters import PRIMARY
from vctl.operations import nodes
from vctl.operations.declare import Opt

if TYPE_CHECKING:
    from vctl.spec.documents import NodeForm

Text = Annotated[str | None, nodes.TOTALS]
Label = Annotated[list[str] | None, Opt("--label", metavar="K=V", help="A label; repeatable.")]
LabelText = Annotated[str | None, nodes.LABELS]


@command(
    "node add",
    'vctl node add --count 100 --template 8c16g --resources \'{"CPU": 8, "memory": "16GiB"}\' --simulated',
    'vctl node add box --resources \'{"CPU": 8, "GPU": 4}\' --label ray.io/accelerator-type=A100 --simulated',
    common=CHANGES,
)
def add(
    call: Call,
    node_id: nodes.NewNode = None,
    count: nodes.Count = 1,
    template: nodes.Template = None,
    resources: Text = None,
    label: Label = None,
    labels: LabelText = None,
    simulated: Annotated[
        bool, Opt("--simulated", help="A declared node; its jobs run as processes of this machine.")
    ] = False,
) -> Answer:
    """Declare one node, or many equal ones."""
    from vctl.errors import BadSpec

    if resources is None:
        raise BadSpec(
            "--resources is missing", fix='write for example --resources \'{"CPU": 8, "memory": "16GiB"}\''
        )
    made = nodes.add(
        call.backend,
        node_id=node_id,
        count=count,
        template=template,
        resources=_document(resources),
        labels=_labels(label, labels) or {},
        source="simulated" if simulated else "local",
    )
    answer = listing("NodeList", made, len(made), "node_id", cli.columns.NODES, "")
    last = f" to {made[-1]['node_id']}" if len(made) > 1 else ""
    counted = "node" if len(made) == 1 else f"{len(made)} nodes"
    answer.draw, answer.sentences = None, [f"{counted} {made[0]['node_id']}{last} added"]
    return answer


def _document(text: str) -> Any:
    return spec.source.read_document(text, "a map of resources", "--resources")


def _labels(pairs: list[str] | None, document: str | None) -> dict[str, str] | None:
    if pairs is None and document is None:
        return None
    found: dict[str, str] = {}
    if document is not None:
        found.update(
            spec.selectors.parse_labels(
                spec.source.read_document(document, "a map of labels", "--labels"), "--labels"
            )
        )
    found.update(spec.options.parse_label_pairs(pairs or ()))
    return found


@command(
    "node list",
    "vctl node list",
    "vctl node list --filter state=ALIVE -o name",
    common=(STATE, SINCE, *LISTS),
)
def list_(call: Call) -> Answer:
    """List the physical nodes of all clusters."""
    none = (
        "no nodes yet: the first `vctl run` registers this machine;"
        " `vctl node add --simulated` declares simulated nodes"
    )
    return listed(call, "nodes", PRIMARY, none)


def _single(node: "NodeForm") -> Answer:
    return single(node, node["node_id"])


shows(nodes.get_node, _single, "vctl node get 8c16g-00", common=READS)


def _changed(node: "NodeForm") -> Answer:
    return _said(node, f"is {node['state']}")


def _said(node: "NodeForm", word: str) -> Answer:
    return done(node, node["node_id"], f"node {node['node_id']} {word}")


shows(nodes.drain, _changed, "vctl node drain 8c16g-00 --reason 'new disk'", common=CHANGES)
shows(nodes.undrain, _changed, "vctl node undrain 8c16g-00", common=CHANGES)


@command(
    "node update",
    "vctl node update 8c16g-00 --resources '{\"CPU\": 16}'",
    "vctl node update 8c16g-00 --label rack=r2",
    common=CHANGES,
)
def update(
    call: Call, node: nodes.Node, resources: Text = None, label: Label = None, labels: LabelText = None
) -> Answer:
    """Change the resources or the labels of a node."""
    from vctl.errors import BadSpec

    if resources is None and label is None and labels is None:
        raise BadSpec("nothing to change", fix="give --resources, --label or --labels")
    totals = None if resources is None else _document(resources)
    data = nodes.update(call.backend, node, resources=totals, labels=_labels(label, labels))
    return _said(data, "updated")


shows(nodes.remove, lambda node: _said(node, "removed"), "vctl node remove 8c16g-00", common=CHANGES)
shows(nodes.kill, _changed, "vctl node kill 8c16g-00 --reason 'power supply'", common=CHANGES)
shows(nodes.heartbeat, _changed, "vctl node heartbeat 8c16g-00 --timeout 30s", common=CHANGES)
