"""Dead nodes: one table of trees. A row says what there is, which nodes die, and where everything is afterwards."""

from __future__ import annotations

import pytest

from tests.scheduler import candidates as g
from tests.specification import spec
from vctl.core import labels as lb
from vctl.core.clusters import FIXED, FLEXIBLE, JOB, LOGICAL, PRIMARY, SUB, Cluster, ClusterSpec, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, DRAINING
from vctl.core.resources import EMPTY, SCALE
from vctl.core.values import replace
from vctl.scheduler.replacement import Replaced, broken_gangs, is_published, move, units
from vctl.scheduler.reshape import reshape

pytestmark = spec("12.node-death", "12.replay")


def carried_out(ledger: Ledger, *node_ids: str) -> list[Replaced]:
    """Make all moves off these nodes."""
    done: list[Replaced] = []
    while (found := move(ledger, units(ledger, node_ids, {}), {})) is not None:
        ledger.rearrange(found.removed, found.placed)
        done += found.parts
    return done


KINDS = {"L": LOGICAL, "J": JOB, "S": SUB}


def world(nodes: str, *clusters: str) -> Ledger:
    """Clusters as 'L v < primary: n1,n2' of whole nodes; 'n1=1c' is a slice, 'n1~1c' flexible; '*': work runs there."""
    ledger = g.ledger(nodes)
    for text in clusters:
        head, _, slots = text.partition(":")
        kind, cluster_id, _, parent = head.split()
        parent = PRIMARY if parent == "primary" else parent
        parts = [part for part in slots.split(",") if part.strip()]
        groups = (
            [f"STRICT_SPREAD: {','.join(p.split('=')[1].strip('*') for p in parts)}"] if "=" in slots else []
        )
        least = f"{sum(int(p.split('~')[1].strip('c* ')) for p in parts if '~' in p)}c"
        spec = replace(g.spec(*groups, flexible=least if "~" in slots else None), replica_sets={})
        ledger.put_cluster(Cluster(cluster_id, parent, KINDS[kind], spec, divisible=True, job="1"))
        for rank, part in enumerate(parts):
            _assign(ledger, cluster_id, parent, part.strip(), rank)
    return ledger


