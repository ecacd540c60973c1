"""Clusters for reading: their documented JSON form, lists and the tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from vctl.core import resources as rs
from vctl.core.clusters import BOOKED, LOGICAL, PRIMARY, PRIMARY_ALIAS, Booking, ClusterSpec
from vctl.core.nodes import ALIVE
from vctl.core.wording import cluster_text
from vctl.errors import BadSpec, Conflict, NotFound, param
from vctl.ops import forms
from vctl.ops.forms import parse_filters
from vctl.spec.ids import full_cluster_id
from vctl.store import clusters as table
from vctl.store import folded, job_views, nodes, rows, settings, tasks
from vctl.store.gates import opens
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.ops.capacity import Capacity
    from vctl.spec.documents import (
        ClusterAccess,
        ClusterContents,
        ClusterForm,
        ClusterSettings,
        ClusterTree,
        ListedCluster,
        NotDue,
    )

NAMED = 5
"""The most users of a cluster that the refusal of its deletion names; the details of the error have all."""
FILTER_KEYS = ("cluster_id", "parent_id", "kind", "divisible", "state")


class NoUserCluster(Conflict):
    """The user has no cluster yet in one with a template, that of the row (user_clusters.py)."""

    def __init__(self, above: Row, name: str) -> None:
        fix = f"submit a job to {above['cluster_id']}: that makes it"
        super().__init__(f"there is no cluster {name} yet", fix=fix)
        self.above, self.name = above, name


def resolve(cluster_id: str | None) -> str:
    """The full id of a cluster, from an id or an alias; the primary if none is given."""
    return full_cluster_id(cluster_id or PRIMARY)


def cluster_row(store: Store, cluster_id: str, kind: str = "virtual") -> Row:
    """The row of a cluster; NotFound names the nearest id."""
    row = table.get(store, full_cluster_id(cluster_id))
    if row is None:
        raise no_cluster(cluster_id, table.all_rows(store), kind)
    return row


def no_cluster(cluster_id: str, known: Iterable[Row], kind: str = "virtual") -> NotFound:
    """The error that names an unknown cluster, in the words of ant-ray's management API."""
    return NotFound(
        f"The {kind} cluster {cluster_id} does not exist.",
        fix=nearest_id(cluster_id, known),
        details={"cluster_id": cluster_id},
    )


def check_revision(cluster_id: str, latest: int, given: int | None) -> None:
    """Refuse an update that was made for an earlier revision than the latest one."""
    if given is not None and given != latest:
        raise Conflict(
            f"The revision ({given}) is expired, the latest revision of the virtual cluster {cluster_id} is {latest}",
            fix="look at it again, then repeat the update with its revision",
            details={"revision": str(latest)},
        )


def logical_row(store: Store, cluster_id: str) -> Row:
    """The row of a logical cluster; the errors have the words of ant-ray's management API."""
    row = cluster_row(store, cluster_id, "logical")
    if row["kind"] != LOGICAL:
        raise BadSpec(
            f"{cluster_text(cluster_id)} is a {row['kind']} cluster",
            fix="stop its job; the cluster is removed with the job",
        )
    return row


def removable_row(store: Store, cluster_id: str) -> Row:
    """The row of a cluster of any kind but the primary; the errors have the words of ant-ray's management API."""
    parent_id, mark, _ = cluster_id.rpartition("##")
    if not mark:
        return logical_row(store, cluster_id)
    row = table.get(store, cluster_id)
    if row is not None:
        return row
    failed, about = "Failed to remove virtual cluster, parent cluster", f"virtual cluster id: {cluster_id}"
    parent = None if parent_id == PRIMARY else table.get(store, parent_id)
    if parent is None and parent_id != PRIMARY:
        raise NotFound(f"{failed} not exists, {about}", fix=nearest_id(cluster_id, table.all_rows(store)))
    if parent is not None and not parent["divisible"]:
        raise BadSpec(
            f"{failed} is not divisible, {about}",
            fix=f"jobs of {parent_id} share it; `vctl job stop` ends one",
        )
    raise no_cluster(cluster_id, table.all_rows(store), "job")


def nearest_id(cluster_id: str, known: Iterable[Row]) -> str:
    """The fix for an unknown cluster id: the nearest known id, if there is a similar one."""
    from vctl.spec.fields import nearest

    guess = nearest(cluster_id, [PRIMARY_ALIAS, *(row["cluster_id"] for row in known)])
    return f"did you mean {guess}?" if guess else "see `vctl vc list`"


def existing(store: Store, cluster_id: str | None) -> str:
    """Like ``resolve``. Raises NotFound if the cluster does not exist."""
    if (full_id := resolve(cluster_id)) != PRIMARY:
        cluster_row(store, full_id)
    return full_id


