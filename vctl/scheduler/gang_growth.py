"""Growing a cluster until a whole gang fits into it."""

from __future__ import annotations

from collections.abc import Iterator

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import ClusterSpec
from vctl.core.labels import Selector
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.scheduler.elasticity import Grow, grow, revert_growth
from vctl.scheduler.placement import Placed, place


def grow_for_gang(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts
) -> tuple[list[Grow], Placed] | None:
    """Let a cluster grow until a gang fits into it; applied to the ledger. None leaves the ledger as it was.

    Each part that fits nowhere now makes the cluster grow by itself; then the whole gang is placed at once.
    """
    done: list[Grow] = []
    trial: list[str] = []
    possible = True
    for number, (request, selector, avoid) in enumerate(_parts(ledger, spec, entry, trial)):
        vnode_id = _room_for(ledger, parent_id, request, selector, avoid)
        if vnode_id is None:
            more = grow(ledger, parent_id, request, selector, avoid)
            if more is None:
                possible = False
                break
            done += more
            vnode_id = _room_for(ledger, parent_id, request, selector, avoid)
        if vnode_id is None:
            possible = False
            break
        ledger.charge(f"gang:{number}", vnode_id, ledger.rooms[vnode_id].copy().take(request))
        trial.append(f"gang:{number}")
    for run_id in trial:
        ledger.discharge(run_id)
    if possible and done:
        found = place(ledger, parent_id, spec, entry)
        if isinstance(found, Placed):
            return done, found
    for step in reversed(done):
        revert_growth(ledger, step)
    return None


def _parts(
    ledger: Ledger, spec: ClusterSpec, entry: Amounts, trial: list[str]
) -> Iterator[tuple[dict[str, int], Selector, frozenset[str]]]:
    """What a gang needs, part by part, with the nodes that its policy rules out given the parts before."""
    for group in spec.groups:
        first = len(trial)
        for node in group.nodes:
            used = frozenset(ledger.vnodes[ledger.charges[run][0]].node_id for run in trial[first:])
            avoid = used if group.policy == "STRICT_SPREAD" else frozenset()
            yield {n: a for n, a in node.resources.items() if a}, node.selector, avoid
    flexible = rs.maximum(spec.flexible_min, {} if spec.groups else entry) if spec.flexible else {}
    if any(flexible.values()):
        yield {n: a for n, a in flexible.items() if a}, (), frozenset()


def _room_for(
    ledger: Ledger, cluster_id: str, request: Amounts, selector: Selector, avoid: frozenset[str]
) -> str | None:
    for vnode in ledger.slots(cluster_id):
        if (
            vnode.node_id not in avoid
            and ledger.nodes[vnode.node_id].schedulable
            and lb.matches(selector, vnode.labels)
            and ledger.rooms[vnode.vnode_id].fits(request)
        ):
            return vnode.vnode_id
    return None
