"""Random states in which a job waits, and a plain way to apply a change to one: no code of ``whatif`` decides here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.scheduler import candidates as g
from vctl.core import resources as rs
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec, FixedNode
from vctl.core.jobs import PendingJob
from vctl.core.nodes import DRAINED, Node
from vctl.core.resources import SCALE
from vctl.core.values import replace
from vctl.scheduler import plan as pl
from vctl.scheduler.cycle import decide
from vctl.scheduler.explain.trial import RunningHolder, Situation, stop
from vctl.scheduler.explain.whatif import ProposedChange
from vctl.scheduler.queueing import Queue

TEMPLATES = ("4c", "8c 2g", "2c 4g")
SPECS = (
    lambda rng: g.spec(f"PACK: {rng.randint(1, 8)}c"),
    lambda rng: g.spec(f"PACK: {rng.randint(1, 4)}c {rng.randint(1, 4)}g"),
    lambda rng: g.spec("STRICT_SPREAD: " + ", ".join([f"{rng.randint(1, 4)}c"] * rng.randint(2, 3))),
    lambda rng: g.spec(f"PACK: {rng.randint(1, 4)}c, {rng.randint(1, 4)}c 1g"),
    lambda rng: g.spec(flexible=f"{rng.randint(1, 10)}c"),
    lambda rng: g.spec(f"STRICT_PACK: 1c 0.5g, {rng.randint(1, 4)}c", flexible=f"{rng.randint(1, 3)}c"),
    lambda rng: ClusterSpec(),
    lambda rng: g.spec(whole={"4c": rng.randint(1, 2)}),
)


@dataclass
class Case:
    situation: Situation
    job: PendingJob
    templates: dict[str, Node]


def queues_of(pending: list[PendingJob]) -> dict[str, Queue]:
    queues: dict[str, Queue] = {}
    for job in pending:
        queues.setdefault(job.parent_id, Queue(job.parent_id)).put(job)
    return queues


def build(seed: int) -> Case | None:
    """A state in which some jobs run and some wait; the one in question does not start. None: all would start."""
    rng = Random(seed)
    world = g.ledger([rng.choice(TEMPLATES) for _ in range(rng.randint(1, 4))])
    world.put_cluster(_team(rng))
    jobs = [_job(rng, number) for number in range(1, rng.randint(4, 12))]
    first, late = jobs[: rng.randint(1, len(jobs))], []
    running: list[RunningHolder] = []
    plan = decide(world, queues_of(first), now_ns=0)
    for start in plan.starts:
        g.run(world, start, run := f"run-{start.job.job_id}")
        own = None if start.cluster is None else start.cluster.cluster_id
        running.append(
            RunningHolder(start.job.job_id, start.job.submission_id, start.job.priority, own, (run,))
        )
    late = [job for job in jobs if job.job_id not in {one.job_id for one in running}]
    if rng.random() < 0.3:
        node = rng.choice(list(world.nodes.values()))
        world.put_node(replace(node, state=DRAINED))
    if rng.random() < 0.1:
        world.put_cluster(replace(world.clusters["team"], state="STOPPED"))
    started = {start.job.job_id for start in decide(world, queues_of(late), now_ns=0).starts}
    waiting = [job for job in late if job.job_id not in started]
    if not waiting:
        return None
    job = rng.choice(waiting)
    if rng.random() < 0.05:
        late = [one for one in late if one is not job]
        job = replace(job, held=True)
    situation = Situation(world, tuple(late), tuple(running))
    kinds = {t: Node("new", t.replace(" ", ""), rs.whole_node(g.amounts(t))) for t in TEMPLATES}
    return Case(situation, job, kinds)


def _team(rng: Random) -> Cluster:
    most = rng.choice((None, {"CPU": rng.randint(1, 6) * SCALE}, {"CPU": 3 * SCALE, "GPU": SCALE}))
    borrow = rng.choice((None, None, {"CPU": rng.randint(1, 6) * SCALE}))
    return Cluster("team", PRIMARY, LOGICAL, ClusterSpec({}, most), borrow_limit=borrow)


def _job(rng: Random, number: int) -> PendingJob:
    spec: ClusterSpec = rng.choice(SPECS)(rng)
    entry = {} if spec.has_gang else {"CPU": rng.choice((1, 2, 0.5)) * SCALE}
    entry = {name: int(amount) for name, amount in entry.items()}
    parent = rng.choice((PRIMARY, PRIMARY, "team"))
    return PendingJob(number, f"j{number}", parent, f"s{number}", spec, entry, rng.randint(-2, 3))


def cases(seeds: range) -> Iterator[tuple[int, Case]]:
    for seed in seeds:
        case = build(seed)
        if case is not None:
            yield seed, case


def starts_when(seed: int, change: ProposedChange) -> bool:
    """Build the state anew, make the change by hand, let the scheduler decide once."""
    case = build(seed)
    assert case is not None
    world = case.situation.ledger
    if change.cluster is not None:
        world.put_cluster(change.cluster)
    if change.node is not None:
        world.put_node(change.node)
    job = change.job or case.job
    pending = [one for one in case.situation.pending if one.job_id != case.job.job_id]
    anew = [] if job.job_id != case.job.job_id else [job]
    if (
        change.stopped is not None or not anew
    ):  # a stop takes time, as does a new submit: what fits starts first
        for start in decide(world, queues_of([*pending, *anew]), now_ns=0).starts:
            pl.apply(world, start)
            pending = [one for one in pending if one.job_id != start.job.job_id]
    if change.stopped is not None:
        stop(world, change.stopped)
    plan = decide(world, queues_of([*pending, job]), now_ns=0)
    return any(start.job.job_id == job.job_id for start in plan.starts)


def single_numbers(case: Case) -> Iterator[tuple[str, ProposedChange]]:
    """Every way to change one number, by brute force: (kind, change)."""
    job, world = case.job, case.situation.ledger
    top = max((one.priority for one in case.situation.pending), default=0) + 1
    yield "priority", ProposedChange("", job=replace(job, priority=max(top, job.priority)))
    for cluster in (world.clusters["team"],) if job.parent_id == "team" else ():
        for name in cluster.spec.flexible_max or {}:
            most = {**(cluster.spec.flexible_max or {}), name: 1000 * SCALE}
            spec = replace(cluster.spec, flexible_max=most)
            yield "maximum", ProposedChange("", cluster=replace(cluster, spec=spec))
        for name in cluster.borrow_limit or {}:
            limit = {**(cluster.borrow_limit or {}), name: 1000 * SCALE}
            yield "borrow_limit", ProposedChange("", cluster=replace(cluster, borrow_limit=limit))
    for node in case.templates.values():
        yield "node", ProposedChange("", node=node)
    for asked in _smaller(replace(job, job_id=1000)):
        yield "request", ProposedChange("", job=replace(asked, shape="smaller"))


def _smaller(job: PendingJob) -> Iterator[PendingJob]:
    spec = job.spec
    for name, amount in job.entry.items():
        for x in range(0, amount, SCALE // 4):
            yield replace(job, entry={**job.entry, name: x})
    for name, amount in spec.flexible_min.items():
        for x in range(0, amount, SCALE):
            yield replace(job, spec=replace(spec, flexible_min={**spec.flexible_min, name: x}))
    for template, count in spec.replica_sets.items():
        for fewer in range(1, count):
            yield replace(job, spec=replace(spec, replica_sets={template: fewer}))
    for number, group in enumerate(spec.groups):
        for chosen in _smaller_groups(list(group.nodes)):
            groups = (*spec.groups[:number], replace(group, nodes=chosen), *spec.groups[number + 1 :])
            yield replace(job, spec=replace(spec, groups=groups))


def _smaller_groups(nodes: list[FixedNode]) -> Iterator[tuple[FixedNode, ...]]:
    yield from (tuple(nodes[:count]) for count in range(1, len(nodes)))
    for place, node in enumerate(nodes):
        for name, amount in node.resources.items():
            for x in range(0, amount, SCALE if amount >= SCALE else SCALE // 10):
                resources = {**node.resources, name: x}
                if any(resources.values()):
                    yield (*nodes[:place], replace(node, resources=resources), *nodes[place + 1 :])
