"""Looking at objects: their documented form, lists, and the bytes they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vctl.core.clusters import PRIMARY
from vctl.errors import BadSpec, NotFound
from vctl.ops import forms
from vctl.ops import jobs as job_ops
from vctl.ops.filters import choose
from vctl.runtime import objects as files
from vctl.spec.ids import JOB_MARK
from vctl.store import clusters
from vctl.store import objects as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import ObjectForm


def list_objects(
    store: Store, *, filters: Sequence[str] = (), limit: int | None = None, job: str | None = None
) -> tuple[list[ObjectForm], int]:
    """Objects, by job and name, and how many there are without the limit; of one job when asked."""
    where, values = "1", []
    if job is not None:
        where, values = "o.job_id = ?", [job_ops.resolve(store, job)]
    with store.snapshot():
        found = choose(_forms(store, table.listed(store, where, values)), filters, "objects")
    return (found if limit is None else found[:limit]), len(found)


def get_object(store: Store, ref: str, *, job: str | None = None) -> ObjectForm:
    """One object, by ``JOB/NAME``, or by its name where that is enough. ``job`` is looked at first."""
    owner, slash, name = ref.rpartition("/")
    with store.snapshot():
        if slash:
            found = _forms(
                store,
                table.listed(store, "o.job_id = ? AND o.name = ?", (job_ops.resolve(store, owner), name)),
            )
        else:
            found = _forms(store, table.listed(store, "o.name = ?", (name,)))
            found = [one for one in found if one["submission_id"] == job] or found
    if len(found) > 1:
        shown = ", ".join(str(one["object_id"]) for one in found[:5])
        raise BadSpec(f"several jobs have an object {name!r}: {shown}", fix="write JOB/NAME")
    if not found:
        raise NotFound(f"there is no object {ref!r}", fix="see `vctl list objects`", details={"object": ref})
    return found[0]


def _forms(store: Store, copies: Sequence[Row]) -> list[ObjectForm]:
    """Copies put together to objects; the first copy of each is where it was made."""
    found: dict[tuple[int, str], ObjectForm] = {}
    for row in copies:
        one = found.get((row["job_id"], row["name"]))
        if one is None:
            place = files.place_of(store.home, row["job_id"], row["attempt"], row["node_id"])
            found[row["job_id"], row["name"]] = {
                "object_id": f"{row['submission_id']}/{row['name']}",
                "name": row["name"],
                "job_id": row["job_id"],
                "submission_id": row["submission_id"],
                "cluster_id": row["cluster_id"],
                "task_id": row["task_id"],
                "node_id": row["node_id"],
                "node_ids": [row["node_id"]],
                "size": row["size"],
                "created_at": forms.timestamp(row["created_at"]),
                "attempt": row["attempt"],
                "path": str(place / row["name"]),
            }
        else:
            one["node_ids"].append(row["node_id"])
    return list(found.values())


def used_bytes(store: Store, cluster_id: str) -> int:
    """Bytes of the objects of a cluster and of those below it, every copy counted."""
    sizes = table.sizes(store)
    if cluster_id == PRIMARY or not sizes:
        return sum(row["size"] for row in sizes)
    below = [cluster_id, *clusters.subtree(store, cluster_id)]
    return sum(
        row["size"]
        for row in sizes
        # what a sub-cluster left stays with the job when that cluster is gone; ids carry those of their parents
        if any(row["cluster_id"] == one or row["cluster_id"].startswith(one + JOB_MARK) for one in below)
    )