def get_cluster(store: Store, cluster_id: str) -> ClusterForm:
    """One cluster, the primary included."""
    with store.snapshot():
        if resolve(cluster_id) == PRIMARY:
            return _primary_form(store)
        return cluster_form(store, cluster_row(store, resolve(cluster_id)))


def list_clusters(
    store: Store, *, filters: Sequence[str] = (), all_kinds: bool = True
) -> list[ListedCluster]:
    """Clusters, parents first; ``all_kinds`` adds the primary and the clusters of jobs."""
    from vctl.ops.capacity import capacities

    parsed = parse_filters(filters, FILTER_KEYS)
    with store.snapshot():
        listed = [_primary_form(store)] if all_kinds else []
        rows_ = table.parents_first(table.all_rows(store))
        listed += [cluster_form(store, row) for row in rows_ if all_kinds or row["kind"] == LOGICAL]
        sums = capacities(store)
    return [{**form, **sums[form["cluster_id"]].form()} for form in listed if forms.matches(form, parsed)]


def tree(store: Store, cluster_id: str | None = None) -> ClusterTree:
    """A cluster with everything below it, nested under ``tree``."""
    from vctl.ops.capacity import capacities

    with store.snapshot():
        top = existing(store, cluster_id)
        numbers = {row["cluster_id"]: row["job_id"] for row in table.all_rows(store)}
        return _tree(store, top, capacities(store), job_views.counts_by_cluster(store), numbers)


def _tree(
    store: Store,
    cluster_id: str,
    sums: Mapping[str, Capacity],
    jobs: Mapping[str, Mapping[str, int]],
    numbers: Mapping[str, int | None],
) -> ClusterTree:
    form = get_cluster(store, cluster_id)
    below = [_tree(store, child, sums, jobs, numbers) for child in form["children"]]
    counts = {"pending": 0, "running": 0, **jobs.get(cluster_id, {})}
    return {
        **form,
        **sums[cluster_id].form(),
        "job_id": numbers.get(cluster_id),
        "job_counts": counts,
        "tree": below,
    }


def _primary_form(store: Store) -> ClusterForm:
    instances = _instances(nodes.owned_by_primary(store))
    return {
        "cluster_id": PRIMARY,
        "parent_id": None,
        "kind": "primary",
        "divisible": True,
        "revision": settings.primary_revision(store),
        "spec": {},
        "replica_sets": dict(Counter(node["template_id"] for node in instances.values())),
        "node_instances": instances,
        **_contents(store, PRIMARY, None),
        "state": "ACTIVE",
        **_settings(store, PRIMARY, {}),
    }


def cluster_form(store: Store, row: Row) -> ClusterForm:
    """A cluster in its documented form."""
    from vctl.spec.cluster_spec import spec_to_document

    cluster_id, spec = row["cluster_id"], rows.spec(row["spec"])
    node_rows = (nodes.get(store, node_id) for node_id in table.node_ids_of(store, cluster_id))
    return {
        "cluster_id": cluster_id,
        "parent_id": row["parent_id"],
        "kind": row["kind"],
        "divisible": bool(row["divisible"]),
        "revision": row["revision"],
        "spec": spec_to_document(spec),
        "replica_sets": dict(spec.replica_sets),
        "node_instances": _instances(node for node in node_rows if node is not None),
        **_contents(store, cluster_id, spec),
        "state": row["state"],
        **_settings(store, cluster_id, settings.of(row["settings"])),
    }


def _instances(node_rows: Iterable[Row]) -> dict[str, dict[str, str]]:
    return {
        node["node_id"]: {"hostname": node["hostname"], "template_id": node["template_id"]}
        for node in node_rows
    }


def _settings(store: Store, cluster_id: str, stored: Mapping[str, Any]) -> ClusterSettings:
    from vctl.spec.cluster_spec import spec_to_document
    from vctl.spec.queue_settings import queue_document

    borrow, template = stored.get(settings.BORROW), stored.get(settings.USER_TEMPLATE)
    booked = rows.booking(stored[rows.BOOKING]) if rows.BOOKING in stored else None
    message = stored.get(settings.STOPPED, {}).get("message")
    return {
        "message": _shortage(store, cluster_id, booked)
        if booked is not None and message is None
        else message,
        "begin_at": None if booked is None else forms.timestamp(booked.begin_ns),
        "end_at": None if booked is None else forms.timestamp(booked.end_ns),
        "borrow_limit": None if borrow is None else forms.amounts(borrow),
        "lending_limit": forms.amounts(stored.get(settings.LENDING, {})),
        "private": stored.get(settings.PRIVATE, []),
        "user_template": None if template is None else spec_to_document(rows.spec(template)),
        "of_user": stored.get(settings.OF_USER),
        "queue": queue_document(settings.queue_of(store, cluster_id)),
        **_access(store, cluster_id, stored),
    }


