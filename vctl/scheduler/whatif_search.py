"""The smallest single changes that would start a waiting job now, one kind after the other, each one tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY, Cluster
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import DRAINED, DRAINING, Node
from vctl.core.resources import MEMORY, OBJECT_STORE_MEMORY, SCALE, Amounts
from vctl.scheduler.whatif import MOST_WORK, Change, Holder, Spent, Trials
from vctl.scheduler.whatif_request import smaller_requests

RELEASE, RESUME, UNDRAIN, PRIORITY, MAXIMUM, BORROW, REQUEST, NODE, STOP = (
    "release", "resume", "undrain", "priority", "maximum", "borrow_limit", "request", "node", "stop",
)  # fmt: skip
MOST_PRIORITY = 2**31
MOST_NODES, MOST_STOPS = 64, 32
MOST_FIRST = 3
"""So many nodes and jobs are tried as the first of two changes."""
MIB = 1 << 20
Fits = Callable[[int], bool]


def helpful(
    trials: Trials, templates: Mapping[str, Node], *, first_only: bool = False
) -> tuple[list[Change], bool]:
    """Changes that start the job, and whether the search was cut short. ``templates`` are the kinds of nodes known.

    A job on hold, or in a cluster that admits nothing, is helped by nothing else.
    """
    found: list[Change] = []
    job, parent = trials.job, trials.situation.ledger.clusters.get(trials.job.parent_id)
    if job.held:
        searches: list[Iterator[Change]] = [_release(trials)]
    elif parent is None or not parent.starts_jobs:
        searches = [_resume(trials)]
    else:
        searches = [
            _resume(trials), undrain(trials), _priority(trials), maximum(trials), borrow_limit(trials),
            _request(trials), node(trials, templates), _stop(trials),
        ]  # fmt: skip
    try:
        for search in searches:
            for change in search:
                found.append(change)
                if first_only:
                    return found, False
    except Spent:
        return found, True
    return found, False


def nearest(trials: Trials, templates: Mapping[str, Node]) -> tuple[Change, Change] | None:
    """Two changes that start the job together, when none does alone: the first is made, then the second is searched."""
    more = {key: replace(node, node_id=f"{node.node_id}~") for key, node in templates.items()}
    trials.left = MOST_WORK // 6
    try:
        for first in _beginnings(trials, templates):
            after = trials.after(first)
            second, _ = helpful(after, more, first_only=True)
            trials.left = after.left
            if second:
                return first, second[0]
    except Spent:
        pass
    return None


def _beginnings(trials: Trials, templates: Mapping[str, Node]) -> Iterator[Change]:
    """Changes of which each takes one obstacle away, whether or not that is enough."""
    job, ledger = trials.job, trials.situation.ledger
    if job.held:
        yield Change(RELEASE, job.submission_id, job=replace(job, held=False))
    for cluster in upward(ledger, job.parent_id):
        if cluster.state == "STOPPED":
            yield Change(RESUME, cluster.cluster_id, cluster=replace(cluster, state="ACTIVE"))
    others = [one.priority for one in trials.situation.pending if one.job_id != job.job_id]
    if others and (high := max(others) + 1) > job.priority and high <= MOST_PRIORITY:
        yield Change(PRIORITY, job.submission_id, job.priority, high, job=replace(job, priority=high))
    drained = [node for _, node in sorted(ledger.nodes.items()) if node.state in (DRAINING, DRAINED)]
    for node in drained[:MOST_FIRST]:
        yield Change(UNDRAIN, node.node_id, node=replace(node, state="ALIVE"))
    for key in sorted(templates)[:MOST_FIRST]:
        yield Change(NODE, templates[key].template_id, node=templates[key])
    for one in _to_stop(trials)[:MOST_FIRST]:
        yield Change(STOP, one.submission_id, gone=one)


def _release(trials: Trials) -> Iterator[Change]:
    change = Change(RELEASE, trials.job.submission_id, job=replace(trials.job, held=False))
    if trials.starts(change):
        yield change


def _resume(trials: Trials) -> Iterator[Change]:
    for cluster in upward(trials.situation.ledger, trials.job.parent_id):
        if cluster.state == "STOPPED":
            change = Change(RESUME, cluster.cluster_id, cluster=replace(cluster, state="ACTIVE"))
            if trials.starts(change):
                yield change


def undrain(trials: Trials) -> Iterator[Change]:
    """A drained node taken back into service."""
    ledger = trials.situation.ledger
    drained = [node for _, node in sorted(ledger.nodes.items()) if node.state in (DRAINING, DRAINED)]
    for node in drained[:MOST_NODES]:
        change = Change(UNDRAIN, node.node_id, node=replace(node, state="ALIVE"))
        if trials.starts(change):
            yield change
            return


def _priority(trials: Trials) -> Iterator[Change]:
    job = trials.job
    others = [one.priority for one in trials.situation.pending if one.job_id != job.job_id]
    if not others:
        return

    def change(number: int) -> Change:
        return Change(PRIORITY, job.submission_id, job.priority, number, job=replace(job, priority=number))

    for high in (max(others) + 1, MOST_PRIORITY):
        if high > job.priority and trials.starts(change(high)):
            yield change(smallest(job.priority, high, partial(_starts, trials, change)))
            return


def maximum(trials: Trials) -> Iterator[Change]:
    """A higher maximum for a cluster on the way up."""
    for cluster in upward(trials.situation.ledger, trials.job.parent_id):
        limit = cluster.spec.flexible_max
        if not (cluster.spec.flexible and limit):
            continue
        yield from _limits(trials, MAXIMUM, limit, partial(_with_maximum, cluster))


def _with_maximum(cluster: Cluster, most: Mapping[str, int]) -> Cluster:
    return replace(cluster, spec=replace(cluster.spec, flexible_max=most))


def borrow_limit(trials: Trials) -> Iterator[Change]:
    """A higher borrow limit for a cluster on the way up."""
    for cluster in upward(trials.situation.ledger, trials.job.parent_id):
        if not (cluster.spec.flexible and cluster.borrow_limit):
            continue
        yield from _limits(trials, BORROW, cluster.borrow_limit, partial(_with_borrow_limit, cluster))


def _with_borrow_limit(cluster: Cluster, most: Mapping[str, int]) -> Cluster:
    return replace(cluster, borrow_limit=most)


def _limits(
    trials: Trials, kind: str, limit: Mapping[str, int], raised: Callable[[Mapping[str, int]], Cluster]
) -> Iterator[Change]:
    """The same limit with each number as low as it may be: as it is where that will do."""
    above = trials.situation.ledger.total(PRIMARY)
    most = {name: amount + above.get(name, 0) + step_of(name) for name, amount in limit.items()}
    if not trials.starts(Change(kind, cluster=raised(most))):
        return

    def change(name: str, step: int, number: int) -> Change:
        return Change(kind, cluster=raised({**most, name: number * step}))

    for name, amount in sorted(limit.items()):
        step = step_of(name)
        if trials.starts(change(name, 1, amount)):
            most[name] = amount
        else:
            fits = partial(_starts, trials, partial(change, name, step))
            most[name] = step * smallest(amount // step, -(-most[name] // step), fits)
    cluster = raised(most)
    changed = [name for name in sorted(limit) if most[name] != limit[name]]
    if changed and trials.starts(Change(kind, cluster=cluster)):
        name = changed[0]
        yield Change(kind, cluster.cluster_id, limit[name], most[name], cluster=cluster, where=name)


def _request(trials: Trials) -> Iterator[Change]:
    """The largest smaller number for each number of the request; asked for anew, at the end of the queue."""
    last = max([trials.job.job_id, *(one.job_id for one in trials.situation.pending)])
    fresh = replace(trials.job, job_id=last + 1, submitted_at_ns=trials.situation.now_ns)
    for series in smaller_requests(fresh):
        for values in series.values:
            best = largest(values, partial(_starts, trials, series.change))
            if best is not None:
                yield series.change(best)
                break


def _starts(trials: Trials, change: Callable[[int], Change], number: int) -> bool:
    return trials.starts(change(number))


def node(trials: Trials, templates: Mapping[str, Node]) -> Iterator[Change]:
    """One more node of a template that there is."""
    for key in sorted(templates)[:MOST_NODES]:
        node = templates[key]
        change = Change(NODE, node.template_id, node=node)
        if trials.starts(change):
            yield change


def _stop(trials: Trials) -> Iterator[Change]:
    """Of the running jobs of lower or equal priority the least one that is enough."""
    for one in _to_stop(trials):
        change = Change(STOP, one.submission_id, gone=one)
        if trials.starts(change):
            yield change
            return


def _to_stop(trials: Trials) -> list[Holder]:
    """Running jobs of lower or equal priority that hold something it needs, the least one first."""
    job = trials.job
    ledger = trials.situation.ledger
    wanted = _wanted(job)

    def holds(run_ids: tuple[str, ...], cluster_id: str | None) -> dict[str, int]:
        slots = (ledger.vnodes[v].allocation.amounts for v in ledger.members.get(cluster_id or "", ()))
        runs = (ledger.charges[r][1].amounts for r in run_ids if r in ledger.charges)
        return rs.total(slots) if cluster_id is not None else rs.total(runs)

    order = []
    for one in trials.situation.running:
        held = holds(one.run_ids, one.cluster_id)
        if one.priority <= job.priority and any(held.get(name, 0) for name in wanted):
            order.append((one.priority, sum(held.get(name, 0) for name in wanted), -one.job_id, one))
    return [one for *_, one in sorted(order, key=lambda item: item[:3])[:MOST_STOPS]]


def _wanted(job: PendingJob) -> set[str]:
    spec = job.spec
    many: list[Amounts] = [node.resources for group in spec.groups for node in group.nodes]
    names = {name for amounts in (*many, spec.flexible_min, job.entry) for name, a in amounts.items() if a}
    return names or {rs.CPU}


def upward(ledger: Ledger, cluster_id: str) -> Iterator[Cluster]:
    """A cluster and those above it, without the primary."""
    while cluster_id != PRIMARY and cluster_id in ledger.clusters:
        cluster = ledger.clusters[cluster_id]
        yield cluster
        cluster_id = cluster.parent_id or PRIMARY


def step_of(name: str) -> int:
    """In which steps a limit is raised: one, or a MiB of memory."""
    return SCALE * MIB if name in (MEMORY, OBJECT_STORE_MEMORY) else SCALE


def smallest(low: int, high: int, fits: Fits) -> int:
    """The smallest number above ``low`` that fits, by halving; ``high`` is known to fit."""
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def largest(values: range, fits: Fits) -> int | None:
    """The largest of some rising values that fits; one by one when there are few, else by halving."""
    if len(values) <= 12:
        return next((value for value in reversed(values) if fits(value)), None)
    if not fits(values[0]):
        return None
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(values[middle]):
            low = middle
        else:
            high = middle
    return values[low]
