"""Fair order: the sibling with the least weighted dominant share goes first, at every level (dominant
resource fairness: Ghodsi et al., NSDI 2011).

Siblings below a cluster whose order is ``fair`` are its logical child clusters, each with its weight, and the
users of the jobs submitted to the cluster itself, each with weight 1. The dominant share of a sibling is the
largest part that it holds, or held in the past, of any resource of that cluster; its lag is added, and the
weight divides the sum. A resource of which an elastic cluster has nothing yet counts as a part of what the next
cluster above has of it.

A round takes the queues in this order start by start (``Shares``); the position of a waiting job is its place in
the same order (``order_of_starts``), so that nobody sees another order than the one that is followed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY, Cluster
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import FAIR
from vctl.core.resources import Amounts
from vctl.scheduler.orders import OrderKey, order_key

if TYPE_CHECKING:
    from vctl.scheduler.queueing import Queue
    from vctl.scheduler.running import Running

LAG_S = 60.0
"""Holding a whole cluster for this time beyond the due part counts as much as holding all of it now."""
MOST_LAG = 5.0
"""The bound of the lag: without it a member with many large jobs would hardly ever get a turn."""
LEAST_LAG = 1e-3
"""A smaller lag of a member that no longer competes is forgotten; so is every negative one."""
LAG_HALF_LIFE_S = 600.0
"""The half-life of the lag of a member that no longer competes."""

Member = tuple[str, str, str]
"""(cluster, child cluster or '', user or ''): a sibling that competes in a cluster."""


class Tree(Protocol):
    """What shares need to know of clusters: a ledger knows it, and so does who reads a part of the tables."""

    @property
    def clusters(self) -> Mapping[str, Cluster]:
        """The clusters by id."""

    def total(self, cluster_id: str) -> Amounts:
        """The total of a cluster on nodes that are not lost."""

    def upward(self, cluster_id: str) -> list[Cluster]:
        """A cluster and its ancestors, nearest first, without the primary."""


class Usage:
    """The lag of members, and their past usage in amounts, halved after every half-life of their cluster."""

    def __init__(self) -> None:
        self.at_ns: int | None = None
        self.past: dict[Member, dict[str, float]] = {}
        self.rates: dict[Member, Amounts] = {}
        """The amounts that members have held since the last round."""
        self.lag: dict[Member, float] = {}
        """Member -> what it got beyond its due while it competed, in parts of the cluster times ``LAG_S``."""
        self.waiting: set[Member] = set()
        """Members whose jobs waited at the end of the last round."""

    @classmethod
    def joined(
        cls, parts: Iterable[Usage], tree: Tree, held: Mapping[Member, Amounts], now_ns: int = 0
    ) -> Usage:
        """One usage from parts that were saved at different times, each of other clusters.

        Each is advanced to the latest of these times, or to ``now_ns`` if that is later, as if its members had held
        since then what they hold now (``held``).
        """
        usage = cls()
        usage.rates = dict(held)
        saved = [(part, part.at_ns) for part in parts if part.at_ns is not None]
        if not saved:
            return usage
        usage.at_ns = max(now_ns, *(at_ns for _, at_ns in saved))
        rates: dict[str, dict[Member, Amounts]] = {}
        for member, amounts in held.items():
            rates.setdefault(member[0], {})[member] = amounts
        for part, _ in saved:
            for cluster_id in {member[0] for member in (*part.past, *part.lag, *part.waiting)}:
                part.rates |= rates.get(cluster_id, {})
            part.advance(tree, usage.at_ns)
            usage.past |= part.past
            usage.lag |= part.lag
            usage.waiting |= part.waiting
        return usage

    def advance(self, ledger: Tree, now_ns: int) -> None:
        """Add the usage since the last call: the elapsed time with ``rates``."""
        before, self.at_ns = self.at_ns, now_ns
        if before is None or now_ns <= before:
            return
        elapsed = (now_ns - before) / 1e9
        self._note_lag(ledger, elapsed)
        for member in {*self.past, *self.rates}:
            cluster = ledger.clusters.get(member[0])
            if cluster is None or cluster.queue.half_life_ns is None:
                self.past.pop(member, None)
                continue
            half_life = cluster.queue.half_life_ns / 1e9
            left = 0.5 ** (elapsed / half_life)
            # with constant use the past usage tends to the amount in use, so the two are comparable
            used = self.past.setdefault(member, {})
            for name in {*used, *self.rates.get(member, {})}:
                used[name] = used.get(name, 0.0) * left + self.rates.get(member, {}).get(name, 0) * (1 - left)

    def _note_lag(self, ledger: Tree, elapsed: float) -> None:
        """Update the lag of each competing member by what it got beyond its due part.

        The due part is the member's part, by weight, of what all competing members of the cluster got. A
        member that does not compete gets no credit; its lag decays.
        """
        competing: dict[str, list[Member]] = {}
        for member in sorted(self.waiting):
            if member[0] in ledger.clusters and ledger.clusters[member[0]].queue.order == FAIR:
                if not member[1] or member[1] in ledger.clusters:
                    competing.setdefault(member[0], []).append(member)
        known = {member for members in competing.values() for member in members}
        for member in [one for one in self.lag if one not in known]:
            self.lag[member] *= 0.5 ** (elapsed / LAG_HALF_LIFE_S)
            if self.lag[member] < LEAST_LAG:
                del self.lag[member]
        for cluster_id, members in competing.items():
            total = ledger.total(cluster_id)
            got = [_part(self.rates.get(member, {}), total) for member in members]
            weights = [ledger.clusters[m[1]].queue.weight if m[1] else 1 for m in members]
            due = sum(got) / sum(weights)
            for member, part, weight in zip(members, got, weights, strict=True):
                more = (part - due * weight) * elapsed / LAG_S
                self.lag[member] = max(-MOST_LAG, min(MOST_LAG, self.lag.get(member, 0.0) + more))

    def note_waiting(self, queues: Iterable[Queue], ledger: Ledger, started: Collection[int]) -> None:
        """Note the members that have jobs waiting, where an order is fair, after a round that started ``started``."""
        self.waiting = set()
        for queue in queues:
            if not is_fair(ledger, queue.parent_id):
                continue  # who waits there counts for nobody
            out = {job.job_id for job in queue.delayed() if not job.may_start(self.at_ns or 0)}
            out.update(n for n in started if n in queue.jobs)
            gone = Counter(queue.jobs[n].user for n in out)
            left = {
                user if queue.splits_users else "" for user, many in queue.users.items() if many > gone[user]
            }
            self.waiting |= {(queue.parent_id, "", user) for user in left}
            if left:
                self.waiting |= set(_above(ledger, queue.parent_id))


def _part(held: Mapping[str, int], total: Mapping[str, int]) -> float:
    return max((amount / total[name] for name, amount in held.items() if total.get(name)), default=0.0)


class HeldShares:
    """The shares of members by what they hold, their past usage and their lag. Starts are added to what they hold."""

    def __init__(self, tree: Tree, held: Mapping[Member, Amounts], usage: Usage | None = None) -> None:
        self.tree = tree
        self.past: Mapping[Member, Mapping[str, float]] = {} if usage is None else usage.past
        self.lag: Mapping[Member, float] = {} if usage is None else usage.lag
        self.held: dict[Member, Amounts] = dict(held)
        self._totals: dict[tuple[str, str], int] = {}
        self._known: dict[Member, float] = {}
        """Shares that were asked for, before the division by the weight."""

    def add(self, parent_id: str, user: str, amounts: Mapping[str, int]) -> None:
        """Add the amounts of a user's job in a cluster: they count there and for every cluster above."""
        for member in [(parent_id, "", user), *_above(self.tree, parent_id)]:
            self.hold(member, amounts)

    def hold(self, member: Member, amounts: Mapping[str, int]) -> None:
        """Add amounts to what one member holds."""
        self._known.pop(member, None)
        self.held[member] = rs.add(self.held.get(member, {}), amounts)

    def of_user(self, cluster_id: str, user: str, more: Amounts | None = None, times: int = 0) -> float:
        """A user's share of a cluster, if he held amounts so many times in addition."""
        member = cluster_id, "", user
        if not more or not times:
            return self._share(member, 1)
        before = self.held.get(member, {})
        self.hold(member, {name: amount * times for name, amount in more.items()})
        share = self._share(member, 1)
        self.held[member] = before
        del self._known[member]
        return share

    def of_child(self, parent_id: str, cluster_id: str) -> float:
        """A child cluster's share of its parent, by its weight."""
        return self._share((parent_id, cluster_id, ""), self.tree.clusters[cluster_id].queue.weight)

    def turn_of(self, cluster_id: str) -> tuple[float, ...]:
        """The shares of a cluster and of those above it, topmost first; 0 where an order is not fair."""
        return tuple(
            self.of_child(above, child) if self.tree.clusters[above].queue.order == FAIR else 0.0
            for above, child, _ in reversed(_above(self.tree, cluster_id))
        )

    def _share(self, member: Member, weight: int) -> float:
        share = self._known.get(member)
        if share is None:
            held, past = self.held.get(member, {}), self.past.get(member, {})
            parts = [
                (held.get(name, 0) + past.get(name, 0.0)) / total
                for name in ({*held, *past} if past else held)
                if (total := self._total(member[0], name))
            ]
            share = self._known[member] = max(parts, default=0.0) + self.lag.get(member, 0.0)
        return share / weight

    def _total(self, cluster_id: str, name: str) -> int:
        """The total of a resource in a cluster; where it has nothing yet, in the next one above that has some.

        The total of the first call stays, so that shares only grow within a round.
        """
        total = self._totals.get((cluster_id, name))
        if total is None:
            above = (one.parent_id or PRIMARY for one in self.tree.upward(cluster_id))
            total = next((t for one in (cluster_id, *above) if (t := self.tree.total(one).get(name))), 0)
            self._totals[cluster_id, name] = total
        return total


