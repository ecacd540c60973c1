"""Commands that change clusters leave what is kept for the winner of a preemption (spec 8: held for it)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.daemon.test_preempting import Contest, there
from tests.specification import spec
from tests.world import amounts
from vctl.errors import Conflict
from vctl.ops import clusters, tree_files
from vctl.ops import nodes as node_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.tree_file import parse_tree

pytestmark = spec("8.preemption")

__all__ = ["there"]

NODE = {"resources": {"CPU": 2}}
TWO_NODES = {"fixed_size_nodes": [{"nodes": [NODE, NODE], "scheduling_policy": "STRICT_SPREAD"}]}


def with_a_winner(there: Contest) -> None:
    """One node is held by a, the other is free; w waits for both, and a was told to end."""
    there.submit("a", 2)
    there.turn()
    there.submit("w", 0, 5, spec=TWO_NODES)
    there.turn()
    assert there.state("w") == ("PENDING", "WaitingForPreemption")


def refused(change: Callable[[], object]) -> Conflict:
    with pytest.raises(Conflict) as caught:
        change()
    assert caught.value.details["kept_for"] == ["w"]
    assert "reserved for w" in caught.value.problem + caught.value.fix
    assert caught.value.exit_code == 5
    return caught.value


def test_nobody_carves_what_is_kept_for_a_winner(there: Contest) -> None:
    clusters.create(there.store, "small", ClusterChange(spec=parse_cluster_spec({})))
    clusters.create(there.store, "none", ClusterChange(replica_sets={}))
    with_a_winner(there)
    cpu = parse_cluster_spec({"flexible_resource_min": {"CPU": 1}})
    file = parse_tree({"clusters": [{"id": "fresh", "spec": {"flexible_resource_min": {"CPU": 1}}}]})
    refused(lambda: clusters.create(there.store, "slices", ClusterChange(spec=cpu)))
    refused(lambda: clusters.update(there.store, "small", ClusterChange(spec=cpu)))
    refused(lambda: clusters.create(there.store, "whole", ClusterChange(replica_sets={"2c": 1})))
    refused(lambda: clusters.update(there.store, "none", ClusterChange(replica_sets={"2c": 1})))
    refused(lambda: tree_files.apply(there.store, file))
    there.processes.obey()
    there.turn()
    assert there.state("w") == ("RUNNING", None)
    there.processes.end(there.run_of("w"), 0)
    clusters.update(there.store, "primary", ClusterChange(queue={"preemption": "off"}))
    there.turn()
    clusters.update(there.store, "none", ClusterChange(replica_sets={"2c": 1}))


def test_what_was_short_without_a_winner_is_refused_as_before(there: Contest) -> None:
    with_a_winner(there)
    with pytest.raises(Conflict) as caught:
        clusters.create(there.store, "whole", ClusterChange(replica_sets={"2c": 2}))
    assert caught.value.details == {"replicaSetsToRecommend": {"2c": 0}}
    with pytest.raises(Conflict) as caught:
        clusters.create(
            there.store,
            "slices",
            ClusterChange(spec=parse_cluster_spec({"flexible_resource_min": {"CPU": 4}})),
        )
    assert "kept_for" not in caught.value.details


def test_a_change_beside_what_is_kept_is_made(there: Contest) -> None:
    """What the winner leaves free is free for clusters, and the winner starts all the same."""
    with_a_winner(there)
    node_ops.add(there.store, resources=amounts(2), count=1, template="2c")
    clusters.create(there.store, "whole", ClusterChange(replica_sets={"2c": 1}))
    refused(lambda: clusters.create(there.store, "more", ClusterChange(replica_sets={"2c": 1})))
    there.processes.obey()
    there.turn()
    assert there.state("w") == ("RUNNING", None)
