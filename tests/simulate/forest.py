"""Random trees of elastic clusters without maximum that lend their minimums, random backlogs, and one queue."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, JOB, LOGICAL, PRIMARY, Cluster, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.queue_policy import DEFAULT, SECOND, QueuePolicy
from vctl.core.resources import SCALE, Allocation, Amounts, whole_node
from vctl.core.values import replace
from vctl.scheduler.elasticity import held
from vctl.scheduler.placement import Placed, place
from vctl.scheduler.reshape import joined, place_more
from vctl.simulate.play import Player
from vctl.simulate.workload import Arrival


def machine(dice: random.Random, nodes: int) -> Ledger:
    """Equal nodes of 8 CPUs, in half of the machines with 4 GPUs each."""
    ledger = Ledger()
    amounts = {"CPU": 8 * SCALE} | ({"GPU": 4 * SCALE} if dice.random() < 0.5 else {})
    for number in range(nodes):
        ledger.put_node(Node(f"n{number:02}", "8c", whole_node(amounts), f"n{number:02}", {}))
    return ledger


def grow_tree(dice: random.Random, ledger: Ledger, levels: int, policy: QueuePolicy = DEFAULT) -> list[str]:
    """Add clusters to a ledger, ``levels`` deep; returns those that run jobs: the leaves and some others."""
    leaves: list[str] = []

    def plant(parent_id: str, level: int, whole: Amounts) -> None:
        count = dice.randint(2, 4)
        for number in range(count):
            cluster_id = f"{parent_id}-{number}" if parent_id != PRIMARY else f"t{number}"
            least = minimum(dice, whole, count)
            spec = ClusterSpec(flexible_min=least)
            cluster = Cluster(cluster_id, parent_id, LOGICAL, spec, True, lending_limit=least, queue=policy)
            ledger.put_cluster(cluster)
            if least:
                placed = place_more(ledger, cluster_id, ClusterSpec(flexible_min=least))
                assert isinstance(placed, Placed), (cluster_id, least, placed)
                for piece in placed.pieces:
                    ledger.assign(joined(ledger, cluster_id, piece))
            if level > 1 and dice.random() < 0.7:
                plant(cluster_id, level - 1, least)
                if dice.random() < 0.3:
                    leaves.append(cluster_id)
            else:
                leaves.append(cluster_id)

    plant(PRIMARY, levels, ledger.total(PRIMARY))
    if dice.random() < 0.3:
        leaves.append(PRIMARY)
    return leaves


def minimum(dice: random.Random, whole: Amounts, count: int) -> dict[str, int]:
    """No minimum, or a part of what the parent is guaranteed, so that there is enough for ``count`` children."""
    if dice.random() < 0.4:
        return {}
    found = {n: int(amount / count * dice.uniform(0.2, 0.9)) // SCALE * SCALE for n, amount in whole.items()}
    return {name: amount for name, amount in found.items() if amount}


def gang(dice: random.Random, ledger: Ledger) -> tuple[ClusterSpec, bool]:
    """A job: one piece, a gang, a flexible minimum, or whole nodes."""
    nodes = len(ledger.nodes)
    has_gpus = "GPU" in ledger.total(PRIMARY)
    kind = dice.random()
    each = {"CPU": dice.choice((1, 1, 2, 4, 8)) * SCALE}
    if has_gpus and dice.random() < 0.5:
        each["GPU"] = dice.choice((1, 1, 2, 4)) * SCALE
    if kind < 0.5:
        return ClusterSpec(groups=(Group((FixedNode(each),)),), flexible=False), False
    if kind < 0.75:
        many = dice.randint(2, max(2, nodes // 2))
        policy = dice.choice(("PACK", "SPREAD", "STRICT_SPREAD"))
        return ClusterSpec(
            groups=(Group(tuple(FixedNode(each) for _ in range(many)), policy),), flexible=False
        ), False
    if kind < 0.9:
        return ClusterSpec(flexible_min={"CPU": dice.randint(1, 8) * SCALE}, flexible_max=None), False
    return ClusterSpec(replica_sets={"8c": dice.randint(1, max(1, nodes // 2))}, flexible=False), False


@dataclass
class Outcome:
    """What became of a backlog."""

    ends: list[tuple[int, int]] = field(default_factory=list)
    """(End, resource seconds) of each job."""
    starts: int = 0
    changes: int = 0

    def until(self, part: float) -> int:
        """When this part of the work is done, in ns."""
        total = sum(work for _, work in self.ends)
        done = 0
        for at, work in sorted(self.ends):
            done += work
            if done >= part * total:
                return at
        raise AssertionError(self.ends)


def play(ledger: Ledger, arrivals: list[Arrival], each: Callable[[Player], None] | None = None) -> Outcome:
    """Play a backlog to its end."""
    player = Player(ledger)
    outcome = Outcome()
    seen: dict[int, object] = {}

    def look() -> None:
        nonlocal seen
        now = dict(ledger.leases)
        outcome.changes += sum(1 for n, lease in now.items() if seen.get(n) != lease)
        outcome.changes += sum(1 for n in seen if n not in now)
        seen = now
        if each is not None:
            each(player)

    for one in player.play(arrivals, each=look):
        assert one.end_ns is not None and one.start_ns is not None, (one.arrival.job, one.reason, one.message)
        work = sum(one.held.values()) * (one.end_ns - one.start_ns)
        outcome.ends.append((one.end_ns, work))
        outcome.starts += 1
    return outcome


def backlog(dice: random.Random, ledger: Ledger, parents: list[str], jobs: int) -> list[Arrival]:
    """Jobs of some shapes for random clusters; most wait from the begin, some come later."""
    shapes = [gang(dice, ledger) for _ in range(6)]
    arrivals = []
    for number in range(1, jobs + 1):
        shape = dice.randrange(len(shapes))
        at = 0 if dice.random() < 0.7 else dice.randint(0, 200) * SECOND
        job = PendingJob(
            number,
            f"j{number}",
            dice.choice(parents),
            f"s{shape}",
            shapes[shape][0],
            {},
            user="u",
            submitted_at_ns=at,
        )
        arrivals.append(Arrival(job, dice.randint(5, 60) * SECOND))
    return arrivals


def in_one_queue(arrivals: list[Arrival]) -> list[Arrival]:
    """The same jobs, all in the primary."""
    return [replace(one, job=replace(one.job, parent_id=PRIMARY)) for one in arrivals]


def planted(seed: int, jobs: int = 120, policy: QueuePolicy = DEFAULT) -> tuple[Ledger, list[Arrival]]:
    """A random machine with a random tree, and a backlog for it."""
    dice = random.Random(seed)
    nodes, levels = dice.randint(4, 8), dice.randint(1, 3)
    tree = machine(random.Random(seed), nodes)
    parents = grow_tree(dice, tree, levels, policy)
    return tree, backlog(dice, tree, parents, jobs)


def compare(seed: int, jobs: int = 240, policy: QueuePolicy = DEFAULT) -> tuple[float, float, float]:
    """(What a random tree does as a part of what one queue does, the same at the end, changes of leases per start).

    With half as many jobs, a single gang is so large a part of the work that the order of the starts alone makes a
    tenth of difference, for better or worse.
    """
    tree, arrivals = planted(seed, jobs, policy)
    plain = machine(random.Random(seed), len(tree.nodes))
    plain.set_primary_queue(policy)
    one = play(plain, in_one_queue(arrivals))
    many = play(tree, arrivals)
    return one.until(0.8) / many.until(0.8), one.until(1) / many.until(1), many.changes / many.starts


def startable(player: Player) -> list[str]:
    """Waiting jobs that would start if nothing were held that nobody uses; none while a job has starved."""
    if any(queue.shared or queue.kept for queue in player.queues.values()):
        return []
    flat = Ledger()
    for node in player.ledger.nodes.values():
        flat.put_node(node)
    for number, (vnode, (node_id, part)) in enumerate(
        (vnode_id, (player.ledger.vnodes[vnode_id].node_id, part))
        for vnode_id, part in _in_use(player.ledger)
    ):
        flat.charge(f"{number}:{vnode}", node_id, part)
    shapes = [shape.example for queue in player.queues.values() for shape in queue.shapes.values()]
    return [
        job.submission_id for job in shapes if isinstance(place(flat, PRIMARY, job.spec, job.entry), Placed)
    ]


def _in_use(ledger: Ledger) -> list[tuple[str, Allocation]]:
    """What jobs hold: the virtual nodes of their clusters."""
    jobs = [one.cluster_id for one in ledger.clusters.values() if one.kind == JOB]
    return [
        (vnode_id, ledger.vnodes[vnode_id].allocation) for one in jobs for vnode_id in ledger.members[one]
    ]


def leases_astray(ledger: Ledger) -> list[tuple[str, str, int, int]]:
    """Where the leases of a logical cluster are not what it has above its minimum."""
    found = []
    for cluster_id, cluster in ledger.clusters.items():
        has = held(ledger, cluster_id)
        leased = rs.total(
            lease.amounts for lease in ledger.leases.values() if lease.borrower_id == cluster_id
        )
        for name in {*has, *leased} if cluster.kind == LOGICAL else ():
            over = max(has.get(name, 0) - cluster.spec.flexible_min.get(name, 0), 0)
            if over != leased.get(name, 0):
                found.append((cluster_id, name, over, leased.get(name, 0)))
    return found


def doubled_parts(ledger: Ledger) -> list[tuple[str, str]]:
    """(Cluster, slot) in which a cluster has more than one flexible virtual node."""
    count = Counter(
        (vnode.cluster_id, vnode.parent_id or "")
        for vnode in ledger.vnodes.values()
        if vnode.kind == FLEXIBLE and ledger.clusters[vnode.cluster_id].kind == LOGICAL
    )
    return [one for one, number in count.items() if number > 1]
