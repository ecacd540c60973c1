"""The input of a simulation, values only: jobs with their arrival and their true run time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil

from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob
from vctl.core.resources import Amounts
from vctl.core.values import field, replace, value

SECOND = 10**9


@value(frozen=True, slots=True)
class Arrival:
    """One job of a workload: it arrives at ``job.submitted_at_ns`` and runs ``runs_ns`` unless ended."""

    job: PendingJob
    runs_ns: int


@value(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their arrival, the name of their source, and notes of its reader for the user."""

    name: str
    arrivals: tuple[Arrival, ...]
    notes: tuple[str, ...] = ()
    nodes: int | None = None
    """The number of nodes on which the trace was recorded; None: the trace does not say."""
    node: Amounts = field(default_factory=dict)
    """The resources of each of these nodes."""


def in_order(arrivals: Iterable[Arrival]) -> tuple[Arrival, ...]:
    """Jobs sorted by arrival (a stable sort) and numbered from 1 in that order."""
    ordered = sorted(arrivals, key=lambda arrival: arrival.job.submitted_at_ns)
    return tuple(replace(a, job=replace(a.job, job_id=number)) for number, a in enumerate(ordered, 1))


def with_limits(arrivals: Sequence[Arrival], factor: float) -> tuple[Arrival, ...]:
    """Give each job without a time limit one of ``factor`` times its true run time, at least a second."""
    limited = []
    for arrival in arrivals:
        if arrival.job.time_limit_ns is None:
            limit_ns = max(SECOND, ceil(arrival.runs_ns * factor))
            arrival = replace(arrival, job=replace(arrival.job, time_limit_ns=limit_ns))  # noqa: PLW2901
        limited.append(arrival)
    return tuple(limited)


def rigid(nodes: int, each: Amounts, policy: str = "PACK") -> ClusterSpec:
    """The spec of a job that requests ``nodes`` equal fixed nodes; equal arguments return the same object."""
    return _rigid(nodes, tuple(sorted(each.items())), policy)


@lru_cache(maxsize=10_000)
def _rigid(nodes: int, each: tuple[tuple[str, int], ...], policy: str) -> ClusterSpec:
    return ClusterSpec(groups=(Group((FixedNode(dict(each)),) * nodes, policy),), flexible=False)


def shape_name(nodes: int, each: Amounts, policy: str = "PACK") -> str:
    """The name of a shape; jobs with equal names fit the same places."""
    amounts = ",".join(f"{name}={amount}" for name, amount in sorted(each.items()) if amount)
    return f"{nodes}x{amounts}:{policy}"
