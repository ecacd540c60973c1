"""What a simulation is fed with: jobs with their arrival and their true run time. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob
from vctl.core.resources import Amounts
from vctl.core.values import field, replace, value

SECOND = 10**9


@value(frozen=True, slots=True)
class Arrival:
    """One job of a workload: it arrives at ``job.submitted_at_ns`` and runs ``runs_ns`` unless something ends it."""

    job: PendingJob
    runs_ns: int


@value(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their arrival, where they come from, and what its reader wants said about them."""

    name: str
    arrivals: tuple[Arrival, ...]
    notes: tuple[str, ...] = ()
    nodes: int | None = None
    """How many nodes the trace says it was recorded on; None: it does not say."""
    node: Amounts = field(default_factory=dict)
    """What each of these nodes has."""


def in_order(arrivals: Iterable[Arrival]) -> tuple[Arrival, ...]:
    """By arrival, equals as given; jobs are numbered from 1 in that order, as submits would be."""
    ordered = sorted(arrivals, key=lambda arrival: arrival.job.submitted_at_ns)
    return tuple(
        replace(arrival, job=replace(arrival.job, job_id=number)) for number, arrival in enumerate(ordered, 1)
    )


def with_limits(arrivals: Sequence[Arrival], factor: float) -> tuple[Arrival, ...]:
    """Jobs without a time limit get one of ``factor`` times their true run time, at least a second."""
    return tuple(
        arrival
        if arrival.job.time_limit_ns is not None
        else replace(
            arrival, job=replace(arrival.job, time_limit_ns=max(SECOND, ceil(arrival.runs_ns * factor)))
        )
        for arrival in arrivals
    )


_rigid: dict[tuple[int, tuple[tuple[str, int], ...], str], ClusterSpec] = {}


def rigid(nodes: int, each: Amounts, policy: str = "PACK") -> ClusterSpec:
    """The spec of a job that wants ``nodes`` equal pieces at once; equal jobs share one value."""
    key = (nodes, tuple(sorted(each.items())), policy)
    spec = _rigid.get(key)
    if spec is None:
        if len(_rigid) > 10_000:
            _rigid.clear()
        spec = ClusterSpec(groups=(Group((FixedNode(dict(each)),) * nodes, policy),), flexible=False)
        _rigid[key] = spec
    return spec


def shape_name(nodes: int, each: Amounts, policy: str = "PACK") -> str:
    """Equal names for jobs that fit the same places."""
    amounts = ",".join(f"{name}={amount}" for name, amount in sorted(each.items()) if amount)
    return f"{nodes}x{amounts}:{policy}"
