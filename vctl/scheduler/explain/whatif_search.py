"""The smallest changes that would start a waiting job or task now, kind by kind, each proven by a trial."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from vctl.core import resources as rs
from vctl.core import tasks as tk
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, Group, VNode
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.limits import USER, Limit
from vctl.core.nodes import DRAINED, DRAINING, FOREIGN, Node
from vctl.core.queue_policy import SECOND
from vctl.core.resources import MEMORY, OBJECT_STORE_MEMORY, SCALE, Amounts
from vctl.core.tasks import PendingTask
from vctl.core.values import replace, value
from vctl.scheduler.bookings import booked
from vctl.scheduler.explain.trial import RunningHolder, running_of
from vctl.scheduler.explain.whatif import MOST_WORK, ProposedChange, Spent, Trials
from vctl.scheduler.limits import OF_ALL, OF_USER, least_of, limits_of, raised, use_of
from vctl.scheduler.membership import of_whole_nodes, undivided

RELEASE, RESUME, UNDRAIN, PRIORITY = "release", "resume", "undrain", "priority"
MAXIMUM, BORROW, REQUEST, NODE = "maximum", "borrow_limit", "request", "node"
RUNNING_JOBS, RUNNING_PER_USER, LIMIT = OF_ALL, OF_USER, "limit"
STOP, CANCEL, ANYWHERE, REPLICAS = "stop", "cancel", "anywhere", "replicas"
TIME_LIMIT = "time_limit"
IGNORE = "ignore"
MOST_PRIORITY = 2**31
MOST_NODES, MOST_STOPS = 64, 32
MOST_FIRST = 3
"""The number of nodes and jobs that are tried as the first of two changes."""
MIB = 1 << 20
SLACK_S = 20
"""How long a user may take to type the proposed time limit."""
Fits = Callable[[int], bool]


def helpful(
    trials: Trials, templates: Mapping[str, Node], *, first_only: bool = False
) -> tuple[list[ProposedChange], bool]:
    """Changes that each start the job, and whether the budget ended the search. ``templates``: nodes to add.

    For a job on hold only the release is tried, for a job in a stopped cluster only the resumption.
    """
    helping: list[ProposedChange] = []
    job, parent = trials.job, trials.situation.ledger.clusters.get(trials.job.parent_id)

    def that_help(changes: Iterable[ProposedChange], limit: int = MOST_NODES) -> Iterator[ProposedChange]:
        return islice((change for change in changes if trials.starts(change)), limit)

    undrained, stopped = that_help(_undrains(trials), 1), that_help(_stops(trials), 1)
    ignored = that_help(_ignored(trials), 1)
    added = that_help(_nodes(templates))
    if trials.task is not None:
        searches = [
            undrained, ignored, _limits(trials, MAXIMUM), _limits(trials, BORROW), that_help(_anywhere(trials)),
            _request(trials), added, stopped,
        ]  # fmt: skip
    elif job.held:
        searches = [that_help([_release(job)])]
    elif parent is None or not parent.starts_jobs:
        searches = [that_help(_resumes(trials))]
    else:
        searches = [
            that_help(_resumes(trials)), undrained, ignored, that_help(_time_limits(trials), 1), _priority(trials),
            _running_limits(trials), _given_limits(trials), _limits(trials, MAXIMUM), _limits(trials, BORROW),
            _replicas(trials), _request(trials), added, stopped,
        ]  # fmt: skip
    try:
        for search in searches:
            for change in search:
                helping.append(change)
                if first_only:
                    return helping, False
    except Spent:
        return helping, True
    return helping, False


def nearest(trials: Trials, templates: Mapping[str, Node]) -> tuple[ProposedChange, ProposedChange] | None:
    """Two changes that together start the job: makes each possible first one, then searches a second one."""
    more = {key: replace(node, node_id=f"{node.node_id}~") for key, node in templates.items()}
    trials.budget = MOST_WORK // 6
    try:
        for first in _beginnings(trials, templates):
            after = trials.after(first)
            second, _ = helpful(after, more, first_only=True)
            trials.budget = after.budget
            if second:
                return first, second[0]
    except Spent:
        pass
    return None


def _beginnings(trials: Trials, templates: Mapping[str, Node]) -> Iterator[ProposedChange]:
    """Changes that each remove one obstacle, whether or not that is enough."""
    job = trials.job
    if job.held:
        yield _release(job)
    yield from _resumes(trials)
    if (high := _highest(trials) + 1) > max(job.priority, -MOST_PRIORITY) and high <= MOST_PRIORITY:
        yield _with_priority(job, high)
    for changes in (_undrains(trials), _ignored(trials), _nodes(templates), _stops(trials)):
        yield from islice(changes, MOST_FIRST)


# ---- changes without a number ----


def _release(job: PendingJob) -> ProposedChange:
    return ProposedChange(RELEASE, job.submission_id, job=replace(job, held=False))


def _resumes(trials: Trials) -> Iterator[ProposedChange]:
    for cluster in trials.situation.ledger.upward(trials.job.parent_id):
        if cluster.state == "STOPPED":
            yield ProposedChange(RESUME, cluster.cluster_id, cluster=replace(cluster, state="ACTIVE"))


def _time_limits(trials: Trials) -> Iterator[ProposedChange]:
    """The longest limits by which a job is over before a booking begins, in whole minutes, some of which pass."""
    job, now_ns = trials.job, trials.situation.now_ns
    begins = {
        -(shared.reservation.start_ns or 0)
        for shared in booked(trials.situation.ledger)
        if shared.level == job.parent_id
    }
    old = None if job.time_limit_ns is None else job.time_limit_ns // SECOND
    for begin_ns in sorted(begins):
        left_s = (-begin_ns - now_ns) // SECOND
        limit_s = left_s // 60 * 60 if left_s % 60 > SLACK_S else (left_s // 60 - 1) * 60
        if limit_s > 0 and (old is None or limit_s < old):
            limited = replace(job, time_limit_ns=limit_s * SECOND)
            yield ProposedChange(TIME_LIMIT, job.submission_id, old, limit_s, job=limited)


def _undrains(trials: Trials) -> Iterator[ProposedChange]:
    nodes = sorted(trials.situation.ledger.nodes.items())
    drained = [node for _, node in nodes if node.state in (DRAINING, DRAINED)]
    for node in drained[:MOST_NODES]:
        yield ProposedChange(UNDRAIN, node.node_id, node=replace(node, state="ALIVE"))


def _ignored(trials: Trials) -> Iterator[ProposedChange]:
    """A device that foreign processes keep from jobs, given to them all the same."""
    for node_id, node in sorted(trials.situation.ledger.nodes.items()):
        for fence in node.fences:
            if fence.why == FOREIGN:
                others = tuple(one for one in node.fences if one is not fence)
                yield ProposedChange(
                    IGNORE, node_id, new=fence.number, node=replace(node, fences=others), fence=fence
                )


def _nodes(templates: Mapping[str, Node]) -> Iterator[ProposedChange]:
    """One more node of each known template."""
    for key in sorted(templates)[:MOST_NODES]:
        yield ProposedChange(NODE, templates[key].template_id, node=templates[key])


def _anywhere(trials: Trials) -> Iterator[ProposedChange]:
    """For a task whose strategy names its node: the same strategy as a preference (``:spill``)."""
    task = _run_again(trials)
    node_id, otherwise = tk.named_by(task.strategy)
    if node_id is not None and otherwise != tk.SPILL:
        yield ProposedChange(
            ANYWHERE, node_id, task=replace(task, strategy=f"{tk.NODE}:{node_id}:{tk.SPILL}")
        )


def _stops(trials: Trials) -> Iterator[ProposedChange]:
    """Stops of running tasks of the cluster, or of jobs without a higher priority, smallest useful first."""
    if trials.task is not None:
        for other in trials.others[:MOST_STOPS]:
            yield ProposedChange(CANCEL, other.submission_id, stopped=other)
        return
    job, ledger, order = trials.job, trials.situation.ledger, []
    names = job.spec.names(job.entry) or {rs.CPU}
    for holder in trials.situation.running:
        held = _held_by(ledger, holder)
        if holder.priority <= job.priority and any(held.get(name, 0) for name in names):
            order.append((holder.priority, sum(held.get(name, 0) for name in names), -holder.job_id, holder))
    for *_, holder in sorted(order, key=lambda item: item[:3])[:MOST_STOPS]:
        yield ProposedChange(STOP, holder.submission_id, stopped=holder)


def _held_by(ledger: Ledger, job: RunningHolder) -> dict[str, int]:
    if job.cluster_id is not None:
        return rs.total(ledger.vnodes[v].allocation.amounts for v in ledger.members.get(job.cluster_id, ()))
    return rs.total(ledger.charges[run][1].amounts for run in job.run_ids if run in ledger.charges)


# ---- changes of a number ----


def _highest(trials: Trials) -> int:
    """The highest priority of the other waiting jobs; below every priority if there are none."""
    others = [waiting.priority for waiting in trials.situation.pending if waiting.job_id != trials.job.job_id]
    return max(others, default=-MOST_PRIORITY - 1)


def _with_priority(job: PendingJob, priority: int) -> ProposedChange:
    return ProposedChange(
        PRIORITY, job.submission_id, job.priority, priority, job=replace(job, priority=priority)
    )


def _priority(trials: Trials) -> Iterator[ProposedChange]:
    job, highest = trials.job, _highest(trials)
    for high in (highest + 1, MOST_PRIORITY) if highest >= -MOST_PRIORITY else ():
        if high > job.priority and trials.starts(_with_priority(job, high)):
            least = smallest(job.priority, high, lambda n: trials.starts(_with_priority(job, n)))
            yield _with_priority(job, least)
            return


def _running_limits(trials: Trials) -> Iterator[ProposedChange]:
    """A higher limit of running jobs for the job's parent cluster, as low as possible."""
    situation = trials.situation
    cluster = situation.ledger.clusters[trials.job.parent_id]
    for kind, limit in limits_of(cluster.queue):
        more = partial(_with_more_running, cluster, kind, limit)
        yield from _fewest(trials, more, len(situation.running) + len(situation.pending) + 1)


