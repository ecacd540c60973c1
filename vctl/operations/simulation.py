"""``vctl simulate``: recorded work is played where the state is, a trace or a model where the command runs."""

from typing import TYPE_CHECKING, Any

from vctl.operations.declare import Backend, Here, operation

if TYPE_CHECKING:
    from vctl.ops.simulate import Told
    from vctl.ops.simulated import Wanted


def run(backend: Backend, wanted: "Wanted", told: "Told | None" = None) -> dict[str, object]:
    """Play work under the settings of the queue of a backend, and under other policies."""
    if wanted.trace is None and wanted.model is None:
        found = recorded(backend, wanted, told)
        return {name: value for name, value in found.items() if name not in ("api_version", "kind", "total")}
    from vctl.operations import clusters
    from vctl.ops import simulated
    from vctl.spec.queue_settings import parse_queue

    queue = parse_queue(clusters.get_cluster(backend, "primary")["queue"], "queue")
    return simulated.made_up(wanted, queue, told)


def _body(wanted: "Wanted", told: "Told | None" = None) -> dict[str, Any]:  # noqa: ARG001  # a server tells nothing
    return {
        "since": None if wanted.since_ns is None else wanted.since_ns / 1e9,
        "until": None if wanted.until_ns is None else wanted.until_ns / 1e9,
        "cluster": wanted.cluster,
        "policies": list(wanted.policies),
        "nodes": list(wanted.nodes),
        "template": wanted.template,
        "limit_factor": wanted.limit_factor,
    }


@operation("simulate", "POST /simulate", body=_body)
def recorded(here: Here, wanted: "Wanted", told: "Told | None" = None) -> dict[str, object]:
    """Simulate recorded work under other policies or on other machines. Changes nothing."""
    from vctl.ops import simulated

    return simulated.at(here.store.home, wanted, told)
