"""The columns of every kind of list, shared by ``vctl KIND list`` and ``vctl list KIND``."""

from collections.abc import Mapping
from typing import Any

from vctl.cli import words
from vctl.cli.page import Cell, Column

Item = Mapping[str, Any]


def _running_for(job: Item) -> str:
    return words.lasted(job["started_at"], job["ended_at"]) if job["started_at"] else ""


def _done(job: Item) -> str:
    array = job.get("array")
    return f"{array['done']}/{array['count']}" if array else ""


def _amount(key: str, name: str) -> Any:
    def show(item: Item) -> str:
        have = (item.get(key) or {}).get(name)
        return "" if not have else words.amount(name, have)

    return show


def _used(name: str, total: str, available: str) -> Any:
    def show(item: Item) -> Cell:
        have, free = (item.get(total) or {}).get(name), (item.get(available) or {}).get(name)
        if not have:
            return Cell("")
        if free is None:
            return Cell(words.amount(name, have))
        text = f"{words.amount(name, have - free)}/{words.amount(name, have)}"
        return Cell(text, "yellow" if free <= 0 else "")

    return show


JOBS = [
    Column("SUBMISSION", "submission_id"),
    Column("ID", "job_id", right=True, spare=True),
    Column("NAME", "name", optional=True, give=True),
    Column("STATUS", lambda job: words.state(job["status"])),
    Column("DONE", _done, right=True, optional=True),
    Column("REASON", "state_reason", optional=True),
    Column("CLUSTER", lambda job: words.cluster_name(job["parent_cluster_id"]), give=True),
    Column("PRIO", lambda job: job["priority"] or "", right=True, optional=True),
    Column("POS", "queue_position", right=True, optional=True, spare=True),
    Column("CPU", _amount("resources", "CPU"), right=True, optional=True),
    Column("GPU", _amount("resources", "GPU"), right=True, optional=True),
    Column("MEM", _amount("resources", "memory"), right=True, optional=True, spare=True),
    Column("TIME", _running_for, right=True),
    Column("AGE", lambda job: words.lasted(job["submitted_at"]), right=True, spare=True),
    Column("EXIT", "exit_code", right=True, optional=True),
    Column("COMMAND", "entrypoint", give=True),
]
CLUSTERS = [
    Column("CLUSTER", lambda vc: words.cluster_name(vc["cluster_id"])),
    Column("PARENT", lambda vc: words.cluster_name(vc["parent_id"]), give=True),
    Column("KIND", "kind"),
    Column("DIVISIBLE", lambda vc: "yes" if vc["divisible"] else "no", spare=True),
    Column("STATE", lambda vc: words.state(vc["state"])),
    Column("CPU", _used("CPU", "total_resources", "available_resources"), right=True, optional=True),
    Column("GPU", _used("GPU", "total_resources", "available_resources"), right=True, optional=True),
    Column("MEM", _used("memory", "total_resources", "available_resources"), right=True, optional=True),
    Column("REPLICAS", lambda vc: words.replicas(vc.get("replica_sets")), optional=True, give=True),
    Column("JOBS", lambda vc: _count(vc.get("jobs")), right=True, optional=True),
    Column("REVISION", "revision", right=True, spare=True),
]
NODES = [
    Column("NODE", "node_id"),
    Column("TYPE", "template_id"),
    Column("SOURCE", "source", spare=True),
    Column("STATE", lambda node: words.state(node["state"])),
    Column("CPU", _used("CPU", "resources", "available"), right=True, optional=True),
    Column("GPU", _used("GPU", "resources", "available"), right=True, optional=True),
    Column("MEM", _used("memory", "resources", "available"), right=True, optional=True),
    Column("REASON", "reason", optional=True, give=True),
    Column("AGE", lambda node: words.lasted(node["created_at"]), right=True, spare=True),
]
VNODES = [
    Column("VNODE", "vnode_id"),
    Column("CLUSTER", lambda vnode: words.cluster_name(vnode["cluster_id"]), give=True),
    Column("NODE", "node_id"),
    Column("KIND", lambda vnode: "whole" if vnode["whole"] else vnode["kind"]),
    Column("CPU", _amount("resources", "CPU"), right=True, optional=True),
    Column("GPU", _amount("resources", "GPU"), right=True, optional=True),
    Column("MEM", _amount("resources", "memory"), right=True, optional=True),
]
NODES_OF_A_CLUSTER = [
    Column("NODE ID", "NodeID"),
    Column("ON", lambda node: node.get("ParentNodeID") or "", optional=True),
    Column("NAME", "NodeName", spare=True),
    Column("TYPE", "NodeType"),
    Column("KIND", "Kind"),
    Column("ALIVE", lambda node: Cell("yes", "green") if node["Alive"] else Cell("no", "red")),
    Column("CPU", _used("CPU", "Resources", "Available"), right=True, optional=True),
    Column("GPU", _used("GPU", "Resources", "Available"), right=True, optional=True),
    Column("MEM", _used("memory", "Resources", "Available"), right=True, optional=True),
]
TASKS = [
    Column("TASK", "task_id"),
    Column("NAME", "name", optional=True, give=True),
    Column("STATE", lambda task: words.state(task["state"])),
    Column("REASON", "state_reason", optional=True),
    Column("JOB", "job_id", right=True, spare=True),
    Column("CLUSTER", lambda task: words.cluster_name(task["cluster_id"]), give=True),
    Column("NODE", lambda task: task["node_id"] or "", optional=True, give=True),
    Column("CPU", _amount("resources", "CPU"), right=True, optional=True),
    Column("GPU", _amount("resources", "GPU"), right=True, optional=True),
    Column("MEM", _amount("resources", "memory"), right=True, optional=True, spare=True),
    Column("TIME", _running_for, right=True),
    Column("AGE", lambda task: words.lasted(task["created_at"]), right=True, spare=True),
    Column("EXIT", "exit_code", right=True, optional=True),
]
OBJECTS = [
    Column("OBJECT", "object_id"),
    Column("SIZE", lambda one: words.amount("memory", one["size"]) if one["size"] else "0", right=True),
    Column("TASK", lambda one: one["task_id"] or "", optional=True),
    Column("CLUSTER", lambda one: words.cluster_name(one["cluster_id"]), give=True),
    Column("NODES", lambda one: _few(one["node_ids"]), give=True),
    Column("AGE", lambda one: words.lasted(one["created_at"]), right=True, spare=True),
]
LEASES = [
    Column("LEASE", "lease_id", right=True),
    Column("BORROWER", lambda lease: words.cluster_name(lease["borrower_id"]), give=True),
    Column("LENDER", lambda lease: words.cluster_name(lease["lender_id"]), give=True),
    Column("RESOURCES", lambda lease: words.amounts(lease["resources"])),
    Column("NODE", "node_id", give=True),
    Column("VNODE", "vnode_id", spare=True, give=True),
    Column("JOB", "job_id", right=True, optional=True, spare=True),
    Column("AGE", lambda lease: words.lasted(lease["since"]), right=True),
    Column("EXPIRES", lambda lease: words.until(lease["expires_at"]), right=True, optional=True),
]
DEMAND = [
    Column("CLUSTER", lambda line: words.cluster_name(line["cluster_id"]), give=True),
    Column("COUNT", "count", right=True),
    Column("KIND", "kind"),
    Column("RESOURCES", lambda line: words.amounts(line["resources"]) or "-"),
    Column("REASON", "reason"),
    Column("BY", lambda line: _few(line["by"]), give=True),
]
EVENTS = [
    Column("SEQ", "seq", right=True),
    Column("TIME", lambda event: event["at"][:19].replace("T", " ")),
    Column("EVENT", "kind"),
    Column("OBJECT", "object_id", give=True),
    Column("CLUSTER", lambda event: words.cluster_name(event["cluster_id"]), optional=True, give=True),
    Column(
        "DETAILS",
        lambda event: words.value("", event["data"]) if event["data"] else "",
        optional=True,
        give=True,
    ),
]


def _few(names: list[str]) -> str:
    """The first names of many."""
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _count(value: object) -> object:
    """Jobs come as a number, or as numbers by state."""
    if isinstance(value, Mapping):
        return sum(value.values()) or ""
    return (len(value) or "") if isinstance(value, list) else value
