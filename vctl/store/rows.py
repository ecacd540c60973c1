"""Rows to core values and back; the only place that knows the JSON inside a column."""

from __future__ import annotations

from _sqlite3 import Row
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

from vctl.core import compact
from vctl.core.clusters import BookedPart, Booking, Cluster, ClusterSpec, FixedNode, Group, VNode
from vctl.core.fitting import fits
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.labels import NODE_ID, Condition
from vctl.core.leases import Lease
from vctl.core.nodes import Fence, Node
from vctl.core.queue_policy import DEFAULT, QueuePolicy, with_present_order
from vctl.core.resources import Allocation, Amounts
from vctl.core.tasks import PENDING_ARGS, Task

dumps, loads = compact.dumps, compact.loads
BORROW, LENDING, STOPPED, QUEUE = "borrow_limit", "lending_limit", "stopped", "queue"
ACCESS, PRIVATE, BOOKING = "access", "private", "booking"
USER_TEMPLATE, OF_USER = "user_template", "of_user"
"""The keys of the column ``settings`` of a cluster: limits, why it is stopped, how its queue is served, whose it is,
what its jobs have for themselves, for when it is booked, the template of clusters of users, whose of these it is."""
PRIMARY_QUEUE, PRIMARY_REVISION, PRIMARY_ACCESS = "primary_queue", "primary_revision", "primary_access"
"""The keys in ``meta`` of the settings of the primary cluster, which has no row of its own."""


def allocation(row: Row) -> Allocation:
    """The amounts, instances and cores columns of a node, vnode or run."""
    return allocation_of(row["amounts"], row["instances"], row["cores"])


@lru_cache(10_000)
def allocation_of(amounts: str, instances: str, cores: str = "[]") -> Allocation:
    """The allocation of three columns; equal texts share one value, so that the ledger takes equal ones at once."""
    decoded = loads(amounts)
    if not isinstance(decoded, dict):
        raise ValueError(f"{decoded!r} are no amounts")
    shares = {n: {int(i): share for i, share in have.items()} for n, have in loads(instances).items()}
    return Allocation(decoded, shares, tuple(loads(cores)))


def sums(found: Iterable[Row]) -> dict[Any, dict[str, int]]:
    """Sums of amounts by the first columns; the last two of each row are amounts and how many times they occur."""
    totals: dict[Any, dict[str, int]] = {}
    for *key, amounts, count in found:
        total = totals.setdefault(key[0] if len(key) == 1 else tuple(key), {})
        for name, amount in loads(amounts or "{}").items():
            total[name] = total.get(name, 0) + amount * count
    return totals


def allocation_columns(value: Allocation) -> tuple[str, str, str]:
    """Amounts, instances, cores as column values."""
    instances = {n: {str(i): s for i, s in shares.items()} for n, shares in value.instances.items()}
    return dumps(dict(value.amounts)), dumps(instances), dumps(value.cores) if value.cores else "[]"


_texts: dict[int, tuple[ClusterSpec, str]] = {}
"""The ``id`` of a spec that the function ``spec`` has made -> that spec and its text."""


def spec_text(spec: ClusterSpec) -> str:
    """A cluster spec as a column value."""
    if (known := _texts.get(id(spec))) is not None:
        return known[1]
    return dumps(
        {
            "flexible": spec.flexible,
            "min": dict(spec.flexible_min),
            "max": None if spec.flexible_max is None else dict(spec.flexible_max),
            "replica_sets": dict(spec.replica_sets),
            "groups": [
                {
                    "policy": group.policy,
                    "nodes": [
                        {
                            "resources": dict(node.resources),
                            "labels": dict(node.labels),
                            "selector": [[c.key, c.operator, list(c.values)] for c in node.selector],
                        }
                        for node in group.nodes
                    ],
                }
                for group in spec.groups
            ],
        }
    )


_specs: dict[str, ClusterSpec] = {}


def spec(text: str) -> ClusterSpec:
    """The spec of a column; equal texts share one value (a queue has few distinct shapes)."""
    value = _specs.get(text)
    if value is None:
        if len(_specs) > 10_000:
            _specs.clear()
            _texts.clear()
        value = _specs[text] = _checked(_spec_of(loads(text)), ClusterSpec)
        _texts[id(value)] = value, text
    return value