def _assign(ledger: Ledger, cluster_id: str, parent: str, text: str, rank: int) -> None:
    busy = text.endswith("*")
    node_id, amounts = text.strip("*"), ""
    for sign in "=~":
        if sign in text:
            node_id, amounts = text.strip("*").split(sign)
    above = next(v for v in ledger.slots(parent) if v.node_id == node_id)
    capacity = ledger.capacities[above.vnode_id]
    allocation = capacity.copy().take(g.amounts(amounts)) if amounts else capacity.total
    vnode_id = f"{cluster_id}/{rank}"
    labels = {**above.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
    kind = FLEXIBLE if "~" in text else FIXED
    ledger.assign(
        VNode(
            vnode_id,
            cluster_id,
            node_id,
            above.vnode_id,
            kind,
            allocation,
            labels,
            whole=not amounts,
            rank=rank,
        )
    )
    if busy:
        ledger.charge(f"run:{vnode_id}", vnode_id, EMPTY)


def kill(ledger: Ledger, *node_ids: str, state: str = DEAD) -> None:
    for node_id in node_ids:
        ledger.put_node(replace(ledger.nodes[node_id], state=state))


def places(ledger: Ledger, cluster_id: str) -> str:
    found = []
    for vnode in sorted(ledger.slots(cluster_id), key=lambda v: (v.node_id, v.vnode_id)):
        sign = "" if vnode.whole else "~" if vnode.kind == FLEXIBLE else "="
        found.append(vnode.node_id + (f"{sign}{vnode.allocation.amounts['CPU'] // 10_000}c" if sign else ""))
        assert ledger.vnodes[vnode.parent_id or ""].node_id == vnode.node_id
        assert vnode.labels[lb.VNODE_ID] == vnode.vnode_id
    return " ".join(found)


V, J = "L v < primary: ", "J j < v: "
CASES = {
    "the primary's own nodes are not replaced": ("4c,4c", [], "n1", {}),
    "a logical cluster gets a spare of the primary": ("4c,4c", [V + "n1"], "n1", {"v": "n2"}),
    "of the same template only": ("4c,8c", [V + "n1"], "n1", {"v": "n1"}),
    "one that nobody has a part of": ("4c,4c,4c", [V + "n1", "L w < primary: n2=1c"], "n1", {"v": "n3", "w": "n2=1c"}),
    "and that is alive": ("4c,4c,4c", [V + "n1"], "n1 n2", {"v": "n3"}),
    "without a spare the dead node stays": ("4c,4c", [V + "n1,n2"], "n1", {"v": "n1 n2"}),
    "spares that are too few go where work waits": (
        "4c,4c,4c,4c", [V + "n1,n2,n3", J + "n2,n3*"], "n1 n2", {"v": "n1 n3 n4", "j": "n3 n4"},
    ),
    "a job's node is replaced from the primary, with the parent": (
        "4c,4c,4c,4c", [V + "n1,n2,n3", J + "n1,n2*"], "n1", {"v": "n2 n3 n4", "j": "n2 n4"},
    ),
    "or from the parent, which waits": (
        "4c,4c,4c", [V + "n1,n2,n3", J + "n1,n2*"], "n1", {"v": "n1 n2 n3", "j": "n2 n3"},
    ),
    "where work still runs nothing moves": ("4c,4c", [V + "n1", J + "n1*"], "n1", {"v": "n1", "j": "n1"}),
    "slices of clusters move with their whole node": (
        "4c,4c", [V + "n1", "L w < v: n1=1c", "L x < w: n1=1c"], "n1", {"v": "n2", "w": "n2=1c", "x": "n2=1c"},
    ),
    "a job's slice ends with the job first": ("4c,4c", [V + "n1", J + "n1=1c"], "n1", {"v": "n1", "j": "n1=1c"}),
    "a sub-cluster moves with its job's node": (
        "4c,4c,4c", ["J j < primary: n1,n2*", "S s < j: n1"], "n1", {"j": "n2 n3", "s": "n3"},
    ),
    "a slice finds another place, away from its group": (
        "4c,4c,4c", [V + "n1=1c,n2=1c"], "n1", {"v": "n2=1c n3=1c"},
    ),
    "and stays when there is none": ("4c,4c", [V + "n1=1c,n2=1c"], "n1", {"v": "n1=1c n2=1c"}),
    "a flexible minimum is placed anew": ("4c,4c", [V + "n1~3c"], "n1", {"v": "n2~3c"}),
    "and joins what is there": ("4c,4c", [V + "n1~1c,n2~1c"], "n1", {"v": "n2~2c"}),
    "or waits": ("4c,2c", [V + "n1~3c"], "n1", {"v": "n1~3c"}),
    "five levels move at once": (
        "4c,4c", [V + "n1", "L a < v: n1", "L b < a: n1", "J j < b: n1", "S s < j: n1"], "n1",
        {"v": "n2", "a": "n2", "b": "n2", "j": "n2", "s": "n2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "clusters", "dead", "want"), CASES.values(), ids=CASES)
def test_replacement(nodes: str, clusters: list[str], dead: str, want: dict[str, str]) -> None:
    ledger = world(nodes, *clusters)
    kill(ledger, *dead.split())
    carried_out(ledger, *dead.split())
    assert {cluster_id: places(ledger, cluster_id) for cluster_id in want} == want


def test_growth_above_the_minimum_is_just_lost() -> None:
    ledger = world("4c,4c", V + "n1~1c,n2~1c")
    ledger.put_cluster(replace(ledger.clusters["v"], spec=ClusterSpec(flexible_min=g.amounts("1c"))))
    kill(ledger, "n1")
    (lost,) = carried_out(ledger, "n1")
    assert (lost.before.node_id, lost.after) == ("n1", None)
    assert places(ledger, "v") == "n2~1c"


REMAINDERS = {
    "of free devices": ("2g", "", {0: SCALE, 1: SCALE // 2}),
    "a share of the device that is shared already": ("2g", "0.5g", {0: SCALE // 2, 1: SCALE}),
    "the share on another node": ("1g, 1g", "", {0: SCALE // 2 + SCALE}),
    "or waits": ("2g", "0.75g", {0: SCALE, 1: SCALE}),
}


@spec("2.instances")
@pytest.mark.parametrize(("spare", "used", "want"), REMAINDERS.values(), ids=REMAINDERS)
def test_the_remainder_of_a_minimum_is_whole_devices_and_a_share(
    spare: str, used: str, want: dict[int, int]
) -> None:
    """Of two devices half a one is lent: one and a half are asked for, which no single request may be."""
    ledger = nested("2g", spare)
    if used:
        ledger.charge("run", "n2", ledger.capacities["n2"].copy().take(g.amounts(used)))
    kill(ledger, "n1")
    while (found := move(ledger, units(ledger, ["n1"], {}), {"v": g.amounts("0.5g")})) is not None:
        ledger.rearrange(found.removed, found.placed)
    has: dict[int, int] = {}
    for vnode in ledger.slots("v"):
        for index, share in vnode.allocation.instances["GPU"].items():
            has[index] = has.get(index, 0) + share
    assert has == want


def nested(*nodes: str) -> Ledger:
    """A cluster of two devices, in which one cluster has a device and another one half of the other."""
    ledger = g.ledger(", ".join(nodes))
    for cluster_id, parent_id, least in (("v", PRIMARY, "2g"), ("a", "v", "1g"), ("b", "v", "0.5g")):
        asked = g.spec(flexible=least)
        ledger.put_cluster(Cluster(cluster_id, parent_id, LOGICAL, asked, divisible=True))
        assert reshape(ledger, cluster_id, ClusterSpec(flexible=False), asked, [], {}) is None
    return ledger


@spec("2.instances", "7.create")
@pytest.mark.parametrize("around", ["", "v"])
def test_a_minimum_of_half_a_device_becomes_two(around: str) -> None:
    """The rest is one device and a half; a parent without free devices grows for it."""
    ledger = g.ledger("1c 2g")
    parent_id = around or PRIMARY
    if around:
        ledger.put_cluster(Cluster(around, PRIMARY, LOGICAL, ClusterSpec({}), divisible=True))
    small, large = g.spec(flexible="0.5g"), g.spec(flexible="2g")
    ledger.put_cluster(Cluster("a", parent_id, LOGICAL, small))
    assert reshape(ledger, "a", ClusterSpec(flexible=False), small, [], {}) is None
    assert reshape(ledger, "a", small, large, [], {}) is None
    (vnode,) = ledger.slots("a")
    assert vnode.allocation.instances == {"GPU": {0: SCALE, 1: SCALE}}


def test_a_draining_node_is_no_spare() -> None:
    ledger = world("4c,4c", V + "n1")
    kill(ledger, "n1")
    kill(ledger, "n2", state=DRAINING)
    assert carried_out(ledger, "n1") == []


def test_a_cluster_that_is_to_go_gets_nothing() -> None:
    ledger = world("4c,4c", V + "n1")
    ledger.put_cluster(replace(ledger.clusters["v"], state="REMOVING"))
    kill(ledger, "n1")
    assert carried_out(ledger, "n1") == []


GANGS = {
    "a slice breaks the gang": ("J j < primary: n1=1c,n2=1c", ["j"]),
    "a whole node does not": ("J j < primary: n1,n2", []),
    "a flexible part of the minimum does": ("J j < primary: n1~1c,n2~1c", ["j"]),
    "a cluster that is no job's has no gang": ("L v < primary: n1=1c", []),
}


@pytest.mark.parametrize(("cluster", "want"), GANGS.values(), ids=GANGS)
def test_broken_gangs(cluster: str, want: list[str]) -> None:
    ledger = world("4c,4c", cluster)
    kill(ledger, "n1")
    assert [one.cluster_id for one in broken_gangs(ledger, "n1")] == want
    assert broken_gangs(ledger, "n2") == [] or want


def test_growth_above_the_minimum_breaks_no_gang() -> None:
    ledger = world("4c,4c", "J j < primary: n1~1c,n2~1c")
    ledger.put_cluster(replace(ledger.clusters["j"], spec=ClusterSpec(flexible_min=g.amounts("1c"))))
    kill(ledger, "n1")
    assert broken_gangs(ledger, "n1") == []


def test_runtimes_are_told_where_work_runs() -> None:
    spec = ClusterSpec()
    published = [
        is_published(Cluster("x", PRIMARY, kind, spec, divisible=divisible))
        for kind, divisible in ((LOGICAL, True), (LOGICAL, False), (JOB, True), (SUB, True))
    ]
    assert published == [False, True, True, True]
