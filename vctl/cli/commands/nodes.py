"""``vctl node``: add, drain and remove physical nodes."""

from typing import TYPE_CHECKING, Annotated, Any

from vctl import cli, spec
from vctl.cli.call import Call
from vctl.cli.commands.objects import listed
from vctl.cli.common import CHANGES, LISTS, READS, SINCE, STATE
from vctl.cli.declare import command, shows
from vctl.cli.output import Answer, done, listing, single_by
from vctl.core.clusters import PRIMARY
from vctl.errors import BadSpec
from vctl.operations import nodes
from vctl.spec.params import Given, Opt, Together

if TYPE_CHECKING:
    from vctl.spec.documents import NodeForm

Label = Annotated[list[str] | None, Opt("--label", metavar="K=V", help="A label; repeatable.")]


@command(
    "node add",
    'vctl node add --count 100 --template 8c16g --resources \'{"CPU": 8, "memory": "16GiB"}\' --simulated',
    'vctl node add box --resources \'{"CPU": 8, "GPU": 4}\' --label ray.io/accelerator-type=A100 --simulated',
    common=CHANGES,
)
def add(
    call: Call,
    options: Annotated[Given, Together.of(nodes.add)],
    label: Label = None,
    simulated: Annotated[
        bool, Opt("--simulated", help="A declared node; its jobs run as processes of this machine.")
    ] = False,
) -> Answer:
    """Declare one node, or many equal ones."""
    source = "simulated" if simulated else "local"
    made = nodes.add(call.backend, **_with_labels(options, label), source=source)
    answer = listing("NodeList", made, len(made), "node_id", cli.columns.NODES, "")
    last = f" to {made[-1]['node_id']}" if len(made) > 1 else ""
    counted = "node" if len(made) == 1 else f"{len(made)} nodes"
    answer.draw, answer.sentences = None, [f"{counted} {made[0]['node_id']}{last} added"]
    return answer


def _with_labels(options: Given, pairs: list[str] | None) -> dict[str, Any]:
    """The given options; the labels of ``--label`` take precedence over those of ``--labels``."""
    values = dict(options or {})
    if pairs is not None:
        labels = spec.selectors.parse_label_changes(values.get("labels", {}), "--labels")
        values["labels"] = labels | spec.options.parse_label_pairs(pairs)
    return values


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


shows(nodes.get_node, single_by("node_id"), "vctl node get 8c16g-00", common=READS)


def _changed(node: "NodeForm") -> Answer:
    return _changed_sentence(node, f"is {node['state']}")


def _changed_sentence(node: "NodeForm", word: str) -> Answer:
    return done(node, node["node_id"], f"node {node['node_id']} {word}")


shows(nodes.drain, _changed, "vctl node drain 8c16g-00 --reason 'new disk'", common=CHANGES)
shows(nodes.undrain, _changed, "vctl node undrain 8c16g-00", common=CHANGES)


@command(
    "node update",
    "vctl node update 8c16g-00 --resources '{\"CPU\": 16}'",
    "vctl node update 8c16g-00 --label rack=r2",
    "vctl node update 8c16g-00 --labels '{\"rack\": null}'",
    common=CHANGES,
)
def update(call: Call, options: Annotated[Given, Together.of(nodes.update)], label: Label = None) -> Answer:
    """Change the resources or the labels of a node."""
    values = _with_labels(options, label)
    if values.keys() == {"node_id"}:
        raise BadSpec("nothing to change", fix="give --resources, --label or --labels")
    return _changed_sentence(nodes.update(call.backend, **values), "updated")


shows(
    nodes.remove, lambda node: _changed_sentence(node, "removed"), "vctl node remove 8c16g-00", common=CHANGES
)
shows(nodes.kill, _changed, "vctl node kill 8c16g-00 --reason 'power supply'", common=CHANGES)
shows(
    nodes.ignore, lambda node: _changed_sentence(node, "changed: see `vctl gpus`"), "vctl node ignore box 4242",
    "vctl node ignore box 4242 --off", common=CHANGES,
)  # fmt: skip
shows(nodes.heartbeat, _changed, "vctl node heartbeat 8c16g-00 --timeout 30s", common=CHANGES)
