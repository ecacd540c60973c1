"""Limits of users and clusters: set, list, clear."""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from vctl import ops
from vctl.core.limits import CLUSTER, EACH, GPU_HOURS, HOUR_US, RUNNING_JOBS, USER, Limit
from vctl.core.resources import SCALE
from vctl.core.wording import cluster_text
from vctl.engine.changes import LimitCleared, LimitSet
from vctl.errors import BadSpec, NotFound, param
from vctl.ops import forms
from vctl.ops.cluster_views import existing
from vctl.ops.kept_limits import use_of
from vctl.spec.fields import did_you_mean
from vctl.spec.ids import JOB_MARK
from vctl.store import limits as table
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import LimitForm

WHOSE = "name a user or a cluster: {user} ana, {user} '*' for each user, {cluster} research"


def set_limits(
    store: Store,
    *,
    user: str | None,
    cluster: str | None,
    amounts: Mapping[str, int | None],
    period: str = "",
) -> list[LimitForm]:
    """Set limits, or (None) take them away; returns those that the user or the cluster has now."""
    if not amounts:
        raise BadSpec(
            "nothing to limit",
            fix=f"give {param('running_jobs')}, {param('cpus')}, {param('gpus')}, {param('memory')} or"
            f" {param('gpu_hours')}",
        )
    if GPU_HOURS in amounts and not period:
        raise BadSpec(f"{param('gpu_hours')} are of a period", fix=f"give {param('per')} day, week or month")
    if period and GPU_HOURS not in amounts:
        raise BadSpec(f"{param('per')} belongs to {param('gpu_hours')}", fix=f"give {param('gpu_hours')}")
    with store.transaction():
        subject, name = _whose(store, user, cluster)
        author, known = ops.nodes.author(store), table.load(store).by_key
        for resource, amount in amounts.items():
            per = period if resource == GPU_HOURS else ""
            limit = Limit(subject, name, resource, amount or 0, per, author, store.clock())
            if amount is not None:
                store.emit(LimitSet(limit, _spent(store, known.values()) if per else ()))
            elif (old := known.get(limit.key)) is not None:
                store.emit(LimitCleared(old, author))
        return _forms(store, (subject, name))


def list_limits(store: Store) -> list[LimitForm]:
    """All limits, with what is used of each."""
    with store.snapshot():
        return _forms(store)


def clear(store: Store, *, user: str | None, cluster: str | None, every: bool = False) -> list[LimitForm]:
    """Take away all limits of a user or a cluster, or of everybody; returns them."""
    with store.transaction():
        if every and user is None and cluster is None:
            ops.rights.check_service(store, "what everybody may have at most")
            cleared = _forms(store)
            of = list(table.load(store))
        else:
            if every:
                raise BadSpec(f"{param('every')} clears the limits of everybody", fix="name nobody beside it")
            subject, name = _whose(store, user, cluster, is_known=False)
            cleared = _forms(store, (subject, name))
            of = [one for one in table.load(store) if (one.subject, one.name) == (subject, name)]
            if not of:
                raise NotFound(f"{whose(subject, name)} has no limit", fix="see `vctl limit list`")
        for limit in of:
            store.emit(LimitCleared(limit, ops.nodes.author(store)))
        return cleared


def whose(subject: str, name: str) -> str:
    """Whose limit it is, in words."""
    if (subject, name) == (USER, EACH):
        return "each user"
    return f"{subject} {cluster_text(name)}"


def _whose(store: Store, user: str | None, cluster: str | None, *, is_known: bool = True) -> tuple[str, str]:
    if (user is None) == (cluster is None):
        problem = (
            "no user and no cluster is named" if user is None else "a limit is of a user or of a cluster"
        )
        raise BadSpec(problem, fix=WHOSE.format(user=param("user"), cluster=param("cluster")))
    if user is None:
        cluster_id = existing(store, cluster)
        if JOB_MARK in cluster_id:
            raise BadSpec(
                f"{param('cluster')}: {cluster_id} is of one job",
                fix="limit the cluster around it, or its user",
            )
        ops.rights.check_cluster(store, cluster_id, "limit")
        return CLUSTER, cluster_id
    ops.rights.check_service(store, "what a user may have at most")
    if is_known and user != EACH and not (_has_account(user) or table.knows_user(store, user)):
        names = [entry.pw_name for entry in pwd.getpwall()]
        raise BadSpec(
            f"{param('user')}: there is no user {user!r} on this machine, and none has submitted a job",
            fix=did_you_mean(user, names) if len(names) < 1000 else "see `vctl ps -a` for users with jobs",
        )
    return USER, user


def _spent(store: Store, known: Iterable[Limit]) -> tuple[tuple[str, str, int, int], ...]:
    """What a scheduler has to know that had to count no GPU time so far."""
    if any(limit.period for limit in known):
        return ()
    return tuple(
        (*whose, day, amount) for whose, days in table.spent(store).items() for day, amount in days.items()
    )


def _has_account(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _forms(store: Store, of: tuple[str, str] | None = None) -> list[LimitForm]:
    use = use_of(store)
    return [
        _form(limit, None if limit.name == EACH else use.of(limit, limit.name))
        for limit in map(table.limit, table.rows(store))
        if of in (None, (limit.subject, limit.name))
    ]


def _form(limit: Limit, used: int | None) -> LimitForm:
    def number(amount: int) -> float:
        if limit.period:
            amount //= HOUR_US
        return amount if limit.resource == RUNNING_JOBS else amount / SCALE

    return {
        "limit_id": ":".join(part for part in limit.key if part),
        "user": limit.name if limit.subject == USER else None,
        "cluster_id": limit.name if limit.subject == CLUSTER else None,
        "of": limit.resource,
        "limit": number(limit.room),
        "per": limit.period or None,
        "used": None if used is None else number(used),
        "set_by": limit.author,
        "set_at": forms.timestamp(limit.at),
    }
