"""``vctl list|get|summary RES``, as in Ray's state API: one entry in a table for each kind of object.

A list shows the objects in one cluster and below it: the named cluster, else the cluster in which the command
runs, else the primary.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from vctl import cli, operations, ops, spec
from vctl.cli.call import Call
from vctl.cli.common import ALL, CHOICES, CHOSEN_BY, LISTS, READS, InCluster
from vctl.cli.declare import command
from vctl.cli.output import Answer, Data, listing, single
from vctl.core.clusters import PRIMARY
from vctl.errors import BadSpec, NotFound
from vctl.spec.params import Arg, Opt

Items = tuple[Sequence[Data], int]
F = TypeVar("F", bound=Mapping[str, Any])


class ObjectKind(NamedTuple):
    """One kind of object.

    ``title``: the kind of its list. ``key``: the field with the id. ``counted``: the field that a summary
    counts. ``many`` and ``get`` read objects. ``form``: the documented form, if its name does not follow from
    ``title``.
    """

    title: str
    key: str
    counted: str
    many: Callable[[Call, str], Items]
    get: Callable[[Call, str], Data]
    form: str = ""


def _clusters(call: Call, cluster: str) -> Items:
    items = operations.clusters.list_clusters(call.backend, filters=call.filters, all_kinds=True)
    return _cut(call, _below(call, cluster, items, "cluster_id"))


def _vnodes(call: Call, cluster: str) -> Items:
    items = _below(call, cluster, operations.views.vnodes(call.backend), "cluster_id")
    return _cut(call, ops.forms.choose(items, call.filters, "VNodeForm"))


def _nodes(call: Call, cluster: str) -> Items:
    items: Sequence[Data] = operations.nodes.list_nodes(call.backend, filters=call.filters)
    if cluster != PRIMARY:  # the machines on which it has a part
        own = {node["NodeName"] for node in operations.views.nodes(call.backend, cluster)}
        items = [item for item in items if item["node_id"] in own]
    return _cut(call, items)


def _jobs(call: Call, cluster: str) -> Items:
    by_turn = call.for_people and not call.sort
    return operations.jobs.list_jobs(
        call.backend, cluster=cluster, filters=call.filters, limit=call.limit, by_turn=by_turn
    )


def _tasks(call: Call, cluster: str) -> Items:
    job = call.current_job  # inside a job, only its own
    return operations.tasks.list_tasks(
        call.backend, cluster=cluster, filters=call.filters, limit=call.limit, job=job
    )


def _objects(call: Call, cluster: str) -> Items:
    job = call.current_job  # inside a job, only its own
    items, _ = operations.tasks.list_objects(call.backend, filters=call.filters, job=job)
    return _cut(call, _below(call, cluster, items, "cluster_id"))


def _leases(call: Call, cluster: str) -> Items:
    items = _below(call, cluster, operations.views.list_leases(call.backend), "borrower_id", "lender_id")
    return _cut(call, ops.forms.choose(items, call.filters, "LeaseForm"))


def _vnode(call: Call, ref: str) -> Data:
    vnode_id = spec.ids.full_cluster_id(ref)  # tables show the alias
    for vnode in operations.views.vnodes(call.backend):
        if vnode["vnode_id"] == vnode_id:
            return vnode
    raise NotFound(f"there is no virtual node {ref!r}", fix="see `vctl list vnodes`, and `vctl list nodes`")


def _lease(call: Call, ref: str) -> Data:
    for lease in operations.views.list_leases(call.backend):
        if str(lease["lease_id"]) == ref:
            return lease
    raise NotFound(f"there is no lease {ref!r}", fix="see `vctl lease list`")


def _event(call: Call, ref: str) -> Data:
    seq = int(ref) if ref.isdecimal() else 0
    if 0 < seq < 2**62:
        items, _ = operations.views.list_events(call.backend, since=seq - 1, filters=[f"seq={seq}"], limit=1)
        if items:
            return items[0]
    raise NotFound(f"there is no event {ref!r}", fix="see `vctl events`")


def _events(call: Call, cluster: str) -> Items:
    return operations.views.list_events(call.backend, cluster=cluster, filters=call.filters, limit=call.limit)


def _cut(call: Call, items: Sequence[Data]) -> Items:
    return call.first(items), len(items)


KINDS = {
    "clusters": ObjectKind(
        "ClusterList", "cluster_id", "kind", _clusters,
        lambda call, ref: operations.clusters.get_cluster(call.backend, ref), "ListedCluster",
    ),
    "vnodes": ObjectKind("VNodeList", "vnode_id", "kind", _vnodes, _vnode),
    "nodes": ObjectKind(
        "NodeList", "node_id", "state", _nodes, lambda call, ref: operations.nodes.get_node(call.backend, ref)
    ),
    "jobs": ObjectKind(
        "JobList", "submission_id", "status", _jobs, lambda call, ref: operations.jobs.get_job(call.backend, ref)
    ),
    "tasks": ObjectKind(
        "TaskList", "task_id", "state", _tasks, lambda call, ref: operations.tasks.get_task(call.backend, ref)
    ),
    "objects": ObjectKind(
        "ObjectList", "object_id", "node_id", _objects,
        lambda call, ref: operations.tasks.get_object(call.backend, ref, job=call.current_job),
    ),
    "leases": ObjectKind("LeaseList", "lease_id", "borrower_id", _leases, _lease),
    "events": ObjectKind("EventList", "seq", "kind", _events, _event),
}  # fmt: skip


def listed(call: Call, kind: str, cluster: str, none: str, *, detail: bool = False) -> Answer:
    """The objects of a kind in a cluster and below it; in tables all their fields, or the usual ones."""
    call.choose(**CHOSEN_BY[kind])
    shape = KINDS[kind]
    items, total = shape.many(call, cluster)
    shown = getattr(cli.columns, kind.upper())
    if detail and items:
        shown = [cli.arrange.field(name) for name in items[0]]
    return listing(shape.title, items, total, shape.key, shown, none, shape.form)


Resource = Annotated[str, Arg("RES", choices=tuple(KINDS), help=f"One of {', '.join(KINDS)}.")]


@command(
    "list",
    "vctl list jobs --filter status=RUNNING",
    "vctl list clusters --detail -o json",
    "vctl list objects --filter node_id=n1",
    "vctl list jobs --cluster team-a",
    common=(ALL, *CHOICES, *LISTS),
)
def list_(
    call: Call,
    res: Resource,
    cluster: InCluster = None,
    detail: Annotated[bool, Opt("--detail", help="Every field of every object.")] = False,
) -> Answer:
    """List objects of one kind, finished ones too."""
    return listed(call, res, call.existing_cluster(cluster), f"no {res}", detail=detail)


@command(
    "get",
    "vctl get clusters team-a",
    "vctl get jobs last -o json",
    "vctl get objects shard-0 -o json",
    common=READS,
)
def get(
    call: Call,
    res: Resource,
    ref: Annotated[str | None, Arg("ID", help="Id of the object.", complete="objects")] = None,
) -> Answer:
    """Show one object."""
    if ref is None:
        raise BadSpec(f"vctl get {res} needs an id", fix=f"name one from `vctl list {res}`")
    kind = KINDS[res]
    data = kind.get(call, ref)
    return single(data, data.get(kind.key, ref))


@command("summary", "vctl summary jobs", "vctl summary nodes -o json", common=READS)
def summary(call: Call, res: Resource, cluster: InCluster = None) -> Answer:
    """Count the objects of one kind."""
    kind = KINDS[res]
    call.unlimited()
    top = call.existing_cluster(cluster)
    if top == PRIMARY and res in ("jobs", "events"):  # there may be very many
        counts = operations.views.summary(call.backend, res)
    else:
        counts = dict(Counter(str(item[kind.counted]) for item in kind.many(call, top)[0]))
    total = sum(counts.values())
    data = {"kind": res, "by": kind.counted, "counts": counts, "total": total}
    rows = [(word, str(count)) for word, count in sorted(counts.items())]
    answer = single(data, res, lambda screen: screen.pairs([*rows, ("total", str(total))]))
    answer.columns = (kind.counted, "count")
    answer.rows = [{kind.counted: word, "count": count} for word, count in counts.items()]
    return answer


@command("lease list", "vctl lease list", "vctl lease list --filter borrower_id=team-a -o json", common=LISTS)
def leases(call: Call, cluster: InCluster = None) -> Answer:
    """List the resources that clusters borrow above their minimum, oldest first."""
    return listed(call, "leases", call.existing_cluster(cluster), "nothing has been borrowed")


@command("demand", "vctl demand", "vctl demand --filter cluster_id=team-a -o json", common=LISTS)
def demand(call: Call, cluster: InCluster = None) -> Answer:
    """Show the resource requests that wait, equal ones of jobs and tasks together."""
    items = ops.forms.choose(operations.views.demand(call.backend), call.filters, "DemandForm")
    items = _below(call, call.existing_cluster(cluster), items, "cluster_id")
    return listing(
        "DemandList", call.first(items), len(items), "cluster_id", cli.columns.DEMAND, "nothing waits"
    )


def _below(call: Call, top: str, items: Sequence[F], *names: str) -> list[F]:
    """The items with the cluster, or a cluster below it, in one of the named fields."""
    if top == PRIMARY:
        return list(items)
    is_in = ops.scope.below(top, operations.clusters.list_clusters(call.backend, all_kinds=True))
    return [item for item in items if any(item[name] and is_in(str(item[name])) for name in names)]