def _checked(value: Any, kind: Any) -> Any:
    """The value, if it has the type ``kind``; raises ValueError otherwise. For texts that many rows share."""
    if not fits(value, kind):
        raise ValueError(f"{value!r} is of another type")
    return value


_entries: dict[str, Amounts] = {}


def entry(text: str) -> Amounts:
    """The request of an entrypoint, from its column; equal texts share one value."""
    value = _entries.get(text)
    if value is None:
        if len(_entries) > 10_000:
            _entries.clear()
        value = _entries[text] = _checked(loads(text), Amounts)
    return value


def _spec_of(data: Mapping[str, Any]) -> ClusterSpec:
    groups = tuple(
        Group(
            tuple(
                FixedNode(
                    n["resources"],
                    n["labels"],
                    tuple(Condition(k, op, tuple(v)) for k, op, v in n["selector"]),
                )
                for n in group["nodes"]
            ),
            group["policy"],
        )
        for group in data["groups"]
    )
    return ClusterSpec(data["min"], data["max"], groups, data["replica_sets"], data["flexible"])


def node(row: Row) -> Node:
    """A row of ``nodes``."""
    return Node(
        row["node_id"], row["template_id"], allocation(row), row["hostname"], loads(row["labels"]), row["source"],
        row["state"], row["boot_id"], bool(row["shrunk"]), row["reason"], row["author"], fences(row["fences"]),
    )  # fmt: skip


def fences(text: str) -> tuple[Fence, ...]:
    """The fences of a node, from their column."""
    return () if text == "[]" else _fences(text)


@lru_cache(256)
def _fences(text: str) -> tuple[Fence, ...]:
    return tuple(
        _checked(Fence(name, number, why, tuple(pids), *others), Fence)
        for name, number, why, pids, *others in loads(text)
    )


def fences_text(given: Iterable[Fence]) -> str:
    """The fences of a node as a column value."""
    return dumps([[f.name, f.number, f.why, list(f.pids), f.owner, f.memory, f.since, f.of] for f in given])


def cluster(row: Row) -> Cluster:
    """A row of ``clusters``; ``job`` is the submission's number as text."""
    job = None if row["job_id"] is None else str(int(row["job_id"]))
    limits = loads(row["settings"]) if row["settings"] != "{}" else {}
    return Cluster(
        row["cluster_id"], row["parent_id"], row["kind"], spec(row["spec"]), bool(row["divisible"]), row["revision"],
        row["state"], job, limits.get("borrow_limit"), limits.get("lending_limit", {}),
        queue_policy(limits.get("queue", {})), bool(row["detached"]), tuple(limits.get("private", ())),
        booking(limits[BOOKING]) if BOOKING in limits else None,
        spec(limits[USER_TEMPLATE]) if USER_TEMPLATE in limits else None, limits.get(OF_USER, ""),
    )  # fmt: skip


def booking(stored: Mapping[str, Any]) -> Booking:
    """The booking of a cluster, from its settings."""
    parts = tuple(
        BookedPart(
            part["in"], part["node"],
            Allocation(
                part["amounts"],
                {n: {int(i): share for i, share in shares.items()} for n, shares in part["instances"].items()},
            ),
            part["whole"],
        )
        for part in stored["parts"]
    )  # fmt: skip
    return Booking(stored["begin"], stored["end"], parts)


def booking_settings(booked: Booking | None) -> dict[str, Any] | None:
    """A booking as ``booking`` reads it."""
    if booked is None:
        return None
    return {
        "begin": booked.begin_ns,
        "end": booked.end_ns,
        "parts": [
            {
                "in": part.parent_vnode_id, "node": part.node_id, "whole": part.whole,
                "amounts": dict(part.allocation.amounts),
                "instances": {
                    name: {str(i): share for i, share in shares.items()}
                    for name, shares in part.allocation.instances.items()
                },
            }
            for part in booked.parts
        ],
    }  # fmt: skip


def queue_policy(given: Mapping[str, Any]) -> QueuePolicy:
    """The policy of a queue, from its settings that differ from the default."""
    return QueuePolicy(**with_present_order(given)) if given else DEFAULT


def vnode(row: Row) -> VNode:
    """A row of ``vnodes``."""
    return VNode(
        row["vnode_id"], row["cluster_id"], row["node_id"], row["parent_vnode_id"], row["kind"], allocation(row),
        {**loads(row["labels"]), NODE_ID: row["node_id"]}, bool(row["whole"]), row["rank"],
    )  # fmt: skip


