"""spec 7: a cluster of slices that only gives back is changed without a look at the machines of others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.core.resources import CPU, SCALE
from vctl.errors import Conflict
from vctl.ops import cluster_changes, clusters
from vctl.ops.prove import prove
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.store import clusters as table
from vctl.store import rows

pytestmark = spec("7.create")

PAIR = {"nodes": [{"resources": {"CPU": 1}}] * 2, "scheduling_policy": "STRICT_SPREAD"}
BEFORE: dict[str, Any] = {"flexible_resource_min": {"CPU": 6}, "fixed_size_nodes": [PAIR]}
AFTER: dict[str, dict[str, Any]] = {
    "less": {"flexible_resource_min": {"CPU": 5}, "fixed_size_nodes": [PAIR]},
    "no minimum": {"fixed_size_nodes": [PAIR]},
}


def sliced(ground: Ground) -> None:
    ground.nodes(20)
    clusters.create(
        ground.store,
        "team",
        ClusterChange(divisible=True, spec=parse_cluster_spec(BEFORE, logical=True)),
        parent_id="primary",
    )
    clusters.create(
        ground.store,
        "below",
        ClusterChange(
            divisible=False, spec=parse_cluster_spec({"flexible_resource_min": {"CPU": 1}}, logical=True)
        ),
        parent_id="team",
    )


@pytest.mark.parametrize("case", AFTER)
def test_what_only_goes_needs_no_other_machine(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """It comes to the same as with the whole tree."""
    sliced(ground)
    wanted = ClusterChange(spec=parse_cluster_spec(AFTER[case], logical=True))
    whole = table.load_ledger(ground.store)
    with suppress(RuntimeError), ground.store.transaction():
        cluster_changes.update(ground.store, "team", wanted, ledger=whole)
        expected = table.vnode_rows(ground.store, "team")
        raise RuntimeError  # taken back
    monkeypatch.delattr(table, "load_ledger")
    with ground.store.transaction():
        cluster_changes.update(ground.store, "team", wanted)
    assert [tuple(row) for row in table.vnode_rows(ground.store, "team")] == [tuple(row) for row in expected]
    assert len(expected) > 0
    monkeypatch.undo()
    assert prove(ground.store) == []


def test_what_is_in_use_does_not_go(ground: Ground) -> None:
    sliced(ground)
    with pytest.raises(Conflict, match="virtual node team/0 on n-00 is in use"):
        clusters.update(
            ground.store,
            "team",
            ClusterChange(spec=parse_cluster_spec({"flexible_resource_min": {"CPU": 6}}, logical=True)),
        )
    assert prove(ground.store) == []


def test_what_comes_too_looks_at_all_of_them(ground: Ground) -> None:
    sliced(ground)
    more = parse_cluster_spec({"flexible_resource_min": {"CPU": 9}, "fixed_size_nodes": [PAIR]}, logical=True)
    clusters.update(ground.store, "team", ClusterChange(spec=more))
    held = [rows.vnode(row).allocation.amounts[CPU] for row in table.vnode_rows(ground.store, "team")]
    assert sum(held) == 11 * SCALE
    assert prove(ground.store) == []
