"""Limits of users and clusters: what the jobs of a user, or of a cluster and all below it, may have at a time. Values.

A limit of a named user takes the place of the one of the same kind that each user has (``EACH``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vctl.core.resources import CPU, GPU, MEMORY
from vctl.core.values import value
from vctl.core.wording import date_of

USER, CLUSTER = "user", "cluster"
EACH = "*"
"""The name in a limit that each user has."""
RUNNING_JOBS, GPU_HOURS = "running_jobs", "gpu_hours"
LIMITED = (RUNNING_JOBS, CPU, GPU, MEMORY, GPU_HOURS)
"""What a limit can be of: the number of running jobs, what they hold of a resource, or the GPU hours of a period."""
DAY, WEEK, MONTH = PERIODS = ("day", "week", "month")
DAY_US = 86_400 * 10**6
HOUR_US = 3_600 * 10**6
Spent = Mapping[int, int]
"""Day since 1970 (UTC) -> GPU microseconds in 1/10000."""
Key = tuple[str, str, str, str]
"""(subject, name, resource, period): of limits with the same key the last one counts."""


@value(frozen=True, slots=True)
class Limit:
    """The most that somebody may have of something at a time.

    ``subject``: USER or CLUSTER; ``name``: which. ``amount``: jobs, or 1/10000 of the resource.
    """

    subject: str
    name: str
    resource: str
    amount: int
    period: str = ""
    """The period of a limit of what is used in it; empty: what is held at a time."""
    author: str = ""
    """Who set it."""
    at: int = 0

    @property
    def room(self) -> int:
        """The amount in the unit in which use is counted: GPU hours are counted in microseconds."""
        return self.amount * HOUR_US if self.resource == GPU_HOURS else self.amount

    @property
    def key(self) -> Key:
        """What another limit has in common that takes its place."""
        return self.subject, self.name, self.resource, self.period


class LimitTable:
    """The limits in force, by key. Never changed: ``with_`` and ``without`` make others."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self.by_key = {limit.key: limit for limit in sorted(limits, key=lambda limit: limit.key)}
        self.periods = {limit.period for limit in self.by_key.values()} - {""}
        """The periods of which something is limited."""
        self.of_users = any(limit.subject == USER for limit in self.by_key.values())
        """Whether any is of users: then the jobs of each user wait for themselves."""
        self._of: dict[tuple[str, str], list[Limit]] = {}
        for limit in self.by_key.values():
            self._of.setdefault((limit.subject, limit.name), []).append(limit)

    def __bool__(self) -> bool:
        return bool(self.by_key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LimitTable) and self.by_key == other.by_key

    def __hash__(self) -> int:
        return hash(tuple(self.by_key))

    def __iter__(self) -> Iterator[Limit]:
        return iter(self.by_key.values())

    def with_(self, *limits: Limit) -> LimitTable:
        """These limits, too, in place of those with the same keys."""
        return LimitTable((self.by_key | {limit.key: limit for limit in limits}).values())

    def without(self, keys: Iterable[Key]) -> LimitTable:
        """All but those with these keys."""
        gone = set(keys)
        return LimitTable(limit for key, limit in self.by_key.items() if key not in gone)

    def of_user(self, user: str) -> Iterator[Limit]:
        """The limits that hold for a user: his own, and those of each user for what he has no limit of his own."""
        own = self._of.get((USER, user), ())
        yield from own
        named = {(limit.resource, limit.period) for limit in own}
        for limit in self._of.get((USER, EACH), ()):
            if (limit.resource, limit.period) not in named:
                yield limit

    def of_cluster(self, cluster_id: str) -> Iterable[Limit]:
        """The limits of one cluster."""
        return self._of.get((CLUSTER, cluster_id), ())


NO_LIMITS = LimitTable()


def days_of(period: str, now_ns: int) -> range:
    """The days since 1970 of the period of a moment: a day, a week from Monday, a month, all in UTC."""
    day = now_ns // 1000 // DAY_US
    if period == DAY:
        return range(day, day + 1)
    if period == WEEK:
        monday = day - (day + 3) % 7
        return range(monday, monday + 7)
    first = day - date_of(day)[2] + 1
    return range(first, first + 32 - date_of(first + 31)[2])


def by_day(amount: int, began_ns: int, ended_ns: int) -> Iterator[tuple[int, int]]:
    """Day and the part of a use that falls into it: an amount times microseconds."""
    began, ended = began_ns // 1000, max(began_ns, ended_ns) // 1000
    for day in range(began // DAY_US, ended // DAY_US + 1):
        yield day, amount * (min(ended, (day + 1) * DAY_US) - max(began, day * DAY_US))