def in_ns(seconds: float | None) -> int | None:
    """A duration of a column in nanoseconds."""
    return None if seconds is None else int(seconds * 1e9)


def running(row: Row) -> RunningJob:
    """A running row of ``jobs``, without the id of its first run; its time limit counts from its start."""
    limit_ns = in_ns(row["time_limit_s"])
    ends_at = None if limit_ns is None or row["started_at"] is None else row["started_at"] + limit_ns
    outcome = None if row["outcome"] is None else tuple(loads(row["outcome"]))
    return RunningJob(
        row["job_id"], row["parent_cluster_id"], row["cluster_id"], "", row["user"], ends_at, row["submission_id"],
        row["priority"], row["started_at"] or 0, row["attempt"], row["preemptions"], row["array_id"],
        row["array_index"], bool(row["per_node"]), row["master_port"], row["rules"], row["grace_s"], row["message"],
        row["stop_requested_at"], row["stop_reason"], row["stop_grace_s"], outcome, loads(row["resources"] or "{}"),
    )  # fmt: skip


PENDING = (
    "job_id", "submission_id", "parent_cluster_id", "shape", "spec", "entry", "priority", "held", "begin_at",
    "shares_parent", "per_node", "user", "submitted_at", "time_limit_s", "waits_for", "closed", "array_id", "attempt",
    "preemptions", "rules", "grace_s", "members", "step",
)  # fmt: skip
"""The columns of ``jobs`` that a scheduling decision needs."""
_pending_columns = itemgetter(*PENDING)


def pending(row: Row) -> PendingJob:
    """A pending row of ``jobs``."""
    return pending_of(_pending_columns(row))


def pending_of(values: tuple[Any, ...]) -> PendingJob:
    """A pending job from the values of the columns ``PENDING``: for many jobs, access by name is slow."""
    (
        job_id, submission_id, parent_id, shape, spec_text, entry_text, priority, held, begin_at, shares_parent,
        per_node, user, submitted_at, time_limit_s, waits_for, closed, array_id, attempt, preemptions, rules, grace_s,
        members, step,
    ) = values  # fmt: skip
    return PendingJob(
        job_id, submission_id, parent_id, shape, _specs.get(spec_text) or spec(spec_text), entry(entry_text),
        priority, bool(held), begin_at and int(begin_at), bool(shares_parent), bool(per_node), user, submitted_at,
        in_ns(time_limit_s), waits_for, bool(closed), array_id, attempt, preemptions,
        rules if rules != "{}" else "{}", grace_s, members, step,
    )  # fmt: skip


def task(row: Row, *, outlives: bool = False) -> Task:
    """A row of ``tasks`` that is not over."""
    for names in (row["inputs"], row["outputs"]):
        if names != "[]" and not all(isinstance(name, str) for name in loads(names)):
            raise ValueError(f"names of objects are texts, not {names}")
    selector = tuple(
        Condition(key, operator, tuple(values)) for key, operator, values in loads(row["selector"])
    )
    return Task(
        row["task_id"], row["task_number"], row["job_id"], row["cluster_id"], row["owner_id"], loads(row["request"]),
        row["grace_s"], selector, row["strategy"], row["origin_vnode_id"], tuple(loads(row["inputs"])),
        tuple(loads(row["outputs"])), row["max_retries"], bool(row["detached"]), outlives, row["name"], row["state"],
        row["attempt"], row["vnode_id"], row["node_id"], row["stop_requested_at"],
        (row["message"] or "") if row["state"] == PENDING_ARGS else "",
    )  # fmt: skip


def lease(row: Row) -> Lease:
    """A row of ``leases``."""
    return Lease(
        row["lease_id"], row["borrower_id"], row["lender_id"], loads(row["amounts"]), row["since"], row["expires_at"],
        row["job_id"], row["state"],
    )  # fmt: skip


def run(row: Row) -> Run:
    """A row of ``runs``."""
    if row["supervisor"] is None:
        raise ValueError("it has no supervisor: a build before the first release wrote it")
    return Run(
        row["run_id"], row["job_id"], row["attempt"], row["rank"], row["cluster_id"], row["vnode_id"], row["node_id"],
        allocation(row), row["state"], row["pid"], row["pid_start"], row["boot_id"], row["task_id"], row["started_at"],
        row["stop_reason"], row["supervisor"], row["warned_for"],
    )  # fmt: skip
