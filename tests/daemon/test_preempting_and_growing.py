"""A job that needs both: that others end, and that its cluster grows (spec 8: held for the winner; spec 9: growth)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.test_preempting import ENVIRONMENT, Contest
from tests.specification import spec
from tests.world import amounts
from vctl.core.clusters import ClusterSpec
from vctl.errors import Conflict
from vctl.ops import cluster_views, clusters, leases, submitting, tasks, why
from vctl.ops import jobs as job_ops
from vctl.ops import nodes as node_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_warning_signal
from vctl.spec.quantities import parse_resources
from vctl.spec.task_request import TaskRequest

pytestmark = spec("8.preemption", "9.growth")

FOUR = {"resources": {"CPU": 4}}
GANG = {"fixed_size_nodes": [{"nodes": [FOUR, FOUR], "scheduling_policy": "STRICT_SPREAD"}]}


def at_most(cpus: float) -> ClusterSpec:
    """The spec of team with a maximum."""
    wanted = {"flexible_resource_min": {"CPU": 2}, "flexible_resource_max": {"CPU": cpus}}
    return parse_cluster_spec(wanted, logical=True)


class Team(Contest):
    """Two nodes of four CPUs. The cluster team has two CPUs of the first one and may grow; it requeues."""

    def prepare(self, **queue: object) -> None:
        super().prepare(**queue)
        for node in node_ops.list_nodes(self.store):
            node_ops.remove(self.store, node["node_id"])
        node_ops.add(self.store, resources=amounts(4), count=2, template="4c")
        self.cluster("team", 2, queue={"preemption": "requeue", "preemption_grace_s": 30})

    def cluster(
        self, name: str, minimum: float, *, most: float | None = None, lends: float = 0, **more: Any
    ) -> None:
        limit = parse_resources({"CPU": lends}, "limit")
        spec = parse_cluster_spec({"flexible_resource_min": {"CPU": minimum}}, logical=True)
        above = more.pop("parent_id", "kPrimaryClusterID")
        change = ClusterChange(divisible=True, spec=spec, lending_limit=limit, **more)
        clusters.create(self.store, name, change, parent_id=above)

    def submit_to(self, cluster: str, name: str, cpus: float, priority: int = 0, **options: Any) -> None:
        spec = parse_cluster_spec(options.pop("spec", {"flexible_resource_min": {"CPU": cpus}}))
        request = JobRequest(
            argv=("x",), submission_id=name, priority=priority, cluster=cluster, spec=spec, **options
        )  # fmt: skip
        submitting.submit(self.store, request, environment=ENVIRONMENT)

    def nominated(self, **options: Any) -> None:
        """Low runs on what team has; w needs that and six CPUs more."""
        self.submit_to("team", "low", 2, **options)
        self.turn()
        self.sleep(50)
        self.submit_to("team", "w", 0, 5, spec=GANG)
        self.turn()
        assert self.state("w") == ("PENDING", "WaitingForPreemption")
        assert self.state("low") == ("RUNNING", None)

    def finish(self) -> None:
        self.processes.obey()
        self.turn()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Team]:
    with Team(tmp_path / "state") as world:
        world.prepare()
        yield world


def test_it_starts_on_what_a_victim_had_and_what_its_cluster_grows_by(there: Team) -> None:
    there.nominated()
    message = why.why(there.store, "w")["message"]
    assert message.startswith("preempts low, by ")
    assert "; then team grows by 6 CPU" in message
    assert [one["submission_id"] for one in why.why(there.store, "w")["preempts"]] == ["low"]
    assert leases.list_leases(there.store) == [], "it borrows when it starts, not before"
    there.finish()
    assert there.state("w") == ("RUNNING", None)
    assert there.state("low") == ("PENDING", "Preempted")
    assert sum(one["resources"]["CPU"] for one in leases.list_leases(there.store)) == 6
    assert there.is_at_rest()


def test_nobody_ends_where_growth_alone_is_enough(there: Team) -> None:
    there.submit_to("team", "low", 2)
    there.turn()
    there.submit_to("team", "w", 4, 5)
    there.turn()
    assert there.state("w") == ("RUNNING", None)
    assert there.state("low") == ("RUNNING", None)


def test_nobody_ends_where_growth_is_not_enough_either(there: Team) -> None:
    there.cluster("sib", 2)
    there.submit_to("sib", "theirs", 2)
    there.submit_to("team", "low", 2)
    there.turn()
    there.submit_to("team", "w", 0, 5, spec=GANG)
    there.turn()
    assert there.state("w")[0] == "PENDING"
    assert there.state("low") == ("RUNNING", None)
    assert there.is_at_rest()


def test_what_it_will_grow_by_is_taken_by_nobody(there: Team) -> None:
    """Jobs of the parent, siblings that grow, tasks, and commands leave it alone."""
    there.settle(preemption="off")
    node_ops.add(there.store, resources=amounts(4), count=1, template="four")
    there.submit_to("primary", "host", 4, spec={"replica_sets": {"four": 1}})
    there.turn()
    there.nominated()
    there.submit_to("primary", "other", 1, 9)
    there.cluster("sib", 0)
    there.submit_to("sib", "theirs", 1, 9)
    for cpus in (4, 1):
        request = TaskRequest(argv=("x",), job="host", request=amounts(cpus))
        tasks.run(there.store, request, environment=ENVIRONMENT)
    there.turn()
    assert there.state("other") == ("PENDING", "InsufficientResources")
    assert "reserved for w" in there.job("other")["message"]
    assert there.state("theirs") == ("PENDING", "InsufficientResources")
    states = [row[0] for row in there.store.rows("SELECT state FROM tasks ORDER BY task_id")]
    assert states == ["RUNNING", "PENDING_NODE_ASSIGNMENT"]
    for change in (
        lambda: there.cluster("new", 1),
        lambda: clusters.create(there.store, "whole", ClusterChange(replica_sets={"4c": 1})),
        lambda: clusters.update(
            there.store, "sib", ClusterChange(spec=parse_cluster_spec({"flexible_resource_min": {"CPU": 1}}))
        ),
    ):
        with pytest.raises(Conflict) as caught:
            change()
        assert caught.value.details["kept_for"] == ["w"]
    there.finish()
    assert there.state("w") == ("RUNNING", None)


def test_a_second_level_grows_too_and_keeps_what_it_borrowed(there: Team) -> None:
    """org has borrowed what team will grow by: an idle lease is not returned while it is kept."""
    clusters.create(
        there.store,
        "org",
        ClusterChange(
            divisible=True, spec=parse_cluster_spec({"flexible_resource_min": {"CPU": 0}}, logical=True)
        ),
        parent_id="kPrimaryClusterID",
    )
    there.cluster("deep", 1, parent_id="org", queue={"preemption": "requeue", "preemption_grace_s": 60})
    there.submit_to("deep", "low", 1, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    there.turn()
    there.submit_to("deep", "w", 0, 5, spec={"flexible_resource_min": {"CPU": 6}})
    there.turn()
    assert there.state("w") == ("PENDING", "WaitingForPreemption")
    there.later(50)
    there.submit_to("primary", "other", 1)
    there.turn()
    assert there.state("other")[0] == "PENDING"
    there.later(20)
    there.finish()
    assert there.state("w") == ("RUNNING", None)


def test_a_sibling_that_lends_leaves_it_alone_meanwhile(there: Team) -> None:
    """sib lends two of its CPUs: they are kept for w, so the sibling's own job waits, and reclaims them later."""
    there.cluster("sib", 3, lends=2)
    there.submit_to("primary", "rest", 3)
    there.submit_to("team", "low", 2, signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    there.turn()
    free = cluster_views.get_cluster(there.store, "sib")["available_resources"]["CPU"]
    assert free == 3
    there.submit_to("team", "w", 4, 5)
    there.turn()
    assert there.state("w") == ("PENDING", "WaitingForPreemption")
    assert "then team grows by 2 CPU" in there.job("w")["message"]
    there.submit_to("sib", "theirs", 2)
    there.turn()
    assert there.state("theirs") == ("PENDING", "InsufficientResources")
    there.later(31)
    there.finish()
    assert there.state("w") == ("RUNNING", None)
    found = [
        (one["lender_id"], one["resources"]["CPU"], one["state"]) for one in leases.list_leases(there.store)
    ]
    assert sorted(found) == [("sib", 1, "CALLED"), ("sib", 1, "GRANTED")]


def test_a_maximum_is_not_used_twice(there: Team) -> None:
    """team may grow to eight CPUs, all of which are kept for w: another job does not use the same allowance."""
    clusters.update(there.store, "team", ClusterChange(spec=at_most(8)))  # fmt: skip
    there.nominated(signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    node_ops.add(there.store, resources=amounts(4), count=1, template="4c")
    there.submit_to("team", "x", 4, 1)
    there.turn()
    assert there.state("x") == ("PENDING", "InsufficientResources")
    there.later(31)
    there.finish()
    assert there.state("w") == ("RUNNING", None)


def test_a_lower_maximum_spares_the_victim(there: Team) -> None:
    there.nominated(signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    clusters.update(there.store, "team", ClusterChange(spec=at_most(4)))  # fmt: skip
    there.turn()
    assert there.is_at_rest()
    assert [name for name, _ in there.data("job.spared")] == ["low"]
    there.later(60)
    assert there.state("low") == ("RUNNING", None)


def test_a_lost_node_above_ends_the_nomination(there: Team) -> None:
    there.nominated(signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    low = there.job("low")["node_ids"]
    other = next(n["node_id"] for n in node_ops.list_nodes(there.store) if n["node_id"] not in low)
    node_ops.drain(there.store, other)
    there.turn()
    assert there.is_at_rest()
    assert there.state("low") == ("RUNNING", None)


def test_stopped_it_leaves_everything_to_others(there: Team) -> None:
    there.nominated(signal=parse_warning_signal("USR1@60"), time_limit_s=10_000)
    there.submit_to("primary", "other", 4)
    there.turn()
    assert there.state("other")[0] == "PENDING"
    job_ops.stop(there.store, "w")
    there.turn()
    assert there.state("other") == ("RUNNING", None)
    assert there.state("low") == ("RUNNING", None)


@pytest.mark.parametrize("commit", range(5))
@pytest.mark.parametrize("after_it", [False, True])
def test_a_scheduler_that_dies_anywhere(there: Team, commit: int, *, after_it: bool) -> None:
    """Whichever commit it dies before or after: the next one carries on, and nobody takes what is kept meanwhile."""
    there.submit_to("team", "low", 2)
    there.turn()
    there.sleep(50)
    there.submit_to("team", "w", 0, 5, spec=GANG)
    died = there.dies_at(commit, lambda: there.submit_to("primary", "other", 2), after_it=after_it)
    there.finish()
    assert died or commit > 2
    assert there.state("w") == ("RUNNING", None)
    assert there.state("low") == ("PENDING", "Preempted")
    assert there.is_at_rest()