def _access(store: Store, cluster_id: str, stored: Mapping[str, Any]) -> ClusterAccess:
    if cluster_id != PRIMARY and settings.ACCESS not in stored:
        return {"submitters": [], "admins": [], "private_queue": None}
    said = settings.access_of(store, cluster_id)
    return {
        "submitters": list(said.submitters),
        "admins": list(said.admins),
        "private_queue": said.private_queue,
    }


def _shortage(store: Store, cluster_id: str, booking: Booking) -> str | None:
    """Why a booked cluster does not open at its begin, as far as it is known now."""
    row = table.get(store, cluster_id)
    if row is None or row["state"] != BOOKED:
        return None
    states = {part.node_id: nodes.get(store, part.node_id) for part in booking.parts}
    lost = [f"{name} is {'gone' if one is None else one['state']}" for name, one in states.items()
            if one is None or one["state"] != ALIVE]  # fmt: skip
    if not lost and booking.begin_ns > store.clock():
        return None
    late = "it opens as soon as all of its resources are free"
    return f"{', '.join(lost)}: {late}" if lost else f"it is late: {late}"


def _contents(store: Store, cluster_id: str, spec: ClusterSpec | None) -> ClusterContents:
    """The resources, the children and the jobs of a cluster; ``spec`` is None for the primary."""
    from vctl.ops.capacity import totals_of  # who only looks up ids needs no sums

    total, available = totals_of(store, cluster_id)
    maximum: dict[str, float] | None = None
    if spec is not None and not (spec.flexible and spec.flexible_max is None):
        fixed = rs.total(node.resources for group in spec.groups for node in group.nodes)
        maximum = forms.amounts(rs.add(fixed, spec.flexible_max or {}) if spec.flexible else total)
    return {
        "total_resources": forms.amounts(total),
        "available_resources": forms.amounts(available),
        "max_resources": maximum,
        "children": [child["cluster_id"] for child in table.children(store, cluster_id)],
        "jobs": [*chain(*map(folded.names, reversed(job_views.unfinished_in(store, cluster_id))))],
    }


def in_use(cluster_id: str, blockers: list[str], command: str = "") -> Conflict:
    """The refusal to delete a cluster; ``blockers`` are its users, by name.

    ``command``: the command that has the options of the fix, if it is another one than that which was refused.
    """
    drain, force = param("drain"), param("force")
    if command:
        drain, force = f"`{command} --drain`", f"`{command} --force`"
    more = f" and {len(blockers) - NAMED} more" if len(blockers) > NAMED else ""
    return Conflict(
        f"The virtual cluster {cluster_id} can not be removed as it is still in use."
        f" Its users: {', '.join(blockers[:NAMED])}{more}.",
        fix=f"{drain} waits for them, {force} stops them",
        details={"blockers": blockers},
    )


def blockers_of(store: Store, cluster_id: str) -> list[str]:
    """The users of a cluster, by name: clusters and jobs in it, and tasks that outlived their jobs."""
    unfinished = job_views.unfinished_in(store, cluster_id)
    of_jobs = {row["job_id"] for row in unfinished}
    children = [row for row in table.children(store, cluster_id) if row["job_id"] not in of_jobs]
    of_ended = [row["cluster_id"] for row in children if row["kind"] != LOGICAL]
    alone = [
        row
        for inside in (cluster_id, *of_ended)
        for row in tasks.unfinished_in(store, inside)
        if row["job_id"] not in of_jobs
    ]
    return [
        *(f"cluster {row['cluster_id']}" for row in children),
        *(f"job {name}" for row in unfinished for name in reversed([*folded.names(row)])),
        *(f"task {row['task_id']}" for row in alone),
    ]


def not_due(store: Store, cluster_id: str) -> list[NotDue]:
    """The jobs that wait in a cluster, or below it, and may not start yet, by number; members of an array as one."""
    from vctl.ops.reasons import Reasons

    names = rows.dumps([cluster_id, *table.subtree(store, cluster_id)])
    where = f"j.parent_cluster_id IN (SELECT value FROM json_each(?)) AND j.status = 'PENDING' AND {opens('j.')} > ?"
    reasons = Reasons(store)
    found: dict[tuple[object, ...], NotDue] = {}
    for row in reversed(job_views.matching(store, where, [names, store.clock()])):
        name, members, (reason, message) = row["submission_id"], row["members"], reasons.of(row)
        alike = found.get(key := (row["array_id"] or name, reason, message))
        if alike is not None or members > 1:
            name, members = row["array_id"], members + (0 if alike is None else alike["members"])
        found[key] = {
            "submission_id": name, "members": members, "state_reason": reason or "", "message": message or "",
        }  # fmt: skip
    return list(found.values())
