"""The columns of every kind of list, shared by ``vctl KIND list`` and ``vctl list KIND``.

``at`` is the least width of the terminal at which a column is shown. Columns without ``at`` are always shown.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vctl.cli import words
from vctl.cli.table import GIVES, Cell, Column, key, matters
from vctl.core.nodes import ALIVE
from vctl.spec.quantities import format_duration

Item = Mapping[str, Any]
SMALL, MEDIUM, WIDE, WIDER, WIDEST = 80, 90, 100, 130, 160
"""The least widths of a terminal for further columns."""


def _running_for(job: Item) -> str:
    return words.lasted(job["started_at"], job["ended_at"]) if job["started_at"] else ""


def _done(job: Item) -> str:
    array = job.get("array")
    return f"{array['done']}/{array['count']}" if array else ""


def _amount(field: str, name: str) -> Any:
    def show(item: Item) -> str:
        have = (item.get(field) or {}).get(name)
        return "" if not have else words.amount(name, have)

    return show


def _used(name: str, total: str, used: str) -> Any:
    def show(item: Item) -> Cell | str:
        have, use = ((item.get(field) or {}).get(name, 0) for field in (total, used))
        if not have and not use:
            return ""
        return Cell(f"{words.amount(name, use)}/{words.amount(name, have)}", "yellow" if use >= have else "")

    return show


def _state(field: str) -> Any:
    return lambda item: words.state(item[field])


def state(heading: str, show: Callable[[Item], Any], *reads: str) -> Column:
    """A column with words of a fixed set, in their colours."""
    return Column(heading, show, whole=True, reads=reads)


def cluster(heading: str, field: str, at: int = 0) -> Column:
    """A column with the id of a cluster; it is one of the first that are shortened."""
    return Column(heading, field, middle=True, rank=GIVES, at=at)


def number(heading: str, field: str = "job_id") -> Column:
    """The number of a job, which is whole at every width."""
    return Column(heading, field, right=True)


def _stamp(heading: str, field: str, at: int = 0) -> Column:
    return Column(heading, lambda item: words.moment(item[field]), whole=True, at=at, reads=(field,))


def _age(field: str, at: int = 0) -> Column:
    return Column("AGE", lambda item: words.lasted(item[field]), right=True, at=at, reads=(field,))


def _amounts(field: str, at: int = 0) -> list[Column]:
    return [
        Column("CPU", _amount(field, "CPU"), right=True, reads=(field,)),
        Column("GPU", _amount(field, "GPU"), right=True, at=at, reads=(field,)),
        Column("MEM", _amount(field, "memory"), right=True, at=max(at, WIDE), reads=(field,)),
    ]


def _alive(node: Item) -> Cell:
    if not node["Alive"]:
        return Cell("no", "red")
    return Cell("yes", "green") if node["State"] == ALIVE else Cell(node["State"].lower(), "yellow")


def _use(total: str, used: str) -> list[Column]:
    return [
        Column(heading, _used(name, total, used), right=True)
        for heading, name in (("CPU", "CPU"), ("GPU", "GPU"), ("MEM", "memory"))
    ]


START = Column(
    "START", lambda job: words.soon(job.get("expected_start")), at=WIDER, reads=("expected_start",)
)
"""The expected start of a waiting job, which costs time."""
JOBS = [
    key("SUBMISSION", "submission_id"),
    number("ID"),
    Column("NAME", "name", rank=GIVES, at=WIDEST, raw=True),
    Column("USER", "user", at=WIDE),
    state("STATUS", _state("status"), "status"),
    Column("DONE", _done, right=True, at=WIDER, reads=("array",)),
    matters("REASON", "state_reason"),
    cluster("CLUSTER", "parent_cluster_id", at=MEDIUM),
    Column("PRIO", "priority", right=True, at=WIDER),
    Column("POS", "queue_position", right=True, at=WIDER),
    START,
    *_amounts("resources", at=WIDE),
    Column("TIME", _running_for, right=True, reads=("started_at", "ended_at")),
    _age("submitted_at", at=WIDER),
    Column("EXIT", "exit_code", right=True, at=WIDE),
    Column("COMMAND", "entrypoint", rank=GIVES, at=SMALL, raw=True),
]
CLUSTERS = [
    key("CLUSTER", "cluster_id"),
    cluster("PARENT", "parent_id"),
    state("KIND", lambda vc: vc["kind"]),
    Column("DIVISIBLE", lambda vc: "yes" if vc["divisible"] else "no", whole=True, at=WIDER),
    state("STATE", _state("state")),
    *_use("total", "used"),
    Column("BEGIN", lambda vc: words.soon(vc["begin_at"]), whole=True, at=WIDER, reads=("begin_at",)),
    Column("END", lambda vc: words.soon(vc["end_at"]), whole=True, at=WIDER, reads=("end_at",)),
    Column("REPLICAS", lambda vc: words.replicas(vc.get("replica_sets")), rank=GIVES, at=WIDE),
    Column("JOBS", lambda vc: _count(vc.get("jobs")), right=True),
    Column("REVISION", "revision", right=True, at=WIDER),
]
NODES = [
    key("NODE", "node_id"),
    Column("TYPE", "template_id", rank=GIVES),
    Column("SOURCE", "source", whole=True, at=WIDE),
    state("STATE", _state("state")),
    *_use("resources", "used"),
    matters("REASON", "reason"),
    _age("created_at", at=WIDE),
]
VNODES = [
    key("VNODE", "vnode_id"),
    cluster("CLUSTER", "cluster_id"),
    Column("NODE", "node_id", middle=True),
    state("KIND", lambda vnode: "whole" if vnode["whole"] else vnode["kind"]),
    *_amounts("resources"),
]
NODES_OF_A_CLUSTER = [
    key("NODE ID", "NodeID"),
    Column("ON", lambda node: node.get("ParentNodeID"), middle=True, at=WIDE),
    Column("NAME", "NodeName", middle=True, rank=GIVES),
    Column("TYPE", "NodeType", rank=GIVES),
    state("KIND", lambda node: node["Kind"]),
    state("ALIVE", _alive, "Alive", "State"),
    *_use("Resources", "Used"),
]
GPUS = [
    Column("GPU", lambda line: line["gpu"], middle=True),
    state("STATE", lambda line: line["state"]),
    Column("BOOKED", lambda line: line["booked"], right=True),
    Column("USE", lambda line: line["use"], right=True),
    Column("MEMORY", lambda line: line["memory"], right=True),
    Column("USER", lambda line: line["user"], rank=GIVES),
    matters("HOLDER AND PROCESSES", lambda line: line["what"]),
]
"""The rows of ``vctl.cli.gpus_view``."""
TASKS = [
    key("TASK", "task_id"),
    Column("NAME", "name", rank=GIVES, at=WIDE, raw=True),
    state("STATE", _state("state"), "state"),
    matters("REASON", "state_reason"),
    Column("JOB", "job_id", right=True, at=WIDE),
    cluster("CLUSTER", "cluster_id"),
    Column("NODE", "node_id", middle=True, at=WIDE),
    *_amounts("resources", at=WIDE),
    Column("TIME", _running_for, right=True, reads=("started_at", "ended_at")),
    _age("created_at", at=WIDER),
    Column("EXIT", "exit_code", right=True, at=WIDE),
]
TIMELINE = [
    Column("KIND", "kind", whole=True, at=SMALL),
    number("JOB"),
    key("ID", "id"),
    state("STATE", _state("state"), "state"),
    Column("NODES", lambda row: words.few(row["node_ids"]), rank=GIVES, at=SMALL),
    _stamp("STARTED", "started_at"),
    Column("TIME", _running_for, right=True, reads=("started_at", "ended_at")),
]
OBJECTS = [
    key("OBJECT", "object_id"),
    Column("SIZE", lambda row: words.amount("memory", row["size"]) if row["size"] else "0", right=True),
    Column("TASK", "task_id", middle=True),
    cluster("CLUSTER", "cluster_id"),
    matters("NODES", lambda row: words.few(row["node_ids"])),
    _age("created_at"),
]
LEASES = [
    Column("LEASE", "lease_id", right=True),
    Column("BORROWER", "borrower_id", middle=True),
    Column("LENDER", "lender_id", middle=True),
    matters("RESOURCES", lambda lease: words.amounts(lease["resources"])),
    Column("JOB", "job_id", right=True, at=WIDE),
    state("STATE", lambda lease: lease["state"]),
    Column("AGE", lambda lease: words.lasted(lease["since"]), right=True),
    Column("EXPIRES", lambda lease: words.until(lease["expires_at"]), right=True),
]
TOKENS = [
    Column("TOKEN", "token_id", right=True),
    Column("USER", "user", rank=GIVES),
    matters("NAME", lambda token: token["name"] or ""),
    Column("AGE", lambda token: words.lasted(token["created_at"]), right=True),
    Column("ENDS", lambda token: words.until(token["ends_at"]), right=True),
]
DEMAND = [
    cluster("CLUSTER", "cluster_id"),
    Column("COUNT", "count", right=True),
    state("KIND", lambda line: line["kind"]),
    matters("RESOURCES", lambda line: words.amounts(line["resources"])),
    state("REASON", lambda line: line["reason"]),
    Column("BY", lambda line: words.few(line["by"]), rank=GIVES, middle=True),
]


def _details(event: Item) -> str:
    """The data of an event as text; the amounts of a lease are written as in tables."""
    data = event["data"]
    if event["object"] == "lease":
        data = {
            name: words.amounts(given) or "nothing" if isinstance(given, Mapping) else given
            for name, given in data.items()
        }
    return words.value("", data) if data else ""


EVENTS = [
    Column("SEQ", "seq", right=True, at=SMALL),
    _stamp("TIME", "at"),
    Column("EVENT", "kind", whole=True),
    number("JOB"),
    key("OBJECT", "object_id"),
    Column("CLUSTER", "cluster_id", middle=True, rank=GIVES, at=WIDE),
    matters("DETAILS", _details, at=SMALL),
]


def _count(value: object) -> object:
    """The number of jobs, given as a number, a list, or numbers by state."""
    if isinstance(value, Mapping):
        return sum(value.values()) or ""
    return (len(value) or "") if isinstance(value, list) else value


def _limited(field: str) -> Any:
    def show(limit: Item) -> str:
        if limit[field] is None:
            return ""
        is_number = limit["of"] in ("running_jobs", "gpu_hours")
        return f"{limit[field]:.4g}" if is_number else words.amount(limit["of"], limit[field])

    return show


LIMITS = [
    Column("USER", lambda limit: limit["user"] or "", reads=("user",)),
    cluster("CLUSTER", "cluster_id"),
    Column("OF", lambda limit: limit["of"].replace("_", " "), reads=("of",)),
    Column("LIMIT", _limited("limit"), right=True, reads=("limit", "of")),
    Column("PER", lambda limit: limit["per"] or "", reads=("per",), at=SMALL),
    Column("USED", _limited("used"), right=True, reads=("used", "of")),
    Column("SET BY", "set_by"),
    Column("SET", lambda limit: words.moment(limit["set_at"]), reads=("set_at",), at=SMALL),
]


def _hours(heading: str, field: str, at: int = 0) -> Column:
    def show(line: Item) -> str:
        return f"{line[field]:.2f}" if line[field] >= 1 else f"{line[field]:.2g}" if line[field] else ""

    return Column(heading, show, right=True, reads=(field,), at=at)


def _wait(heading: str, field: str, at: int = 0) -> Column:
    def show(line: Item) -> str:
        return "" if line[field] is None else format_duration(int(line[field]))

    return Column(heading, show, right=True, reads=(field,), at=at)


def _jobs(heading: str, field: str, at: int = 0) -> Column:
    return Column(heading, lambda line: str(line[field] or ""), right=True, reads=(field,), at=at)


REPORT = [
    _hours("CPU-H", "cpu_hours"),
    _hours("GPU-H", "gpu_hours"),
    _hours("GIB-H", "memory_gib_hours", WIDE),
    _hours("LOST CPU-H", "lost_cpu_hours"),
    _hours("LOST GPU-H", "lost_gpu_hours", WIDE),
    _jobs("OK", "succeeded"),
    _jobs("FAILED", "failed"),
    _jobs("STOPPED", "stopped", SMALL),
    _jobs("RUN", "running", SMALL),
    _wait("WAIT", "wait_median_s"),
    _wait("MEAN", "wait_mean_s", WIDE),
    _wait("LONGEST", "wait_longest_s"),
]
"""What stands beside the user, the cluster or the job of a line."""
