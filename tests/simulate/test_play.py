"""The virtual clock: what happens when, what is cut, refused or borrowed."""

from __future__ import annotations

import pytest

from tests.scheduler.trace import Given, Trace, used
from tests.specification import spec
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.jobs import INFEASIBLE
from vctl.core.nodes import ALIVE, DRAINED
from vctl.core.queue_policy import FIFO, SECOND, STRICT, QueuePolicy
from vctl.core.resources import CPU, SCALE
from vctl.core.values import replace
from vctl.simulate.machine import equal_nodes, resized
from vctl.simulate.workload import Arrival, with_limits

pytestmark = spec("13.simulate")

DEFAULT = QueuePolicy()


def test_a_time_limit_ends_a_job_as_it_would() -> None:
    trace = Trace(1, 1, DEFAULT)
    trace.play([Given("long", 1, 100, limit=30), Given("next", 1, 5)])
    assert trace.started == {"long": 0, "next": 30}
    assert [one.cut for one in trace.player.jobs.values()] == [True, False]


def test_what_could_never_run_is_refused_and_told() -> None:
    trace = Trace(2, 4, QueuePolicy(FIFO, STRICT))
    trace.play([Given("huge", 5, 10), Given("lost", 1, 10, cluster="nowhere"), Given("fits", 4, 10)])
    reasons = {one.arrival.job.submission_id: one.reason for one in trace.player.jobs.values()}
    assert reasons == {"huge": INFEASIBLE, "lost": "UnknownCluster", "fits": None}
    assert trace.started == {"fits": 0}


def test_a_begin_time_is_a_moment() -> None:
    trace = Trace(1, 1, DEFAULT)
    arrival = trace._arrival(Given("later", 1, 5), 0)
    job = replace(arrival.job, begin_at_ns=40 * SECOND)
    trace.player.play([Arrival(job, arrival.runs_ns)])
    assert trace.started == {"later": 40}


def test_ends_come_before_arrivals_of_the_same_moment() -> None:
    trace = Trace(1, 1, QueuePolicy(FIFO, STRICT))
    trace.play([Given("a", 1, 10), Given("b", 1, 10, at=10)])
    assert trace.started == {"a": 0, "b": 10}


def test_what_a_cluster_borrowed_returns_when_its_job_ends() -> None:
    trace = Trace(2, 4, DEFAULT)
    trace.share("child", 1)
    trace.share("grandchild", 1, "child")
    trace.play([Given("inside", 3, 10, 2, cluster="grandchild"), Given("after", 4, 10, 2, at=1)])
    assert trace.started == {"inside": 0, "after": 10}
    assert used(trace) == {"child": 0, "grandchild": 0}
    assert trace.ledger.available(PRIMARY) == {CPU: 8 * SCALE}


def test_held_jobs_wait_for_ever_and_say_so() -> None:
    trace = Trace(1, 1, DEFAULT)
    arrival = trace._arrival(Given("kept", 1, 5), 0)
    played = trace.player.play([Arrival(replace(arrival.job, held=True), arrival.runs_ns)])
    assert [(one.start_ns, one.reason) for one in played] == [(None, "Held")]


def test_limits_are_given_only_where_there_are_none() -> None:
    trace = Trace(1, 1, DEFAULT)
    arrivals = [trace._arrival(Given("a", 1, 10), 0), trace._arrival(Given("b", 1, 10, limit=7), 0)]
    assert [one.job.time_limit_ns for one in with_limits(arrivals, 2.5)] == [25 * SECOND, 7 * SECOND]


def test_a_machine_gets_more_or_fewer_nodes_but_not_those_in_use() -> None:
    ledger = equal_nodes(4, {CPU: 2 * SCALE})
    assert resized(ledger, 6) == 6
    assert resized(ledger, 2) == 2
    assert sorted(ledger.nodes) == ["n00001", "n00002"]
    trace = Trace(2, 4, DEFAULT)
    trace.submit(Given("busy", 4, 10, 2))
    trace.round()
    assert resized(trace.ledger, 1) == 2


def test_a_node_that_is_added_takes_work_whatever_the_state_of_the_one_it_is_like() -> None:
    ledger = equal_nodes(2, {CPU: 2 * SCALE})
    ledger.put_node(replace(ledger.nodes["n00001"], state=DRAINED))
    assert resized(ledger, 4) == 4
    assert [node.state for node in ledger.nodes.values()].count(ALIVE) == 3


def test_a_preempted_job_starts_over() -> None:
    trace = Trace(1, 2, QueuePolicy(preemption="requeue"))
    trace.play([Given("low", 2, 100), Given("high", 2, 10, at=40, priority=5)])
    assert trace.started == {"low": 50, "high": 40}
    low = trace.player.jobs[1]
    assert (low.preempted, low.end_ns) == (1, 150 * SECOND)
    assert trace.player.now_ns == 150 * SECOND


@pytest.mark.timeout(20)
def test_what_a_victim_has_borrowed_is_kept_for_the_winner() -> None:
    """Else the victim, which is the first in order, borrows it again and is preempted again, without end (spec 8)."""
    trace = Trace(1, 2, DEFAULT)
    strict = QueuePolicy(FIFO, STRICT, preemption="requeue")
    trace.ledger.put_cluster(Cluster("child", PRIMARY, LOGICAL, ClusterSpec(), True, queue=strict))
    low = Given("low", 2, 100, cluster="child")
    trace.play([low, Given("high", 2, 10, at=40, priority=5, cluster="child")])
    assert trace.started == {"low": 50, "high": 40}
    assert used(trace) == {"child": 2}  # nobody wants it any more


def test_or_it_is_stopped() -> None:
    trace = Trace(1, 2, QueuePolicy(preemption="stop", min_runtime_ns=50 * SECOND))
    trace.play([Given("low", 2, 100), Given("high", 2, 10, at=40, priority=5)])
    assert trace.started == {"low": 0, "high": 50}  # not before it has run for fifty seconds
    assert trace.player.jobs[1].end_ns == 50 * SECOND
