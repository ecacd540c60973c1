"""Create, update and delete one logical cluster inside a transaction, with the checks in the documented order.

A caller that changes several clusters in one transaction passes the same ledger to every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vctl.core import resources as rs
from vctl.core.clusters import (
    BOOKED,
    JOB,
    LOGICAL,
    PRIMARY,
    REMOVING,
    SUB,
    Cluster,
    ClusterSpec,
    Group,
    VNode,
)
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.core.values import replace
from vctl.core.wording import cluster_text, listed, opens_at
from vctl.engine.changes import ClusterAdded, ClusterChanged, ClusterDetached, ClusterRemoved, VNodesChanged
from vctl.engine.rules.clusters import removal
from vctl.engine.rules.leases import granted, loans_of, returned
from vctl.engine.rules.nodes import leases_settled
from vctl.engine.rules.starts import rearranged
from vctl.errors import BadSpec, Conflict, Infeasible, VctlError, param
from vctl.ops import feasible
from vctl.ops.cluster_views import blockers_of, check_revision, cluster_row, in_use
from vctl.ops.kept_limits import limits_kept
from vctl.ops.leases import check_lending
from vctl.scheduler.elasticity import Grow, flexible_parts, growing, level_above
from vctl.scheduler.feasibility import ever
from vctl.scheduler.membership import NodeShortage, exchange, join, of_whole_nodes
from vctl.scheduler.nominations import Nomination, Nominations
from vctl.scheduler.placement import Unplaced
from vctl.scheduler.recall import Move, is_loose, put_back, recall
from vctl.scheduler.reshape import InUse, reshape
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.fields import refuse
from vctl.spec.ids import job_cluster_id
from vctl.store import clusters as table
from vctl.store import jobs, leases, preemptions, rows
from vctl.store.partial import load_for_exchange, load_for_pieces
from vctl.store.store import Row, Store

_SHORT = (
    "No enough nodes to {verb} the virtual cluster. The replica sets that gcs can {what} at most are shown below. "
    "Use it as a suggestion to adjust your request or cluster."
)
NOTHING = ClusterSpec(flexible=False)
MOST_NAMED = 5
"""The most jobs, for which preemptions reserve resources, that a refusal names."""


def create(
    store: Store,
    cluster_id: str,
    change: ClusterChange,
    *,
    parent_id: str,
    owner: str | None,
    detach: bool = False,
    ledger: Ledger | None = None,
    of_user: str = "",
) -> Cluster:
    """Add a cluster with its resources: a logical cluster, or a sub-cluster inside the cluster of a job.

    The id of a sub-cluster is qualified by its parent's, so that two jobs may use the same names. ``detach``: it
    outlives its job, until it is deleted.
    """
    above = check_parent(store, parent_id)
    kind, job = LOGICAL, None
    if above is not None and above["kind"] in (JOB, SUB):
        if change.divisible is False:
            raise BadSpec(
                f"{param('divisible=false')}: {cluster_id} is inside the cluster of a job, where every cluster is"
                " divisible",
                fix="leave it out: the jobs and tasks of the job share its clusters anyway",
                details={"path": param("divisible")},
            )
        kind, job, cluster_id = SUB, str(above["job_id"]), job_cluster_id(parent_id, cluster_id)
    elif detach:
        problem = f"{cluster_id} is not inside the cluster of a job, so it outlives all jobs anyway"
        raise refuse(param("detach"), problem, "leave it out")
    if table.get(store, cluster_id) is not None:
        name = cluster_text(cluster_id)
        raise Conflict(f"virtual cluster {name} exists already", fix=f"vctl vc update {name} …")
    check_lending(kind, change.lending_limit)
    divisible = True if kind == SUB else bool(change.divisible)
    _check_template(change, cluster_id, kind, divisible=divisible)
    spec = change.spec or (ClusterSpec() if kind == SUB else NOTHING)
    cluster = Cluster(
        cluster_id, parent_id, kind, spec, divisible, store.next_revision(), job=job,
        borrow_limit=change.borrow_limit or None, lending_limit=change.lending_limit or {},
        private=change.private or (), user_template=(*(change.user_template or ()), None)[0], of_user=of_user,
    )  # fmt: skip
    ledger = _ledger(store, cluster, NOTHING, ledger)
    store.emit(ClusterAdded(store.clock(), cluster, owner))
    if detach:
        store.emit(ClusterDetached(cluster_id))
    with limits_kept(store, cluster_id):
        fulfil(store, ledger, cluster, NOTHING)
    return cluster


def update(
    store: Store,
    cluster_id: str,
    change: ClusterChange,
    *,
    revision: int | None = None,
    ledger: Ledger | None = None,
    has: ClusterSpec | None = None,
) -> Cluster:
    """Bring a cluster to a wanted state. ``has`` is the spec that an earlier step of the transaction shrank it to."""
    old = changeable(store, cluster_id)
    check_update(old, change, revision)
    check_lending(old.kind, change.lending_limit)
    _check_template(change, cluster_id, old.kind, divisible=old.divisible)
    spec = old.spec if change.spec is None else common_first(old.spec, change.spec)
    cluster = replace(
        old,
        spec=spec,
        revision=store.next_revision(),
        borrow_limit=old.borrow_limit if change.borrow_limit is None else change.borrow_limit or None,
        lending_limit=old.lending_limit if change.lending_limit is None else change.lending_limit,
        private=old.private if change.private is None else change.private,
        user_template=old.user_template if change.user_template is None else (*change.user_template, None)[0],
    )
    store.emit(ClusterChanged(store.clock(), cluster))
    if change.spec is not None:
        before = has or old.spec
        with limits_kept(store, cluster_id):
            fulfil(store, _ledger(store, cluster, before, ledger), cluster, before)
    elif ledger is not None:
        ledger.put_cluster(cluster)
    return cluster


def _check_template(change: ClusterChange, cluster_id: str, kind: str, *, divisible: bool) -> None:
    """Refuse a template where no cluster of a user can be."""
    if change.user_template and not (divisible and kind == LOGICAL):
        problem = f"{cluster_text(cluster_id)} holds no clusters of users"
        raise refuse(
            param("user_template"), problem, f"give it to a logical cluster with {param('divisible')}"
        )


def delete(store: Store, cluster_id: str, *, ledger: Ledger | None = None) -> None:
    """Delete an unused cluster."""
    if blockers := blockers_of(store, cluster_id):
        raise in_use(cluster_id, blockers, f"vctl vc delete {cluster_id}")
    emit_removal(store, removal(table.InTables(store), cluster_id))
    if ledger is not None:
        ledger.remove_cluster(cluster_id)


def emit_removal(store: Store, removed: ClusterRemoved) -> None:
    """Remove a cluster. What it had lent to the gangs of jobs beside it ends: they have that from their parent now."""
    store.emit(removed)
    for borrower_id in leases.jobs_beside(store, removed.lender_id, removed.lent):
        settle_leases(store, table.load_ledger(store), borrower_id)


def changeable(store: Store, cluster_id: str) -> Cluster:
    """A cluster that can be updated, by its id: of any kind but the primary. Raises NotFound."""
    return rows.cluster(cluster_row(store, cluster_id))


def check_parent(store: Store, parent_id: str) -> Row | None:
    """The row of a cluster that may become a parent; None for the primary."""
    if parent_id == PRIMARY:
        return None
    row = cluster_row(store, parent_id)
    if not row["divisible"]:
        problem = f"{cluster_text(parent_id)} is indivisible and holds no clusters"
        raise refuse(param("parent"), problem, "choose the primary or a divisible cluster")
    if row["state"] == REMOVING:
        raise Conflict(f"cluster {cluster_text(parent_id)} is being removed", fix="choose another parent")
    if row["state"] == BOOKED:
        raise not_open(rows.cluster(row))
    if row["kind"] in (JOB, SUB) and not jobs.is_running(store, int(row["job_id"])):
        raise Conflict(f"the job of cluster {cluster_text(parent_id)} is over", fix="choose another parent")
    return row


def check_update(old: Cluster, change: ClusterChange, revision: int | None = None) -> None:
    """Refuse a stale revision, a change of ``divisible``, and a change between whole nodes and slices."""
    check_revision(old.cluster_id, old.revision, revision)
    if change.divisible is not None and change.divisible != old.divisible:
        raise Conflict(
            f"The requested attributes are incompatible with virtual cluster {old.cluster_id}. expect:"
            f" ({str(old.divisible).lower()}), actual: ({str(change.divisible).lower()}).",
            fix="a cluster keeps its kind; make another one",
        )
    if replace(change, divisible=None) == ClusterChange():
        raise BadSpec(
            "nothing to update",
            fix=f"give {param('replica_sets')}, {param('spec')}=JSON, a limit or a setting",
        )
    if change.spec is not None:
        if old.state == BOOKED:
            raise not_open(old)
        _check_form(old, change.spec)


def not_open(cluster: Cluster) -> Conflict:
    """The refusal of what a cluster cannot do before its booking begins."""
    begin_ns = 0 if cluster.booking is None else cluster.booking.begin_ns
    return Conflict(
        f"{opens_at(cluster.cluster_id, begin_ns)}, and has no resources before",
        fix=f"wait for that, or cancel it with `vctl vc delete {cluster.cluster_id}` and book again",
    )


def _check_form(old: Cluster, spec: ClusterSpec) -> None:
    """Refuse a change from whole nodes to slices, or back. A cluster inside a job may have both."""
    if of_whole_nodes(spec) and not of_whole_nodes(old.spec):
        raise Conflict(
            f"{cluster_text(old.cluster_id)} was made from a resource spec and cannot change to replica sets",
            fix=f"give {param('spec')}=JSON",
        )
    if old.kind == LOGICAL and old.spec.replica_sets and not of_whole_nodes(spec):
        raise Conflict(
            f"{cluster_text(old.cluster_id)} was made from replica sets and cannot change to a resource spec",
            fix=f"give {param('replica_sets')}",
        )


def common_first(old: ClusterSpec, new: ClusterSpec) -> ClusterSpec:
    """The new spec with unchanged groups first, so that their virtual nodes keep their ranks."""
    common, fresh = common_groups(old, new)
    return replace(new, groups=common + fresh)


def common_groups(old: ClusterSpec, new: ClusterSpec) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """The groups of both specs, in the old order, and the groups of only the new spec."""
    fresh, common = list(new.groups), []
    for group in old.groups:
        if group in fresh:
            fresh.remove(group)
            common.append(group)
    return tuple(common), tuple(fresh)


def _ledger(store: Store, cluster: Cluster, old: ClusterSpec, ledger: Ledger | None) -> Ledger:
    """A ledger that contains the cluster in its new state; it has only a part of the tree if that is enough.

    A part is enough if whole nodes move or slices are given back, and for more slices if these have a place in it.
    But preemptions may reserve resources, and idle loans may have to go home: both may be in any cluster.
    """
    if ledger is None and not preemptions.nomination_rows(store):
        is_whole = of_whole_nodes(cluster.spec)
        part: Ledger | None = load_for_exchange(store, cluster, cluster.spec.replica_sets if is_whole else {})
        assert part is not None
        may_refuse = not leases.exist(store)
        if not is_whole and _needs_more(part, cluster, old):
            part, may_refuse = load_for_pieces(store, cluster), False
        if part is not None and (may_refuse or _change(part.copy(), cluster, old, [], {}) is None):
            return part
    if ledger is None:
        ledger = feasible.whole_tree(store)
    ledger.put_cluster(cluster)
    return ledger


def _needs_more(ledger: Ledger, cluster: Cluster, old: ClusterSpec) -> bool:
    """Whether the new spec of a cluster of slices needs resources beyond those that the cluster has."""
    has = rs.total(part.allocation.amounts for part in flexible_parts(ledger, cluster.cluster_id))
    _, fresh = common_groups(old, cluster.spec)
    whole = cluster.spec.replica_sets != old.replica_sets
    return (
        whole or bool(fresh) or any(amount > has.get(n, 0) for n, amount in cluster.spec.flexible_min.items())
    )


def fulfil(store: Store, ledger: Ledger, cluster: Cluster, old: ClusterSpec) -> None:
    """Change the virtual nodes of a cluster to match its spec, and emit the difference. Raises if that is
    impossible.

    Resources that are reserved by preemptions are not free for the cluster, as in a round of the scheduler. What
    others have borrowed and do not use goes home if the change needs it.
    """
    before, borrowed = {v: ledger.vnodes[v] for v in ledger.members[cluster.cluster_id]}, dict(ledger.leases)
    nominations = preemptions.nominations(store)
    reservations = Nominations(ledger, nominations)
    growth: list[Grow] = []
    lent = leases.lent(store, cluster)
    moves = _loosened(ledger, cluster, old, lent)
    home = (step.gained for move in moves for step in move if step.after.cluster_id == cluster.cluster_id)
    refusal = _change(ledger, cluster, old, growth, rs.subtract(lent, rs.total(home)))
    if refusal is not None:
        reserved_for = _reserved_for(store, cluster, old, nominations) if nominations else []
        if isinstance(refusal, NodeShortage):
            raise _short(refusal, reserved_for)
        raise (
            _reserved(cluster, refusal, reserved_for)
            if reserved_for
            else _refused(store, ledger, cluster, refusal)
        )
    reservations.close()
    if returns := put_back(ledger, moves, growth):
        for change in (rearranged(returns), *returned(borrowed, returns)):
            store.emit(change)
    changed = _difference(ledger, cluster.cluster_id, before, growth)
    if changed.removed or changed.placed:
        store.emit(changed)
    for lease in granted(ledger, growth, loans_of(growth), store.clock(), store.next_lease):
        store.emit(lease)
        ledger.put_lease(lease.lease)
    if not of_whole_nodes(cluster.spec):
        settle_leases(store, ledger, cluster.cluster_id)


def _loosened(ledger: Ledger, cluster: Cluster, old: ClusterSpec, lent: Amounts) -> list[Move]:
    """Let idle loans go home in the ledger, if a change has too little without them; returns the moves."""
    if not is_loose(ledger):
        return []
    if not isinstance(_change(ledger.copy(), cluster, old, [], lent), NodeShortage | Unplaced):
        return []
    parent_id = cluster.parent_id or PRIMARY
    keep = {cluster.cluster_id, *growing(ledger, parent_id)}
    return recall(ledger, level_above(ledger, parent_id), keep)


def settle_leases(store: Store, ledger: Ledger, cluster_id: str) -> None:
    """Change the leases of a cluster after its minimum or its virtual nodes changed; inside a transaction."""
    entry = leases.flexible_entry(store, cluster_id)
    for change in leases_settled(ledger, cluster_id, entry, store.clock(), store.next_lease):
        store.emit(change)
        ledger.put_lease(change.lease)


def _difference(
    ledger: Ledger, cluster_id: str, before: Mapping[str, VNode], growth: Sequence[Grow]
) -> VNodesChanged:
    """What changed: virtual nodes of the cluster itself, and those of others that grew for it."""
    own = [ledger.vnodes[one] for one in ledger.members[cluster_id]]
    removed = tuple(vnode_id for vnode_id in before if vnode_id not in ledger.vnodes)
    grown = (step.after for step in growth if step.after.cluster_id != cluster_id)
    return VNodesChanged(removed, (*grown, *(one for one in own if before.get(one.vnode_id) != one)))


def _change(
    ledger: Ledger, cluster: Cluster, old: ClusterSpec, growth: list[Grow], lent: Amounts
) -> NodeShortage | Unplaced | InUse | None:
    """Change the virtual nodes of the cluster in the ledger; after a refusal the ledger must be dropped.

    ``lent``: what others have borrowed from it.
    """
    if not of_whole_nodes(cluster.spec):
        return reshape(ledger, cluster.cluster_id, old, cluster.spec, growth, lent)
    assert cluster.parent_id is not None
    answer = exchange(ledger, cluster.parent_id, cluster.cluster_id, cluster.spec.replica_sets)
    if isinstance(answer, NodeShortage):
        return answer
    for vnode in answer.leave:
        ledger.release(vnode.vnode_id)
    join(ledger, cluster.cluster_id, answer.join)
    return None


def _reserved_for(
    store: Store, cluster: Cluster, old: ClusterSpec, nominations: Sequence[Nomination]
) -> list[str]:
    """The ids of the jobs whose reserved resources block a change: those that alone block it, else all.

    Empty if the change would fail without these reservations, too.
    """
    ledger, lent = table.load_ledger(store), leases.lent(store, cluster)
    ledger.put_cluster(cluster)

    def works(others: Sequence[Nomination]) -> bool:
        trial = ledger.copy()
        Nominations(trial, others)
        return _change(trial, cluster, old, [], lent) is None

    if not works([]):
        return []
    alone = [
        nomination
        for nomination in nominations[:MOST_NAMED]
        if works([other for other in nominations if other != nomination])
    ]
    return [nomination.submission_id for nomination in alone or nominations]


def _short(answer: NodeShortage, reserved_for: Sequence[str]) -> Conflict:
    verb, what = ("add to", "add") if answer.adding else ("remove from", "remove")
    beside = (
        f"; not counting the nodes that are reserved for {listed(reserved_for, MOST_NAMED)}"
        if reserved_for
        else ""
    )
    return Conflict(
        _SHORT.format(verb=verb, what=what),
        fix=f"at most: {rows.dumps(dict(answer.recommend))}{beside}",
        details={"replicaSetsToRecommend": dict(answer.recommend), **_named(reserved_for)},
    )


def _reserved(cluster: Cluster, answer: Unplaced | InUse, reserved_for: Sequence[str]) -> Conflict:
    """The refusal of a change that lacks only resources that preemptions reserve."""
    winners = listed(reserved_for, MOST_NAMED)
    problem = (
        f"virtual node {cluster_text(answer.vnode.vnode_id)} on {answer.vnode.node_id} is reserved for {winners}"
        if isinstance(answer, InUse)
        else f"not enough free resources for cluster {cluster_text(cluster.cluster_id)} now: the resources that it"
        f" needs are reserved for {winners}, which preempts other jobs"
    )
    fix = f"wait until that has started; see `vctl why {reserved_for[0]}`"
    return Conflict(problem, fix=fix, details=_named(reserved_for))


def _named(reserved_for: Sequence[str]) -> dict[str, list[str]]:
    return {"kept_for": list(reserved_for)} if reserved_for else {}


def _refused(store: Store, ledger: Ledger, cluster: Cluster, answer: Unplaced | InUse) -> VctlError:
    assert cluster.parent_id is not None
    if isinstance(answer, InUse):
        return Conflict(
            f"virtual node {cluster_text(answer.vnode.vnode_id)} on {answer.vnode.node_id} is in use and cannot be"
            " taken away",
            fix="stop what uses it, or keep its group in the spec",
        )
    # a parent that may grow is no limit; the clusters above it are
    feasible.check_maximum(
        store,
        cluster.parent_id,
        feasible.requested(cluster.spec, {}),
        f"cluster {cluster_text(cluster.cluster_id)} can never have these resources",
    )
    feasible.add_possible(store, ledger)  # the ledger is dropped with the transaction
    never = ever(ledger, cluster.parent_id, cluster.spec, {})
    if never is not None:
        return Infeasible(
            f"cluster {cluster_text(cluster.cluster_id)} exceeds the capacity of"
            f" {cluster_text(cluster.parent_id)}: {never.capacity}",
            fix=feasible.fix_for(store, feasible.judge_of(store, cluster.parent_id), never),
            details=feasible.numbers_of(never, "largest"),
        )
    return Conflict(
        f"not enough free resources for cluster {cluster_text(cluster.cluster_id)} now: {answer.message}",
        fix="free some resources first; `vctl status` shows who holds them",
        details=feasible.numbers_of(answer, "have"),
    )
