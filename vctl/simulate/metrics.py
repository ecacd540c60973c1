"""Figures of a simulation: waiting time, slowdown, utilisation and fairness.

Bounded slowdown as in D. G. Feitelson, L. Rudolph, U. Schwiegelshohn, K. C. Sevcik and P. Wong, "Theory and
practice in parallel job scheduling", JSSPP 1997, with a threshold of ten seconds: shorter jobs count as if
they took that long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil

from vctl.core.resources import Amounts
from vctl.simulate.play import Played
from vctl.simulate.workload import SECOND

TAU_NS = 10 * SECOND
HOUR_NS = 3600 * SECOND


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of one quantity over jobs."""

    mean: float
    median: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Fairness:
    """How equally members (users or clusters) were served.

    ``jain`` is Jain's index of their mean bounded slowdowns: 1 if all are equal, 1/members if one member has
    all of the slowdown. ``share_deviation`` is the mean over the ``hours`` in which two or more members had
    waiting jobs all the time: the deviation of their parts of the resource from the parts that their weights
    give, from 0 to 1; None if there was no such hour.
    """

    members: int
    jain: float
    share_deviation: float | None
    hours: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run; times in seconds, ``utilisation`` of the resource that was used most.

    ``utilisation_until_last_arrival`` ends at the last arrival, unless all jobs arrive at once.
    """

    jobs: int
    started: int
    never_started: int
    ended_by_limit: int
    preemptions: int
    wait: Spread
    bounded_slowdown: Spread
    utilisation: float
    utilisation_until_last_arrival: float
    dominant_resource: str
    makespan: float
    users: Fairness
    clusters: Fairness

    def document(self) -> dict[str, object]:
        """The figures in JSON form."""
        return asdict(self)


def figures(played: Sequence[Played], total: Amounts, weights: Mapping[str, int]) -> Figures:
    """The figures of a run on nodes with these total amounts; ``weights``: cluster id -> weight."""
    done = [job for job in played if job.start_ns is not None]
    arrivals = [job.arrival.job.submitted_at_ns for job in played]
    first, last = min(arrivals, default=0), max(arrivals, default=0)
    end = max((job.end_ns or 0 for job in done), default=first)
    name, used = _dominant(done, total, first, max(end, last))
    until = _part(done, name, total, first, last) if last > first else used
    return Figures(
        jobs=len(played),
        started=len(done),
        never_started=len(played) - len(done),
        ended_by_limit=sum(job.cut for job in done),
        preemptions=sum(job.preempted for job in played),
        wait=spread([wait_ns(job) / SECOND for job in done]),
        bounded_slowdown=spread([bounded_slowdown(job) for job in done]),
        utilisation=used,
        utilisation_until_last_arrival=until,
        dominant_resource=name,
        makespan=(end - first) / SECOND,
        users=fairness(done, [job.arrival.job.user for job in done], {}, name),
        clusters=fairness(done, [job.arrival.job.parent_id for job in done], weights, name),
    )


def wait_ns(played: Played) -> int:
    """The time from the submit of a job, or from its later begin time, to its last start."""
    job = played.arrival.job
    return (played.start_ns or 0) - max(job.submitted_at_ns, job.begin_at_ns or 0)


def bounded_slowdown(job: Played) -> float:
    """(wait + run) / max(run, ten seconds), at least 1."""
    ran = (job.end_ns or 0) - (job.start_ns or 0)
    return max(1.0, (wait_ns(job) + ran) / max(ran, TAU_NS))


def spread(values: Sequence[float]) -> Spread:
    """Mean, median, 95th percentile (nearest rank) and maximum."""
    if not values:
        return Spread(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Spread(sum(ordered) / count, middle, ordered[ceil(0.95 * count) - 1], ordered[-1])


def _dominant(done: Sequence[Played], total: Amounts, since: int, until: int) -> tuple[str, float]:
    names = sorted({name for job in done for name, amount in job.held.items() if amount and total.get(name)})
    parts = [(_part(done, name, total, since, until), name) for name in names]
    used, name = max(parts, key=lambda part: part[0], default=(0.0, ""))
    return name, used


def _part(done: Iterable[Played], name: str, total: Amounts, since: int, until: int) -> float:
    """The part of a resource that jobs held in a span, from 0 to 1."""
    if until <= since or not total.get(name):
        return 0.0
    held = sum(_overlap(job, since, until) * job.held.get(name, 0) for job in done)
    return held / ((until - since) * total[name])


def _overlap(job: Played, since: int, until: int) -> int:
    return max(0, min(job.end_ns or 0, until) - max(job.start_ns or 0, since))


def fairness(
    done: Sequence[Played], whose: Sequence[str], weights: Mapping[str, int], resource: str
) -> Fairness:
    """How equally members were served. ``whose``: the member of each job. ``weights``: 1 if missing."""
    of: dict[str, list[Played]] = {}
    for job, member in zip(done, whose, strict=True):
        of.setdefault(member, []).append(job)
    means = [sum(map(bounded_slowdown, theirs)) / len(theirs) for theirs in of.values()]
    squares = sum(mean * mean for mean in means)
    jain = sum(means) ** 2 / (len(means) * squares) if squares else 1.0
    deviations = list(_deviations(of, weights, resource))
    share = sum(deviations) / len(deviations) if deviations else None
    return Fairness(len(of), jain, share, len(deviations))


def _deviations(
    of: Mapping[str, Sequence[Played]], weights: Mapping[str, int], resource: str
) -> Iterable[float]:
    """The deviation from the due parts in each hour in which several members had waiting jobs all the time.

    It is half the sum of the absolute deviations of these members.
    """
    backlog = {member: _whole_hours(theirs) for member, theirs in of.items()}
    used = {member: _hourly(theirs, resource) for member, theirs in of.items()}
    for hour in sorted(set().union(*backlog.values())) if backlog else ():
        waiting = [member for member in sorted(of) if hour in backlog[member]]
        together = sum(used[member].get(hour, 0) for member in waiting)
        if len(waiting) < 2 or not together:
            continue
        due = sum(weights.get(member, 1) for member in waiting)
        yield sum(
            abs(used[member].get(hour, 0) / together - weights.get(member, 1) / due) for member in waiting
        ) / 2  # fmt: skip


def _whole_hours(theirs: Iterable[Played]) -> set[int]:
    """The clock hours in which at every moment at least one of a member's jobs waited."""
    spans = sorted((job.arrival.job.submitted_at_ns, job.start_ns or 0) for job in theirs)
    hours: set[int] = set()
    begin = end = -1
    for since, until in [*spans, (1 << 62, 1 << 62)]:
        if since > end:
            hours.update(range(-(-begin // HOUR_NS), end // HOUR_NS) if end > begin >= 0 else ())
            begin, end = since, until
        else:
            end = max(end, until)
    return hours


def _hourly(theirs: Iterable[Played], resource: str) -> dict[int, int]:
    """Clock hour -> what a member's jobs held in it, amount times nanoseconds."""
    spent: dict[int, int] = {}
    for job in theirs:
        amount = job.held.get(resource, 0)
        start, end = job.start_ns or 0, job.end_ns or 0
        for hour in range(start // HOUR_NS, -(-end // HOUR_NS)) if amount else ():
            spent[hour] = spent.get(hour, 0) + amount * _overlap(job, hour * HOUR_NS, (hour + 1) * HOUR_NS)
    return spent
