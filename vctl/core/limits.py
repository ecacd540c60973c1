"""Limits of users and clusters: what the jobs of a user, or of a cluster and all below it, may have at a time. Values.

A limit of a named user takes the place of the one of the same kind that each user has (``EACH``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vctl.core.resources import CPU, GPU, MEMORY
from vctl.core.values import value

USER, CLUSTER = "user", "cluster"
EACH = "*"
"""The name in a limit that each user has."""
RUNNING_JOBS = "running_jobs"
LIMITED = (RUNNING_JOBS, CPU, GPU, MEMORY)
"""What a limit can be of: the number of running jobs, or what they hold of a resource."""
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
    def key(self) -> Key:
        """What another limit has in common that takes its place."""
        return self.subject, self.name, self.resource, self.period


class LimitTable:
    """The limits in force, by key. Never changed: ``with_`` and ``without`` make others."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self.by_key = {limit.key: limit for limit in sorted(limits, key=lambda limit: limit.key)}
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
