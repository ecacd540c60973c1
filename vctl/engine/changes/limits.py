"""Changes of the limits of users and clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.limits import CLUSTER, RUNNING_JOBS, Limit
from vctl.core.resources import SCALE
from vctl.core.values import replace
from vctl.engine.changes.change import Change, PublicEvent, change

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class LimitSet(Change):
    """A user or a cluster has a limit, in place of the one with the same key."""

    limit: Limit
    spent: tuple[tuple[str, str, int, int], ...] = ()
    """Of the first limit of a period: cluster, user, day, and the GPU time of jobs that are over."""

    def public_event(self) -> PublicEvent:
        return _event("limit.set", self.limit)

    def apply(self, state: SchedulerState) -> None:
        if self.limit.period and not state.ledger.limits.periods:
            state.running.spent = {}
            for cluster_id, user, day, amount in self.spent:
                state.running.spent.setdefault((cluster_id, user), {})[day] = amount
        state.ledger.limits = state.ledger.limits.with_(self.limit)


@change
class LimitCleared(Change):
    """A limit is gone; ``by``: who took it away."""

    limit: Limit
    by: str = ""

    def public_event(self) -> PublicEvent:
        return _event("limit.cleared", replace(self.limit, author=self.by))

    def apply(self, state: SchedulerState) -> None:
        state.ledger.limits = state.ledger.limits.without((self.limit.key,))


def _event(kind: str, limit: Limit) -> PublicEvent:
    amount = limit.amount if limit.resource == RUNNING_JOBS else limit.amount / SCALE
    data: dict[str, object] = {limit.subject: limit.name, limit.resource: amount, "by": limit.author}
    if limit.period:
        data["per"] = limit.period
    cluster_id = limit.name if limit.subject == CLUSTER else None
    return PublicEvent(kind, "limit", f"{limit.subject}:{limit.name}", cluster_id, None, data)