class Shares(HeldShares):
    """The shares at the begin of a round, by what the running jobs hold. The starts of the round are added."""

    def __init__(self, ledger: Ledger, running: Running, usage: Usage | None = None) -> None:
        super().__init__(ledger, {}, usage)
        for parent_id, jobs in running.of_parent.items():
            by_user = running.held_in(ledger, parent_id) if jobs else {}
            for user, amounts in by_user.items():
                self.add(parent_id, user, amounts)
        if usage is not None:
            usage.rates = self.held  # the same dict, so that the starts of the round are added


def order_of_starts(
    shares: HeldShares, cluster_id: str, waiting: Iterable[tuple[PendingJob, Amounts | None]]
) -> list[tuple[PendingJob, int]]:
    """The jobs of a fair queue in the order in which they would start now, if there were room for all of them.

    Each comes with the amounts that it will hold; None for a job that may not start yet: it gets the place that it
    would have now, and delays nobody. Who is next is decided by the share of the user at that turn, which only the
    user's own starts raise; so the lines of the users are merged. Each job is returned with how many start one after
    the other: one that stands for several members of an array is there once for each time that others interrupt
    them. The shares of the users have grown afterwards.
    """
    policy = shares.tree.clusters[cluster_id].queue
    lines: dict[str, list[tuple[OrderKey, PendingJob, Amounts | None]]] = {}
    for job, amounts in waiting:
        lines.setdefault(job.user, []).append((order_key(job, policy), job, amounts))
    heads: list[tuple[float, OrderKey, str, int]] = []
    for user, line in lines.items():
        line.sort(key=itemgetter(0), reverse=True)
        heads.append((shares.of_user(cluster_id, user), line[-1][0], user, line[-1][1].members))
    heapify(heads)
    order: list[tuple[PendingJob, int]] = []
    while heads:
        _, key, user, left = heappop(heads)
        line, (_, job, amounts) = lines[user], lines[user][-1]

        def is_behind(
            count: int, key: OrderKey = key, user: str = user, held: Amounts | None = amounts
        ) -> bool:
            """Whether the next one of another user starts before the one after so many of these."""
            return bool(heads) and (shares.of_user(cluster_id, user, held, count), key) > heads[0][:2]

        count = 1 if left == 1 else 1 + bisect_left(range(1, left), 1, key=is_behind)
        order.append((job, count))
        if amounts:
            shares.hold((cluster_id, "", user), {name: amount * count for name, amount in amounts.items()})
        if count == left:
            line.pop()
        if line:
            left = left - count or line[-1][1].members
            heappush(heads, (shares.of_user(cluster_id, user), line[-1][0], user, left))
    return order


def _above(ledger: Tree, cluster_id: str) -> list[Member]:
    """The members as which a cluster and each one above it compete."""
    return [(one.parent_id or PRIMARY, one.cluster_id, "") for one in ledger.upward(cluster_id)]


def is_fair(ledger: Ledger, cluster_id: str) -> bool:
    """Whether shares matter for the jobs of a cluster: the cluster or one above it has the order ``fair``."""
    cluster = ledger.clusters.get(cluster_id)
    while cluster is not None and cluster.queue.order != FAIR:
        cluster = None if cluster.parent_id is None else ledger.clusters.get(cluster.parent_id)
    return cluster is not None