def _with_more_running(cluster: Cluster, kind: str, limit: int, number: int) -> ProposedChange:
    policy = raised(cluster.queue, kind, limit + number)
    return ProposedChange(
        kind, cluster.cluster_id, limit, limit + number, cluster=replace(cluster, queue=policy)
    )


def _given_limits(trials: Trials) -> Iterator[ProposedChange]:
    """Higher limits of the user, or of a cluster of the job, where they alone keep it back: as low as possible."""
    situation, job = trials.situation, trials.job
    use = use_of(situation.ledger, running_of(situation), situation.now_ns)
    raised: dict[tuple[str, str], list[tuple[Limit, int]]] = {}
    for refusal in use.refusals(job.parent_id, job.user, least_of(job)):
        limit = refusal.limit
        assert limit is not None, refusal
        most = (refusal.requested // SCALE + 1) * SCALE if limit.period else refusal.requested
        raised.setdefault((limit.subject, limit.name), []).append((limit, most))
    for (subject, name), limits in raised.items():
        change = ProposedChange(LIMIT, job.user if subject == USER else name, limits=tuple(limits))
        if len({limit.resource for limit, _ in limits}) == len(limits) and trials.starts(change):
            yield change


def _limits(trials: Trials, kind: str) -> Iterator[ProposedChange]:
    """A higher maximum or borrow limit for a cluster on the way up, each number as low as possible."""
    for cluster in trials.situation.ledger.upward(trials.job.parent_id):
        limit = cluster.spec.flexible_max if kind == MAXIMUM else cluster.borrow_limit
        if cluster.spec.flexible and limit:
            yield from _raised(trials, kind, cluster, limit)


def _raised(
    trials: Trials, kind: str, cluster: Cluster, limit: Mapping[str, int]
) -> Iterator[ProposedChange]:
    def with_limit(limits: Mapping[str, int]) -> ProposedChange:
        if kind == MAXIMUM:
            return ProposedChange(
                kind, cluster=replace(cluster, spec=replace(cluster.spec, flexible_max=limits))
            )
        return ProposedChange(kind, cluster=replace(cluster, borrow_limit=limits))

    above = trials.situation.ledger.total(PRIMARY)
    high = {name: amount + above.get(name, 0) + step_of(name) for name, amount in limit.items()}
    alone = [{**limit, name: high[name]} for name in sorted(limit)] if len(limit) > 1 else []
    # if all limits are higher, a job ahead may start and take the capacity; so try single limits, too
    higher = next((tried for tried in (high, *alone) if trials.starts(with_limit(tried))), None)
    if higher is None:
        return
    for name, amount in sorted(limit.items()):
        step = step_of(name)

        def fits(number: int, name: str = name, step: int = step) -> bool:
            return trials.starts(with_limit({**higher, name: number * step}))

        if higher[name] == amount:
            continue
        if trials.starts(with_limit({**higher, name: amount})):
            higher[name] = amount
        else:
            higher[name] = step * smallest(amount // step, -(-higher[name] // step), fits)
    changed = [name for name in sorted(limit) if higher[name] != limit[name]]
    if changed and trials.starts(with_limit(higher)):
        name = changed[0]
        yield replace(
            with_limit(higher), subject=cluster.cluster_id, old=limit[name], new=higher[name], where=name
        )


def _request(trials: Trials) -> Iterator[ProposedChange]:
    """For each number of the request the largest smaller one that starts, tried as a new job at the end."""
    last = max([trials.job.job_id, *(waiting.job_id for waiting in trials.situation.pending)])
    job_id = max(trials.situation.next_job, last + 1)
    fresh = replace(trials.job, job_id=job_id, submitted_at_ns=trials.situation.now_ns)
    for number in smaller_numbers(fresh if trials.task is None else _run_again(trials)):

        def fits(value: int, number: Number = number) -> bool:
            return trials.starts(number.change(value))

        for values in number.values:
            if (best := largest(values, fits)) is not None:
                yield number.change(best)
                break


def _run_again(trials: Trials) -> PendingTask:
    """The task in question as it is when it is cancelled and run again: the last one, from outside of its job."""
    assert trials.task is not None
    number = trials.situation.next_task
    return replace(
        trials.task,
        task_id=f"task-{number}",
        number=number,
        attempt=0,
        origin_vnode_id=None,
        bound_vnode_id=None,
    )


def step_of(name: str) -> int:
    """The unit in which a limit is raised: one, or a MiB of memory."""
    return SCALE * MIB if name in (MEMORY, OBJECT_STORE_MEMORY) else SCALE


def _replicas(trials: Trials) -> Iterator[ProposedChange]:
    """More whole nodes of one template for a cluster of whole nodes on the way up, as few as possible."""
    ledger = trials.situation.ledger
    for cluster in ledger.upward(trials.job.parent_id):
        if cluster.kind != LOGICAL or not of_whole_nodes(cluster.spec) or cluster.parent_id is None:
            continue
        for template in sorted({node.template_id for node in ledger.nodes.values()})[:MOST_NODES]:
            free = undivided(ledger, cluster.parent_id, template)[:MOST_NODES]
            more = partial(_with_more, cluster, template, free)
            yield from _fewest(trials, more, len(free))


def _fewest(trials: Trials, more: Callable[[int], ProposedChange], limit: int) -> Iterator[ProposedChange]:
    if limit and trials.starts(more(limit)):
        yield more(smallest(0, limit, lambda number: trials.starts(more(number))))


def _with_more(cluster: Cluster, template: str, free: Sequence[VNode], number: int) -> ProposedChange:
    old = cluster.spec.replica_sets.get(template, 0)
    counts = {**cluster.spec.replica_sets, template: old + number}
    changed = replace(cluster, spec=replace(cluster.spec, replica_sets=counts))
    return ProposedChange(REPLICAS, template, old, old + number, cluster=changed, joins=tuple(free[:number]))


def smallest(low: int, high: int, fits: Fits) -> int:
    """The smallest number above ``low`` that fits, by bisection; ``high`` is known to fit."""
    between = range(low + 1, high)
    return low + 1 + bisect_left(between, x=True, key=fits)


def largest(values: range, fits: Fits) -> int | None:
    """The largest of some rising values that fits; tried one by one if there are few, else by bisection."""
    if len(values) <= 12:
        return next((value for value in reversed(values) if fits(value)), None)
    if not fits(values[0]):
        return None
    return values[bisect_left(values, x=True, lo=1, key=lambda value: not fits(value)) - 1]


# ---- the numbers of a request ----


@value(frozen=True, slots=True)
class Number:
    """One number of a request; ``values``: the smaller numbers to try, coarse steps first."""

    work: PendingJob | PendingTask
    subject: str
    where: str
    old: int
    values: tuple[range, ...]

    def change(self, value: int) -> ProposedChange:
        """The change of this number to another value."""
        work, where = self.work, self.where
        if isinstance(work, PendingTask):
            task = replace(work, request={**work.request, self.subject: value})
            return ProposedChange(REQUEST, self.subject, self.old, value, task=task, where=where)
        shape = f"{work.shape};{where};{self.subject}:{value}"  # judged by itself
        made = replace(self._made(work, value), shape=shape)
        return ProposedChange(REQUEST, self.subject, self.old, value, job=made, where=where)

    def _made(self, job: PendingJob, value: int) -> PendingJob:
        spec, name = job.spec, self.subject
        if self.where == "entry":
            return replace(job, entry=_with(job.entry, name, value))
        if self.where == "minimum":
            return replace(job, spec=replace(spec, flexible_min=_with(spec.flexible_min, name, value)))
        if self.where == "whole":
            return replace(job, spec=replace(spec, replica_sets={**spec.replica_sets, name: value}))
        number = int(self.where.rpartition(" ")[2])
        nodes = spec.groups[number].nodes
        if self.where.startswith("nodes of "):
            nodes = nodes[:value]
        else:
            nodes = tuple(
                replace(node, resources=_with(node.resources, name, value))
                if node.resources.get(name) == self.old
                else node
                for node in nodes
            )
        groups = list(spec.groups)
        groups[number] = replace(groups[number], nodes=nodes)
        return replace(job, spec=replace(spec, groups=tuple(groups)))


def smaller_numbers(work: PendingJob | PendingTask) -> Iterator[Number]:
    """Every number of a request that could be smaller. A node keeps a resource, a group keeps a node."""
    if isinstance(work, PendingTask):
        for name, amount in _numbers(work.request):
            yield Number(work, name, "task", amount, values_below(name, amount))
        return
    spec = work.spec
    for name, amount in _numbers(work.entry):
        yield Number(work, name, "entry", amount, values_below(name, amount))
    if work.shares_parent:
        return
    for name, amount in _numbers(spec.flexible_min) if spec.flexible else ():
        yield Number(work, name, "minimum", amount, values_below(name, amount))
    for position, group in enumerate(spec.groups):
        yield from _of_group(work, f"group {position}", group)
    for template, count in _numbers(spec.replica_sets):
        rest = bool(spec.groups) or sum(spec.replica_sets.values()) > count
        yield Number(work, template, "whole", count, (range(0 if rest else 1, count),))


def _of_group(job: PendingJob, where: str, group: Group) -> Iterator[Number]:
    """Each different amount of each resource in a group, then the number of its nodes."""
    amounts = {(name, amount) for node in group.nodes for name, amount in _numbers(node.resources)}
    for name, amount in sorted(amounts):
        nodes = [node for node in group.nodes if node.resources.get(name) == amount]
        alone = any(sum(a > 0 for a in node.resources.values()) == 1 for node in nodes)
        yield Number(job, name, where, amount, values_below(name, amount, least=int(alone)))
    count = len(group.nodes)
    if count > 1:
        yield Number(job, "nodes", f"nodes of {where}", count, (range(1, count),))


def values_below(name: str, amount: int, *, least: int = 0) -> tuple[range, ...]:
    """The values to try below an amount: whole units (MiB of memory), then fractions (bytes), then zero."""
    if name in (MEMORY, OBJECT_STORE_MEMORY):
        coarse = range(SCALE * MIB, amount, SCALE * MIB)
        fine = range(SCALE, min(amount, SCALE * MIB), SCALE)
    else:
        coarse = range(SCALE, amount, SCALE)
        fine = range(1, min(amount, SCALE))
    return tuple(r for r in (coarse, fine, range(0 if least else 1)) if r)


def _numbers(amounts: Amounts) -> list[tuple[str, int]]:
    return [(name, amount) for name, amount in sorted(amounts.items()) if amount]


def _with(amounts: Amounts, name: str, amount: int) -> dict[str, int]:
    rest = {key: value for key, value in amounts.items() if key != name}
    return {**rest, name: amount} if amount else rest
