"""The conservation rules, checked on the raw tables by code that shares nothing with the scheduler.

Every rule is stated once, over plain rows; a violation is a sentence that names the rows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vctl.store.repair import live_rows, table_rows, wrong_counts, wrong_members
from vctl.store.store import Store

PRIMARY = "kPrimaryClusterID"
WHOLE = 10_000
KEYS = {
    "nodes": "node_id",
    "clusters": "cluster_id",
    "vnodes": "vnode_id",
    "jobs": "job_id",
    "runs": "run_id",
    "tasks": "task_id",
    "leases": "lease_id",
}


def prove(store: Store, *, all_rows: bool = True) -> list[str]:
    """The violations of the rules of the tree; empty when all rules hold.

    Without ``all_rows``, rows of finished objects that cannot break a rule any more are not checked.
    """
    with store.snapshot():
        read = table_rows if all_rows else live_rows
        tables = {name: read(store, name) for name in KEYS}
        counts = wrong_counts(store, all_rows=all_rows) + wrong_members(store)
    facts = _Facts(tables)
    return [
        *facts.problems,
        *_references(facts),
        *_vnode_references(facts),
        *_flexible(facts),
        *_minimum(facts),
        *_conservation(facts),
        *_devices(facts),
        *_jobs(facts),
        *_leases(facts),
        *_borrowed(facts),
        *counts,
    ]


class _Facts:
    """Rows as plain dictionaries; an unreadable value is a problem."""

    def __init__(self, tables: dict[str, list[Any]]) -> None:
        self.problems: list[str] = []
        self.by_id: dict[str, dict[Any, dict[str, Any]]] = {}
        for table, rows in tables.items():
            found: dict[Any, dict[str, Any]] = {}
            for row in rows:
                plain = {name: row[name] for name in row.keys()}  # noqa: SIM118
                for column in ("amounts", "instances", "cores", "labels", "spec"):
                    if column in plain and (column != "spec" or table == "clusters"):
                        try:
                            plain[column] = _checked(column, json.loads(plain[column]))
                        except (TypeError, ValueError, AttributeError):
                            self.problems.append(f"{table} {plain[KEYS[table]]}: {column} cannot be read")
                            plain[column] = [] if column == "cores" else {}
                found[plain[KEYS[table]]] = plain
            self.by_id[table] = found
        self.runs = list(self.by_id["runs"].values())

    def slot(self, slot_id: str) -> dict[str, Any] | None:
        return self.by_id["vnodes"].get(slot_id) or self.by_id["nodes"].get(slot_id)

    def may_be_overdrawn(self, slot: dict[str, Any]) -> bool:
        """Whether a slot may hold more than its total: on a node that shrank, its contents stay."""
        node = self.by_id["nodes"].get(slot["node_id"])
        return bool(node and node["shrunk"] and slot.get("whole", True))


def _checked(column: str, value: Any) -> Any:
    """A value with the types of its column. Raises TypeError, ValueError or AttributeError for others."""
    if column == "cores":
        return [int(core) for core in value]
    if column == "amounts":
        return {name: int(amount) for name, amount in value.items()}
    if column == "instances":
        return {name: {index: int(share) for index, share in one.items()} for name, one in value.items()}
    return dict(value.items())


def _references(facts: _Facts) -> Iterator[str]:
    clusters = facts.by_id["clusters"]
    for cluster_id, cluster in clusters.items():
        parent = cluster["parent_id"]
        if parent != PRIMARY and parent not in clusters:
            yield f"cluster {cluster_id}: its parent {parent} does not exist"
        seen = {cluster_id}
        while parent in clusters:
            if parent in seen:
                yield f"cluster {cluster_id}: its ancestors form a cycle"
                break
            seen.add(parent)
            parent = clusters[parent]["parent_id"]


def _vnode_references(facts: _Facts) -> Iterator[str]:
    clusters, vnodes, nodes = facts.by_id["clusters"], facts.by_id["vnodes"], facts.by_id["nodes"]
    for vnode_id, vnode in vnodes.items():
        owner = clusters.get(vnode["cluster_id"])
        if owner is None:
            yield f"virtual node {vnode_id}: its cluster {vnode['cluster_id']} does not exist"
            continue
        if vnode["node_id"] not in nodes:
            yield f"virtual node {vnode_id}: its node {vnode['node_id']} does not exist"
        above = facts.slot(vnode["parent_vnode_id"])
        if above is None:
            yield f"virtual node {vnode_id}: its parent {vnode['parent_vnode_id']} does not exist"
            continue
        if above["node_id"] != vnode["node_id"]:
            yield f"virtual node {vnode_id}: its parent is on another node"
        if above.get("cluster_id", PRIMARY) != owner["parent_id"]:
            yield f"virtual node {vnode_id}: its parent is not of the parent cluster {owner['parent_id']}"


def _flexible(facts: _Facts) -> Iterator[str]:
    flexible: dict[tuple[str, str], str] = {}
    for vnode_id, vnode in facts.by_id["vnodes"].items():
        if vnode["kind"] == "flexible":
            place = (vnode["cluster_id"], vnode["parent_vnode_id"])
            if place in flexible:
                yield f"virtual nodes {flexible[place]} and {vnode_id}: two flexible ones of one cluster in {place[1]}"
            flexible[place] = vnode_id


def is_to_open(cluster: Mapping[str, Any], has: Sequence[object]) -> bool:
    """Whether a cluster has nothing because its booking has not begun, also if it is cancelled."""
    return not has and "booking" in cluster["settings"] and cluster["state"] in ("BOOKED", "REMOVING")


def _minimum(facts: _Facts) -> Iterator[str]:
    """A logical cluster has the virtual nodes of its spec; one that lends, or is about to go, may lack its minimum."""
    nodes = facts.by_id["nodes"]
    own: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for vnode in facts.by_id["vnodes"].values():
        own[vnode["cluster_id"]].append(vnode)
    for cluster_id, cluster in facts.by_id["clusters"].items():
        has, spec = own[cluster_id], cluster["spec"]
        is_shrunk = any(nodes.get(vnode["node_id"], {}).get("shrunk") for vnode in has)
        if cluster["kind"] != "logical" or is_shrunk or is_to_open(cluster, has):
            continue
        count = sum(spec.get("replica_sets", {}).values())
        if (whole := sum(bool(vnode["whole"]) for vnode in has)) < count:
            yield f"cluster {cluster_id}: it has {whole} whole nodes, and its replica sets are {count}"
        fixed = [vnode["amounts"] for vnode in has if vnode["kind"] == "fixed"]
        groups = [node["resources"] for group in spec.get("groups", ()) for node in group["nodes"]]
        for name in sorted({name for amounts in groups for name in amounts}):
            need, have = (sum(one.get(name, 0) for one in amounts) for amounts in (groups, fixed))
            if have < need:
                yield (
                    f"cluster {cluster_id}: its fixed virtual nodes have {have / WHOLE:g} {name},"
                    f" and its spec reserves {need / WHOLE:g}"
                )
        may_lack = "lending_limit" in cluster["settings"] or cluster["state"] == "REMOVING"
        if (
            any(spec.get("min", {}).values())
            and not may_lack
            and all(vnode["kind"] != "flexible" for vnode in has)
        ):
            yield f"cluster {cluster_id}: it has a minimum and no flexible virtual node"


def _holders(facts: _Facts) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """slot id -> its holders: child virtual nodes, and runs of its own cluster."""
    inside: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for vnode_id, vnode in facts.by_id["vnodes"].items():
        inside[vnode["parent_vnode_id"]].append((f"virtual node {vnode_id}", vnode))
    for run in facts.runs:
        inside[run["vnode_id"]].append((f"run {run['run_id']}", run))
    return inside


def _conservation(facts: _Facts) -> Iterator[str]:
    for slot_id, holders in _holders(facts).items():
        slot = facts.slot(slot_id)
        if slot is None:
            yield f"{holders[0][0]}: its virtual node {slot_id} does not exist"
            continue
        used: dict[str, int] = defaultdict(int)
        for _, holder in holders:
            for name, amount in holder["amounts"].items():
                used[name] += amount
        for name, amount in used.items():
            total = slot["amounts"].get(name, 0)
            if amount > total and slot.get("state") != "DEAD" and not facts.may_be_overdrawn(slot):
                who = ", ".join(label for label, holder in holders if holder["amounts"].get(name))
                yield f"{slot_id}: {amount / WHOLE:g} {name} held of {total / WHOLE:g} (by {who})"
    for table in ("nodes", "vnodes", "runs"):
        for key, row in facts.by_id[table].items():
            if any(amount < 0 for amount in row["amounts"].values()):
                yield f"{table} {key}: a negative amount"


def _devices(facts: _Facts) -> Iterator[str]:
    for slot_id, holders in _holders(facts).items():
        slot = facts.slot(slot_id)
        if slot is None:
            continue
        shares: dict[tuple[str, str], int] = defaultdict(int)
        cores: dict[int, str] = {}
        for label, holder in holders:
            for name, instances in holder["instances"].items():
                for index, share in instances.items():
                    shares[name, index] += share
                if sum(instances.values()) != holder["amounts"].get(name, 0):
                    yield f"{label}: its shares of {name} are not its amount"
            for core in holder["cores"]:
                if core in cores:
                    yield f"core {core} of {slot_id} is held by {cores[core]} and {label}"
                cores[core] = label
                if core not in slot["cores"] and not facts.may_be_overdrawn(slot):
                    yield f"{label}: core {core} is not one of {slot_id}"
        for (name, index), share in shares.items():
            have = slot["instances"].get(name, {}).get(index, 0)
            if share > have and not facts.may_be_overdrawn(slot):
                yield f"{slot_id}: {share / WHOLE:g} of {name} {index} held, which has {have / WHOLE:g} there"


def _jobs(facts: _Facts) -> Iterator[str]:
    clusters, jobs = facts.by_id["clusters"], facts.by_id["jobs"]
    running = {run["job_id"] for run in facts.runs}
    attached = {run["job_id"] for run in facts.runs if not _outlives(facts, run["task_id"])}
    for job_id, job in jobs.items():
        name = f"job {job['submission_id']}"
        if job["status"] == "RUNNING" and job_id not in running:
            yield f"{name}: RUNNING without a process"
        if job["status"] == "RUNNING" and job["cluster_id"] not in clusters:
            yield f"{name}: RUNNING without its cluster {job['cluster_id']}"
        if job["status"] not in ("PENDING", "RUNNING") and job_id in attached:
            yield f"{name}: {job['status']} with a live process in the tables"
    kept_for = {one["job_id"] for one in clusters.values() if one["kind"] == "sub" and one["detached"]}
    for cluster_id, cluster in clusters.items():
        if cluster["kind"] == "job" and not cluster["detached"] and cluster["job_id"] not in kept_for:
            its = jobs.get(int(cluster["job_id"] or 0))
            if its is None or its["status"] != "RUNNING":
                yield f"cluster {cluster_id}: its job is over"
    for run in facts.runs:
        if run["job_id"] not in jobs:
            yield f"run {run['run_id']}: its job does not exist"


def _outlives(facts: _Facts, task_id: str | None) -> bool:
    """Whether a task, or a task that started it directly or indirectly, is detached from its job."""
    task = facts.by_id["tasks"].get(task_id)
    while task is not None:
        if task["detached"]:
            return True
        task = facts.by_id["tasks"].get(task["owner_id"])
    return False


def _leases(facts: _Facts) -> Iterator[str]:
    clusters = facts.by_id["clusters"]
    for lease_id, lease in facts.by_id["leases"].items():
        borrower = clusters.get(lease["borrower_id"])
        around, lender = [lease["lender_id"]], clusters.get(lease["lender_id"])
        while lender is not None:
            around.append(lender["parent_id"])
            lender = clusters.get(lender["parent_id"])
        if borrower is None or borrower["parent_id"] not in around:
            yield f"lease {lease_id}: {lease['lender_id']} is neither parent nor beside {lease['borrower_id']}"


def _borrowed(facts: _Facts) -> Iterator[str]:
    """What a logical cluster has above its minimum is borrowed; a job has borrowed no more than it has."""
    clusters, nodes = facts.by_id["clusters"], facts.by_id["nodes"]
    borrowed: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for lease in facts.by_id["leases"].values():
        for name, amount in lease["amounts"].items():
            borrowed[lease["borrower_id"]][name] += amount
    has: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    shrunk: set[str] = set()
    for vnode in facts.by_id["vnodes"].values():
        cluster = clusters.get(vnode["cluster_id"], {"kind": ""})
        if nodes.get(vnode["node_id"], {}).get("shrunk"):
            shrunk.add(vnode["cluster_id"])
        for name, amount in vnode["amounts"].items():
            if cluster["kind"] != "logical" or vnode["kind"] == "flexible":
                has[vnode["cluster_id"]][name] += amount
    for cluster_id in (borrowed.keys() | has.keys()) & clusters.keys() - shrunk:
        is_logical, least = (
            clusters[cluster_id]["kind"] == "logical",
            clusters[cluster_id]["spec"].get("min", {}),
        )
        for name in sorted(borrowed[cluster_id].keys() | has[cluster_id].keys()):
            lent, have = borrowed[cluster_id][name], has[cluster_id][name]
            if is_logical and lent != (over := max(have - least.get(name, 0), 0)):
                yield (
                    f"cluster {cluster_id}: it has {over / WHOLE:g} {name} above its minimum,"
                    f" and {lent / WHOLE:g} borrowed"
                )
            elif not is_logical and lent > have:
                yield f"cluster {cluster_id}: it has {have / WHOLE:g} {name}, and {lent / WHOLE:g} borrowed"
